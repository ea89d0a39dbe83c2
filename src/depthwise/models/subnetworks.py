"""Plain models on the weights of one with gates: what its layers compute for one language, and nothing else.

Where gates are hard, a sub-network has the layers that are open and no others. Where they are soft, it has all of them,
and every block multiplies its branches by what its gate says. No weight is copied.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from depthwise.config import StackConfig, as_dict
from depthwise.depth import LatentLayers
from depthwise.models.block import Block
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.stack import Stack

Gates = tuple[bool, ...] | tuple[float, ...]
"""Of all layers of a side: open or closed, or how much each of them weighs."""
Model = TypeVar("Model", bound=DepthwisePreTrainedModel)
Part = TypeVar("Part", bound=nn.Module)


def fixed_gates(layers: LatentLayers, num_layers: int | None = None) -> list[Gates]:
    """The gates of every language outside training, which are not drawn anew at every call; of the first layers of a
    stack that was cut to so many."""
    assert layers.mode != "sampled", "sampled gates are no fixed ones"
    gates = layers.is_open if layers.mode == "hard" else layers.expected()
    return [tuple(row) for row in gates[:, :num_layers].detach().tolist()]


def subnetwork(model: Model, gates: Mapping[str, Gates]) -> Model:
    """A plain model that computes what this one does under fixed gates of its gated sides."""
    view, backbone = _shared(model), _shared(model.model)
    view._modules["model"] = backbone
    stacks: dict[str, StackConfig] = {}
    for side, of_side in gates.items():
        part = _shared(getattr(backbone, side))
        kept = [layer for layer, gate in enumerate(of_side) if gate is not False]
        part._modules |= {"latent": None, "stack": _stack(part.stack, of_side, kept)}
        backbone._modules[side] = part
        stack: StackConfig = getattr(model.config.options, side)
        stacks[side] = stack.of_layers(kept)
    config = copy.deepcopy(model.config)
    for name, value in as_dict(replace(model.config.options, **stacks, latent=None)).items():  # type: ignore[arg-type]
        setattr(config, name, value)
    for module in (view, backbone):
        module.config = config
        module.__dict__.pop("exit_depths", None)
    return view


def _stack(stack: Stack, gates: Gates, kept: Sequence[int]) -> Stack:
    view = _shared(stack)
    blocks = [_weighed(stack.block(layer), gates[layer]) for layer in kept]
    view._modules["layers"] = nn.ModuleList(blocks)
    view.block_of = None
    return view


def _weighed(block: Block, gate: bool | float) -> Block:
    """The block, with branches that weigh as much as a soft gate says."""
    if isinstance(gate, bool):
        return block
    view, like = _shared(block), next(block.parameters())
    weight = torch.full((1,), gate, dtype=like.dtype, device=like.device)
    scale = weight if block.scale is None else weight * block.scale.detach()
    view._parameters = {**block._parameters, "scale": nn.Parameter(scale, requires_grad=False)}
    view.__dict__.pop("scale", None)
    return view


def _shared(module: Part) -> Part:
    """A copy that has the same parameters and parts, but can be given others."""
    view: Any = copy.copy(module)
    view._modules = dict(module._modules)
    return view
