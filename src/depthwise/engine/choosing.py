"""Who runs an encoder: the compact executor where that is expected to take less time, else the masked one.

Both give the same numbers. The compact one takes longer for every block, by the same time whatever is computed there:
indices are made, tokens are gathered and put back. What it computes it may compute faster, from packed weights. So

    compact  iff  2·P·(B·T·L − rate·R) > worth·L

    P      parameters of a block; a token takes 2·P operations there
    L      blocks that run for anybody, through which the masked executor takes all of B·T
    R      token-layers that are really run
    rate   how long an operation takes the compact executor, of the time that it takes the masked one
    worth  operations that the masked one does in the time that a block's bookkeeping takes

Where a policy decides on the way, R is not known before: ``EXPECTED_SHARE`` of all is taken for it. Where static layers
say how many others a row needs, a device is asked for that and for the padding at once, behind them, and who runs the
other layers is chosen by what is then known: rows leave the masked executor too, so that it takes less than B·T.
"""

import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed.fsdp import FSDPModule

from depthwise.depth import Plan, StructurePredictor
from depthwise.engine.encoder import CompactEncoder, knows_padding, on_host, planned
from depthwise.engine.linear_maps import can_pack
from depthwise.engine.recorded_walk import RecordedWalks
from depthwise.engine.structured import Begun, go_on_by_rows, run_by_rows, run_static
from depthwise.models.masked import Leaving, run_leaving, run_masked, run_structured
from depthwise.models.stack import Stack, StackOutput
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Constants:
    """What the rule has to know of a kind of device."""

    worth: float
    rate: float = 1.0


KINDS = {
    "cpu packed": Constants(32e6, 0.6),
    "cpu": Constants(16e6),
    "cuda": Constants(10e9, 0.6),
    "cuda half": Constants(150e9),
    "cuda recorded": Constants(0.0),
}
"""By kind of device: ``cpu packed`` where ``linear_maps`` packs weights, ``cuda half`` in 16 bits, ``cuda recorded``
where the compact executor repeats recorded blocks by a plan, in any precision.

``cpu packed`` is from ``python benchmarks/choosing.py --threads 1``: 432 cases of three mixers, widths 32 to 384, 4 and
12 layers, 8 to 1,024 tokens. This choice is 1.0 % slower than the faster of both on average and 33 % at worst (eight
tokens of width 384, where time is that of reading weights); always compact would be 46 % slower, always masked 13 %.
``cpu`` is from the same cases before weights were packed. ``cuda`` is from ``python benchmarks/choosing.py --device
cuda --by-kernel --mixers attention dynamicconv --widths 256 768 --layers 12 --tokens 8x128 32x128 --repeats 1`` on an
H200: this choice is 0.6 % slower than the faster of both on average and 10 % at worst; always compact would be 40 %
slower, always masked 7 %. ``cuda half`` is not measured: 0.4 ms of a host's work for a block, at nearly 400 operations
in a picosecond. ``cuda recorded`` is from ``python benchmarks/choosing.py --device cuda --dtype DTYPE --mixers
attention --widths 384 --layers 6 --tokens 1x32 1x256 8x32 8x128 32x128 --repeats 1`` on an H200. Blocks of the masked
executor are recorded by nobody, so that the compact one is taken wherever it saves anything. In float32 and bfloat16
this choice is 1.4 and 0.0 % slower than the faster of both on average, 25 and 0 % at worst; always masked would be 57
and 104 % slower.
"""
EXPECTED_SHARE = 0.5
"""Of the blocks of a stack, how many a token is expected to run under a policy that decides on the way."""


class ChosenEncoder:
    """An executor (``models.executing``) that leaves each batch to one of two, by the rule above.

    Stacks that are sharded over processes are the masked one's: their blocks have to be called as they are.
    """

    def __init__(self, recorded: RecordedWalks | None = None) -> None:
        self.compact, self.masked = CompactEncoder(recorded), MaskedEncoder()

    @property
    def token_layers(self) -> int:
        """How many blocks tokens have run, all batches together."""
        return self.compact.token_layers + self.masked.token_layers

    def __call__(
        self,
        stack: Stack,
        x: Float[Tensor, "B T D"],
        *,
        valid: Bool[Tensor, "B T"] | None,
        plan: Plan | None,
        leaving: Leaving | None,
        steps: Int[Tensor, "B T"],
        structure: StructurePredictor | None = None,
    ) -> tuple[StackOutput, Int[Tensor, "B T"]]:
        is_sharded = any(isinstance(block, FSDPModule) for block in stack.layers)
        if structure is not None and not is_sharded and not knows_padding(x.device):
            begun = run_static(stack, x, structure, valid)
            return (self.compact if saves_time_behind(stack, begun) else self.masked).go_on(stack, begun, steps)
        if plan is None and leaving is not None:
            plan = planned(stack, leaving, steps, valid)
        is_recorded = structure is None and self.compact.records(stack, x, plan)
        saves = not is_sharded and saves_time(stack, x, valid, plan, leaving, is_recorded=is_recorded)
        chosen = self.compact if saves else self.masked
        return chosen(stack, x, valid=valid, plan=plan, leaving=leaving, steps=steps, structure=structure)


class MaskedEncoder:
    """The masked executor as the others are called. Rows that their first layers send home leave the batch."""

    def __init__(self) -> None:
        self._counted = torch.zeros((), dtype=torch.long)

    @property
    def token_layers(self) -> int:
        """How many blocks tokens have run; waits for the device."""
        return int(self._counted)

    def __call__(
        self,
        stack: Stack,
        x: Float[Tensor, "B T D"],
        *,
        valid: Bool[Tensor, "B T"] | None,
        plan: Plan | None,
        leaving: Leaving | None,
        steps: Int[Tensor, "B T"],
        structure: StructurePredictor | None = None,
    ) -> tuple[StackOutput, Int[Tensor, "B T"]]:
        if structure is not None:
            run = run_structured if any(isinstance(block, FSDPModule) for block in stack.layers) else run_by_rows
            output, depths = run(stack, x, structure, valid=valid)
        elif plan is not None:
            plan = plan.to(x.device)
            output, depths = run_masked(stack, x, plan, valid=valid), plan.depths
        elif leaving is not None:
            output, depths = run_leaving(stack, x, leaving, steps, valid=valid)
        else:
            output, depths = stack.run_all(x, valid=valid), torch.full_like(steps, stack.num_layers)
        depths = depths if valid is None else depths * valid
        self._count(depths)
        return output, depths

    def go_on(self, stack: Stack, begun: Begun, steps: Int[Tensor, "B T"]) -> tuple[StackOutput, Int[Tensor, "B T"]]:
        """What comes behind the static layers of rows that have said how many others they need."""
        output, depths = go_on_by_rows(stack, begun)
        self._count(depths)
        return output, depths

    def _count(self, depths: Int[Tensor, "B T"]) -> None:
        self._counted = self._counted.to(depths.device) + depths.sum()


def saves_time(
    stack: Stack,
    x: Float[Tensor, "B T D"],
    valid: Bool[Tensor, "B T"] | None,
    plan: Plan | None,
    leaving: Leaving | None,
    *,
    is_recorded: bool = False,
) -> bool:
    """Whether the compact executor is expected to be the faster one. Waits for padding or a plan that a device has."""
    num_places, num_blocks = x.shape[0] * x.shape[1], stack.num_layers
    if plan is not None and tuple(plan.run.shape) != (num_blocks, *x.shape[:2]):
        return False  # the masked executor says what is wrong with it
    if plan is not None:
        by_layer = _num_running(plan, valid)
        ran = np.flatnonzero(by_layer)
        num_blocks, num_run = int(ran[-1]) + 1 if len(ran) else 0, float(by_layer.sum())
    else:
        num_real = num_places if valid is None else int(valid.sum())
        num_run = num_real * num_blocks * (1 if leaving is None else EXPECTED_SHARE)
    known = constants(x.device, x.dtype, is_recorded=is_recorded and (plan is not None or leaving is None))
    return 2 * _num_parameters(stack) * (num_places * num_blocks - known.rate * num_run) > known.worth * num_blocks


def saves_time_behind(stack: Stack, begun: Begun) -> bool:
    """The same for the layers behind static ones, of which the host knows who runs them."""
    places, run = begun.num_places(), begun.num_run()
    num_blocks, known = int(np.count_nonzero(run)), constants(begun.x.device, begun.x.dtype)
    saved = 2 * _num_parameters(stack) * (float(places.sum()) - known.rate * float(run.sum()))
    return saved > known.worth * num_blocks


def _num_running(plan: Plan, valid: Bool[Tensor, "B T"] | None) -> npt.NDArray[np.int64]:
    """How many tokens run each layer. A plan of the host is counted by NumPy, which waits for no other thread."""
    if plan.run.device.type != "cpu":
        return (plan.run if valid is None else plan.run & valid).flatten(1).sum(1).cpu().numpy()
    runs = plan.run.numpy()
    runs = runs if valid is None else runs & on_host(valid, plan).numpy()
    return np.array([np.count_nonzero(layer) for layer in runs])


def _num_parameters(stack: Stack) -> int:
    """Of a block; counted once."""
    if stack not in _COUNTED:
        _COUNTED[stack] = sum(weight.numel() for weight in stack.block(0).parameters())
    return _COUNTED[stack]


_COUNTED: weakref.WeakKeyDictionary[Stack, int] = weakref.WeakKeyDictionary()


def constants(device: torch.device, dtype: torch.dtype, *, is_recorded: bool = False) -> Constants:
    """Those of the kind of device and precision; devices that are none of these are taken for a GPU."""
    kind = device.type if device.type in KINDS else "cuda"
    if kind == "cpu":
        return KINDS["cpu packed" if can_pack(torch.empty(0, dtype=dtype)) else "cpu"]
    if is_recorded:
        return KINDS["cuda recorded"]
    return KINDS["cuda half" if dtype.itemsize < torch.float32.itemsize else "cuda"]
