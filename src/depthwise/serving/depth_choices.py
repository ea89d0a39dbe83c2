"""From the depth that a request asks for to the policy by which its tokens leave.

Everything that can be asked for is known when a run is loaded: full depth, its exits, the settings that ``depthwise
calibrate`` found, and those of its frontier, among which budgets choose.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from depthwise.config import FixedDepthConfig, PolicyConfig, StructureExitConfig
from depthwise.depth import Policy
from depthwise.errors import DepthwiseError, InputError
from depthwise.evaluation.calibrated import CalibratedSetting, read_settings
from depthwise.evaluation.policies import chosen_policy, fixed_depth, in_words, setting_of, use_policy
from depthwise.evaluation.results import RESULTS, weights_digest
from depthwise.evaluation.runs import Run
from depthwise.evaluation.word_depths import words_decide
from depthwise.models.exits import HasExits

FULL = "full"
WORDS = "words"
"""The setting of runs whose words have depths of their own."""
DEFAULT = "default"
QUALITY_DROP, COMPUTE = "quality_drop", "compute"
Asked = str | int | Mapping[str, float]
log = logging.getLogger("depthwise.serving")


@dataclass(frozen=True, eq=False)
class Setting:
    """One way to run a model; the same object for all requests that ask for it, so that they run together.

    ``options`` are of the policy, and ``policy`` is what a queue takes; both are none at full depth. Where words have
    depths of their own, ``word_depth`` is one for all of them instead, or none to leave them as they are.
    """

    told: str
    options: PolicyConfig | None = None
    policy: Policy | None = None
    word_depth: int | None = None


@dataclass(frozen=True)
class Measured:
    """A setting, by how much it was measured to be worse than full depth, and its share of the operations."""

    setting: Setting
    drop: float
    share: float


class DepthChoices:
    """What may be asked of one run. ``default`` is for requests that say nothing."""

    def __init__(self, run: Run, default: Asked | None = None) -> None:
        self.run, self.num_layers = run, run.model.config.options.exit_depths[-1]
        self._by_options: dict[PolicyConfig, Setting] = {}
        self.by_words = words_decide(run.task)
        self.full = Setting(FULL, word_depth=self.num_layers if self.by_words else None)
        self.calibrated = dict(self._calibrated())
        self.named = {name: self._setting(found.options) for name, found in self.calibrated.items()}
        if self.by_words:
            self.named[WORDS] = Setting("the depths of words")
        self.fixed, self.measured = self._fixed(), [*self._of_calibration(), *self._of_frontier()]
        """Depths at which all tokens may leave, and what budgets choose from."""
        self.default: Asked = self._usual() if default is None else default
        self.chosen(self.default)  # says now what is wrong with it

    @property
    def leaves_early(self) -> bool:
        return self.run.model.config.options.leaves_early

    def _fixed(self) -> dict[int, Setting]:
        if self.by_words:
            depths = range(1, self.num_layers)
            found = {depth: Setting(f"fixed, depth {depth}", word_depth=depth) for depth in depths}
        elif self.leaves_early:
            options = self.run.model.config.options
            name = self.run.folder
            found = {depth: self._setting(fixed_depth(self.run.model, name, depth)) for depth in options.exit_depths}
        else:
            found = {}
        return {**found, self.num_layers: self.full}

    def chosen(self, asked: Asked | None) -> Setting:
        """The setting that is asked for, or ``InputError``."""
        asked = self.default if asked is None else asked
        if isinstance(asked, Mapping):
            return self._by_budget(asked)
        if asked == FULL:
            return self.full
        if isinstance(asked, int):
            return self._at(asked)
        if asked not in self.named:
            known = ", ".join(self.named)
            remedy = f"ask for full, a number or one of {known}" if known else "make one with depthwise calibrate"
            raise InputError(f'this model has no calibrated setting "{asked}"; {remedy}')
        return self.named[asked]

    def _at(self, depth: int) -> Setting:
        if depth in self.fixed:
            return self.fixed[depth]
        if len(self.fixed) == 1:
            raise InputError(f"this model has no exits to leave at before depth {self.num_layers}; ask for full")
        raise InputError(f"no token can leave at depth {depth}; ask for one of {', '.join(map(str, self.fixed))}")

    def _by_budget(self, budget: Mapping[str, float]) -> Setting:
        if not self.measured:
            raise InputError(
                "nobody has measured this run at any depth, so that no budget can choose one; run depthwise calibrate "
                "or depthwise sweep on it, or ask for full or a number"
            )
        ((name, value),) = budget.items()
        if name == QUALITY_DROP:
            good = [each for each in self.measured if each.drop <= value + 1e-9]
            return min(good, key=lambda each: (each.share, each.drop)).setting
        cheap = [each for each in self.measured if each.share <= value + 1e-9]
        if not cheap:
            least = min(each.share for each in self.measured)
            raise InputError(
                f"nothing that was measured runs on a share of {value:g} of the operations; give at least {least:.4f}"
            )
        return min(cheap, key=lambda each: (each.drop, each.share)).setting

    def _usual(self) -> Asked:
        if self.by_words:
            return WORDS
        if DEFAULT in self.named:
            return DEFAULT
        met = [name for name, found in self.calibrated.items() if found.budget_met]
        return met[0] if len(self.named) == 1 and met else FULL

    # What a run has

    def _setting(self, options: PolicyConfig) -> Setting:
        """The setting of a policy, made once."""
        if options == FixedDepthConfig(depth=self.num_layers):
            return self.full
        if options not in self._by_options:
            use_policy(self.run.model, options)
            assert isinstance(self.run.model, HasExits)
            policy = self.run.model.policy
            use_policy(self.run.model, None)
            told = ", ".join(text for text in (options.kind, in_words(setting_of(options))) if text)
            self._by_options[options] = Setting(told, options, policy)
        return self._by_options[options]

    def _calibrated(self) -> Iterator[tuple[str, CalibratedSetting]]:
        """The settings of a calibration that fit the weights and can be chosen for each request."""
        if self.by_words or not self.leaves_early:
            return
        for name, found in read_settings(self.run.folder).items():
            if found.weights_digest != self._digest:
                log.warning("setting %s of %s is for other weights and left out", name, self.run.folder)
            elif self._is_for_encoder(found.options):
                log.warning("setting %s of %s is about the encoder and left out", name, self.run.folder)
            else:
                yield name, found

    @cached_property
    def _digest(self) -> str | None:
        return weights_digest(self.run.folder)

    def _is_for_encoder(self, options: PolicyConfig) -> bool:
        """Whether a policy decides about an encoder whose texts the requests of a decoder share."""
        return isinstance(options, StructureExitConfig) and self.run.model.config.decoder is not None

    def _drop(self, metric: str, quality: float, full_quality: float) -> float:
        return (quality - full_quality) * (1 if metric in self.run.task.lower_is_better else -1)

    def _of_calibration(self) -> Iterator[Measured]:
        for name, found in self.calibrated.items():
            if found.quality is not None and found.full_quality is not None:
                yield Measured(self.full, 0.0, 1.0)
                drop = self._drop(found.metric, found.quality, found.full_quality)
                yield Measured(self.named[name], drop, found.flops / max(1, found.full_flops))

    def _of_frontier(self) -> Iterator[Measured]:
        """The points of ``results/frontier.json`` that are this model's own."""
        path = self.run.folder / RESULTS / "frontier.json"
        if self.by_words or not self.leaves_early or not path.is_file():
            return
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            points: Sequence[Mapping[str, Any]] = content["points"]
            if content["weights_digest"] != self._digest:
                return
            own = [point for point in points if point["policy"] != "separate" and point["quality"] is not None]
            (full,) = (point for point in own if point["setting"] == {"depth": self.num_layers})
            for point in own:
                options = self._options_of(point)
                if not self._is_for_encoder(options):
                    drop = self._drop(content["metric"], point["quality"], full["quality"])
                    yield Measured(self._setting(options), drop, point["flops"] / full["flops"])
        except (OSError, ValueError, KeyError, TypeError, DepthwiseError) as error:
            log.warning("%s is no frontier of this run and left out: %s", path, error)

    def _options_of(self, point: Mapping[str, Any]) -> PolicyConfig:
        given = [f"policy.kind={point['policy']}"]
        given += [f"policy.{name}={json.dumps(value)}" for name, value in point["setting"].items()]
        return chosen_policy(self.run.model, self.run.folder, given)
