"""Summarisation: what is cut, ROUGE against every reference, the trivial summary beside it."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthwise.config import recipe_yaml
from depthwise.data import LineReport
from depthwise.errors import ConfigError, DataError, InputError
from depthwise.evaluation import Run, evaluation_of
from depthwise.evaluation.tuning import score_model
from depthwise.evaluation.validation import score_split
from depthwise.metrics import Rouge
from depthwise.tasks import Summarization, load_task
from depthwise.tasks.summarization import lead

from .conftest import SUMMARIES, with_generation


def test_sources_and_targets_are_cut_to_their_own_lengths(summarization: Summarization) -> None:
    store, end = summarization.store("train"), summarization.tokenizers.source.eos_token_id
    assert store.lengths().tolist() == [[6, 3], [6, 3]]
    assert store.report.num_cut == 2
    assert all(ids[-1] == end for row in (store[0], store[1]) for ids in row.texts)
    (row,) = summarization.rows([(SUMMARIES[0][0],)])
    assert row.texts[0].tolist() == store[0].texts[0].tolist()
    assert summarization.text_limits == (6, 12)
    (scored,) = summarization.scored_rows([("a dog",)], ["a dog slept and ran"])
    assert len(summarization.cut(scored).texts[1]) == 6  # the limit of targets is for training alone


def test_longer_examples_may_be_left_out(summarization: Summarization) -> None:
    data = replace(summarization.recipe.data, too_long="skip", max_source_tokens=8, max_target_tokens=None)
    task = Summarization(replace(summarization.recipe, data=data), summarization.tokenizers)
    assert task.store("train").report.counts == {"too_many_tokens": 1}


def test_the_length_does_not_depend_on_the_source(summarization: Summarization) -> None:
    model = summarization.new_model().eval()
    short = with_generation(summarization, max_extra=4)
    rows = short.rows([("A dog ran.",), (SUMMARIES[0][0],)])
    for prediction in short.predict(model, short.collate(rows)):
        assert len(prediction.depths) <= 4


def test_rouge_takes_the_best_or_the_mean_of_all_references(summarization: Summarization) -> None:
    examples = list(summarization.corpus("test").examples(LineReport()))
    assert [example.texts[1:] for example in examples] == [tuple(summary) for _, summary in SUMMARIES]
    assert summarization.inputs_of(examples[0]) == (SUMMARIES[0][0],)
    predictions = ["the dog ran", "rain fell"]
    scores = summarization.score(predictions, examples)
    assert list(scores) == ["rouge1", "rouge2", "rougeL", "lead/rouge1", "lead/rouge2", "lead/rougeL"]
    assert scores["rouge1"].value == pytest.approx(100)
    assert "several:best" in scores["rouge1"].signature
    evaluation = replace(summarization.recipe.evaluation, several_references="mean", metrics=("rougeL", "rouge1"))
    mean = Summarization(replace(summarization.recipe, evaluation=evaluation), summarization.tokenizers)
    by_hand = (100 + 100 / 3) / 2  # one of three words is in the first reference
    assert mean.score(predictions, examples)["rouge1"].value == pytest.approx((by_hand + 100) / 2)
    assert mean.compared_by == "rougeL"
    model = summarization.new_model()
    assert 0 <= score_split(summarization, model, "test", "rougeLsum") <= 100  # whatever was scored before
    assert mean.compare(predictions, ["a", "b"], examples).difference > 0


def test_the_first_sentences_are_the_trivial_summary(summarization: Summarization) -> None:
    assert lead(SUMMARIES[0][0], 2) == "A dog ran. It ran far!"
    assert lead("only one", 3) == "only one"
    evaluation = replace(summarization.recipe.evaluation, lead_sentences=1)
    task = Summarization(replace(summarization.recipe, evaluation=evaluation), summarization.tokenizers)
    examples = list(task.corpus("test").examples(LineReport()))
    scores = task.score(["x", "y"], examples)
    wanted = Rouge(("rouge1",)).scores(["A dog ran.", "Rain fell."], [summary for _, summary in SUMMARIES])
    assert scores["lead/rouge1"].value == pytest.approx(wanted["rouge1"].value)
    assert scores["lead/rouge1"].signature.startswith("lead:1|")
    assert scores["rouge1"].value == 0


def test_a_run_gives_its_task_back(summarization: Summarization, tmp_path: Path) -> None:
    summarization.save(tmp_path / "done")
    summarization.new_model().save_pretrained(tmp_path / "done")
    (tmp_path / "done" / "recipe.yaml").write_text(recipe_yaml(summarization.resolved()))
    task = load_task(tmp_path / "done")
    assert isinstance(task, Summarization)
    assert task.recipe == summarization.resolved()


def test_mistakes(summarization: Summarization, tmp_path: Path) -> None:
    evaluation = replace(summarization.recipe.evaluation, metrics=("rogue1",))
    with pytest.raises(ConfigError, match='"rogue1" is none of rouge1'):
        Summarization(replace(summarization.recipe, evaluation=evaluation), summarization.tokenizers)
    (tmp_path / "s.jsonl").write_text('{"text": "a", "summary": "b"}\n{"text": "a", "summary": []}\n')
    with pytest.raises(DataError, match=r's\.jsonl:2: field "summary" is empty'):
        summarization.store("train")


@pytest.mark.parametrize(
    "work",
    [
        lambda task, model, examples: evaluation_of(Run(Path("."), task, model), "test", examples),
        lambda task, model, examples: score_model(task, model, examples),
    ],
)
def test_a_missing_library_is_told_before_any_summary_is_searched_for(
    work: Callable[..., Any], summarization: Summarization, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = list(summarization.corpus("test").examples(LineReport()))
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(InputError, match="needs the library rouge-score"):
        work(summarization, None, examples)  # no model: whoever searched would fail otherwise
