"""The norm of a residual sum, whose dropout, sum and norm are one kernel forward and two backward."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from depthwise.errors import InputError
from depthwise.kernels.backend import pick_for_reading, pick_for_training
from depthwise.kernels.plan import Plan
from depthwise.kernels.tiles import power_of_two
from depthwise.shapes import Float, Tensor

WIDEST = 8192
"""Elements of a row that a program holds at once."""
FORWARD_TILE, BACKWARD_TILE = 256, 2048
"""Elements of narrow rows that a program takes at once, with 8 of them to a thread."""
MOST_WARPS = 16
PROGRAMS_PER_PROCESSOR = 2
"""Programs of the backward pass, each of which leaves one part of the gradients of weight and bias."""
PROCESSORS_INTERPRETED = 2
PARTS_AT_ONCE, COLUMNS_AT_ONCE = 128, 16


def residual_norm(
    x: Float[Tensor, "*rest D"],
    branch: Float[Tensor, "*rest D"] | None,
    weight: Float[Tensor, "D"],
    bias: Float[Tensor, "D"],
    *,
    epsilon: float,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "*rest D"]:
    """LayerNorm(x + dropout(branch)), or of x alone      (Ba et al. 2016; the sub-layers of Vaswani et al. 2017).

    x and branch may differ in precision. The result has the wider one, or float32 under autocast, as torch has it on a
    GPU. Triton serves passes of training (see ``pick_for_training``) and computes in float32; its masks of dropout are
    others than torch's, drawn anew at every call.
    """
    if branch is not None and branch.shape != x.shape:
        raise InputError(
            f"a branch of shape {tuple(branch.shape)} meets states of shape {tuple(x.shape)}; give both the same"
        )
    if not weight.shape == bias.shape == x.shape[-1:]:
        raise InputError(f"weight and bias of a norm have the width of the states, {x.shape[-1]}; give such ones")
    tensors = (x, weight, bias) if branch is None else (x, branch, weight, bias)
    run = IMPLEMENTATIONS[pick_for_training(backend, *tensors, widest=WIDEST)]
    return run(x, branch, weight, bias, epsilon, 0.0 if branch is None else dropout)


def normalized_sum(
    x: Float[Tensor, "R D"],
    branch: Float[Tensor, "R D"],
    weight: Float[Tensor, "D"],
    bias: Float[Tensor, "D"],
    *,
    epsilon: float,
    backend: str = "auto",
) -> Float[Tensor, "R D"]:
    """LayerNorm(x + branch) where nobody learns: one kernel on a GPU, for recorded steps of decoding."""
    run = IMPLEMENTATIONS[pick_for_reading(backend, x, branch, weight, bias, widest=WIDEST)]
    return run(x, branch, weight, bias, epsilon, 0.0)


def residual_norm_reference(
    x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float, dropout: float
) -> Tensor:
    """Torch's own operators."""
    total = x if branch is None else x + F.dropout(branch, dropout)
    return F.layer_norm(total, weight.shape, weight, bias, epsilon)


def residual_norm_triton(
    x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float, dropout: float
) -> Tensor:
    """One kernel. Its seed is drawn on the device, so that nothing waits for the GPU and recorded passes draw anew."""
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if dropout > 0 else None
    dtype = x.dtype if branch is None else torch.promote_types(x.dtype, branch.dtype)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.float32
    options = Options(float(epsilon), float(dropout), dtype)  # Triton compiles anew for whole numbers
    out: Tensor = ResidualNorm.apply(x, branch, weight, bias, seed, options)
    return out


IMPLEMENTATIONS = {"reference": residual_norm_reference, "triton": residual_norm_triton}


@dataclass(frozen=True)
class Options:
    """What is no tensor."""

    epsilon: float
    dropout: float
    dtype: torch.dtype

    @property
    def scale(self) -> float:
        """What dropout multiplies by what it keeps; with a probability of 1 it keeps nothing."""
        return 1 / (1 - self.dropout) if self.dropout < 1 else 0.0


class ResidualNorm(torch.autograd.Function):
    """The kernels and their gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, seed: Tensor | None, options: Options
    ) -> Tensor:
        x, branch = x.contiguous(), None if branch is None else branch.contiguous()
        width = weight.numel()
        num_rows = x.numel() // width
        out = torch.empty_like(x, dtype=options.dtype)
        mean, rstd = (x.new_empty(num_rows, dtype=torch.float32) for _ in range(2))
        if num_rows:
            plan = plan_forward(width, branch is not None, seed is not None)
            tensors = (x, x if branch is None else branch, weight.contiguous(), bias.contiguous(), out, mean, rstd)
            numbers = (num_rows, options.epsilon, options.dropout, options.scale)
            plan.launch(-(-num_rows // plan.step), (*tensors, x if seed is None else seed), numbers)
        ctx.save_for_backward(x, branch, weight, bias, mean, rstd, seed)
        ctx.options = options
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, gradient)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Of x, branch, weight and bias. Those of x and branch are one tensor where nothing tells them apart."""
    x, branch, weight, bias, mean, rstd, seed = ctx.saved_tensors
    options: Options = ctx.options
    num_rows = mean.numel()
    if num_rows == 0:
        zeros = [None if each is None else torch.zeros_like(each) for each in (x, branch, weight, bias)]
        return *zeros, None, None
    is_both = branch is not None and (seed is not None or branch.dtype != x.dtype)
    plan = plan_backward(weight.numel(), branch is not None, seed is not None, is_both)
    num_blocks = -(-num_rows // plan.step)
    num_parts = min(num_blocks, PROGRAMS_PER_PROCESSOR * _num_processors(x.device))
    x_gradient = torch.empty_like(x)
    branch_gradient = torch.empty_like(branch) if is_both else x_gradient
    parts = x.new_empty(num_parts, 2, weight.numel(), dtype=torch.float32)
    inputs = (gradient.contiguous(), x, x if branch is None else branch, weight.contiguous(), mean, rstd)
    tensors = (*inputs, x_gradient, branch_gradient, parts, x if seed is None else seed)
    plan.launch(num_parts, tensors, (num_rows, num_blocks, options.dropout, options.scale))

    weight_gradient, bias_gradient = (
        torch.empty_like(each, memory_format=torch.contiguous_format) for each in (weight, bias)
    )
    finish = plan_finish(weight.numel())
    finish.launch(finish.programs_per_block, (parts, weight_gradient, bias_gradient), (num_parts,))
    return x_gradient, None if branch is None else branch_gradient, weight_gradient, bias_gradient, None, None


_gradients_once = once_differentiable(_gradients)
"""The same where the backward pass is recorded: whoever differentiates it is told that this cannot be."""


@lru_cache(maxsize=1024)
def plan_forward(width: int, has_branch: bool, drops: bool) -> Plan:
    """How rows of such a width are normalised, for batches of every shape."""
    constants, num_warps = _tile(width, FORWARD_TILE)
    constants |= {"HAS_BRANCH": has_branch, "DROP": drops}
    return Plan(_kernels().normalize_rows, constants, num_warps, constants["ROWS"], 1)


@lru_cache(maxsize=1024)
def plan_backward(width: int, has_branch: bool, drops: bool, is_both: bool) -> Plan:
    """The same for gradients."""
    constants, num_warps = _tile(width, BACKWARD_TILE)
    constants |= {"HAS_BRANCH": has_branch, "DROP": drops, "BOTH": is_both}
    return Plan(_kernels().normalize_rows_backward, constants, num_warps, constants["ROWS"], 1)


@lru_cache(maxsize=1024)
def plan_finish(width: int) -> Plan:
    """How parts of the gradients of weight and bias are added up."""
    constants = {"WIDTH": width, "COLUMNS": COLUMNS_AT_ONCE, "AT_ONCE": PARTS_AT_ONCE}
    return Plan(_kernels().finish_parameter_gradients, constants, 8, 1, -(-width // COLUMNS_AT_ONCE))


def _tile(width: int, num_elements: int) -> tuple[dict[str, Any], int]:
    """Sizes of a tile of whole rows, and warps for it."""
    block = power_of_two(width)
    rows = max(1, num_elements // block)
    num_warps = min(MOST_WARPS, max(num_elements, block) // 256)
    return {"WIDTH": width, "BLOCK": block, "ROWS": rows}, num_warps


@cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return PROCESSORS_INTERPRETED
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@cache
def _kernels() -> Any:
    """The file that needs Triton, imported when it is first needed."""
    from depthwise.kernels import triton_norm

    return triton_norm
