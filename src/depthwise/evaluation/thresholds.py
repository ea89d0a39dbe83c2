"""Policies that have a threshold: at all its values, at one, and which of them are alike."""

from collections.abc import Sequence
from dataclasses import replace

from depthwise.config import (
    ConfidenceConfig,
    LearnedConfidenceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    StructureExitConfig,
)
from depthwise.errors import InputError
from depthwise.evaluation.policies import check_of_one_side, chosen_policy, own_policy
from depthwise.evaluation.runs import Run

_STRICT = (0.999, 0.99, 0.98, 0.97, 0.95, 0.925, 0.9, 0.875, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
_BOLD = (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
_ENTROPIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
WITH_VECTORS = ConfidenceConfig | LearnedConfidenceConfig


def policy_asked_for(run: Run, changes: Sequence[str]) -> PolicyConfig | None:
    """The policy that changes such as ``policy.kind=confidence`` name, at whatever threshold; none without any."""
    if not changes:
        return None
    if any(change.startswith("policy.threshold") for change in changes):
        raise InputError("thresholds are what is looked for; leave policy.threshold out")
    needs_one = ["policy.threshold=0"] if "policy.kind=confidence" in changes else []
    chosen = chosen_policy(run.model, run.folder, [*changes, *needs_one])
    check_of_one_side(run.model, run.folder, [chosen])
    return chosen


def strict_to_bold(run: Run, policy: PolicyConfig | None) -> list[PolicyConfig]:
    """A policy at all its thresholds, those first at which the fewest leave."""
    options = policy or own_policy(run.model) or ConfidenceConfig(threshold=(0.9,))
    if isinstance(options, StructureExitConfig) and threshold_of(options) is None:
        raise InputError("the likeliest number of layers has no threshold to calibrate; add policy.stops=threshold")
    if threshold_of(options) is None:
        raise InputError(
            f"the policy {options.kind} has no threshold to calibrate; choose one that has, such as "
            "policy.kind=confidence"
        )
    levels: Sequence[float] = (*_STRICT, *_BOLD)
    if isinstance(options, StructureExitConfig):
        levels = levels[::-1]
    if isinstance(options, ConfidenceConfig) and options.measure == "entropy":
        levels = [-entropy for entropy in _ENTROPIES]
    return [with_threshold(options, level) for level in levels]


def threshold_of(options: PolicyConfig) -> float | None:
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


def with_threshold(options: PolicyConfig, value: float) -> PolicyConfig:
    """The same at one threshold for all exits."""
    if isinstance(options, PoissonBinomialConfig | StructureExitConfig):
        return replace(options, threshold=value)
    assert isinstance(options, WITH_VECTORS)
    return replace(options, threshold=(value,))


def with_temperatures(options: PolicyConfig, temperatures: tuple[float, ...]) -> PolicyConfig:
    """The same with temperatures, where scores decide."""
    if isinstance(options, ConfidenceConfig) and options.measure != "saturation" and temperatures:
        return replace(options, temperature=temperatures)
    return options


def threshold_range(options: PolicyConfig) -> tuple[float, float]:
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


def family_of(options: PolicyConfig) -> PolicyConfig:
    """The same for all settings that differ in their threshold alone."""
    return with_threshold(options, 0.5)


def is_of(options: PolicyConfig, family: PolicyConfig) -> bool:
    """Whether a policy is that family at some threshold."""
    return threshold_of(options) is not None and family_of(options) == family
