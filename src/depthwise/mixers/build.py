"""From the options of a stack to the mixer of one of its layers."""

from depthwise.config.model import StackConfig
from depthwise.mixers.attention import SelfAttention
from depthwise.mixers.average import AverageAttention
from depthwise.mixers.base import Mixer
from depthwise.mixers.cnn import CNN
from depthwise.mixers.dynamicconv import DynamicConv
from depthwise.mixers.lightconv import LightConv
from depthwise.mixers.projected import ConvOptions


def build_mixer(config: StackConfig, layer: int, *, width: int, causal: bool) -> Mixer:
    """The mixer of block ``layer``; the options have been validated."""
    size, gain = config.kernel_size(layer), config.gain_of_branches
    if config.mixer == "attention":
        return SelfAttention(
            width,
            config.heads_of(layer),
            causal=causal,
            window=size,
            dropout=config.attention_dropout,
            out_gain=gain,
            relative=config.relative,
            head_width=width // config.num_heads,
        )
    if config.mixer == "average":
        return AverageAttention(width, config.ffn_width, causal=causal)
    assert size is not None, "validation asks for kernel sizes wherever a convolution is used"
    if config.mixer == "cnn":
        return CNN(width, size, causal=causal, bias=config.conv_bias, out_gain=gain)
    if config.mixer == "dynamicconv":
        return DynamicConv(conv_options(config, size, width, causal), kernel_from=config.kernel_from)
    assert config.mixer in ("lightconv", "depthwise")
    return LightConv(conv_options(config, size, width, causal))


def conv_options(config: StackConfig, kernel_size: int, width: int, causal: bool) -> ConvOptions:
    """Options of the convolution; ``depthwise`` is one head per channel without normalisation."""
    depthwise = config.mixer == "depthwise"
    channels = width if config.conv_width is None else config.conv_width
    return ConvOptions(
        width=width,
        kernel_size=kernel_size,
        num_heads=channels if depthwise else config.kernel_heads or config.num_heads,
        causal=causal,
        conv_width=config.conv_width,
        glu=config.glu,
        normalization="none" if depthwise else config.kernel_normalization,
        dropconnect=config.dropconnect,
        dropconnect_shared=config.dropconnect_shared,
        renormalize_padding=config.renormalize_padding,
        bias=config.conv_bias,
        input_dropout=config.input_dropout,
        out_gain=config.gain_of_branches,
    )
