"""From the options of a stack to its mixers."""

from dataclasses import fields
from typing import Any

import pytest

from depthwise.config.model import MIXERS, StackConfig
from depthwise.mixers import CNN, AverageAttention, DynamicConv, LightConv, Mixer, SelfAttention, build_mixer
from depthwise.mixers.build import conv_options
from depthwise.mixers.projected import ConvOptions

CLASSES = {
    "attention": SelfAttention,
    "lightconv": LightConv,
    "dynamicconv": DynamicConv,
    "cnn": CNN,
    "depthwise": LightConv,
    "average": AverageAttention,
}


def built(mixer: str, layer: int = 0, *, causal: bool = True, **options: Any) -> Mixer:
    options = {"num_heads": 2, "kernel_sizes": (3, 5), **options}
    return build_mixer(StackConfig(mixer=mixer, **options), layer, width=8, causal=causal)


def test_every_mixer_can_be_built() -> None:
    assert set(CLASSES) == set(MIXERS)
    for name, expected in CLASSES.items():
        assert type(built(name)) is expected


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mixer", ["lightconv", "dynamicconv", "depthwise", "cnn"])
def test_every_layer_has_its_own_kernel_size(mixer: str, causal: bool) -> None:
    for layer, size in enumerate((3, 5)):
        convolution = built(mixer, layer, causal=causal)
        assert convolution.reach == size - 1
        assert convolution.left == (size - 1 if causal else size // 2)
    assert built(mixer, 7, kernel_sizes=(31,)).reach == 30


def test_the_kernel_size_of_attention_is_its_window() -> None:
    attention = built("attention", 1, attention_dropout=0.3, causal=False)
    assert isinstance(attention, SelfAttention)
    assert (attention.window, attention.reach, attention.causal, attention.dropout) == (5, 4, False, 0.3)
    assert attention.projections.num_heads == 2
    unlimited = built("attention", kernel_sizes=None)
    assert isinstance(unlimited, SelfAttention)
    assert (unlimited.window, unlimited.reach, unlimited.causal) == (None, None, True)


def test_average_attention_has_the_width_of_the_feed_forward() -> None:
    average = built("average", ffn_width=12, causal=False)
    assert isinstance(average, AverageAttention)
    assert (average.hidden.out_features, average.causal) == (12, False)


@pytest.mark.parametrize("bias", [True, False])
def test_a_cnn_has_a_full_kernel(bias: bool) -> None:
    cnn = built("cnn", conv_bias=bias)
    assert isinstance(cnn, CNN)
    assert cnn.weight.shape == (8, 8, 3)
    assert (cnn.bias is not None) == bias


def test_options_of_a_convolution() -> None:
    """Each option of the stack reaches the one it is meant for."""
    stack = StackConfig(
        mixer="lightconv",
        num_heads=2,
        conv_width=12,
        glu=True,
        kernel_normalization="tanh",
        dropconnect=0.1,
        dropconnect_shared=True,
        renormalize_padding=True,
        conv_bias=True,
        input_dropout=0.2,
        out_gain=0.5,
    )
    options = conv_options(stack, 3, 8, True)
    assert options == ConvOptions(
        width=8,
        kernel_size=3,
        num_heads=2,
        causal=True,
        conv_width=12,
        glu=True,
        normalization="tanh",
        dropconnect=0.1,
        dropconnect_shared=True,
        renormalize_padding=True,
        bias=True,
        input_dropout=0.2,
        out_gain=0.5,
    )
    untouched = ConvOptions(width=8, kernel_size=3, num_heads=2, causal=True)
    assert all(getattr(options, each.name) != getattr(untouched, each.name) for each in fields(ConvOptions)[4:])


def test_defaults_of_a_convolution() -> None:
    options = conv_options(StackConfig(mixer="dynamicconv", num_heads=4), 3, 8, False)
    assert options == ConvOptions(width=8, kernel_size=3, num_heads=4, causal=False, out_gain=0.25)
    assert options.channels == 8


@pytest.mark.parametrize(("norm", "gain"), [("post", 0.25), ("pre", 1.0), ("none", 1.0)])
def test_branches_of_post_norm_stacks_start_small(norm: str, gain: float) -> None:
    assert conv_options(StackConfig(mixer="dynamicconv", norm=norm), 3, 8, True).out_gain == gain


def test_kernel_heads_come_before_attention_heads() -> None:
    options = conv_options(StackConfig(mixer="lightconv", num_heads=2, kernel_heads=4), 3, 8, True)
    assert options.num_heads == 4


@pytest.mark.parametrize(("conv_width", "channels"), [(None, 8), (12, 12)])
def test_a_depthwise_convolution_has_one_plain_kernel_per_channel(conv_width: int | None, channels: int) -> None:
    options = conv_options(StackConfig(mixer="depthwise", conv_width=conv_width, num_heads=2), 3, 8, True)
    assert (options.num_heads, options.channels, options.normalization) == (channels, channels, "none")


def test_the_source_of_dynamic_kernels() -> None:
    for source, features in (("conv_input", 12), ("layer_input", 8)):
        convolution = built("dynamicconv", kernel_from=source, conv_width=12)
        assert isinstance(convolution, DynamicConv)
        assert convolution.kernel.weight.shape == (2 * 3, features)
        assert convolution.kernel.bias is None
