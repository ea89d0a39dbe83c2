"""What a model is made of, as plain data: options, presets and validation. Imports no torch."""

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
    ModelConfig,
    StackConfig,
    as_dict,
)
from depthwise.config.parsing import nearest
from depthwise.config.presets import PRESETS, preset, preset_names
from depthwise.config.validation import check_model, parse_model

__all__ = [
    "ACTIVATIONS",
    "KERNEL_NORMALIZATIONS",
    "KERNEL_SOURCES",
    "MIXERS",
    "NORMS",
    "POOLINGS",
    "POSITIONS",
    "PRESETS",
    "TIED_EMBEDDINGS",
    "AdaptiveConfig",
    "ModelConfig",
    "StackConfig",
    "as_dict",
    "check_model",
    "nearest",
    "parse_model",
    "preset",
    "preset_names",
]
