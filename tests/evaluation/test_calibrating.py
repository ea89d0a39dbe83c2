"""Calibration: budgets that are met where they can be, promises that stop at the first failure, settings with names."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from depthwise.config import ConfidenceConfig, PatienceConfig, PolicyConfig, UniformExitConfig
from depthwise.data import Example
from depthwise.errors import CheckpointError, InputError
from depthwise.evaluation import (
    Goal,
    Run,
    calibrate,
    evaluation_of,
    load_run,
    read_examples,
    read_settings,
    write_setting,
)
from depthwise.evaluation import trials as module
from depthwise.evaluation.evaluating import Outcome
from depthwise.evaluation.thresholds import strict_to_bold
from depthwise.evaluation.timing import Timing
from depthwise.evaluation.trials import Trials
from depthwise.metrics import Score

MakeRun = Callable[..., Path]
NUM_EXAMPLES = 40


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return load_run(make_run("leaving classes"), device="cpu")


@pytest.fixture
def examples(run: Run) -> list[Example]:
    return read_examples(run.task, "valid") * (NUM_EXAMPLES // 5)


def depth_of(options: PolicyConfig | None) -> float:
    """Of a made-up model of four blocks: the bolder, the shallower; margins below 0.4 hold nobody back."""
    if options is None:
        return 4.0
    if isinstance(options, ConfidenceConfig):
        mean = sum(options.threshold) / len(options.threshold)
        if options.measure == "margin" and mean < 0.4:
            return 1.0
        return 1 + 3 * max(0.0, min(mean, 1.0))
    return float(getattr(options, "depth", 2))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[PolicyConfig | None]:
    """Outcomes as if accuracy fell by 10 points for each block that is left out, and labels with it; what was tried."""
    tried: list[PolicyConfig | None] = []

    def outcome(run: Run, examples: list[Example], *, shows_progress: bool) -> Outcome:
        depth = depth_of(run.policy)
        tried.append(run.policy)
        wrong = round(NUM_EXAMPLES * (4 - depth) / 10)
        labels = ("bad",) * wrong + ("good",) * (NUM_EXAMPLES - wrong)
        scores = {"accuracy": Score("accuracy", 90 - 10 * (4 - depth), "made up")}
        return Outcome(scores, Timing(1.0, None), NUM_EXAMPLES, int(NUM_EXAMPLES * depth), int(1000 * depth), labels)

    monkeypatch.setattr(module, "outcome_of", outcome)
    monkeypatch.setattr(module.Replay, "serves", lambda run, num_rows: False)
    return tried


def test_a_quality_drop(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    """Thresholds are halved until the drop is nearly used up: here it allows a mean depth of 3.5."""
    found = calibrate(run, "valid", examples, Goal(quality_drop=5.0))
    assert found.budget_met
    assert found.full_quality == 90
    assert found.quality is not None
    assert found.quality >= 85
    assert found.mean_depth == pytest.approx(3.5, abs=0.05)
    assert found.full_flops == 4000
    assert found.flops == pytest.approx(3500, abs=50)
    assert found.num_trials == len(set(made_up)) - 1
    assert found.goal == {"quality_drop": 5.0}


def test_a_threshold_beyond_all_that_are_tried(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    """The strictest that a sweep tries, 0.99, loses 0.3 points: what keeps to 0.1 lies between it and 1."""
    found = calibrate(run, "valid", examples, Goal(quality_drop=0.1))
    assert found.budget_met
    (threshold,) = found.policy["threshold"]
    assert 1 - 0.1 / 30 <= threshold < 1 - 0.05 / 30


def test_a_drop_that_one_can_be_sure_of(
    run: Run, examples: list[Example], made_up: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the lower end lies two points below, five points allow one wrong answer of forty, not two as without."""

    def compare(ours: Sequence[str], theirs: Sequence[str], examples: list[Example]) -> Any:
        return SimpleNamespace(low=100 * (theirs.count("bad") - ours.count("bad")) / NUM_EXAMPLES - 2.0)

    monkeypatch.setattr(run.task, "compare", compare)
    found = calibrate(run, "valid", examples, Goal(quality_drop=5.0, sure=True))
    assert found.budget_met
    assert found.mean_depth == pytest.approx(3.64, abs=0.03)
    assert found.goal == {"quality_drop": 5.0, "sure": True}
    missed = calibrate(run, "valid", examples, Goal(quality_drop=1.9, sure=True))
    assert not missed.budget_met
    with pytest.raises(InputError, match="what one can be sure of is a quality drop"):
        Goal(depth_budget=2.0, sure=True)


def test_the_interval_is_that_of_a_paired_bootstrap(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    trials = Trials(run, examples)
    trial = trials.of(ConfidenceConfig(threshold=(0.5,)))
    comparison = run.task.compare(trial.outcome.predictions, trials.full.outcome.predictions, examples)
    assert comparison.low < comparison.difference < 0
    assert trials.lost_at_worst(trial) == -comparison.low


def test_a_depth_budget(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    found = calibrate(run, "valid", examples, Goal(depth_budget=2.75))
    assert found.budget_met
    assert found.mean_depth == pytest.approx(2.75, abs=0.1)
    assert found.mean_depth is not None
    assert found.mean_depth <= 2.75


def test_a_goal_that_cannot_be_met(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    """Full depth would lose nothing, but leaves nobody early: the closest setting that does is kept."""
    found = calibrate(run, "valid", examples, Goal(quality_drop=0.0), policy=ConfidenceConfig(threshold=(0.5,)))
    assert not found.budget_met
    assert found.mean_depth is not None
    assert found.mean_depth < 4
    (threshold,) = found.policy["threshold"]
    assert 0.999 < threshold < 1


def test_nothing_is_bolder_than_the_first_exit(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    """Thresholds of the policy that is asked for end where all leave at once."""
    policy = ConfidenceConfig(measure="margin", threshold=(0.5,))
    found = calibrate(run, "valid", examples, Goal(quality_drop=50.0), policy=policy)
    assert found.mean_depth == 1.0
    assert min(options.threshold[0] for options in made_up if options is not None) == 0.35


@pytest.mark.parametrize("goal", [Goal(quality_drop=1.0), Goal(risk=0.3)])
def test_a_policy_without_thresholds_is_refused_at_once(
    run: Run, examples: list[Example], made_up: list[Any], goal: Goal
) -> None:
    with pytest.raises(InputError, match="the policy patience has no threshold to calibrate"):
        calibrate(run, "valid", examples, goal, policy=PatienceConfig(patience=1))
    assert made_up == []


def test_random_thresholds(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    calibrate(run, "valid", examples, Goal(quality_drop=5.0), vectors=6)
    vectors = {options for options in made_up if isinstance(options, ConfidenceConfig) and len(options.threshold) == 3}
    assert len(vectors) == 6
    assert all(max(options.threshold) <= 1 for options in vectors)


def test_a_promise_ends_at_the_first_failure(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    goal = Goal(risk=0.3, confidence=0.1, bound="bentkus")
    found = calibrate(run, "valid", examples, goal)
    assert found.budget_met
    assert found.risk is not None
    assert found.risk["p_value"] <= 0.1
    levels = [options.threshold[0] for options in made_up if isinstance(options, ConfidenceConfig)]
    assert levels == sorted(levels, reverse=True)
    assert found.policy["threshold"] == [levels[-2]]  # the last one failed


def test_a_promise_within_a_budget(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    alone = calibrate(run, "valid", examples, Goal(risk=0.3, confidence=0.1))
    both = calibrate(run, "valid", examples, Goal(risk=0.3, confidence=0.1, quality_drop=2.0))
    assert both.budget_met
    assert alone.mean_depth is not None
    assert both.mean_depth is not None
    assert both.mean_depth > alone.mean_depth
    assert both.quality is not None
    assert both.quality >= 88
    missed = calibrate(run, "valid", examples, Goal(risk=0.3, confidence=0.1, depth_budget=1.0))
    assert not missed.budget_met


def test_a_promise_that_saves_nothing(run: Run, examples: list[Example]) -> None:
    """By temperatures at which no exit is ever sure, everything passes, and nobody leaves."""
    goal = Goal(risk=0.5, confidence=0.4)
    policy = ConfidenceConfig(threshold=(0.9,), measure="margin")
    search = calibrate(run, "valid", examples, goal, policy=policy, temperatures=(1e6,) * 3)
    assert search.mean_depth == 4
    assert not search.budget_met


def test_no_promise(run: Run, examples: list[Example], made_up: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trials, "losses", lambda self, trial, of: np.ones(NUM_EXAMPLES))
    found = calibrate(run, "valid", examples, Goal(risk=0.3, confidence=0.1))
    assert not found.budget_met
    assert found.risk == {"mean_loss": 1.0, "p_value": 1.0}
    assert found.policy["threshold"] == [0.999]


@pytest.mark.parametrize("of", ["answers", "quality"])
@pytest.mark.parametrize("kind", ["leaving classes", "leaving tags", "leaving translation"])
def test_of_a_model(make_run: MakeRun, kind: str, of: str) -> None:
    """What is found is what an evaluation with that setting finds, and the run is left as it was."""
    run = load_run(make_run(kind), device="cpu")
    examples = (read_examples(run.task, "valid") * 14)[:42]
    found = calibrate(run, "valid", examples, Goal(risk=0.5, confidence=0.4, of=of))
    assert run.model.policy is None
    write_setting(run.folder, "careful", found)
    again = evaluation_of(load_run(run.folder, device="cpu", depth="careful"), "valid", examples)
    assert (again.value, again.mean_depth, again.flops) == (found.quality, found.mean_depth, found.flops)
    assert read_settings(run.folder) == {"careful": found}


def test_settings_belong_to_their_weights(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    found = calibrate(run, "valid", examples, Goal(quality_drop=5.0))
    write_setting(run.folder, "a", found)
    write_setting(run.folder, "b", found)
    assert list(read_settings(run.folder)) == ["a", "b"]
    with pytest.raises(InputError, match='no calibrated setting "c"; it has a, b'):
        load_run(run.folder, device="cpu", depth="c")
    run.model.classifier.bias.data += 1
    run.model.save_pretrained(run.folder)
    with pytest.raises(CheckpointError, match="calibrated for other weights"):
        load_run(run.folder, device="cpu", depth="a")


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": 1, "settings": {"a": {}}}', '{"schema": 9}'])
def test_a_broken_file(run: Run, content: str) -> None:
    (run.folder / "calibration.json").write_text(content)
    with pytest.raises(CheckpointError, match="calibrate the run again"):
        read_settings(run.folder)


def test_names(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    found = calibrate(run, "valid", examples, Goal(quality_drop=5.0))
    for name in ("full", "policy", "3", "a b", ""):
        with pytest.raises(InputError, match="cannot be called"):
            write_setting(run.folder, name, found)
    assert not (run.folder / "calibration.json").exists()
    with pytest.raises(InputError, match="make one: depthwise calibrate"):
        load_run(run.folder, device="cpu", depth="fast")


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({}, "say what to calibrate for"),
        ({"quality_drop": 1, "depth_budget": 2}, "two goals"),
        ({"quality_drop": -1}, "a quality drop of -1 is none; give 0 or more"),
        ({"quality_drop": float("nan")}, "a quality drop of nan is none"),
        ({"risk": 2}, "lies between 0 and 1"),
        ({"risk": 0.1, "confidence": 0.95}, r"write --confidence 0\.05"),
        ({"risk": 0.1, "of": "luck"}, "answers, quality"),
        ({"risk": 0.1, "bound": "luck"}, "hoeffding, bentkus"),
    ],
)
def test_goals_that_are_none(goal: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Goal(**goal)


def test_what_cannot_be_calibrated(make_run: MakeRun, run: Run, examples: list[Example]) -> None:
    with pytest.raises(InputError, match="3 examples are too few to calibrate on"):
        calibrate(run, "valid", examples[:3], Goal(quality_drop=1))
    with pytest.raises(InputError, match="0 examples are too few"):
        calibrate(run, "valid", [], Goal(quality_drop=1))
    with pytest.raises(InputError, match="1 example is too few"):
        calibrate(run, "valid", examples[:1], Goal(quality_drop=1))
    with pytest.raises(InputError, match=r"40 examples.*600 by hoeffding and 78 by bentkus; give more, or allow"):
        calibrate(run, "valid", examples, Goal(risk=0.05))
    with pytest.raises(InputError, match=r"40 examples.*150 by hoeffding and 38 by bentkus; add --bound bentkus$"):
        calibrate(run, "valid", examples, Goal(risk=0.1))
    with pytest.raises(InputError, match=r"nobody leaves .* before depth 1.* 0\.5 blocks is out of reach; give 1"):
        calibrate(run, "valid", examples, Goal(depth_budget=0.5))
    for budget in (4, 9):
        with pytest.raises(InputError, match=rf"no more than 4 blocks.* of {budget} saves nothing.*less than 4$"):
            calibrate(run, "valid", examples, Goal(depth_budget=budget))
    with pytest.raises(InputError, match="has no exits"):
        calibrate(load_run(make_run("classes"), device="cpu"), "valid", examples, Goal(quality_drop=1))
    with pytest.raises(InputError, match="patience has no threshold"):
        strict_to_bold(run, PatienceConfig(patience=1))
    with pytest.raises(InputError, match="uniform has no threshold"):
        calibrate(run, "valid", examples, Goal(quality_drop=1), policy=UniformExitConfig())
    numbers = load_run(make_run("leaving numbers"), device="cpu")
    with pytest.raises(InputError, match="no risk can be promised"):
        calibrate(numbers, "valid", read_examples(numbers.task, "valid") * 10, Goal(risk=0.4, confidence=0.4))


def test_entropies_are_negative(run: Run) -> None:
    levels = [each.threshold[0] for each in strict_to_bold(run, ConfidenceConfig(measure="entropy", threshold=(0,)))]
    assert levels == sorted(levels, reverse=True)
    assert max(levels) < 0


def test_the_file(run: Run, examples: list[Example], made_up: list[Any]) -> None:
    path = write_setting(run.folder, "a", calibrate(run, "valid", examples, Goal(quality_drop=5.0)))
    content = json.loads(path.read_text())
    assert content["schema"] == 1
    assert content["settings"]["a"]["budget_met"] is True
