"""What light and dynamic convolution have in common: normalise, drop, sum over taps, forget padding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from depthwise.config.model import KERNEL_NORMALIZATIONS
from depthwise.kernels import dynamic_conv, light_conv, normalize

NONNEGATIVE = ("softmax", "sigmoid", "square", "abs", "abs_l1", "abs_l2")
Convolve = Callable[..., Tensor]


def light(x: Tensor, logits: Tensor, **options: Any) -> Tensor:
    """Light convolution with the kernel of the first position, so that both can be called alike."""
    if options.get("positions") is None:
        options["num_last"] = logits.shape[1]
    return light_conv(x, logits[0, 0], **options)


def raw_kernels(convolve: Convolve, logits: Tensor) -> Tensor:
    """The kernels that ``convolve`` uses of those given."""
    return logits[:1, :1] if convolve is light else logits


both = pytest.mark.parametrize("convolve", [light, dynamic_conv], ids=["light", "dynamic"])


@dataclass(frozen=True)
class Case:
    x: Tensor
    logits: Tensor
    left: int
    valid: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, length, channels = self.x.shape
        return rows, length, channels


def padding(kind: str, rows: int, length: int) -> Tensor | None:
    """Validity masks of rows that lose ever more tokens at the left, the right, both, or in between."""
    if kind == "none":
        return None
    steps = torch.arange(length)
    lost = torch.arange(rows).unsqueeze(1)
    valid = {
        "left": steps >= lost,
        "right": steps < length - lost,
        "both": (steps >= lost) & (steps < length - lost),
        "middle": (steps - length // 2).abs() >= lost,
        "all": (steps >= 0) & (lost < 0),
    }
    return valid[kind]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, heads = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    taps = draw(st.one_of(st.integers(1, 8), st.sampled_from([16, 31, 255])))
    length = draw(st.one_of(st.integers(1, 9), st.sampled_from([min(taps, 40), 33])))
    lefts = [taps - 1, (taps - 1) // 2] if taps % 2 else [taps - 1]
    kind = draw(st.sampled_from(["none", "left", "right", "both", "middle", "all"]))
    torch.manual_seed(draw(st.integers(0, 99)))
    return Case(
        torch.randn(rows, length, heads * draw(st.integers(1, 3)), dtype=torch.float64),
        torch.randn(rows, length, heads, taps, dtype=torch.float64),
        draw(st.sampled_from(lefts)),
        padding(kind, rows, length),
    )


def zeroed(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else torch.where(valid.unsqueeze(-1), x, 0.0)


@both
@given(case=cases(), kind=st.sampled_from(KERNEL_NORMALIZATIONS))
def test_the_formula(
    convolve: Convolve, case: Case, kind: str, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]
) -> None:
    kernels = normalize(raw_kernels(convolve, case.logits), kind)
    y = convolve(case.x, case.logits, left=case.left, valid=case.valid, normalization=kind)
    assert_same(y, sum_over_taps(zeroed(case.x, case.valid), kernels, case.left))


@both
@pytest.mark.parametrize("kind", KERNEL_NORMALIZATIONS)
def test_every_normalisation(
    convolve: Convolve, kind: str, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]
) -> None:
    x, logits = torch.randn(2, 6, 4, dtype=torch.float64), torch.randn(2, 6, 2, 3, dtype=torch.float64)
    kernels = normalize(raw_kernels(convolve, logits), kind)
    assert_same(convolve(x, logits, left=1, normalization=kind), sum_over_taps(x, kernels, 1))


@both
def test_softmax_is_the_default(convolve: Convolve) -> None:
    x, logits = torch.randn(2, 6, 4), torch.randn(2, 6, 2, 3)
    assert torch.equal(convolve(x, logits, left=1), convolve(x, logits, left=1, normalization="softmax"))


@both
@given(case=cases(), renormalize=st.booleans(), data=st.data())
def test_some_positions_are_rows_of_all(
    convolve: Convolve, case: Case, renormalize: bool, data: st.DataObject, assert_same: Callable[..., None]
) -> None:
    rows, length, channels = case.shape
    options: dict[str, Any] = {"left": case.left, "valid": case.valid, "renormalize": renormalize}
    expected = convolve(case.x, case.logits, **options)
    positions = torch.randint(length, (rows, data.draw(st.integers(1, 4))))
    logits = case.logits[torch.arange(rows).unsqueeze(1), positions]
    if convolve is light:
        logits[0, 0] = case.logits[0, 0]
    subset = convolve(case.x, logits, positions=positions, **options)
    assert_same(subset, expected.gather(1, positions.unsqueeze(-1).expand(-1, -1, channels)))
    count = data.draw(st.integers(1, length))
    logits = case.logits[:, length - count :].clone()
    if convolve is light:
        logits[0, 0] = case.logits[0, 0]
    assert_same(convolve(case.x, logits, **options), expected[:, length - count :])


@both
@given(case=cases())
def test_gradients(convolve: Convolve, case: Case, assert_same: Callable[..., None]) -> None:
    """Of inputs and kernels, against the same formula written with unfolded windows."""
    x, logits = case.x.requires_grad_(), case.logits.requires_grad_()
    taps, heads = logits.shape[-1], logits.shape[-2]
    y = convolve(x, logits, left=case.left, valid=case.valid)
    kernels = raw_kernels(convolve, logits).softmax(-1).unsqueeze(-2)
    padded = torch.nn.functional.pad(zeroed(x, case.valid), (0, 0, case.left, taps - 1 - case.left))
    windows = padded.unfold(1, taps, 1).unflatten(2, (heads, -1))
    expected = (windows * kernels).sum(-1).flatten(2)
    mark = torch.randn_like(y)
    found, wanted = (torch.autograd.grad(out, (x, logits), mark) for out in (y, expected))
    for actual, gradient in zip(found, wanted, strict=True):
        assert_same(actual, gradient)


@both
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "abs_l2"])
def test_gradients_are_derivatives(convolve: Convolve, kind: str, renormalize: bool) -> None:
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, 4, 1, 3, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True, True, True, False], [False, True, True, True]])

    def run(x: Tensor, logits: Tensor) -> Tensor:
        return convolve(x, logits, left=2, valid=valid, normalization=kind, renormalize=renormalize)

    assert torch.autograd.gradcheck(run, (x, logits))


# Heads


@both
def test_permuting_channels_of_a_head_permutes_its_outputs(convolve: Convolve) -> None:
    """Channels 0-2 share one kernel and 3-5 the other: moving them inside their block changes nothing else."""
    x, logits = torch.randn(2, 5, 6, dtype=torch.float64), torch.randn(2, 5, 2, 3, dtype=torch.float64)
    y = convolve(x, logits, left=2)
    inside, across = [2, 0, 1, 4, 5, 3], [3, 1, 2, 0, 4, 5]
    assert torch.equal(convolve(x[..., inside], logits, left=2), y[..., inside])
    assert not torch.allclose(convolve(x[..., across], logits, left=2), y[..., across])
    blocks = [3, 4, 5, 0, 1, 2]
    assert torch.equal(convolve(x[..., blocks], logits.flip(2), left=2), y[..., blocks])


# Mass of the kernel: over all taps, lost outside


@both
@pytest.mark.parametrize(("length", "taps"), [(1, 3), (2, 5), (4, 16), (3, 255)])
def test_kernels_are_cut_after_the_softmax(
    convolve: Convolve, length: int, taps: int, assert_same: Callable[..., None]
) -> None:
    """Equal logits give every tap 1/K, also where fewer than K tokens exist."""
    x = torch.randn(2, length, 2, dtype=torch.float64)
    y = convolve(x, torch.zeros(2, length, 1, taps, dtype=torch.float64), left=taps - 1)
    assert_same(y, x.cumsum(1) / taps)


@both
@given(case=cases())
def test_a_constant_stays_constant_inside(convolve: Convolve, case: Case, assert_same: Callable[..., None]) -> None:
    """Softmax kernels sum to 1: wherever the window is whole the output is the input; elsewhere it is smaller."""
    (_, length, _), taps = case.shape, case.logits.shape[-1]
    y = convolve(torch.full_like(case.x, 3.0), case.logits, left=case.left)
    whole = slice(case.left, max(length - (taps - 1 - case.left), case.left))
    assert_same(y[:, whole], torch.full_like(y[:, whole], 3.0))
    assert (y <= 3 + 1e-12).all()


@both
@given(case=cases())
def test_padding_is_zero_input(convolve: Convolve, case: Case) -> None:
    """Bit for bit; whatever stood in the padding is never seen, not even if it is not finite."""
    clean = convolve(zeroed(case.x, case.valid), case.logits, left=case.left)
    dirty = case.x if case.valid is None else torch.where(case.valid.unsqueeze(-1), case.x, float("nan"))
    assert torch.equal(convolve(dirty, case.logits, left=case.left, valid=case.valid), clean)


@both
@given(case=cases(), kind=st.sampled_from(NONNEGATIVE))
def test_renormalised_constants_stay_constant_everywhere(
    convolve: Convolve, case: Case, kind: str, assert_same: Callable[..., None]
) -> None:
    """Also at the borders and beside padding. A window without any real token gives 0."""
    x = torch.full_like(case.x, 3.0)
    if case.valid is not None:
        x[~case.valid] = 1e6
    (rows, length, _), taps = case.shape, case.logits.shape[-1]
    y = convolve(x, case.logits, left=case.left, valid=case.valid, normalization=kind, renormalize=True)
    real = torch.ones(rows, length, dtype=torch.bool) if case.valid is None else case.valid
    for step in range(length):
        window = slice(max(step - case.left, 0), step - case.left + taps)
        expected = torch.where(real[:, window].any(1, keepdim=True), 3.0, 0.0).expand_as(y[:, step])
        assert_same(y[:, step], expected.double())


@both
@given(case=cases())
def test_renormalising_divides_by_the_mass_on_real_tokens(
    convolve: Convolve, case: Case, sum_over_taps: Callable[..., Tensor], assert_same: Callable[..., None]
) -> None:
    kernels = raw_kernels(convolve, case.logits).softmax(-1)
    mass = sum_over_taps(zeroed(torch.ones_like(case.x), case.valid), kernels, case.left)
    plain = sum_over_taps(zeroed(case.x, case.valid), kernels, case.left)
    y = convolve(case.x, case.logits, left=case.left, valid=case.valid, renormalize=True)
    assert_same(y, plain / torch.where(mass == 0, 1.0, mass))


@both
@pytest.mark.parametrize("shared", [False, True])
def test_renormalising_ignores_dropped_entries(
    convolve: Convolve, shared: bool, assert_same: Callable[..., None]
) -> None:
    """The mass is that of the kernel before DropConnect: the mean over masks stays what it was."""
    x, logits = torch.randn(2, 6, 4, dtype=torch.float64), torch.randn(2, 6, 2, 3, dtype=torch.float64)
    options: dict[str, Any] = {"left": 2, "dropconnect": 0.5, "dropconnect_shared": shared}
    torch.manual_seed(5)
    dropped = convolve(x, logits, **options)
    torch.manual_seed(5)
    y = convolve(x, logits, renormalize=True, **options)
    mass = convolve(torch.ones_like(x), logits, left=2)
    assert_same(y, dropped / mass)


# DropConnect


@both
@pytest.mark.parametrize("shared", [False, True])
def test_dropping_nothing_is_exact(convolve: Convolve, shared: bool) -> None:
    x, logits = torch.randn(2, 6, 4), torch.randn(2, 6, 2, 3)
    plain = convolve(x, logits, left=1)
    assert torch.equal(convolve(x, logits, left=1, dropconnect=0.0, dropconnect_shared=shared), plain)


def kept_taps(convolve: Convolve, *, shared: bool, rows: int = 3, taps: int = 4, periods: int = 40) -> Tensor:
    """Which taps survive, as (row, period, step within a period, channel).

    Uniform kernels meet an impulse every K steps, so every position sees exactly one of its own taps, the same one as
    the position a period later. A kept tap shows as (1 / K) / (1 - p), a dropped one as 0.
    """
    length, probability = taps * periods, 0.5
    x = torch.zeros(rows, length, 4, dtype=torch.float64)
    x[:, ::taps] = 1
    logits = torch.zeros(rows, length, 2, taps, dtype=torch.float64)
    y = convolve(x, logits, left=taps - 1, dropconnect=probability, dropconnect_shared=shared)
    mask = y * taps * (1 - probability)
    kept = mask > 0.5
    torch.testing.assert_close(mask, kept.double(), rtol=0, atol=1e-12)  # dropped or scaled up, never renormalised
    return kept.unflatten(1, (periods, taps))


@both
def test_masks_differ_by_row_position_head_and_tap(convolve: Convolve) -> None:
    kept = kept_taps(convolve, shared=False)
    for axis in range(3):
        assert not torch.equal(kept, kept.narrow(axis, 0, 1).expand_as(kept))
    assert not torch.equal(kept[..., :2], kept[..., 2:])
    assert torch.equal(kept[..., ::2], kept[..., 1::2])  # channels of a head share its kernel


@both
def test_a_shared_mask_is_the_same_for_all_rows_and_positions(convolve: Convolve) -> None:
    kept = kept_taps(convolve, shared=True, taps=16, periods=3)
    assert torch.equal(kept, kept[:1, :1].expand_as(kept))
    assert not torch.equal(kept, kept[:, :, :1].expand_as(kept))
    assert not torch.equal(kept[..., :2], kept[..., 2:])
    assert torch.equal(kept[..., ::2], kept[..., 1::2])


@both
def test_masks_differ_between_calls(convolve: Convolve) -> None:
    for shared in (False, True):
        first, second = (kept_taps(convolve, shared=shared, taps=16, periods=2) for _ in range(2))
        assert not torch.equal(first, second)


@both
def test_masks_average_out(convolve: Convolve) -> None:
    """Every row draws its own masks: their mean comes close to the undropped result (five standard errors)."""
    rows, probability = 20_000, 0.3
    x, logits = torch.randn(1, 5, 2, dtype=torch.float64), torch.randn(1, 5, 1, 3, dtype=torch.float64)
    plain = convolve(x, logits, left=1)
    many = convolve(x.expand(rows, -1, -1), logits.expand(rows, -1, -1, -1), left=1, dropconnect=probability)
    error = many.std(0) / rows**0.5
    assert ((many.mean(0) - plain[0]).abs() <= 5 * error).all()
    assert (error > 0).all()


@both
def test_shared_masks_average_out(convolve: Convolve) -> None:
    x, logits = torch.randn(1, 5, 2, dtype=torch.float64), torch.randn(1, 5, 1, 3, dtype=torch.float64)
    options: dict[str, Any] = {"left": 1, "dropconnect": 0.3, "dropconnect_shared": True}
    many = torch.cat([convolve(x, logits, **options) for _ in range(2_000)])
    error = many.std(0) / len(many) ** 0.5
    assert ((many.mean(0) - convolve(x, logits, left=1)[0]).abs() <= 5 * error).all()


@both
@pytest.mark.parametrize("count", [1, 3])
def test_dropping_at_some_positions(convolve: Convolve, count: int) -> None:
    """A subset draws masks for its own positions only; every tap is still kept or dropped as a whole."""
    taps = 5
    x = torch.ones(64, 9, 2, dtype=torch.float64)
    positions = torch.arange(4, 4 + count).expand(64, -1)
    y = convolve(
        x,
        torch.zeros(64, count, 1, taps, dtype=torch.float64),
        left=4,
        positions=positions,
        dropconnect=0.5,
    )
    kept = y * taps * 0.5
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-12)
    assert {int(number) for number in kept.round().unique()} > {1, 2, 3, 4}
    assert torch.equal(y[..., 0], y[..., 1])


# Precision


@both
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("positions", [None, 1, 4])
@pytest.mark.parametrize("taps", [7, 31])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(
    convolve: Convolve, dtype: torch.dtype, taps: int, positions: int | None, renormalize: bool
) -> None:
    """The result is the float32 result, rounded once."""
    count = 20 if positions is None else positions
    x, logits = torch.randn(2, 20, 4).to(dtype), torch.randn(2, count, 2, taps).to(dtype)
    options: dict[str, Any] = {
        "left": taps - 1,
        "positions": None if positions is None else torch.randint(20, (2, positions)),
        "renormalize": renormalize,
    }
    y = convolve(x, logits, **options)
    assert y.dtype == dtype
    assert torch.equal(y, convolve(x.float(), logits.float(), **options).to(dtype))


@both
def test_inputs_of_half_precision_may_meet_kernels_of_full_precision(convolve: Convolve) -> None:
    x, logits = torch.randn(2, 6, 4).bfloat16(), torch.randn(2, 6, 2, 3)
    y = convolve(x, logits, left=1)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, convolve(x.float(), logits, left=1).bfloat16())


@both
@pytest.mark.parametrize(
    "dropping", [{}, {"dropconnect": 0.5}, {"dropconnect": 0.5, "dropconnect_shared": True}], ids=str
)
@pytest.mark.parametrize("renormalize", [False, True])
def test_nobody_reads(convolve: Convolve, renormalize: bool, dropping: dict[str, Any]) -> None:
    """An empty list of positions, as in a batch where every row is done."""
    x, logits, nowhere = torch.randn(2, 6, 4), torch.randn(2, 1, 2, 3), torch.empty(2, 0, dtype=torch.long)
    options: dict[str, Any] = {"left": 1, "positions": nowhere, "renormalize": renormalize, **dropping}
    if convolve is light:
        assert light_conv(x, logits[0, 0], **options).shape == (2, 0, 4)
    else:
        assert dynamic_conv(x, logits[:, :0], **options).shape == (2, 0, 4)
