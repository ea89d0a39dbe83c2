"""ROUGE: overlap of a summary with summaries that people wrote (Lin 2004), computed by the rouge-score package.

| type | what overlaps |
|---|---|
| ``rouge1``, ``rouge2``, … | n-grams |
| ``rougeL`` | the longest common subsequence of the whole texts (sentence level) |
| ``rougeLsum`` | the union of such subsequences of sentence pairs (summary level) |

A score is the mean over examples of the F-measure. Several references of an example give their ``best`` or their
``mean``; published scores differ in that, so that it stands in the signature. rouge-score is an optional extra.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthwise.errors import ConfigError, InputError, Problem
from depthwise.metrics.references import References, num_references, reference_lists
from depthwise.metrics.score import Score

SEVERAL, SENTENCES = ("best", "mean"), ("lines", "punctuation")
_TYPE = re.compile(r"rouge([1-9]|L|Lsum)")
_END_OF_SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+")


@dataclass(frozen=True)
class Rouge:
    """A definition of ROUGE."""

    types: tuple[str, ...] = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    stemmed: bool = True
    """Whether words are reduced to their stems (Porter's, for English)."""
    several: str = "best"
    """What several references of an example give: their ``best`` or their ``mean``."""
    sentences: str = "lines"
    """What is a sentence to ``rougeLsum``: a line, or what ends in ``punctuation``."""

    def __post_init__(self) -> None:
        problems = [
            Problem("types", f'"{name}" is none of rouge1 to rouge9, rougeL, rougeLsum')
            for name in self.types
            if not _TYPE.fullmatch(name)
        ]
        for name, allowed in (("several", SEVERAL), ("sentences", SENTENCES)):
            if getattr(self, name) not in allowed:
                problems.append(Problem(name, f'"{getattr(self, name)}" is none of {", ".join(allowed)}'))
        if problems:
            raise ConfigError("rouge", problems)

    def scores(self, hypotheses: Sequence[str], references: References) -> dict[str, Score]:
        """Means over all examples, 0 to 100, by type."""
        values = self.values(hypotheses, references)
        signature = self.signature(references)
        return {
            name: Score(name, 100 * float(values[:, column].mean()), signature)
            for column, name in enumerate(self.types)
        }

    def values(self, hypotheses: Sequence[str], references: References) -> NDArray[np.float64]:
        """F-measures of each example, 0 to 1: a row each with a column per type. Columns go into ``compare_means``."""
        scorer, by_example = self._scorer(), reference_lists(hypotheses, references)
        rows = []
        for hypothesis, of_example in zip(hypotheses, by_example, strict=True):
            found = [scorer.score(self._split(reference), self._split(hypothesis)) for reference in of_example]
            table = np.array([[one[name].fmeasure for name in self.types] for one in found])
            rows.append(table.max(axis=0) if self.several == "best" else table.mean(axis=0))
        return np.array(rows, np.float64)

    def signature(self, references: References) -> str:
        """How the numbers came about."""
        parts = [
            num_references(references),
            f"several:{self.several}",
            f"stem:{'porter' if self.stemmed else 'none'}",
            f"sentences:{self.sentences}",
            "measure:f",
            f"rouge-score:{version('rouge-score')}",
        ]
        return "|".join(parts)

    def _split(self, text: str) -> str:
        return "\n".join(split_sentences(text)) if self.sentences == "punctuation" else text

    def _scorer(self) -> Any:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ModuleNotFoundError:
            raise InputError(
                'ROUGE needs the library rouge-score; install it with: pip install "depthwise[eval]"'
            ) from None
        return RougeScorer(list(self.types), use_stemmer=self.stemmed)


def split_sentences(text: str) -> list[str]:
    """Sentences of a text: lines, each parted behind every full stop, question or exclamation mark before a blank.

    It knows no abbreviations. Where sentences matter, give them as lines.
    """
    parts = (part for line in text.split("\n") for part in _END_OF_SENTENCE.split(line))
    return [part.strip() for part in parts if part.strip()]
