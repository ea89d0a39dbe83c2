"""From the states of a stack to scores of the vocabulary."""

from torch import nn
from torch.nn import functional as F

from depthwise.config import ModelConfig
from depthwise.losses import IGNORED, exit_cross_entropy
from depthwise.models.adaptive import AdaptiveHead, precise
from depthwise.models.block import ACTIVATIONS
from depthwise.models.exits import HasExits, separate_exits
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.stack import Source
from depthwise.shapes import Bool, Float, Int, Tensor


class HeadTransform(nn.Module):
    """norm(act(W h + b)): what BERT's head does to a state before it scores the vocabulary (Devlin et al. 2019)."""

    def __init__(self, width: int, out_width: int, activation: str, norm_epsilon: float) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(width, out_width)
        self.norm = nn.LayerNorm(out_width, eps=norm_epsilon)

    def forward(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... _e"]:
        return self.norm(self.activation(self.dense(hidden)))


class LanguageHead(nn.Linear):
    """logits = W t(h) + b; W may be the embedding matrix. Bias and ``transform`` t are there only on request."""

    def __init__(self, num_types: int, width: int, *, bias: bool = False, transform: nn.Module | None = None) -> None:
        super().__init__(width, num_types, bias=bias)
        self.transform = transform

    def forward(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return super().forward(hidden if self.transform is None else self.transform(hidden))

    def log_prob(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Log-probabilities of the whole vocabulary, in float32 at least."""
        return precise(self(hidden)).log_softmax(-1)

    def nll(self, hidden: Float[Tensor, "M D"], labels: Int[Tensor, "M"]) -> Float[Tensor, "M"]:
        """Negative log-likelihood of each label."""
        return F.cross_entropy(precise(self(hidden)), labels, reduction="none")

    def top(self, hidden: Float[Tensor, "... D"], count: int) -> tuple[Float[Tensor, "... k"], Int[Tensor, "... k"]]:
        """The most probable types and their log-probabilities."""
        return self.log_prob(hidden).topk(count, dim=-1)


class HasLanguageHead(HasExits):
    """Gives Transformers the head of a language model, and takes a resized one from it."""

    head: nn.Module

    def last_head(self) -> nn.Module:
        return self.head

    def scores_at(
        self, depth: int, states: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T V"]:
        head = self.head_at(depth)
        assert isinstance(head, LanguageHead | AdaptiveHead)
        return head.log_prob(states)

    def taught_tokens(
        self,
        output: DepthwiseOutput,
        states: tuple[Float[Tensor, "B T D"], ...],
        labels: Int[Tensor, "B T"],
        num_items: Tensor | int | None,
        objective: ExitObjective,
        chosen: Int[Tensor, "B T"] | None,
        source: Source | None = None,
    ) -> DepthwiseOutput:
        """The output with the loss of all exits, from the states that their heads see."""
        learns = self.learns_policy and bool(objective.policy_weight)
        found = exit_cross_entropy(
            states,
            self.heads_of_exits(),
            labels,
            objective.weights,
            objective.items(num_items),
            chosen=chosen,
            targets=objective.targets,
            in_bands=isinstance(self.head, AdaptiveHead),
            statistics=learns,
        )
        lesson = self.lesson_of(states, found, labels != IGNORED, source) if learns else None
        return self.taught(output, found, objective, num_items, lesson)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        assert isinstance(self.head, LanguageHead)
        transform, has_bias = self.head.transform, value.bias is not None
        head = LanguageHead(value.out_features, value.in_features, bias=has_bias, transform=transform)
        head.weight, head.bias = value.weight, value.bias
        self.head = head


def build_head(options: ModelConfig) -> LanguageHead | AdaptiveHead:
    """The head that a model's options ask for."""
    if options.adaptive is not None:
        return AdaptiveHead(options.vocab_size, options.width, options.adaptive)
    stack = options.decoder or options.encoder
    assert stack is not None
    width = options.embedding_width or options.width
    transform: nn.Module | None = None
    if options.head_transform is not None:
        transform = HeadTransform(options.width, width, options.head_transform, stack.norm_epsilon)
    elif options.embedding_width is not None:
        transform = nn.Linear(options.width, width)
    return LanguageHead(options.vocab_size, width, bias=options.head_transform is not None, transform=transform)


def build_exit_heads(options: ModelConfig) -> nn.ModuleDict:
    """The heads of exits that have their own, by depth."""
    return nn.ModuleDict({str(depth): build_head(options) for depth in separate_exits(options)})


def tied_weights(options: ModelConfig, head: str, side: str) -> dict[str, str]:
    """Which weights of ``head`` are those of the embedding of ``side``: target to source."""
    tokens = f"model.{side}.embedding.tokens"
    if options.tied_embeddings == "none":
        return {}
    if options.adaptive is None:
        return {f"{head}.weight": f"{tokens}.weight"}
    num_bands = len(options.adaptive.cutoffs) + 1
    tied = {f"{head}.tables.{band}.weight": f"{tokens}.tables.{band}.weight" for band in range(num_bands)}
    if options.adaptive.tied_projections:
        for band in range(1, num_bands):
            tied[f"{head}.projections.{band - 1}.weight"] = f"{tokens}.projections.{band}.weight"
    return tied
