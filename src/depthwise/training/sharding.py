"""What models in shards (FSDP) need beside what Accelerate and Transformers do for them.

**Groups.** The parameters of each block are gathered together, and all others at once, from the beginning of a pass to
its end. Accelerate takes the input embedding and the head out of the others, as groups that are gathered when one of
these is called. Two things here do not bear that: tied weights may lie in both embeddings and in heads of exits too,
and torch wants all holders of a weight in one group; and heads give losses that pass their ``forward`` by. The logits
of gates, which are few, are groups of their own that stay in float32 where others are gathered in half precision:
samples just above one half would be rounded down, and hard gates close too often.

**States of optimisers.** Torch does not load a checkpoint in which a parameter has none, as logits of gates before
their first update.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from depthwise.depth import LatentLayers
from depthwise.shapes import Tensor

VIEWS = "FSDP2-wrapped module .* returned a view"
"""What torch warns of: memories of blocks are views. Nobody writes to them."""


@contextmanager
def grouped_by_blocks(model: nn.Module) -> Iterator[None]:
    """Within it Accelerate puts a model into shards.

    The model names neither embedding nor head to it. It asks for them when it has seen to the blocks and not to the
    others yet, which is the time for gates.
    """
    warnings.filterwarnings("ignore", VIEWS)

    def get_input_embeddings() -> None:
        modules = list(model.modules())
        if any(isinstance(module, FSDPModule) for module in modules):
            for module in modules:
                if isinstance(module, LatentLayers) and not isinstance(module, FSDPModule):
                    fully_shard(module, reshard_after_forward=False)

    asked: dict[str, Any] = {"get_input_embeddings": get_input_embeddings, "get_output_embeddings": lambda: None}
    model.__dict__.update(asked)
    try:
        yield
    finally:
        for name in asked:
            del model.__dict__[name]


def begin_states(optimizer: Optimizer) -> None:
    """Give every parameter without a state the one that its first gradient would find: that of others, but zeros."""
    params = [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
    known = next((param for param in params if optimizer.state.get(param)), None)
    if known is None:
        return
    for param in params:
        if not optimizer.state.get(param):
            optimizer.state[param] = {
                name: _zeros(value, param, is_as_param=isinstance(value, Tensor) and value.shape == known.shape)
                for name, value in optimizer.state[known].items()
            }


def _zeros(value: Any, param: Tensor, *, is_as_param: bool) -> Any:
    if is_as_param:
        return torch.zeros_like(param)
    return torch.zeros_like(value) if isinstance(value, Tensor) else type(value)()
