"""Attention over short sequences by Triton kernels: launches and gradients. ``triton_attention`` says what is computed.

Torch's kernels are made for long sequences: they walk over blocks of keys, and with a mask they first spell it out and
pad it. At some thirty tokens a whole head fits one program. This file does not import Triton: where there is none,
nothing here is called (``backend.pick_attention`` decides).
"""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from depthwise.kernels.backend import MOST_ELEMENTS
from depthwise.kernels.call import MOST_CALLS, Numbers, last_axis_dense
from depthwise.kernels.plan import Launch, Plan, kind_of
from depthwise.kernels.side_by_side import empty_side_by_side, lie_side_by_side
from depthwise.kernels.tiles import NARROWEST_PRODUCT, power_of_two
from depthwise.shapes import Bool, Float, Tensor

FAR = 2**30
"""More steps than there are."""


class Sight(NamedTuple):
    """Which steps a reader sees: in its own sequence so many before and after it, and itself; else all of them."""

    is_self: bool = False
    before: int = FAR
    after: int = FAR

    @classmethod
    def within(cls, window: int | None, *, causal: bool) -> "Sight":
        """Of self-attention; ``attention.attend`` explains both."""
        if causal:
            return cls(True, FAR if window is None else max(0, window - 1), 0)
        return cls(True) if window is None else cls(True, *[max(0, (window - 1) // 2)] * 2)


class Options(NamedTuple):
    """What a call says besides the shapes and strides of its states."""

    sight: Sight
    dropout: float
    has_valid: bool


def attend_short(
    queries: Float[Tensor, "B H P d"],
    keys: Float[Tensor, "B H L d"],
    values: Float[Tensor, "B H L d"],
    valid: Bool[Tensor, "B L"] | None,
    sight: Sight,
    dropout: float,
) -> Float[Tensor, "B H P d"]:
    """Attention as one kernel, and its gradients as another one.

    The output lies in memory as (B, P, H, d), so that putting heads side by side again copies nothing. The seed is
    drawn on the device: nothing waits for the GPU, and recorded graphs draw anew each time.
    """
    seed = torch.randint(2**63 - 1, (1,), device=queries.device) if dropout > 0 else None
    options = Options(sight, float(dropout), valid is not None)
    mixed: Tensor = ShortAttention.apply(queries, keys, values, valid, seed, options)
    return mixed.transpose(1, 2)


class ShortAttention(torch.autograd.Function):
    """Output (B, P, H, d) and gradients. Whatever the backward pass needs besides its inputs, it computes again."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid: Tensor | None,
        seed: Tensor | None,
        options: Options,
    ) -> Tensor:
        queries, keys, values = (last_axis_dense(each) for each in (queries, keys, values))
        mask = None if valid is None else last_axis_dense(valid).view(torch.uint8)
        ctx.save_for_backward(queries, keys, values, mask, seed)
        ctx.options = options
        rows, heads, num_queries, width = queries.shape
        out = queries.new_empty(rows, num_queries, heads, width)
        strides, device = _strides(queries, keys, values), queries.get_device()
        launch = plan(queries.shape, keys.shape[2], _row_stride(mask), strides, options, False, device)
        kind = kind_of(queries, keys, values, mask, seed)
        launch.run(kind, queries, keys, values, out, *_pointers(queries, mask, seed))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, mask, seed = ctx.saved_tensors
        is_large = gradient.numel() >= MOST_ELEMENTS  # nobody has measured the rows of such a gradient yet
        gradient = (gradient.contiguous() if is_large else last_axis_dense(gradient)).transpose(1, 2)
        found = _empty_gradients(*(each.transpose(1, 2) for each in (queries, keys, values)))
        strides = (*_strides(gradient, queries, keys, values), *(each.stride(1) for each in found))
        launch = plan(queries.shape, keys.shape[2], _row_stride(mask), strides, ctx.options, True, queries.get_device())
        kind = kind_of(gradient, queries, keys, values, mask, seed)
        launch.run(kind, gradient, queries, keys, values, *found, *_pointers(queries, mask, seed))
        of_queries, of_keys, of_values = (
            each.transpose(1, 2) if needed else None
            for each, needed in zip(found, ctx.needs_input_grad[:3], strict=True)
        )
        return of_queries, of_keys, of_values, None, None, None


def _empty_gradients(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the gradients of (B, T, H, d) states; those of states that lie side by side lie so too.

    Where one product made queries, keys and values, its gradient is theirs, and nobody has to join them.
    """
    if lie_side_by_side((queries, keys, values), axes=2):
        of_queries, of_keys, of_values = empty_side_by_side(3, queries)
        return of_queries, of_keys, of_values
    of_queries = queries.new_empty(queries.shape)
    if lie_side_by_side((keys, values), axes=2):
        of_keys, of_values = empty_side_by_side(2, keys)
        return of_queries, of_keys, of_values
    return of_queries, keys.new_empty(keys.shape), values.new_empty(values.shape)


@lru_cache(maxsize=MOST_CALLS)
def plan(
    shape: Numbers, length: int, valid_stride: int, strides: Numbers, options: Options, is_backward: bool, device: int
) -> Launch:
    """How queries of such a shape read so many steps: ``strides`` are, for either kernel, all that it takes."""
    rows, heads, num_queries, width = shape
    readers, steps = (max(NARROWEST_PRODUCT, power_of_two(number)) for number in (num_queries, length))
    sight, dropout = options.sight, options.dropout
    is_limited = sight.is_self and min(sight.before, sight.after) < FAR
    flags = (sight.is_self, options.has_valid, is_limited, dropout > 0)
    gain = 1 / (1 - dropout) if dropout < 1 else 0.0
    numbers = (num_queries, length, sight.before, sight.after, dropout, gain, width**-0.5, valid_stride, *strides)
    held = 2 * 2 * (width * (readers + steps) + readers * steps)  # all states and two tiles of weights, in bytes
    reload = is_backward and held > shared_memory(device)
    return Launch(cut(is_backward, heads, width, readers, steps, reload, flags), rows * heads, numbers, strides)


@lru_cache(maxsize=1024)
def cut(
    is_backward: bool, heads: int, width: int, readers: int, steps: int, reload: bool, flags: tuple[bool, ...]
) -> Plan:
    """The plan in tiles of such a size, for batches of every shape that they hold."""
    kernel = _kernels().attend_backward if is_backward else _kernels().attend_forward
    sizes = {"HEADS": heads, "WIDTH": width, "READERS": readers, "STEPS": steps}
    if is_backward:
        sizes["RELOAD"] = reload
    options = dict(zip(("IS_SELF", "HAS_VALID", "LIMITED", "DROP"), flags, strict=True))
    return Plan(kernel, sizes | options, num_warps(readers, steps, width), 1, 1)


def num_warps(readers: int, steps: int, width: int) -> int:
    """So many that the largest tile leaves every thread 32 to 64 numbers: several such tiles fit its registers."""
    largest = max(readers * steps, readers * width, steps * width)
    return next((warps for most, warps in ((1024, 1), (2048, 2), (8192, 4)) if largest <= most), 8)


@cache
def shared_memory(device: int) -> int:
    """Bytes that one program may hold on a GPU; Triton's interpreter, device -1, knows no bounds."""
    if device < 0:
        return 2**31
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)


def _row_stride(mask: Tensor | None) -> int:
    return 0 if mask is None else mask.stride(0)


def _pointers(unused: Tensor, *optional: Tensor | None) -> list[Tensor]:
    """Another tensor stands for those that are none, and nobody follows it."""
    return [unused if tensor is None else tensor for tensor in optional]


def _strides(*tensors: Tensor) -> Numbers:
    """Of row, head and step, one tensor after the other; 0 where there is but one, whatever torch has there."""
    return tuple(
        stride if size > 1 else 0
        for tensor in tensors
        for size, stride in zip(tensor.shape[:3], tensor.stride(), strict=False)
    )


@cache
def _kernels() -> Any:
    """The file that needs Triton, imported when it is first needed."""
    from depthwise.kernels import triton_attention

    return triton_attention
