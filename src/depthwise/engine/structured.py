"""Encoders whose first layers say how many of the others a row needs: rows that need no more leave the batch.

Rows stay padded, so that a block costs no bookkeeping; beside the compact executor this is the faster way where there
is little padding. The host learns the depths of all rows at once and waits for the device no more.
"""

import torch

from depthwise.depth import RowGates, StructurePredictor
from depthwise.memory import sent
from depthwise.models.stack import Stack, StackOutput
from depthwise.shapes import Bool, Float, Int, Tensor


def run_by_rows(
    stack: Stack,
    x: Float[Tensor, "B T D"],
    structure: StructurePredictor,
    *,
    valid: Bool[Tensor, "B T"] | None = None,
) -> tuple[StackOutput, Int[Tensor, "B T"]]:
    """The states after the layers that each row needs, and how deep each token ran."""
    first = structure.num_static
    for layer in range(first):
        x, _ = stack.run_layer(layer, x, valid=valid)
    gates = structure(x, valid)
    depths = (first + gates.depths).unsqueeze(1).expand(x.shape[:2])
    last = _run_adaptive(stack, x, gates, first, valid)
    return StackOutput(last, stack.normalized(last)), depths if valid is None else depths * valid


def _run_adaptive(stack: Stack, x: Tensor, gates: RowGates, first: int, valid: Tensor | None) -> Float[Tensor, "B T D"]:
    num_adaptive = len(gates.weight)
    if gates.run is None:
        for number in range(num_adaptive):
            x, _ = stack.run_layer(first + number, x, valid=valid, gate=gates.gate(number))
        return x
    depths, lengths = _on_the_host(gates.depths, valid)
    done, rows, here, weight = x, torch.arange(len(x)), valid, gates.weight
    for number in range(num_adaptive):
        stay = (depths[rows] > number).nonzero().squeeze(1)
        if len(stay) < len(rows):
            done = _put(done, rows, x)
            rows = rows[stay]
            if len(rows) == 0:
                return done
            kept = sent(stay, x.device)
            x, weight = x.index_select(0, kept), weight.index_select(1, kept)
            if here is not None and lengths is not None:
                longest = int(lengths[rows].max())
                x, here = x[:, :longest], here.index_select(0, kept)[:, :longest]
        x, _ = stack.run_layer(first + number, x, valid=here, gate=RowGates(weight).gate(number))
    return _put(done, rows, x)


def _on_the_host(
    depths: Int[Tensor, "B"], valid: Bool[Tensor, "B T"] | None
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"] | None]:
    """Depths of rows, and where the last real token of each ends; in one transfer."""
    if valid is None:
        return depths.cpu(), None
    ends = (valid * torch.arange(1, valid.shape[1] + 1, device=valid.device)).amax(1)
    found = torch.stack([depths, ends]).cpu()
    return found[0], found[1]


def _put(done: Float[Tensor, "B T D"], rows: Int[Tensor, "R"], x: Float[Tensor, "R W D"]) -> Float[Tensor, "B T D"]:
    """All states, with these of some rows in their place."""
    if len(rows) == len(done):
        return x
    there = sent(rows, x.device)
    if x.shape[1] == done.shape[1]:
        return done.index_copy(0, there, x)
    done = done.clone()
    done[there, : x.shape[1]] = x
    return done
