"""Blocks of an encoder with weights in the order in which a CPU multiplies fastest."""

import copy
import weakref

import torch
from torch import nn

from depthwise.engine.linear_maps import Packer, Weights, can_pack
from depthwise.models.block import Block
from depthwise.shapes import Float, Tensor

USUAL_TOKENS = 64
"""Packed weights serve any number of tokens; they are laid out for so many, where the order matters most."""


class PackedLinear(nn.Module):
    """A linear map from packed weights. Those that they were ``made_from`` are no part of it."""

    made_from: nn.Linear

    def __init__(self, linear: nn.Linear, pack: Packer) -> None:
        super().__init__()
        self.in_features, self.out_features, self._map = linear.in_features, linear.out_features, pack(linear)
        object.__setattr__(self, "made_from", linear)

    def forward(self, x: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        return self._map(x)


class PackedBlocks:
    """Blocks of stacks, each packed when it first runs, and again where its weights have changed before a walk begins.

    Where nothing is to be gained by that (on other devices, in other precisions) they are those of the stack.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Block, tuple[Weights, Block]] = weakref.WeakKeyDictionary()
        self._pack = Packer(USUAL_TOKENS)

    def begin(self) -> None:
        """Forget blocks whose weights have changed: all at once, which takes half the time of one after the other."""
        for block, (weights, _) in list(self._known.items()):
            if not weights.are_as_they_were():
                self._known.pop(block, None)

    def block(self, block: Block) -> Block:
        known = self._known.get(block)
        if known is None:
            if not packs(block):
                return block
            known = self._known[block] = Weights(block), self._packed(block)
        return known[1]

    def _packed(self, block: Block) -> Block:
        with torch.no_grad():
            twin = self._twin(block)
            assert isinstance(twin, Block)
            twin.mixer.prepare()
        return twin

    def _twin(self, module: nn.Module) -> nn.Module:
        """The same module with the same parameters, but for the linear maps in it."""
        if isinstance(module, nn.Linear):
            return PackedLinear(module, self._pack)
        twin = copy.copy(module)
        twin._modules = {name: None if part is None else self._twin(part) for name, part in module._modules.items()}
        return twin


def packs(block: Block) -> bool:
    """Whether such a block is faster packed."""
    return can_pack(block.feed_forward.out.weight)
