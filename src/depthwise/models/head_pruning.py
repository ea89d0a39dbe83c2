"""Removing the heads of a trained encoder that matter least: what is left is a smaller model, not a masked one.

    I_h = E_x |∂L(x)/∂ξ_h|              ξ_h: a weight on what head h hands to its out-projection, 1 for every head
    Ĩ_h = I_h / √(Σ_k I_k²)             over all heads k of the same block

Heads of the least Ĩ go first, wherever they are, as long as every block keeps one. Layers that share a block share its
heads: ξ is on all of them at once. A head whose ξ is 0 adds nothing, so that the model computes the same without its
rows of the projections and its columns of the out-projection.

Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 4.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from depthwise.errors import InputError
from depthwise.mixers import SelfAttention
from depthwise.mixers.attention import Projections
from depthwise.models.block import Block
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.pruning import rebuilt
from depthwise.shapes import Float, Tensor

_PROJECTION = re.compile(r"(?:.*\.)?encoder\.stack\.layers\.(\d+)\.mixer\.projections\.(query|key|value|out)\.(\w+)")

Model = TypeVar("Model", bound=DepthwisePreTrainedModel)
Importance = Sequence[Float[Tensor, "H"]]
"""Of the heads of every block."""
Heads = tuple[tuple[int, ...], ...]
"""Numbers of heads, of every block."""


def attention_of(model: DepthwisePreTrainedModel) -> list[Projections]:
    """The projections of the heads of every block of the encoder."""
    options = model.config.options.encoder
    if options is None:
        raise InputError("this model has no encoder, and heads of decoders are not pruned; name a run with an encoder")
    if options.mixer != "attention":
        raise InputError(
            f"the encoder of this model mixes by {options.mixer} and has no heads of attention to prune; name a run "
            "whose encoder attends"
        )
    blocks: Any = model.model.encoder.stack.layers
    found = []
    for block in blocks:
        assert isinstance(block, Block)
        assert isinstance(block.mixer, SelfAttention)
        found.append(block.mixer.projections)
    return found


@contextmanager
def weighed_heads(
    attention: Sequence[Projections], weight: Callable[[int, int], Float[Tensor, "B H"] | Float[Tensor, "H"]]
) -> Iterator[None]:
    """Within it, what each head hands on is weighed: by a weight for all rows, or for each of them.

    ``weight`` is asked for it by the number of the block and the number of rows, each time the block runs.
    """

    def hook(block: int) -> Callable[[Any, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def weigh(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            (mixed,) = given  # (B, T, H·d)
            by_head = mixed.unflatten(-1, (attention[block].num_heads, -1))
            weights = weight(block, len(mixed)).to(mixed.dtype)
            weights = weights if weights.dim() == 1 else weights.unsqueeze(1)
            return ((by_head * weights.unsqueeze(-1)).flatten(-2),)

        return weigh

    with ExitStack() as hooks:
        for block, projections in enumerate(attention):
            hooks.callback(projections.out.register_forward_pre_hook(hook(block)).remove)
        yield


class HeadImportance:
    """Adds up |∂L(x)/∂ξ_h| over examples x, which are the rows of batches."""

    def __init__(self, model: DepthwisePreTrainedModel) -> None:
        self.attention = attention_of(model)
        self._sums = [torch.zeros(each.num_heads, dtype=torch.float64) for each in self.attention]

    def add(self, loss_of_batch: Callable[[], Float[Tensor, ""]]) -> None:
        """A batch, whose loss is a sum over its rows. The model must not be in training, which draws at random."""
        masks: dict[int, Tensor] = {}

        def weight(block: int, num_rows: int) -> Float[Tensor, "B H"]:
            if block not in masks:
                projections = self.attention[block]
                ones = torch.ones(num_rows, projections.num_heads, device=projections.out.weight.device)
                masks[block] = ones.requires_grad_()
            return masks[block]

        with torch.enable_grad(), weighed_heads(self.attention, weight):
            loss = loss_of_batch()
        gradients = torch.autograd.grad(loss, list(masks.values()), allow_unused=True)
        for block, gradient in zip(masks, gradients, strict=True):
            if gradient is not None:
                self._sums[block] += gradient.abs().sum(0).double().cpu()

    @property
    def normalized(self) -> Importance:
        """Ĩ; 0 for all heads of a block that nothing depends on."""
        return [each / each.norm().clamp(min=torch.finfo(each.dtype).tiny) for each in self._sums]


def check_share(num_heads: Sequence[int], share: float) -> int:
    """How many of the heads of all blocks a share is, rounded down; it must be some and leave every block one."""
    if not 0 < share < 1:
        raise InputError(f"{share:g} is no share of heads to prune; give one above 0 and below 1, such as 0.25")
    total, num_blocks = sum(num_heads), len(num_heads)
    num_pruned = int(share * total + 1e-9)
    if num_pruned == 0:
        raise InputError(f"a share of {share:g} of {total} heads is less than one; give at least {1 / total:.3g}")
    if num_pruned > total - num_blocks:
        most = (total - num_blocks) / total
        remedy = f"give at most {most:.3g}" if most else "there is none to spare"
        raise InputError(
            f"without {num_pruned} of {total} heads nothing would be left in some of the {num_blocks} blocks; {remedy}"
        )
    return num_pruned


def heads_to_keep(importance: Importance, share: float) -> Heads:
    """All heads but a share of them: those of least importance go, the first among equals."""
    num_pruned = check_share([*map(len, importance)], share)
    ranked = sorted((float(each), block, head) for block, of in enumerate(importance) for head, each in enumerate(of))
    kept = [set(range(len(of))) for of in importance]
    for _, block, head in ranked:
        if num_pruned and len(kept[block]) > 1:
            kept[block].remove(head)
            num_pruned -= 1
    return tuple(tuple(sorted(heads)) for heads in kept)


def without_heads(model: Model, kept: Heads) -> Model:
    """The model with these heads of its encoder alone."""
    attention = attention_of(model)
    options = model.config.options
    assert options.encoder is not None
    encoder = replace(options.encoder, kept_heads=tuple(map(len, kept)))
    width = options.width // options.encoder.num_heads
    channels = []
    for projections, heads in zip(attention, kept, strict=True):
        places = torch.arange(projections.num_heads * width).view(projections.num_heads, width)
        channels.append(places[list(heads)].flatten())
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if match := _PROJECTION.fullmatch(name):
            wanted = channels[int(match[1])].to(tensor.device)
            if match[2] != "out":
                tensor = tensor.index_select(0, wanted)
            elif match[3] == "weight":
                tensor = tensor.index_select(1, wanted)
        weights[name] = tensor
    return rebuilt(model, replace(options, encoder=encoder), weights)
