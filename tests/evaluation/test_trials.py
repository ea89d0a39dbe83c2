"""The same examples by several policies: each is run once, and losses are against full depth."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from depthwise.config import ConfidenceConfig, FixedDepthConfig
from depthwise.errors import InputError
from depthwise.evaluation import Run, Trials, by_policy, evaluation_of, load_run, policy_asked_for, read_examples
from depthwise.evaluation import trials as module

MakeRun = Callable[..., Path]
FIRST = FixedDepthConfig(depth=1)


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return load_run(make_run("leaving classes"), device="cpu")


def test_each_policy_is_run_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, outcome_of = [], module.outcome_of

    def counted(run: Run, *given: object, **options: object) -> object:
        calls.append(run.policy)
        return outcome_of(run, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "outcome_of", counted)
    monkeypatch.setattr(module.Replay, "serves", lambda run, num_rows: False)
    said: list[str] = []
    trials = Trials(run, read_examples(run.task, "valid"), said.append)
    assert trials.of(FIRST) is trials.of(FIRST)
    assert trials.of(FixedDepthConfig(depth=4)) is trials.full
    assert calls == [None, FIRST]
    assert list(trials.known) == [FIRST]
    assert said[0].startswith("full depth: accuracy")
    assert said[1].startswith("fixed, depth 1: accuracy")
    assert trials.leaves(trials.of(FIRST))
    assert not trials.leaves(trials.full)


def test_losses_are_against_full_depth(run: Run) -> None:
    """An answer that changes is a loss of answers; of quality only where the full model was right."""
    examples = read_examples(run.task, "valid")
    trials = Trials(run, examples)
    trial = trials.of(FIRST)
    full = evaluation_of(by_policy(run, None), "valid", examples).predictions
    first = evaluation_of(by_policy(run, FIRST), "valid", examples).predictions
    assert full != first
    changed = [ours != theirs for ours, theirs in zip(first, full, strict=True)]
    worse = [
        here != example.label and there == example.label
        for here, there, example in zip(first, full, examples, strict=True)
    ]
    assert np.array_equal(trials.losses(trial, "answers"), changed)
    assert np.array_equal(trials.losses(trial, "quality"), worse)
    assert not trials.losses(trials.full, "answers").any()
    assert trials.lost(trial) == trials.full.quality - trial.quality


def test_less_is_better(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving text"), device="cpu")
    trials = Trials(run, read_examples(run.task, "valid"))
    trial = trials.of(FIRST)
    assert trials.metric == "word_perplexity"
    assert trials.lost(trial) == trial.quality - trials.full.quality


def test_nowhere_to_leave(make_run: MakeRun) -> None:
    run = load_run(make_run("classes"), device="cpu")
    with pytest.raises(InputError, match="has no exits to leave at"):
        Trials(run, read_examples(run.task, "valid"))


def test_the_policy_that_is_asked_for(run: Run) -> None:
    assert policy_asked_for(run, []) is None
    found = policy_asked_for(run, ["policy.kind=confidence", "policy.measure=margin"])
    assert isinstance(found, ConfidenceConfig)
    assert found.measure == "margin"
    with pytest.raises(InputError, match=r"leave policy\.threshold out"):
        policy_asked_for(run, ["policy.kind=confidence", "policy.threshold=0.5"])
