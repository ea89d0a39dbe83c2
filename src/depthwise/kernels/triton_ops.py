"""The Triton kernels as operators of torch, with shapes for ``torch.compile`` and ``torch.export`` and with gradients.

``depthwise::convolve`` serves light (``kernel`` is (H, K)) and dynamic convolution (``kernel`` is (B, P, H, K)). Its P
readers stand at ``positions`` (B, P), else at the last steps of ``x``. ``segments`` (B, L) numbers the sequences that
are packed into a row; nobody sees another's. A ``seed`` switches DropConnect on. ``keep`` tells that there will be a
backward pass. This file does not import Triton: where there is none, nothing here is called.
"""

from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from depthwise.errors import InputError
from depthwise.kernels.backend import PLAIN
from depthwise.kernels.call import Call, OptionalTensors, call_of, check_shapes, shape_of
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
    left, valid, positions, normalization, dropconnect, dropconnect_shared, renormalize, boundaries, segments = options
    seed = torch.randint(2**63 - 1, (1,), device=x.device) if dropconnect > 0 else None
    if boundaries is not None:
        segments = segments_of(boundaries, x.shape[1])
    optional = (valid, positions, segments, seed)
    others = (normalization == "softmax", renormalize, dropconnect, dropconnect_shared)
    keep = torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad)
    y: Tensor
    if torch.compiler.is_compiling() or type(x) not in PLAIN or type(kernel) not in PLAIN:
        check_shapes(x.shape, kernel.shape, shape_of(valid), shape_of(positions), num_readers)
        y, _ = torch.ops.depthwise.convolve(x, kernel, left, num_readers, *optional, *others, keep)
        return y
    call = call_of(x, kernel, left, num_readers, optional, *others)
    if keep:
        y = Convolution.apply(x, kernel, optional, call)
    else:
        y, _ = _launcher().forward(x, kernel, optional, call, keep=False)
    return y


@cache
def _launcher() -> Any:
    """The file that needs Triton, imported when it is first needed."""
    from depthwise.kernels import triton_launch

    return triton_launch


class Convolution(torch.autograd.Function):
    """The operator and its gradients for plain calls."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, optional: OptionalTensors, call: Call) -> Tensor:
        out: Tensor
        out, lse = _launcher().forward(x, kernel, optional, call, keep=True)
        ctx.save_for_backward(x, kernel, lse, *optional)
        ctx.call = call
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (_gradients_once if torch.is_grad_enabled() else _gradients)(ctx, gradient)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, kernel, lse, valid, positions, segments, seed = ctx.saved_tensors
    optional = (valid, positions, segments, seed)
    for_x, for_kernel, _, _ = ctx.needs_input_grad
    return *_launcher().backward(gradient, x, kernel, lse, optional, ctx.call, for_x, for_kernel), None, None


_gradients_once = once_differentiable(_gradients)
"""The same where the backward pass is recorded: whoever differentiates it is told that this cannot be."""


def _convolve(x: Tensor, kernel: Tensor, left: int, num_readers: int, *options: Any) -> tuple[Tensor, Tensor]:
    optional, others, keep = options[:4], options[4:-1], options[-1]
    call = call_of(x, kernel, left, num_readers, optional, *others)
    out, lse = _launcher().forward(x, kernel, optional, call, keep=keep)
    return out, x.new_empty(0, dtype=torch.float32) if lse is None else lse


def _convolve_backward(
    gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor, left: int, num_readers: int, *options: Any
) -> tuple[Tensor, Tensor]:
    """Gradients of input and kernel; empty where they are not asked for."""
    optional, others, (for_x, for_kernel) = options[:4], options[4:-2], options[-2:]
    call = call_of(x, kernel, left, num_readers, optional, *others)
    kept = lse if lse.numel() else None
    if kept is None and call.lse_shape is not None and call.num_elements:
        raise InputError(
            "this program was made for inference and has no gradients; make it from tensors that need them"
        )
    found = _launcher().backward(gradient, x, kernel, kept, optional, call, for_x, for_kernel)
    return found[0] if for_x else x.new_empty(0), found[1] if for_kernel else kernel.new_empty(0)


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
    x, kernel, left, num_readers, valid, positions, segments, seed, *others, _ = inputs
    ctx.save_for_backward(x, kernel, output[1], valid, positions, segments, seed)
    ctx.numbers, ctx.others = (left, num_readers), others


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, kernel, lse, *optional = ctx.saved_tensors
    for_x, for_kernel, *rest = ctx.needs_input_grad
    options = (*ctx.numbers, *optional, *ctx.others)
    found = torch.ops.depthwise.convolve_backward(gradient, x, kernel, lse, *options, for_x, for_kernel)
    return found[0] if for_x else None, found[1] if for_kernel else None, *(None for _ in rest)


for device_type in ("CPU", "CUDA"):  # on a CPU, Triton's interpreter runs them
    LIBRARY.impl("convolve", _convolve, device_type)
    LIBRARY.impl("convolve_backward", _convolve_backward, device_type)
torch.library.register_fake("depthwise::convolve", _fake_convolve, lib=LIBRARY)
torch.library.register_fake("depthwise::convolve_backward", _fake_convolve_backward, lib=LIBRARY)
torch.library.register_autograd("depthwise::convolve", _differentiate, setup_context=_setup_context, lib=LIBRARY)
