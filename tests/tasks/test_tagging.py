"""Tagging: columns in, a tag for each word out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depthwise.config import parse_recipe
from depthwise.data import LineReport
from depthwise.engine import Engine
from depthwise.errors import ConfigError, DataError, InputError
from depthwise.evaluation import aligned, predict_rows, read_examples
from depthwise.tasks import Tagging, load_task, open_task

from .conftest import STACK, TRAINING
from .test_build import write_run

IOB1 = "EU I-ORG\nrejects O\nGerman I-MISC\nBritish B-MISC\nlamb O\n\nPeter I-PER\nBlackburn I-PER\n"


def tagging_of(tmp_path: Path, text: str = IOB1, **data: Any) -> Tagging:
    (tmp_path / "train.txt").write_text(text)
    files = {split: str(tmp_path / "train.txt") for split in ("train", "test")}
    recipe = parse_recipe(
        {
            "task": "tagging",
            "data": {**files, **data},
            "tokenizer": {"kind": "bpe", "vocab_size": 40},
            "model": {"width": 8, "encoder": STACK},
            "training": TRAINING,
        }
    )
    task = open_task(recipe, tmp_path / "run")
    assert isinstance(task, Tagging)
    return task


@pytest.fixture
def task(tmp_path: Path) -> Tagging:
    return tagging_of(tmp_path)


def test_iob1_is_read_and_iob2_is_used(task: Tagging) -> None:
    assert task.label_names == ("O", "B-MISC", "I-MISC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    first, second = task.corpus("train").examples(LineReport())
    assert first.label == "B-ORG O B-MISC B-MISC O"
    assert second.label == "B-PER I-PER"
    assert task.model_config().id2label == dict(enumerate(task.label_names))
    rows = task.examples("train")
    labels = [task.label_names[label] for row in rows.rows for label in row.labels.tolist() if label >= 0]
    assert labels == ["B-ORG", "O", "B-MISC", "B-MISC", "O", "B-PER", "I-PER"]


def test_losses_predictions_and_probabilities_agree(task: Tagging) -> None:
    model = task.new_model().eval().double()
    texts = [("EU rejects lamb",), ("Peter  Blackburn",), ("lamb",)]
    predictions = task.predictions(model, task.rows(texts))
    assert [len(found.text.split()) for found in predictions] == [3, 2, 1]
    assert set(predictions[0].depths) == {1}
    scored = task.scored_rows(texts, [found.text for found in predictions])
    log_probs = task.log_probabilities(model, scored)
    batch = task.collate([part for row in scored for part in row.parts])  # type: ignore[attr-defined]
    losses = task.losses(model, batch, 6)
    assert task.num_items(batch) == 6
    assert float(losses.totals["nll"]) == pytest.approx(-sum(log_probs))
    assert float(losses.totals["correct"]) == 6  # every tag is the likeliest
    worse = task.scored_rows(texts[2:], ["O" if predictions[2].text != "O" else "B-PER"])
    assert task.log_probabilities(model, worse)[0] < log_probs[2]
    assert task.validation_metrics({"loss": 3.0, "nll": 3.0, "correct": 2.0}, 4)["accuracy"] == 50.0


def test_a_long_sentence_is_split_and_every_word_gets_its_own_tag(task: Tagging) -> None:
    """The parts say what they would say alone, whatever they are batched with."""
    words = ["lamb", "EU", "Peter", "rejects"] * 12
    (row,) = task.rows([(" ".join(words),)])
    assert len(row.parts) > 3  # type: ignore[attr-defined]
    assert all(len(part.ids) <= 12 for part in row.parts)  # type: ignore[attr-defined]
    torch.manual_seed(3)
    model = task.new_model().eval()
    torch.nn.init.normal_(model.classifier.weight)  # type: ignore[arg-type]
    (found,) = predict_rows(task, Engine(model), [row])
    expected: list[str] = []
    for part in row.parts:  # type: ignore[attr-defined]
        logits = model(input_ids=torch.tensor(part.ids[None], dtype=torch.long)).logits[0]
        places, _ = part.firsts()
        expected += [task.label_names[int(logits[place].argmax())] for place in places]
    assert found.text.split() == expected
    assert len(set(expected)) > 1
    assert len(expected) == 48
    assert task.row_lengths([row]).tolist()[0][0] >= sum(len(part.ids) for part in row.parts)  # type: ignore[attr-defined]


def test_cutting_is_noted_and_leaves_words_outside(tmp_path: Path) -> None:
    task = tagging_of(tmp_path, too_long="cut")
    text = (" ".join(["lamb"] * 30),)
    (whole,) = task.whole_rows([text])
    row = task.cut(whole)
    assert len(row.texts[0]) <= 12 < len(whole.texts[0])
    (found,) = task.predictions(task.new_model().eval(), [row])
    assert len(found.text.split()) == 30
    assert found.text.split()[-1] == "O"
    with pytest.raises(ConfigError, match="too_long"):
        tagging_of(tmp_path, too_long="skip").examples("train")


def test_scores(task: Tagging) -> None:
    examples = read_examples(task, "test")
    right = [example.label or "" for example in examples]
    assert {name: score.value for name, score in task.score(right, examples).items()} == {"f1": 100, "accuracy": 100}
    one_of_four = ["B-ORG O O O O", "B-PER O"]  # one right, two said, four there
    assert task.score(one_of_four, examples)["f1"].value == pytest.approx(200 * 1 / (2 + 4))
    assert task.score(one_of_four, examples)["accuracy"].value == pytest.approx(100 * 4 / 7)
    assert task.compared_by == "f1"
    assert task.compare(right, one_of_four, examples).difference == pytest.approx(100 - 100 / 3)
    of_words = replace(task.recipe, evaluation=replace(task.recipe.evaluation, metrics=("accuracy", "f1")))
    by_words = Tagging(of_words, task.tokenizers)
    assert by_words.compared_by == "accuracy"
    assert by_words.compare(right, one_of_four, examples).difference == pytest.approx(100 * 3 / 7)
    with pytest.raises(DataError, match=r"train\.txt:7: 1 tags were predicted for the 2 words"):
        task.score(["O O O O O", "O"], examples)
    with pytest.raises(DataError, match="3 predictions for 2 examples"):
        aligned(task, "test", ["O"] * 3, examples)
    with pytest.raises(InputError, match="there are 2 words but 1 tags"):
        task.scored_rows([("a b",)], ["O"])
    with pytest.raises(InputError, match='"X" is no tag of this model, which knows O, B-MISC'):
        task.scored_rows([("a",)], ["X"])


def test_unknown_tags_and_malformed_lines_name_file_and_line(task: Tagging, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("EU B-ORG\nrejects O\n\nlamb O\nBonn B-LOC\n")
    recipe = replace(task.recipe, data=replace(task.recipe.data, test=(str(tmp_path / "test.txt"),)))
    other = Tagging(recipe, task.tokenizers, task.label_names)
    with pytest.raises(DataError, match=r'test\.txt:5: tag "B-LOC" was never seen in training, which knows O, '):
        other.check_examples(read_examples(other, "test"))
    with pytest.raises(DataError, match=r'test\.txt:5: tag "B-LOC" was never seen in training, which knows O, '):
        other.examples("test")
    (tmp_path / "test.txt").write_text("EU B-ORG\nrejects\n")
    with pytest.raises(DataError, match=r"test\.txt:2: the line has 1 columns but the first one has 2"):
        read_examples(other, "test")
    (tmp_path / "test.txt").write_text("EU O\n")
    with pytest.raises(DataError, match="fewer than two tags"):
        _ = tagging_of(tmp_path, "EU O\n").label_names


def test_tags_that_mark_no_entities(tmp_path: Path) -> None:
    task = tagging_of(tmp_path, "we PRP\nsleep VB\n\nthey PRP\n", tag_scheme="plain")
    assert task.label_names == ("PRP", "VB")
    assert (task.metric, task.metrics) == ("accuracy", ("accuracy",))
    examples = read_examples(task, "test")
    assert task.score(["PRP PRP", "PRP"], examples)["accuracy"].value == pytest.approx(100 * 2 / 3)
    assert task.compare(["PRP VB", "PRP"], ["PRP PRP", "PRP"], examples).difference == pytest.approx(100 / 3)
    metrics = {"evaluation": replace(task.recipe.evaluation, metrics=("f1",))}
    with pytest.raises(ConfigError, match='"f1" is none of accuracy'):
        Tagging(replace(task.recipe, **metrics), task.tokenizers)


def test_other_columns_and_several_files(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("B-LOC x Bonn\n")
    (tmp_path / "train.txt").write_text("O x we\nB-ORG x EU\n")
    files = [str(tmp_path / "train.txt"), str(tmp_path / "more.txt")]
    task = tagging_of(tmp_path, "O x we\nB-ORG x EU\n", train=files, word_column=-1, tag_column=0)
    assert task.label_names == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG")
    assert [example.texts[0] for example in read_examples(task, "train")] == ["we EU", "Bonn"]
    assert len(task.examples("train")) == 2


def test_a_run_gives_its_task_back(task: Tagging, tmp_path: Path) -> None:
    write_run(task, tmp_path / "done")
    again = load_task(tmp_path / "done")
    assert isinstance(again, Tagging)
    assert again.label_names == task.label_names
    (one,), (other,) = (some.whole_rows([("EU rejects",)]) for some in (task, again))
    np.testing.assert_array_equal(one.texts[0], other.texts[0])
