"""One call of the Triton kernels, as a value: everything about a convolution but its tensors."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch

from depthwise.errors import InputError
from depthwise.shapes import Tensor

FLAGS = ("SOFTMAX", "RENORMALIZE", "DROP", "SHARED", "HAS_VALID", "HAS_POSITIONS", "HAS_SEGMENTS")
MOST_CALLS = 4096
"""Calls that are kept, of which there is another for every shape of a batch; each takes some 4 kB."""
Numbers = tuple[int, ...]
OptionalTensors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Mask, positions, segments and seed; ``triton_ops`` explains each."""
Pointers = tuple[Tensor, Tensor, Tensor, Tensor]
"""The same, with another tensor for those that are none."""


@dataclass(eq=False, slots=True)
class Call:
    """Shapes, strides and options of a convolution: what all of its launches follow from, in either pass.

    ``call_of`` gives the same object for the same call, so that what follows from it is found by its identity.
    """

    x_shape: Numbers
    x_strides: Numbers
    kernel_shape: Numbers
    kernel_strides: Numbers
    valid_stride: int
    is_dense: bool
    """Whether input and kernel have those strides; else what ``last_axis_dense`` makes of them does."""
    is_single: bool
    """Whether the numbers of the input are of 32 bits."""
    out_shape: Numbers
    lse_shape: Numbers | None
    """Of what is kept for the backward pass: nothing if the kernel is fixed or no softmax."""
    num_elements: int
    """Of the output."""
    left: int
    num_readers: int
    softmax: bool
    dropconnect: float
    is_fixed: bool
    """Whether one kernel serves all positions."""
    is_listed: bool
    """Whether the readers stand at listed positions."""
    flags: tuple[bool, ...]
    """What changes the code of a kernel, in the order of ``FLAGS``."""


def call_of(
    x: Tensor,
    kernel: Tensor,
    left: int,
    num_readers: int,
    optional: OptionalTensors,
    softmax: bool,
    renormalize: bool,
    dropconnect: float,
    dropconnect_shared: bool,
) -> Call:
    """The call with these tensors and options."""
    valid, positions, segments, seed = optional
    return _call(
        x.shape, x.stride(), x.dtype, kernel.shape, kernel.stride(),
        None if valid is None else valid.shape, None if valid is None else valid.stride(),
        None if positions is None else positions.shape, left, num_readers,
        softmax, renormalize, dropconnect, dropconnect_shared, seed is not None, segments is not None,
    )  # fmt: skip


@lru_cache(maxsize=MOST_CALLS)
def _call(
    x_shape: Numbers,
    x_strides: Numbers,
    x_dtype: torch.dtype,
    kernel_shape: Numbers,
    kernel_strides: Numbers,
    valid_shape: Numbers | None,
    valid_strides: Numbers | None,
    positions_shape: Numbers | None,
    left: int,
    num_readers: int,
    softmax: bool,
    renormalize: bool,
    dropconnect: float,
    dropconnect_shared: bool,
    has_seed: bool,
    has_segments: bool,
) -> Call:
    check_shapes(x_shape, kernel_shape, valid_shape, positions_shape, num_readers)
    rows, _, channels = x_shape
    is_fixed, has_valid, is_listed = len(kernel_shape) == 2, valid_strides is not None, positions_shape is not None
    return Call(
        x_shape=x_shape,
        x_strides=_dense(x_shape, x_strides),
        kernel_shape=kernel_shape,
        kernel_strides=_dense(kernel_shape, kernel_strides),
        valid_stride=0 if valid_strides is None else _dense(x_shape[:2], valid_strides)[0],
        is_dense=x_strides[-1] == 1 == kernel_strides[-1],
        is_single=x_dtype == torch.float32,
        out_shape=(rows, num_readers, channels),
        lse_shape=None if is_fixed or not softmax else (rows, num_readers, kernel_shape[2]),
        num_elements=rows * num_readers * channels,
        left=left,
        num_readers=num_readers,
        softmax=softmax,
        dropconnect=float(dropconnect),
        is_fixed=is_fixed,
        is_listed=is_listed,
        flags=(softmax, renormalize, has_seed, dropconnect_shared, has_valid, is_listed, has_segments),
    )


def check_shapes(
    x: Numbers, kernel: Numbers, valid: Numbers | None, positions: Numbers | None, num_readers: int
) -> None:
    """The kernels follow these shapes without looking: a wrong one would have them read what is not theirs."""
    rows, length, _ = x
    fits = (
        (len(kernel) == 2 or kernel[0] == rows)
        and (valid is None or valid == (rows, length))
        and (num_readers <= length if positions is None else positions == (rows, num_readers))
    )
    if not fits:
        shapes = {"x": x, "kernels": kernel, "valid": valid, "positions": positions}
        found = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items() if shape is not None)
        raise InputError(f"these shapes do not belong together: {found}; give all of them the rows and steps of x")


def shape_of(tensor: Tensor | None) -> Numbers | None:
    """The shape of a tensor that there may be."""
    return None if tensor is None else tensor.shape


def pointers(optional: OptionalTensors, unused: Tensor) -> Pointers:
    """Mask, positions, segments and seed; ``unused`` stands for those that are none, and nobody follows it."""
    valid, positions, segments, seed = optional
    return (
        unused if valid is None else last_axis_dense(valid).view(torch.uint8),
        unused if positions is None else positions.contiguous(),
        unused if segments is None else segments.contiguous(),
        unused if seed is None else seed,
    )


def last_axis_dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of one whose last axis is strided."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _dense(shape: Numbers, strides: Numbers) -> Numbers:
    """The strides that ``last_axis_dense`` leaves a tensor."""
    return strides if strides[-1] == 1 else tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
