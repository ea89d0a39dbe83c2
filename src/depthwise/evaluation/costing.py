"""What predictions cost in floating-point operations, deciding on their depth included (multiply-add = 2).

Blocks and heads cost what ``models.cost`` says, for each sequence by itself: those of generated text step by step,
those of input all at once. Beams that did not win are not counted. With width d and E exits, a policy adds

| policy | operations |
|---|---|
| ``fixed``, ``uniform`` | |
| ``sequence`` | 2 d E for every sequence |
| ``structure`` | 2 d w + 2 w n for every sequence, w wide for n numbers of layers; also where all of them run |
| ``token`` | 2 d E at the first exit |
| ``poisson_binomial``, ``learned_confidence`` | 2 d at every exit visited, but for the last |
| ``confidence``, ``patience`` | a head at every exit visited; that of the exit where one leaves gives the output too |
| ``confidence`` by ``saturation`` | 6 d at every exit visited, but for the first and the last |

Nothing is written for layers that no token of a sequence runs, neither of those that left below nor of the source: the
engine writes for a layer when somebody runs it (the fill ``deferred``). Where somebody does, all tokens are counted as
written for it.
"""

from collections.abc import Sequence
from functools import cached_property

from torch import nn

from depthwise.config import (
    ConfidenceConfig,
    LearnedConfidenceConfig,
    PatienceConfig,
    PoissonBinomialConfig,
    PolicyConfig,
    SequenceExitConfig,
    TokenExitConfig,
)
from depthwise.depth.thresholds import HIGHEST
from depthwise.models.adaptive import AdaptiveHead
from depthwise.models.cost import ModelCost
from depthwise.models.exits import HasExits
from depthwise.models.language_head import LanguageHead
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.models.question_answering import DepthwiseForQuestionAnswering


class SequenceCosts:
    """FLOPs of sequences whose tokens ran known depths by a policy, or all the same depth without one."""

    def __init__(self, model: DepthwisePreTrainedModel, policy: PolicyConfig | None) -> None:
        assert isinstance(model, HasExits)
        self.policy, self.cost = policy, ModelCost(model.config.options)
        stack = self.cost.decoder or self.cost.encoder
        assert stack is not None
        self.stack, self.exits = stack, self.cost.options.exit_depths
        self.by_rows, self.scores_positions = model.leaves_by_rows, isinstance(model, DepthwiseForQuestionAnswering)
        head = model.last_head()
        if isinstance(head, LanguageHead | AdaptiveHead):
            self.head, self.width = self.cost.head().flops, self.cost.options.width
        else:
            assert isinstance(head, nn.Linear)
            self.head, self.width = 2 * head.weight.numel(), head.in_features
        self._sources: dict[tuple[int, int], int] = {}
        self._steps: dict[tuple[int, int, int, int], int] = {}

    def generated(self, depths: Sequence[int], source_length: int, source_depths: Sequence[int] = ()) -> int:
        """A target, token by token, and the source that it was made from: all of its layers, unless it ran fewer."""
        most = max(depths, default=0)
        if (source_length, most) not in self._sources:
            self._sources[source_length, most] = self.cost.decode((), source_length, most).flops
        total = self._sources[source_length, most]
        if source_depths and self.cost.encoder is not None:
            total -= self.cost.encoder.forward(source_length).flops - self.cost.encoder.plan(source_depths).flops
        for step, depth in enumerate(depths, start=1):
            key = step, depth, source_length, most
            if key not in self._steps:
                self._steps[key] = self.stack.step(*key).flops
            total += self._steps[key]
        return total + self.cost.embedding().flops * len(depths) + self.scores(depths)

    def read(self, depths: Sequence[int]) -> int:
        """Input, all tokens of it at once, with the scores of each of them or of the whole."""
        return self.blocks(depths) + self.scores(depths)

    def blocks(self, depths: Sequence[int]) -> int:
        """The same without the scores."""
        return (self.stack.plan(depths) + self.cost.embedding() * len(depths)).flops

    def scores(self, depths: Sequence[int]) -> int:
        """The output of each token or of the whole, and what it cost to decide where to leave."""
        if not depths:
            return 0
        once = 2 * self.cost.options.width * len(self.exits) if isinstance(self.policy, SequenceExitConfig) else 0
        once += self._predicting
        leavers = [max(depths)] if self.by_rows else depths
        head = self.head * (len(depths) if self.scores_positions else 1)
        return once + sum(self._heads[depth] * head + self._classifiers[depth] for depth in leavers)

    @cached_property
    def _predicting(self) -> int:
        """FLOPs of saying how many layers a sequence needs."""
        structure, width = self.cost.options.structure, self.cost.options.width
        if structure is None or self.cost.encoder is None:
            return 0
        hidden = structure.hidden_width or width
        numbers = self.cost.encoder.stack.num_layers - structure.num_static + structure.allow_zero
        pooler = 2 * width**2 if structure.summary == "first_tanh" else 0
        return pooler + 2 * hidden * (width + numbers)

    @cached_property
    def _heads(self) -> list[int]:
        """How often those who leave at a depth are scored."""
        found = []
        for depth in range(self.stack.stack.num_layers + 1):
            looked_at = [visited for visited in self._visited(depth) if self._looks_at_scores(visited)]
            found.append(len(looked_at) + (depth not in looked_at))
        return found

    @cached_property
    def _classifiers(self) -> list[int]:
        """FLOPs of what decides for those who leave at a depth, scores apart."""
        return [self._deciding(len(self._visited(depth))) for depth in range(self.stack.stack.num_layers + 1)]

    def _visited(self, depth: int) -> list[int]:
        """The exits at which those who leave at a depth are asked."""
        return [visited for visited in self.exits[:-1] if visited <= depth]

    def _looks_at_scores(self, depth: int) -> bool:
        match self.policy:
            case PatienceConfig():
                return True
            case ConfidenceConfig(measure="saturation"):
                return False
            case ConfidenceConfig():
                return self.policy.threshold_of(self.exits.index(depth)) <= HIGHEST
            case _:
                return False

    def _deciding(self, num_visited: int) -> int:
        match self.policy:
            case TokenExitConfig():
                return 2 * self.width * len(self.exits)
            case PoissonBinomialConfig() | LearnedConfidenceConfig():
                return 2 * self.width * num_visited
            case ConfidenceConfig(measure="saturation"):
                return 6 * self.width * max(0, num_visited - 1)
            case _:
                return 0
