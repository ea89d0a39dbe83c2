"""Encoders whose first layers say how many of the others a row needs: rows that need no more leave the batch.

Rows stay padded, so that a block costs no bookkeeping; beside the compact executor this is the faster way where there
is little padding. The host learns the depths of all rows at once, with their padding, and waits for the device no more.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from depthwise.depth import RowGates, StructurePredictor
from depthwise.memory import Index, sent
from depthwise.models.stack import Stack, StackOutput
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Begun:
    """A padded batch behind its static layers. What the host asks of it comes in one transfer, when first asked."""

    x: Float[Tensor, "B T D"]
    gates: RowGates
    num_static: int
    valid: Bool[Tensor, "B T"] | None

    @cached_property
    def _told(self) -> npt.NDArray[np.int16]:
        """For every row its depth and, where there is padding, which tokens are real."""
        depths, valid = self.gates.depths.unsqueeze(1), self.valid
        told = depths if valid is None else torch.cat([depths, valid], 1)
        return told.to(torch.int16).cpu().numpy()

    @cached_property
    def depths(self) -> Index:
        """How many layers each row still needs."""
        num_rows, num_adaptive = len(self.x), len(self.gates.weight)
        return np.full(num_rows, num_adaptive) if self.gates.run is None else self._told[:, 0].astype(np.int64)

    @cached_property
    def real(self) -> npt.NDArray[np.bool_] | None:
        """Which tokens are no padding; none means all."""
        return None if self.valid is None else self._told[:, 1:].astype(np.bool_)

    @cached_property
    def ends(self) -> Index:
        """Where the last real token of each row ends."""
        num_rows, length = self.x.shape[:2]
        if self.real is None:
            return np.full(num_rows, length)
        return length - self.real[:, ::-1].argmax(1)

    def num_places(self) -> Index:
        """What rows that are still there take up in each layer, up to the longest of them once some have left."""
        found = []
        for layer in range(len(self.gates.weight)):
            stays = self.depths > layer
            num, longest = int(stays.sum()), self.ends[stays].max(initial=0)
            found.append(num * (self.x.shape[1] if num == len(stays) else longest))
        return np.array(found)

    def num_run(self) -> Index:
        """How many real tokens run each layer."""
        lengths = np.full(len(self.x), self.x.shape[1]) if self.real is None else self.real.sum(1)
        return np.array([lengths[self.depths > layer].sum() for layer in range(len(self.gates.weight))])


def run_static(
    stack: Stack, x: Float[Tensor, "B T D"], structure: StructurePredictor, valid: Bool[Tensor, "B T"] | None
) -> Begun:
    """Run the static layers, and hear what they say of the others."""
    for layer in range(structure.num_static):
        x, _ = stack.run_layer(layer, x, valid=valid)
    return Begun(x, structure(x, valid), structure.num_static, valid)


def run_by_rows(
    stack: Stack,
    x: Float[Tensor, "B T D"],
    structure: StructurePredictor,
    *,
    valid: Bool[Tensor, "B T"] | None = None,
) -> tuple[StackOutput, Int[Tensor, "B T"]]:
    """The states after the layers that each row needs, and how deep each token ran."""
    return go_on_by_rows(stack, run_static(stack, x, structure, valid))


def go_on_by_rows(stack: Stack, begun: Begun) -> tuple[StackOutput, Int[Tensor, "B T"]]:
    """The same behind the static layers."""
    valid = begun.valid
    depths = (begun.num_static + begun.gates.depths).unsqueeze(1).expand(begun.x.shape[:2])
    last = _run_adaptive(stack, begun)
    return StackOutput(last, stack.normalized(last)), depths if valid is None else depths * valid


def _run_adaptive(stack: Stack, begun: Begun) -> Float[Tensor, "B T D"]:
    x, gates, first, here = begun.x, begun.gates, begun.num_static, begun.valid
    done, rows, weight = x, np.arange(len(x)), gates.weight
    for number in range(len(gates.weight)):
        stay = np.flatnonzero(begun.depths[rows] > number)
        if len(stay) < len(rows):
            done = _put(done, rows, x)
            rows = rows[stay]
            if len(rows) == 0:
                return done
            kept = sent(torch.from_numpy(stay), x.device)
            x, weight = x.index_select(0, kept), weight.index_select(1, kept)
            if here is not None:
                longest = int(begun.ends[rows].max())
                x, here = x[:, :longest], here.index_select(0, kept)[:, :longest]
        x, _ = stack.run_layer(first + number, x, valid=here, gate=RowGates(weight).gate(number))
    return _put(done, rows, x)


def _put(done: Float[Tensor, "B T D"], rows: Index, x: Float[Tensor, "R W D"]) -> Float[Tensor, "B T D"]:
    """All states, with these of some rows in their place."""
    if len(rows) == len(done):
        return x
    there = sent(torch.from_numpy(rows), x.device)
    if x.shape[1] == done.shape[1]:
        return done.index_copy(0, there, x)
    done = done.clone()
    done[there, : x.shape[1]] = x
    return done
