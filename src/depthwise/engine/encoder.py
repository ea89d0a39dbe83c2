"""The compact executor of encoders: what has left is not computed, and neither is padding.

All tokens of a batch lie in one long row. A block computes next states for those who run; of those who have left it
computes only what somebody of the same sequence still sees, and of sequences that nobody runs any more nothing at all.
Who runs is known to the host, which asks a device once for the padding mask, where that is there, once for a plan that
was made there, and once for each decision that a policy takes on the way. Of a plan that was made on the host, with the
padding beside it, it asks nothing at all. Where static layers say how many others a row needs, it asks once behind
them, for that and for the padding: until then a device computes padding too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from depthwise.depth import Context, Plan, State, StructurePredictor, Visit
from depthwise.engine.packed_blocks import PackedBlocks, packs
from depthwise.engine.recorded_walk import RecordedWalks
from depthwise.engine.rows import on_device
from depthwise.engine.structured import Begun, run_static
from depthwise.engine.walk import Walk
from depthwise.memory import Index, Places, Sequences, sent
from depthwise.models.masked import Leaving
from depthwise.models.stack import Stack, StackOutput
from depthwise.shapes import Bool, Float, Int, Tensor

SPARED_THAT_PARTS = {"cpu": 0}
SPARED_ELSEWHERE = 4096
"""Sequences that nobody runs any more are left behind where that spares more than so many token-layers: what later
blocks would compute of them for nobody. A GPU has computed a few sooner than it hears who stays: of 32 rows of 128
tokens under geometric depths, an H200 was done 4 and 8 % sooner when none was ever left behind than when that happened
for a quarter of the tokens, in one process where equal work differed by up to 9 %. With this number it takes as long as
when none ever is."""


class CompactEncoder:
    """An executor (``models.executing``). ``token_layers`` counts the blocks that tokens ran, call after call.

    With ``recorded``, blocks are recorded where that is possible.
    """

    def __init__(self, recorded: RecordedWalks | None = None) -> None:
        self.token_layers = 0
        self._blocks, self._recorded = PackedBlocks(), recorded

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
        if structure is not None and not knows_padding(x.device):
            return self.go_on(stack, run_static(stack, x, structure, valid), steps)
        plan = plan if plan is not None or leaving is None else planned(stack, leaving, steps, valid)
        real = torch.ones(x.shape[:2], dtype=torch.bool) if valid is None else on_host(valid, plan)
        is_as_it_lies = not packs(stack.block(0)) and bool(real.numpy().all())
        if plan is None and leaving is None and structure is None and is_as_it_lies:
            self.token_layers += stack.num_layers * real.numel()
            return stack.run_all(x), torch.full_like(steps, stack.num_layers)
        run, num_begun = None if plan is None else plan.run.cpu().flatten(1).numpy(), 0
        if run is not None and is_as_it_lies and not _has_weights(plan):
            x, num_begun = _begun(stack, x, run)
        places = np.flatnonzero(real.numpy())
        there = None if len(places) == real.numel() else on_device(places, x.device)
        packed = _taken(x.flatten(0, 1), there).unsqueeze(0)
        with self._walk(stack, packed, places // x.shape[1], structure is not None or _has_weights(plan)) as walk:
            if structure is not None:
                _run_structured(walk, structure, x.shape[1])
            elif plan is not None and run is not None:
                weights = None if plan.weight is None else _taken(sent(plan.weight, x.device).flatten(1), there, 1)
                run = run if there is None else run[:, places]
                walk.depths += num_begun
                _run_plan(walk, run[num_begun:], weights, num_begun)
            elif leaving is not None:
                question = _Question(leaving, _taken(steps.flatten(), there), x.shape[1])
                _run_leaving(walk, leaving.exits, question)
            else:
                for layer in range(stack.num_layers):
                    walk.run(layer)
                walk.depths += stack.num_layers
            last = walk.result()
        return self._put_back(stack, walk, last, x, there, steps)

    def go_on(self, stack: Stack, begun: Begun, steps: Int[Tensor, "B T"]) -> tuple[StackOutput, Int[Tensor, "B T"]]:
        """What comes behind the static layers of rows that have said how many others they need."""
        x, (num_rows, length) = begun.x, begun.x.shape[:2]
        places = np.arange(num_rows * length) if begun.real is None else np.flatnonzero(begun.real)
        there = None if len(places) == num_rows * length else on_device(places, x.device)
        rows = places // length
        packed = _taken(x.flatten(0, 1), there).unsqueeze(0)
        with self._walk(stack, packed, rows, is_weighed=True) as walk:
            walk.depths += begun.num_static
            run = np.arange(len(begun.gates.weight))[:, None] < begun.depths[rows]
            weights = begun.gates.weight.index_select(1, on_device(rows, x.device))
            _run_plan(walk, run, weights, begun.num_static)
            last = walk.result()
        return self._put_back(stack, walk, last, x, there, steps)

    def _put_back(
        self,
        stack: Stack,
        walk: Walk,
        last: Float[Tensor, "1 N D"],
        x: Float[Tensor, "B T D"],
        there: Int[Tensor, "N"] | None,
        steps: Int[Tensor, "B T"],
    ) -> tuple[StackOutput, Int[Tensor, "B T"]]:
        """The states of a walk at its end, in the places of a padded batch, and how deep each token ran."""
        self.token_layers += int(walk.depths.sum())
        depths = on_device(walk.depths, x.device)
        seen = stack.normalized_each(last, depths.unsqueeze(0))
        if there is None:
            return StackOutput(last.view_as(x), seen.view_as(x)), depths.to(steps.dtype).view_as(steps)
        output = StackOutput(_put_back(x, there, last), _put_back(stack.normalized(x), there, seen))
        return output, torch.zeros_like(steps).flatten().index_copy(0, there, depths.to(steps.dtype)).view_as(steps)

    def records(self, stack: Stack, x: Float[Tensor, "B T D"], plan: Plan | None) -> bool:
        """Whether blocks of this stack are recorded for so many tokens, which no plan weighs."""
        if self._recorded is None or _has_weights(plan):
            return False
        return self._recorded.serve(stack, x.flatten(0, 1).unsqueeze(0))

    @contextmanager
    def _walk(self, stack: Stack, x: Float[Tensor, "1 N D"], rows: Index, is_weighed: bool) -> Iterator[Walk]:
        """By recorded blocks where there are such, and nobody else is walking that way."""
        self._blocks.begin()
        recorded = self._recorded
        if recorded is None or is_weighed or not recorded.serve(stack, x):
            yield Walk(stack, self._blocks, x, rows)
        elif recorded.one_at_a_time.acquire(blocking=False):
            try:
                yield recorded.begin(stack, self._blocks, x, rows)
            finally:
                recorded.one_at_a_time.release()
        else:
            yield Walk(stack, self._blocks, x, rows)


def knows_padding(device: torch.device) -> bool:
    """Whether the host knows of the padding of a batch there without waiting for it."""
    return device.type == "cpu"


def _run_structured(walk: Walk, structure: StructurePredictor, width: int) -> None:
    """Static layers for all, then what they say of the others, where the host knows of padding before."""
    for layer in range(structure.num_static):
        walk.run(layer)
    walk.depths += structure.num_static
    rows = walk.rows
    gates = structure(*Places(walk.sequences).padded(walk.x, width))
    run = np.arange(len(gates.weight))[:, None] < gates.depths.cpu().numpy()[rows]
    weights = gates.weight.index_select(1, on_device(rows, walk.x.device))
    _run_plan(walk, run, weights, structure.num_static)


def _begun(stack: Stack, x: Float[Tensor, "B T D"], run: npt.NDArray[np.bool_]) -> tuple[Float[Tensor, "B T D"], int]:
    """Blocks that all tokens of a batch without padding run, as they lie, and how many these are.

    Nothing has to be found out for that, and a device works on them while the host looks at the rest of the plan.
    """
    num_begun = 0
    while num_begun < len(run) and run.size and run[num_begun].all():
        x, _ = stack.run_layer(num_begun, x)
        num_begun += 1
    return x, num_begun


def _run_plan(
    walk: Walk, run: npt.NDArray[np.bool_], weights: Float[Tensor, "L N"] | None, num_before: int = 0
) -> None:
    """What a plan (L, N) says of the layers above ``num_before``: it need not be that tokens run their first blocks.

    Blocks that all run come first: a device works on them while the host finds out about the others. After these it is
    told once who runs which layer, until sequences part.
    """
    first, last = 0, len(run)
    while first < last and len(walk.origin) and run[first].all():
        walk.run(num_before + first, None if weights is None else weights[first].unsqueeze(0))
        first += 1
    walk.depths += run.sum(0)
    ends = _ends_of_rows(run, walk.sequences)
    partings = _partings(ends, first, SPARED_THAT_PARTS.get(walk.x.device.type, SPARED_ELSEWHERE))
    for begin, end in pairwise(sorted({first, *partings, int(ends.max(initial=first))})):
        if begin in partings:
            walk.keep(np.flatnonzero(ends[walk.origin] > begin))
        running = run[begin:end] if len(walk.origin) == run.shape[1] else run[begin:end, walk.origin]
        readers = [np.flatnonzero(runs) for runs in running]
        walk.tell(num_before + begin, readers)
        for layer, here in enumerate(readers, begin):
            if len(here) == 0:
                continue
            weight = None
            if weights is not None:
                weight = weights[layer].index_select(0, on_device(walk.origin[here], weights.device)).unsqueeze(0)
            walk.run(num_before + layer, weight)


def _partings(ends: Index, first: int, spared: int) -> list[int]:
    """The layers, from this one on, before which sequences that have ended are left behind: as soon as that spares more
    than so many tokens, counted once for every block to come."""
    by_end = np.bincount(ends).tolist()
    num_ended, found = sum(by_end[:first]), []
    for layer in range(first, len(by_end) - 1):
        num_ended += by_end[layer]
        if num_ended * (len(by_end) - 1 - layer) > spared:
            found.append(layer)
            num_ended = 0
    return found


def _has_weights(plan: Plan | None) -> bool:
    return plan is not None and plan.weight is not None


def _ends_of_rows(run: npt.NDArray[np.bool_], sequences: Sequences) -> Index:
    """For every token, how many layers it takes until nobody of its sequence runs any more."""
    num_layers = len(run)
    if num_layers == 0 or len(sequences) == 0:
        return np.zeros(len(sequences), dtype=np.int64)
    wanted = np.logical_or.reduceat(run, sequences.starts, axis=1)
    last = num_layers - wanted[::-1].argmax(0)
    return np.where(wanted.any(0), last, 0)[sequences.rows]


def _run_leaving(walk: Walk, exits: Sequence[int], question: "_Question") -> None:
    """Whoever runs is asked at every exit; the policy sees nobody else."""
    running = np.arange(len(walk.rows))
    for layer in range(walk.stack.num_layers):
        if layer in exits:
            running = running[question.stays(walk, layer, running)]
        has_any = np.zeros(len(walk.sequences.lengths), dtype=np.bool_)
        has_any[walk.rows[running]] = True
        live = np.flatnonzero(has_any[walk.rows])
        if len(live) == 0:
            return
        running = np.searchsorted(live, running)
        walk.keep(live)
        walk.depths[walk.origin[running]] += 1
        walk.tell(layer, [running])
        walk.run(layer)


class _Question:
    """What a policy is asked from exit to exit, about tokens (1, A) or, where whole rows leave, about rows (R, 1).

    Rows are as wide as they came, since what heads say of them may have to do with that.
    """

    def __init__(self, leaving: Leaving, steps: Int[Tensor, "N"], width: int) -> None:
        self._leaving, self._steps, self._width = leaving, steps, width
        self._before: Tensor | None = None
        self._memory: State = {}
        self._asked: Index | None = None

    def stays(self, walk: Walk, depth: int, running: Index) -> npt.NDArray[np.bool_]:
        """Who of those that run does not leave here. Waits for the device, once."""
        if self._leaving.summary is None:
            return self._asked_of_tokens(walk, depth, running)
        return self._asked_of_rows(walk, depth)

    def _asked_of_tokens(self, walk: Walk, depth: int, running: Index) -> npt.NDArray[np.bool_]:
        leaving, device = self._leaving, walk.x.device
        x = walk.x if len(running) == walk.x.shape[1] else walk.x.index_select(1, on_device(running, device))
        states = walk.stack.normalized(x, depth)
        states = states.clone() if states is walk.x else states  # which is written in place while these are remembered
        origin = walk.origin[running]
        self._go_on_with(origin, axis=1)
        steps = self._steps.index_select(0, on_device(origin, device)).unsqueeze(0)
        context = Context(shape=(1, len(running)), exits=leaving.exits, steps=steps)
        leaves = self._answer(depth, states, context, lambda: leaving.scores(depth, states, None))
        stays: npt.NDArray[np.bool_] = ~leaves[0].cpu().numpy()
        return stays

    def _asked_of_rows(self, walk: Walk, depth: int) -> npt.NDArray[np.bool_]:
        leaving = self._leaving
        grid, valid = Places(walk.sequences).padded(walk.x, self._width)
        states = walk.stack.normalized(grid, depth)
        assert leaving.summary is not None
        num_rows = len(states)
        self._go_on_with(walk.origin[walk.sequences.starts], axis=0)
        steps = torch.zeros(num_rows, 1, dtype=torch.long, device=walk.x.device)
        context = Context(shape=(num_rows, 1), exits=leaving.exits, steps=steps, lengths=valid.sum(1))
        summary = leaving.summary(states, valid)
        leaves = self._answer(depth, summary, context, lambda: leaving.scores(depth, states, valid))
        stays: npt.NDArray[np.bool_] = ~leaves[:, 0].cpu().numpy()[walk.rows]
        return stays

    def _answer(
        self, depth: int, hidden: Tensor, context: Context, scoring: Callable[[], Tensor]
    ) -> Bool[Tensor, "_r _t"]:
        visit = Visit(depth=depth, hidden=hidden, before=self._before, context=context, scoring=scoring)
        leaves, self._memory = self._leaving.policy.leaving(visit, self._memory)
        self._before = hidden
        return leaves

    def _go_on_with(self, origin: Index, axis: int) -> None:
        """Forget what was remembered of those who left since the last exit."""
        if self._asked is not None and len(origin) < len(self._asked) and self._before is not None:
            kept = on_device(np.searchsorted(self._asked, origin), self._before.device)
            self._before = self._before.index_select(axis, kept)
            self._memory = {name: value.index_select(axis, kept) for name, value in self._memory.items()}
        self._asked = origin


def on_host(valid: Bool[Tensor, "B T"], plan: Plan | None) -> Bool[Tensor, "B T"]:
    """Which tokens are no padding; a device is asked only where the plan does not know it."""
    return valid.cpu() if plan is None or plan.real is None else plan.real


def planned(
    stack: Stack, leaving: Leaving, steps: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None
) -> Plan | None:
    """What a policy plans for a padded batch; none where it decides on the way."""
    if not leaving.policy.plans:
        return None
    depths = leaving.policy.plan(_context(leaving, steps, valid)).expand(steps.shape)
    return Plan.of_depths(depths if valid is None else depths * valid, stack.num_layers)


def _context(leaving: Leaving, steps: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None) -> Context:
    """What a policy knows that plans for a padded batch."""
    context = Context(shape=(steps.shape[0], steps.shape[1]), exits=leaving.exits, steps=steps, valid=valid)
    return context if leaving.summary is None else context.of_rows()


def _taken(values: Tensor, there: Int[Tensor, "N"] | None, axis: int = 0) -> Tensor:
    """What stands at these places; none means all of them."""
    return values if there is None else values.index_select(axis, there)


def _put_back(x: Float[Tensor, "B T D"], there: Int[Tensor, "N"], found: Float[Tensor, "1 N D"]) -> Tensor:
    """Real tokens where they came from; padding is as it was."""
    return x.flatten(0, 1).index_copy(0, there, found[0]).view_as(x)
