"""Runs whose words have depths: evaluated as trained, at other depths, and shown word by word."""

from pathlib import Path
from typing import Any

import pytest

from depthwise.errors import InputError
from depthwise.evaluation import Line, evaluate_run, load_run, open_run, read_evaluation, score_lines
from depthwise.evaluation.word_depths import (
    PLOT,
    histogram_figure,
    occurrences,
    predict_with_words,
    table_of,
    words_decide,
    write_plot,
)

from ..tasks.test_reconstruction import masked_run
from .conftest import LABELLED, STACK, MakeRun, build_run

LAYERS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return word_run(tmp_path)


def word_run(tmp_path: Path, **options: Any) -> Path:
    """A run of classes whose words have depths, with random weights."""
    file = tmp_path / "labelled.tsv"
    file.write_text("".join(f"{label}\t{text}\n" for label, text in LABELLED))
    recipe = {
        "task": "text_classification",
        "data": {"cache": str(tmp_path / "cache"), **dict.fromkeys(("train", "valid", "test"), str(file))},
        "tokenizer": {"kind": "word", "vocab_size": 20},
        "model": {"width": 16, "encoder": {**STACK, "num_layers": LAYERS}, "word_depths": options},
    }
    return build_run(tmp_path / "run", recipe, seed=1)


def test_as_trained_and_at_other_depths(folder: Path) -> None:
    trained = load_run(folder, device="cpu")
    assert words_decide(trained.task)
    found = evaluate_run(trained, "test")
    depths = [
        [depth for _, depth in trained.task.words_with_depths([text])]  # type: ignore[attr-defined]
        for _, text in LABELLED
    ]
    expected = sum(sum(row) + max(row) for row in depths)  # the end of a text runs as deep as its deepest word
    assert found.token_layers == expected
    assert found.settings["word_depths"]["estimator"] == "mutual_information"
    full = evaluate_run(load_run(folder, device="cpu", depth="full"), "test")
    one = evaluate_run(load_run(folder, device="cpu", depth=1), "test")
    assert (full.mean_depth, one.mean_depth) == (LAYERS, 1)
    assert one.token_layers is not None
    assert one.token_layers < expected
    assert "word_depths" not in full.settings
    names = {"test", f"test-depth-{LAYERS}", "test-depth-1"}
    assert {path.stem for path in (folder / "results").glob("*.json")} == names
    assert read_evaluation(folder / "results" / "test.json") == found


@pytest.mark.parametrize("depth", ["policy", "mine"])
def test_words_know_no_other_depth(folder: Path, depth: str) -> None:
    with pytest.raises(InputError, match="have depths of their own; use --depth trained, full or a number"):
        load_run(folder, device="cpu", depth=depth)


def test_every_word_with_its_depth(folder: Path) -> None:
    run = load_run(folder, device="cpu")
    lines = [[Line(1, "a b  nobody"), Line(2, "")], [Line(3, "c")]]
    first, second = predict_with_words(run, lines)
    table = table_of(run.task, folder)
    label, words = first[0].text.split("\t")
    assert label in ("good", "bad")
    assert words == f"a:{table.depth_of('a')} b:{table.depth_of('b')} nobody:{table.unseen_depth}"
    assert (first[1].text, first[1].number) == ("", 2)
    assert second[0].text.endswith(f"\tc:{table.depth_of('c')}")
    ((scored,),) = score_lines(run, [[Line(1, "a b\tgood")]])
    assert float(scored.text) < 0


def test_runs_without_depths_of_words(make_run: MakeRun) -> None:
    plain = make_run("classes")
    task = open_run(plain)
    assert not words_decide(task)
    with pytest.raises(InputError, match=r"have no depths of their own; train a run with model\.word_depths=\{\}"):
        table_of(task, plain)
    full, trained = (load_run(plain, device="cpu", depth=depth) for depth in ("full", None))
    assert (full.depth, full.policy) == (trained.depth, trained.policy) == (None, None)


def test_histogram(folder: Path) -> None:
    table = table_of(open_run(folder), folder)
    assert occurrences(table).sum() == table.counts.frequencies().sum()
    (axes,) = histogram_figure(table).axes
    heights = [[bar.get_height() for bar in group] for group in axes.containers]  # type: ignore[attr-defined]
    assert [sum(of_group) for of_group in heights] == pytest.approx([100, 100])
    assert heights[0] == pytest.approx((100 * table.histogram() / len(table.depths)).tolist())
    path = write_plot(folder, table)
    assert path == folder / "results" / PLOT
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("estimator", ["reconstruction", "reconstruction_predictor"])
def test_depths_by_reconstruction(tmp_path: Path, estimator: str) -> None:
    folder = masked_word_run(tmp_path, estimator)
    run = load_run(folder, device="cpu")
    assert words_decide(run.task)
    found = evaluate_run(run, "test")
    assert found.settings["word_depths"]["penalty"] == 0.1
    assert found.mean_depth is not None
    assert 1 <= found.mean_depth <= LAYERS
    ((reply,),) = predict_with_words(run, [[Line(1, "a b")]])
    words = run.task.words_with_depths(["a b"])  # type: ignore[attr-defined]
    assert reply.text.endswith("\t" + " ".join(f"{word}:{depth}" for word, depth in words))
    with pytest.raises(InputError, match="has its depth from where it stands, not from a table"):
        table_of(run.task, folder)


def masked_word_run(tmp_path: Path, estimator: str) -> Path:
    """A run of classes whose words have depths by a masked language model, both with random weights."""
    masked = tmp_path / "masked"
    if not masked.exists():
        masked_run(masked, "a b c\nc b\n" * 4)
    file = tmp_path / "labelled.tsv"
    file.write_text("".join(f"{label}\t{text}\n" for label, text in LABELLED))
    recipe = {
        "task": "text_classification",
        "data": {"cache": str(tmp_path / "cache"), **dict.fromkeys(("train", "valid", "test"), str(file))},
        "tokenizer": {"path": str(masked)},
        "model": {
            "width": 16,
            "encoder": {**STACK, "num_layers": LAYERS},
            "word_depths": {"estimator": estimator, "run": str(masked)},
        },
    }
    return build_run(tmp_path / estimator, recipe, seed=1)
