"""A model whose decoder has been made ready for steps."""

from collections.abc import Hashable

from torch import nn

from depthwise.engine.drafting import Drafting
from depthwise.engine.linear_maps import Map, Packer, Weights
from depthwise.engine.step_block import StepBlock
from depthwise.engine.step_embedding import StepEmbedding
from depthwise.errors import InputError
from depthwise.models.adaptive import AdaptiveHead
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.language_head import LanguageHead
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

Model = DepthwiseForSeq2SeqLM | DepthwiseForCausalLM


class Prepared:
    """Blocks and heads with weights as steps want them. It knows the weights of when it was made (``is_current``).

    Blocks above the depth of ``drafting`` and heads there verify: they are given all of a draft at once.
    """

    def __init__(self, model: Model, num_rows: int, drafting: Drafting | None = None) -> None:
        assert model.model.decoder is not None
        self.model, self.decoder = model, model.model.decoder
        self._pack, self._pack_verifying, self._drafting = Packer(num_rows), Packer(num_rows), drafting
        if drafting is not None:
            self._pack_verifying = Packer(num_rows * (drafting.num_drafted + 1))
        made: dict[tuple[int, Packer], StepBlock] = {}
        self.blocks = []
        for layer in range(self.decoder.stack.num_layers):
            block, pack = self.decoder.stack.block(layer), self._pack_at(layer + 1)
            key = (id(block), pack)
            if key not in made:
                made[key] = StepBlock(block, pack)
            self.blocks.append(made[key])
        self.scores_are_normalized = isinstance(model.head, AdaptiveHead)
        self.embedding = StepEmbedding(self.decoder.embedding, self.decoder.max_positions)
        self._heads: dict[tuple[int, Packer], Map] = {}
        self._weights = Weights(self.decoder, model.head, model.exit_heads)

    @property
    def has_one_head(self) -> bool:
        return len(self.model.exit_heads) == 0

    @property
    def exits_are_alike(self) -> bool:
        """Whether states are seen and scored alike at all depths."""
        return self.has_one_head and len(self.decoder.stack.exit_norms) == 0

    def head_at(self, depth: int) -> Map:
        """From normalised states (..., D) to scores (..., V) at the exit of this depth."""
        head, pack = self.model.head_at(depth), self._pack_at(depth)
        key = (id(head), pack)
        if key not in self._heads:
            self._heads[key] = _ready(head, pack)
        return self._heads[key]

    def has_column(self, column: int) -> bool:
        """Whether the decoder knows a position for this column."""
        return self.decoder.max_positions is None or column < self.decoder.max_positions

    def check_column(self, column: int) -> None:
        if not self.has_column(column):
            name, most = self.decoder.name, self.decoder.max_positions
            raise InputError(f"{name} has {column + 1} steps but max_positions is {most}; ask for fewer tokens")

    def is_current(self) -> bool:
        """Whether weights are as they were."""
        return self._weights.are_as_they_were()

    def _pack_at(self, depth: int) -> Packer:
        return self._pack if self._drafting is None or depth <= self._drafting.depth else self._pack_verifying


def packed_like(model: Model, num_rows: int, drafting: Drafting | None) -> Hashable:
    """The same for whatever one preparation serves: a CPU reads weights in one way for a single vector, and in another
    for several."""
    if model.device.type != "cpu":
        return "elsewhere"
    return "several" if num_rows > 1 else ("one", None if drafting is None else drafting.depth)


def _ready(head: nn.Module, pack: Packer) -> Map:
    if not isinstance(head, LanguageHead):
        return head
    scored, transform = pack(head), head.transform
    return scored if transform is None else lambda hidden: scored(transform(hidden))
