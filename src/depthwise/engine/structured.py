"""Encoders whose first layers say how many of the others a row needs: rows that need no more leave the batch.

Rows stay padded, so that a block costs no bookkeeping; beside the compact executor this is the faster way where there
is little padding. The host learns the depths of all rows at once, with their padding, and waits for the device no more.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from depthwise.depth import Gate, RowGates, StructurePredictor
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
        return np.full(num_rows, num_adaptive) if self.gates.num_run is None else self._told[:, 0].astype(np.int64)

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

    @cached_property
    def stays(self) -> npt.NDArray[np.bool_]:
        """Which rows run each layer."""
        return np.arange(len(self.gates.weight))[:, None] < self.depths

    def num_places(self) -> Index:
        """What rows that are still there take up in each layer, up to the longest of them once some have left."""
        num = self.stays.sum(1)
        longest = (self.stays * self.ends).max(1, initial=0)
        return num * np.where(num == len(self.x), self.x.shape[1], longest)

    def num_run(self) -> Index:
        """How many real tokens run each layer."""
        lengths = np.full(len(self.x), self.x.shape[1]) if self.real is None else self.real.sum(1)
        return self.stays @ lengths


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
    """Rows lie with the deepest first, so that those who stay are the first ones: nothing is gathered on the way, and
    whoever leaves is copied to its place once. A device that waits for its host hears of little more than of blocks."""
    first, x, staying = begun.num_static, begun.x, begun.stays.sum(1).tolist()
    weight = begun.gates.weight.to(x.dtype)[..., None, None]  # as branches meet it
    if all(num in (0, len(x)) for num in staying):
        for number, own in enumerate(weight[: staying.count(len(x))].unbind(0)):
            x, _ = stack.run_layer(first + number, x, valid=begun.valid, gate=Gate(weight=own))
        return x
    order = np.argsort(-begun.depths, kind="stable")
    there = sent(torch.from_numpy(order), begun.x.device)
    x, weight = x.index_select(0, there), weight.index_select(1, there)
    here = None if begun.valid is None else begun.valid.index_select(0, there)
    done, ends = x.clone(), begun.ends[order]
    for number, num in enumerate(staying):
        if num < len(x):
            done[num : len(x), : x.shape[1]] = x[num:]
            if num == 0:
                break
            longest = int(ends[:num].max())
            x, weight, here = x[:num, :longest], weight[:, :num], None if here is None else here[:num, :longest]
        x, _ = stack.run_layer(first + number, x, valid=here, gate=Gate(weight=weight[number]))
    else:
        done[: len(x), : x.shape[1]] = x
    return torch.empty_like(done).index_copy_(0, there, done)
