"""Options of masked language modelling, as plain data: which tokens are to be guessed."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from depthwise.config.parsing import Rules, at_least, choice
from depthwise.errors import Problem

UNITS = ("tokens", "words", "ngrams")


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How much of a text is masked, in which units, and what it becomes; ``data.masking`` says how that is done."""

    rate: float = 0.15
    units: str = "tokens"
    """``tokens``, whole ``words``, or ``ngrams`` of whole words."""
    max_ngram: int = 3
    """The most words of an n-gram; n words have a probability in proportion to 1/n."""
    mask_share: float = 0.8
    random_share: float = 0.1
    """Shares of the chosen tokens that become the mask and a random token; the rest stays."""
    dynamic: bool = True
    """Whether each epoch masks anew."""


def _share(value: float) -> str | None:
    return None if 0 <= value <= 1 else f"{value} is no share; give a number from 0 to 1"


def _rate(value: float) -> str | None:
    return None if 0 < value < 1 else f"{value} is no share of a text; give a number between 0 and 1"


def masking_problems(masking: MaskingConfig) -> Iterator[Problem]:
    """What is wrong with options together; each is right by itself."""
    if masking.mask_share + masking.random_share > 1 + 1e-9:
        both = f"{masking.mask_share} and random_share {masking.random_share}"
        yield Problem("mask_share", f"{both} are more than the whole; lower one of them")
    if masking.units in ("tokens", "words") and masking.max_ngram != MaskingConfig().max_ngram:
        yield Problem("max_ngram", f"has no effect on {masking.units}; set units to ngrams, or remove it")


RULES: Rules = {
    "rate": _rate,
    "units": partial(choice, UNITS),
    "max_ngram": partial(at_least, 1),
    "mask_share": _share,
    "random_share": _share,
}
