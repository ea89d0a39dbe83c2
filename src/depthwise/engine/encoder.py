"""The compact executor of encoders: what has left is not computed, and neither is padding.

All tokens of a batch lie in one long row. A block computes next states for those who run; of those who have left it
computes only what somebody of the same sequence still sees, and of sequences that nobody runs any more nothing at all.
Who runs is known to the host, which asks a device once for the padding mask, where that is there, once for a plan that
was made there, and once for each decision that a policy takes on the way. Of a plan that was made on the host, with the
padding beside it, it asks nothing at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from depthwise.depth import Context, Plan, State, StructurePredictor, Visit
from depthwise.engine.packed_blocks import PackedBlocks, packs
from depthwise.memory import Places
from depthwise.models.masked import Leaving
from depthwise.models.stack import Stack, StackOutput
from depthwise.shapes import Bool, Float, Int, Tensor


class CompactEncoder:
    """An executor (``models.executing``). ``token_layers`` counts the blocks that tokens ran, call after call."""

    def __init__(self) -> None:
        self.token_layers = 0
        self._blocks = PackedBlocks()

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
        plan = plan if plan is not None or leaving is None else planned(stack, leaving, steps, valid)
        real = torch.ones(x.shape[:2], dtype=torch.bool) if valid is None else on_host(valid, plan)
        if plan is None and leaving is None and structure is None and not packs(stack) and bool(real.all()):
            self.token_layers += stack.num_layers * real.numel()
            return stack.run_all(x), torch.full_like(steps, stack.num_layers)
        places = real.flatten().nonzero().squeeze(1)
        there = places.to(x.device, non_blocking=True)
        packed = x.flatten(0, 1).index_select(0, there).unsqueeze(0)
        walk = _Walk(stack, self._blocks, packed, places // x.shape[1])
        if structure is not None:
            _run_structured(walk, structure, x.shape[1])
        elif plan is not None:
            weights = None if plan.weight is None else plan.weight.to(x.device, non_blocking=True).flatten(1)[:, there]
            _run_plan(walk, plan.run.cpu().flatten(1)[:, places], weights)
        elif leaving is not None:
            question = _Question(leaving, steps.flatten().index_select(0, there), x.shape[1])
            _run_leaving(walk, leaving.exits, question)
        else:
            for layer in range(stack.num_layers):
                walk.run(layer, None)
        last, depths = walk.result()
        self.token_layers += int(depths.sum())
        depths = depths.to(x.device, non_blocking=True)
        seen = stack.normalized_each(last, depths.unsqueeze(0))
        output = StackOutput(_put_back(x, there, last), _put_back(stack.normalized(x), there, seen))
        return output, torch.zeros_like(steps).flatten().index_copy(0, there, depths.to(steps.dtype)).view_as(steps)


class _Walk:
    """Tokens on their way through a stack. Indices are the host's; only ``x`` and what came of it is elsewhere.

    ``origin`` says where the tokens that are still of use stood at the start.
    """

    def __init__(self, stack: Stack, blocks: PackedBlocks, x: Float[Tensor, "1 N D"], rows: Int[Tensor, "N"]) -> None:
        self.stack, self.x, self._blocks = stack, x, blocks
        self.rows, self.origin = _numbered(rows), torch.arange(len(rows))
        self._done = x
        self._depths = torch.zeros(len(rows), dtype=torch.long)

    def run(self, layer: int, readers: Int[Tensor, "A"] | None, weight: Float[Tensor, "1 A"] | None = None) -> None:
        """One block for some tokens, or for all."""
        device = self.x.device
        places = Places(self.rows, readers, device)
        after = self._blocks.block(self.stack, layer).run_packed(self.x, places, weight)
        if readers is None:
            self.x = after
            self._depths[self.origin] += 1
            return
        self.x.index_copy_(1, readers.to(device, non_blocking=True), after)
        self._depths[self.origin[readers]] += 1

    def keep(self, tokens: Int[Tensor, "M"]) -> None:
        """Go on with these tokens, whole sequences, alone."""
        if len(tokens) == len(self.rows):
            return
        self._put_aside()
        self.x = self.x.index_select(1, tokens.to(self.x.device, non_blocking=True))
        self.rows, self.origin = _numbered(self.rows[tokens]), self.origin[tokens]

    def result(self) -> tuple[Float[Tensor, "1 N D"], Int[Tensor, "N"]]:
        """The last state of every token, and how many blocks it ran."""
        self._put_aside()
        return self._done, self._depths

    def _put_aside(self) -> None:
        if len(self.origin) == self._done.shape[1]:
            self._done = self.x
        else:
            self._done.index_copy_(1, self.origin.to(self.x.device, non_blocking=True), self.x)


def _run_structured(walk: _Walk, structure: StructurePredictor, width: int) -> None:
    """Static layers for all, then what they say of the others. Waits for the device once, and not where all run."""
    for layer in range(structure.num_static):
        walk.run(layer, None)
    rows = walk.rows
    gates = structure(*Places(rows, None, walk.x.device).padded(walk.x, width))
    everything = torch.ones(len(gates.weight), len(rows), dtype=torch.bool)
    run = everything if gates.run is None else gates.run.cpu()[:, rows]
    weights = gates.weight.index_select(1, rows.to(walk.x.device, non_blocking=True))
    _run_plan(walk, run, weights, structure.num_static)


def _run_plan(walk: _Walk, run: Bool[Tensor, "L N"], weights: Float[Tensor, "L N"] | None, num_before: int = 0) -> None:
    """What a plan says of the layers above ``num_before``: it need not be that tokens run their first blocks."""
    num_layers = len(run)
    after = torch.arange(1, num_layers + 1).unsqueeze(1) * run
    ends = torch.zeros(int(walk.rows[-1]) + 1 if len(walk.rows) else 0, dtype=torch.long)
    ends.scatter_reduce_(0, walk.rows, after.amax(0) if num_layers else ends.new_zeros(len(walk.rows)), "amax")
    ends = ends[walk.rows]
    for layer in range(num_layers):
        walk.keep((ends[walk.origin] > layer).nonzero().squeeze(1))
        if len(walk.rows) == 0:
            return
        runs = run[layer, walk.origin]
        readers = None if bool(runs.all()) else runs.nonzero().squeeze(1)
        if readers is not None and len(readers) == 0:
            continue
        weight = None
        if weights is not None:
            chosen = walk.origin if readers is None else walk.origin[readers]
            weight = weights[layer].index_select(0, chosen.to(weights.device, non_blocking=True)).unsqueeze(0)
        walk.run(num_before + layer, readers, weight)


def _run_leaving(walk: _Walk, exits: Sequence[int], question: "_Question") -> None:
    """Whoever runs is asked at every exit; the policy sees nobody else."""
    running = torch.arange(len(walk.rows))
    for layer in range(walk.stack.num_layers):
        if layer in exits:
            running = running[question.stays(walk, layer, running)]
        live = torch.isin(walk.rows, walk.rows[running]).nonzero().squeeze(1)
        if len(live) == 0:
            return
        running = torch.searchsorted(live, running)
        walk.keep(live)
        walk.run(layer, None if len(running) == len(live) else running)


class _Question:
    """What a policy is asked from exit to exit, about tokens (1, A) or, where whole rows leave, about rows (R, 1).

    Rows are as wide as they came, since what heads say of them may have to do with that.
    """

    def __init__(self, leaving: Leaving, steps: Int[Tensor, "N"], width: int) -> None:
        self._leaving, self._steps, self._width = leaving, steps, width
        self._before: Tensor | None = None
        self._memory: State = {}
        self._asked: Tensor | None = None

    def stays(self, walk: _Walk, depth: int, running: Int[Tensor, "A"]) -> Bool[Tensor, "A"]:
        """Who of those that run does not leave here. Waits for the device, once."""
        if self._leaving.summary is None:
            return self._asked_of_tokens(walk, depth, running)
        return self._asked_of_rows(walk, depth)

    def _asked_of_tokens(self, walk: _Walk, depth: int, running: Int[Tensor, "A"]) -> Bool[Tensor, "A"]:
        leaving, there = self._leaving, running.to(walk.x.device, non_blocking=True)
        x = walk.x if len(running) == walk.x.shape[1] else walk.x.index_select(1, there)
        states = walk.stack.normalized(x, depth)
        states = states.clone() if states is walk.x else states  # which is written in place while these are remembered
        origin = walk.origin[running]
        self._go_on_with(origin, axis=1)
        steps = self._steps.index_select(0, origin.to(self._steps.device, non_blocking=True)).unsqueeze(0)
        context = Context(shape=(1, len(running)), exits=leaving.exits, steps=steps)
        return ~self._answer(depth, states, context, lambda: leaving.scores(depth, states, None))[0].cpu()

    def _asked_of_rows(self, walk: _Walk, depth: int) -> Bool[Tensor, "N"]:
        leaving, places = self._leaving, Places(walk.rows, None, walk.x.device)
        grid, valid = places.padded(walk.x, self._width)
        states = walk.stack.normalized(grid, depth)
        assert leaving.summary is not None
        num_rows = len(states)
        first = torch.cat([walk.rows.new_ones(1), walk.rows.diff()]).nonzero().squeeze(1)
        self._go_on_with(walk.origin[first], axis=0)
        steps = torch.zeros(num_rows, 1, dtype=torch.long, device=walk.x.device)
        context = Context(shape=(num_rows, 1), exits=leaving.exits, steps=steps)
        summary = leaving.summary(states, valid)
        leaves = self._answer(depth, summary, context, lambda: leaving.scores(depth, states, valid))
        return ~leaves[:, 0].cpu()[walk.rows]

    def _answer(
        self, depth: int, hidden: Tensor, context: Context, scoring: Callable[[], Tensor]
    ) -> Bool[Tensor, "_r _t"]:
        visit = Visit(depth=depth, hidden=hidden, before=self._before, context=context, scoring=scoring)
        leaves, self._memory = self._leaving.policy.leaving(visit, self._memory)
        self._before = hidden
        return leaves

    def _go_on_with(self, origin: Int[Tensor, "A"], axis: int) -> None:
        """Forget what was remembered of those who left since the last exit."""
        if self._asked is not None and len(origin) < len(self._asked) and self._before is not None:
            kept = torch.searchsorted(self._asked, origin).to(self._before.device, non_blocking=True)
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
    if leaving.summary is None:
        return context
    return replace(context, shape=(steps.shape[0], 1), steps=torch.zeros_like(steps[:, :1]), valid=None)


def _numbered(rows: Int[Tensor, "N"]) -> Int[Tensor, "N"]:
    """Rows counted from 0 without a gap."""
    return rows.unique_consecutive(return_inverse=True)[1]


def _put_back(x: Float[Tensor, "B T D"], there: Int[Tensor, "N"], found: Float[Tensor, "1 N D"]) -> Tensor:
    """Real tokens where they came from; padding is as it was."""
    return x.flatten(0, 1).index_copy(0, there, found[0]).view_as(x)
