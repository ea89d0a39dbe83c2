"""From the states of a stack to scores of the vocabulary."""

import torch
from torch import nn
from torch.nn import functional as F

from depthwise.config import ModelConfig
from depthwise.models.adaptive import AdaptiveHead
from depthwise.shapes import Float, Int, Tensor


class LanguageHead(nn.Linear):
    """logits = W h without bias; W may be the embedding matrix."""

    def __init__(self, num_types: int, width: int) -> None:
        super().__init__(width, num_types, bias=False)

    def log_prob(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Log-probabilities of the whole vocabulary, in float32 at least."""
        logits = self(hidden)
        return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)

    def nll(self, hidden: Float[Tensor, "M D"], labels: Int[Tensor, "M"]) -> Float[Tensor, "M"]:
        """Negative log-likelihood of each label."""
        logits = self(hidden)
        return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels, reduction="none")

    def top(self, hidden: Float[Tensor, "... D"], count: int) -> tuple[Float[Tensor, "... k"], Int[Tensor, "... k"]]:
        """The most probable types and their log-probabilities."""
        return self.log_prob(hidden).topk(count, dim=-1)


class HasLanguageHead:
    """Gives Transformers the head of a language model, and takes a resized one from it."""

    head: nn.Module

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        head = LanguageHead(value.out_features, value.in_features)
        head.weight = value.weight
        self.head = head


def build_head(options: ModelConfig) -> LanguageHead | AdaptiveHead:
    """The head that a model's options ask for."""
    if options.adaptive is None:
        return LanguageHead(options.vocab_size, options.width)
    return AdaptiveHead(options.vocab_size, options.width, options.adaptive)


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
