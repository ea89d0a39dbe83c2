"""What holds for every mixer with every option: the two halves, decoding by steps, padding, rows, the future."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depthwise.config.model import KERNEL_NORMALIZATIONS, MIXERS
from depthwise.mixers import Mixer

WIDTH = 6
VARIANTS: dict[str, dict[str, Any]] = {
    **{mixer: {"mixer": mixer} for mixer in MIXERS},
    "attention-window": {"mixer": "attention", "windowed": True},
    "cnn-bias": {"mixer": "cnn", "conv_bias": True},
    "depthwise-glu-bias-narrow": {"mixer": "depthwise", "glu": True, "conv_bias": True, "conv_width": 4},
    "lightconv-glu": {"mixer": "lightconv", "glu": True},
    "lightconv-bias": {"mixer": "lightconv", "conv_bias": True},
    "lightconv-renormalized": {"mixer": "lightconv", "renormalize_padding": True},
    "lightconv-wide": {"mixer": "lightconv", "conv_width": 12},
    "lightconv-kernel-heads": {"mixer": "lightconv", "kernel_heads": 2},
    "dynamicconv-glu": {"mixer": "dynamicconv", "glu": True},
    "dynamicconv-bias": {"mixer": "dynamicconv", "conv_bias": True},
    "dynamicconv-renormalized": {"mixer": "dynamicconv", "renormalize_padding": True},
    "dynamicconv-narrow": {"mixer": "dynamicconv", "conv_width": 3},
    "dynamicconv-kernel-heads": {"mixer": "dynamicconv", "kernel_heads": 3},
    "dynamicconv-from-layer": {"mixer": "dynamicconv", "kernel_from": "layer_input", "glu": True, "conv_width": 4},
    **{
        f"{('lightconv', 'dynamicconv')[index % 2]}-{kind}": {
            "mixer": ("lightconv", "dynamicconv")[index % 2],
            "kernel_normalization": kind,
        }
        for index, kind in enumerate(KERNEL_NORMALIZATIONS)
        if kind != "softmax"
    },
}
every = pytest.mark.parametrize("variant", VARIANTS)
some_examples = settings(max_examples=10)
Build = Callable[..., Mixer]


@dataclass(frozen=True)
class Case:
    """Shapes of a problem; a seed draws the numbers."""

    causal: bool
    rows: int
    length: int
    kernel_size: int
    heads: int
    padding: str
    seed: int

    def mixer(self, build: Build, variant: str) -> Mixer:
        torch.manual_seed(self.seed)
        options = dict(VARIANTS[variant])
        windowed = options.pop("windowed", False)
        if options["mixer"] != "average" and (windowed or options["mixer"] != "attention"):
            options["kernel_sizes"] = (self.kernel_size,)
        channels = options.get("conv_width", WIDTH)
        heads = self.heads if channels % self.heads == 0 else channels
        return build(width=WIDTH, causal=self.causal, num_heads=heads, **options)

    def inputs(self) -> tuple[Tensor, Tensor | None]:
        torch.manual_seed(self.seed + 1)
        x = torch.randn(self.rows, self.length, WIDTH, dtype=torch.float64)
        steps, lost = torch.arange(self.length), torch.randint(self.length, (self.rows, 1))
        masks = {
            "none": None,
            "left": steps >= lost,
            "right": steps < self.length - lost,
            "middle": (torch.rand(self.rows, self.length) < 0.6) | (steps == lost),
            "nothing real": (steps < 0).expand(self.rows, -1),
        }
        return x, masks[self.padding]


@st.composite
def cases(draw: st.DrawFn, causal: bool | None = None) -> Case:
    causal = draw(st.booleans()) if causal is None else causal
    sizes = st.integers(1, 8) if causal else st.sampled_from([1, 3, 5, 7])
    kernel_size = draw(sizes)
    return Case(
        causal=causal,
        rows=draw(st.integers(1, 3)),
        length=draw(st.one_of(st.integers(1, 9), st.sampled_from([1, kernel_size]))),
        kernel_size=kernel_size,
        heads=draw(st.sampled_from([1, 2, 3, 6])),
        padding=draw(st.sampled_from(["none", "left", "right", "middle", "nothing real"])),
        seed=draw(st.integers(0, 999)),
    )


def at(tensor: Tensor, positions: Tensor) -> Tensor:
    """Rows of (B, T, D) at positions (B, P)."""
    return tensor.gather(1, positions.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))


# The two halves


@every
@some_examples
@given(case=cases())
def test_forward_writes_and_reads(variant: str, case: Case, build: Build) -> None:
    """Also where there is nothing but padding, everything is finite."""
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    y = mixer(x, valid)
    memory = mixer.write(x, valid)
    assert y.shape == x.shape
    assert y.isfinite().all()
    assert memory.length == case.length
    assert torch.equal(y, mixer.read(x, memory))


@every
@some_examples
@given(case=cases(), num_positions=st.integers(0, 4))
def test_some_positions_read_what_they_read_among_all(
    variant: str, case: Case, num_positions: int, build: Build, assert_same: Callable[..., None]
) -> None:
    """Different positions in every row, in any order, more than once, or none at all."""
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    positions = torch.randint(case.length, (case.rows, num_positions))
    everywhere, memory = mixer(x, valid), mixer.write(x, valid)
    assert_same(mixer.read(at(x, positions), memory, positions), at(everywhere, positions))


@every
@some_examples
@given(case=cases(), data=st.data())
def test_without_positions_the_last_ones_read(
    variant: str, case: Case, data: st.DataObject, build: Build, assert_same: Callable[..., None]
) -> None:
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    start = data.draw(st.integers(0, case.length))
    last = mixer.read(x[:, start:], mixer.write(x, valid))
    assert_same(last, mixer(x, valid)[:, start:])


# By steps


def decoded(mixer: Mixer, x: Tensor, valid: Tensor | None, chunks: list[int], forgets: bool = True) -> Tensor:
    """Append, read and forget, chunk by chunk."""
    memory, outputs, start = mixer.write(x[:, :0], None), [], 0
    for size in chunks:
        part = slice(start, start + size)
        memory = memory.append(mixer.write(x[:, part], None if valid is None else valid[:, part]))
        outputs.append(mixer.read(x[:, part], memory))
        if forgets:
            memory = mixer.forget(memory)
            assert mixer.reach is None or memory.length <= mixer.reach
        start += size
    return torch.cat(outputs, dim=1)


@every
@some_examples
@given(case=cases(causal=True))
def test_one_step_at_a_time(variant: str, case: Case, build: Build, assert_same: Callable[..., None]) -> None:
    """From the first step on, whatever is forgotten."""
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    everywhere = mixer(x, valid)
    for forgets in (True, False):
        assert_same(decoded(mixer, x, valid, [1] * case.length, forgets), everywhere)


@every
@some_examples
@given(case=cases(causal=True), data=st.data())
def test_several_steps_at_a_time(
    variant: str, case: Case, data: st.DataObject, build: Build, assert_same: Callable[..., None]
) -> None:
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    chunks, left = [], case.length
    while left:
        chunks.append(data.draw(st.integers(1, left)))
        left -= chunks[-1]
    assert_same(decoded(mixer, x, valid, chunks), mixer(x, valid))


@every
@some_examples
@given(case=cases(causal=True), data=st.data())
def test_rows_can_be_reordered_between_steps(
    variant: str, case: Case, data: st.DataObject, build: Build, assert_same: Callable[..., None]
) -> None:
    """As in beam search: rows are dropped and repeated, and each goes on as if it had always been there."""
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    cut = data.draw(st.integers(0, case.length - 1))
    rows = torch.randint(case.rows, (data.draw(st.integers(1, 4)),))
    past = mixer.forget(mixer.write(x[:, :cut], None if valid is None else valid[:, :cut])).keep(rows)
    x, valid = x[rows], None if valid is None else valid[rows]
    memory = past.append(mixer.write(x[:, cut:], None if valid is None else valid[:, cut:]))
    assert_same(mixer.read(x[:, cut:], memory), mixer(x, valid)[:, cut:])


@every
def test_the_memory_stops_growing(variant: str, build: Build) -> None:
    mixer = Case(True, 2, 9, 4, 2, "none", 0).mixer(build, variant)
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    kept = mixer.forget(mixer.write(x))
    limits = {"attention": None, "attention-window": 3, "average": 0}
    limit = limits.get(variant, 3)
    assert mixer.reach == limit
    assert kept.length == (9 if limit is None else limit)


# The future


@every
@some_examples
@given(case=cases(causal=True), data=st.data())
def test_the_future_is_not_seen(variant: str, case: Case, data: st.DataObject, build: Build) -> None:
    """Bit for bit: other tokens from ``now`` on leave what came before alone, and get no gradient from it."""
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    now = data.draw(st.integers(1, case.length))
    x.requires_grad_()
    y = mixer(x, valid)
    (gradient,) = torch.autograd.grad(y[:, :now].square().sum(), x)
    assert not gradient[:, now:].any()
    other = x.detach().clone()
    other[:, now:] = 100 * torch.randn_like(other[:, now:])
    assert torch.equal(mixer(other, valid)[:, :now], y[:, :now])


@every
@pytest.mark.parametrize(("causal", "seen"), [(False, [1, 2, 3]), (True, [0, 1, 2])])
def test_neighbours_are_seen(variant: str, causal: bool, seen: list[int], build: Build) -> None:
    """Kernels and windows of three reach them all: the one before and the one after, or the two before."""
    mixer = Case(causal, 1, 4, 3, 2, "none", 0).mixer(build, variant)
    x = torch.randn(1, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(mixer(x)[:, 2].square().sum(), x)
    found = gradient[0].any(-1).nonzero().flatten().tolist()
    assert found == (list(range(3 if causal else 4)) if variant in ("attention", "average") else seen)


# Padding


@every
@some_examples
@given(case=cases())
def test_padding_changes_nothing(variant: str, case: Case, build: Build, assert_same: Callable[..., None]) -> None:
    """Rows of different lengths, padded on either side with anything, against each row by itself."""
    mixer, (x, _) = case.mixer(build, variant), case.inputs()
    lengths = torch.randint(1, case.length + 1, (case.rows,)).tolist()
    for side in ("left", "right"):
        batch = 10 * torch.randn_like(x)
        valid = torch.zeros(case.rows, case.length, dtype=torch.bool)
        places = [
            slice(case.length - length, case.length) if side == "left" else slice(0, length) for length in lengths
        ]
        for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
            batch[row, place], valid[row, place] = x[row, :length], True
        padded = mixer(batch, valid)
        for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
            assert_same(padded[row : row + 1, place], mixer(x[row : row + 1, :length]))


@every
@some_examples
@given(case=cases())
def test_what_stands_in_padding_is_not_seen(variant: str, case: Case, build: Build) -> None:
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    if valid is None:
        valid = torch.ones(case.rows, case.length, dtype=torch.bool)
    other = torch.where(valid.unsqueeze(-1), x, 100 * torch.randn_like(x)).requires_grad_()
    y = mixer(other, valid)
    assert torch.equal(y[valid], mixer(x, valid)[valid])
    (gradient,) = torch.autograd.grad(y[valid].square().sum(), other)
    assert not gradient[~valid].any()


@every
@some_examples
@given(case=cases())
def test_a_mask_without_padding_is_no_mask(
    variant: str, case: Case, build: Build, assert_same: Callable[..., None]
) -> None:
    mixer, (x, _) = case.mixer(build, variant), case.inputs()
    assert_same(mixer(x, torch.ones(case.rows, case.length, dtype=torch.bool)), mixer(x))


# Rows


@every
@some_examples
@given(case=cases())
def test_rows_do_not_see_each_other(variant: str, case: Case, build: Build, assert_same: Callable[..., None]) -> None:
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    y = mixer(x, valid)
    for row in range(case.rows):
        alone = mixer(x[row : row + 1], None if valid is None else valid[row : row + 1])
        assert_same(alone, y[row : row + 1])


# Wide kernels


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["attention-window", "lightconv", "dynamicconv", "cnn", "depthwise"])
def test_the_widest_kernels(variant: str, causal: bool, build: Build, assert_same: Callable[..., None]) -> None:
    case = Case(causal, 2, 40, 255, 3, "middle", 7)
    mixer, (x, valid) = case.mixer(build, variant), case.inputs()
    everywhere = mixer(x, valid)
    positions = torch.randint(40, (2, 5))
    assert_same(mixer.read(at(x, positions), mixer.write(x, valid), positions), at(everywhere, positions))
    if causal:
        assert_same(decoded(mixer, x, valid, [1] * 10 + [7, 23]), everywhere)
