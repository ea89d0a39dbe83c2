"""Choosing where tokens leave, on validation data: by a budget of quality or of depth, and with a promise about risk.

A budget is searched for in three steps: the settings of a sweep; halving the gap between the last threshold that meets
the budget and the first that does not; and, where asked for, random thresholds of their own for every exit around the
best one found so far. The setting that is best on the data at hand is a little worse on other data; ``sure`` asks that
the quality is kept on data that is drawn anew from these examples as well (paired bootstrap).

A promise (``risk``) is more careful. It is about one policy, whose thresholds are walked from the strictest downwards
until the first that fails (``metrics.risk``). All that passed may be promised at once, so that a budget may choose
among them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np

from depthwise.config import ConfidenceConfig, PolicyConfig, StructureExitConfig, policy_dict
from depthwise.data import Example
from depthwise.errors import InputError
from depthwise.evaluation.calibrated import CalibratedSetting
from depthwise.evaluation.comparing import check_comparable
from depthwise.evaluation.evaluating import settings
from depthwise.evaluation.frontier import policies_to_try
from depthwise.evaluation.likeness import check_has_likeness
from depthwise.evaluation.results import examples_digest, finite, weights_digest
from depthwise.evaluation.runs import Run, by_policy
from depthwise.evaluation.thresholds import (
    WITH_VECTORS,
    family_of,
    is_of,
    strict_to_bold,
    threshold_of,
    threshold_range,
    with_temperatures,
    with_threshold,
)
from depthwise.evaluation.trials import Say, Trial, Trials
from depthwise.metrics.risk import P_VALUES, check_levels, fewest_examples, furthest_passing

FEWEST_EXAMPLES = 20
"""A budget that is met on fewer says nothing about others."""
NUM_HALVINGS = 5
SPREAD = 0.15
"""Deviation of random thresholds from those that they start from."""
RISKS = ("answers", "quality")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is asked for: at most so much quality lost, or so many blocks in the mean, or so much risk, or two of them.

    ``sure`` asks that no more quality is lost at the lower end of its 95 % interval either. ``beside`` names a run
    against which it is lost; none means the full depth of the run itself.
    ``risk`` is δ, ``confidence`` is ε: the expected loss exceeds δ with a chance of ε at most. The loss of an example
    is how far its answer is from that of the full model (``of`` answers), or by how much it is worse (``of`` quality).
    """

    quality_drop: float | None = None
    depth_budget: float | None = None
    risk: float | None = None
    confidence: float = 0.05
    of: str = "answers"
    bound: str = "hoeffding"
    sure: bool = False
    beside: str | None = None

    def __post_init__(self) -> None:
        if self.quality_drop is None and self.depth_budget is None and self.risk is None:
            raise InputError("say what to calibrate for: a quality drop, a depth budget or a risk")
        if self.quality_drop is not None and self.depth_budget is not None:
            raise InputError("a quality drop and a depth budget are two goals; give one of them")
        if self.quality_drop is not None and not self.quality_drop >= 0:
            raise InputError(f"a quality drop of {self.quality_drop:g} is none; give 0 or more")
        if self.sure and self.quality_drop is None:
            raise InputError("what one can be sure of is a quality drop; give one")
        if self.beside is not None and self.quality_drop is None:
            raise InputError("what is lost beside another run is quality; give a quality drop")
        if self.risk is not None:
            check_levels(self.risk, self.confidence)
            if self.confidence > 0.5:
                raise InputError(
                    f"a promise that may be broken with a chance of {self.confidence:g} is none; "
                    "write --confidence 0.05 for one that holds in 95 of 100 cases"
                )
            for name, value, known in (("risk", self.of, RISKS), ("bound", self.bound, tuple(P_VALUES))):
                if value not in known:
                    raise InputError(f'there is no {name} "{value}"; give one of {", ".join(known)}')

    def as_dict(self) -> dict[str, float | str]:
        """Without what was not asked for."""
        asked = {name: value for name, value in asdict(self).items() if value is not None and value is not False}
        if self.risk is None:
            asked = {name: value for name, value in asked.items() if name not in ("confidence", "of", "bound")}
        return asked


def check_calibratable(run: Run, num_examples: int, goal: Goal) -> None:
    """Raises an error where a goal is out of reach whatever is tried: the sentence says what to ask for instead."""
    options = run.model.config.options
    if options.stopping_side is None:
        raise InputError(f"{run.folder} has no exits to leave at; train a run with model.exits")
    first, last = options.stopping_depths[0], options.stopping_depths[-1]
    budget = goal.depth_budget
    if budget is not None and not first <= budget < last:
        why = f"nobody leaves {run.folder} before depth {first}, so that a budget of {budget:g} blocks is out of reach"
        if budget >= last:
            why = f"{run.folder} has no more than {last} blocks, so that a budget of {budget:g} saves nothing"
        raise InputError(f"{why}; give {first} or more, and less than {last}")
    if num_examples < FEWEST_EXAMPLES:
        few = "1 example is" if num_examples == 1 else f"{num_examples} examples are"
        raise InputError(
            f"{few} too few to calibrate on; take at least {FEWEST_EXAMPLES}, by data.valid=FILE, another --split or a "
            "greater --limit"
        )
    if goal.sure:
        run.task.check_predictable()
    if goal.risk is not None:
        check_has_likeness(run.task)
        _check_enough(num_examples, goal.risk, goal)


def _check_enough(num_examples: int, risk: float, goal: Goal) -> None:
    """Raises an error where the examples are too few for a promise even if all losses were 0."""
    needed = {bound: fewest_examples(risk, goal.confidence, bound) for bound in P_VALUES}
    if num_examples >= needed[goal.bound]:
        return
    enough = [bound for bound, count in needed.items() if num_examples >= count]
    remedy = f"add --bound {enough[0]}" if enough else "give more, or allow a greater --risk"
    counts = " and ".join(f"{count:,} by {bound}" for bound, count in needed.items())
    raise InputError(
        f"{num_examples:,} examples are too few to promise a risk of {risk:g} but for a chance of {goal.confidence:g}: "
        f"even if no answer changed, it would take {counts}; {remedy}"
    )


class Calibration:
    """A search for the setting of a run that reaches a goal."""

    def __init__(
        self,
        run: Run,
        examples: Sequence[Example],
        goal: Goal,
        say: Say = lambda text: None,
        temperatures: tuple[float, ...] = (),
        beside: Run | None = None,
    ) -> None:
        self.run, self.examples, self.goal, self.say, self.temperatures = run, examples, goal, say, temperatures
        self.exits = run.model.config.options.stopping_depths
        check_calibratable(run, len(examples), goal)
        if beside is not None:
            check_comparable(run.task, beside.task, beside.folder)
        self.trials = Trials(run, examples, say, beside)

    # A budget

    def by_budget(self, vectors: int = 0, policy: PolicyConfig | None = None) -> Trial:
        """The best setting of a sweep, or of one policy, of the gaps between its thresholds, and of random ones."""
        for options in policies_to_try(self.run) if policy is None else strict_to_bold(self.run, policy):
            trial = self.trials.of(with_temperatures(options, self.temperatures))
            if policy is not None and trial.mean_depth <= self._shallowest(options):
                break  # whatever is bolder gives the same
        with_thresholds = [options for options in self.trials.known if threshold_of(options) is not None]
        for family in dict.fromkeys(map(family_of, with_thresholds)):
            self._halve(family)
        self._draw(vectors)
        return self.best(self.trials.known.values())

    def _shallowest(self, options: PolicyConfig) -> int:
        """The first exit that anybody can take: states are compared with those of an exit below."""
        has_exit_below = isinstance(options, ConfidenceConfig) and options.measure == "saturation"
        return self.exits[1 if has_exit_below else 0]

    def _halve(self, family: PolicyConfig) -> None:
        """Bring the strictest threshold that is too bold and the boldest that is not together."""
        wants_depth = self.goal.depth_budget is not None
        if not any(self._is_kept_by(trial) for options, trial in self.trials.known.items() if is_of(options, family)):
            self.trials.of(with_threshold(family, threshold_range(family)[0 if wants_depth else 1]))
        meets_below = wants_depth is not isinstance(family, StructureExitConfig)
        for _ in range(NUM_HALVINGS):
            known = sorted(
                (threshold_of(options) or 0.0, self._is_kept_by(trial))
                for options, trial in self.trials.known.items()
                if is_of(options, family)
            )
            # A depth is kept to below some threshold, a quality above one; where weights of layers decide, vice versa.
            gaps = [
                (low, high)
                for (low, low_met), (high, high_met) in pairwise(known)
                if low_met is meets_below and high_met is not meets_below
            ]
            if not gaps:
                return
            self.trials.of(with_threshold(family, sum(gaps[-1]) / 2))

    def _draw(self, num: int) -> None:
        """Random thresholds for every exit, around the best ones so far."""
        generator = np.random.default_rng(self.run.recipe.seed)
        for _ in range(num):
            known = [trial for trial in self.trials.known.values() if isinstance(trial.options, WITH_VECTORS)]
            if not known:
                return
            start = self.best(known).options
            assert isinstance(start, WITH_VECTORS)
            lowest, highest = threshold_range(start)
            noise = generator.normal(scale=SPREAD, size=len(self.exits) - 1)
            drawn = [start.threshold_of(index) + float(off) for index, off in enumerate(noise)]
            self.trials.of(replace(start, threshold=tuple(round(min(max(each, lowest), highest), 4) for each in drawn)))

    # A promise

    def by_promise(self, policy: PolicyConfig | None = None) -> tuple[Trial | None, float, float]:
        """The boldest setting that may be promised, or the best of those that may where there is a budget too.

        With it come its mean loss and p-value; without any those of the strictest, which failed.
        """
        goal, walked = self.goal, list[tuple[Trial, float, float]]()
        assert goal.risk is not None
        risk, num = goal.risk, len(self.examples)

        def measured() -> Iterator[float]:
            for options in strict_to_bold(self.run, policy):
                trial = self.trials.of(with_temperatures(options, self.temperatures))
                loss = float(self.trials.losses(trial, goal.of).mean())
                walked.append((trial, loss, P_VALUES[goal.bound](loss, num, risk)))
                self.say(f"  loss {loss:.4f}, p = {walked[-1][-1]:.4f}")
                yield loss

        last = furthest_passing(measured(), num, risk, goal.confidence, goal.bound)
        if last is None:
            return None, *walked[0][1:]
        if goal.quality_drop is None and goal.depth_budget is None:
            return walked[last]
        passed = walked[: last + 1]
        best = self.best([trial for trial, _, _ in passed])
        return next(each for each in passed if each[0] is best)

    # What both share

    def _is_met(self, trial: Trial) -> bool:
        """Whether a setting reaches the budget, and does not only because nobody leaves early."""
        return self.trials.leaves(trial) and self._is_kept_by(trial)

    def _is_kept_by(self, trial: Trial) -> bool:
        """Whether a setting reaches the budget, if only because nobody leaves early: halving may begin there."""
        if self.goal.depth_budget is not None:
            return trial.mean_depth <= self.goal.depth_budget
        if self.goal.quality_drop is None:
            return True
        allowed = self.goal.quality_drop + 1e-9
        return self.trials.lost(trial) <= allowed and not (
            self.goal.sure and self.trials.lost_at_worst(trial) > allowed
        )

    def best(self, trials: Iterable[Trial]) -> Trial:
        """The cheapest that is good enough, or the best that is cheap enough; else the one that comes closest."""
        every = [trial for trial in trials if np.isfinite(trial.quality)] or list(trials)
        leaving = [trial for trial in every if self.trials.leaves(trial)] or every
        met = [trial for trial in leaving if self._is_met(trial)]
        wants_quality = bool(met) == (self.goal.depth_budget is not None)
        if wants_quality:
            return max(met or leaving, key=lambda trial: (self.trials.sign * trial.quality, -trial.mean_depth))
        return min(met or leaving, key=lambda trial: (trial.mean_depth, -self.trials.sign * trial.quality))

    def setting(self, trial: Trial, split: str, risk: tuple[float, float] | None = None) -> CalibratedSetting:
        """A trial as it is kept in the run. A promise is met where there is a p-value that allows it."""
        met = self._is_met(trial) and (risk is None or risk[1] <= self.goal.confidence)
        return CalibratedSetting(
            policy=policy_dict(trial.options),
            goal=self.goal.as_dict(),
            budget_met=met,
            metric=self.trials.metric,
            quality=finite(trial.quality),
            full_quality=finite(self.trials.full.quality),
            mean_depth=trial.mean_depth,
            full_depth=self.exits[-1],
            flops=trial.outcome.flops,
            full_flops=self.trials.full.outcome.flops,
            risk=None if risk is None else {"mean_loss": risk[0], "p_value": risk[1]},
            num_trials=len(self.trials.known),
            split=split,
            examples=len(self.examples),
            examples_digest=examples_digest(self.examples),
            weights_digest=weights_digest(self.run.folder),
            settings=settings(self.run.task, self.run.precision),
            depth_of=self.trials.depth_of,
        )


def calibrate(
    run: Run,
    split: str,
    examples: Sequence[Example],
    goal: Goal,
    *,
    policy: PolicyConfig | None = None,
    vectors: int = 0,
    temperatures: tuple[float, ...] = (),
    say: Say = lambda text: None,
    beside: Run | None = None,
) -> CalibratedSetting:
    """The setting of a run that reaches a goal on examples, or comes closest; the run is left at its own policy.

    ``policy`` is the only one that is looked at, at all its thresholds; none means all of a sweep for a budget, and the
    run's own or else the highest probability for a promise. ``temperatures`` of exits, as ``fitted_temperatures`` finds
    them, go with every policy that looks at scores; a promise holds only where they come from other data. ``beside`` is
    the run that ``goal.beside`` names.
    """
    if policy is not None or goal.risk is not None:
        strict_to_bold(run, policy)  # a policy without thresholds is refused before anything is run
    try:
        search = Calibration(run, examples, goal, say, temperatures, beside)
        if goal.risk is None:
            return search.setting(search.by_budget(vectors, policy), split)
        chosen, loss, p_value = search.by_promise(policy)
        if chosen is None:  # the strictest setting, which failed
            chosen = next(iter(search.trials.known.values()))
        return search.setting(chosen, split, (loss, p_value))
    finally:
        by_policy(run, run.policy)
