"""Depths of words by how well they are guessed: losses as they should be, found once, and kept with a run."""

import json
import logging
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from depthwise.config import parse_recipe, recipe_yaml
from depthwise.data.words import spans_of
from depthwise.errors import CheckpointError
from depthwise.tasks import Tagging, TextClassification, load_task, open_task, reconstruction
from depthwise.tasks.reconstruction import Reconstruction, ReconstructionMarks

from .test_question_answering import THREE
from .test_word_depths import IOB, LINES, saved

LAYERS = 3
STACK: dict[str, Any] = {"num_layers": LAYERS, "num_heads": 2, "ffn_width": 16, "max_positions": 10, "dropout": 0.0}
TEXTS = ["Great film , so great", "terrible", "a terrible one . a terrible one . a great one", "", "terrible"]


def masked_run(folder: Path, content: str, kind: str = "text_classification", **model: Any) -> Path:
    """A masked language model with random weights, and the tokenizer that the task of this content would have."""
    folder.mkdir(parents=True)
    texts = folder.parent / "texts.txt"
    texts.write_text(content)
    options = {
        "task": "masked_language_modeling",
        "data": {"train": str(texts), "cache": str(folder.parent / "cache")},
        "tokenizer": {"kind": "bpe", "vocab_size": 60, "lowercase": True},
        "model": {"width": 8, "encoder": STACK, "exits": {}, **model},
        "training": {"max_updates": 1},
    }
    task: Any = open_task(parse_recipe(options), folder)
    torch.manual_seed(1)
    new = task.new_model()
    for parameter in new.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    task.save(folder)
    new.save_pretrained(folder)
    (folder / "recipe.yaml").write_text(recipe_yaml(task.resolved()))
    return folder


@pytest.fixture
def masked(tmp_path: Path) -> Path:
    return masked_run(tmp_path / "masked", "".join(f"{line.partition(chr(9))[2]}\n" for line in LINES))


def losses_of(masked: Path, texts: list[str], cache: Path, copies: int | None = None) -> list[np.ndarray]:
    return Reconstruction(masked, cache, copies).losses(texts, [spans_of(text, "parted") for text in texts])


def by_hand(estimator: Reconstruction, text: str) -> np.ndarray:
    """One word after the other, each by itself, through the model as anybody calls it."""
    tokenizer, model, found = estimator.tokenizer, estimator.model, []
    encoding = tokenizer(text, return_offsets_mapping=True)
    ids = torch.tensor([encoding["input_ids"]], device=model.device)
    for begin, end in spans_of(text, "parted"):
        pieces = [
            place for place, (start, stop) in enumerate(encoding["offset_mapping"]) if start < end and begin < stop
        ]
        hidden = ids.clone()
        hidden[0, pieces] = tokenizer.mask_token_id
        with torch.no_grad():
            states = model(hidden, output_hidden_states=True).hidden_by_depth
            stack = model.model.encoder.stack
            scores = [model.head(stack.normalized(states[depth], depth))[0, pieces] for depth in range(1, LAYERS + 1)]
        found.append([F.cross_entropy(of_depth, ids[0, pieces]).item() for of_depth in scores])
    return np.array(found).reshape(-1, LAYERS)


def test_losses_are_those_of_single_words(masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = Reconstruction(masked, tmp_path / "kept")
    whole = losses_of(masked, TEXTS, tmp_path / "kept")
    assert [len(rows) for rows in whole] == [5, 1, 11, 0, 1]
    for text, rows in zip(TEXTS[:2], whole, strict=False):
        assert np.allclose(rows, by_hand(estimator, text), atol=1e-5)
    monkeypatch.setattr(reconstruction, "TOKENS_AT_ONCE", {"cpu": 20, "cuda": 20})
    monkeypatch.setattr(reconstruction, "TOKENS_KEPT", 30)
    for ours, theirs in zip(losses_of(masked, TEXTS[::-1], tmp_path / "other"), whole[::-1], strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)


def test_long_texts_are_looked_at_in_windows(masked: Path, tmp_path: Path) -> None:
    estimator = Reconstruction(masked, tmp_path / "kept")
    text = TEXTS[2]
    (rows,) = losses_of(masked, [text], tmp_path / "kept")
    assert len(estimator.tokenizer(text)["input_ids"]) > STACK["max_positions"]
    assert (rows > 0).all()


def test_several_words_in_a_copy(masked: Path, tmp_path: Path) -> None:
    exact, few, many = (losses_of(masked, TEXTS[:2], tmp_path / "kept", copies) for copies in (None, 2, 5))
    assert np.array_equal(many[0], exact[0])  # a copy for every word
    assert few[0].shape == exact[0].shape
    assert not np.allclose(few[0], exact[0])
    assert np.array_equal(few[1], exact[1])


def test_nothing_is_masked_twice(masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = losses_of(masked, TEXTS, tmp_path / "kept")
    monkeypatch.setattr(Reconstruction, "_nll", None)  # which would have to be called
    again = losses_of(masked, TEXTS[::-1], tmp_path / "kept")
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(again, first[::-1], strict=True))
    with pytest.raises(TypeError):
        losses_of(masked, ["great film ."], tmp_path / "kept")


def test_what_was_found_before_an_interruption_is_kept(
    masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconstruction, "TOKENS_KEPT", 1)
    computed, calls = Reconstruction._computed, []

    def interrupted(self: Reconstruction, texts: Any) -> Any:
        calls.append(texts)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return computed(self, texts)

    monkeypatch.setattr(Reconstruction, "_computed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        losses_of(masked, TEXTS, tmp_path / "kept")
    losses_of(masked, TEXTS, tmp_path / "kept")
    assert sum(len(texts) for texts in calls) == 5  # four different texts, one of them twice


def test_a_damaged_entry_is_found_again(masked: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = losses_of(masked, TEXTS, tmp_path / "kept")
    with closing(sqlite3.connect(Reconstruction(masked, tmp_path / "kept").cache.path)) as connection, connection:
        connection.execute("UPDATE found SET rows = zeroblob(length(rows))")
    with caplog.at_level(logging.WARNING):
        again = losses_of(masked, TEXTS, tmp_path / "kept")
    assert "an entry is damaged and is found again" in caplog.text
    assert all(np.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(again, first, strict=True))


def test_other_weights_have_another_cache(masked: Path, tmp_path: Path) -> None:
    before = Reconstruction(masked, tmp_path / "kept")
    model = before.model
    model.head.weight.data += 1
    model.save_pretrained(masked)
    after = Reconstruction(masked, tmp_path / "kept")
    assert before.digest != after.digest
    assert before.cache.path != after.cache.path
    assert before.digest != Reconstruction(masked, tmp_path / "kept", 4).digest


def test_marks(masked: Path, tmp_path: Path) -> None:
    estimator = Reconstruction(masked, tmp_path / "kept")
    free, dear = (ReconstructionMarks(estimator, penalty, "parted") for penalty in (0.0, 100.0))
    (rows,) = losses_of(masked, TEXTS[:1], tmp_path / "kept")
    assert [depth for _, depth in free.words(TEXTS[0])] == (rows.argmin(1) + 1).tolist()
    assert dear.words("great film") == [("great", 1), ("film", 1)]
    assert free.identity != dear.identity
    there = pickle.loads(pickle.dumps(free))
    assert there.words(TEXTS[0]) == free.words(TEXTS[0])
    assert there.identity == free.identity


def task_with(
    folder: Path, masked: Path, kind: str, content: str, estimator: str = "reconstruction", **given: Any
) -> Any:
    folder.mkdir(exist_ok=True)
    file = folder / {"text_classification": "train.tsv", "question_answering": "train.json"}.get(kind, "train.txt")
    file.write_text(content)
    depths = {"estimator": estimator, "run": str(masked), "penalty": 0.5, **given.pop("word_depths", {})}
    options = {
        "task": kind,
        "data": {"train": str(file), "test": str(file), "cache": str(folder / "cache")},
        "tokenizer": {"path": str(masked)},
        "model": {"width": 8, "encoder": STACK, "word_depths": depths, **given},
        "training": {"max_updates": 1},
    }
    return open_task(parse_recipe(options), folder / "run")


def test_classification(masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "".join(f"{line}\n" for line in LINES)
    task = task_with(tmp_path / "task", masked, "text_classification", content)
    store = task.store("train")
    trained = task.collate([store[index] for index in range(len(store))])
    texts = [(line.split("\t")[1],) for line in LINES]
    asked = task.collate(task.rows(texts))
    assert torch.equal(trained["depths"], asked["depths"])
    assert torch.equal(trained["depths"] > 0, trained["attention_mask"].bool())
    (found,) = task.predictions(task.new_model().eval(), task.rows(texts[:1]))
    assert found.depths == tuple(depth for depth in asked["depths"][0].tolist() if depth)
    folder = saved(task, tmp_path / "finished")
    for path in masked.iterdir():
        path.unlink()  # a run works without what it came from
    again = load_task(folder)
    assert isinstance(again, TextClassification)
    assert torch.equal(again.collate(again.rows(texts))["depths"], asked["depths"])
    for path in (folder / "reconstruction").glob("*.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointError, match="holds no weights; copy or train the run again"):
        load_task(folder).rows(texts)


def test_a_table_of_means(masked: Path, tmp_path: Path) -> None:
    content = "".join(f"{line}\n" for line in LINES)
    exact = task_with(tmp_path / "exact", masked, "text_classification", content)
    table = task_with(tmp_path / "table", masked, "text_classification", content, "reconstruction_table")
    depths = [
        depth for line in LINES for word, depth in exact.words_with_depths([line.split("\t")[1]]) if word == "film"
    ]
    assert table.word_table.depth_of("film") == int(np.floor(np.mean(depths) + 0.5))
    folder = saved(table, tmp_path / "finished")
    assert not (folder / "reconstruction").exists()
    found = load_task(folder)
    assert isinstance(found, TextClassification)
    assert found.word_table.digest == table.word_table.digest


def test_tags_and_answers(tmp_path: Path) -> None:
    masked = masked_run(tmp_path / "tags", "EU rejects lamb\nPeter rejects EU\n" * 3)
    task = task_with(tmp_path / "a", masked, "tagging", IOB)
    assert isinstance(task, Tagging)
    batch = task.collate(task.examples("train").rows)
    assert torch.equal(batch["depths"] > 0, batch["attention_mask"].bool())
    words = task.words_with_depths(["EU rejects lamb"])
    assert [word for word, _ in words] == ["EU", "rejects", "lamb"]
    row = task.examples("train").rows[0]
    assert row.marks is not None
    assert row.marks.tolist() == [0 if word < 0 else words[word][1] for word in row.words.tolist()]
    stack = {**STACK, "max_positions": 100}
    other = masked_run(tmp_path / "b" / "answers", "where is it ?\nit is here\n" * 3, encoder=stack)
    answers = task_with(tmp_path / "c", other, "question_answering", json.dumps(THREE), encoder=stack)
    rows = answers.examples("train").rows
    batch = answers.collate(rows)
    assert torch.equal(batch["depths"] > 0, batch["attention_mask"].bool())


def test_runs_that_cannot_tell(masked: Path, tmp_path: Path) -> None:
    content = "".join(f"{line}\n" for line in LINES)
    deeper = {**STACK, "num_layers": LAYERS + 1}
    with pytest.raises(CheckpointError, match=r"has 3 layers, but the model has 4; give a masked language model with"):
        task_with(tmp_path / "deeper", masked, "text_classification", content, encoder=deeper).store("train")
    other = masked_run(tmp_path / "x" / "other", "zzz qqq\n" * 9)
    task = task_with(tmp_path / "strange", masked, "text_classification", content, word_depths={"run": str(other)})
    with pytest.raises(CheckpointError, match=r"has another tokenizer than the model; set tokenizer\.path="):
        task.store("train")
    plain = masked_run(tmp_path / "y" / "plain", "zzz qqq\n" * 9, exits=None)
    with pytest.raises(CheckpointError, match="nothing is known of fewer blocks; train it with model"):
        Reconstruction(plain, tmp_path / "kept")
    classes = saved(task_with(tmp_path / "fine", masked, "text_classification", content), tmp_path / "classes")
    with pytest.raises(CheckpointError, match="fills no masks; give a run of masked_language_modeling"):
        Reconstruction(classes, tmp_path / "kept")
    with pytest.raises(CheckpointError, match="is no folder; give the folder of a run"):
        Reconstruction(tmp_path / "nowhere", tmp_path / "kept")
