"""How frequent tokens are in the training data of a run: their ranks, the most frequent one first."""

from collections import Counter
from dataclasses import dataclass
from itertools import islice

from depthwise.data import LineReport
from depthwise.errors import DepthwiseError
from depthwise.tasks import SequenceToSequence, Task
from depthwise.tasks.encoding import encoded

NUM_EXAMPLES = 20_000
"""Training examples that are counted, at most."""


@dataclass(frozen=True)
class Ranks:
    """Rank of every token that was seen, from 1, and on how many examples that rests."""

    of: dict[int, int]
    num_examples: int


def training_ranks(task: Task) -> Ranks | None:
    """Of the tokens whose depths are counted: those of the output where one is generated. None without the data."""
    generates = isinstance(task, SequenceToSequence)
    tokenizer = task.tokenizers.target if generates else task.tokenizers.source
    try:
        examples = list(islice(task.corpus("train").examples(LineReport(task.rules)), NUM_EXAMPLES))
    except DepthwiseError:
        return None
    texts = [text for example in examples for text in (example.texts[1:2] if generates else example.texts)]
    counts: Counter[int] = Counter()
    for ids in encoded(tokenizer, texts):
        counts.update(ids.tolist())
    ordered = sorted(counts, key=lambda each: (-counts[each], each))
    return Ranks({each: rank for rank, each in enumerate(ordered, start=1)}, len(examples))
