"""Launches the Triton kernels of convolutions: tensors and options in, tensors out. Only it imports those kernels."""

from functools import lru_cache
from typing import Any

import torch

from depthwise.errors import InputError
from depthwise.kernels.backend import MOST_ELEMENTS
from depthwise.kernels.call import (
    FLAGS,
    MOST_CALLS,
    Call,
    Numbers,
    OptionalTensors,
    Pointers,
    last_axis_dense,
    pointers,
)
from depthwise.kernels.plan import Kind, Launch, Plan, kind_of
from depthwise.kernels.tiles import NARROWEST_PRODUCT, Tile, choose, finds_both, power_of_two
from depthwise.kernels.triton_alone import convolve_alone
from depthwise.kernels.triton_band import LOG2_E, convolve_band
from depthwise.kernels.triton_fixed import (
    convolve_fixed,
    finish_fixed_gradient,
    fixed_gradients,
    fixed_kernel_gradient,
)
from depthwise.kernels.triton_kernel_gradient import kernel_gradient
from depthwise.kernels.triton_taps import convolve_taps
from depthwise.shapes import Tensor

WIDEST_COLUMNS = 64
"""Channels of a head that one program handles at a time."""
MOST_PARTS = 4
"""Parts of a head that one program handles one after the other with the same weights."""
PROGRAMS_WANTED = 1056
"""Programs among which the blocks of a fixed kernel are split: enough to fill a large GPU several times over."""
PROGRAMS_OF_BOTH = 528
"""The same where they find both gradients: as many as a large GPU has room for at once."""


def forward(
    x: Tensor, kernel: Tensor, optional: OptionalTensors, call: Call, *, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """The output and, if kept for the backward pass, the logarithm (base 2) of each kernel's sum of exponentials.

    A fixed kernel has none to keep, nor has one that is no softmax.
    """
    out, lse = x.new_empty(*call.out_shape), None
    if keep and call.lse_shape is not None:
        lse = x.new_empty(*call.lse_shape, dtype=torch.float32)
    if call.num_elements:
        if not call.is_dense:
            x, kernel = last_axis_dense(x), last_axis_dense(kernel)
        launch = plan_sum(call, None, lse is not None)
        _convolve(launch, kind_of(x, kernel, *optional), call, x, kernel, out, lse, pointers(optional, x))
    return out, lse


def backward(
    gradient: Tensor,
    x: Tensor,
    kernel: Tensor,
    lse: Tensor | None,
    optional: OptionalTensors,
    call: Call,
    for_x: bool,
    for_kernel: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and kernel, as far as they are asked for."""
    if call.num_elements == 0:
        return x.new_zeros(call.x_shape) if for_x else None, kernel.new_zeros(call.kernel_shape) if for_kernel else None
    is_large = call.num_elements >= MOST_ELEMENTS  # nobody has measured the rows of such a gradient yet
    gradient = gradient.contiguous() if is_large else last_axis_dense(gradient)
    if not call.is_dense:
        x, kernel = last_axis_dense(x) if for_kernel else x, last_axis_dense(kernel)
    kind, others = kind_of(gradient, x, kernel, lse, *optional), pointers(optional, gradient)
    strides = gradient.stride()
    x_gradient = kernel_gradient = None
    if for_x and for_kernel and call.is_fixed:
        both = plan_both(call, strides)
        if both is not None:
            return _differentiate(both, kind, call, gradient, x, kernel, others[0])
    if for_x:
        x_gradient = x.new_empty(*call.x_shape)
        launch = plan_sum(call, strides, lse is not None)
        _convolve(launch, kind, call, gradient, kernel, x_gradient, lse, others)
    if for_kernel:
        kernel_gradient = kernel.new_empty(*call.kernel_shape)
        launch = plan_kernel_gradient(call, strides)
        _correlate(launch, kind, call, gradient, x, kernel, kernel_gradient, lse, others)
    return x_gradient, kernel_gradient


def _convolve(
    launch: Launch,
    kind: Kind,
    call: Call,
    values: Tensor,
    kernel: Tensor,
    out: Tensor,
    lse: Tensor | None,
    others: Pointers,
) -> None:
    """Write the output or, from the gradient of that, the gradient of the input."""
    valid, positions, segments, seed = others
    if launch.plan.kernel is convolve_fixed:
        launch.run(kind, values, kernel, out, valid, segments, seed)
        return
    if call.is_fixed and call.softmax and launch.plan.constants["TRANSPOSED"]:
        lse = kernel.float().logsumexp(-1) * LOG2_E.value
    launch.run(kind, values, kernel, out, values if lse is None else lse, valid, positions, segments, seed)


def _correlate(
    launch: Launch,
    kind: Kind,
    call: Call,
    gradient: Tensor,
    x: Tensor,
    kernel: Tensor,
    out: Tensor,
    lse: Tensor | None,
    others: Pointers,
) -> None:
    """Write the gradient of the weights or logits."""
    valid, positions, segments, seed = others
    if not call.is_fixed:
        launch.run(kind, gradient, x, kernel, x if lse is None else lse, out, valid, positions, segments, seed)
        return
    num_parts = launch.programs // call.kernel_shape[0]
    parts = x.new_empty(num_parts, *call.kernel_shape, dtype=torch.float32)
    launch.run(kind, gradient, x, parts, valid, segments, seed)
    plan_finish(call, num_parts).run(kind, parts, kernel, out)


def _differentiate(
    launch: Launch, kind: Kind, call: Call, gradient: Tensor, x: Tensor, kernel: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Both gradients of a convolution with a fixed kernel."""
    num_parts = launch.programs // call.kernel_shape[0]
    x_gradient, kernel_gradient = x.new_empty(*call.x_shape), kernel.new_empty(*call.kernel_shape)
    parts = x.new_empty(num_parts, *call.kernel_shape, dtype=torch.float32)
    launch.run(kind, gradient, x, kernel, x_gradient, parts, valid)
    plan_finish(call, num_parts).run(kind, parts, kernel, kernel_gradient)
    return x_gradient, kernel_gradient


@lru_cache(maxsize=2 * MOST_CALLS)
def plan_sum(call: Call, gradient_strides: Numbers | None, keep: bool) -> Launch:
    """How the output of a call is summed or, given strides of its gradient, how the gradient of the input is."""
    (rows, length, channels), (heads, taps), is_fixed = call.x_shape, call.kernel_shape[-2:], call.is_fixed
    if channels % heads:
        raise InputError(f"{heads} heads cannot share {channels} channels evenly; use a divisor of {channels}")
    transposed = gradient_strides is not None
    operation = "input_gradient" if transposed else "forward"
    if is_fixed:
        operation = f"fixed_{operation}"
    elif keep and not transposed:
        operation = "forward_for_gradient"
    num_outputs, num_sources = (length, call.num_readers) if transposed else (call.num_readers, length)
    width = channels // heads
    sizes = {"taps": taps, "width": width, "num_outputs": num_outputs, "num_sources": num_sources}
    tile = choose(operation, listed=call.is_listed, single=call.is_single, **sizes)
    plan = cut_sum(tile, heads, width, taps, call.left, is_fixed, transposed, keep and not transposed, call.flags)
    num_blocks = -(-num_outputs // plan.step)
    strides = (call.x_strides if gradient_strides is None else gradient_strides)[:2]
    kernel_strides = call.kernel_strides[:-1]
    shift = length - call.num_readers
    numbers: tuple[Any, ...] = (num_outputs, num_sources, shift, call.dropconnect, num_blocks)
    if plan.kernel is convolve_fixed:
        num_all_blocks, programs = rows * num_blocks, plan.programs_per_block
        num_splits = min(num_all_blocks, -(-PROGRAMS_WANTED // programs))
        numbers += (num_all_blocks, num_splits, *strides, *kernel_strides, call.valid_stride)
        return Launch(plan, num_splits * programs, numbers, strides)
    if is_fixed:
        kernel_strides = (0, 0, *kernel_strides)
    lse_strides = (call.num_readers * heads, heads) if keep else (0, 0)
    numbers += (*strides, *kernel_strides, *lse_strides, call.valid_stride)
    return Launch(plan, rows * num_blocks * plan.programs_per_block, numbers, strides)


@lru_cache(maxsize=1024)
def cut_sum(
    tile: Tile,
    heads: int,
    width: int,
    taps: int,
    left: int,
    is_fixed: bool,
    transposed: bool,
    keep: bool,
    flags: tuple[bool, ...],
) -> Plan:
    """The plan of a sum in such tiles, for batches of every shape."""
    options = dict(zip(FLAGS, flags, strict=True))
    sizes: dict[str, Any] = {"HEADS": heads, "WIDTH": width, "TAPS": taps, "LEFT": left, "ROWS": tile.rows}
    sizes |= {"TAPS_PADDED": power_of_two(taps), "TRANSPOSED": transposed, "KEEP_LSE": keep}
    if tile.alone:
        columns = _columns(width, NARROWEST_PRODUCT)
        return _plan(convolve_alone, sizes | {"COLUMNS": columns} | options, tile, 1, heads * -(-width // columns))
    if tile.span is None:
        columns = _columns(width, 1)
        at_once = min(power_of_two(heads), max(1, WIDEST_COLUMNS // columns))
        sizes |= {"COLUMNS": columns, "HEADS_AT_ONCE": at_once}
        programs = -(-heads // at_once) * -(-width // columns)
        return _plan(convolve_taps, sizes | options, tile, tile.rows, programs)
    sizes |= _band(tile, taps, options["HAS_POSITIONS"])
    columns, at_once = _columns(width, NARROWEST_PRODUCT), 1
    if sizes["CHUNKS"] == 1 and not is_fixed:
        # One span holds all taps, so its weights serve several parts of a head. Those are as wide as the tile of
        # weights: then the compiler lays both out alike, with neighbouring taps in one thread.
        columns = min(columns, tile.rows if transposed else tile.span)
        parts = -(-width // columns)
        at_once = -(-parts // -(-parts // MOST_PARTS))
    sizes |= {"COLUMNS": columns, "AT_ONCE": at_once, "EARLY": tile.early and sizes["CHUNKS"] == 1}
    kernel = convolve_fixed if is_fixed and sizes["CHUNKS"] == 1 else convolve_band
    return _plan(kernel, sizes | options, tile, sizes["STEP"], heads * -(-width // (columns * at_once)))


@lru_cache(maxsize=MOST_CALLS)
def plan_kernel_gradient(call: Call, gradient_strides: Numbers) -> Launch:
    """How the gradient of the kernels is summed."""
    (rows, length, channels), (heads, taps), num_readers = call.x_shape, call.kernel_shape[-2:], call.num_readers
    is_fixed, width = call.is_fixed, channels // heads
    operation = f"{'fixed_' if is_fixed else ''}kernel_gradient"
    sizes = {"taps": taps, "width": width, "num_outputs": NARROWEST_PRODUCT, "num_sources": length}
    tile = choose(operation, listed=call.is_listed, single=call.is_single, **sizes)
    plan = cut_kernel_gradient(tile, heads, width, taps, call.left, is_fixed, call.flags)
    num_blocks = -(-num_readers // plan.step)
    strides = (*gradient_strides[:2], *call.x_strides[:2])
    numbers: tuple[Any, ...] = (num_readers, length, length - num_readers, call.dropconnect, num_blocks)
    if not is_fixed:
        numbers += (*strides, *call.kernel_strides[:3], call.valid_stride)
        return Launch(plan, rows * num_blocks * heads, numbers, strides)
    num_all_blocks, programs = rows * num_blocks, plan.programs_per_block
    num_splits = min(num_all_blocks, -(-PROGRAMS_WANTED // programs))
    numbers += (num_all_blocks, num_splits, *strides, call.valid_stride)
    return Launch(plan, num_splits * programs, numbers, strides)


@lru_cache(maxsize=1024)
def cut_kernel_gradient(
    tile: Tile, heads: int, width: int, taps: int, left: int, is_fixed: bool, flags: tuple[bool, ...]
) -> Plan:
    """The plan of that in such tiles, for batches of every shape."""
    options = dict(zip(FLAGS, flags, strict=True))
    expanded = options["HAS_POSITIONS"] or options["RENORMALIZE"]
    assert not (is_fixed and expanded), "such kernels are expanded first, one per reader"
    assert tile.span is not None, "the gradient of a kernel is a band"
    sizes: dict[str, Any] = {"HEADS": heads, "WIDTH": width, "TAPS": taps, "LEFT": left, "ROWS": tile.rows}
    sizes |= {"TAPS_PADDED": power_of_two(taps), "COLUMNS": min(tile.span, _columns(width, NARROWEST_PRODUCT))}
    sizes |= _band(tile, taps, options["HAS_POSITIONS"])
    sizes["EARLY"] = tile.early and sizes["CHUNKS"] == 1
    programs = heads * sizes["CHUNKS"] if is_fixed else heads
    kernel = fixed_kernel_gradient if is_fixed else kernel_gradient
    return _plan(kernel, sizes | options, tile, sizes["STEP"], programs)


@lru_cache(maxsize=MOST_CALLS)
def plan_both(call: Call, gradient_strides: Numbers) -> Launch | None:
    """How both gradients of a fixed kernel are found at once; none where that takes two launches."""
    (rows, length, channels), (heads, taps), num_readers = call.x_shape, call.kernel_shape, call.num_readers
    width, options = channels // heads, dict(zip(FLAGS, call.flags, strict=True))
    if not finds_both(taps=taps, width=width, thinned=options["DROP"] or options["HAS_SEGMENTS"]):
        return None
    sizes = {"taps": taps, "width": width, "num_outputs": length, "num_sources": num_readers}
    tile = choose("fixed_gradients", listed=False, single=call.is_single, **sizes)
    plan = cut_both(tile, heads, width, taps, call.left, call.flags)
    num_blocks = -(-length // plan.step)
    num_all_blocks, programs = rows * num_blocks, plan.programs_per_block
    num_splits = min(num_all_blocks, -(-PROGRAMS_OF_BOTH // programs))
    strides = (*gradient_strides[:2], *call.x_strides[:2])
    numbers: Numbers = (num_readers, length, length - num_readers, num_blocks, num_all_blocks, num_splits)
    numbers += (*strides, call.kernel_strides[0], call.valid_stride)
    return Launch(plan, num_splits * programs, numbers, strides)


@lru_cache(maxsize=1024)
def cut_both(tile: Tile, heads: int, width: int, taps: int, left: int, flags: tuple[bool, ...]) -> Plan:
    """The plan of that in such tiles, for batches of every shape."""
    assert tile.chunks(taps) == 1, "a block of sources and all its readers are one tile"
    columns = _columns(width, NARROWEST_PRODUCT)
    sizes: dict[str, Any] = {"HEADS": heads, "WIDTH": width, "TAPS": taps, "LEFT": left, "ROWS": tile.rows}
    sizes |= {"TAPS_PADDED": power_of_two(taps), "COLUMNS": columns, "SPAN": tile.span, "STEP": tile.step(taps)}
    options = dict(zip(FLAGS, flags, strict=True))
    return _plan(fixed_gradients, sizes | options, tile, tile.step(taps), heads * -(-width // columns))


@lru_cache(maxsize=MOST_CALLS)
def plan_finish(call: Call, num_parts: int) -> Launch:
    """How the parts of the gradient of a fixed kernel are added up."""
    heads, taps = call.kernel_shape
    return Launch(cut_finish(heads, taps, call.softmax), heads, (num_parts, call.kernel_strides[0]), ())


@lru_cache(maxsize=1024)
def cut_finish(heads: int, taps: int, softmax: bool) -> Plan:
    """The plan of that, for any number of parts."""
    padded = power_of_two(taps)
    sizes = {"HEADS": heads, "TAPS": taps, "TAPS_PADDED": padded, "AT_ONCE": max(1, 4096 // padded), "SOFTMAX": softmax}
    return _plan(finish_fixed_gradient, sizes, Tile(1, None, 4), 1, 1)


def _plan(kernel: Any, constants: dict[str, Any], tile: Tile, step: int, programs_per_block: int) -> Plan:
    """Keeps those constants that the kernel has, in its own order."""
    names = [name for name in kernel.arg_names if name in constants]
    return Plan(kernel, {name: constants[name] for name in names}, tile.num_warps, step, programs_per_block)


def _band(tile: Tile, taps: int, listed: bool) -> dict[str, int]:
    """Sizes of a band. Listed positions take as many spans as they turn out to need."""
    assert tile.span is not None, "a band has a span"
    if listed:
        return {"SPAN": tile.span, "STEP": tile.rows, "CHUNKS": 0}
    return {"SPAN": tile.span, "STEP": tile.step(taps), "CHUNKS": tile.chunks(taps)}


def _columns(width: int, narrowest: int) -> int:
    return max(narrowest, min(WIDEST_COLUMNS, power_of_two(width)))
