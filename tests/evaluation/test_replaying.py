"""Policies from one pass: the same answers, depths and costs as by running the model under each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import (
    ConfidenceConfig,
    FixedDepthConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    TokenExitConfig,
    UniformExitConfig,
)
from depthwise.data import Example
from depthwise.depth import build_policy
from depthwise.errors import InputError
from depthwise.evaluation import Run, Trials, by_policy, load_run, outcome_of, read_examples, replaying
from depthwise.evaluation import trials as module
from depthwise.evaluation.evaluating import Outcome
from depthwise.evaluation.frontier import policies_to_try

MakeRun = Callable[..., Path]
OTHERS: list[PolicyConfig | None] = [
    None,
    FixedDepthConfig(depth=2),
    UniformExitConfig(seed=3),
    PatienceConfig(patience=1, tolerance=0.5),
    PatienceConfig(patience=2),
    ConfidenceConfig(measure="saturation", threshold=(0.5,)),
    ConfidenceConfig(threshold=(0.52, 0.9, 0.6)),
]


def run_of(make_run: MakeRun, kind: str, **evaluation: Any) -> tuple[Run, list[Example]]:
    changes = [f"evaluation.{name}={value}" for name, value in evaluation.items()]
    run = load_run(make_run(kind), changes, device="cpu")
    return run, read_examples(run.task, "valid") * 3


def assert_alike(found: Outcome, expected: Outcome) -> None:
    assert found.predictions == expected.predictions
    assert found.scores == expected.scores
    assert (found.num_tokens, found.token_layers) == (expected.num_tokens, expected.token_layers)
    assert found.flops == expected.flops


@pytest.mark.parametrize("kind", ["leaving classes", "leaving numbers"])
def test_every_policy(make_run: MakeRun, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, examples = run_of(make_run, kind, batch_rows=4)
    tried = list(dict.fromkeys([*policies_to_try(run), *OTHERS]))
    if kind == "leaving numbers":  # which have no probabilities
        tried = [options for options in tried if not isinstance(options, ConfidenceConfig)]
    expected = [outcome_of(by_policy(run, options), examples, shows_progress=False) for options in tried]
    assert len({outcome.token_layers for outcome in expected}) > 3
    monkeypatch.setattr(module, "outcome_of", None)  # the model is not run again
    trials = Trials(run, examples)
    for options, outcome in zip(tried, expected, strict=True):
        found = trials.full if options is None else trials.of(options)
        assert_alike(found.outcome, outcome)


def test_a_policy_that_learns(make_run: MakeRun) -> None:
    run, examples = run_of(make_run, "leaving classes")
    sizes = run.model.config.options
    options = PoissonBinomialConfig()
    torch.manual_seed(0)
    width = 2 * sizes.width  # of the maximum and the mean
    run.model.trained_policy = build_policy(options, width=width, exits=sizes.exit_depths, has_source=False)
    trials = Trials(run, examples)
    outcomes = [trials.of(replace(options, threshold=threshold)).outcome for threshold in (0.2, 0.4, 0.5, 0.6)]
    assert len({outcome.token_layers for outcome in outcomes}) > 1
    for trial in trials.known.values():
        assert_alike(trial.outcome, outcome_of(by_policy(run, trial.options), examples, shows_progress=False))


def test_tokens_that_leave_by_themselves_are_run(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, examples = run_of(make_run, "leaving classes")
    sizes = run.model.config.options
    options = TokenExitConfig(each_token=True, never_correct="last")
    run.model.trained_policy = build_policy(options, width=sizes.width, exits=sizes.exit_depths, has_source=False)
    trials, ran = Trials(run, examples), []
    original = module.outcome_of
    monkeypatch.setattr(module, "outcome_of", lambda *given, **named: ran.append(1) or original(*given, **named))
    assert trials.of(options).outcome.num_tokens
    assert ran == [1]


def test_the_policy_of_the_run_stays(make_run: MakeRun) -> None:
    run, examples = run_of(make_run, "leaving classes")
    used = by_policy(run, FixedDepthConfig(depth=1))
    before = run.model.policy
    replaying.Replay(used, used.task.rows([used.task.inputs_of(example) for example in examples]))
    assert run.model.policy is before


def test_a_batch_that_does_not_fit(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, examples = run_of(make_run, "leaving classes")

    def full(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(run.model, "forward", full)
    with pytest.raises(InputError, match=r"too little memory .*; give fewer by evaluation\.batch_tokens"):
        Trials(run, examples)
    assert run.model.policy is None


@pytest.mark.parametrize("kind", ["classes", "leaving tags", "leaving text", "structured classes"])
def test_whom_it_does_not_serve(make_run: MakeRun, kind: str) -> None:
    assert not replaying.Replay.serves(load_run(make_run(kind), device="cpu"), 5)


def test_what_is_too_much_to_keep(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(make_run("leaving classes"), device="cpu")
    assert replaying.Replay.serves(run, 5)
    monkeypatch.setattr(replaying, "MOST_NUMBERS", 100)
    assert not replaying.Replay.serves(run, 5)
