"""Sequences of different lengths in one row, without padding.

``boundaries`` are 0 and the end of each sequence; ``segments`` number for each step the sequence it belongs to.
"""

from itertools import pairwise

import torch
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.kernels.backend import WIDEST_KERNEL, pick
from depthwise.kernels.correlation import correlate
from depthwise.shapes import Float, Int, Tensor


def check_packed(
    x: Float[Tensor, "B L C"],
    boundaries: Int[Tensor, "_n"] | None,
    segments: Int[Tensor, "1 L"] | None,
    num_last: int | None,
) -> None:
    """A packed batch is one row, and its last steps are those of its last sequence only."""
    if boundaries is None and segments is None:
        return
    if boundaries is not None and segments is not None:
        raise InputError("boundaries and segments say the same of packed sequences; give one of them")
    if x.shape[0] != 1:
        given = "boundaries" if segments is None else "segments"
        raise InputError(f"{given} describe one row of packed sequences but x has {x.shape[0]} rows; concatenate them")
    if segments is not None and (segments.shape != x.shape[:2] or segments.dtype != torch.int32):
        raise InputError(
            f"segments are numbers of 32 bits (int32), one for each of {x.shape[1]} steps, but these are "
            f"{tuple(segments.shape)} of {segments.dtype}; convert them"
        )
    if num_last is not None and num_last != x.shape[1]:
        raise InputError("the last steps of packed sequences are not the last of the row; give their positions")


def is_convolved_as_it_lies(x: Float[Tensor, "1 L C"], num_taps: int, *, fused_renormalization: bool) -> bool:
    """Whether a kernel serves packed sequences; the reference takes one after the other, and waits for their ends."""
    return num_taps <= WIDEST_KERNEL and pick("auto", x, fused_renormalization=fused_renormalization) == "triton"


def segments_of(boundaries: Int[Tensor, "_n"], length: int) -> Int[Tensor, "1 L"]:
    """The number of the sequence that each step belongs to."""
    steps = torch.arange(length, device=boundaries.device, dtype=boundaries.dtype)
    return torch.bucketize(steps, boundaries, right=True, out_int32=True).unsqueeze(0)


def boundaries_of(segments: Int[Tensor, "1 L"]) -> Int[Tensor, "_n"]:
    """The way back."""
    _, lengths = torch.unique_consecutive(segments[0], return_counts=True)
    return F.pad(lengths.cumsum(0), (1, 0))


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
