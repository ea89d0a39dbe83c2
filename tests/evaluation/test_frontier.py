"""The frontier: what is tried, and that its points are what evaluations of the same settings are."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import (
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    TokenExitConfig,
    UniformExitConfig,
)
from depthwise.depth import build_policy
from depthwise.errors import CheckpointError, InputError
from depthwise.evaluation import (
    Frontier,
    Run,
    by_policy,
    chosen_policy,
    evaluate_run,
    evaluation_of,
    frontier,
    load_run,
    policies_to_try,
    read_examples,
    setting_of,
    sweep,
    write_frontier,
)

MakeRun = Callable[..., Path]
FIELDS = {"policy", "setting", "quality", "mean_depth", "token_layers", "flops", "seconds"}


def swept(run: Run, *beside: Run) -> Frontier:
    return sweep(run, "test", read_examples(run.task, "test"), beside)


def tried(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The settings of each policy."""
    found: dict[str, list[dict[str, Any]]] = {}
    for options in policies_to_try(run):
        found.setdefault(options.kind, []).append(setting_of(options))
    return found


def thresholds(run: Run, options: PolicyConfig) -> list[Any]:
    """Those at which a learned policy is tried."""
    sizes = run.model.config.options
    run.model.trained_policy = build_policy(options, width=sizes.width, exits=sizes.exit_depths)
    return [setting.get("threshold") for setting in tried(run)[options.kind]]


@pytest.mark.parametrize("kind", ["classes", "tags", "text"])
def test_points_are_evaluations(make_run: MakeRun, kind: str) -> None:
    """Every one, fixed depths and policies."""
    folder = make_run(f"leaving {kind}")
    run = load_run(folder, device="cpu")
    found = swept(run)
    assert [point.setting for point in found.points[:4]] == [{"depth": depth} for depth in (1, 2, 3, 4)]
    for point in found.points:
        given = [f"policy.{name}={value}" for name, value in {"kind": point.policy, **point.setting}.items()]
        changed = by_policy(run, chosen_policy(run.model, folder, given))
        expected = evaluation_of(changed, "test", read_examples(run.task, "test"))
        assert point.quality == expected.value
        assert (point.mean_depth, point.token_layers, point.flops) == (
            *(expected.mean_depth, expected.token_layers),
            expected.flops,
        )
        assert point.seconds > 0


def test_the_full_model_has_no_policy(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, policies = load_run(make_run("leaving classes"), device="cpu"), []
    outcome_of = frontier.outcome_of

    def watched(each: Run, *arguments: Any, **options: Any) -> Any:
        policies.append(each.policy)
        return outcome_of(each, *arguments, **options)

    monkeypatch.setattr(frontier, "outcome_of", watched)
    found = swept(run)
    assert policies[:4] == [*(FixedDepthConfig(depth=depth) for depth in (1, 2, 3)), None]
    assert found.full is found.points[3]
    assert found.full.quality == evaluation_of(by_policy(run, None), "test", read_examples(run.task, "test")).value


def test_a_translation(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    policies: list[PolicyConfig] = [FixedDepthConfig(depth=2), FixedDepthConfig(depth=4), PatienceConfig(patience=1)]
    monkeypatch.setattr(frontier, "policies_to_try", lambda run: policies)
    folder, changes = make_run("leaving translation"), ["generation.num_beams=1", "evaluation.batch_rows=1"]
    found = swept(load_run(folder, changes, device="cpu"))
    expected = evaluate_run(load_run(folder, changes, device="cpu", depth=2), "test")
    assert found.points[0].quality == expected.value
    assert found.points[0].token_layers == expected.token_layers
    assert found.settings["generation"]["num_beams"] == 1
    assert found.batch_rows == 1
    assert 1 < (found.points[2].mean_depth or 0) <= 4


def test_the_file(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving text"), ["evaluation.metrics=[perplexity]"], device="cpu")
    numbers, plot = write_frontier(run.folder, swept(run))
    content = json.loads(numbers.read_text())
    assert (numbers.name, plot.name) == ("frontier.json", "frontier.png")
    assert (content["schema"], content["metric"], content["higher_is_better"]) == (1, "perplexity", False)
    assert (content["num_layers"], content["exits"], content["examples"]) == (4, [1, 2, 3, 4], 3)
    assert content["settings"].keys() == {"precision", "generation", "limits"}
    assert all(point.keys() == FIELDS for point in content["points"])
    assert {point["policy"] for point in content["points"]} == {"fixed", "confidence", "patience"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_is_tried(make_run: MakeRun) -> None:
    classes = tried(load_run(make_run("leaving classes"), device="cpu"))
    assert classes["fixed"] == [{"depth": depth} for depth in (1, 2, 3, 4)]
    by_measure = {setting["measure"]: [] for setting in classes["confidence"]}
    for setting in classes["confidence"]:
        by_measure[setting["measure"]].append(setting["threshold"])
    assert by_measure == {
        "max_probability": [0.7, 0.8, 0.9, 0.95, 0.99],  # one of two classes always has a half
        "saturation": [0.8, 0.9, 0.95, 0.98, 0.99],
    }
    assert classes["patience"] == [{"patience": 1}, {"patience": 2}]
    translation = tried(load_run(make_run("leaving translation"), device="cpu"))
    assert translation["confidence"][0] == {"measure": "max_probability", "threshold": 0.3}
    margins = [setting["threshold"] for setting in translation["confidence"] if setting["measure"] == "margin"]
    assert margins == [0.1, 0.3, 0.5, 0.7, 0.9]
    numbers = tried(load_run(make_run("leaving numbers"), device="cpu"))
    assert {setting["measure"] for setting in numbers["confidence"]} == {"saturation"}
    assert not any("uniform" in found for found in (classes, translation, numbers)), "lots are drawn where asked for"


def test_policies_of_ones_own_beside_all_fixed_depths(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving classes"), device="cpu")
    found = sweep(run, "test", read_examples(run.task, "test"), policies=[PatienceConfig(patience=1)])
    assert [point.policy for point in found.points] == ["fixed"] * 4 + ["patience"]
    assert found.full is found.points[3]
    every = [*policies_to_try(run), UniformExitConfig(seed=2), FixedDepthConfig(depth=2)]
    found = sweep(run, "test", read_examples(run.task, "test"), policies=every)
    assert len(found.points) == len(every) - 1
    assert (found.points[-1].policy, found.points[-1].setting) == ("uniform", {"seed": 2})


def test_the_cheapest_of_those_that_are_as_good(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving classes"), device="cpu")
    frontier = sweep(run, "test", read_examples(run.task, "test"), policies=[PatienceConfig(patience=1)])

    def cheapest(*qualities: float | None, policy: str = "patience", **changes: Any) -> Any:
        """That of four fixed depths and one that is 2.5 blocks deep."""
        depths = (1.0, 2.0, 3.0, 4.0, 2.5)
        points = [
            replace(point, quality=quality, mean_depth=depth)
            for point, quality, depth in zip(frontier.points, qualities, depths, strict=True)
        ]
        points[-1] = replace(points[-1], policy=policy)
        found = replace(frontier, points=tuple(points), **changes).cheapest
        return None if found is None else found.mean_depth

    assert cheapest(50, 60, 90, 90, 90) == 2.5
    assert cheapest(50, 90, 90, 90, 90) == 2.0
    assert cheapest(50, 60, 90, 90, 89.9) == 3.0
    assert cheapest(50, 60, 70, 90, 80) is None
    assert cheapest(50, 60, 70, 90, 95) == 2.5
    assert cheapest(50, 60, 70, 90, 95, policy="separate") is None
    assert cheapest(None, 60, 70, 90, None) is None
    assert cheapest(50, 60, 70, None, 90) is None
    assert cheapest(50, 40, 30, 30, 35, higher_is_better=False) == 3.0


def test_one_exit_below_the_end(make_run: MakeRun) -> None:
    """There is nothing that it could be compared with."""
    run = load_run(make_run("leaving classes"), device="cpu")
    run.model.config.exits["depths"] = [2]
    found = tried(run)
    assert found.keys() == {"fixed", "confidence"}
    assert {setting["measure"] for setting in found["confidence"]} == {"max_probability"}


def test_the_own_policy_is_tried_around_its_threshold(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving translation"), device="cpu")
    grid = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert thresholds(run, PoissonBinomialConfig()) == grid
    assert thresholds(run, PoissonBinomialConfig(threshold=0.95)) == [*grid, 0.95]
    assert thresholds(run, PoissonBinomialConfig(decision="sample")) == [None]
    assert thresholds(run, LearnedConfidenceConfig(threshold=(0.95, 0.5, 0.5))) == [*grid, [0.95, 0.5, 0.5]]
    assert thresholds(run, TokenExitConfig()) == [None]


def test_a_learned_policy_is_swept_by_its_weights(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chances of leaving of 0.27 at the first exit and of 0.73 at the others: strict thresholds go deeper."""
    run = load_run(make_run("leaving tags"), device="cpu")
    policy = build_policy(PoissonBinomialConfig(), width=16, exits=(1, 2, 3, 4))
    for classifier, bias in zip(policy.classifiers, (-1.0, 1.0, 1.0), strict=True):  # type: ignore[arg-type]
        torch.nn.init.zeros_(classifier.weight)
        torch.nn.init.constant_(classifier.bias, bias)
    run.model.trained_policy = policy
    monkeypatch.setattr(frontier, "_untrained", lambda run, num_exits: [])
    found = {point.setting["threshold"]: point.mean_depth for point in swept(run).points[4:]}
    assert found == {0.1: 1, 0.2: 1, 0.3: 2, 0.4: 2, 0.5: 2, 0.6: 2, 0.7: 2, 0.8: 4, 0.9: 4}


def test_a_policy_that_the_configuration_names_is_tried_once(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving classes"), device="cpu")
    run.model.config.policy = {"kind": "confidence", "threshold": 0.9}
    policies = policies_to_try(run)
    assert policies.count(ConfidenceConfig(threshold=(0.9,))) == 1


def test_models_that_were_trained_by_themselves(make_run: MakeRun) -> None:
    run, shallow = (load_run(make_run(kind), device="cpu") for kind in ("leaving classes", "classes"))
    found = swept(run, shallow)
    point, expected = found.points[-1], evaluate_run(shallow, "test")
    assert (point.policy, point.setting) == ("separate", {"run": str(shallow.folder), "depth": 2})
    assert (point.quality, point.mean_depth, point.flops) == (expected.value, 2.0, expected.flops)
    assert found.full.setting == {"depth": 4}


def test_runs_that_do_not_go_together(make_run: MakeRun) -> None:
    run, other = (load_run(make_run(kind), device="cpu") for kind in ("leaving classes", "translation"))
    with pytest.raises(CheckpointError, match="is a run of translation, not of text_classification"):
        swept(run, other)
    other = load_run(make_run("classes"), ["evaluation.metrics=[f1_macro]"], device="cpu")
    message = (
        r"classes-1 is judged by f1_macro, not by accuracy; name one for all with evaluation.metrics=\[accuracy\]$"
    )
    with pytest.raises(InputError, match=message):
        swept(run, other)


def test_a_run_without_exits(make_run: MakeRun) -> None:
    message = r"has no exits to leave at, so that there is nothing to sweep; train a run with model.exits$"
    with pytest.raises(InputError, match=message):
        swept(load_run(make_run("classes"), device="cpu"))


def test_an_interruption_leaves_the_policy_as_it_was(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = by_policy(load_run(make_run("leaving classes"), device="cpu"), PatienceConfig(patience=1))

    def interrupted(each: Run, *_: Any, **__: Any) -> None:
        assert each.policy == FixedDepthConfig(depth=1)
        raise KeyboardInterrupt

    monkeypatch.setattr(frontier, "outcome_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swept(run)
    assert run.model.policy is not None
    assert run.model.policy.options == PatienceConfig(patience=1)


def test_qualities_that_are_not_finite(make_run: MakeRun) -> None:
    run = load_run(make_run("leaving classes"), device="cpu")
    found = swept(run)
    written = replace(found, points=(replace(found.points[0], quality=None), *found.points[1:]))
    numbers, _ = write_frontier(run.folder, written)
    assert json.loads(numbers.read_text())["points"][0]["quality"] is None
