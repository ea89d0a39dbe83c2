"""Scores of predictions: pure functions of what was predicted and what was right."""

from depthwise.metrics.bleu import BLEU_VARIANTS, Bleu, SacreBleu, TokenizedBleu, chrf
from depthwise.metrics.bootstrap import (
    Comparison,
    SeedSummary,
    compare_bleu,
    compare_means,
    over_seeds,
    paired_bootstrap,
)
from depthwise.metrics.classification import accuracy, f1_binary, f1_macro, matthews, pearson, spearman
from depthwise.metrics.perplexity import Perplexity, perplexities, perplexity
from depthwise.metrics.score import Score

__all__ = [
    "BLEU_VARIANTS",
    "Bleu",
    "Comparison",
    "Perplexity",
    "SacreBleu",
    "Score",
    "SeedSummary",
    "TokenizedBleu",
    "accuracy",
    "chrf",
    "compare_bleu",
    "compare_means",
    "f1_binary",
    "f1_macro",
    "matthews",
    "over_seeds",
    "paired_bootstrap",
    "pearson",
    "perplexities",
    "perplexity",
    "spearman",
]
