"""Pure functions on tensors. Each operation is one public function with its plain PyTorch reference beside it."""

from depthwise.kernels.attention import attend
from depthwise.kernels.average import running_mean
from depthwise.kernels.backend import BACKENDS, is_forced, pick, use_backend
from depthwise.kernels.cross_entropy import smoothed_cross_entropy
from depthwise.kernels.dynamic_conv import dynamic_conv
from depthwise.kernels.full_conv import full_conv
from depthwise.kernels.light_conv import light_conv
from depthwise.kernels.packed import is_convolved_as_it_lies
from depthwise.kernels.residual_norm import residual_norm
from depthwise.kernels.weights import normalize

__all__ = [
    "BACKENDS",
    "attend",
    "dynamic_conv",
    "full_conv",
    "is_convolved_as_it_lies",
    "is_forced",
    "light_conv",
    "normalize",
    "pick",
    "residual_norm",
    "running_mean",
    "smoothed_cross_entropy",
    "use_backend",
]
