"""How deep: the policies that decide which blocks each token runs, and the plans they make."""

from depthwise.depth.build import build_policy
from depthwise.depth.confidence_threshold import ConfidenceThreshold
from depthwise.depth.fixed import FixedDepth
from depthwise.depth.latent import LatentGates, LatentLayers
from depthwise.depth.learned_confidence import LearnedConfidence
from depthwise.depth.patience import Patience
from depthwise.depth.plan import Gate, Plan
from depthwise.depth.poisson_binomial import PoissonBinomial
from depthwise.depth.policy import Context, Lesson, Policy, State, Visit
from depthwise.depth.sequence_exit import SequenceExit
from depthwise.depth.structure_predictor import LayerScores, RowGates, StructureExit, StructurePredictor
from depthwise.depth.token_exit import TokenExit
from depthwise.depth.uniform import UniformExit

__all__ = [
    "ConfidenceThreshold",
    "Context",
    "FixedDepth",
    "Gate",
    "LatentGates",
    "LatentLayers",
    "LayerScores",
    "LearnedConfidence",
    "Lesson",
    "Patience",
    "Plan",
    "PoissonBinomial",
    "Policy",
    "RowGates",
    "SequenceExit",
    "State",
    "StructureExit",
    "StructurePredictor",
    "TokenExit",
    "UniformExit",
    "Visit",
    "build_policy",
]
