"""An encoder below a decoder that says how many layers it needs: commands set its depth, and tell it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import ConfidenceConfig, FixedDepthConfig, PolicyConfig, StructureExitConfig
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
    predict_lines,
    predict_rows,
    read_chunks,
    read_examples,
    sweep,
)
from depthwise.evaluation.costing import SequenceCosts
from depthwise.evaluation.frontier import policies_to_try

MakeRun = Callable[..., Path]
AtThresholds = Callable[[str], tuple[Run, dict[float | None, Evaluation]]]


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return spread(load_run(make_run("structured translation"), device="cpu"))


@pytest.fixture
def both(make_run: MakeRun) -> Run:
    """With exits in the decoder too."""
    return spread(load_run(make_run("structured translation with exits"), device="cpu"))


def spread(run: Run) -> Run:
    """Let what is predicted depend on the input: no number of layers is the likeliest for all of them."""
    structure, seen = run.model.structure, list[torch.Tensor]()
    assert structure is not None
    hook = structure.out.register_forward_hook(lambda _, given, scores: seen.append(scores.mean(0)))
    predict_rows(run.task, run.engine, run.task.rows([(word,) for word in "abc"]), shows_progress=False)
    hook.remove()
    with torch.no_grad():
        structure.out.bias.sub_(torch.stack(seen).mean(0))
        structure.out.weight.mul_(3)
        structure.out.bias.mul_(3)
    return run


def evaluated(run: Run, options: PolicyConfig | None) -> Any:
    return evaluation_of(by_policy(run, options), "test", read_examples(run.task, "test"))


def test_the_depth_of_sources_falls_as_the_threshold_rises(at_thresholds: AtThresholds) -> None:
    full, found = at_thresholds("structured translation")
    assert found[0.0].predictions == found[None].predictions
    assert found[0.0].mean_depth == found[None].mean_depth == 4
    assert 4 >= found[0.4].mean_depth >= found[1.0].mean_depth == 2
    assert {each.depth_of for each in found.values()} == {"encoder"}
    sources = [(each.texts[0],) for each in read_examples(full.task, "test")]
    num_source_tokens = sum(len(row.texts[0]) for row in full.task.rows(sources))
    assert found[1.0].token_layers == 2 * num_source_tokens


def test_operations_are_those_of_the_layers_that_ran(run: Run) -> None:
    rows = run.task.rows([("a b c",), ("b",)])
    full, half = (
        predict_rows(run.task, by_policy(run, options).engine, rows, shows_progress=False)
        for options in (None, FixedDepthConfig(depth=2))
    )
    assert [prediction.source_depths for prediction in half] == [(2,) * len(row.texts[0]) for row in rows]
    costs = SequenceCosts(run.model, None)
    encoder = costs.cost.encoder
    assert encoder is not None
    length = len(rows[0].texts[0])
    saved = encoder.forward(length).flops - encoder.plan([2] * length).flops
    whole, less = (costs.generated((2, 2), length, each[0].source_depths) for each in (full, half))
    assert whole - less == saved > 0
    assert whole == costs.generated((2, 2), length)


def test_one_depth_for_all_sources(make_run: MakeRun) -> None:
    folder = make_run("structured translation")
    found = load_run(folder, device="cpu", depth=3)
    assert found.policy == FixedDepthConfig(depth=3)
    assert evaluation_of(found, "test", read_examples(found.task, "test")).mean_depth == 3
    with pytest.raises(InputError, match="no exit at depth 5; choose among 1, 2, 3, 4"):
        load_run(folder, device="cpu", depth=5)


def test_sweeping_and_calibrating(run: Run, make_run: MakeRun) -> None:
    assert {options.kind for options in policies_to_try(run)} == {"fixed", "structure"}
    examples = read_examples(run.task, "test")
    beside = load_run(make_run("translation"), device="cpu")
    frontier = sweep(run, "test", examples, [beside])
    assert (frontier.num_layers, frontier.exits, frontier.depth_of) == (4, (1, 2, 3, 4), "encoder")
    assert frontier.full.mean_depth == 4
    points = {point.setting["threshold"]: point for point in frontier.points if point.policy == "structure"}
    alone = evaluated(run, StructureExitConfig(threshold=0.5))
    assert (points[0.5].mean_depth, points[0.5].quality) == (alone.mean_depth, alone.metrics[frontier.metric])
    assert len({point.mean_depth for point in points.values()}) > 2
    (separate,) = (point for point in frontier.points if point.policy == "separate")
    assert (separate.mean_depth, separate.setting["depth"]) == (2, 2)
    said: list[str] = []
    found = calibrate(run, "test", examples * 5, Goal(depth_budget=2.9), say=said.append)
    assert found.budget_met
    assert found.mean_depth is not None
    assert found.mean_depth <= 2.9
    assert (found.full_depth, found.depth_of) == (4, "encoder")
    assert all("mean encoder depth" in line for line in said)


def test_predictions_show_depths_of_sources(run: Run) -> None:
    def shown(options: PolicyConfig | None) -> list[str]:
        text = iter([b"a b c\n", b""])
        chunks: Sequence[Any] = list(read_chunks(lambda size: next(text, b""), 100))
        (replies,) = predict_lines(by_policy(run, options), chunks, depths=True)
        return replies[0].text.split("\t")[1].split()

    tokens = len(run.task.rows([("a b c",)])[0].texts[0])
    assert shown(None) == ["4"] * tokens
    assert shown(FixedDepthConfig(depth=2)) == ["2"] * tokens


def test_its_own_policy(run: Run) -> None:
    assert own_policy(run.model) == StructureExitConfig()
    run.model.config.policy = {"kind": "structure", "threshold": 0.4}
    assert own_policy(run.model) == StructureExitConfig(threshold=0.4)
    with pytest.raises(InputError, match="says by itself how many layers it needs; use the policy structure or fixed"):
        chosen_policy(run.model, "run", ["policy.kind=patience", "policy.patience=1"])
    with pytest.raises(ConfigError, match="out of range"):
        chosen_policy(run.model, "run", ["policy.threshold=3"])


def test_exits_of_the_decoder_come_first(both: Run) -> None:
    """The kind of the policy says which of both is meant; one at a time."""
    exits = evaluated(both, FixedDepthConfig(depth=1))
    assert (exits.mean_depth, exits.depth_of) == (1, None)
    options = chosen_policy(both.model, "run", ["policy.kind=structure", "policy.threshold=1.0"])
    assert options == StructureExitConfig(threshold=1.0)
    sources = evaluated(both, options)
    assert (sources.mean_depth, sources.depth_of) == (2, "encoder")
    assert sources.predictions == evaluated(both, options).predictions
    again = evaluated(both, FixedDepthConfig(depth=1))
    assert again.predictions == exits.predictions, "of the encoder's policy nothing is left"
    assert evaluated(both, None).mean_depth == 2, "of the decoder, all layers"


def test_depths_of_both_sides_are_not_set_against_each_other(both: Run) -> None:
    examples = read_examples(both.task, "test")
    tried = {options.kind for options in policies_to_try(both)}
    assert "confidence" in tried
    assert "structure" not in tried
    message = "has exits in its decoder, whose depths are tried here; for its encoder use depthwise evaluate"
    with pytest.raises(InputError, match=message):
        sweep(both, "test", examples, policies=[StructureExitConfig()])
    with pytest.raises(InputError, match=message):
        calibrate(both, "test", examples * 5, Goal(depth_budget=1.5), policy=StructureExitConfig())
    found = calibrate(both, "test", examples * 5, Goal(depth_budget=1.5), policy=ConfidenceConfig(threshold=(0.5,)))
    assert (found.full_depth, found.depth_of) == (2, None)
