"""Tensors that lie side by side in memory, as chunks of a larger one do."""

from collections.abc import Sequence
from math import prod

import torch

from depthwise.shapes import Tensor


def lie_side_by_side(parts: Sequence[Tensor], axes: int = 1) -> bool:
    """Whether these are, in order, all chunks of one dense tensor that is cut along its last axis.

    That axis may have been split: a part has it as its last ``axes`` axes.
    """
    first, cut = parts[0], parts[0].dim() - axes
    shape, address, apart = first.shape, first.data_ptr(), first.element_size() * prod(first.shape[cut:])
    larger = (*shape[:cut], len(parts), *shape[cut:])
    strides = tuple(prod(larger[axis + 1 :]) for axis in range(len(larger)) if axis != cut)
    memory = first.untyped_storage().data_ptr()
    return all(
        part.dtype == first.dtype
        and part.shape == shape
        and part.stride() == strides
        and part.data_ptr() == address + index * apart
        and part.untyped_storage().data_ptr() == memory
        for index, part in enumerate(parts)
    )


def empty_side_by_side(count: int, like: Tensor) -> tuple[Tensor, ...]:
    """New tensors of this shape, (B, T, H, d), that lie side by side: ``joined`` copies none as (B, T, H·d)."""
    rows, steps, heads, width = like.shape
    return like.new_empty(rows, steps, count, heads, width).unbind(2)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The parts behind one another along the last axis: the memory they lie in, or else a copy."""
    if torch.compiler.is_compiling() or not lie_side_by_side(parts):
        return torch.cat(list(parts), dim=-1)
    *rows, width = parts[0].shape
    shape = (*rows, len(parts) * width)
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return parts[0].as_strided(shape, strides)
