"""From the options of a policy to the policy."""

from collections.abc import Sequence

from depthwise.config.depth import (
    ConfidenceConfig,
    FixedDepthConfig,
    LearnedConfidenceConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    SequenceExitConfig,
    StructureExitConfig,
    TokenExitConfig,
    UniformExitConfig,
)
from depthwise.config.depth_parsing import placement_problems
from depthwise.depth.confidence_threshold import ConfidenceThreshold
from depthwise.depth.fixed import FixedDepth
from depthwise.depth.learned_confidence import LearnedConfidence
from depthwise.depth.patience import Patience
from depthwise.depth.poisson_binomial import PoissonBinomial
from depthwise.depth.policy import Policy
from depthwise.depth.sequence_exit import SequenceExit
from depthwise.depth.structure_predictor import StructureExit
from depthwise.depth.token_exit import TokenExit
from depthwise.depth.uniform import UniformExit
from depthwise.errors import ConfigError


def build_policy(options: PolicyConfig, *, width: int, exits: Sequence[int], has_source: bool = True) -> Policy:
    """The policy of a stack whose states have this width and whose tokens may leave at these depths.

    The options have been validated by themselves; ``ConfigError`` says where they do not go with the stack.
    ``has_source`` tells whether the stack reads an encoded source.
    """
    if problems := list(placement_problems(options, exits, has_source=has_source)):
        raise ConfigError(f"policy {options.kind}", problems)
    match options:
        case FixedDepthConfig():
            return FixedDepth(options)
        case SequenceExitConfig():
            return SequenceExit(options, width=width, num_exits=len(exits))
        case TokenExitConfig():
            return TokenExit(options, width=width, num_exits=len(exits))
        case PoissonBinomialConfig():
            return PoissonBinomial(options, width=width, num_exits=len(exits))
        case ConfidenceConfig():
            return ConfidenceThreshold(options)
        case PatienceConfig():
            return Patience(options)
        case LearnedConfidenceConfig():
            return LearnedConfidence(options, width=width)
        case StructureExitConfig():
            return StructureExit(options)
        case UniformExitConfig():
            return UniformExit(options)
