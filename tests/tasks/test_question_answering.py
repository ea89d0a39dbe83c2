"""Question answering: windows compete, and there may be no answer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from depthwise.config import parse_recipe
from depthwise.data import LineReport
from depthwise.engine import Engine
from depthwise.errors import ConfigError, DataError, InputError
from depthwise.evaluation import aligned, predict_rows, read_examples
from depthwise.evaluation.tuning import tune_threshold
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Tensor
from depthwise.tasks import QuestionAnswering, load_task, open_task

from .conftest import STACK, TRAINING
from .test_build import write_run

CONTEXT = "red green blue one two three four five six seven eight nine"


def squad(*questions: tuple[str, str, str | None]) -> dict[str, Any]:
    """One paragraph for each question, its context and its answer."""
    paragraphs = []
    for number, (question, context, answer) in enumerate(questions):
        answers = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
        entry = {"id": str(number), "question": question, "answers": answers, "is_impossible": answer is None}
        paragraphs.append({"context": context, "qas": [entry]})
    return {"data": [{"paragraphs": paragraphs}]}


THREE = squad(("who", CONTEXT, "eight nine"), ("what", CONTEXT, None), ("what", "red two", "two"))


def answering_of(tmp_path: Path, content: dict[str, Any] = THREE, **changes: Any) -> QuestionAnswering:
    (tmp_path / "train.json").write_text(json.dumps(content))
    files = {split: str(tmp_path / "train.json") for split in ("train", "test")}
    recipe = parse_recipe(
        {
            "task": "question_answering",
            "data": {**files, "max_tokens": 9, "stride": 3, "max_question_tokens": 2, **changes.get("data", {})},
            "tokenizer": {"kind": "word", "vocab_size": 40},
            "model": {"width": 8, "encoder": STACK},
            "training": {**TRAINING, "label_smoothing": 0.0, **changes.get("training", {})},
            "generation": changes.get("generation", {}),
        }
    )
    task = open_task(recipe, tmp_path / "run")
    assert isinstance(task, QuestionAnswering)
    return task


@pytest.fixture
def task(tmp_path: Path) -> QuestionAnswering:
    return answering_of(tmp_path)


class Scripted(nn.Module):
    """Scores that depend on the token alone: starts and ends by word, and none for everything else."""

    def __init__(self, task: QuestionAnswering, starts: dict[str, float], ends: dict[str, float]) -> None:
        super().__init__()
        vocabulary = task.tokenizers.source.get_vocab()
        self.scores = torch.zeros(len(vocabulary), 2)
        for side, words in enumerate((starts, ends)):
            for word, score in words.items():
                self.scores[vocabulary[word], side] = score
        self.device = torch.device("cpu")
        self.config = type("Config", (), {"is_encoder_decoder": False, "structure": None})
        self.num_rows: list[int] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> DepthwiseOutput:
        self.num_rows.append(len(input_ids))
        return DepthwiseOutput(logits=self.scores[input_ids], depths=attention_mask.int())


def said(task: QuestionAnswering, model: Scripted, texts: list[tuple[str, str]]) -> list[str]:
    return [found.text for found in predict_rows(task, Engine(model), task.rows(texts))]  # type: ignore[arg-type]


def test_windows_are_what_is_trained_on(task: QuestionAnswering) -> None:
    rows = task.examples("train")
    assert [row.question for row in rows.rows] == [0, 0, 0, 1, 1, 1, 2]
    batch = task.collate(rows.rows)
    labels = batch["labels"].tolist()
    assert labels[:2] == [[1, 1], [1, 1]]  # the answer is beyond them; </s> behind the question says so
    start, end = labels[2]
    vocabulary = task.tokenizers.source.get_vocab()
    assert batch["input_ids"][2, start : end + 1].tolist() == [vocabulary["eight"], vocabulary["nine"]]
    assert labels[3:6] == [[1, 1]] * 3
    assert "token_type_ids" not in batch
    assert task.num_items(task.collate([rows[0], rows[~1]])) == 1


def test_the_loss_is_the_mean_of_both_ends(task: QuestionAnswering) -> None:
    model = task.new_model().eval()
    rows = task.examples("train")
    batch = task.collate(rows.rows)
    losses = task.losses(model, batch, task.num_items(batch))
    assert float(losses.loss.detach()) == pytest.approx(float(model(**batch).loss.detach()), rel=1e-5)
    metrics = task.validation_metrics({"loss": 14.0, "correct": 3.0}, 7)
    assert metrics == {"loss": 2.0, "window_accuracy": pytest.approx(300 / 7)}


def test_the_best_window_answers(task: QuestionAnswering) -> None:
    """The answer stands in the last of three windows only, and scores of earlier ones compete with it."""
    model = Scripted(task, {"red": 1.0, "eight": 2.0}, {"green": 1.0, "nine": 2.0})
    assert said(task, model, [("who", CONTEXT), ("what", "red green")]) == ["eight nine", "red green"]
    (row, _) = task.rows([("who", CONTEXT), ("what", "red green")])
    assert len(row.windows) == 3  # type: ignore[attr-defined]
    assert task.row_lengths([row]).tolist() == [[27]]


def test_no_answer_needs_every_window_to_say_so(task: QuestionAnswering) -> None:
    null = {"</s>": 3.0}
    weak = Scripted(task, {"eight": 2.0, **null}, {"nine": 2.0, **null})
    assert said(task, weak, [("who", CONTEXT)]) == [""]
    strong = Scripted(task, {"eight": 4.0, **null}, {"nine": 4.0, **null})
    assert said(task, strong, [("who", CONTEXT)]) == ["eight nine"]


def test_the_threshold_and_data_without_unanswerable_questions(tmp_path: Path) -> None:

    def of_weak(task: QuestionAnswering) -> list[str]:
        """What is said where none exceeds the best answer by 2."""
        model = Scripted(task, {"eight": 2.0, "</s>": 3.0}, {"nine": 2.0, "</s>": 3.0})
        return said(task, model, [("who", CONTEXT)])

    assert of_weak(answering_of(tmp_path, generation={"null_threshold": 2.5})) == ["eight nine"]
    assert of_weak(answering_of(tmp_path, generation={"null_threshold": 1.5})) == [""]
    always = answering_of(tmp_path, squad(("who", CONTEXT, "one")))
    assert not always.unanswerable
    assert always.resolved().data.unanswerable is False
    assert of_weak(always) == ["eight nine"]
    forced = answering_of(tmp_path, squad(("who", CONTEXT, "one")), data={"unanswerable": True})
    assert of_weak(forced) == [""]


def test_answers_are_not_too_long(tmp_path: Path) -> None:
    task = answering_of(tmp_path, generation={"max_answer_tokens": 1})
    model = Scripted(task, {"eight": 2.0}, {"nine": 3.0})
    assert said(task, model, [("who", CONTEXT)]) == ["nine"]


def test_many_windows_go_through_the_model_in_portions(task: QuestionAnswering) -> None:
    small = replace(task.recipe, evaluation=replace(task.recipe.evaluation, batch_tokens=18))
    portioned = QuestionAnswering(small, task.tokenizers)
    model = Scripted(portioned, {"eight": 2.0}, {"nine": 2.0})
    assert said(portioned, model, [("who", CONTEXT)]) == ["eight nine"]
    assert model.num_rows == [2, 1]
    assert portioned.row_lengths(portioned.rows([("who", CONTEXT)])).tolist() == [[18]]


def test_long_questions_are_cut_and_that_is_noted(task: QuestionAnswering) -> None:
    (whole,) = task.whole_rows([("who what who what who", CONTEXT)])
    row = task.cut(whole)
    assert (len(whole.texts[0]), len(row.texts[0])) == (6, 3)
    (short,) = task.whole_rows([("who what", CONTEXT)])
    assert task.cut(short) is short


def test_what_the_tokenizer_makes_nothing_of_has_no_answer(task: QuestionAnswering) -> None:
    model = Scripted(task, {"eight": 2.0}, {"nine": 2.0})
    assert said(task, model, [("\u00ad", " "), ("who", CONTEXT)])[1] == "eight nine"
    (empty,) = task.rows([("who", " ")])
    assert empty.windows == ()  # type: ignore[attr-defined]
    assert task.predictions(model, [empty])[0].text == ""  # type: ignore[arg-type]


def test_scores(task: QuestionAnswering) -> None:
    examples = read_examples(task, "test")
    assert [example.label for example in examples] == ['["eight nine"]', "[]", '["two"]']
    scores = task.score(["the Nine", "", "one"], examples)
    assert scores["exact"].value == pytest.approx(100 / 3)
    assert scores["f1"].value == pytest.approx(100 * (2 / 3 + 1) / 3)
    assert "unanswerable:1" in scores["f1"].signature
    assert task.compare(["eight nine", "", "two"], ["", "", ""], examples).difference == pytest.approx(200 / 3)
    with pytest.raises(DataError, match="1 predictions for 3 examples"):
        aligned(task, "test", [""], examples)
    with pytest.raises(InputError, match="has no probability; leave --score out"):
        task.scored_rows([("a", "b")], ["c"])


def test_predictions_are_never_aligned_by_lines_of_json(tmp_path: Path) -> None:
    """Of a file that is one line, every question stands on the same line."""
    content = squad(("who", CONTEXT, "one"), ("who", CONTEXT, "two"))
    content["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] = 3
    task = answering_of(tmp_path, content, data={"on_bad_line": "skip"})
    examples = read_examples(task, "test")
    assert len(examples) == 1
    with pytest.raises(DataError, match="2 predictions for 1 examples"):
        aligned(task, "test", ["one", "two"], examples)


def test_malformed_files_name_file_and_line(tmp_path: Path) -> None:
    task = answering_of(tmp_path)
    (tmp_path / "train.json").write_text('{\n"data": [\n{"paragraphs": 3}]}')
    with pytest.raises(DataError, match=r'train\.json:3: data\[0\]: there is no list "paragraphs"'):
        task.examples("train")
    with pytest.raises(ConfigError, match=r"training\.label_smoothing +has no part in question answering"):
        answering_of(tmp_path, training={"label_smoothing": 0.1})
    with pytest.raises(ConfigError, match=r"data\.too_long +long contexts are split into windows"):
        answering_of(tmp_path, data={"too_long": "cut"})


def test_the_threshold_is_chosen_on_validation_data(tmp_path: Path) -> None:
    """Two questions with margins of 2 have answers, one with a margin of 4 has none: the threshold lies between."""
    content = squad(("who", "red two", "two"), ("what", "red four", "four"), ("who", "red nine", None))
    task = answering_of(tmp_path, content)
    model = Scripted(
        task,
        {"two": 1.0, "four": 1.0, "nine": 0.0, "</s>": 2.0},
        {"two": 1.0, "four": 1.0, "nine": 0.0, "</s>": 2.0},
    )
    present, best = tune_threshold(task, model, read_examples(task, "test"))  # type: ignore[arg-type]
    assert (present.search.null_threshold, present.value) == (0.0, pytest.approx(100 / 3))
    assert (best.search.null_threshold, best.value) == (2.0, 100.0)
    of_some = replace(task.recipe, evaluation=replace(task.recipe.evaluation, metrics=("answerable_f1",)))
    other = QuestionAnswering(of_some, task.tokenizers)
    with pytest.raises(InputError, match="a threshold is chosen by f1 or exact, not by answerable_f1"):
        tune_threshold(other, model, read_examples(task, "test"))  # type: ignore[arg-type]


def test_a_run_gives_its_task_back(task: QuestionAnswering, tmp_path: Path) -> None:
    write_run(task, tmp_path / "done")
    (tmp_path / "train.json").unlink()
    again = load_task(tmp_path / "done")
    assert isinstance(again, QuestionAnswering)
    assert again.unanswerable
    assert again.window_options == task.window_options


def test_without_training_data_there_may_be_no_answer(task: QuestionAnswering) -> None:
    imported = QuestionAnswering(replace(task.recipe, data=replace(task.recipe.data, train=None)), task.tokenizers)
    assert imported.unanswerable
    assert list(task.corpus("test").examples(LineReport()))[1].texts == ("what", CONTEXT)
