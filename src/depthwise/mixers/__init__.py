"""Sub-blocks that move information between positions. Every one writes and reads; see ``base.Mixer``."""

from depthwise.mixers.attention import CrossAttention, HeadProjection, SelfAttention
from depthwise.mixers.average import AverageAttention
from depthwise.mixers.base import Mixer
from depthwise.mixers.build import build_mixer
from depthwise.mixers.cnn import CNN
from depthwise.mixers.dynamicconv import DynamicConv, KernelPredictor
from depthwise.mixers.lightconv import LightConv

__all__ = [
    "CNN",
    "AverageAttention",
    "CrossAttention",
    "DynamicConv",
    "HeadProjection",
    "KernelPredictor",
    "LightConv",
    "Mixer",
    "SelfAttention",
    "build_mixer",
]
