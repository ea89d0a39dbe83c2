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
from depthwise.metrics.entities import EntityReport, EntityScores, entity_counts, entity_report, f1_of_counts
from depthwise.metrics.groups import compare_means_of_groups
from depthwise.metrics.perplexity import perplexity, perplexity_in_training
from depthwise.metrics.rouge import Rouge
from depthwise.metrics.score import Score
from depthwise.metrics.squad import AnswerScores, BestThreshold, best_null_threshold, squad_scores, squad_values

__all__ = [
    "BLEU_VARIANTS",
    "AnswerScores",
    "BestThreshold",
    "Bleu",
    "Comparison",
    "EntityReport",
    "EntityScores",
    "Rouge",
    "SacreBleu",
    "Score",
    "SeedSummary",
    "TokenizedBleu",
    "accuracy",
    "best_null_threshold",
    "chrf",
    "compare_bleu",
    "compare_means",
    "compare_means_of_groups",
    "entity_counts",
    "entity_report",
    "f1_binary",
    "f1_macro",
    "f1_of_counts",
    "matthews",
    "over_seeds",
    "paired_bootstrap",
    "pearson",
    "perplexity",
    "perplexity_in_training",
    "spearman",
    "squad_scores",
    "squad_values",
]
