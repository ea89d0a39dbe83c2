"""Passes in half precision throughout, on copies of weights that stay in float32 for all others.

Autocast turns every weight and every bias to half precision by a kernel of its own, in every pass, and its norms give
float32, so that sums of states meet two precisions. A small model spends much of its time on that. Here one kernel
copies all weights, states are in half precision from the embedding to the scores, and another kernel brings gradients
back: mixed precision as Micikevicius et al. (2018) describe it, and what fairseq's ``--fp16`` does. Losses raise scores
to float32 themselves, as norms and softmaxes do inside of their kernels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import TrainingArguments

from depthwise.config import TrainingConfig
from depthwise.depth import LatentLayers
from depthwise.mixers.attention import Projections
from depthwise.mixers.joint import Joint
from depthwise.shapes import Tensor

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def half_precision(training: TrainingConfig, arguments: TrainingArguments) -> torch.dtype | None:
    """That of passes in half precision throughout, where these are asked for and this device records them."""
    assert arguments.device is not None
    if not (training.half_states and training.graphs and arguments.device.type == "cuda"):
        return None
    return torch.float16 if arguments.fp16 else torch.bfloat16


class HalfStates:
    """Half-precision twins of the parameters of a model, and a way to run the model on them.

    Parameters that are tied have one twin. The twins learn: gradients of a pass are theirs. Those of queries, keys and
    values lie side by side, so that one product makes all three. Logits of gates, which are few, stay in float32.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        gates = [module for module in model.modules() if isinstance(module, LatentLayers)]
        of_gates = {id(tensor) for module in gates for tensor in (*module.parameters(), *module.buffers())}
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point() and id(buffer) not in of_gates]
        assert not buffers, "buffers would stay in float32"
        self._model = model
        self._joints = {
            module: _joint([module.query, module.key, module.value], dtype)
            for module in model.modules()
            if isinstance(module, Projections)
        }
        places = {param: place for joint in self._joints.values() for param, place in _places(joint)}
        self._twins = {
            param: nn.Parameter(
                places[param]
                if param in places
                else torch.empty_like(param, dtype=param.dtype if id(param) in of_gates else dtype),
                requires_grad=param.requires_grad,
            )
            for param in model.parameters()
        }
        self._slots = [
            (module, name, param)
            for module in model.modules()
            for name, param in module.named_parameters(recurse=False, remove_duplicate=False)
        ]

    def twins(self, params: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """The twins of parameters, one by one."""
        return [self._twins[param] for param in params]

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Within it the model runs on its twins, which equal its weights again, and without autocast.

        Accelerate puts autocast around the ``forward`` of a model, in the model itself; that of its class has none.
        """
        with torch.no_grad():
            torch._foreach_copy_(list(self._twins.values()), list(self._twins))
        around = self._model.__dict__.pop("forward", None)
        for module, name, param in self._slots:
            module._parameters[name] = self._twins[param]
        for projections, joint in self._joints.items():
            projections.joint = joint
        try:
            yield
        finally:
            for projections in self._joints:
                projections.joint = None
            for module, name, param in self._slots:
                module._parameters[name] = param
            if around is not None:
                self._model.__dict__["forward"] = around


def _joint(maps: list[nn.Linear], dtype: torch.dtype) -> Joint:
    """Memory for the weights and biases of some maps in a row, not written to yet."""
    num_rows, like = sum(linear.out_features for linear in maps), maps[0].weight
    return Joint(
        like.new_empty(num_rows, like.shape[1], dtype=dtype), like.new_empty(num_rows, dtype=dtype), tuple(maps)
    )


def _places(joint: Joint) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Where in it each of them lies."""
    for of_all, params in (
        (joint.weight, [linear.weight for linear in joint.maps]),
        (joint.bias, [linear.bias for linear in joint.maps]),
    ):
        yield from zip(params, of_all.chunk(len(params)), strict=True)


def add_in_float32(places: list[Tensor], halves: list[Tensor]) -> None:
    """Add tensors of half precision to others, by kernels for all of them, which only a copy has for two precisions."""
    raised = [torch.empty_like(place) for place in places]
    torch._foreach_copy_(raised, halves)
    torch._foreach_add_(places, raised)
