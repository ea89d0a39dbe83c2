"""The Triton kernels against the reference in float64: on a GPU, or on the CPU by Triton's interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.errors import InputError
from depthwise.kernels import dynamic_conv, light_conv, tiles
from depthwise.kernels.tiles import Tile

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IS_FAST = torch.cuda.is_available()
"""The interpreter takes milliseconds for every program of a kernel: on a CPU each test runs for few shapes."""
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}
Convolve = Callable[..., Tensor]


def light(x: Tensor, logits: Tensor, **options: Any) -> Tensor:
    """Light convolution, called like the dynamic one."""
    if options.get("positions") is None and options.get("boundaries") is None:
        options["num_last"] = logits.shape[1]
    return light_conv(x, logits[0, 0], **options)


def shapes(*some: Any, more: tuple[Any, ...] = ()) -> list[Any]:
    """Values of a parameter: those that any machine tests, and on a GPU others as well."""
    return [*some, *(more if IS_FAST else ())]


both = pytest.mark.parametrize("convolve", [light, dynamic_conv], ids=["light", "dynamic"])


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def outcome(convolve: Convolve, x: Tensor, logits: Tensor, outgoing: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Output, gradient of the input, gradient of the logits. Whatever is not written is not a number."""
    x, logits = x.detach().requires_grad_(), logits.detach().requires_grad_()
    torch.use_deterministic_algorithms(options.get("backend") == "triton")  # fills new memory with NaN
    try:
        y = convolve(x, logits, **options)
        gradients = torch.autograd.grad(y, (x, logits), outgoing.to(y.dtype))
    finally:
        torch.use_deterministic_algorithms(False)
    return y.detach(), *gradients


def assert_close(found: tuple[Tensor, ...], exact: tuple[Tensor, ...], tolerance: float, spread: float = 0.0) -> None:
    """By the norm of the difference, relative to the norm of the exact result.

    Where that is zero, ours is too, up to rounding. Of a result that is what is left of large terms which cancel,
    ``spread`` is their size.
    """
    for ours, theirs in zip(found, exact, strict=True):
        error, norm = (ours.double() - theirs).norm().item(), theirs.norm().item()
        scale = norm if norm > 1e-9 else ours.numel() ** 0.5 * 10
        assert error <= tolerance * (scale + spread), (error, norm)


def check(convolve: Convolve, x: Tensor, logits: Tensor, **options: Any) -> None:
    """Forward and gradients by Triton against those of the reference in float64."""
    outgoing = randn(x.shape[0], logits.shape[1], x.shape[2], dtype=x.dtype)
    found = outcome(convolve, x, logits, outgoing, backend="triton", **options)
    exact = outcome(convolve, x.double(), logits.double(), outgoing, backend="reference", **options)
    assert found[0].dtype == x.dtype
    assert_close(found[:2], exact[:2], TOLERANCES[x.dtype])
    # The kernel of a light convolution gets sums over all positions and channels, less their mean over the taps.
    spread = outgoing.numel() ** 0.5 if convolve is light else 0.0
    assert_close(found[2:], exact[2:], TOLERANCES[x.dtype], spread)


@both
@pytest.mark.parametrize(
    ("length", "heads", "channels", "taps", "left"),
    shapes(
        (1, 2, 4, 1, 0),
        (2, 1, 3, 2, 1),
        (3, 3, 3, 3, 1),
        (18, 2, 10, 5, 2),
        (33, 1, 17, 7, 3),
        (40, 1, 80, 31, 30),
        (65, 2, 32, 31, 15),
        (64, 1, 16, 63, 62),
        (20, 1, 16, 255, 127),
        more=((1, 1, 20, 7, 6), (63, 2, 32, 16, 15), (70, 1, 16, 129, 64), (2, 1, 16, 255, 254), (20, 4, 8, 31, 15)),
    ),
)
def test_all_positions(convolve: Convolve, length: int, heads: int, channels: int, taps: int, left: int) -> None:
    check(convolve, randn(1, length, channels), randn(1, length, heads, taps), left=left)


@both
@pytest.mark.parametrize(("width", "taps"), shapes((160, 7), (96, 31), more=((192, 7), (224, 15), (320, 31))))
def test_wide_heads(convolve: Convolve, width: int, taps: int) -> None:
    """A head of more parts than one program handles: what is left over must not reach into the next head."""
    check(convolve, randn(1, 18, 2 * width), randn(1, 18, 2, taps), left=taps - 1)


@both
@pytest.mark.parametrize("taps", shapes(7, 31, more=(1, 3, 63)))
def test_half_precision(convolve: Convolve, taps: int) -> None:
    x, logits = randn(1, 40, 32, dtype=torch.float16), randn(1, 40, 2, taps, dtype=torch.float16)
    check(convolve, x, logits, left=taps - 1)


@both
@pytest.mark.parametrize(
    ("taps", "renormalize"), shapes((7, False), (31, True), more=((3, False), (3, True), (70, False), (70, True)))
)
def test_padding(convolve: Convolve, taps: int, renormalize: bool) -> None:
    """What stands in the padding is never seen, not even if it is not a number; a row may be nothing but padding."""
    x, logits = randn(2, 37, 16), randn(2, 37, 1, taps)
    valid = torch.rand(2, 37, device=DEVICE) < 0.6
    valid[1] = False
    options: dict[str, Any] = {"left": taps // 2, "valid": valid, "renormalize": renormalize}
    check(convolve, x, logits, **options)
    dirty = torch.where(valid.unsqueeze(-1), x, float("nan"))
    outgoing = randn(2, 37, 16)
    clean, soiled = (outcome(convolve, inputs, logits, outgoing, backend="triton", **options) for inputs in (x, dirty))
    for expected, found in zip(clean, soiled, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("left_padded", [False, True])
def test_kernels_that_favour_padding(left_padded: bool) -> None:
    """Renormalised, their weights on what they do not see exceed float16: those must not meet zeros in a product."""
    x, logits = randn(1, 6, 32, dtype=torch.float16), randn(1, 6, 2, 7, dtype=torch.float16)
    logits[..., :3] += 14
    valid = torch.arange(6, device=DEVICE).unsqueeze(0) < 3
    for left in (3, 6):
        options: dict[str, Any] = {"left": left, "valid": valid.flip(1) if left_padded else valid, "renormalize": True}
        check(dynamic_conv, x, logits, **options)
        check(dynamic_conv, x, logits.flip(-1), **options)


@both
@pytest.mark.parametrize(
    ("taps", "renormalize"), shapes((2, True), (31, False), more=((7, True), (7, False), (70, True)))
)
def test_listed_positions(convolve: Convolve, taps: int, renormalize: bool) -> None:
    """In any order, some of them twice."""
    x, logits = randn(2, 50, 16), randn(2, 21, 1, taps)
    positions = torch.randint(50, (2, 21), device=DEVICE)
    positions[:, 3] = positions[:, 11]
    valid = torch.rand(2, 50, device=DEVICE) < 0.8
    check(convolve, x, logits, left=taps - 1, positions=positions, valid=valid, renormalize=renormalize)


@both
@pytest.mark.parametrize(
    ("width", "taps", "renormalize"),
    shapes((16, 2, True), (80, 31, False), more=((16, 64, True), (64, 7, True), (160, 31, True), (16, 31, False))),
)
@pytest.mark.parametrize("packed", [False, True])
def test_readers_far_apart(convolve: Convolve, width: int, taps: int, renormalize: bool, packed: bool) -> None:
    """Each is summed alone. Some look over the ends; one is there twice."""
    rows = 1 if packed else 2
    x, logits = randn(rows, 90, 2 * width), randn(rows, 6, 2, taps)
    positions = torch.tensor([[0, 2, 41, 41, 60, 89]], device=DEVICE).expand(rows, -1)
    options: dict[str, Any] = {"left": taps // 2, "positions": positions, "renormalize": renormalize}
    if packed:
        options["boundaries"] = torch.tensor([0, 5, 5, 59, 90], device=DEVICE)
    else:
        options["valid"] = torch.rand(rows, 90, device=DEVICE) < 0.7
    assert is_alone(num_outputs=6, num_sources=90, width=width, taps=taps)
    check(convolve, x, logits, **options)


@both
def test_readers_far_apart_in_half_precision(convolve: Convolve) -> None:
    x, logits = randn(1, 90, 32, dtype=torch.float16), randn(1, 6, 2, 31, dtype=torch.float16)
    check(convolve, x, logits, left=30, positions=torch.randint(90, (1, 6), device=DEVICE))


@both
@pytest.mark.parametrize("shared", [False, True])
def test_readers_far_apart_drop_the_same(convolve: Convolve, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same entries as in a band, from the same seed."""
    from depthwise.kernels import triton_launch

    x, logits = randn(2, 90, 32), randn(2, 6, 2, 7)
    options: dict[str, Any] = {"left": 6, "positions": torch.randint(90, (2, 6), device=DEVICE)}
    options |= {"dropconnect": 0.5, "dropconnect_shared": shared, "backend": "triton"}
    torch.manual_seed(3)
    alone = convolve(x, logits, **options)
    monkeypatch.setattr(triton_launch, "plan_sum", triton_launch.plan_sum.__wrapped__)  # keeps no such plan
    monkeypatch.setattr(tiles, "WIDEST_ALONE", 0)
    torch.manual_seed(3)
    torch.testing.assert_close(alone, convolve(x, logits, **options))


def is_alone(**sizes: int) -> bool:
    return all(tiles.choose(kind, listed=True, **sizes).alone for kind in ("forward", "fixed_forward"))


@both
@pytest.mark.parametrize("count", shapes(1, 20, more=(4,)))
@pytest.mark.parametrize("taps", shapes(31, more=(3,)))
def test_the_last_steps(convolve: Convolve, taps: int, count: int) -> None:
    """A single one is a step of decoding."""
    check(convolve, randn(2, 33, 16), randn(2, count, 1, taps), left=taps - 1)


@both
@pytest.mark.parametrize(
    ("taps", "listed", "renormalize"),
    shapes(
        (3, False, False),
        (31, False, False),
        (7, True, True),
        more=((70, False, False), (31, False, True), (31, True, False), (70, True, True)),
    ),
)
def test_packed_sequences(convolve: Convolve, taps: int, listed: bool, renormalize: bool) -> None:
    """One of them empty, one shorter than the kernel, one as long as a block."""
    boundaries = torch.tensor([0, 5, 5, 37, 60], device=DEVICE)
    positions = torch.randint(60, (1, 18), device=DEVICE) if listed else None
    logits = randn(1, 18 if listed else 60, 1, taps)
    options: dict[str, Any] = {"positions": positions, "boundaries": boundaries, "renormalize": renormalize}
    check(convolve, randn(1, 60, 16), logits, left=taps // 2, **options)


@both
@pytest.mark.parametrize(("kind", "taps"), shapes(("sigmoid", 3), ("none", 31), more=(("l1", 31), ("none", 70))))
def test_other_normalisations(convolve: Convolve, kind: str, taps: int) -> None:
    check(convolve, randn(1, 35, 32), randn(1, 35, 2, taps), left=taps - 1, normalization=kind)


@both
def test_views(convolve: Convolve) -> None:
    """Inputs that are strided in every axis, broadcast over rows, or of another precision than the kernels."""
    x, logits = randn(64, 30, 4)[::2].permute(2, 1, 0)[1:3], randn(7, 2, 30, 4).permute(1, 2, 3, 0)[:, :, ::2]
    check(convolve, x, logits, left=6)
    check(convolve, randn(1, 30, 32, dtype=torch.float16).expand(2, -1, -1), logits, left=6)
    check(convolve, randn(1, 40, 16)[:, 5:35], randn(1, 60, 1, 7)[:, ::2], left=3)


@both
def test_views_of_masks_and_positions(convolve: Convolve) -> None:
    """Strided along the steps, or broadcast over them."""
    x, logits, mask = randn(2, 20, 32), randn(2, 20, 2, 7), torch.rand(20, 4, device=DEVICE) < 0.7
    check(convolve, x, logits, left=6, valid=mask[:, ::2].T)
    check(convolve, x, logits, left=6, valid=torch.tensor([[True], [False]], device=DEVICE).expand(-1, 20))
    check(convolve, x, logits, left=6, positions=torch.randint(20, (20, 4), device=DEVICE)[:, 1:3].T)


@both
def test_a_gradient_of_ones(convolve: Convolve) -> None:
    """Which autograd hands over as one number, expanded."""
    x, logits = randn(2, 30, 32).requires_grad_(), randn(2, 30, 2, 7).requires_grad_()
    found = torch.autograd.grad(convolve(x, logits, left=6, backend="triton").sum(), x)[0]
    exact = torch.autograd.grad(convolve(x.double(), logits.double(), left=6).sum(), x)[0]
    assert_close((found,), (exact.double(),), 1e-6)


@both
def test_only_what_needs_a_gradient_gets_one(convolve: Convolve) -> None:
    x, logits = randn(2, 20, 32), randn(2, 20, 2, 7)
    for wanted in (x, logits):
        y = convolve(*(each.requires_grad_(each is wanted) for each in (x, logits)), left=6, backend="triton")
        y.sum().backward()
        assert wanted.grad is not None
    assert not convolve(x.detach(), logits.detach(), left=6, backend="triton").requires_grad


@pytest.mark.parametrize(("taps", "count"), shapes((5, 33), (31, 20), more=((33, 33), (1, 33), (31, 1))))
@pytest.mark.parametrize("options", [{}, {"dropconnect": 0.4}, {"normalization": "none"}], ids=str)
def test_gradients_found_by_themselves(taps: int, count: int, options: dict[str, Any]) -> None:
    """Those of a light convolution, which one launch finds together where both are wanted; and repeats exactly."""
    x, weight, outgoing = randn(2, 33, 80), randn(2, taps), randn(2, count, 80)
    valid = torch.rand(2, 33, device=DEVICE) < 0.8
    found = []
    for names in (("x", "weight"), ("x", "weight"), ("x",), ("weight",)):
        given = {
            "x": x.clone().requires_grad_("x" in names),
            "weight": weight.clone().requires_grad_("weight" in names),
        }
        torch.manual_seed(5)
        y = light_conv(**given, left=taps // 2, valid=valid, num_last=count, backend="triton", **options)
        gradients = torch.autograd.grad(y, [given[name] for name in names], outgoing)
        found.append(dict(zip(names, gradients, strict=True)))
    together, again, *alone = found
    assert all(torch.equal(again[name], together[name]) for name in together)
    for each in alone:
        for name, gradient in each.items():
            spread = outgoing.numel() ** 0.5 if name == "weight" else 0.0
            assert_close((gradient,), (together[name].double(),), 1e-6, spread)


@both
def test_nobody_reads(convolve: Convolve) -> None:
    x, weight = randn(2, 6, 4).requires_grad_(), randn(2, 3).requires_grad_()
    nowhere = torch.empty(2, 0, dtype=torch.long, device=DEVICE)
    options: dict[str, Any] = {"left": 1, "positions": nowhere, "backend": "triton"}
    if convolve is light:
        y = light_conv(x, weight, **options)
    else:
        y = dynamic_conv(x, weight.expand(2, 0, -1, -1), **options)
    assert y.shape == (2, 0, 4)
    y.sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize(("rows", "length"), [(0, 5), (2, 0)])
def test_no_rows_and_no_steps(rows: int, length: int) -> None:
    check(dynamic_conv, randn(rows, length, 8), randn(rows, length, 2, 31), left=15)


# What cannot be


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((1, 6, 2, 3), {}),
        ((2, 7, 2, 3), {}),
        ((2, 3), {"num_last": 7}),
        ((2, 6, 2, 3), {"valid": torch.ones(1, 6, dtype=torch.bool)}),
        ((2, 6, 2, 3), {"positions": torch.zeros(1, 6, dtype=torch.long)}),
    ],
)
@pytest.mark.usefixtures("_unchecked_shapes")
def test_shapes_that_do_not_fit(kernel: tuple[int, ...], options: dict[str, Any]) -> None:
    """A kernel would read beyond the end of a tensor."""
    options = {name: each.to(DEVICE) if isinstance(each, Tensor) else each for name, each in options.items()}
    convolve = light_conv if len(kernel) == 2 else dynamic_conv
    with pytest.raises(InputError, match=r"do not belong together: x \(2, 6, 4\), kernels \(.*give all of them"):
        convolve(randn(2, 6, 4), randn(*kernel), left=1, backend="triton", **options)


@both
def test_heads_that_do_not_divide_the_channels(convolve: Convolve) -> None:
    message = "^3 heads cannot share 4 channels evenly; use a divisor of 4$"
    with pytest.raises(InputError, match=message):
        convolve(randn(2, 6, 4), randn(2, 6, 3, 3), left=1, backend="triton")


@both
@pytest.mark.usefixtures("_unchecked_shapes")
def test_whole_numbers_for_dropconnect(convolve: Convolve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton would compile a kernel for whole numbers, which later calls with others cannot use."""
    seen: list[Any] = []
    from depthwise.kernels.triton_launch import Plan

    monkeypatch.setattr(Plan, "launch", lambda _, programs, tensors, numbers, *aligned: seen.append(numbers))
    x, logits = randn(1, 20, 32).requires_grad_(), randn(1, 20, 2, 7)
    for dropconnect in (0, 0.0):
        convolve(x, logits, left=6, dropconnect=dropconnect, backend="triton").sum().backward()
    assert [list(map(type, numbers)) for numbers in seen[:2]] == [list(map(type, numbers)) for numbers in seen[2:]]


# DropConnect


def dropped_kernels(convolve: Convolve, logits: Tensor, **options: Any) -> Tensor:
    """The kernels that a call uses after DropConnect, read off its answers to impulses: (B, T, H, K).

    Each of the T channels of a head meets an impulse at a step of its own.
    """
    rows, length, heads, taps = logits.shape
    impulses = torch.eye(length, device=DEVICE).repeat(1, heads).expand(rows, -1, -1)
    torch.manual_seed(7)
    answers = convolve(impulses, logits, backend="triton", **options).unflatten(-1, (heads, length))
    used = logits.new_zeros(rows, length, heads, taps)
    for reader in range(length):
        for tap in range(taps):
            step = reader - options["left"] + tap
            if 0 <= step < length:
                used[:, reader, :, tap] = answers[:, reader, :, step]
    return used


@both
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("taps", "left"), shapes((3, 1), (5, 4), more=((9, 4), (31, 30), (70, 35))))
def test_the_same_entries_are_dropped_in_both_passes(convolve: Convolve, shared: bool, taps: int, left: int) -> None:
    """And kept ones grow by 1 / (1 - p)."""
    x, logits, outgoing = randn(1, 16, 32), randn(1, 16, 2, taps), randn(1, 16, 32)
    options: dict[str, Any] = {"left": left, "dropconnect": 0.4, "dropconnect_shared": shared}
    used = dropped_kernels(convolve, logits, **options)
    plain = (logits if convolve is dynamic_conv else logits[:1, :1].expand_as(logits)).softmax(-1)
    inside = dropped_kernels(convolve, logits, left=left) > 0
    kept = torch.where(inside, used / plain, 0.0)
    torch.testing.assert_close(kept, (kept > 0.5).float() / 0.6, rtol=1e-4, atol=1e-4)

    torch.manual_seed(7)
    found = outcome(convolve, x, logits, outgoing, backend="triton", **options)
    exact_x, exact_logits = x.double().requires_grad_(), logits.double().requires_grad_()
    source = exact_logits if convolve is dynamic_conv else exact_logits[:1, :1]
    weights = source.softmax(-1) * (kept > 0.5) / 0.6
    y = dynamic_conv(exact_x, weights, left=left, normalization="none", backend="reference")
    exact = (y.detach(), *torch.autograd.grad(y, (exact_x, exact_logits), outgoing.double()))
    assert_close(found, exact, 1e-6)


@both
def test_masks_differ_by_row_position_head_and_tap(convolve: Convolve) -> None:
    logits = torch.zeros(2, 48, 2, 6, device=DEVICE)
    x = torch.ones(2, 48, 32, device=DEVICE)
    y = convolve(x, logits, left=5, dropconnect=0.5, backend="triton")[:, 6:]
    counts = (y * 3).round()
    torch.testing.assert_close(y * 3, counts)
    assert set(counts.unique().tolist()) >= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert 2.7 < counts.mean() < 3.3
    for axis in (0, 1):
        assert not torch.equal(counts, counts.narrow(axis, 0, 1).expand_as(counts))
    assert not torch.equal(counts[..., :16], counts[..., 16:])
    assert torch.equal(counts[..., :15], counts[..., 1:16])


@both
def test_a_seed_repeats_and_calls_differ(convolve: Convolve) -> None:
    x, logits = randn(1, 20, 32), randn(1, 20, 2, 7)
    options: dict[str, Any] = {"left": 6, "dropconnect": 0.5, "backend": "triton"}
    torch.manual_seed(1)
    first, second = convolve(x, logits, **options), convolve(x, logits, **options)
    torch.manual_seed(1)
    assert torch.equal(convolve(x, logits, **options), first)
    assert not torch.equal(second, first)


@both
def test_dropping_in_packed_sequences(convolve: Convolve) -> None:
    """A mask belongs to a reader, wherever its sequence begins: shared masks agree with those of one sequence."""
    x, logits = randn(1, 40, 32), randn(1, 40, 2, 7)
    options: dict[str, Any] = {"left": 6, "dropconnect": 0.5, "dropconnect_shared": True, "backend": "triton"}
    torch.manual_seed(3)
    packed = convolve(x, logits, boundaries=torch.tensor([0, 25, 40], device=DEVICE), **options)
    torch.manual_seed(3)
    alone = convolve(x[:, :25], logits[:, :25], **options)
    torch.testing.assert_close(packed[:, :25], alone)


# Tiles


@both
@pytest.mark.parametrize("tile", shapes(Tile(16, 16, 1), Tile(32, 128, 4), more=(Tile(64, 64, 4),)), ids=str)
@pytest.mark.parametrize("taps", shapes(40, more=(5,)))
def test_every_tile_gives_the_same(convolve: Convolve, tile: Tile, taps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from depthwise.kernels import triton_launch

    for plan in ("plan_sum", "plan_kernel_gradient", "plan_both"):
        monkeypatch.setattr(triton_launch, plan, getattr(triton_launch, plan).__wrapped__)  # keeps no such plan
    monkeypatch.setattr(triton_launch, "choose", lambda *_, **__: tile)
    check(convolve, randn(1, 50, 17), randn(1, 50, 1, taps), left=taps - 1)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("operation", sorted(tiles.MEASURED))
def test_a_band_holds_every_tap(operation: str, single: bool) -> None:
    sizes = {"width": 64, "num_outputs": 500, "num_sources": 500}
    for taps in range(1, 256):
        tile = tiles.choose(operation, taps=taps, listed=False, single=single, **sizes)
        if tile.span is not None:
            assert tile.chunks(taps) * tile.span >= tile.step(taps) + taps - 1
            assert tile.rows / 2 <= tile.step(taps) <= tile.rows
