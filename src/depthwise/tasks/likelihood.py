"""Tasks that are judged by how likely they find a text, and not by what they predict: language models of both kinds."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from depthwise.data import Corpus, Example, TextRows, Texts, stream_of
from depthwise.errors import InputError
from depthwise.metrics import Comparison, Score
from depthwise.models.outputs import DepthwiseOutput
from depthwise.shapes import Tensor
from depthwise.tasks.base import Task
from depthwise.tasks.encoding import encoded
from depthwise.tasks.sources import running_text
from depthwise.tasks.values import Examples

DEFAULT_ROW = 512
"""How many tokens a model sees at a time, unless the recipe says otherwise."""
COUNTED_AT_ONCE = 1 << 22
"""Bounds memory: training data lies on disk, and is counted in portions."""


class LikelihoodTask(Task):
    """Running text, one text per line, whose tokens are the items that losses and metrics are over.

    Text to be judged becomes examples as validation data does (``judged``), losses are summed over them as in
    validation, and ``likelihood_scores`` makes metrics of the totals.
    """

    metric = "nll"
    scored_by = "likelihood"
    too_long = "cut"
    empty_lines = "keep"
    """What becomes of empty lines, unless the recipe says otherwise."""
    num_inputs = 1

    def corpus(self, split: str) -> Corpus:
        return running_text(self.recipe.data, self.check_split(split), self.empty_lines)

    def _tokenizers_of(self, corpus: Corpus) -> Sequence[PreTrainedTokenizerBase]:
        return [self.tokenizers.source]

    @property
    def row_tokens(self) -> int:
        """The most ids of a row."""
        wanted = self.recipe.data.max_tokens or DEFAULT_ROW
        return wanted if self.max_tokens is None else min(wanted, self.max_tokens)

    def examples(self, split: str) -> Examples:
        return self.prepared(self.store(split), is_training=split == "train")

    def judged(self, examples: Sequence[Example]) -> Examples:
        """The same of text in memory, in the way in which it is judged."""
        return self.prepared(self.text_rows(examples), is_training=False)

    def text_rows(self, examples: Sequence[Example]) -> TextRows:
        """Examples as ids."""
        ids = encoded(self.tokenizers.source, [example.texts[0] for example in examples])
        return TextRows(ids, [example.line for example in examples])

    @abstractmethod
    def prepared(self, texts: Texts, *, is_training: bool) -> Examples:
        """What the model is trained on, or judged by, of tokenised texts."""

    @abstractmethod
    def likelihood_scores(
        self, totals: Mapping[str, float], num_items: float, examples: Sequence[Example]
    ) -> dict[str, Score]:
        """Every metric by name, from the totals of all batches of these examples."""

    def unigram_log_probs(self) -> npt.NDArray[np.float64]:
        """log p(type) by its share of the training data, one occurrence added to each: the least a model must beat."""
        stream, counts = stream_of(self.store("train")), np.ones(len(self.tokenizers.source))
        for begin in range(0, len(stream), COUNTED_AT_ONCE):
            counts += np.bincount(stream[begin : begin + COUNTED_AT_ONCE], minlength=len(counts))
        found: npt.NDArray[np.float64] = np.log(counts / counts.sum())
        return found

    # What has no meaning here

    def check_predictable(self) -> NoReturn:
        raise InputError(
            f"{self.kind} is scored by likelihood and has no predictions to compare; evaluate each run by itself"
        )

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        self.check_predictable()

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        self.check_predictable()

    @property
    def compared_by(self) -> str:
        self.check_predictable()


def depth_totals(output: DepthwiseOutput) -> dict[str, Tensor]:
    """Blocks that all tokens of a batch ran together, and how many tokens that were."""
    assert output.depths is not None
    return {"depth": output.depths.sum().float(), "depth_tokens": (output.depths > 0).sum().float()}
