"""The module around light and dynamic convolutions: projections, gate, bias, dropout."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from depthwise.errors import BackendUnavailable
from depthwise.kernels import dynamic_conv, light_conv, use_backend
from depthwise.memory import Places, Sequences
from depthwise.mixers import DynamicConv, LightConv
from depthwise.mixers.projected import ConvOptions, ProjectedConv

WIDTH = 6
both = pytest.mark.parametrize("kind", [LightConv, DynamicConv], ids=["light", "dynamic"])
Randomized = Callable[[Any], Any]


def options(**given: Any) -> ConvOptions:
    return ConvOptions(**{"width": WIDTH, "kernel_size": 3, "num_heads": 2, "causal": True, **given})


def convolved(mixer: ProjectedConv, inputs: Tensor, valid: Tensor | None) -> Tensor:
    """What the kernels in ``depthwise.kernels`` make of a memory, with the predictor written out."""
    given = {
        "left": mixer.options.kernel_size - 1,
        "valid": valid,
        "normalization": mixer.options.normalization,
        "renormalize": mixer.options.renormalize_padding,
    }
    if isinstance(mixer, LightConv):
        return light_conv(inputs, mixer.weight, **given)
    assert isinstance(mixer, DynamicConv)
    predictor = mixer.kernel.weight.view(mixer.options.num_heads, mixer.options.kernel_size, -1)
    return dynamic_conv(inputs, torch.einsum("hkc,btc->bthk", predictor, inputs), **given)


@both
@pytest.mark.parametrize("conv_width", [None, 4])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("glu", [False, True])
@pytest.mark.parametrize("renormalize", [False, True])
def test_the_whole_module(
    kind: type[ProjectedConv],
    glu: bool,
    bias: bool,
    conv_width: int | None,
    renormalize: bool,
    randomized: Randomized,
    assert_same: Callable[..., None],
) -> None:
    """Y = W_O (conv(act(W_I X)) + b); the gate is the sigmoid of the second half."""
    mixer = randomized(kind(options(glu=glu, bias=bias, conv_width=conv_width, renormalize_padding=renormalize)))
    x, valid = torch.randn(2, 5, WIDTH, dtype=torch.float64), torch.rand(2, 5) < 0.7
    channels = conv_width or WIDTH
    inputs = x @ mixer.in_projection.weight.T + mixer.in_projection.bias
    if glu:
        inputs = inputs[..., :channels] / (1 + (-inputs[..., channels:]).exp())
    assert inputs.shape[-1] == channels
    mixed = convolved(mixer, inputs, valid)
    if bias:
        mixed = mixed + mixer.conv_bias
    assert_same(mixer(x, valid), mixed @ mixer.out_projection.weight.T + mixer.out_projection.bias)
    assert_same(mixer.write(x, valid).inputs, inputs)


@both
def test_parameters(kind: type[ProjectedConv]) -> None:
    """Biases on both projections, none on the convolution unless asked for; it then starts at zero."""
    plain = {name for name, _ in kind(options()).named_parameters()}
    kernel = "weight" if kind is LightConv else "kernel.weight"
    projections = {f"{side}_projection.{name}" for side in ("in", "out") for name in ("weight", "bias")}
    assert plain == {kernel, *projections}
    mixer = kind(options(bias=True, conv_width=4))
    assert {name for name, _ in mixer.named_parameters()} == {*plain, "conv_bias"}
    assert mixer.conv_bias is not None
    assert torch.equal(mixer.conv_bias, torch.zeros(4))


@both
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_a_kernel_reads_packed_sequences_as_they_lie(
    kind: type[ProjectedConv],
    some: bool,
    renormalize: bool,
    randomized: Randomized,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the reference does with room between them; by Triton's interpreter where there is no GPU."""
    pytest.importorskip("triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mixer = randomized(kind(options(kernel_size=5, causal=False, bias=True, renormalize_padding=renormalize)))
    mixer = mixer.to(device, torch.float32)
    sequences = Sequences(np.repeat(np.arange(3), [4, 1, 9]), device)
    places = Places(sequences, np.array([1, 2, 4, 7, 13]) if some else None)
    x = torch.randn(1, len(sequences), WIDTH, device=device)
    with torch.no_grad():
        with use_backend("reference"):
            expected = mixer.mix_packed(x, places)
        monkeypatch.setattr(Places, "spaced", None)
        with use_backend("triton"):
            found = mixer.mix_packed(x, places)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


# Few readers


def folded_and_plain(mixer: ProjectedConv, monkeypatch: pytest.MonkeyPatch, readers: list[int] | None) -> list[Tensor]:
    """What readers take of three sequences, with inputs that nobody projects and with all of them."""
    torch.manual_seed(0)
    x = torch.randn(1, 23, WIDTH, dtype=mixer.out_projection.weight.dtype)
    places = Places(Sequences(np.repeat([0, 1, 2], [9, 4, 10]), x.device), readers and np.array(readers))
    found = []
    for worth in (0, inf):
        monkeypatch.setattr("depthwise.mixers.projected.WORTH_FOLDING", worth)
        found.append(mixer.mix_packed(x, places))
    return found


@both
@pytest.mark.parametrize("readers", [[0], [3, 10, 11, 22], None])
@pytest.mark.parametrize("at_once", [1, 10**6])
@pytest.mark.parametrize(
    "given",
    [{}, {"causal": False, "kernel_size": 7, "bias": True}, {"kernel_size": 12}, {"conv_width": 4}, {"num_heads": 6}]
    + [{"normalization": kind} for kind in ("none", "tanh", "l1")],
    ids=str,
)
def test_few_readers_need_no_inputs(
    kind: type[ProjectedConv],
    given: dict[str, Any],
    at_once: int,
    readers: list[int] | None,
    randomized: Randomized,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("depthwise.mixers.projected.FOLDED_AT_ONCE", at_once)
    mixer = randomized(kind(options(**given))).eval()
    folded, plain = folded_and_plain(mixer, monkeypatch, readers)
    torch.testing.assert_close(folded, plain, rtol=1e-12, atol=1e-12)


@both
def test_folding_is_chosen_where_it_takes_fewer_operations(kind: type[ProjectedConv], randomized: Randomized) -> None:
    mixer = randomized(kind(options(kernel_size=7))).eval()
    x = torch.randn(1, 40, WIDTH, dtype=torch.float64)
    sequences = Sequences(np.zeros(40, dtype=np.int64), x.device)
    for readers, is_folded in (([7, 20], True), (list(range(39)), False)):
        assert (mixer._folded(x, Places(sequences, np.array(readers))) is not None) is is_folded


def test_kernels_from_states_are_folded_too(randomized: Randomized, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = randomized(DynamicConv(options(conv_width=4), kernel_from="layer_input")).eval()
    folded, plain = folded_and_plain(mixer, monkeypatch, [3, 22])
    torch.testing.assert_close(folded, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "kind",
    [LightConv, DynamicConv, partial(DynamicConv, kernel_from="layer_input")],
    ids=["light", "dynamic", "states"],
)
@pytest.mark.parametrize("glu", [False, True])
def test_kernels_may_be_prepared(
    kind: Callable[[ConvOptions], ProjectedConv], glu: bool, randomized: Randomized, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixer = randomized(kind(options(glu=glu))).eval()
    _, plain = folded_and_plain(mixer, monkeypatch, [3, 10, 22])
    with torch.no_grad():
        mixer.prepare()
    folded, again = folded_and_plain(mixer, monkeypatch, [3, 10, 22])
    assert torch.equal(again, plain)
    torch.testing.assert_close(folded, plain, rtol=1e-12, atol=1e-12)


@both
@pytest.mark.parametrize("given", [{"glu": True}, {"renormalize_padding": True}], ids=str)
def test_what_is_not_linear_is_not_folded(
    kind: type[ProjectedConv], given: dict[str, Any], randomized: Randomized, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded, plain = folded_and_plain(randomized(kind(options(**given))).eval(), monkeypatch, [3, 22])
    assert torch.equal(folded, plain)


@both
def test_sums_that_would_be_rounded_or_heard_are_not_folded(
    kind: type[ProjectedConv], randomized: Randomized, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixer, heard = randomized(kind(options())).eval(), []
    with mixer.in_projection.register_forward_hook(lambda *_: heard.append(1)):
        folded_and_plain(mixer, monkeypatch, [3, 22])
    assert len(heard) == 2
    folded, plain = folded_and_plain(mixer.bfloat16(), monkeypatch, [3, 22])
    assert torch.equal(folded, plain)


@both
def test_a_back_end_that_is_asked_for_is_not_passed_by(kind: type[ProjectedConv], randomized: Randomized) -> None:
    """Few readers of float64, which no kernel knows."""
    mixer = randomized(kind(options(kernel_size=7))).eval()
    x = torch.randn(1, 40, WIDTH, dtype=torch.float64)
    places = Places(Sequences(np.zeros(40, dtype=np.int64), x.device), np.array([7, 20]))
    with use_backend("triton"), pytest.raises(BackendUnavailable):
        mixer.mix_packed(x, places)


# Dropout


@both
@pytest.mark.parametrize(
    "dropping",
    [{"input_dropout": 0.5}, {"dropconnect": 0.5}, {"dropconnect": 0.5, "dropconnect_shared": True}],
    ids=str,
)
def test_dropout_acts_in_training_only(
    kind: type[ProjectedConv], dropping: dict[str, Any], randomized: Randomized, training: Callable[[nn.Module], Any]
) -> None:
    mixer, plain = randomized(kind(options(**dropping))), randomized(kind(options()))
    plain.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 8, WIDTH, dtype=torch.float64)
    undropped = plain(x)
    assert torch.equal(mixer(x), undropped)
    with training(mixer), training(plain):
        assert torch.equal(plain(x), undropped)
        first, second = mixer(x), mixer(x)
    assert not torch.allclose(first, undropped)
    assert not torch.allclose(first, second)


@both
def test_input_dropout_comes_before_the_projection(
    kind: type[ProjectedConv], randomized: Randomized, training: Callable[[nn.Module], Any]
) -> None:
    """With the identity as projection, every number of the memory is zero or scaled up."""
    mixer = randomized(kind(options(input_dropout=0.25)))
    nn.init.eye_(mixer.in_projection.weight)
    nn.init.zeros_(mixer.in_projection.bias)
    x = torch.rand(4, 50, WIDTH, dtype=torch.float64) + 0.5
    with training(mixer):
        scale = mixer.write(x).inputs / x
    kept = scale > 0.5
    torch.testing.assert_close(scale, kept.double() / 0.75, rtol=0, atol=1e-12)
    assert 0.65 < kept.double().mean() < 0.85


@both
@pytest.mark.parametrize("shared", [False, True])
def test_dropconnect_drops_taps(
    kind: type[ProjectedConv], shared: bool, randomized: Randomized, training: Callable[[nn.Module], Any]
) -> None:
    """Uniform kernels over a constant: the output counts the kept taps; shared masks count the same everywhere."""
    mixer = randomized(kind(options(num_heads=1, kernel_size=4, dropconnect=0.5, dropconnect_shared=shared)))
    for projection in (mixer.in_projection, mixer.out_projection):
        nn.init.eye_(projection.weight)
        nn.init.zeros_(projection.bias)
    nn.init.zeros_(mixer.weight if isinstance(mixer, LightConv) else mixer.kernel.weight)
    with training(mixer):
        counts = 2 * mixer(torch.ones(8, 20, WIDTH, dtype=torch.float64))[:, 3:]
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-12)
    assert (counts.round().unique().numel() == 1) == shared
    assert torch.equal(counts, counts[..., :1].expand_as(counts))
