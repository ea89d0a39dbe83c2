"""``depthwise calibrate``: the setting of a run that keeps to a budget, or to a promise, found on validation data."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from depthwise.cli.run_arguments import (
    Device,
    DeviceOption,
    Precision,
    PrecisionOption,
    Split,
    paths_and_changes,
    quieten,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from depthwise.evaluation import CalibratedSetting, Goal


SURELY = ", also at the lower end of the 95 % interval"


class RiskOf(StrEnum):
    answers = "answers"
    quality = "quality"


class Bound(StrEnum):
    hoeffding = "hoeffding"
    bentkus = "bentkus"


def calibrate(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="A run folder, changes such as generation.num_beams=1, and policy.kind=confidence and the like to "
            "look at one policy alone.",
            metavar="RUN [KEY=VALUE...]",
        ),
    ],
    quality_drop: Annotated[
        float | None,
        typer.Option(help="Lose at most X points of the quoted metric, at the least mean depth.", metavar="X", min=0),
    ] = None,
    sure: Annotated[
        bool,
        typer.Option(
            "--sure",
            help="Keep to the quality drop at the lower end of its 95 % interval too (paired bootstrap).",
        ),
    ] = False,
    beside: Annotated[
        str | None,
        typer.Option("--beside", help="Lose it against this run at full depth, not the same one.", metavar="RUN"),
    ] = None,
    depth_budget: Annotated[
        float | None,
        typer.Option(help="Run at most Y blocks in the mean, at the best quality.", metavar="Y", min=0),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(help="Promise an expected loss per example of at most this share.", metavar="DELTA"),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            help="The chance with which the promise may be broken: 0.05 is 95 % confidence.", metavar="EPSILON"
        ),
    ] = 0.05,
    risk_of: Annotated[
        RiskOf,
        typer.Option(help="A loss is how far answers are from the full model's, or by how much they are worse."),
    ] = RiskOf.answers,
    bound: Annotated[Bound, typer.Option(help="Which bound the promise rests on.")] = Bound.hoeffding,
    vectors: Annotated[
        int, typer.Option(help="Also try N random thresholds, one for each exit.", metavar="N", min=0)
    ] = 0,
    temperatures: Annotated[
        bool,
        typer.Option("--temperatures", help="First find a temperature for each exit, so that it is as sure as right."),
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="What the setting is called from now on, as --depth NAME.")
    ] = None,
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = Split.valid,
    limit: Annotated[int | None, typer.Option(help="Take only the first N examples.", metavar="N", min=1)] = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = Precision.fp32,
) -> None:
    """Choose where tokens leave so that a budget is kept, and keep the setting in RUN/calibration.json.

    Thresholds of the run's own policy and of those that need no training are tried on validation data. With --risk, the
    setting comes with a promise (Learn then Test, as in CALM): on new examples of the same kind the expected loss stays
    below the risk, but for a chance of --confidence. Where nothing reaches the goal, the closest setting is kept and
    said to have missed it. evaluate and predict take the setting as --depth NAME.
    """
    folders, given = paths_and_changes(arguments)
    if len(folders) != 1:
        raise typer.BadParameter("name the folder of one run", param_hint="RUN")

    from depthwise.evaluation import (
        Goal,
        fitted_temperatures,
        load_run,
        parted,
        policy_asked_for,
        read_examples,
        write_setting,
    )
    from depthwise.evaluation import calibrate as calibrated
    from depthwise.evaluation.calibrated import check_name

    goal = Goal(
        quality_drop=quality_drop,
        sure=sure,
        beside=beside,
        depth_budget=depth_budget,
        risk=risk,
        confidence=confidence,
        of=risk_of.value,
        bound=bound.value,
    )
    called = _usual_name(goal) if name is None else name
    check_name(called)
    changes, of_policy = parted(given)
    if any(change.startswith("policy.threshold") for change in of_policy):
        raise typer.BadParameter("thresholds are what is looked for; leave policy.threshold out", param_hint="RUN")
    if temperatures and risk is not None:
        raise typer.BadParameter(
            "temperatures that were fitted on the data of a promise would break it; leave them out", param_hint="--risk"
        )
    quieten()
    folder = Path(folders[0])
    run = load_run(folder, changes, device.value, precision.value)
    other = None if beside is None else load_run(beside, changes, device.value, precision.value)
    policy = policy_asked_for(run, of_policy)
    examples = read_examples(run.task, split.value)[:limit]
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{folder}, {split.value}: {len(examples):,} examples")
    fitted: tuple[float, ...] = ()
    if temperatures:
        fitted = fitted_temperatures(run, split.value)
        console.print(f"temperatures of exits: {', '.join(f'{each:.2f}' for each in fitted)}")
    found = calibrated(
        *(run, split.value, examples, goal),
        policy=policy,
        vectors=vectors,
        temperatures=fitted,
        say=console.print,
        beside=other,
    )
    path = write_setting(folder, called, found)
    for line in in_sentences(found, called, folder):
        console.print(line)
    console.print(f"kept in {path}; use it: depthwise evaluate {folder} --depth {called}")


def _usual_name(goal: "Goal") -> str:
    if goal.quality_drop is not None:
        return f"drop-{goal.quality_drop:g}{'-sure' * goal.sure}"
    return f"depth-{goal.depth_budget:g}" if goal.depth_budget is not None else f"risk-{goal.risk:g}"


def _how(goal: "Mapping[str, Any]") -> str:
    against = f" against {goal['beside']}" if "beside" in goal else ""
    return against + SURELY * ("sure" in goal)


def in_sentences(found: "CalibratedSetting", name: str, folder: Path) -> list[str]:
    """What was found, and whether it is what was asked for."""
    from depthwise.evaluation import in_words, setting_of

    options, quality = found.options, "not finite" if found.quality is None else f"{found.quality:.2f}"
    full = "not finite" if found.full_quality is None else f"{found.full_quality:.2f}"
    said = ", ".join(text for text in (options.kind, in_words(setting_of(options))) if text)
    depth = "depth" if found.depth_of is None else f"{found.depth_of} depth"
    lines = [
        f"{name}: {said}",
        f"  {found.metric} {quality} at a mean {depth} of {found.mean_depth:.2f}; "
        f"full depth {found.full_depth}: {full}; {found.flops / max(1, found.full_flops):.2f} of its operations",
    ]
    if found.risk is not None:
        lines.append(
            f"  mean loss {found.risk['mean_loss']:.4f} on {found.examples:,} examples, p = {found.risk['p_value']:.4f}"
        )
    goal = found.goal
    asked = ", ".join(
        text
        for name, text in (
            ("quality_drop", f"at most {goal.get('quality_drop', 0):g} lost{_how(goal)}"),
            ("depth_budget", f"at most {goal.get('depth_budget', 0):g} blocks in the mean"),
            ("risk", f"a risk of at most {goal.get('risk', 0):g} but for a chance of {goal.get('confidence', 0):g}"),
        )
        if name in goal
    )
    if found.budget_met:
        return [*lines, f"  the goal is met: {asked}"]
    return [*lines, f"  the goal was NOT met ({asked}); this is the setting that comes closest"]
