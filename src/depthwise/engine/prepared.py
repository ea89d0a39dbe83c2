"""A model whose decoder has been made ready for steps."""

from torch import nn

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
    """Blocks and heads with weights as steps want them. It knows the weights of when it was made (``is_current``)."""

    def __init__(self, model: Model, num_rows: int) -> None:
        assert model.model.decoder is not None
        self.model, self.decoder = model, model.model.decoder
        self._pack = Packer(num_rows)
        stack = self.decoder.stack
        blocks = {id(block): StepBlock(block, self._pack) for block in map(stack.block, range(stack.num_layers))}
        self.blocks = [blocks[id(stack.block(layer))] for layer in range(stack.num_layers)]
        self.scores_are_normalized = isinstance(model.head, AdaptiveHead)
        self.embedding = StepEmbedding(self.decoder.embedding, self.decoder.max_positions)
        self._heads: dict[int, Map] = {}
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
        head = self.model.head_at(depth)
        if id(head) not in self._heads:
            self._heads[id(head)] = self._ready(head)
        return self._heads[id(head)]

    def has_column(self, column: int) -> bool:
        """Whether the decoder knows a position for this column."""
        return self.decoder.max_positions is None or column < self.decoder.max_positions

    def check_column(self, column: int) -> None:
        if not self.has_column(column):
            name, most = self.decoder.name, self.decoder.max_positions
            raise InputError(f"{name} has {column + 1} steps but max_positions is {most}; ask for fewer tokens")

    def is_current(self, num_rows: int) -> bool:
        """Whether weights are as they were, and packed for so many rows where that matters."""
        is_packed_so = (num_rows == 1) == (self._pack.num_rows == 1) or self.model.device.type != "cpu"
        return is_packed_so and self._weights.are_as_they_were()

    def _ready(self, head: nn.Module) -> Map:
        if not isinstance(head, LanguageHead):
            return head
        scored, transform = self._pack(head), head.transform
        return scored if transform is None else lambda hidden: scored(transform(hidden))
