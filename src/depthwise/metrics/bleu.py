"""BLEU in the definitions that published numbers use, and chrF.

| variant | text | used by the convolution paper for |
|---|---|---|
| ``SacreBleu()`` | plain text, tokenised by sacreBLEU | WMT Zh-En |
| ``TokenizedBleu()`` | already tokenised, case kept | WMT En-Fr |
| ``TokenizedBleu(lowercase=True)`` | already tokenised, lower-cased | IWSLT De-En |
| ``TokenizedBleu(split_compounds=True)`` | already tokenised, hyphenated words split | WMT En-De |

The last three depend on the tokeniser that prepared the text, so they are not comparable with the first nor across
preparations; their signatures keep them from being mixed up.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import sacrebleu
from numpy.typing import NDArray

from depthwise.errors import InputError
from depthwise.metrics.bleu_counts import Smoothing, bleu_of_counts, count_sentence
from depthwise.metrics.references import References, num_references, reference_lists
from depthwise.metrics.score import Score


class Bleu(Protocol):
    """A definition of BLEU: scores a corpus, and counts its sentences so that others can score parts of it."""

    @property
    def smoothing(self) -> Smoothing: ...

    def score(self, hypotheses: Sequence[str], references: References) -> Score: ...

    def counts(self, hypotheses: Sequence[str], references: References) -> NDArray[np.float64]:
        """One row of ten counts per sentence; their sum determines the score."""
        ...


@dataclass(frozen=True)
class SacreBleu:
    """BLEU of plain text with a standard tokenisation, computed by the sacrebleu package (Post 2018)."""

    tokenize: str = "13a"
    lowercase: bool = False

    smoothing: Smoothing = "exp"
    """What sacreBLEU does unless told otherwise."""

    def score(self, hypotheses: Sequence[str], references: References) -> Score:
        by_sentence = reference_lists(hypotheses, references)
        metric = self._metric()
        result = metric.corpus_score(list(hypotheses), _streams(by_sentence))
        return Score("sacreBLEU", float(result.score), str(metric.get_signature()))

    def counts(self, hypotheses: Sequence[str], references: References) -> NDArray[np.float64]:
        metric = self._metric()
        rows = []
        for hypothesis, of_sentence in zip(hypotheses, reference_lists(hypotheses, references), strict=True):
            found = metric.corpus_score([hypothesis], [[reference] for reference in of_sentence])
            rows.append([found.sys_len, found.ref_len, *found.counts, *found.totals])
        return np.asarray(rows, dtype=np.float64)

    def _metric(self) -> sacrebleu.BLEU:
        if self.tokenize not in sacrebleu.BLEU.TOKENIZERS:
            known = ", ".join(sacrebleu.BLEU.TOKENIZERS)
            raise InputError(f"sacreBLEU has no tokeniser {self.tokenize!r}; choose one of {known}")
        # Forced: of texts that are tokenised on purpose it would warn at every call.
        return sacrebleu.BLEU(
            force=True, tokenize=self.tokenize, lowercase=self.lowercase, smooth_method=self.smoothing
        )


@dataclass(frozen=True)
class TokenizedBleu:
    """BLEU of text that is tokenised already, as Moses' ``multi-bleu.perl`` computes it.

    No smoothing; tokens are what ASCII white space separates, and only ASCII letters are lower-cased, because that
    script reads bytes. ``split_compounds`` first writes ``x-y`` as ``x ##AT##-##AT## y`` on both sides, so that parts
    of a German compound can match: the practice of Vaswani et al. (2017) for En-De. Like the substitution in common
    use it takes matches that do not overlap: of ``a-b-c`` only the first hyphen is split.
    """

    lowercase: bool = False
    split_compounds: bool = False

    smoothing: Smoothing = "none"

    def score(self, hypotheses: Sequence[str], references: References) -> Score:
        value = bleu_of_counts(self.counts(hypotheses, references).sum(axis=0), self.smoothing)
        parts = [
            num_references(references),
            f"case:{'lc' if self.lowercase else 'mixed'}",
            "tok:none",
            f"compounds:{'split' if self.split_compounds else 'whole'}",
            f"smooth:{self.smoothing}",
            "multi-bleu",
        ]
        return Score("BLEU", float(value), "|".join(parts))

    def counts(self, hypotheses: Sequence[str], references: References) -> NDArray[np.float64]:
        by_sentence = reference_lists(hypotheses, references)
        rows = [
            count_sentence(self._tokens(hypothesis), [self._tokens(reference) for reference in of_sentence])
            for hypothesis, of_sentence in zip(hypotheses, by_sentence, strict=True)
        ]
        return np.asarray(rows, dtype=np.float64)

    def _tokens(self, sentence: str) -> list[bytes]:
        text = sentence.encode("utf-8", errors="surrogatepass")
        text = text.lower() if self.lowercase else text
        text = _HYPHEN.sub(rb"\1 ##AT##-##AT## \2", text) if self.split_compounds else text
        return text.split()


_HYPHEN = re.compile(rb"(\S)-(\S)")

BLEU_VARIANTS: dict[str, Bleu] = {
    "sacrebleu": SacreBleu(),
    "bleu": TokenizedBleu(),
    "bleu_lowercased": TokenizedBleu(lowercase=True),
    "bleu_compounds": TokenizedBleu(split_compounds=True),
}


def chrf(hypotheses: Sequence[str], references: References, *, word_order: int = 0) -> Score:
    """F-score of character n-grams (Popović 2015), by sacrebleu; ``word_order=2`` gives chrF++."""
    metric = sacrebleu.CHRF(word_order=word_order)
    result = metric.corpus_score(list(hypotheses), _streams(reference_lists(hypotheses, references)))
    return Score("chrF" + "+" * word_order, float(result.score), str(metric.get_signature()))


def _streams(by_sentence: list[Sequence[str]]) -> list[Sequence[str]]:
    """References as sacrebleu takes them: the first of every sentence, the second of every sentence, ..."""
    most = max(len(of_sentence) for of_sentence in by_sentence)
    missing: list[str | None] = [None]
    return [
        [(list(of_sentence) + missing * most)[rank] for of_sentence in by_sentence]  # type: ignore[misc]
        for rank in range(most)
    ]
