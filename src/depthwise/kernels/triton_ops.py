"""The Triton kernels as operators of torch, with shapes for ``torch.compile`` and ``torch.export`` and with gradients.

``depthwise::convolve`` serves light (``kernel`` is (H, K)) and dynamic convolution (``kernel`` is (B, P, H, K)). Its P
readers stand at ``positions`` (B, P), else at the last steps of ``x``. ``segments`` (B, L) numbers the sequences that
are packed into a row; nobody sees another's. A ``seed`` switches DropConnect on. ``keep`` tells that there will be a
backward pass. This file does not import Triton: where there is none, nothing here is called.
"""

from collections.abc import Callable
from typing import Any

import torch

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
NUM_OPTIONS = 11
"""Those above and ``keep``."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
LIBRARY.define(f"convolve(Tensor x, Tensor kernel, {OPTIONS}, bool keep) -> (Tensor, Tensor)")
LIBRARY.define(
    f"convolve_backward(Tensor gradient, Tensor x, Tensor kernel, Tensor lse, {OPTIONS}, bool for_x, bool for_kernel)"
    " -> (Tensor, Tensor)"
)


def convolve_fused(
    x: Tensor,
    kernel: Tensor,
    *,
    left: int,
    num_readers: int,
    valid: Tensor | None,
    positions: Tensor | None,
    softmax: bool,
    renormalize: bool,
    dropconnect: float,
    dropconnect_shared: bool,
    boundaries: Tensor | None,
) -> Tensor:
    """The convolution as one operator. Its seed is drawn on the device, so that nothing waits for the GPU.

    Plain calls go to the kernels directly: the way through torch's dispatcher takes longer than they run. Compilers,
    exporters and subclasses of tensors meet the operator.
    """
    seed = None
    if dropconnect > 0:
        seed = torch.randint(2**63 - 1, (1,), device=x.device)
    segments = None if boundaries is None else segments_of(boundaries, x.shape[1])
    tensors = (valid, positions, segments, seed)
    options = (left, num_readers, *tensors, softmax, renormalize, dropconnect, dropconnect_shared)
    keep = torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad)
    if torch.compiler.is_compiling() or type(x) not in PLAIN or type(kernel) not in PLAIN:
        return torch.ops.depthwise.convolve(x, kernel, *options, keep)[0]
    if not keep:
        return _convolve(x, kernel, *options, False)[0]
    y: Tensor = Convolution.apply(x, kernel, *options)
    return y


class Convolution(torch.autograd.Function):
    """The operator and its gradients for plain calls."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, *options: Any) -> Tensor:
        output = _convolve(x, kernel, *options, True)
        _save(ctx, (x, kernel, *options, True), output)
        return output[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, gradient, _convolve_backward)[:-1]


def _convolve(x: Tensor, kernel: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    from depthwise.kernels.triton_launch import Call, forward

    *rest, keep = options
    return forward(x, kernel, Call(*rest), keep=keep)


def _convolve_backward(
    gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    """Gradients of input and kernel; empty where they are not asked for."""
    from depthwise.kernels.triton_launch import Call, input_gradient, kernel_gradients

    *rest, for_x, for_kernel = options
    call = Call(*rest)
    x_gradient = input_gradient(gradient, x, kernel, lse, call) if for_x else x.new_empty(0)
    kernel_gradient = kernel_gradients(gradient, x, kernel, lse, call) if for_kernel else kernel.new_empty(0)
    return x_gradient, kernel_gradient


def _fake_convolve(x: Tensor, kernel: Tensor, left: int, num_readers: int, *options: Any) -> tuple[Tensor, Tensor]:
    softmax, keep = options[4], options[-1]
    shape = (x.shape[0], num_readers, kernel.shape[-2]) if softmax and keep and kernel.dim() == 4 else (0,)
    return x.new_empty(x.shape[0], num_readers, x.shape[2]), x.new_empty(shape, dtype=torch.float32)


def _fake_convolve_backward(
    gradient: Tensor, x: Tensor, kernel: Tensor, lse: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    *_, for_x, for_kernel = options
    return x.new_empty(x.shape if for_x else (0,)), kernel.new_empty(kernel.shape if for_kernel else (0,))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, kernel, left, num_readers, valid, positions, segments, seed, *rest = inputs
    ctx.save_for_backward(x, kernel, output[1], valid, positions, segments, seed)
    ctx.numbers = (left, num_readers)
    ctx.rest = rest[:-1]


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(ctx, gradient, torch.ops.depthwise.convolve_backward)


def _gradients(ctx: Any, gradient: Tensor, run: Callable[..., tuple[Tensor, Tensor]]) -> tuple[Tensor | None, ...]:
    x, kernel, lse, *optional = ctx.saved_tensors
    for_x, for_kernel, *_ = ctx.needs_input_grad
    found = run(gradient, x, kernel, lse, *ctx.numbers, *optional, *ctx.rest, for_x, for_kernel)
    return found[0] if for_x else None, found[1] if for_kernel else None, *(None,) * NUM_OPTIONS


for device_type in ("CPU", "CUDA"):  # on a CPU, Triton's interpreter runs them
    LIBRARY.impl("convolve", _convolve, device_type)
    LIBRARY.impl("convolve_backward", _convolve_backward, device_type)
torch.library.register_fake("depthwise::convolve", _fake_convolve, lib=LIBRARY)
torch.library.register_fake("depthwise::convolve_backward", _fake_convolve_backward, lib=LIBRARY)
torch.library.register_autograd("depthwise::convolve", _differentiate, setup_context=_save, lib=LIBRARY)
