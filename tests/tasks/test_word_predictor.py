"""Exact depths distilled into a predictor: what it learns, that it is made once, and that runs keep it."""

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depthwise.config import WordDepthsConfig
from depthwise.data.words import spans_of
from depthwise.depth.word_predictor import FILE, DistilledDepths
from depthwise.errors import CheckpointError, DataError
from depthwise.tasks import TextClassification, load_task, word_predictor
from depthwise.tasks.reconstruction import Reconstruction, ReconstructionMarks
from depthwise.tasks.word_predictor import PredictorMarks, learned_depths

from .test_question_answering import THREE
from .test_reconstruction import LAYERS, STACK, masked, masked_run, task_with
from .test_word_depths import IOB, LINES, saved

__all__ = ["masked"]

CONTENT = "".join(f"{line}\n" for line in LINES)
PREDICTOR = "reconstruction_predictor"
OPTIONS = WordDepthsConfig(estimator=PREDICTOR, run="runs/masked", predictor_width=16, predictor_epochs=30)
WORDS = ("great", "film", "terrible", "so")


def by_rule(number: int) -> tuple[str, list[tuple[int, int]], list[int]]:
    """A text whose words run one block, but film two, and whatever follows terrible three."""
    chosen = np.random.default_rng(number).choice(WORDS, 6)
    text = " ".join(chosen)
    pairs = zip(["", *chosen], chosen, strict=False)
    return text, spans_of(text, "parted"), [3 if left == "terrible" else 1 + (word == "film") for left, word in pairs]


def predictor_task(folder: Path, masked: Path, content: str = CONTENT, **changes: Any) -> Any:
    depths = {"predictor_width": 8, "predictor_epochs": 3, **changes.pop("word_depths", {})}
    kind = changes.pop("kind", "text_classification")
    return task_with(folder, masked, kind, content, PREDICTOR, word_depths=depths, **changes)


def test_words_and_neighbours_are_learned(masked: Path) -> None:
    """A table of words could not tell these depths."""
    tokenizer = Reconstruction(masked, masked / "cache").tokenizer
    before = torch.get_rng_state()
    found = learned_depths(map(by_rule, range(300)), tokenizer, OPTIONS, num_layers=LAYERS, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.held_out["agreement"] > 0.97
    assert found.held_out["mean_absolute_error"] < 0.05
    assert found.held_out["words"] == 30 * 6
    marks = PredictorMarks(found, tokenizer)
    texts = [by_rule(number) for number in range(1000, 1040)]
    depths = marks.numbers([text for text, _, _ in texts], [spans for _, spans, _ in texts])
    assert np.mean(np.concatenate(depths) == np.concatenate([exact for _, _, exact in texts])) > 0.95
    assert [depth for _, depth in marks.words(texts[0][0])] == depths[0]  # by itself as among others
    assert marks.numbers(["", "great"], [[], [(0, 5)]])[0] == []
    there = pickle.loads(pickle.dumps(marks))
    assert (there.identity, there.words(texts[1][0])) == (marks.identity, marks.words(texts[1][0]))


def test_the_same_seed_learns_the_same(masked: Path) -> None:
    tokenizer = Reconstruction(masked, masked / "cache").tokenizer
    made = [learned_depths(map(by_rule, range(20)), tokenizer, OPTIONS, num_layers=3, seed=seed) for seed in (1, 1, 2)]
    assert made[0].digest == made[1].digest != made[2].digest


def test_one_text_is_judged_by_itself_and_none_is_an_error(masked: Path) -> None:
    tokenizer = Reconstruction(masked, masked / "cache").tokenizer
    found = learned_depths([by_rule(0)], tokenizer, OPTIONS, num_layers=LAYERS, seed=1)
    assert found.held_out["words"] == 6
    with pytest.raises(DataError, match="there is no word to give a depth; give training data with text"):
        learned_depths([("", [], [])], tokenizer, OPTIONS, num_layers=LAYERS, seed=1)


def test_classification(masked: Path, tmp_path: Path) -> None:
    """The same depths in training and after it, without the masked model; and a table could not give them."""
    task = predictor_task(tmp_path / "task", masked)
    assert not task.has_word_table
    store = task.store("train")
    trained = task.collate([store[index] for index in range(len(store))])
    texts = [(line.split("\t")[1],) for line in LINES]
    asked = task.collate(task.rows(texts))
    assert torch.equal(trained["depths"], asked["depths"])
    assert torch.equal(trained["depths"] > 0, trained["attention_mask"].bool())
    (found,) = task.predictions(task.new_model().eval(), task.rows(texts[:1]))
    assert found.depths == tuple(depth for depth in asked["depths"][0].tolist() if depth)
    folder = saved(task, tmp_path / "finished")
    assert not (folder / "reconstruction").exists()
    for path in masked.iterdir():
        path.unlink()
    again = load_task(folder)
    assert isinstance(again, TextClassification)
    assert torch.equal(again.collate(again.rows(texts))["depths"], asked["depths"])
    assert again.words_with_depths(texts[0]) == task.words_with_depths(texts[0])


def test_it_learns_from_exact_depths(masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[int]]] = []
    learn = word_predictor.learned_depths

    def listened(marked: Any, *arguments: Any, **options: Any) -> DistilledDepths:
        content = list(marked)
        seen.extend((text, numbers) for text, _, numbers in content)
        return learn(content, *arguments, **options)

    monkeypatch.setattr("depthwise.tasks.word_depths.learned_depths", listened)
    task = predictor_task(tmp_path / "task", masked)
    _ = task.marks
    exact = ReconstructionMarks(Reconstruction(masked, tmp_path / "kept"), 0.5, "parted")
    texts = [line.split("\t")[1] for line in LINES]
    assert seen == [(text, [depth for _, depth in exact.words(text)]) for text in texts]


def test_it_is_made_once(
    masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = predictor_task(tmp_path / "task", masked).marks
    with monkeypatch.context() as patched:
        patched.setattr("depthwise.tasks.word_depths.learned_depths", None)  # which would have to be called
        assert predictor_task(tmp_path / "task", masked).marks.identity == first.identity
        with pytest.raises(TypeError):
            _ = predictor_task(tmp_path / "task", masked, word_depths={"penalty": 0.2}).marks
    (kept,) = (tmp_path / "task" / "cache" / "word-predictors").glob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-50])
    with caplog.at_level(logging.WARNING):
        again = predictor_task(tmp_path / "task", masked).marks
    assert "it is made again" in caplog.text
    assert again.identity == first.identity


def test_tags_and_answers(tmp_path: Path) -> None:
    tagged = masked_run(tmp_path / "tags", "EU rejects lamb\nPeter rejects EU\n" * 3)
    task = predictor_task(tmp_path / "a", tagged, IOB, kind="tagging")
    batch = task.collate(task.examples("train").rows)
    assert torch.equal(batch["depths"] > 0, batch["attention_mask"].bool())
    stack = {**STACK, "max_positions": 100}
    other = masked_run(tmp_path / "b" / "answers", "where is it ?\nit is here\n" * 3, encoder=stack)
    answers = predictor_task(tmp_path / "c", other, json.dumps(THREE), kind="question_answering", encoder=stack)
    batch = answers.collate(answers.examples("train").rows)
    assert torch.equal(batch["depths"] > 0, batch["attention_mask"].bool())


def test_what_does_not_fit(masked: Path, tmp_path: Path) -> None:
    deeper = {**STACK, "num_layers": LAYERS + 1}
    with pytest.raises(CheckpointError, match="has 3 layers, but the model has 4; give a masked language model with"):
        predictor_task(tmp_path / "deeper", masked, encoder=deeper).store("train")
    folder = saved(predictor_task(tmp_path / "task", masked), tmp_path / "finished")
    (folder / FILE).rename(folder / "elsewhere")
    with pytest.raises(CheckpointError, match=r"has no word-depths\.safetensors, by which its words run"):
        _ = load_task(folder).marks  # type: ignore[attr-defined]
    predictor_task(tmp_path / "task", masked, word_depths={"penalty": 0.25}).save(folder)
    with pytest.raises(CheckpointError, match="were made with other options than the model names"):
        _ = load_task(folder).marks  # type: ignore[attr-defined]
