"""The choice of a search: what is reused is what would have been found anyway."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from depthwise.config import SearchConfig
from depthwise.errors import InputError
from depthwise.evaluation import load_run, read_examples
from depthwise.evaluation.tuning import Trial, best_trial, score_model, tune_search, with_search
from depthwise.metrics import Score
from depthwise.tasks import Prediction, Translation

MakeRun = Callable[..., Path]


class ScriptedTranslation(Translation):
    """Says ``x`` once for every source token and one time more, as far as the limit goes; counts what it is asked."""

    asked: list[int]

    def predict(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> list[Prediction]:
        lengths = batch["attention_mask"].sum(1)
        limits = self.target_limits(lengths)
        self.asked.append(len(lengths))
        ends = torch.minimum(lengths + 2, limits)
        return [Prediction("x " * (end - 1), None, (1,) * end, int(ends.max())) for end in ends.tolist()]


def scripted(make_run: MakeRun) -> tuple[ScriptedTranslation, PreTrainedModel]:
    run = load_run(make_run("translation"), ["evaluation.batch_tokens=1"], device="cpu")
    task = ScriptedTranslation(run.recipe, run.task.tokenizers)
    task.asked = []
    return task, run.model


def test_only_what_a_limit_had_a_part_in_is_searched_again(make_run: MakeRun) -> None:
    task, model = scripted(make_run)
    examples = read_examples(task, "valid")
    limits = [(0.5, 2), (1.0, 2), (1.0, 4), (2.0, 9)]
    trials = tune_search(task, model, examples, [0.5], limits)
    searched = {
        (trial.search.max_factor, trial.search.max_extra): trial.num_searched
        for trial in trials
        if trial.search.length_penalty == 0.5
    }
    # Sources of 2 to 8 tokens want two more: all reach the first two limits, none the third, of one more.
    assert searched == {(0.5, 2): 5, (1.0, 2): 5, (1.0, 3): 5, (1.0, 4): 0, (2.0, 9): 0}
    assert sum(task.asked) == 2 * 15, "the present penalty, and the given one"
    for trial in trials:
        tried = with_search(task, trial.search)
        assert trial.value == score_model(tried, model, examples)


def test_trials_are_those_of_evaluations(make_run: MakeRun) -> None:
    run = load_run(make_run("translation"), ["evaluation.metrics=[chrf]"], device="cpu")
    assert isinstance(run.task, Translation)
    examples = read_examples(run.task, "valid")
    trials = tune_search(run.task, run.model, examples, [], [(0.0, 2)])
    assert [(trial.search.max_factor, trial.search.max_extra) for trial in trials] == [(1.0, 3), (0.0, 2)]
    assert trials[0].search == run.recipe.generation
    for trial in trials:
        assert trial.value == score_model(with_search(run.task, trial.search), run.model, examples)
    assert trials[0].value != trials[1].value


def test_a_greedy_search_has_no_penalty(make_run: MakeRun) -> None:
    run = load_run(make_run("translation"), ["generation.num_beams=1"], device="cpu")
    assert isinstance(run.task, Translation)
    trials = tune_search(run.task, run.model, read_examples(run.task, "valid"), [0.0, 2.0], [(3.0, 5)])
    assert [trial.search.length_penalty for trial in trials] == [1.0, 1.0]


def test_the_present_search_stays_unless_another_is_better(make_run: MakeRun) -> None:
    task = load_run(make_run("translation"), device="cpu").task
    present, other = (Trial(SearchConfig(length_penalty=penalty), 10.0, 1) for penalty in (1.0, 2.0))
    assert best_trial(task, [present, other]) is present
    better = replace(other, value=10.5)
    assert best_trial(task, [present, other, better]) is better


def test_a_score_that_is_no_number(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(make_run("classes"), device="cpu")
    monkeypatch.setattr(run.task, "score", lambda *arguments: {"accuracy": Score("accuracy", float("nan"), "")})
    with pytest.raises(InputError, match=r"accuracy is not a number on these examples; tune by another one"):
        score_model(run.task, run.model, read_examples(run.task, "valid"))
