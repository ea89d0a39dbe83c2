"""Sequences of different lengths in one row, without padding: ``boundaries`` are 0 and the end of each sequence."""

from itertools import pairwise

import torch

from depthwise.errors import InputError
from depthwise.kernels.correlation import correlate
from depthwise.shapes import Float, Int, Tensor


def check_packed(x: Float[Tensor, "B L C"], boundaries: Int[Tensor, "_n"] | None, num_last: int | None) -> None:
    """A packed batch is one row, and its last steps are those of its last sequence only."""
    if boundaries is None:
        return
    if x.shape[0] != 1:
        raise InputError(
            f"boundaries describe one row of packed sequences but x has {x.shape[0]} rows; concatenate them"
        )
    if num_last is not None and num_last != x.shape[1]:
        raise InputError("the last steps of packed sequences are not the last of the row; give their positions")


def segments_of(boundaries: Int[Tensor, "_n"], length: int) -> Int[Tensor, "1 L"]:
    """The number of the sequence that each step belongs to."""
    steps = torch.arange(length, device=boundaries.device, dtype=boundaries.dtype)
    return torch.bucketize(steps, boundaries, right=True, out_int32=True).unsqueeze(0)


def correlate_packed(
    x: Float[Tensor, "B L C"],
    weight: Float[Tensor, "_b _p H K"],
    *,
    left: int,
    positions: Int[Tensor, "B P"] | None,
    boundaries: Int[Tensor, "_n"] | None,
) -> Float[Tensor, "B P C"]:
    """``correlate`` for each sequence by itself, or once for all where nothing is packed."""
    if boundaries is None:
        return correlate(x, weight, left=left, positions=positions)
    ends = boundaries.tolist()
    if ends != sorted(ends) or ends[:1] != [0] or ends[-1] != x.shape[1]:
        raise InputError(f"boundaries must rise from 0 to {x.shape[1]}, the length of the row, but are {ends}")
    readers = torch.arange(x.shape[1], device=x.device).unsqueeze(0) if positions is None else positions
    places, pieces = [], [x.new_empty(1, 0, x.shape[-1])]
    for start, end in pairwise(ends):
        here = ((readers[0] >= start) & (readers[0] < end)).nonzero().squeeze(1)
        if start == end or len(here) == 0:
            continue
        own = weight if weight.shape[1] == 1 else weight[:, here]
        places.append(here)
        pieces.append(correlate(x[:, start:end], own, left=left, positions=readers[:, here] - start))
    order = torch.cat([*places, readers.new_empty(0)]).argsort()
    return torch.cat(pieces, dim=1)[:, order]
