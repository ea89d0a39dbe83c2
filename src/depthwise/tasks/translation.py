"""Translation: a text in one language in, the same in another out."""

from collections.abc import Sequence

from depthwise.data import Corpus, Example
from depthwise.metrics import BLEU_VARIANTS, Comparison, Score, chrf, compare_bleu, compare_means
from depthwise.tasks.sequence_to_sequence import SequenceToSequence
from depthwise.tasks.sources import pairs

EXACT_MATCH = "exact_match"


class Translation(SequenceToSequence):
    """One pair of languages, judged by BLEU."""

    kind = "translation"
    too_long = "skip"

    def corpus(self, split: str) -> Corpus:
        return pairs(self.recipe.data, self.check_split(split))

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        return ("sacrebleu", "chrf")

    def known_metrics(self) -> tuple[str, ...]:
        return (*BLEU_VARIANTS, "chrf", EXACT_MATCH)

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        references = [example.texts[1] for example in examples]
        return {name: score_texts(name, predictions, references) for name in self.metrics}

    @property
    def compared_by(self) -> str:
        """The metric that is quoted; in the place of chrF the next among the metrics, or sacreBLEU."""
        possible = (*BLEU_VARIANTS, EXACT_MATCH)
        return next((name for name in self.metrics if name in possible), "sacrebleu")

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        references = [example.texts[1] for example in examples]
        if self.compared_by == EXACT_MATCH:
            return compare_means(*([100.0 * right for right in matches(side, references)] for side in (ours, theirs)))
        return compare_bleu(ours, theirs, references, bleu=BLEU_VARIANTS[self.compared_by])


def score_texts(name: str, predictions: Sequence[str], references: Sequence[str]) -> Score:
    """A metric of translations by its name."""
    if name == EXACT_MATCH:
        right = sum(matches(predictions, references))
        return Score("exact match", 100 * right / len(references), "blanks:any")
    return chrf(predictions, references) if name == "chrf" else BLEU_VARIANTS[name].score(predictions, references)


def matches(predictions: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Which predictions are right word for word, however blanks are set."""
    return [ours.split() == theirs.split() for ours, theirs in zip(predictions, references, strict=True)]
