"""Tasks whose words have depths: from training data to batches, the same in training and after."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depthwise.config import parse_recipe
from depthwise.depth.word_table_file import FILE
from depthwise.errors import CheckpointError, ConfigError, DataError
from depthwise.tasks import MaskedLanguageModeling, QuestionAnswering, Tagging, TextClassification, load_task, open_task
from depthwise.tasks.word_depths import WordDepthTask

from .test_question_answering import THREE

LAYERS = 3
STACK: dict[str, Any] = {"num_layers": LAYERS, "num_heads": 2, "ffn_width": 16, "max_positions": 12}
LINES = [
    *("good\tGreat film , so great", "good\tgreat acting", "bad\tterrible film", "bad\tso terrible ."),
    *("good\ta great one .", "bad\ta terrible one", "good\tgreat", "bad\tterrible , terrible"),
]
PAIRS = [("good", "great film"), ("bad", "terrible film"), ("good", "the great one"), ("bad", "the terrible one")]
IOB = "EU B-ORG\nrejects O\nlamb O\n\nPeter B-PER\nrejects O\nEU B-ORG\n"


def task_of(folder: Path, kind: str = "text_classification", content: str | None = None, **changes: Any) -> Any:
    folder.mkdir(exist_ok=True)
    text = "".join(f"{line}\n" for line in LINES) if content is None else content
    file = folder / {"text_classification": "train.tsv", "question_answering": "train.json"}.get(kind, "train.txt")
    file.write_text(text)
    data = {split: str(file) for split in ("train", "test")}
    options = {
        "task": kind,
        "data": {**data, "cache": str(folder / "cache"), **changes.get("data", {})},
        "tokenizer": {"kind": "bpe", "vocab_size": 60, "lowercase": True},
        "model": {"width": 8, "encoder": STACK, "word_depths": changes.get("word_depths", {})},
        "training": {"max_updates": 1},
    }
    return open_task(parse_recipe(options), folder / "run")


@pytest.fixture
def task(tmp_path: Path) -> TextClassification:
    found = task_of(tmp_path)
    assert isinstance(found, TextClassification)
    return found


def saved(task: WordDepthTask, folder: Path) -> Path:
    """A run as training leaves it."""
    folder.mkdir(exist_ok=True)
    task.save(folder)
    task.new_model().save_pretrained(folder)
    from depthwise.config import recipe_yaml

    (folder / "recipe.yaml").write_text(recipe_yaml(task.resolved()))
    return folder


def test_words_that_tell_the_label_are_shallow(task: TextClassification) -> None:
    found = dict(task.words_with_depths(["great terrible film so a"]))
    assert found["great"] == found["terrible"] == 1
    assert found["film"] == found["so"] == LAYERS
    assert task.word_table.place_of("Great") is None  # words are as the tokenizer sees them
    assert task.words_with_depths(["GREAT nobody"]) == [("GREAT", 1), ("nobody", task.word_table.unseen_depth)]


def test_the_same_depths_in_training_and_test(task: TextClassification) -> None:
    store = task.store("train")
    texts = [(line.split("\t")[1],) for line in LINES]
    trained = task.collate([store[index] for index in range(len(store))])
    asked = task.collate(task.rows(texts))
    assert torch.equal(trained["depths"], asked["depths"])
    assert torch.equal(trained["input_ids"], asked["input_ids"])
    assert torch.equal(trained["depths"] > 0, trained["attention_mask"].bool())
    output = task.predict(task.new_model().eval(), asked)
    assert output[0].depths == tuple(depth for depth in asked["depths"][0].tolist() if depth)


def test_special_tokens_follow_the_words(tmp_path: Path) -> None:
    depths = {}
    for special in ("max_of_sequence", "min", "all"):
        task = task_of(tmp_path / special, word_depths={"special": special})
        depths[special] = task.collate(task.rows([("great",)]))["depths"][0, -1].item()
    assert depths == {"max_of_sequence": 1, "min": 1, "all": LAYERS}
    task = task_of(tmp_path / "deep")
    assert task.collate(task.rows([("great film",)]))["depths"][0, -1].item() == LAYERS


def test_long_texts_lose_their_end_and_its_depths(task: TextClassification) -> None:
    (row,) = task.rows([("great " * 5 + "film " * 30,)])
    assert row.marks is not None
    assert len(row.marks[0]) == len(row.texts[0]) == 12
    assert row.marks[0][-1] == 0
    (short,) = [task.cut(row, 5)]
    assert short.marks is not None
    assert short.marks[0].tolist() == [*row.marks[0][:4].tolist(), 0]


def test_pairs(tmp_path: Path) -> None:
    lines = [line.replace("\t", "\tsome words\t") for line in LINES]
    task = task_of(tmp_path, content="".join(f"{line}\n" for line in lines))
    (row,) = task.rows([("great", "film")])
    batch = task.collate([row])
    assert row.marks is not None
    assert batch["depths"].shape == batch["input_ids"].shape
    assert batch["depths"][0].tolist() == [1] * (len(row.texts[0]) - 1) + [LAYERS] * (1 + len(row.texts[1]))


def test_test_data_changes_no_depth(tmp_path: Path) -> None:
    first = task_of(tmp_path / "a")
    other = tmp_path / "test.tsv"
    other.write_text("bad\tgreat great film\n" * 50)
    second = task_of(tmp_path / "b", data={"test": str(other), "valid": str(other)})
    second.store("test")
    assert first.word_table.digest == second.word_table.digest


def test_a_run_keeps_its_table(task: TextClassification, tmp_path: Path) -> None:
    folder = saved(task, tmp_path / "finished")
    (tmp_path / "train.tsv").unlink()
    found = load_task(folder)
    assert isinstance(found, TextClassification)
    assert found.word_table.digest == task.word_table.digest
    (folder / FILE).unlink()
    with pytest.raises(CheckpointError, match="by which its words run; copy or train the run again"):
        load_task(folder).rows([("great",)])


def test_a_table_that_does_not_fit(task: TextClassification, tmp_path: Path) -> None:
    folder = saved(task, tmp_path / "finished")
    deeper = task_of(tmp_path / "deeper", word_depths={"estimator": "frequency"})
    deeper.save(tmp_path / "finished")
    with pytest.raises(CheckpointError, match="were made with other options than the model names"):
        load_task(folder).rows([("great",)])
    other = task_of(tmp_path / "other", content="x\tzzz qqq\ny\tqqq\n")
    other.save(tmp_path / "finished")
    task.tokenizers.save(folder)
    with pytest.raises(CheckpointError, match="was made for another tokenizer"):
        load_task(folder).rows([("great",)])


def test_controls(tmp_path: Path) -> None:
    options: list[dict[str, Any]] = [
        {"estimator": "random", "matched": "words"},
        {"estimator": "frequency"},
        {"estimator": "fixed", "depth": 2},
    ]
    tables = [task_of(tmp_path / str(number), word_depths=given).word_table for number, given in enumerate(options)]
    plain = task_of(tmp_path / "plain").word_table
    assert tables[0].histogram().tolist() == plain.histogram().tolist()
    assert tables[1].depth_of("great") < tables[1].depth_of("acting")
    assert set(tables[2].depths.tolist()) == {2}


def test_random_depths_have_as_many_tokens_of_each_depth(tmp_path: Path) -> None:
    lines = [f"{label}\t{text} {chr(97 + number % 13)}{number % 7}" for number in range(60) for label, text in PAIRS]
    found = {}
    for estimator in ("mutual_information", "random"):
        task = task_of(
            tmp_path / estimator, content="".join(f"{line}\n" for line in lines), word_depths={"estimator": estimator}
        )
        store = task.store("train")
        marks = np.concatenate([store[index].marks[0] for index in range(len(store))])
        found[estimator] = np.bincount(marks[marks > 0], minlength=LAYERS + 1) / (marks > 0).sum()
    assert np.abs(found["random"] - found["mutual_information"]).max() < 0.05


def test_depths_travel_to_other_processes(task: TextClassification) -> None:
    assert task.marks is not None
    there = pickle.loads(pickle.dumps(task.marks))
    assert there.words("Great film nobody") == task.marks.words("Great film nobody")


def test_ignored_depths(task: TextClassification) -> None:
    task.ignores_words = True
    assert "depths" not in task.collate(task.rows([("great",)]))
    assert "depths" not in task.collate([task.store("train")[0]])


def test_lengthened_batches(task: TextClassification) -> None:
    longer = replace(task.recipe, training=replace(task.recipe.training, graphs=True))
    other = TextClassification(longer, task.tokenizers)
    batch = other.padded(other.collate(other.rows([("great",)])))
    assert batch["depths"].shape == batch["input_ids"].shape
    assert batch["depths"][0].tolist()[-1] == 0


def test_losses_learn_by_depths(task: TextClassification) -> None:
    model, store = task.new_model().eval(), task.store("train")
    batch = task.collate([store[index] for index in range(4)])
    plain = {name: value for name, value in batch.items() if name != "depths"}
    full = {**plain, "depths": batch["attention_mask"] * LAYERS}
    losses = [float(task.losses(model, given, 4).loss.detach()) for given in (batch, plain, full)]
    assert losses[1] == losses[2] != losses[0]


def test_tagging(tmp_path: Path) -> None:
    task = task_of(tmp_path, "tagging", IOB)
    assert isinstance(task, Tagging)
    table = task.word_table
    assert table.counts.num_documents == 6
    assert table.counts.labels == ("B-ORG", "B-PER", "O")
    assert dict(task.words_with_depths(["EU rejects"])) == {
        "EU": table.depth_of("eu"),
        "rejects": table.depth_of("rejects"),
    }
    trained = task.collate(task.examples("train").rows)
    assert torch.equal(trained["depths"] > 0, trained["attention_mask"].bool())
    row = task.examples("train").rows[0]
    assert row.marks is not None
    number_of = dict(enumerate([table.depth_of(word) for word in ("eu", "rejects", "lamb")]))
    assert row.marks.tolist() == [0 if word < 0 else number_of[word] for word in row.words.tolist()]
    (found,) = task.predictions(task.new_model().eval(), task.rows([("EU rejects lamb",)]))
    assert found.depths == tuple(trained["depths"][0][: len(row.ids)].tolist())


def test_question_answering(tmp_path: Path) -> None:
    task = task_of(
        tmp_path,
        "question_answering",
        json.dumps(THREE),
        data={"max_tokens": 12, "stride": 3, "max_question_tokens": 4},
    )
    assert isinstance(task, QuestionAnswering)
    counts = task.word_table.counts
    assert counts.labels == ("answer", "other")
    of_word = dict(zip(counts.words, counts.present.tolist(), strict=True))
    assert of_word["eight"] == [1, 1]
    assert of_word["red"] == [0, 3]
    assert of_word["two"] == [1, 2]
    windows = task.examples("train").rows
    batch = task.collate(windows)
    assert torch.equal(batch["depths"] > 0, batch["attention_mask"].bool())
    (row,) = task.rows([("what", "red two")])
    assert task.predictions(task.new_model().eval(), [row])[0].depths == tuple(
        task.collate(row.windows)["depths"][0].tolist()
    )
    assert [word for word, _ in task.words_with_depths(["what", "red two"])] == ["what", "red", "two"]


def test_what_labels_cannot_tell(tmp_path: Path) -> None:
    with pytest.raises(DataError, match='all documents have the label "good"; mutual information needs at least two'):
        task_of(tmp_path / "one", content="good\ta b\ngood\tb c\n").store("train")
    numbers = "1.5\ta b\n2\tb c\n"
    with pytest.raises(ConfigError, match=r"needs classes, but data\.labels is number; choose frequency or fixed"):
        task_of(tmp_path / "numbers", content=numbers, data={"labels": "number"}).store("train")
    control = task_of(
        tmp_path / "frequency", content=numbers, data={"labels": "number"}, word_depths={"estimator": "frequency"}
    )
    assert np.isin(control.store("train")[0].marks[0], range(LAYERS + 1)).all()


def test_a_label_that_training_never_saw(task: TextClassification, tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text("odd\tgreat\n")
    data = replace(task.recipe.data, valid=(str(tmp_path / "valid.tsv"),))
    other = TextClassification(replace(task.recipe, data=data), task.tokenizers)
    with pytest.raises(DataError, match='"odd"'):
        other.store("valid")


def test_other_tasks_have_no_depths_of_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="are no part of masked_language_modeling; use them for text_classification"):
        task_of(tmp_path, MaskedLanguageModeling.kind, "a b c\nb c\n")
