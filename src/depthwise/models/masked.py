"""The masked executor: everything is computed, then selected.

Slow, simple and differentiable: the truth that every faster executor must agree with.
"""

from torch.distributed.fsdp import FSDPModule

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.memory import DecodeState
from depthwise.models.stack import Source, Stack, StackOutput
from depthwise.shapes import Bool, Float, Tensor


def run_masked(
    stack: Stack,
    x: Float[Tensor, "B T D"],
    plan: Plan,
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    source: Source | None = None,
    state: DecodeState | None = None,
    keep_hidden: bool = False,
) -> StackOutput:
    """Run a plan: h^n_t = block_n(h^{n-1})_t where token t runs block n, else h^{n-1}_t, until no token runs.

    Padding never runs. Tokens that have left are still written by every later block from their copied state, so that
    those who run see them there.
    """
    expected = (stack.num_layers, *x.shape[:2])
    if tuple(plan.run.shape) != expected:
        raise InputError(f"the plan is for (layers, rows, steps) = {tuple(plan.run.shape)}, the input has {expected}")
    if plan.weight is not None and tuple(plan.weight.shape) != expected:
        raise InputError(f"the weights of the plan have shape {tuple(plan.weight.shape)}, the input has {expected}")
    if valid is not None:
        plan = Plan(plan.run & valid, plan.weight)
    gates = [plan.gate(layer) for layer in range(_num_layers_to_run(stack, plan))]
    return stack.run_all(x, gates, valid=valid, source=source, state=state, keep_hidden=keep_hidden)


def _num_layers_to_run(stack: Stack, plan: Plan) -> int:
    """As many as any token needs; all of them where blocks are sharded, since all processes gather them together."""
    is_sharded = any(isinstance(block, FSDPModule) for block in stack.layers)
    return stack.num_layers if is_sharded else plan.num_layers_needed()
