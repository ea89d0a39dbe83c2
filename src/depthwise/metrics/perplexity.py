"""Perplexity: how many equally likely continuations a model hesitates between."""

import math
from dataclasses import dataclass

from depthwise.errors import InputError


@dataclass(frozen=True)
class Perplexity:
    """The same text measured over the model's tokens and over words; only the latter compares across vocabularies."""

    per_token: float
    per_word: float


def perplexity(total_nll: float, count: int) -> float:
    """exp(total_nll / count), with the negative log-likelihood in nats. Infinite where that exceeds a float."""
    if count <= 0:
        raise InputError(f"perplexity needs at least one item to average over, not {count}")
    if math.isnan(total_nll):
        raise InputError("the summed negative log-likelihood is not a number; the model's scores hold NaN")
    try:
        return math.exp(total_nll / count)
    except OverflowError:
        return math.inf


def perplexities(total_nll: float, *, num_tokens: int, num_words: int) -> Perplexity:
    """Both perplexities of a text whose likelihood was summed over all its tokens.

    The end of a sentence is predicted too, so it counts as a token and as a word.
    """
    return Perplexity(perplexity(total_nll, num_tokens), perplexity(total_nll, num_words))
