"""From a mapping to the options of a policy, with every mistake reported at once.

Three questions are asked, as of a model: are the names known and complete, is each value possible by itself, and do the
values agree with each other. A fourth follows once it is known where tokens may leave: ``placement_problems``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from depthwise.config.checks import BrokenOption, View
from depthwise.config.depth import (
    DECAYS,
    DECISIONS,
    MEASURES,
    NEVER_CORRECT,
    OBJECTIVES,
    ORACLES,
    POLICIES,
    STOPS,
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    OracleConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    SequenceExitConfig,
    StructureExitConfig,
    ThresholdConfig,
)
from depthwise.config.parsing import (
    Findings,
    Rules,
    at_least,
    build,
    choice,
    finite,
    option_problems,
    seed,
    shown,
    type_message,
)
from depthwise.errors import ConfigError, Problem

NEVER = 2.0
"""The highest threshold that may be given; no confidence exceeds 1, so that nobody leaves above that."""


def parse_policy(options: Mapping[str, Any], source: str = "policy") -> PolicyConfig:
    """The options of a policy, by its ``kind``. Raises ``ConfigError`` with all problems, under the name ``source``."""
    if not isinstance(options, Mapping):
        raise ConfigError(source, [Problem(source, f"expected a mapping of policy options, got {shown(options)}")])
    if problem := _kind_problem(options):
        raise ConfigError(source, [problem])
    findings = Findings()
    own = {name: value for name, value in options.items() if name != "kind"}
    config: PolicyConfig = build(POLICIES[options["kind"]], own, findings)
    problems = [*findings.problems, *_value_problems(config, findings.unreliable)]
    if problems:
        raise ConfigError(source, problems)
    return config


def check_policy(config: PolicyConfig) -> list[Problem]:
    """Everything that is wrong with options that are built already; never raises."""
    return list(_value_problems(config, frozenset()))


def placement_problems(config: PolicyConfig, exits: Sequence[int], *, has_source: bool = True) -> Iterator[Problem]:
    """What keeps a policy from a stack with these ``exits``: depths from low to high, the last being all layers.

    ``has_source`` says whether there is an encoder below that has read a source. The options are right by themselves.
    """
    if isinstance(config, StructureExitConfig):
        return  # which needs no exits, but layers that say how many they need
    if isinstance(config, FixedDepthConfig):
        if config.depth not in exits:
            yield Problem("depth", f"there is no exit at depth {config.depth}; choose among {_listed(exits)}")
        return
    if isinstance(config, SequenceExitConfig) and not has_source:
        remedy = "choose token, poisson_binomial, confidence or patience"
        yield Problem("kind", f"sequence guesses depth from the source, but this model has none; {remedy}")
    if len(exits) < 2:
        yield Problem("kind", f"{config.kind} needs an exit before the last block; add exits, or remove the policy")
        return
    if isinstance(config, ThresholdConfig) and len(config.threshold) not in (1, len(exits) - 1):
        given = f"{len(config.threshold)} thresholds for the {len(exits) - 1} exits below the last"
        yield Problem("threshold", f"{given}; give one number for all or exactly {len(exits) - 1}")
    if isinstance(config, ConfidenceConfig) and len(config.temperature) not in (0, len(exits) - 1):
        given = f"{len(config.temperature)} temperatures for the {len(exits) - 1} exits below the last"
        yield Problem("temperature", f"{given}; give exactly {len(exits) - 1}, or none")
    if isinstance(config, ConfidenceConfig) and config.measure == "saturation" and len(exits) == 2:
        message = "saturation compares two exits below the last, but there is one; add exits or choose another measure"
        yield Problem("measure", message)


def _listed(exits: Sequence[int]) -> str:
    return ", ".join(map(str, exits))


def _kind_problem(options: Mapping[str, Any]) -> Problem | None:
    if "kind" not in options:
        return Problem("kind", f"required but missing; give one of {', '.join(POLICIES)}")
    message = type_message(options["kind"], str) or choice(tuple(POLICIES), options["kind"])
    return Problem("kind", message) if message else None


def _value_problems(config: PolicyConfig, broken: Collection[str]) -> Iterator[Problem]:
    single = [problem for problem in option_problems(config, RULES) if problem.option not in broken]
    yield from single
    view = View(config, "", {*broken, *(problem.option for problem in single)})
    for kind, checks in CHECKS.items():
        for check in checks if isinstance(config, kind) else ():
            try:
                yield from check(view)
            except BrokenOption:
                continue


# Each option by itself


def _share(value: float) -> str | None:
    return None if 0 <= value <= 1 else f"{value} is out of range; give a number from 0 to 1"


def _between(value: float) -> str | None:
    return None if 0 < value < 1 else f"{value} is out of range; give a number between 0 and 1"


def _smoothing(value: float) -> str | None:
    return None if value >= 0 else f"{value} is too small; give 0 or more, or .inf for whole sequences"


def _above_zero(value: float) -> str | None:
    return finite(value) or (None if value > 0 else f"{value} is too small; give a number above 0")


RULES: Rules = {
    "depth": partial(at_least, 1),
    "oracle": partial(choice, ORACLES),
    "penalty": partial(at_least, 0),
    "never_correct": partial(choice, NEVER_CORRECT),
    "smoothing": _smoothing,
    "decision": partial(choice, DECISIONS),
    "objective": partial(choice, OBJECTIVES),
    "beta": partial(at_least, 0),
    "prior": _between,
    "measure": partial(choice, MEASURES),
    "decay": partial(choice, DECAYS),
    "decay_rate": partial(at_least, 0),
    "max_length": partial(at_least, 1),
    "patience": partial(at_least, 1),
    "seed": seed,
    "stops": partial(choice, STOPS),
    "tolerance": _above_zero,
}


# Options together


def _has_no_effect(policy: View, defaults: object, names: Sequence[str], because: str) -> Iterator[Problem]:
    for name in names:
        if getattr(policy, name) != getattr(defaults, name):
            yield policy.problem(name, f"has no effect {because}; remove it")


def _never_correct_is_about_correctness(policy: View) -> Iterator[Problem]:
    if policy.oracle != "correctness":
        yield from _has_no_effect(policy, OracleConfig(), ["never_correct"], f"with oracle {policy.oracle}")


def _chances_decide(policy: View) -> Iterator[Problem]:
    if policy.decision == "sample":
        yield from _has_no_effect(policy, PoissonBinomialConfig(), ["threshold"], "with decision sample")
    elif message := _share(policy.threshold):
        yield policy.problem("threshold", message)
    elif policy.decision == "quantile" and policy.threshold == 0:
        yield policy.problem("threshold", "0 is reached before the first exit; give a quantile above 0")


def _one_objective(policy: View) -> Iterator[Problem]:
    of_other = ["oracle", "penalty", "smoothing"] if policy.objective == "expected_loss" else ["beta", "prior"]
    yield from _has_no_effect(policy, PoissonBinomialConfig(), of_other, f"with objective {policy.objective}")
    if policy.objective == "expected_loss" and policy.oracle == "correctness":
        yield from _has_no_effect(policy, PoissonBinomialConfig(), ["never_correct"], "with objective expected_loss")


def _there_is_a_threshold(policy: View) -> Iterator[Problem]:
    if not policy.threshold:
        yield policy.problem(
            "threshold", "required but missing; give one number for all exits but the last, or one for each of them"
        )


def _measured_thresholds(policy: View) -> Iterator[Problem]:
    if policy.measure != "entropy":
        yield from _thresholds_within(policy, -1.0 if policy.measure == "saturation" else 0.0, policy.measure)
        return
    for threshold in policy.threshold:
        if threshold > 0:
            remedy = f"to leave below an entropy of {threshold}, give {-threshold}"
            yield policy.problem("threshold", f"{threshold} is out of range of entropy, which counts as −H; {remedy}")
        elif message := finite(threshold):
            yield policy.problem("threshold", message)


def _temperatures_of_scores(policy: View) -> Iterator[Problem]:
    if policy.temperature and policy.measure == "saturation":
        yield policy.problem(
            "temperature", "has no effect with measure saturation, which looks at no scores; remove it"
        )
    for temperature in policy.temperature:
        if message := _above_zero(temperature):
            yield policy.problem("temperature", message)


def _thresholds_within(policy: View, lowest: float, measure: str) -> Iterator[Problem]:
    for threshold in policy.threshold:
        if not lowest <= threshold <= NEVER:
            remedy = f"give a number from {lowest:g} to 1, or {NEVER:g} so that nobody leaves"
            yield policy.problem("threshold", f"{threshold} is out of range of {measure}; {remedy}")


def _learned_thresholds(policy: View) -> Iterator[Problem]:
    yield from _thresholds_within(policy, 0.0, LearnedConfidenceConfig.kind)


def _structure_has_a_threshold(policy: View) -> Iterator[Problem]:
    if message := _share(policy.threshold):
        yield policy.problem("threshold", message)
    elif policy.stops == "argmax":
        yield from _has_no_effect(policy, StructureExitConfig(), ["threshold"], "where the likeliest number decides")


def _decay_has_a_length(policy: View) -> Iterator[Problem]:
    if policy.decay is None:
        yield from _has_no_effect(policy, ThresholdConfig(), ["decay_rate", "max_length"], "without decay")
        return
    if policy.max_length is None:
        yield policy.problem("max_length", "required with decay; give the most tokens that a sequence may have")
    if any(threshold < 0 for threshold in policy.threshold):
        yield policy.problem("decay", "would make thresholds below 0 stricter along a sequence; remove it")


Check = Callable[[View], Iterator[Problem]]
CHECKS: dict[type[Any], tuple[Check, ...]] = {
    OracleConfig: (_never_correct_is_about_correctness,),
    PoissonBinomialConfig: (_chances_decide, _one_objective),
    ThresholdConfig: (_there_is_a_threshold, _decay_has_a_length),
    ConfidenceConfig: (_measured_thresholds, _temperatures_of_scores),
    LearnedConfidenceConfig: (_learned_thresholds,),
    StructureExitConfig: (_structure_has_a_threshold,),
}
"""What is asked of options together, by the classes that have them."""
