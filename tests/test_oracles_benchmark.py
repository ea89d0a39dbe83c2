"""``benchmarks/oracles.py``: what oracles find against plain computations, and identities between them."""

import json
import math
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import SequenceExitConfig
from depthwise.depth import Context, Lesson
from depthwise.depth.exit_targets import sequence_targets
from depthwise.evaluation import Run, load_run
from depthwise.models.exits import HasExits

from .evaluation.conftest import PAIRS, MakeRun, _no_bars, make_run, originals
from .scripts import loaded

__all__ = ["_no_bars", "make_run", "originals"]

oracles = loaded("benchmarks/oracles.py")

NUM_TOKENS = sum(len(target.split()) + 1 for _, target in PAIRS)
"""Of the targets, with the end of each."""


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return load_run(make_run("leaving translation"), device="cpu")


@pytest.fixture
def lessons(run: Run) -> list[Lesson]:
    found: list[Lesson] = oracles.lessons_of(run, "valid")
    return found


def of_tokens(lessons: list[Lesson]) -> tuple[torch.Tensor, torch.Tensor]:
    """nll and whether the first guess is right, of every exit and token (E, tokens)."""
    nll = torch.cat([lesson.nll[:, lesson.valid] for lesson in lessons], 1)
    return nll.double(), torch.cat([lesson.correct[:, lesson.valid] for lesson in lessons], 1)


def chosen(lessons: list[Lesson], **options: Any) -> Any:
    """What one oracle finds."""
    fixed = oracles.fixed_exits(lessons)
    found = oracles.choices(lessons, fixed, [options.get("penalty", 0.0)], [options.get("smoothing", 0.0)])
    (one,) = [choice for choice in found if choice.oracle == options["oracle"]]
    return one


@torch.no_grad()
def test_fixed_exits(run: Run, lessons: list[Lesson]) -> None:
    """One text after the other, cut off at every depth, scored by the head that stands there."""
    model, task = run.model, run.task
    assert isinstance(model, HasExits)
    store = task.examples("valid")
    for depth, means in zip(model.exit_depths, oracles.fixed_exits(lessons), strict=True):
        cut = load_run(run.folder, device="cpu", depth=depth)
        nll, right = 0.0, 0
        for number in range(len(store)):
            batch = task.collate([store[number]])
            scores = cut.model(**batch).logits[0].log_softmax(-1)
            for step, label in enumerate(batch["labels"][0].tolist()):
                nll -= float(scores[step, label])
                right += int(scores[step].argmax()) == label
        assert means.depth == depth
        assert means.nll == pytest.approx(nll / NUM_TOKENS, rel=1e-5)
        assert means.accuracy == pytest.approx(right / NUM_TOKENS)


def test_the_best_exit_of_every_token(lessons: list[Lesson]) -> None:
    nll, correct = of_tokens(lessons)
    assert nll.shape == (4, NUM_TOKENS)
    by_likelihood, by_correctness = (chosen(lessons, oracle=oracle).found for oracle in oracles.ORACLES)
    best = nll.min(0)
    assert by_likelihood.nll == pytest.approx(float(best.values.mean()), abs=1e-12)
    assert by_likelihood.depth == pytest.approx(float(best.indices.double().mean()) + 1)
    assert by_correctness.accuracy == pytest.approx(float(correct.any(0).double().mean()))
    first = torch.where(correct.any(0), correct.byte().argmax(0), 0)
    assert by_correctness.depth == pytest.approx(float(first.double().mean()) + 1)
    assert by_correctness.nll > by_likelihood.nll
    assert min(means.nll for means in oracles.fixed_exits(lessons)) > by_likelihood.nll


def test_depth_falls_as_the_price_rises(lessons: list[Lesson]) -> None:
    """With λ = 0 there is no better nll by likelihood, nor better accuracy by correctness, and a price of 100 buys one
    block."""
    found = oracles.choices(lessons, oracles.fixed_exits(lessons), [0, 0.01, 0.1, 1, 100], [0, 1, 25, math.inf])
    curves = [list(curve) for _, curve in groupby(found, lambda choice: (choice.oracle, choice.smoothing))]
    assert len(curves) == 8
    for curve in curves:
        depths = [choice.found.depth for choice in curve]
        assert all(later <= earlier for earlier, later in pairwise(depths))
        assert depths[0] > depths[-1] == 1
        assert curve[-1].found == curve[-1].fixed
    for alone in (curves[0], curves[4]):
        free = alone[0].found
        assert all(choice.found.nll >= free.nll for choice in alone if choice.oracle == "likelihood")
        assert all(choice.found.accuracy <= free.accuracy for choice in alone if choice.oracle == "correctness")


@pytest.mark.parametrize("oracle", oracles.ORACLES)
@pytest.mark.parametrize("penalty", [0.0, 0.03])
def test_smoothed_without_end_it_is_the_oracle_of_sequences(lessons: list[Lesson], oracle: str, penalty: float) -> None:
    depths, nll = 0, 0.0
    for lesson in lessons:
        for row, length in enumerate(lesson.valid.sum(1).tolist()):
            options = SequenceExitConfig(oracle=oracle, penalty=penalty * length)
            exit_number = int(sequence_targets(lesson, options)[row])
            depths += exit_number * length
            nll += float(lesson.nll[exit_number - 1, row].double().sum())
    found = chosen(lessons, oracle=oracle, penalty=penalty, smoothing=math.inf).found
    assert found.depth == pytest.approx(depths / NUM_TOKENS)
    assert found.nll == pytest.approx(nll / NUM_TOKENS)


def test_counts_by_hand() -> None:
    """Exits after one and three blocks, three tokens of which the last is padding in the second row."""
    steps, valid = torch.arange(3).expand(2, -1), torch.tensor([[True] * 3, [True, True, False]])
    lesson = Lesson(
        context=Context(shape=(2, 3), exits=(1, 3), steps=steps, valid=valid),
        hidden=(),
        nll=torch.tensor([[[1.0, 2.0, 3.0], [4.0, 1.0, 9.0]], [[0.9, 1.0, 4.0], [2.0, 1.0, 0.0]]]),
        correct=torch.tensor([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]]).bool(),
        agrees=torch.ones(2, 2, 3, dtype=torch.bool),
        valid=valid,
    )
    assert oracles.fixed_exits([lesson]) == [
        oracles.Means(depth=1, nll=pytest.approx(11 / 5), accuracy=2 / 5),
        oracles.Means(depth=3, nll=pytest.approx(8.9 / 5), accuracy=2 / 5),
    ]
    for options, depth, nll, accuracy in (
        ({"oracle": "likelihood"}, 11 / 5, 7.9 / 5, 3 / 5),
        ({"oracle": "likelihood", "penalty": 0.1}, 9 / 5, 8 / 5, 3 / 5),
        ({"oracle": "likelihood", "smoothing": math.inf}, 15 / 5, 8.9 / 5, 2 / 5),
        ({"oracle": "likelihood", "smoothing": math.inf, "penalty": 0.1}, 9 / 5, 9 / 5, 1 / 5),
        ({"oracle": "correctness"}, 7 / 5, 10 / 5, 3 / 5),
        ({"oracle": "correctness", "penalty": 0.5}, 5 / 5, 11 / 5, 2 / 5),
    ):
        found = chosen([lesson], **options).found
        assert (found.depth, found.nll, found.accuracy) == (pytest.approx(depth), pytest.approx(nll), accuracy)


def test_fixed_exits_at_the_same_depth() -> None:
    fixed = [oracles.Means(depth=1, nll=4, accuracy=0.5), oracles.Means(depth=3, nll=2, accuracy=0.7)]
    assert oracles.at_depth(fixed, 1.5) == oracles.Means(depth=1.5, nll=3.5, accuracy=0.55)
    assert oracles.at_depth(fixed, 3) == oracles.Means(depth=3, nll=2, accuracy=0.7)


def test_the_first_examples(run: Run, lessons: list[Lesson]) -> None:
    """They are the same when others stand beside them, which are longer or shorter."""
    (few,), (all_,) = oracles.lessons_of(run, "valid", 2), lessons
    lengths = few.valid.sum(1).tolist()
    assert sorted(lengths) == [2, 4]
    counts = all_.valid.sum(1).tolist()
    for row, length in enumerate(lengths):
        others = [all_.nll[:, place, :length] for place, count in enumerate(counts) if count == length]
        assert any(torch.allclose(few.nll[:, row, :length], other, atol=1e-5) for other in others)


def test_the_model_keeps_its_policy(run: Run) -> None:
    model = run.model
    assert isinstance(model, HasExits)
    before = model.trained_policy
    oracles.lessons_of(run, "valid")
    assert model.trained_policy is before
    assert model.policy is None


def test_the_command(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "oracles.json", tmp_path / "oracles.png"
    sizes = ["--split", "test", "--penalties", "0", "0.5", "--smoothings", "0", "inf", "--limit", "4"]
    assert oracles.main([str(run.folder), *sizes, "--json", str(file), "--plot", str(picture)]) == 0
    output = capsys.readouterr().out
    assert "translation, test: 4 examples" in output
    assert output.count("oracle") == 2
    content = json.loads(file.read_text())
    assert [means["depth"] for means in content["fixed"]] == [1, 2, 3, 4]
    assert [(each["oracle"], each["smoothing"], each["penalty"]) for each in content["oracles"]] == [
        (oracle, smoothing, penalty) for oracle in oracles.ORACLES for smoothing in (0, "inf") for penalty in (0, 0.5)
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_figure_has_a_line_for_every_smoothing(lessons: list[Lesson]) -> None:
    fixed = oracles.fixed_exits(lessons)
    found = oracles.choices(lessons, fixed, [0, 1], [0, 5, math.inf])
    figure = oracles.figure_of(fixed, found, "title")
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["σ = 0", "σ = 5", "σ = ∞", "fixed exits"]
    drawn = figure.axes[0].lines[0]
    assert list(drawn.get_ydata()) == [choice.found.nll for choice in found[:2]]
    assert list(drawn.get_xdata()) == [choice.found.depth for choice in found[:2]]


def test_mistakes(make_run: MakeRun, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, message in {
        "translation": "has no exits to leave at; train a run with model.exits",
        "leaving classes": "is a run of text_classification; oracles are measured for translation or summarization",
    }.items():
        assert oracles.main([str(make_run(kind, name="other " + kind))]) == 1
        assert capsys.readouterr().err.rstrip().endswith(message)
    recipe = run.folder / "recipe.yaml"
    lines = [line for line in recipe.read_text().splitlines() if not line.startswith("  test:")]
    recipe.write_text("\n".join(lines) + "\n")
    assert oracles.main([str(run.folder), "--split", "test"]) == 1
    assert capsys.readouterr().err == "error: the recipe names no test data; add data.test=FILE\n"
    for arguments, message in {
        ("--split", "dev"): "invalid choice: 'dev' (choose from",
        ("--limit", "0"): "--limit takes at least 1",
        ("--penalties", "-1"): "-1 is no number from 0 on",
        ("--smoothings", "nan"): "nan is no number from 0 on",
    }.items():
        with pytest.raises(SystemExit):
            oracles.main([str(run.folder), *arguments])
        assert message in capsys.readouterr().err
