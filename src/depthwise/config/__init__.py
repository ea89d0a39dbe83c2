"""What a model and a run are made of, as plain data: options, presets, recipes, validation. Imports no torch."""

from depthwise.config.depth import (
    POLICIES,
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
    policy_dict,
)
from depthwise.config.depth_parsing import check_policy, parse_policy, placement_problems
from depthwise.config.exit_training import ExitTrainingConfig
from depthwise.config.latent import LatentConfig, LatentTrainingConfig
from depthwise.config.masking import MaskingConfig
from depthwise.config.model import (
    ACTIVATIONS,
    KERNEL_NORMALIZATIONS,
    KERNEL_SOURCES,
    MIXERS,
    NORMS,
    POOLINGS,
    POSITIONS,
    TIED_EMBEDDINGS,
    AdaptiveConfig,
    ExitsConfig,
    ModelConfig,
    StackConfig,
    as_dict,
)
from depthwise.config.parsing import nearest
from depthwise.config.presets import PRESETS, preset, preset_names
from depthwise.config.recipe import (
    PRETRAINED,
    DataConfig,
    EvaluationConfig,
    Recipe,
    SearchConfig,
    TokenizerConfig,
    TrainingConfig,
)
from depthwise.config.recipe_checks import GENERATING
from depthwise.config.recipe_parsing import merged, model_options, parse_recipe, recipe_dict, with_vocabulary
from depthwise.config.recipes import (
    BuiltIn,
    built_in,
    changed_recipe,
    load_recipe,
    read_recipe,
    recipe_text,
    recipe_yaml,
)
from depthwise.config.relative import RelativeConfig
from depthwise.config.structure import StructureConfig
from depthwise.config.teacher import TeacherConfig
from depthwise.config.validation import check_model, parse_model
from depthwise.config.word_depths import WordDepthsConfig

__all__ = [
    "ACTIVATIONS",
    "GENERATING",
    "KERNEL_NORMALIZATIONS",
    "KERNEL_SOURCES",
    "MIXERS",
    "NORMS",
    "POLICIES",
    "POOLINGS",
    "POSITIONS",
    "PRESETS",
    "PRETRAINED",
    "TIED_EMBEDDINGS",
    "AdaptiveConfig",
    "BuiltIn",
    "ConfidenceConfig",
    "DataConfig",
    "EvaluationConfig",
    "ExitTrainingConfig",
    "ExitsConfig",
    "FixedDepthConfig",
    "LatentConfig",
    "LatentTrainingConfig",
    "LearnedConfidenceConfig",
    "MaskingConfig",
    "ModelConfig",
    "PatienceConfig",
    "PoissonBinomialConfig",
    "PolicyConfig",
    "Recipe",
    "RelativeConfig",
    "SearchConfig",
    "SequenceExitConfig",
    "StackConfig",
    "StructureConfig",
    "StructureExitConfig",
    "TeacherConfig",
    "TokenExitConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "UniformExitConfig",
    "WordDepthsConfig",
    "as_dict",
    "built_in",
    "changed_recipe",
    "check_model",
    "check_policy",
    "load_recipe",
    "merged",
    "model_options",
    "nearest",
    "parse_model",
    "parse_policy",
    "parse_recipe",
    "placement_problems",
    "policy_dict",
    "preset",
    "preset_names",
    "read_recipe",
    "recipe_dict",
    "recipe_text",
    "recipe_yaml",
    "with_vocabulary",
]
