"""How depth is decided, as plain data: one small dataclass for every kind of policy.

A policy is written as a mapping whose ``kind`` says which options it has, such as

    policy: {kind: confidence, measure: margin, threshold: 0.9}

``depth_parsing`` reads it; what each kind does stands in ``depthwise.depth``.
"""

from dataclasses import dataclass, fields
from typing import Any

MEASURES = ("max_probability", "margin", "entropy", "normalized_entropy", "saturation")
DECAYS = ("code", "paper")
ORACLES = ("correctness", "likelihood")
NEVER_CORRECT = ("first", "last")
"""The depth of a token that no exit gets right: the first exit, by the formula, or the last."""
DECISIONS = ("step", "quantile", "sample")
OBJECTIVES = ("oracle", "expected_loss")
STOPS = ("threshold", "argmax")


@dataclass(frozen=True, kw_only=True)
class FixedDepthConfig:
    """``fixed``: all tokens run the same number of blocks."""

    kind = "fixed"

    depth: int
    """How many: one of the depths at which there is an exit."""


@dataclass(frozen=True, kw_only=True)
class UniformExitConfig:
    """``uniform``: every token leaves at an exit that is drawn at random."""

    kind = "uniform"

    seed: int = 1
    """Another one draws other depths."""


@dataclass(frozen=True, kw_only=True)
class OracleConfig:
    """Which depth would have been best, argmax_n score[n] − λ·n; for policies that learn to guess it."""

    oracle: str = "correctness"
    """What scores an exit: whether the label is its first guess (``correctness``), or its log-``likelihood``."""
    penalty: float = 0.0
    """λ, the price of a block."""
    never_correct: str = "first"
    """The depth, by correctness, of tokens that no exit gets right: the ``first`` exit or the ``last``."""
    detach_features: bool = False
    """Whether states are constants to the policy, so that training it leaves the rest of the model alone."""


@dataclass(frozen=True, kw_only=True)
class SequenceExitConfig(OracleConfig):
    """``sequence``: one depth for all tokens of a sequence, guessed from the source."""

    kind = "sequence"


@dataclass(frozen=True, kw_only=True)
class TokenOracleConfig(OracleConfig):
    """An oracle of every token, which may look at its neighbours."""

    smoothing: float = 0.0
    """σ of the kernel over time exp(−|t − t'|²/σ): 0 looks at each token alone, ``.inf`` at whole sequences."""


@dataclass(frozen=True, kw_only=True)
class TokenExitConfig(TokenOracleConfig):
    """``token``: the depth of every token, guessed at the first exit."""

    kind = "token"

    each_token: bool = False
    """Where there is one prediction for a whole text (classification): whether its tokens leave each by itself, all
    learning the depth of the text, or all together. Where every token has a prediction, it always leaves by itself."""


@dataclass(frozen=True, kw_only=True)
class PoissonBinomialConfig(TokenOracleConfig):
    """``poisson_binomial``: at every exit a chance of leaving there, for every token."""

    kind = "poisson_binomial"

    shared: bool = False
    """Whether all exits have one classifier, or each its own."""
    decision: str = "step"
    """How chances decide: at the first exit whose own chance exceeds ``threshold`` (``step``), by which the chance of
    having left reaches it (``quantile``), or at random, as often as the chances say (``sample``)."""
    threshold: float = 0.5
    objective: str = "oracle"
    """What is learned: to leave where the ``oracle`` would, or where the ``expected_loss`` is least."""
    beta: float = 0.01
    """Weight of the divergence from the prior, beside the expected loss."""
    prior: float = 0.2
    """Chance of leaving at each exit that the prior of the expected loss has."""


@dataclass(frozen=True, kw_only=True)
class ThresholdConfig:
    """How sure is sure enough: one threshold for all exits but the last, or one for each of them."""

    threshold: tuple[float, ...] = ()
    """Those who are at least as sure leave. Above 1 nobody does."""
    decay: str | None = None
    """CALM's thresholds that fall along a sequence, by its released ``code`` or by the ``paper``; none means that they
    stay. Those above 1 always stay."""
    decay_rate: float = 4.0
    max_length: int | None = None
    """The number of tokens that the decay is stretched over."""

    def threshold_of(self, index: int) -> float:
        """The threshold of an exit, counted from 0."""
        return float(self.threshold[0 if len(self.threshold) == 1 else index])


@dataclass(frozen=True, kw_only=True)
class ConfidenceConfig(ThresholdConfig):
    """``confidence``: a token leaves at the first exit that is sure enough."""

    kind = "confidence"

    measure: str = "max_probability"
    """What being sure means: one of ``MEASURES``, all of which rise with certainty."""
    temperature: tuple[float, ...] = ()
    """What scores are divided by before they become probabilities (Guo et al. 2017), one for each exit but the last, so
    that exits are as sure as they are right; none means 1. ``depthwise calibrate --temperatures`` finds them."""

    def temperature_of(self, index: int) -> float:
        """The temperature of an exit, counted from 0."""
        return float(self.temperature[index]) if self.temperature else 1.0


@dataclass(frozen=True, kw_only=True)
class LearnedConfidenceConfig(ThresholdConfig):
    """``learned_confidence``: a token leaves where it is likely enough that the last exit would say the same."""

    kind = "learned_confidence"

    threshold: tuple[float, ...] = (0.5,)


@dataclass(frozen=True, kw_only=True)
class PatienceConfig:
    """``patience``: a token leaves once enough exits in a row have said the same."""

    kind = "patience"

    patience: int
    """How many exits have to agree with the one before."""
    tolerance: float = 0.1
    """The difference below which two estimates of a number are the same."""


@dataclass(frozen=True, kw_only=True)
class StructureExitConfig:
    """``structure``: an input leaves where its first layers said that it would need no more."""

    kind = "structure"

    threshold: float = 0.7
    """γ: layers run up to the first whose weight is below. 0 runs all of them, as in training."""
    stops: str | None = None
    """By the ``threshold``, or behind the likeliest number of layers (``argmax``); none means the first where weights
    are cumulative, and else the second."""


PolicyConfig = (
    FixedDepthConfig
    | SequenceExitConfig
    | TokenExitConfig
    | PoissonBinomialConfig
    | ConfidenceConfig
    | PatienceConfig
    | LearnedConfidenceConfig
    | StructureExitConfig
    | UniformExitConfig
)
POLICIES: dict[str, type[PolicyConfig]] = {
    config.kind: config
    for config in (
        *(FixedDepthConfig, SequenceExitConfig, TokenExitConfig, PoissonBinomialConfig),
        *(ConfidenceConfig, PatienceConfig, LearnedConfidenceConfig, StructureExitConfig, UniformExitConfig),
    )
}
"""The options of policies by kind."""


def policy_dict(config: PolicyConfig) -> dict[str, Any]:
    """The options as a mapping with their ``kind``, ready for YAML or JSON."""

    def plain(value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value

    return {"kind": config.kind, **{option.name: plain(getattr(config, option.name)) for option in fields(config)}}
