"""The same examples by one policy after another, each beside full depth: what a choice among policies is made from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from depthwise.config import FixedDepthConfig, PolicyConfig
from depthwise.data import Example
from depthwise.evaluation.evaluating import Outcome, outcome_from, outcome_of
from depthwise.evaluation.likeness import Values, goodness, likeness
from depthwise.evaluation.policies import check_exits, check_of_one_side, in_words, is_of_sources, setting_of
from depthwise.evaluation.replaying import Replay
from depthwise.evaluation.runs import Run, by_policy
from depthwise.evaluation.timing import timed

Say = Callable[[str], None]


def _nothing(text: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Trial:
    """A policy, and what became of the data with it."""

    options: PolicyConfig
    quality: float
    mean_depth: float
    outcome: Outcome


class Trials:
    """What becomes of some examples by policies, each tried once. Whoever makes them puts the run's own policy back."""

    def __init__(self, run: Run, examples: Sequence[Example], say: Say = _nothing, beside: Run | None = None) -> None:
        """What is lost is lost against full depth, or against a run beside at its own."""
        check_exits(run.model, run.folder)
        self.run, self.examples, self.say = run, examples, say
        self.metric = run.task.metrics[0]
        self.sign = -1 if self.metric in run.task.lower_is_better else 1
        self.full_depth = run.model.config.options.stopping_depths[-1]
        self.depth_of = "encoder" if is_of_sources(run.model, None) else None
        """Whose depth is tried, where it is not that of what comes out."""
        self.known: dict[PolicyConfig, Trial] = {}
        """All but full depth."""
        self._replay = self._listened()
        self.full = self._try(FixedDepthConfig(depth=self.full_depth), None)
        self.aim = self.full.outcome if beside is None else outcome_of(beside, examples, shows_progress=False)
        if beside is not None:
            self.say(f"{beside.folder}: {self.metric} {self.aim.scores[self.metric].value:.2f}")
        self._at_worst: dict[PolicyConfig, float] = {}

    def of(self, options: PolicyConfig) -> Trial:
        """What becomes of the data by a policy."""
        check_of_one_side(self.run.model, self.run.folder, [options])
        if options == self.full.options:
            return self.full
        if options not in self.known:
            self.known[options] = self._try(options, options)
        return self.known[options]

    def _try(self, options: PolicyConfig, used: PolicyConfig | None) -> Trial:
        outcome = self._outcome(by_policy(self.run, used))
        quality, mean = outcome.scores[self.metric].value, outcome.mean_depth
        trial = Trial(options, quality, float(self.full_depth) if mean is None else mean, outcome)
        name = "full depth" if used is None else said(options)
        depth = "depth" if self.depth_of is None else f"{self.depth_of} depth"
        self.say(f"{name}: {self.metric} {quality:.2f} at a mean {depth} of {trial.mean_depth:.2f}")
        return trial

    def _outcome(self, run: Run) -> Outcome:
        """What becomes of the examples: from what all exits said, where that is known, else by running the model."""
        if self._replay is not None:
            found, timing = timed(self._replay.predictions, run.device)
            if found is not None:
                return outcome_from(run, self.examples, self._replay.rows, found, timing)
        return outcome_of(run, self.examples, shows_progress=False)

    def _listened(self) -> Replay | None:
        """What all exits say, where one pass is enough to know what becomes of every policy."""
        if not Replay.serves(self.run, len(self.examples)):
            return None
        task = self.run.task
        task.check_examples(self.examples)
        return Replay(self.run, task.rows([task.inputs_of(example) for example in self.examples]))

    def leaves(self, trial: Trial) -> bool:
        """Whether anybody leaves early."""
        return trial.mean_depth < self.full_depth

    def lost(self, trial: Trial) -> float:
        """By how many points of the quoted metric full depth, or the run beside, is better."""
        return self.sign * (self.aim.scores[self.metric].value - trial.quality)

    def lost_at_worst(self, trial: Trial) -> float:
        """The same at the lower end of the interval of a paired bootstrap, by the metric that it draws anew."""
        if trial.options not in self._at_worst:
            ours, theirs = trial.outcome.predictions, self.aim.predictions
            self._at_worst[trial.options] = -self.run.task.compare(ours, theirs, self.examples).low
        return self._at_worst[trial.options]

    def losses(self, trial: Trial, of: str) -> Values:
        """Of every example, from 0 to 1: how far its answer is from that of full depth, or by how much it is worse."""
        task, answers, full = self.run.task, trial.outcome.predictions, self.full.outcome.predictions
        if of == "answers":
            return 1 - likeness(task, answers, full)
        worse = goodness(task, full, self.examples) - goodness(task, answers, self.examples)
        return np.maximum(worse, 0.0)


def said(options: PolicyConfig) -> str:
    """A policy as people read it."""
    return ", ".join(text for text in (options.kind, in_words(setting_of(options))) if text)
