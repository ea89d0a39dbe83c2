"""Runs that say by themselves how many layers they need: evaluated, swept and calibrated."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from depthwise.config import FixedDepthConfig, StructureExitConfig
from depthwise.errors import ConfigError, InputError
from depthwise.evaluation import (
    Evaluation,
    Goal,
    Run,
    by_policy,
    calibrate,
    chosen_policy,
    evaluation_of,
    load_run,
    own_policy,
    read_examples,
    setting_of,
    sweep,
)
from depthwise.evaluation.costing import SequenceCosts
from depthwise.evaluation.frontier import policies_to_try
from depthwise.evaluation.policies import in_file_names
from depthwise.evaluation.thresholds import strict_to_bold

MakeRun = Callable[..., Path]
AtThresholds = Callable[[str], tuple[Run, dict[float | None, Evaluation]]]
KINDS = ("structured classes", "structured numbers", "structured tags", "structured text")


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return load_run(make_run("structured classes"), device="cpu")


def spread(run: Run) -> None:
    """Let what is predicted depend on the input."""
    assert run.model.structure is not None
    with torch.no_grad():
        run.model.structure.out.weight.mul_(10)


@pytest.mark.parametrize("kind", KINDS)
def test_depths_fall_as_the_threshold_rises(at_thresholds: AtThresholds, kind: str) -> None:
    _, found = at_thresholds(kind)
    assert found[0.0].metrics == found[None].metrics
    assert found[0.0].mean_depth == found[None].mean_depth == 4
    assert 4 >= found[0.4].mean_depth >= found[1.0].mean_depth == 2
    assert found[0.0].flops == found[None].flops > found[1.0].flops


def test_one_depth_for_all(make_run: MakeRun) -> None:
    folder = make_run("structured classes")
    found = load_run(folder, device="cpu", depth=3)
    assert found.policy == FixedDepthConfig(depth=3)
    assert evaluation_of(found, "test", read_examples(found.task, "test")).mean_depth == 3
    with pytest.raises(InputError, match="no exit at depth 5; choose among 1, 2, 3, 4"):
        load_run(folder, device="cpu", depth=5)


def test_what_is_tried(run: Run) -> None:
    kinds = {options.kind for options in policies_to_try(run)}
    assert kinds == {"fixed", "structure"}
    thresholds = [options.threshold for options in policies_to_try(run) if isinstance(options, StructureExitConfig)]
    assert thresholds == sorted(thresholds)
    assert 0.7 in thresholds
    assert {options.depth for options in policies_to_try(run) if isinstance(options, FixedDepthConfig)} == {1, 2, 3, 4}


def test_without_sums_no_threshold_is_tried(make_run: MakeRun) -> None:
    """Of single chances hardly one reaches a threshold: the likeliest number decides, unless somebody asks for more."""
    folder = make_run("structured classes")
    config = json.loads((folder / "config.json").read_text())
    config["structure"]["cumulative"] = False
    (folder / "config.json").write_text(json.dumps(config))
    run = load_run(folder, device="cpu")
    likeliest = StructureExitConfig(stops="argmax")
    assert own_policy(run.model) == chosen_policy(run.model, folder) == likeliest
    assert setting_of(likeliest) == {"stops": "argmax"}
    assert [options for options in policies_to_try(run) if isinstance(options, StructureExitConfig)] == [likeliest]
    with pytest.raises(ConfigError, match=r"policy\.threshold.*has no effect where the likeliest number decides"):
        chosen_policy(run.model, folder, ["policy.threshold=0.1"])
    with pytest.raises(InputError, match=r"no threshold to calibrate; add policy\.stops=threshold"):
        strict_to_bold(run, None)
    asked = chosen_policy(run.model, folder, ["policy.stops=threshold", "policy.threshold=0.1"])
    assert asked == StructureExitConfig(stops="threshold", threshold=0.1)
    assert len(strict_to_bold(run, asked)) > 10


def test_points_are_evaluations(run: Run) -> None:
    spread(run)
    examples = read_examples(run.task, "test")
    frontier = sweep(run, "test", examples)
    assert frontier.full.mean_depth == 4
    points = {point.setting["threshold"]: point for point in frontier.points if point.policy == "structure"}
    for threshold in (0.1, 0.5, 0.9):
        alone = evaluation_of(by_policy(run, StructureExitConfig(threshold=threshold)), "test", examples)
        assert points[threshold].mean_depth == alone.mean_depth
        assert points[threshold].quality == alone.metrics[frontier.metric]
    depths = [points[threshold].mean_depth for threshold in sorted(points)]
    assert depths == sorted(depths, reverse=True)


def test_calibrating_a_threshold(run: Run) -> None:
    spread(run)
    examples = read_examples(run.task, "test") * 5
    found = calibrate(run, "test", examples, Goal(depth_budget=2.9))
    assert found.budget_met
    assert found.mean_depth <= 2.9
    lax = calibrate(run, "test", examples, Goal(quality_drop=100.0), policy=StructureExitConfig())
    boldest = evaluation_of(by_policy(run, StructureExitConfig(threshold=0.999)), "test", examples)
    assert lax.mean_depth == boldest.mean_depth < 4
    promised = calibrate(run, "test", examples * 10, Goal(risk=0.9, confidence=0.1), policy=StructureExitConfig())
    assert promised.budget_met
    assert promised.risk is not None


def test_the_gap_between_too_deep_and_shallow_enough_is_halved(run: Run) -> None:
    examples = read_examples(run.task, "test") * 5
    said: list[str] = []
    calibrate(run, "test", examples, Goal(depth_budget=3.1), policy=StructureExitConfig(), say=said.append)
    depth_at = {
        float(line.split("threshold ")[1].split(":")[0]): float(line.rsplit(" ", 1)[1])
        for line in said
        if "threshold" in line
    }
    grid = {options.threshold for options in strict_to_bold(run, None) if isinstance(options, StructureExitConfig)}
    too_deep = max(threshold for threshold in grid if depth_at[threshold] > 3.1)
    shallow = min(threshold for threshold in grid if depth_at[threshold] <= 3.1)
    between = depth_at.keys() - grid
    assert len(between) == 5
    assert all(too_deep < threshold < shallow for threshold in between)


def test_strict_thresholds_are_low(run: Run) -> None:
    levels = [options.threshold for options in strict_to_bold(run, None) if isinstance(options, StructureExitConfig)]
    assert levels == sorted(levels)


def test_names_and_words() -> None:
    assert setting_of(StructureExitConfig()) == {"threshold": 0.7}
    assert in_file_names(StructureExitConfig(threshold=0.5)) == "structure-0.5"
    assert in_file_names(StructureExitConfig(stops="argmax")) == "structure-argmax"


def test_its_own_policy_is_what_its_options_name(run: Run) -> None:
    assert own_policy(run.model) == StructureExitConfig()
    run.model.config.policy = {"kind": "structure", "threshold": 0.4}
    assert own_policy(run.model) == StructureExitConfig(threshold=0.4)
    assert chosen_policy(run.model, "run", ["policy.stops=threshold"]) == replace(
        StructureExitConfig(threshold=0.4), stops="threshold"
    )
    run.model.config.policy = {"kind": "fixed", "depth": 2}
    assert own_policy(run.model) == FixedDepthConfig(depth=2)
    chosen = chosen_policy(run.model, "run", ["policy.kind=structure", "policy.threshold=0.2"])
    assert chosen == StructureExitConfig(threshold=0.2)


def test_other_policies_are_refused(run: Run, make_run: MakeRun) -> None:
    with pytest.raises(InputError, match="says by itself how many layers it needs; use the policy structure or fixed"):
        chosen_policy(run.model, "run", ["policy.kind=patience", "policy.patience=1"])
    with pytest.raises(ConfigError, match="out of range"):
        chosen_policy(run.model, "run", ["policy.threshold=3"])
    plain = load_run(make_run("leaving classes"), device="cpu")
    with pytest.raises(InputError, match="was not trained for the policy structure"):
        chosen_policy(plain.model, "run", ["policy.kind=structure"])


def test_predicting_depth_costs_once_a_sequence(run: Run) -> None:
    width, costs = 16, SequenceCosts(run.model, None)
    assert costs.scores([4] * 5) == 2 * width * width + 2 * width * 3 + costs.head
