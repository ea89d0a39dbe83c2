"""Whether promises are kept: how often a promised risk is exceeded, and what calibrated settings do on other data.

    python benchmarks/promises.py runs/mine --risk 0.05 --confidence 0.05
    python benchmarks/promises.py runs/mine --quality-drop 0.5 1
    python benchmarks/promises.py runs/mine --settings
    python benchmarks/promises.py runs/mine policy.kind=confidence policy.measure=margin --risk 0.01 0.02 --examples 500

The loss of every example against full depth is measured once, at every threshold that ``depthwise calibrate --risk``
would walk. The examples of all splits make one pool, from which calibration sets are drawn without replacement. On
each, the walk of ``calibrate`` chooses; the risk of its choice is then the mean loss over the rest of the pool, and a
promise is broken where that exceeds δ. This may happen in a share ε of the sets. The rest is itself a sample, and fares
worse where the calibration set was lucky; the mean over the whole pool, of which the promise speaks, stands beside it.

"no bound" is the control: the threshold of least depth whose mean loss on the calibration set is at most δ.

With ``--quality-drop``, the walk looks for the least depth that loses at most so many points on a calibration set, as
``depthwise calibrate --quality-drop`` does, without and with ``--sure``; how much is lost on the rest is counted.

With ``--settings``, every calibrated setting of the run is evaluated on the splits, by default on test data, and each
part of its promise is told beside what became of it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from depthwise.data import Example
from depthwise.errors import DepthwiseError, InputError
from depthwise.evaluation import (
    CalibratedSetting,
    Goal,
    Run,
    Trial,
    Trials,
    by_policy,
    load_run,
    parted,
    policy_asked_for,
    read_examples,
    read_settings,
    setting_named,
    strict_to_bold,
)
from depthwise.evaluation.calibrating import FEWEST_EXAMPLES, RISKS, check_calibratable
from depthwise.evaluation.evaluating import settings as current_settings
from depthwise.evaluation.trials import said
from depthwise.metrics import Comparison
from depthwise.metrics.risk import P_VALUES, binomial_interval, furthest_passing

NO_BOUND = "no bound"
BEST = "bentkus"
"""The bound that takes the fewest examples."""
LEVEL = 0.95
"""Of the interval around a rate."""
Losses = npt.NDArray[np.float64]
Choose = Callable[[Losses, int], int | None]
"""From mean losses on so many examples, strict thresholds first, to the place of the chosen one."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Losses of every example at every threshold, from the strictest to the boldest, and how deep tokens ran."""

    names: tuple[str, ...]
    losses: Losses
    """(thresholds, examples)"""
    depths: tuple[float, ...]
    full_depth: int


@dataclass(frozen=True, kw_only=True)
class Kept:
    """How often promises that were made by one bound were broken."""

    bound: str
    risk: float
    confidence: float
    resamples: int
    examples: int
    broken: int
    """Choices whose mean loss over the rest of the pool exceeds the risk."""
    broken_on_pool: int
    """Choices whose mean loss over the whole pool does."""
    nothing: int
    """Sets on which nothing that saves depth could be promised."""
    mean_depth: float | None
    """Of what was chosen."""
    mean_loss: float | None
    """Of what was chosen, over the rest."""

    @property
    def rate(self) -> float:
        return self.broken / self.resamples

    @property
    def interval(self) -> tuple[float, float]:
        return binomial_interval(self.broken, self.resamples, LEVEL)

    def as_dict(self) -> dict[str, Any]:
        """As plain data, with the rate and its interval."""
        return {**asdict(self), "rate": self.rate, "interval": self.interval}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One part of what a setting was calibrated for, and what became of it."""

    setting: str
    what: str
    at_most: float
    calibrated: float | None
    found: float
    was_met: bool
    """On the data of the calibration; else nothing was promised."""

    @property
    def is_kept(self) -> bool:
        return self.found <= self.at_most + 1e-9


# How often a promise is broken


def measured(run: Run, examples: Sequence[Example], changes: Sequence[str], of: str) -> Measured:
    """The losses that ``depthwise calibrate --risk`` looks at, for all thresholds of its walk."""
    sequence = strict_to_bold(run, policy_asked_for(run, changes))
    try:
        trials = Trials(run, examples)
        found = [trials.of(options) for options in sequence]
        return Measured(
            names=tuple(map(said, sequence)),
            losses=np.stack([trials.losses(trial, of) for trial in found]),
            depths=tuple(trial.mean_depth for trial in found),
            full_depth=trials.full_depth,
        )
    finally:
        by_policy(run, run.policy)


def choosers(known: Measured, risk: float, confidence: float) -> dict[str, Choose]:
    """The walk by each bound, and the choice that trusts the mean."""

    def walk(bound: str) -> Choose:
        return lambda means, num: furthest_passing(means.tolist(), num, risk, confidence, bound)

    def trusting(means: Losses, num: int) -> int | None:
        return min(np.flatnonzero(means <= risk).tolist(), key=lambda place: known.depths[place], default=None)

    return {**{bound: walk(bound) for bound in P_VALUES}, NO_BOUND: trusting}


def resampled(known: Measured, risk: float, confidence: float, examples: int, resamples: int, seed: int) -> list[Kept]:
    """What each way to choose makes of the same calibration sets."""
    ways = choosers(known, risk, confidence)
    picked: dict[str, list[tuple[int, float]]] = {bound: [] for bound in ways}
    generator, over_pool = np.random.default_rng(seed), known.losses.mean(1)
    for _ in range(resamples):
        order = generator.permutation(known.losses.shape[1])
        means, rest = known.losses[:, order[:examples]].mean(1), known.losses[:, order[examples:]].mean(1)
        for bound, choose in ways.items():
            place = choose(means, examples)
            if place is not None and known.depths[place] < known.full_depth:
                picked[bound].append((place, float(rest[place])))
    return [
        Kept(
            bound=bound,
            risk=risk,
            confidence=confidence,
            resamples=resamples,
            examples=examples,
            broken=sum(loss > risk for _, loss in found),
            broken_on_pool=sum(bool(over_pool[place] > risk) for place, _ in found),
            nothing=resamples - len(found),
            mean_depth=float(np.mean([known.depths[place] for place, _ in found])) if found else None,
            mean_loss=float(np.mean([loss for _, loss in found])) if found else None,
        )
        for bound, found in picked.items()
    ]


def check_sizes(pool: int, examples: int) -> None:
    """Raises an error where no calibration set of that size leaves enough behind to judge it by."""
    if not FEWEST_EXAMPLES <= examples <= pool - FEWEST_EXAMPLES:
        raise InputError(
            f"calibration sets of {examples:,} examples cannot be drawn from {pool:,}; give --examples from "
            f"{FEWEST_EXAMPLES} to {FEWEST_EXAMPLES} fewer than there are, or more --splits"
        )


# How often a budget of quality is exceeded


@dataclass(frozen=True, kw_only=True)
class Exceeded:
    """How often more was lost on the rest of the pool than on calibration sets, where that was within the budget."""

    quality_drop: float
    sure: bool
    resamples: int
    examples: int
    exceeded: int
    nothing: int
    """Sets on which nothing that saves depth kept to the budget."""
    mean_depth: float | None
    """Of what was chosen."""
    mean_lost: float | None
    """Of what was chosen, over the rest."""


def resampled_drops(
    trials: Trials, known: Sequence[Trial], drop: float, examples: int, resamples: int, seed: int
) -> list[Exceeded]:
    """What becomes of the shallowest setting that loses at most so much on a calibration set."""
    generator, pool = np.random.default_rng(seed), len(trials.examples)
    by_depth = sorted((trial for trial in known if trials.leaves(trial)), key=lambda trial: trial.mean_depth)
    picked: dict[bool, list[tuple[Trial, float]]] = {False: [], True: []}
    for _ in range(resamples):
        order = generator.permutation(pool).tolist()
        drawn, rest = order[:examples], order[examples:]
        missing = {False, True}
        for trial in by_depth:
            found = _compared(trials, trial, drawn)
            for sure in [sure for sure in missing if -(found.low if sure else found.difference) <= drop + 1e-9]:
                picked[sure].append((trial, -_compared(trials, trial, rest).difference))
                missing.remove(sure)
            if not missing:
                break
    return [
        Exceeded(
            quality_drop=drop,
            sure=sure,
            resamples=resamples,
            examples=examples,
            exceeded=sum(lost > drop + 1e-9 for _, lost in found),
            nothing=resamples - len(found),
            mean_depth=float(np.mean([trial.mean_depth for trial, _ in found])) if found else None,
            mean_lost=float(np.mean([lost for _, lost in found])) if found else None,
        )
        for sure, found in picked.items()
    ]


def _compared(trials: Trials, trial: Trial, places: Sequence[int]) -> Comparison:
    """A setting beside full depth on some of the examples."""
    ours, full = trial.outcome.predictions, trials.full.outcome.predictions
    return trials.run.task.compare(
        [ours[place] for place in places],
        [full[place] for place in places],
        [trials.examples[place] for place in places],
    )


# What calibrated settings do on other data


def promises(run: Run, examples: Sequence[Example]) -> list[Promise]:
    """Every part of the goal of every calibrated setting of a run, and what it is on these examples."""
    kept = read_settings(run.folder)
    if not kept:
        raise InputError(
            f"{run.folder} has no calibrated settings; make one: depthwise calibrate {run.folder} --quality-drop 0.5"
        )
    policies = {name: setting_named(run.folder, name) for name in kept}
    for name, setting in kept.items():
        check_same_options(run, name, setting)
    try:
        trials = Trials(run, examples)
        return [
            Promise(setting=name, what=what, at_most=at_most, calibrated=before, found=now, was_met=setting.budget_met)
            for name, setting in kept.items()
            for what, at_most, before, now in _parts(trials, trials.of(policies[name]), setting)
        ]
    finally:
        by_policy(run, run.policy)


def _parts(
    trials: Trials, trial: Trial, setting: CalibratedSetting
) -> Iterator[tuple[str, float, float | None, float]]:
    """What was promised, at most how much of it, how much it was then, and how much it is now."""
    goal = Goal(**setting.goal)
    if goal.quality_drop is not None:
        lost = None
        if setting.quality is not None and setting.full_quality is not None:
            lost = trials.sign * (setting.full_quality - setting.quality)
        yield f"{trials.metric} lost", goal.quality_drop, lost, trials.lost(trial)
    if goal.depth_budget is not None:
        yield "mean depth", goal.depth_budget, setting.mean_depth, trial.mean_depth
    if goal.risk is not None:
        then = None if setting.risk is None else setting.risk["mean_loss"]
        yield f"risk of {goal.of}", goal.risk, then, float(trials.losses(trial, goal.of).mean())


def check_same_options(run: Run, name: str, setting: CalibratedSetting) -> None:
    """Raises an error where a setting was calibrated with other options of the search or other limits."""
    ours = json.loads(json.dumps(current_settings(run.task, run.precision)))
    other = [option for option in ours if ours[option] != setting.settings.get(option)]
    if other:
        raise InputError(
            f'the setting "{name}" was calibrated with another {" and ".join(other)}; give the changes that '
            "depthwise calibrate was given, as KEY=VALUE"
        )


# On the command line


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed(arguments)
    console = Console(width=120, highlight=False, markup=False)
    changes, of_policy = parted(options.changes)
    disable_progress_bar()
    try:
        run = load_run(options.run, changes, options.device)
        pool = [example for split in options.splits for example in read_examples(run.task, split)]
        console.print(f"{options.run}, {' and '.join(options.splits)}: {len(pool):,} examples")
        if options.settings:
            found = _of_settings(run, pool, console)
        elif options.quality_drop:
            found = _of_drops(run, pool, of_policy, options, console)
        else:
            found = _of_risk(run, pool, of_policy, options, console)
    except DepthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        told = {"run": str(options.run), "changes": options.changes, "splits": options.splits, "pool": len(pool)}
        options.json.write_text(json.dumps({**told, **found}, indent=1) + "\n", encoding="utf-8")
    return 0


def _of_risk(
    run: Run, pool: Sequence[Example], changes: Sequence[str], options: argparse.Namespace, console: Console
) -> dict[str, Any]:
    examples = len(pool) // 2 if options.examples is None else options.examples
    check_sizes(len(pool), examples)
    for risk in options.risk:
        check_calibratable(run, examples, Goal(risk=risk, confidence=options.confidence, of=options.of, bound=BEST))
    known = measured(run, pool, changes, options.of)
    means = known.losses.mean(1)
    table = Table("strict to bold", "mean loss", "mean depth", title=f"of {known.full_depth} blocks, over the pool")
    for name, mean, depth in zip(known.names, means, known.depths, strict=True):
        table.add_row(name, f"{mean:.4f}", f"{depth:.2f}")
    console.print(table)
    found = [
        kept
        for risk in options.risk
        for kept in resampled(known, risk, options.confidence, examples, options.resamples, options.seed)
    ]
    table = Table(
        *("δ", "chosen by", "broken", f"{LEVEL:.0%} interval", "ε", "broken on pool", "nothing promised"),
        *("mean depth", "mean loss"),
        title=f"{options.resamples} calibration sets of {examples:,}, each judged on {len(pool) - examples:,} others",
    )
    for kept in found:
        low, high = kept.interval
        table.add_row(
            *(f"{kept.risk:g}", kept.bound, f"{kept.rate:.1%}", f"{low:.1%} to {high:.1%}", f"{kept.confidence:.1%}"),
            *(f"{kept.broken_on_pool / kept.resamples:.1%}", f"{kept.nothing / kept.resamples:.1%}"),
            *(
                "" if value is None else f"{value:.{digits}f}"
                for value, digits in ((kept.mean_depth, 2), (kept.mean_loss, 4))
            ),
        )
    console.print(table)
    sequence = [
        {"policy": name, "mean_loss": float(mean), "mean_depth": depth}
        for name, mean, depth in zip(known.names, means, known.depths, strict=True)
    ]
    return {"of": options.of, "seed": options.seed, "sequence": sequence, "kept": [each.as_dict() for each in found]}


def _of_drops(
    run: Run, pool: Sequence[Example], changes: Sequence[str], options: argparse.Namespace, console: Console
) -> dict[str, Any]:
    examples = len(pool) // 2 if options.examples is None else options.examples
    check_sizes(len(pool), examples)
    for drop in options.quality_drop:
        check_calibratable(run, examples, Goal(quality_drop=drop, sure=True))
    try:
        trials = Trials(run, pool)
        known = [trials.of(policy) for policy in strict_to_bold(run, policy_asked_for(run, changes))]
    finally:
        by_policy(run, run.policy)
    table = Table(
        *("at most lost", "--sure", "exceeded", f"{LEVEL:.0%} interval", "nothing found", "mean depth", "mean lost"),
        title=f"{options.resamples} calibration sets of {examples:,}, each judged on {len(pool) - examples:,} others",
    )
    found = [
        each
        for drop in options.quality_drop
        for each in resampled_drops(trials, known, drop, examples, options.resamples, options.seed)
    ]
    for each in found:
        low, high = binomial_interval(each.exceeded, each.resamples, LEVEL)
        table.add_row(
            *(f"{each.quality_drop:g} {run.task.compared_by}", "yes" if each.sure else "no"),
            *(f"{each.exceeded / each.resamples:.1%}", f"{low:.1%} to {high:.1%}"),
            f"{each.nothing / each.resamples:.1%}",
            *("" if value is None else f"{value:.2f}" for value in (each.mean_depth, each.mean_lost)),
        )
    console.print(table)
    return {"seed": options.seed, "drops": [asdict(each) for each in found]}


def _of_settings(run: Run, pool: Sequence[Example], console: Console) -> dict[str, Any]:
    found = promises(run, pool)
    table = Table("setting", "promise", "at most", "calibrated", "here", "kept")
    for each in found:
        verdict = ("yes" if each.is_kept else "NO") if each.was_met else "nothing was promised"
        then = "" if each.calibrated is None else f"{each.calibrated:.4f}"
        table.add_row(each.setting, each.what, f"{each.at_most:g}", then, f"{each.found:.4f}", verdict)
    console.print(table)
    return {"promises": [{**asdict(each), "is_kept": each.is_kept} for each in found]}


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="as depthwise calibrate takes them")
    parser.add_argument("--settings", action="store_true", help="evaluate the calibrated settings of the run")
    parser.add_argument(
        "--splits", nargs="+", choices=["train", "valid", "test"], help="test and valid, or test alone with --settings"
    )
    parser.add_argument("--quality-drop", type=float, nargs="+", metavar="X", help="points, in the place of risks")
    parser.add_argument("--risk", type=float, nargs="+", default=[0.05], metavar="δ", help="one or several; 0.05")
    parser.add_argument("--confidence", type=float, default=0.05, metavar="ε", help="0.05")
    parser.add_argument("--of", choices=RISKS, default=RISKS[0], help="what a loss is, as --risk-of of calibrate")
    parser.add_argument("--resamples", type=int, default=200, metavar="N", help="calibration sets; 200")
    parser.add_argument("--examples", type=int, metavar="N", help="of a calibration set; half of the pool")
    parser.add_argument("--seed", type=int, default=1, help="of the draws; 1")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there too")
    options = parser.parse_args(arguments)
    if options.splits is None:
        options.splits = ["test"] if options.settings else ["test", "valid"]
    if options.resamples < 1:
        parser.error("--resamples takes at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
