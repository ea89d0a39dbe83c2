"""Sub-blocks that move information between positions. Every one writes and reads; see ``base.Mixer``."""

from depthwise.mixers.attention import CrossAttention, Distances, SelfAttention
from depthwise.mixers.average import AverageAttention
from depthwise.mixers.base import Mixer
from depthwise.mixers.build import build_mixer
from depthwise.mixers.cnn import CNN
from depthwise.mixers.dynamicconv import DynamicConv, KernelPredictor
from depthwise.mixers.lightconv import LightConv
from depthwise.mixers.linear import ScaledLinear, torch_gain

__all__ = [
    "CNN",
    "AverageAttention",
    "CrossAttention",
    "Distances",
    "DynamicConv",
    "KernelPredictor",
    "LightConv",
    "Mixer",
    "ScaledLinear",
    "SelfAttention",
    "build_mixer",
    "torch_gain",
]
