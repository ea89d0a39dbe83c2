"""Perplexity: how many equally likely continuations a model hesitates between."""

import math

from depthwise.errors import InputError


def perplexity(total_nll: float, count: int) -> float:
    """exp(total_nll / count), with the negative log-likelihood in nats. Infinite where that exceeds a float.

    Of the same text it may be per token or per word; only the latter compares across vocabularies.
    """
    if count <= 0:
        raise InputError(f"perplexity needs at least one item to average over, not {count}")
    if math.isnan(total_nll):
        raise InputError("the summed negative log-likelihood is not a number; the model's scores hold NaN")
    try:
        return math.exp(total_nll / count)
    except OverflowError:
        return math.inf


def perplexity_in_training(total_nll: float, count: int) -> float:
    """The same of a model that may have diverged, which is for the trainer to say: NaN where the sum is none."""
    return math.nan if math.isnan(total_nll) else perplexity(total_nll, count)
