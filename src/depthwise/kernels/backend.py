"""Which implementation of an operation runs, decided in one place and never silently.

| asked for | runs |
|---|---|
| `reference` | plain PyTorch, everywhere |
| `triton` | the Triton kernels, or an error that says why they cannot serve this call |
| `auto` | `triton` where it serves the call and the tensors lie on a GPU, else `reference` |

Every call may ask. Those that do not follow the process: ``use_backend``, else the environment variable
``DEPTHWISE_BACKEND``, else `auto`. What the Triton kernels serve follows from the call alone, by the rules in
``obstacle``: it never depends on whether a kernel happened to work. A kernel that fails, fails. Some operations are
fused in training only: see ``pick_for_training``.

Attention has rules of its own, in ``attention_obstacle``. Its Triton kernels are for short sequences in training and
torch's own attention, no less a kernel, is for all others, so `auto` takes the former only where there will be
gradients. A call that asks for `triton` gets it or an error; a process that does gets it wherever it serves, because
no model has short sequences alone.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch

from depthwise.errors import BackendUnavailable
from depthwise.shapes import Tensor

BACKENDS = ("auto", "reference", "triton")
HAS_TRITON = find_spec("triton") is not None
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that a kernel may be launched on directly; subclasses have an operator's behaviour of their own."""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)
WIDEST_KERNEL = 255
HALF_PRECISIONS = (torch.float16, torch.bfloat16)
HEAD_WIDTHS = (16, 32, 64, 128)
MOST_STEPS = 128
"""Longest sequence whose scores one program of the attention kernels holds."""
OLDEST_GPU = (8, 0)
"""Compute capability from which on tensor cores know bfloat16."""
MOST_ELEMENTS = 2**31
"""Offsets inside one row of a batch are numbers of 32 bits."""

_of_process = os.environ.get("DEPTHWISE_BACKEND", "auto")


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """What calls get that leave the choice open, within a ``with`` block."""
    global _of_process
    before, _of_process = _of_process, _known(name)
    try:
        yield
    finally:
        _of_process = before


def is_forced(name: str) -> bool:
    """Whether calls that leave the choice open have none, because the process asks for this back end."""
    return _of_process == name


def pick(
    requested: str, x: Tensor | None = None, kernel: Tensor | None = None, *, fused_renormalization: bool = True
) -> str:
    """The back end that serves a request: ``auto`` takes the best that can run here; a forced one runs or raises.

    Without tensors the answer is about this machine. ``kernel`` holds weights or logits of K taps in its last axis.
    ``fused_renormalization`` is false for a call that divides by the mass of a kernel which is no softmax.
    """
    return _decided(requested, x, lambda: obstacle(x, kernel, fused_renormalization))


def pick_for_training(requested: str, x: Tensor, *others: Tensor, widest: int | None = None) -> str:
    """The same for what is fused in training only: plain tensors in a pass that somebody will differentiate.

    All else (evaluation, ``torch.compile``, ``torch.export``, subclasses of tensors) gets torch's own operators by the
    reference, whoever asks. ``widest`` is the most elements that the kernels take in the last axis of x.
    """
    _known(requested)
    tensors = (x, *others)
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return "reference"
    if not all(type(each) in PLAIN for each in tensors) or not any(each.requires_grad for each in tensors):
        return "reference"
    return _decided(requested, x, lambda: _obstacle_of_rows(tensors, widest))


def pick_for_reading(requested: str, x: Tensor, *others: Tensor, widest: int | None = None) -> str:
    """The same for what decoding does: rows of any number, dense in their last axis, that nobody differentiates."""

    def obstacle_of_call() -> str | None:
        if torch.compiler.is_compiling() or _needs_gradients(x, *others):
            return "it knows neither compilers nor gradients; call it in inference mode"
        if any(each.stride(-1) != 1 for each in (x, *others)):
            return "its tensors are dense in their last axis; copy them"
        return _obstacle_of_rows((x, *others), widest)

    return _decided(requested, x, obstacle_of_call)


def _decided(requested: str, x: Tensor | None, obstacle_of_call: Callable[[], str | None]) -> str:
    if requested == "auto":
        requested = _of_process
    is_auto = requested == "auto"
    if _known(requested) == "reference" or (is_auto and x is not None and x.device.type != "cuda"):
        return "reference"
    problem = obstacle_of_call()
    if is_auto:
        return "triton" if problem is None else "reference"
    if problem is not None:
        raise BackendUnavailable(f'the kernel back end "triton" cannot serve this: {problem}, or take "auto"')
    return "triton"


def pick_attention(
    requested: str, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None, *, listed: bool, is_self: bool
) -> str:
    """The same for attention of queries (B, H, P, d) over keys and values (B, H, L, d).

    ``listed`` tells that readers stand at listed positions; in self-attention they are the last steps otherwise.
    """
    is_forced = _known(requested) == "triton"
    if requested == "auto":
        requested = _of_process
    if requested == "reference":
        return "reference"
    if requested == "auto" and not (queries.device.type == "cuda" and _needs_gradients(queries, keys, values)):
        return "reference"
    problem = attention_obstacle(queries, keys, values, valid, listed=listed, is_self=is_self)
    if problem is not None and is_forced:
        raise BackendUnavailable(f'the kernel back end "triton" cannot serve this: {problem}, or take "auto"')
    return "triton" if problem is None else "reference"


def describe() -> str:
    """Which back end GPU tensors would get here, in words."""
    if pick("auto") == "triton":
        return f"triton on {torch.cuda.get_device_name()}"
    problem = obstacle(None, None)
    return "reference" if problem is None else f"reference (triton: {problem})"


def obstacle(x: Tensor | None, kernel: Tensor | None, fused_renormalization: bool = True) -> str | None:
    """Why the Triton kernels cannot serve a call, with the remedy; none if they can."""
    if x is None:
        return _missing("cuda", None)
    device = x.device
    problem = _missing(device.type, device.index)
    if problem is not None:
        return problem
    for tensor in (x,) if kernel is None else (x, kernel):
        if tensor.dtype not in PRECISIONS:
            return _unknown(tensor.dtype)
        if tensor.dim() > 2 and _row_extent(tensor) >= MOST_ELEMENTS:
            return f"a row of shape {tuple(tensor.shape[1:])} takes {MOST_ELEMENTS} elements or more in memory; cut it"
    if kernel is not None and kernel.shape[-1] > WIDEST_KERNEL:
        return f"it knows kernels of up to {WIDEST_KERNEL} taps but got {kernel.shape[-1]}; take narrower ones"
    if not fused_renormalization:
        return "it renormalises softmax kernels only; normalise by softmax"
    return None


def attention_obstacle(
    queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None, *, listed: bool, is_self: bool
) -> str | None:
    """Why the Triton kernels cannot serve a call of attention, with the remedy; none if they can."""
    states = (queries, keys, values)
    if torch.compiler.is_compiling() or any(type(each) not in PLAIN for each in states):
        return "it knows neither compilers nor subclasses of tensors; call it with plain tensors"
    problem = _missing(queries.device.type, queries.device.index)
    if problem is not None:
        return problem
    (rows, heads, num_queries, width), length = queries.shape, keys.shape[2]
    if queries.dtype not in HALF_PRECISIONS or not queries.dtype == keys.dtype == values.dtype:
        found = ", ".join(str(each.dtype) for each in states)
        return f"its queries, keys and values are all float16 or all bfloat16 but these are {found}; convert them"
    if width not in HEAD_WIDTHS:
        return f"it knows heads of {', '.join(map(str, HEAD_WIDTHS))} channels but got {width}; take other heads"
    if not (0 < num_queries <= MOST_STEPS and 0 < length <= MOST_STEPS and rows * heads):
        return f"it knows 1 to {MOST_STEPS} steps but got {num_queries} and {length}; take shorter sequences"
    if listed:
        return "it knows no listed positions; give all steps"
    if is_self and num_queries > length:
        return f"{num_queries} queries cannot be the last of {length} steps; give as many steps as there are queries"
    if keys.shape != (rows, heads, length, width) or values.shape != keys.shape:
        return "queries, keys and values differ in rows, heads or channels; expand them"
    if valid is not None and valid.shape != (rows, length):
        return "the mask is not of the shape of rows and steps; expand it"
    for each in states:
        if _row_extent(each) >= MOST_ELEMENTS:
            return f"a row of shape {tuple(each.shape[1:])} takes {MOST_ELEMENTS} elements or more in memory; copy it"
    return None


def _needs_gradients(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _obstacle_of_rows(tensors: tuple[Tensor, ...], widest: int | None) -> str | None:
    """The same for kernels that work on rows of any number, dense in memory or copied."""
    device, width = tensors[0].device, tensors[0].shape[-1]
    problem = _missing(device.type, device.index)
    if problem is not None:
        return problem
    for tensor in tensors:
        if tensor.dtype not in PRECISIONS:
            return _unknown(tensor.dtype)
    if widest is not None and width > widest:
        return f"it knows rows of up to {widest} elements but got {width}; take narrower ones"
    return None


def _unknown(dtype: torch.dtype) -> str:
    return f"it knows float32, float16 and bfloat16 but got {dtype}; convert the tensors"


@torch.compiler.assume_constant_result
def _missing(device_type: str, index: int | None) -> str | None:
    """What the machine lacks for tensors on such a device; a CPU serves with Triton's interpreter, for tests."""
    if not HAS_TRITON:
        return 'Triton is not installed; install "depthwise[triton]"'
    if device_type == "cpu":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreted else "the tensors lie on the CPU; move them to a GPU"
    if device_type != "cuda":
        return f"the tensors lie on {device_type}; move them to an NVIDIA GPU"
    return _missing_of_gpu(index)


@cache
def _missing_of_gpu(index: int | None) -> str | None:
    """The same for GPUs, which takes too long to be asked at every call."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "torch sees no NVIDIA GPU; use a machine with one and a build of torch for CUDA"
    if torch.cuda.get_device_capability(index) < OLDEST_GPU:
        return f"the GPU is older than compute capability {OLDEST_GPU[0]}.{OLDEST_GPU[1]}; use a newer one"
    return None


def _row_extent(tensor: Tensor) -> int:
    """The largest step between elements of a row, or from row to row, as they lie in memory or once they are copied."""
    own = tensor.numel() // max(1, tensor.shape[0])
    if tensor.is_contiguous():
        return own
    (rows, *sizes), (stride, *strides) = tensor.shape, tensor.stride()
    extent = 1 + sum([(size - 1) * step for size, step in zip(sizes, strides, strict=True)])
    return max(own, extent, stride if rows > 1 else 0)


def _known(name: str) -> str:
    if name not in BACKENDS:
        raise BackendUnavailable(
            f'there is no kernel back end "{name}" in this version; use one of {", ".join(BACKENDS)}'
        )
    return name
