"""Launches the Triton kernels: tensors and options in, tensors out. The only file that imports those kernels."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from depthwise.errors import InputError
from depthwise.kernels.backend import MOST_ELEMENTS
from depthwise.kernels.call import FLAGS, Call, last_axis_dense
from depthwise.kernels.tiles import NARROWEST_PRODUCT, Tile, choose, power_of_two
from depthwise.kernels.triton_band import LOG2_E, convolve_band
from depthwise.kernels.triton_fixed import convolve_fixed, finish_fixed_gradient, fixed_kernel_gradient
from depthwise.kernels.triton_kernel_gradient import kernel_gradient
from depthwise.kernels.triton_taps import convolve_taps
from depthwise.shapes import Tensor

WIDEST_COLUMNS = 64
"""Channels of a head that one program handles at a time."""
MOST_PARTS = 4
"""Parts of a head that one program handles one after the other with the same weights."""
PROGRAMS_WANTED = 1056
"""Programs among which the blocks of a fixed kernel are split: enough to fill a large GPU several times over."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel with all that is fixed when it is compiled, and how a batch is divided among its programs.

    What Triton compiled is kept here: it would otherwise look at every argument again at each launch, which takes
    longer than the kernels run.
    """

    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    step: int
    programs_per_block: int
    compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def launch(self, programs: int, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...], *aligned: int) -> None:
        """Run on the device of the first tensor. ``aligned`` are those numbers whose alignment Triton makes use of."""
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self.launch(programs, tensors, numbers, *aligned)
            return
        key: tuple[Any, ...] = (device, *[tensor.dtype for tensor in tensors])
        low_bits = 0
        for tensor in tensors:
            low_bits |= tensor.data_ptr()
        for number in aligned:
            low_bits |= number
        if low_bits % 16:  # something is not aligned: tell what
            addresses = [tensor.data_ptr() % 16 == 0 for tensor in tensors]
            key += (*addresses, *[(number % 16 == 0, number == 1) for number in aligned])
        compiled = self.compiled.get(key)
        if compiled is not None:
            compiled[programs, 1, 1](*tensors, *numbers, *self.constants.values())
            return
        options = {"num_warps": self.num_warps, "enable_fp_fusion": True}  # fusion is no default in later versions
        compiled = self.kernel[(programs,)](*tensors, *numbers, **self.constants, **options)
        if compiled is not None:  # Triton's interpreter compiles nothing
            self.compiled[key] = compiled


def forward(x: Tensor, kernel: Tensor, call: Call, *, keep: bool) -> tuple[Tensor, Tensor | None]:
    """The output and, if kept for the backward pass, the logarithm (base 2) of each kernel's sum of exponentials.

    A fixed kernel has none to keep, nor has one that is no softmax.
    """
    rows, _, channels = x.shape
    out = x.new_empty(rows, call.num_readers, channels)
    lse = None
    if keep and call.softmax and kernel.dim() == 4:
        lse = x.new_empty(rows, call.num_readers, kernel.shape[-2], dtype=torch.float32)
    if out.numel():
        _convolve(x, kernel, out, lse, call, transposed=False)
    return out, lse


def backward(
    gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor | None, call: Call, for_x: bool, for_kernel: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and kernel, as far as they are asked for."""
    if gradient.numel() >= MOST_ELEMENTS:
        gradient = gradient.contiguous()  # nobody has measured its rows yet
    return (
        input_gradient(gradient, x, kernel, lse, call) if for_x else None,
        kernel_gradients(gradient, x, kernel, lse, call) if for_kernel else None,
    )


def input_gradient(gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor | None, call: Call) -> Tensor:
    """The gradient of ``x``: every source gathers from the readers that saw it."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if gradient.numel() == 0:
        return out.zero_()
    _convolve(gradient, kernel, out, lse, call, transposed=True)
    return out


def _convolve(values: Tensor, kernel: Tensor, out: Tensor, lse: Tensor | None, call: Call, *, transposed: bool) -> None:
    values, kernel = last_axis_dense(values), last_axis_dense(kernel)
    (heads, taps), is_fixed = kernel.shape[-2:], kernel.dim() == 2
    rows, num_outputs, channels = out.shape
    num_sources, value_strides = values.shape[1], (values.stride(0), values.stride(1))
    shift = (num_outputs if transposed else num_sources) - call.num_readers
    at_least = min(num_outputs, NARROWEST_PRODUCT)
    keep = lse is not None
    plan = plan_sum(heads, channels, taps, call.left, at_least, is_fixed, transposed, keep, call.flags())
    num_blocks = -(-num_outputs // plan.step)
    valid, positions, segments, seed = call.pointers(values)
    if plan.kernel is convolve_fixed:
        num_all_blocks, programs = rows * num_blocks, plan.programs_per_block
        num_splits = min(num_all_blocks, -(-PROGRAMS_WANTED // programs))
        plan.launch(
            num_splits * programs,
            (values, kernel, out, valid, segments, seed),
            (num_outputs, num_sources, shift, float(call.dropconnect), num_blocks, num_all_blocks, num_splits,
             *value_strides, kernel.stride(0), valid.stride(0)),
            *value_strides,
        )  # fmt: skip
        return
    if is_fixed and transposed and call.softmax:
        lse = (kernel.float().logsumexp(-1) * LOG2_E.value).expand(rows, call.num_readers, -1)
    kernel_strides = (0, 0, kernel.stride(0)) if is_fixed else kernel.stride()[:3]
    lse, lse_strides = (values, (0, 0)) if lse is None else (lse, lse.stride()[:2])
    plan.launch(
        rows * num_blocks * plan.programs_per_block,
        (values, kernel, out, lse, valid, positions, segments, seed),
        (num_outputs, num_sources, shift, float(call.dropconnect), num_blocks,
         *value_strides, *kernel_strides, *lse_strides, valid.stride(0)),
        *value_strides,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def plan_sum(
    heads: int,
    channels: int,
    taps: int,
    left: int,
    num_outputs: int,
    is_fixed: bool,
    transposed: bool,
    keep: bool,
    flags: tuple[bool, ...],
) -> Plan:
    """How outputs, or gradients of the input where transposed, are summed. ``num_outputs`` matters if it is small."""
    if channels % heads:
        raise InputError(f"{heads} heads cannot share {channels} channels evenly; use a divisor of {channels}")
    width = channels // heads
    options = dict(zip(FLAGS, flags, strict=True))
    listed = options["HAS_POSITIONS"]
    operation = "input_gradient" if transposed else "forward"
    if is_fixed:
        operation = f"fixed_{operation}"
    elif keep and not transposed:
        operation = "forward_for_gradient"
    tile = choose(operation, taps=taps, width=width, num_outputs=num_outputs, listed=listed)
    sizes: dict[str, Any] = {"HEADS": heads, "WIDTH": width, "TAPS": taps, "LEFT": left, "ROWS": tile.rows}
    sizes |= {"TAPS_PADDED": power_of_two(taps), "TRANSPOSED": transposed, "KEEP_LSE": keep and not transposed}
    if tile.span is None:
        columns = _columns(width, 1)
        at_once = min(power_of_two(heads), max(1, WIDEST_COLUMNS // columns))
        sizes |= {"COLUMNS": columns, "HEADS_AT_ONCE": at_once}
        programs = -(-heads // at_once) * -(-width // columns)
        return _plan(convolve_taps, sizes | options, tile, tile.rows, programs)
    sizes |= _band(tile, taps, listed)
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


def kernel_gradients(gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor | None, call: Call) -> Tensor:
    """The gradient of the weights or logits, in their shape and precision."""
    out = torch.empty_like(kernel, memory_format=torch.contiguous_format)
    if gradient.numel() == 0:
        return out.zero_()
    gradient, x, kernel = last_axis_dense(gradient), last_axis_dense(x), last_axis_dense(kernel)
    (heads, taps), (rows, length, channels) = kernel.shape[-2:], x.shape
    is_fixed = kernel.dim() == 2
    plan = plan_kernel_gradient(heads, channels // heads, taps, call.left, is_fixed, call.flags())
    num_blocks = -(-call.num_readers // plan.step)
    strides = (gradient.stride(0), gradient.stride(1), x.stride(0), x.stride(1))
    valid, positions, segments, seed = call.pointers(x)
    numbers = (call.num_readers, length, length - call.num_readers, float(call.dropconnect), num_blocks)
    if not is_fixed:
        plan.launch(
            rows * num_blocks * heads,
            (gradient, x, kernel, x if lse is None else lse, out, valid, positions, segments, seed),
            (*numbers, *strides, *kernel.stride()[:3], valid.stride(0)),
            *strides,
        )
        return out
    num_all_blocks, chunks = rows * num_blocks, plan.constants["CHUNKS"]
    num_splits = min(num_all_blocks, -(-PROGRAMS_WANTED // plan.programs_per_block))
    parts = x.new_empty(num_splits * chunks, heads, taps, dtype=torch.float32)
    plan.launch(
        num_splits * plan.programs_per_block,
        (gradient, x, parts, valid, segments, seed),
        (*numbers, num_all_blocks, num_splits, *strides, valid.stride(0)),
        *strides,
    )
    finish = plan_finish(heads, taps, call.softmax)
    finish.launch(heads, (parts, kernel, out), (num_splits * chunks, kernel.stride(0)))
    return out


@lru_cache(maxsize=1024)
def plan_kernel_gradient(heads: int, width: int, taps: int, left: int, is_fixed: bool, flags: tuple[bool, ...]) -> Plan:
    """How the gradient of the kernels is summed."""
    options = dict(zip(FLAGS, flags, strict=True))
    listed = options["HAS_POSITIONS"]
    assert not (is_fixed and (listed or options["RENORMALIZE"])), "such kernels are expanded first, one per reader"
    operation = f"{'fixed_' if is_fixed else ''}kernel_gradient"
    tile = choose(operation, taps=taps, width=width, num_outputs=NARROWEST_PRODUCT, listed=listed)
    assert tile.span is not None, "the gradient of a kernel is a band"
    sizes: dict[str, Any] = {"HEADS": heads, "WIDTH": width, "TAPS": taps, "LEFT": left, "ROWS": tile.rows}
    sizes |= {"TAPS_PADDED": power_of_two(taps), "COLUMNS": min(tile.span, _columns(width, NARROWEST_PRODUCT))}
    sizes |= _band(tile, taps, listed)
    sizes["EARLY"] = tile.early and sizes["CHUNKS"] == 1
    programs = heads * sizes["CHUNKS"] if is_fixed else heads
    kernel = fixed_kernel_gradient if is_fixed else kernel_gradient
    return _plan(kernel, sizes | options, tile, sizes["STEP"], programs)


@lru_cache(maxsize=1024)
def plan_finish(heads: int, taps: int, softmax: bool) -> Plan:
    """How the parts of the gradient of a fixed kernel are added up."""
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
