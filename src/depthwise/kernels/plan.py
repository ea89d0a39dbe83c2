"""Plans and launches of Triton kernels: what is known before there are tensors, so that little is left to do then."""

from dataclasses import dataclass, field
from typing import Any

import torch

from depthwise.shapes import Tensor

Kind = tuple[Any, ...] | None
"""What ``kind_of`` tells of tensors."""
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""Of a device, as Triton asks for it; builds of torch for CPUs have none."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel with all that is fixed when it is compiled, and how a batch is divided among its programs.

    What Triton compiled is kept here: it would otherwise look at every argument again at each launch, which takes
    longer than the kernels run.
    """

    kernel: Any
    constants: dict[str, Any]
    num_warps: int
    step: int
    programs_per_block: int
    compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def launch(self, programs: int, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...], *aligned: int) -> Any:
        """Run on the device of the first tensor. ``aligned`` are those numbers whose alignment Triton makes use of.

        Returns what Triton compiled; its interpreter compiles nothing.
        """
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.launch(programs, tensors, numbers, *aligned)
        key: tuple[Any, ...] = (device, *[tensor.dtype for tensor in tensors])
        low_bits = 0
        for tensor in tensors:
            low_bits |= tensor.data_ptr()
        for number in aligned:
            low_bits |= number
        if low_bits % 16:  # something is not aligned: tell what
            addresses = [tensor.data_ptr() % 16 == 0 for tensor in tensors]
            key += (*addresses, *[(number % 16 == 0, number == 1) for number in aligned])
        compiled = self.compiled.get(key)
        if compiled is not None:
            compiled[programs, 1, 1](*tensors, *numbers, *self.constants.values())
            return compiled
        options = {"num_warps": self.num_warps, "enable_fp_fusion": True}  # fusion is no default in later versions
        compiled = self.kernel[(programs,)](*tensors, *numbers, **self.constants, **options)
        if compiled is not None:
            self.compiled[key] = compiled
        return compiled


@dataclass(eq=False, slots=True)
class Launch:
    """A plan for tensors of certain shapes and strides: all that is handed to its kernel but the tensors."""

    plan: Plan
    programs: int
    numbers: tuple[Any, ...]
    aligned: tuple[int, ...]
    runners: dict[Kind, tuple[Any, ...]] = field(default_factory=dict)

    def run(self, kind: Kind, *tensors: Tensor) -> None:
        """Launch with tensors of a kind. Of a kind that came before only addresses are told.

        Triton asks the driver about each tensor that it is given, and takes an address as it is. What it does besides
        at each launch serves hooks of its own profiler, which do not hear of these launches.
        """
        if kind is not None and (runner := self.runners.get(kind)) is not None:
            launch, function, metadata, rest = runner
            stream, addresses = current_stream(kind[0]), [tensor.data_ptr() for tensor in tensors]
            launch(self.programs, 1, 1, stream, function, metadata, None, None, None, *addresses, *rest)
            return
        compiled = self.plan.launch(self.programs, tensors, self.numbers, *self.aligned)
        if kind is not None and compiled is not None:
            rest = (*self.numbers, *self.plan.constants.values())
            self.runners[kind] = (compiled.run, compiled.function, compiled.packed_metadata, rest)


def kind_of(first: Tensor, *others: Tensor | None) -> Kind:
    """The device and precisions of the tensors that a convolution is given: what is compiled anew for others.

    None for those that are not aligned or not on the current device: each launch has to look at them. Tensors made
    on the way need not be told: they are aligned, and the others determine their precisions.
    """
    device, low_bits, precisions = first.get_device(), first.data_ptr(), [first.dtype]
    for tensor in others:
        if tensor is not None:
            low_bits |= tensor.data_ptr()
            precisions.append(tensor.dtype)
    if low_bits % 16 or (device >= 0 and device != torch.cuda.current_device()):
        return None
    return device, *precisions
