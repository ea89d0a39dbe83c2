"""The Triton kernels as operators of torch, with shapes for ``torch.compile`` and ``torch.export`` and with gradients.

``depthwise::convolve`` serves light (``kernel`` is (H, K)) and dynamic convolution (``kernel`` is (B, P, H, K)). Its P
readers stand at ``positions`` (B, P), else at the last steps of ``x``. ``segments`` (B, L) numbers the sequences that
are packed into a row; nobody sees another's. A ``seed`` switches DropConnect on. ``keep`` tells that there will be a
backward pass. This file does not import Triton: where there is none, nothing here is called.
"""

from functools import cache
from typing import Any

import torch

from depthwise.errors import InputError
from depthwise.kernels.call import Call
from depthwise.kernels.options import ConvOptions
from depthwise.kernels.packed import segments_of
from depthwise.shapes import Tensor

if (_earlier := getattr(torch.ops.depthwise, "library", None)) is not None:
    _earlier._destroy()  # this module was forgotten and is imported again
LIBRARY = torch.library.Library("depthwise", "DEF")
setattr(torch.ops.depthwise, "library", LIBRARY)  # noqa: B010 (no type checker knows of it)
OPTIONS = (
    "int left, int num_readers, Tensor? valid, Tensor? positions, Tensor? segments, Tensor? seed, "
    "bool softmax, bool renormalize, float dropconnect, bool dropconnect_shared"
)
PLAIN = (torch.Tensor, torch.nn.Parameter)
LIBRARY.define(f"convolve(Tensor x, Tensor kernel, {OPTIONS}, bool keep) -> (Tensor, Tensor)")
LIBRARY.define(
    f"convolve_backward(Tensor gradient, Tensor x, Tensor kernel, Tensor lse, {OPTIONS}, bool for_x, bool for_kernel)"
    " -> (Tensor, Tensor)"
)


def convolve_fused(x: Tensor, kernel: Tensor, num_readers: int, options: ConvOptions) -> Tensor:
    """The convolution as one operator. Its seed is drawn on the device, so that nothing waits for the GPU.

    Plain calls go to the kernels directly: the way through torch's dispatcher takes longer than they run. Compilers,
    exporters and subclasses of tensors meet the operator.
    """
    left, valid, positions, normalization, dropconnect, dropconnect_shared, renormalize, boundaries = options
    _check_shapes(x, kernel, num_readers, valid, positions)
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if dropconnect > 0 else None
    segments = None if boundaries is None else segments_of(boundaries, x.shape[1])
    softmax = normalization == "softmax"
    tensors = (valid, positions, segments, seed)
    call = Call(left, num_readers, *tensors, softmax, renormalize, dropconnect, dropconnect_shared)
    keep = torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad)
    if torch.compiler.is_compiling() or type(x) not in PLAIN or type(kernel) not in PLAIN:
        return torch.ops.depthwise.convolve(x, kernel, *call, keep)[0]
    y: Tensor = Convolution.apply(x, kernel, call) if keep else _launcher().forward(x, kernel, call, keep=False)[0]
    return y


def _check_shapes(x: Tensor, kernel: Tensor, num_readers: int, valid: Tensor | None, positions: Tensor | None) -> None:
    """The kernels follow these shapes without looking: a wrong one would have them read what is not theirs."""
    rows, length, _ = x.shape
    fits = (
        (kernel.dim() == 2 or kernel.shape[0] == rows)
        and (valid is None or valid.shape == (rows, length))
        and (num_readers <= length if positions is None else positions.shape == (rows, num_readers))
    )
    if not fits:
        shapes = {"x": x, "kernels": kernel, "valid": valid, "positions": positions}
        found = ", ".join(f"{name} {tuple(each.shape)}" for name, each in shapes.items() if each is not None)
        raise InputError(f"these shapes do not belong together: {found}; give all of them the rows and steps of x")


@cache
def _launcher() -> Any:
    """The file that needs Triton, imported when it is first needed."""
    from depthwise.kernels import triton_launch

    return triton_launch


class Convolution(torch.autograd.Function):
    """The operator and its gradients for plain calls."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, call: Call) -> Tensor:
        out: Tensor
        out, lse = _launcher().forward(x, kernel, call, keep=True)
        _save(ctx, (x, kernel, *call), lse)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel, lse, call = _saved(ctx)
        for_x, for_kernel, _ = ctx.needs_input_grad
        return *_launcher().backward(gradient, x, kernel, lse, call, for_x, for_kernel), None


def _convolve(x: Tensor, kernel: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    *rest, keep = options
    out, lse = _launcher().forward(x, kernel, Call(*rest), keep=keep)
    return out, x.new_empty(0, dtype=torch.float32) if lse is None else lse


def _convolve_backward(
    gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    """Gradients of input and kernel; empty where they are not asked for."""
    *rest, for_x, for_kernel = options
    call, kept = Call(*rest), lse if lse.numel() else None
    if kept is None and gradient.numel() and call.softmax and kernel.dim() == 4:
        raise InputError(
            "this program was made for inference and has no gradients; make it from tensors that need them"
        )
    x_gradient, kernel_gradient = _launcher().backward(gradient, x, kernel, kept, call, for_x, for_kernel)
    return x_gradient if for_x else x.new_empty(0), kernel_gradient if for_kernel else kernel.new_empty(0)


def _fake_convolve(x: Tensor, kernel: Tensor, left: int, num_readers: int, *options: Any) -> tuple[Tensor, Tensor]:
    softmax, keep = options[4], options[-1]
    shape = (x.shape[0], num_readers, kernel.shape[-2]) if softmax and keep and kernel.dim() == 4 else (0,)
    return x.new_empty(x.shape[0], num_readers, x.shape[2]), x.new_empty(shape, dtype=torch.float32)


def _fake_convolve_backward(
    gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    *_, for_x, for_kernel = options
    return x.new_empty(x.shape if for_x else (0,)), kernel.new_empty(kernel.shape if for_kernel else (0,))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _save(ctx, inputs[:-1], output[1])


def _save(ctx: Any, inputs: tuple[Any, ...], lse: Tensor | None) -> None:
    x, kernel, left, num_readers, valid, positions, segments, seed, *rest = inputs
    ctx.save_for_backward(x, kernel, lse, valid, positions, segments, seed)
    ctx.numbers, ctx.rest = (left, num_readers), rest


def _saved(ctx: Any) -> tuple[Tensor, Tensor, Any, Call]:
    x, kernel, lse, *optional = ctx.saved_tensors
    return x, kernel, lse, Call(*ctx.numbers, *optional, *ctx.rest)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, kernel, lse, call = _saved(ctx)
    for_x, for_kernel, *others = ctx.needs_input_grad
    found = torch.ops.depthwise.convolve_backward(gradient, x, kernel, lse, *call, for_x, for_kernel)
    return found[0] if for_x else None, found[1] if for_kernel else None, *(None for _ in others)


for device_type in ("CPU", "CUDA"):  # on a CPU, Triton's interpreter runs them
    LIBRARY.impl("convolve", _convolve, device_type)
    LIBRARY.impl("convolve_backward", _convolve_backward, device_type)
torch.library.register_fake("depthwise::convolve", _fake_convolve, lib=LIBRARY)
torch.library.register_fake("depthwise::convolve_backward", _fake_convolve_backward, lib=LIBRARY)
torch.library.register_autograd("depthwise::convolve", _differentiate, setup_context=_setup_context, lib=LIBRARY)
