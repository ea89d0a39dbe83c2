"""Dynamic convolution as a module: where its kernels come from."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthwise.config.model import KERNEL_NORMALIZATIONS
from depthwise.mixers import DynamicConv, LightConv
from depthwise.mixers.projected import ConvOptions

Randomized = Callable[[Any], Any]


def options(**given: Any) -> ConvOptions:
    return ConvOptions(**{"width": 6, "kernel_size": 3, "num_heads": 2, "causal": True, **given})


@pytest.mark.parametrize("kind", KERNEL_NORMALIZATIONS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("taps", [3, 17])
def test_without_predictor_it_is_a_light_convolution_without_weights(
    kind: str, causal: bool, taps: int, randomized: Randomized, assert_same: Callable[..., None]
) -> None:
    given = options(kernel_size=taps, causal=causal, normalization=kind, glu=True)
    dynamic, light = randomized(DynamicConv(given)), randomized(LightConv(given))
    nn.init.zeros_(dynamic.kernel.weight)
    nn.init.zeros_(light.weight)
    light.load_state_dict(
        {name: value for name, value in dynamic.state_dict().items() if name != "kernel.weight"}, strict=False
    )
    x, valid = torch.randn(2, 9, 6, dtype=torch.float64), torch.rand(2, 9) < 0.7
    assert_same(dynamic(x, valid), light(x, valid))


def test_without_predictor_the_kernel_is_uniform(randomized: Randomized, assert_same: Callable[..., None]) -> None:
    """A third of the token and of the two before it, also where those do not exist."""
    mixer = randomized(DynamicConv(options()))
    nn.init.zeros_(mixer.kernel.weight)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    inputs = mixer.in_projection(x)
    sums = torch.stack([inputs[:, max(step - 2, 0) : step + 1].sum(1) for step in range(5)], dim=1)
    assert_same(mixer(x), mixer.out_projection(sums / 3))


def test_the_predictor_gives_taps_of_heads(randomized: Randomized, assert_same: Callable[..., None]) -> None:
    """Row h K + k of its matrix gives tap k of head h; taps run from the oldest to the newest position."""
    mixer = randomized(DynamicConv(options(num_heads=3)))
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    inputs = mixer.in_projection(x)
    mixed = torch.zeros_like(inputs)
    for step in range(4):
        scores = mixer.kernel.weight @ inputs[0, step]
        for channel in range(6):
            head = channel // 2
            kernel = scores[3 * head : 3 * head + 3].softmax(0)
            for tap in range(3):
                if step - 2 + tap >= 0:
                    mixed[0, step, channel] += kernel[tap] * inputs[0, step - 2 + tap, channel]
    assert_same(mixer(x), mixer.out_projection(mixed))


def kernel_inputs(mixer: DynamicConv, x: Tensor) -> Tensor:
    """What the predictor was given during a forward."""
    seen: list[Tensor] = []
    handle = mixer.kernel.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    mixer(x)
    handle.remove()
    return seen[0]


def test_kernels_come_from_the_convolution_input(randomized: Randomized) -> None:
    mixer = randomized(DynamicConv(options(glu=True, conv_width=4)))
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    assert torch.equal(kernel_inputs(mixer, x), mixer.write(x).inputs)


def test_kernels_may_come_from_the_input_of_the_layer(randomized: Randomized, assert_same: Callable[..., None]) -> None:
    mixer = randomized(DynamicConv(options(glu=True, conv_width=4), kernel_from="layer_input"))
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    assert torch.equal(kernel_inputs(mixer, x), x)
    memory = mixer.write(x)
    other = torch.randn_like(x)
    assert not torch.allclose(mixer.read(other, memory), mixer.read(x, memory))
    # with the default source, the states that read are in the memory already
    default = randomized(DynamicConv(options(glu=True, conv_width=4)))
    memory = default.write(x)
    assert_same(default.read(other, memory), default.read(x, memory))


def test_a_padded_position_still_predicts_its_kernel(randomized: Randomized) -> None:
    """From its own input, which nobody else sees; its output has no use but is finite."""
    mixer = randomized(DynamicConv(options()))
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    assert mixer(x, torch.tensor([[True, True, False, False]])).isfinite().all()
