"""Text classification: classes, numbers, pairs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from depthwise.data import Example, LineReport
from depthwise.errors import DataError, InputError
from depthwise.tasks import TextClassification

from .conftest import classification_of


def test_classes_are_those_of_the_training_data(classification: TextClassification) -> None:
    assert classification.label_names == ("bad", "good")
    config = classification.model_config()
    assert config.id2label == {0: "bad", 1: "good"}
    assert config.problem_type == "single_label_classification"
    assert classification.store("train").labels().tolist() == [1, 0, 1, 0]


def test_losses_predictions_and_probabilities_agree(classification: TextClassification) -> None:
    model = classification.new_model().eval().double()
    texts = [("a b",), ("b c c",), ("",)]
    batch = classification.collate(classification.rows(texts))
    predictions = classification.predict(model, batch)
    logits = model(**batch).logits
    assert [found.text for found in predictions] == [("bad", "good")[place] for place in logits.argmax(-1).tolist()]
    assert [len(found.depths) for found in predictions] == [3, 4, 1]
    labelled = classification.scored_rows(texts, [found.text for found in predictions])
    found = classification.log_probabilities(model, labelled)
    assert found == pytest.approx([prediction.log_prob for prediction in predictions], rel=1e-5)
    losses = classification.losses(model, classification.collate(labelled), 3)
    assert float(losses.totals["nll"]) == pytest.approx(-sum(found), rel=1e-5)
    assert float(losses.totals["correct"]) == 3
    assert classification.validation_metrics({"loss": 3.0, "nll": 3.0, "correct": 2.0}, 4)["accuracy"] == 50.0


def test_pairs_stand_behind_each_other(tmp_path: Path) -> None:
    task = classification_of(tmp_path, ["yes\ta b\tb a", "no\tc\ta c c"])
    assert task.num_inputs == 2
    assert task.resolved().data.num_texts == 2
    (row,) = task.rows([("a b", "c")])
    ids = task.collate([row])["input_ids"][0]
    end = task.tokenizers.source.eos_token_id
    assert [int(place) for place in (ids == end).nonzero()] == [2, 4]
    long = " ".join(["a"] * 50)
    (row,) = task.rows([(long, long)])
    assert [len(text) for text in row.texts] == [6, 6]  # half of twelve positions each
    assert task.lengths(task.store("train")).tolist() == [[6], [6]]
    (tmp_path / "single.tsv").write_text("yes\ta b\n")
    one = replace(task.resolved(), data=replace(task.resolved().data, test=(str(tmp_path / "single.tsv"),)))
    with pytest.raises(DataError, match="label<tab>text<tab>text has 3 columns but the line has 2"):
        list(TextClassification(one, task.tokenizers, task.label_names).corpus("test").examples(LineReport()))


def test_training_data_is_not_looked_at_for_every_row(tmp_path: Path) -> None:
    task = classification_of(tmp_path, ["yes\ta b\tb a", "no\tc\ta c c"])
    assert task.num_inputs == 2
    (tmp_path / "train.tsv").unlink()
    assert len(task.rows([("a", "b")] * 3)) == 3


def test_numbers(tmp_path: Path) -> None:
    task = classification_of(tmp_path, ["1.5\ta b", "4\tc c", "-2\tb"], labels="number")
    assert task.metric == "loss"
    assert task.model_config().num_labels == 1
    model = task.new_model().eval()
    rows = [task.store("train")[index] for index in range(3)]
    batch = task.collate(rows)
    assert batch["labels"].tolist() == [1.5, 4.0, -2.0]
    losses = task.losses(model, batch, 3)
    values = [float(found.text) for found in task.predict(model, batch)]
    assert float(losses.loss.detach()) == pytest.approx(
        sum((value - label) ** 2 for value, label in zip(values, [1.5, 4, -2], strict=True)) / 3, abs=1e-3
    )
    examples = list(task.corpus("test").examples(LineReport()))
    assert task.score(["1", "4", "-3"], examples)["spearman"].value == pytest.approx(100)
    with pytest.raises(InputError, match="a number that is estimated has no probability; leave --score out"):
        task.scored_rows([("a",)], ["1"])
    with pytest.raises(InputError, match="must be numbers"):
        task.score(["one", "2", "3"], examples)
    assert task.compare(["1.5", "4", "-2"], ["0", "0", "0"], examples).difference > 0
    with torch.no_grad():
        model.classifier.weight.zero_()  # type: ignore[operator, union-attr]
        model.classifier.bias.fill_(3e-7)  # type: ignore[operator, union-attr]
    assert float(task.predict(model, batch)[0].text) == pytest.approx(3e-7, rel=1e-5)
    ignored = [task.store("train")[~0]]
    assert task.num_items(task.collate(ignored)) == 0


def test_scores(classification: TextClassification) -> None:
    examples = [Example((text,), label, "f.tsv", line) for line, (label, text) in enumerate([("good", "a")] * 3, 1)]
    examples.append(Example(("b",), "bad", "f.tsv", 4))
    everything = replace(
        classification.recipe,
        evaluation=replace(classification.recipe.evaluation, metrics=("accuracy", "f1", "f1_macro", "matthews")),
    )
    task = TextClassification(everything, classification.tokenizers, ("bad", "good"))
    scores = task.score(["good", "good", "bad", "bad"], examples)
    assert scores["accuracy"].value == 75.0
    assert scores["f1"].value == pytest.approx(80.0)
    assert scores["f1"].signature.startswith("positive:good")
    assert task.compare(["good"] * 4, ["bad"] * 4, examples).difference == 50.0
    with pytest.raises(DataError, match=r'f\.tsv:9: label "odd" was never seen in training, which knows bad, good'):
        task.score(["good"], [Example(("a",), "odd", "f.tsv", 9)])
    many = TextClassification(everything, classification.tokenizers, ("bad", "good", "so"))
    with pytest.raises(InputError, match="f1 is for two labels, and there are 3"):
        many.score(["good", "good", "bad", "bad"], examples)


def test_a_label_that_is_none(classification: TextClassification) -> None:
    with pytest.raises(InputError, match='"fine" is no label of this model, which knows bad, good'):
        classification.scored_rows([("a",)], ["fine"])


def test_fewer_than_two_classes(tmp_path: Path) -> None:
    task = classification_of(tmp_path, ["good\ta", "good\tb"])
    with pytest.raises(DataError, match="at least two"):
        task.new_model()


def test_label_smoothing_only_changes_the_loss(classification: TextClassification) -> None:
    model = classification.new_model().eval()
    batch = classification.collate(classification.scored_rows([("a",)], ["good"]))
    smoothed = classification.losses(model, batch, 1)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    wanted = torch.nn.functional.cross_entropy(logits, batch["labels"], label_smoothing=0.1)
    torch.testing.assert_close(smoothed.loss, wanted)
    torch.testing.assert_close(smoothed.totals["nll"], torch.nn.functional.cross_entropy(logits, batch["labels"]))
