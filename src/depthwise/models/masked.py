"""The masked executor: everything is computed, then selected.

Slow, simple and differentiable: the truth that every faster executor must agree with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.distributed.fsdp import FSDPModule

from depthwise.depth import Context, Gate, Plan, Policy, RowGates, State, StructurePredictor, Visit
from depthwise.errors import InputError
from depthwise.memory import DecodeState
from depthwise.models.stack import Source, Stack, StackOutput
from depthwise.shapes import Bool, Float, Int, Tensor


def run_masked(
    stack: Stack,
    x: Float[Tensor, "B T D"],
    plan: Plan,
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    source: Source | None = None,
    state: DecodeState | None = None,
    keep_hidden: bool = False,
    own_factors: Sequence[float] | None = None,
) -> StackOutput:
    """Run a plan: h^n_t = block_n(h^{n-1})_t where token t runs block n, else h^{n-1}_t, until no token runs.

    Padding never runs. Tokens that have left are still written by every later block from their copied state, so that
    those who run see them there. Training does not wait for a device to say when no token runs: all blocks do then.
    """
    expected = (stack.num_layers, *x.shape[:2])
    if tuple(plan.run.shape) != expected:
        raise InputError(f"the plan is for (layers, rows, steps) = {tuple(plan.run.shape)}, the input has {expected}")
    if plan.weight is not None and tuple(plan.weight.shape) != expected:
        raise InputError(f"the weights of the plan have shape {tuple(plan.weight.shape)}, the input has {expected}")
    if valid is not None:
        plan = Plan(plan.run & valid, plan.weight)
    runs_all = _is_sharded(stack) or (stack.training and x.device.type != "cpu")
    num_layers = stack.num_layers if runs_all else plan.num_layers_needed()

    def gates(layer: int, _: Tensor) -> Gate | bool:
        return plan.gate(layer) if layer < num_layers else False

    output = stack.run_all(
        x, gates, valid=valid, source=source, state=state, keep_hidden=keep_hidden, own_factors=own_factors
    )
    return _seen_by_depth(stack, output, plan.depths)


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """A policy together with what it looks at: the heads of all exits.

    ``scores`` gives the log-probabilities of the head at a depth, from the states there and from which of them are
    valid. Where whole rows leave, they are (B, 1, V), and ``summary`` makes one state (B, 1, E) of those of a row.
    """

    policy: Policy
    exits: tuple[int, ...]
    scores: Callable[[int, Tensor, Tensor | None], Tensor]
    summary: Callable[[Tensor, Tensor | None], Tensor] | None = None


def run_leaving(
    stack: Stack,
    x: Float[Tensor, "B T D"],
    leaving: Leaving,
    steps: Int[Tensor, "B T"],
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    source: Source | None = None,
    state: DecodeState | None = None,
    keep_hidden: bool = False,
) -> tuple[StackOutput, Int[Tensor, "B T"]]:
    """Run a policy: tokens leave where it says, or where it has planned to. Also gives how deep each of them ran."""
    context = Context(
        shape=(x.shape[0], x.shape[1]),
        exits=leaving.exits,
        steps=steps,
        valid=valid,
        source=None if source is None else source.states,
        source_valid=None if source is None else source.valid,
    )
    if leaving.summary is not None:
        context = context.of_rows()
    if leaving.policy.plans:
        depths = leaving.policy.plan(context).expand(x.shape[:2])
        plan = Plan.of_depths(depths if valid is None else depths * valid, stack.num_layers)
        output = run_masked(stack, x, plan, valid=valid, source=source, state=state, keep_hidden=keep_hidden)
        return output, plan.depths
    walk = _Walk(stack, leaving, context, valid, x)
    output = stack.run_all(x, walk, valid=valid, source=source, state=state, keep_hidden=keep_hidden)
    return _seen_by_depth(stack, output, walk.depths), walk.depths


def run_structured(
    stack: Stack,
    x: Float[Tensor, "B T D"],
    structure: StructurePredictor,
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    keep_hidden: bool = False,
) -> tuple[StackOutput, Int[Tensor, "B T"]]:
    """Run as many layers as their predictor says, each with its weight. Also gives how deep each token ran.

    Without a policy, and in training, all layers run for all rows and nobody waits for the device.
    """
    first, found, last = structure.num_static, list[RowGates](), stack.num_layers

    def gates(layer: int, x: Tensor) -> Gate | bool:
        nonlocal last
        if layer < first:
            return True
        if layer == first:
            found.append(structure(x, valid))
            if found[0].num_run is not None and not _is_sharded(stack):
                last = first + int(found[0].depths.max())
        return found[0].gate(layer - first) if layer < last else False

    output = stack.run_all(x, gates, valid=valid, keep_hidden=keep_hidden)
    depths = (first + found[0].depths).unsqueeze(1).expand(x.shape[:2])
    return output, depths if valid is None else depths * valid


class _Walk:
    """Tokens on their way through a stack: who still runs, and how deep each has come."""

    def __init__(self, stack: Stack, leaving: Leaving, context: Context, valid: Tensor | None, x: Tensor) -> None:
        self._stack, self._leaving, self._context, self._valid = stack, leaving, context, valid
        everybody = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        self.running = everybody if valid is None else valid
        self.depths = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        self._before: Tensor | None = None
        self._memory: State = {}
        self._never_stops = _is_sharded(stack)

    def __call__(self, layer: int, x: Float[Tensor, "B T D"]) -> Gate | bool:
        if layer in self._leaving.exits:
            self.running = self.running & ~self._leaves(layer, x)
        if not self._never_stops and not bool(self.running.any()):
            return False
        self.depths = self.depths + self.running
        return Gate(self.running)

    def _leaves(self, depth: int, x: Float[Tensor, "B T D"]) -> Bool[Tensor, "B T"]:
        states, leaving, valid = self._stack.normalized(x, depth), self._leaving, self._valid
        hidden = states if leaving.summary is None else leaving.summary(states, valid)
        visit = Visit(
            depth=depth,
            hidden=hidden,
            before=self._before,
            context=self._context,
            scoring=lambda: leaving.scores(depth, states, valid),
        )
        self._before = hidden
        leaves, self._memory = leaving.policy.leaving(visit, self._memory)
        return leaves.expand(x.shape[:2])


def _seen_by_depth(stack: Stack, output: StackOutput, depths: Int[Tensor, "B T"]) -> StackOutput:
    """The output in which every token has gone through the norm of the exit where it left."""
    if not stack.exit_norms:
        return output
    return replace(output, final=stack.normalized_each(output.last, depths))


def _is_sharded(stack: Stack) -> bool:
    """Blocks that are sharded all run for everybody, since all processes gather them together."""
    return any(isinstance(block, FSDPModule) for block in stack.layers)
