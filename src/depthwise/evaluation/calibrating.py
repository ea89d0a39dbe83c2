"""Choosing where tokens leave, on validation data: by a budget of quality or of depth, and with a promise about risk.

A budget is searched for in three steps: the settings of a sweep; halving the gap between the last threshold that meets
the budget and the first that does not; and, where asked for, random thresholds of their own for every exit around the
best one found so far. The setting that is best on the data at hand is a little worse on other data.

A promise (``risk``) is more careful. It is about one policy, whose thresholds are walked from the strictest downwards
until the first that fails (``metrics.risk``). All that passed may be promised at once, so that a budget may choose
among them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np

from depthwise.config import (
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    StructureExitConfig,
    policy_dict,
)
from depthwise.data import Example
from depthwise.errors import InputError
from depthwise.evaluation.calibrated import CalibratedSetting
from depthwise.evaluation.evaluating import Outcome, outcome_of, settings
from depthwise.evaluation.frontier import policies_to_try
from depthwise.evaluation.likeness import Values, check_has_likeness, goodness, likeness
from depthwise.evaluation.policies import in_words, own_policy, setting_of
from depthwise.evaluation.results import examples_digest, finite, weights_digest
from depthwise.evaluation.runs import Run, by_policy
from depthwise.metrics.risk import P_VALUES, check_levels, fewest_examples, furthest_passing

FEWEST_EXAMPLES = 20
"""A budget that is met on fewer says nothing about others."""
NUM_HALVINGS = 5
SPREAD = 0.15
"""Deviation of random thresholds from those that they start from."""
RISKS = ("answers", "quality")
_STRICT = (0.999, 0.99, 0.98, 0.97, 0.95, 0.925, 0.9, 0.875, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
_BOLD = (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
_ENTROPIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is asked for: at most so much quality lost, or so many blocks in the mean, or so much risk, or two of them.

    ``risk`` is δ, ``confidence`` is ε: the expected loss exceeds δ with a chance of ε at most. The loss of an example
    is how far its answer is from that of the full model (``of`` answers), or by how much it is worse (``of`` quality).
    """

    quality_drop: float | None = None
    depth_budget: float | None = None
    risk: float | None = None
    confidence: float = 0.05
    of: str = "answers"
    bound: str = "hoeffding"

    def __post_init__(self) -> None:
        if self.quality_drop is None and self.depth_budget is None and self.risk is None:
            raise InputError("say what to calibrate for: a quality drop, a depth budget or a risk")
        if self.quality_drop is not None and self.depth_budget is not None:
            raise InputError("a quality drop and a depth budget are two goals; give one of them")
        if self.quality_drop is not None and self.quality_drop < 0:
            raise InputError(f"a quality drop of {self.quality_drop:g} would be a gain; give 0 or more")
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
        asked = {name: value for name, value in asdict(self).items() if value is not None}
        if self.risk is None:
            asked = {name: value for name, value in asked.items() if name not in ("confidence", "of", "bound")}
        return asked


@dataclass(frozen=True)
class Trial:
    """A policy, and what became of the data with it."""

    options: PolicyConfig
    quality: float
    mean_depth: float
    outcome: Outcome


class Calibration:
    """A search for the setting of a run that reaches a goal."""

    def __init__(
        self,
        run: Run,
        examples: Sequence[Example],
        goal: Goal,
        say: Say = lambda text: None,
        temperatures: tuple[float, ...] = (),
    ) -> None:
        self.run, self.examples, self.goal, self.say, self.temperatures = run, examples, goal, say, temperatures
        self.metric = run.task.metrics[0]
        self.sign = -1 if self.metric in run.task.lower_is_better else 1
        self.exits = run.model.config.options.exit_depths
        self.trials: dict[PolicyConfig, Trial] = {}
        self._check()
        self.full = self._try(FixedDepthConfig(depth=self.exits[-1]), None)

    def _check(self) -> None:
        goal, num = self.goal, len(self.examples)
        if not self.run.model.config.options.leaves_early:
            raise InputError(f"{self.run.folder} has no exits to leave at; train a run with model.exits")
        if goal.depth_budget is not None and not self.exits[0] <= goal.depth_budget < self.exits[-1]:
            raise InputError(
                f"a budget of {goal.depth_budget:g} blocks is out of reach: {self.run.folder} has exits from depth "
                f"{self.exits[0]} to {self.exits[-1]}, the whole stack; give one in between"
            )
        if num < FEWEST_EXAMPLES:
            raise InputError(
                f"{num} examples are too few to calibrate on; give at least {FEWEST_EXAMPLES}, by --split or "
                "data.valid=FILE"
            )
        if goal.risk is not None:
            check_has_likeness(self.run.task)
            needed = {bound: fewest_examples(goal.risk, goal.confidence, bound) for bound in P_VALUES}
            if num < needed[goal.bound]:
                ways = ", ".join(f"{count:,} by {bound}" for bound, count in needed.items())
                raise InputError(
                    f"a risk of {goal.risk:g} with a chance of {goal.confidence:g} to exceed it takes more examples "
                    f"than {num:,}, even if nothing went wrong ({ways}); give more, or allow a greater --risk"
                )

    # A budget

    def by_budget(self, vectors: int = 0, policies: Iterable[PolicyConfig] | None = None) -> Trial:
        """The best setting of a sweep, of the gaps between its thresholds, and of random ones."""
        for options in policies_to_try(self.run) if policies is None else policies:
            self.tried(_with_temperatures(options, self.temperatures))
        for family in {_family(options) for options in self.trials if _threshold(options) is not None}:
            self._halve(family)
        self._draw(vectors)
        return self.best(self.trials.values())

    def _halve(self, family: PolicyConfig) -> None:
        """Bring the strictest threshold that is too bold and the boldest that is not together."""
        wants_depth = self.goal.depth_budget is not None
        if not any(self._is_met(trial) for options, trial in self.trials.items() if _is_of(options, family)):
            self.tried(_with_threshold(family, _range(family)[0 if wants_depth else 1]))
        meets_below = wants_depth is not isinstance(family, StructureExitConfig)
        for _ in range(NUM_HALVINGS):
            known = sorted(
                (_threshold(options) or 0.0, self._is_met(trial))
                for options, trial in self.trials.items()
                if _is_of(options, family)
            )
            # A depth is kept to below some threshold, a quality above one; where weights of layers decide, vice versa.
            gaps = [
                (low, high)
                for (low, low_met), (high, high_met) in pairwise(known)
                if low_met is meets_below and high_met is not meets_below
            ]
            if not gaps:
                return
            self.tried(_with_threshold(family, sum(gaps[-1]) / 2))

    def _draw(self, num: int) -> None:
        """Random thresholds for every exit, around the best ones so far."""
        generator = np.random.default_rng(self.run.recipe.seed)
        for _ in range(num):
            known = [trial for trial in self.trials.values() if isinstance(trial.options, _WITH_VECTORS)]
            if not known:
                return
            start = self.best(known).options
            assert isinstance(start, _WITH_VECTORS)
            lowest, highest = _range(start)
            noise = generator.normal(scale=SPREAD, size=len(self.exits) - 1)
            drawn = [start.threshold_of(index) + float(off) for index, off in enumerate(noise)]
            self.tried(replace(start, threshold=tuple(round(min(max(each, lowest), highest), 4) for each in drawn)))

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
                trial = self.tried(_with_temperatures(options, self.temperatures))
                loss = float(self._losses(trial).mean())
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

    def _losses(self, trial: Trial) -> Values:
        """Of every example, from 0 to 1."""
        task, answers, full = self.run.task, trial.outcome.predictions, self.full.outcome.predictions
        if self.goal.of == "answers":
            return 1 - likeness(task, answers, full)
        worse = goodness(task, full, self.examples) - goodness(task, answers, self.examples)
        return np.maximum(worse, 0.0)

    # What both share

    def tried(self, options: PolicyConfig) -> Trial:
        """What becomes of the data by a policy; once for each."""
        if options == self.full.options:
            return self.full
        if options not in self.trials:
            self.trials[options] = self._try(options, options)
        return self.trials[options]

    def _try(self, options: PolicyConfig, used: PolicyConfig | None) -> Trial:
        outcome = outcome_of(by_policy(self.run, used), self.examples, shows_progress=False)
        quality, depth = outcome.scores[self.metric].value, outcome.mean_depth
        trial = Trial(options, quality, float(self.exits[-1]) if depth is None else depth, outcome)
        name = "full depth" if used is None else _said(options)
        self.say(f"{name}: {self.metric} {quality:.2f} at a mean depth of {trial.mean_depth:.2f}")
        return trial

    def _is_met(self, trial: Trial) -> bool:
        """Whether a setting reaches the budget, and does not only because nobody leaves early."""
        if trial.mean_depth >= self.exits[-1]:
            return False
        if self.goal.depth_budget is not None:
            return trial.mean_depth <= self.goal.depth_budget
        lost = self.sign * (self.full.quality - trial.quality)
        return self.goal.quality_drop is None or lost <= self.goal.quality_drop + 1e-9

    def best(self, trials: Iterable[Trial]) -> Trial:
        """The cheapest that is good enough, or the best that is cheap enough; else the one that comes closest."""
        every = [trial for trial in trials if np.isfinite(trial.quality)] or list(trials)
        leaving = [trial for trial in every if trial.mean_depth < self.exits[-1]] or every
        met = [trial for trial in leaving if self._is_met(trial)]
        wants_quality = bool(met) == (self.goal.depth_budget is not None)
        if wants_quality:
            return max(met or leaving, key=lambda trial: (self.sign * trial.quality, -trial.mean_depth))
        return min(met or leaving, key=lambda trial: (trial.mean_depth, -self.sign * trial.quality))

    def setting(self, trial: Trial, split: str, risk: tuple[float, float] | None = None) -> CalibratedSetting:
        """A trial as it is kept in the run. A promise is met where there is a p-value that allows it."""
        met = self._is_met(trial) and (risk is None or risk[1] <= self.goal.confidence)
        return CalibratedSetting(
            policy=policy_dict(trial.options),
            goal=self.goal.as_dict(),
            budget_met=met,
            metric=self.metric,
            quality=finite(trial.quality),
            full_quality=finite(self.full.quality),
            mean_depth=trial.mean_depth,
            full_depth=self.exits[-1],
            flops=trial.outcome.flops,
            full_flops=self.full.outcome.flops,
            risk=None if risk is None else {"mean_loss": risk[0], "p_value": risk[1]},
            num_trials=len(self.trials),
            split=split,
            examples=len(self.examples),
            examples_digest=examples_digest(self.examples),
            weights_digest=weights_digest(self.run.folder),
            settings=settings(self.run.task, self.run.precision),
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
) -> CalibratedSetting:
    """The setting of a run that reaches a goal on examples, or comes closest; the run is left at its own policy.

    ``policy`` is the only one that is looked at, at all its thresholds; none means all of a sweep for a budget, and the
    run's own or else the highest probability for a promise. ``temperatures`` of exits, as ``fitted_temperatures`` finds
    them, go with every policy that looks at scores; a promise holds only where they come from other data.
    """
    try:
        search = Calibration(run, examples, goal, say, temperatures)
        if goal.risk is None:
            asked = None if policy is None else strict_to_bold(run, policy)
            return search.setting(search.by_budget(vectors, asked), split)
        chosen, loss, p_value = search.by_promise(policy)
        if chosen is None:  # the strictest setting, which failed
            chosen = next(iter(search.trials.values()))
        return search.setting(chosen, split, (loss, p_value))
    finally:
        by_policy(run, run.policy)


def strict_to_bold(run: Run, policy: PolicyConfig | None) -> list[PolicyConfig]:
    """A policy at all its thresholds, those first at which the fewest leave."""
    options = policy or own_policy(run.model) or ConfidenceConfig(threshold=(0.9,))
    if _threshold(options) is None:
        raise InputError(
            f"the policy {options.kind} has no threshold to calibrate; choose one that has, such as "
            "policy.kind=confidence"
        )
    levels: Sequence[float] = (*_STRICT, *_BOLD)
    if isinstance(options, StructureExitConfig):
        levels = levels[::-1]
    if isinstance(options, ConfidenceConfig) and options.measure == "entropy":
        levels = [-entropy for entropy in _ENTROPIES]
    return [_with_threshold(options, level) for level in levels]


_WITH_VECTORS = ConfidenceConfig | LearnedConfidenceConfig


def _threshold(options: PolicyConfig) -> float | None:
    """The threshold of a policy that has one for all exits."""
    match options:
        case PoissonBinomialConfig(decision="sample"):
            return None
        case StructureExitConfig(stops="argmax"):
            return None
        case PoissonBinomialConfig() | StructureExitConfig():
            return options.threshold
        case ConfidenceConfig() | LearnedConfidenceConfig():
            return options.threshold[0] if len(options.threshold) == 1 else None
        case _:
            return None


def _with_threshold(options: PolicyConfig, value: float) -> PolicyConfig:
    if isinstance(options, PoissonBinomialConfig | StructureExitConfig):
        return replace(options, threshold=value)
    assert isinstance(options, _WITH_VECTORS)
    return replace(options, threshold=(value,))


def _with_temperatures(options: PolicyConfig, temperatures: tuple[float, ...]) -> PolicyConfig:
    """The same with temperatures, where scores decide."""
    if isinstance(options, ConfidenceConfig) and options.measure != "saturation" and temperatures:
        return replace(options, temperature=temperatures)
    return options


def _range(options: PolicyConfig) -> tuple[float, float]:
    """Thresholds at which nearly everybody leaves, and nearly nobody."""
    match options:
        case StructureExitConfig():
            return 1.0, 0.0
        case ConfidenceConfig(measure="entropy"):
            return -20.0, 0.0
        case ConfidenceConfig(measure="saturation"):
            return -1.0, 1.0
        case PoissonBinomialConfig():
            return 0.001, 1.0
        case _:
            return 0.0, 1.0


def _family(options: PolicyConfig) -> PolicyConfig:
    """The same for all settings that differ in their threshold alone."""
    return _with_threshold(options, 0.5)


def _is_of(options: PolicyConfig, family: PolicyConfig) -> bool:
    return _threshold(options) is not None and _family(options) == family


def _said(options: PolicyConfig) -> str:
    return ", ".join(text for text in (options.kind, in_words(setting_of(options))) if text)
