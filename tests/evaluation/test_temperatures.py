"""Temperatures of exits: found where they were put in, and what they change."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from depthwise.config import ConfidenceConfig, check_policy, placement_problems
from depthwise.errors import InputError
from depthwise.evaluation import Goal, by_policy, calibrate, fitted_temperatures, load_run, read_examples
from depthwise.evaluation.evaluating import outcome_of

MakeRun = Callable[..., Path]


@pytest.mark.parametrize("kind", ["leaving classes", "leaving tags", "leaving translation", "leaving text"])
def test_heads_that_are_too_sure(make_run: MakeRun, kind: str) -> None:
    """Scores that are multiplied by a factor want a temperature higher by that factor, at that exit alone."""
    run = load_run(make_run(kind), device="cpu")
    before = fitted_temperatures(run)
    assert len(before) == 3
    head = run.model.exit_heads["2"]
    with torch.no_grad():
        for weight in head.parameters():
            weight.mul_(4**0.25)
    after = fitted_temperatures(run)
    assert after[0] == before[0]
    assert after[2] == before[2]
    if 0.25 < before[1] < 2.5:
        assert after[1] == pytest.approx(before[1] * 4**0.25, rel=1e-3)
    else:
        assert after[1] >= before[1]


def test_they_decide(make_run: MakeRun) -> None:
    """A high temperature is never sure, a low one always; and the run keeps its own policy."""
    run = load_run(make_run("leaving classes"), device="cpu")
    examples = read_examples(run.task, "test")
    depths = [
        outcome_of(by_policy(run, ConfidenceConfig(threshold=(0.9,), temperature=(level,) * 3)), examples).mean_depth
        for level in (1e-3, 1.0, 1e3)
    ]
    assert depths[0] == 1
    assert depths[2] == 4
    fitted_temperatures(by_policy(run, ConfidenceConfig(threshold=(0.9,))))
    assert run.model.policy is not None


def test_calibration_takes_them(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving classes"), device="cpu")
    examples = read_examples(run.task, "valid") * 4
    policy = ConfidenceConfig(threshold=(0.9,))
    found = calibrate(run, "valid", examples, Goal(depth_budget=2.5), policy=policy, temperatures=(1.5, 2.0, 3.0))
    assert found.policy["temperature"] == [1.5, 2.0, 3.0]


def test_bad_input(make_run: MakeRun) -> None:
    with pytest.raises(InputError, match="give no probabilities of one label"):
        fitted_temperatures(load_run(make_run("leaving numbers"), device="cpu"))
    with pytest.raises(InputError, match="has no exits"):
        fitted_temperatures(load_run(make_run("classes"), device="cpu"))
    (problem,) = check_policy(ConfidenceConfig(threshold=(0.9,), temperature=(0.0,)))
    assert (problem.option, "above 0" in problem.message) == ("temperature", True)
    (problem,) = check_policy(ConfidenceConfig(measure="saturation", threshold=(0.9,), temperature=(2.0,)))
    assert "no effect" in problem.message
    (problem,) = placement_problems(ConfidenceConfig(threshold=(0.9,), temperature=(1.0, 2.0)), (1, 2, 3, 4))
    assert "2 temperatures for the 3 exits" in problem.message
