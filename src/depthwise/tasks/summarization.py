"""Summarisation: a long text in, a short one out, judged by ROUGE beside the first sentences of the text itself."""

from collections.abc import Sequence

from depthwise.data import Corpus, Example
from depthwise.metrics import Comparison, Rouge, Score, compare_means
from depthwise.metrics.rouge import split_sentences
from depthwise.tasks.sequence_to_sequence import SequenceToSequence
from depthwise.tasks.sources import summaries

LEAD = "lead"


class Summarization(SequenceToSequence):
    """Sources are cut to ``data.max_source_tokens`` in training and afterwards, targets in training.

    The first ``evaluation.lead_sentences`` of a source are the trivial summary: their scores, ``lead/rouge1`` and so
    on, stand beside those of the model in every evaluation.
    """

    kind = "summarization"
    too_long = "cut"
    max_lengths = ((0.0, 40), (0.0, 60), (0.0, 100), (0.0, 150))

    def corpus(self, split: str) -> Corpus:
        return summaries(self.recipe.data, self.check_split(split))

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        return ("rouge1", "rouge2", "rougeL")

    def known_metrics(self) -> tuple[str, ...]:
        return (*(f"rouge{size}" for size in range(1, 10)), "rougeL", "rougeLsum")

    @property
    def _rouge(self) -> Rouge:
        """Generated text has no line breaks, so that its sentences are told by their punctuation."""
        several = self.recipe.evaluation.several_references
        return Rouge(self.metrics, several=several, sentences="punctuation")

    def check_examples(self, examples: Sequence[Example]) -> None:
        """Says now, not after all summaries are there, that the library of ROUGE is missing."""
        self.score([""], examples[:1])

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        """ROUGE against all references of an example; then that of the trivial summary."""
        references, num = [example.texts[1:] for example in examples], self.recipe.evaluation.lead_sentences
        scores = self._rouge.scores(predictions, references)
        trivial = self._rouge.scores([lead(example.texts[0], num) for example in examples], references)
        for name, score in trivial.items():
            scores[f"{LEAD}/{name}"] = Score(f"{LEAD} {name}", score.value, f"lead:{num}|{score.signature}")
        return scores

    @property
    def compared_by(self) -> str:
        return self.metrics[0]

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        references = [example.texts[1:] for example in examples]
        return compare_means(*(100 * self._rouge.values(side, references)[:, 0] for side in (ours, theirs)))


def lead(text: str, num_sentences: int) -> str:
    """The first sentences of a text."""
    return " ".join(split_sentences(text)[:num_sentences])
