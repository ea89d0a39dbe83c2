"""How alike two answers to the same question are, and how good one is: a number from 0 to 1 for every example.

| task | two answers | an answer |
|---|---|---|
| classification | the same label | the right label |
| tagging | share of words with the same tag | share of words with the right tag |
| question answering | F1 of their words | F1 against the best of the right answers |
| translation, summarisation | chrF of one against the other | chrF against the references |

These are what a promise about risk is made of: scores of a corpus, such as BLEU, say nothing of single examples.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sacrebleu import CHRF

from depthwise.data import Example
from depthwise.errors import InputError
from depthwise.metrics import squad_values
from depthwise.tasks import QuestionAnswering, SequenceToSequence, Tagging, Task, TextClassification
from depthwise.tasks.question_answering import right_answers

Values = npt.NDArray[np.float64]


def likeness(task: Task, answers: Sequence[str], others: Sequence[str]) -> Values:
    """Of every answer with the other one."""
    if isinstance(task, QuestionAnswering):
        return squad_values(answers, [[other] if other else [] for other in others])[:, 1]
    return _against(task, answers, [[other] for other in others])


def goodness(task: Task, answers: Sequence[str], examples: Sequence[Example]) -> Values:
    """Of every answer to an example."""
    if isinstance(task, QuestionAnswering):
        return squad_values(answers, right_answers(examples))[:, 1]
    if isinstance(task, SequenceToSequence):
        return _against(task, answers, [example.texts[1:] for example in examples])
    return _against(task, answers, [[example.label or ""] for example in examples])


def check_has_likeness(task: Task) -> None:
    """Raises an error where answers are no texts that could be more or less alike."""
    task.check_predictable()
    if isinstance(task, TextClassification) and task.is_regression:
        raise InputError(
            "numbers that are estimated are never just right or wrong, so that no risk can be promised for them; "
            "calibrate with --quality-drop or --depth-budget"
        )


def _against(task: Task, answers: Sequence[str], references: Sequence[Sequence[str]]) -> Values:
    check_has_likeness(task)
    if isinstance(task, TextClassification):
        found = [float(answer in right) for answer, right in zip(answers, references, strict=True)]
    elif isinstance(task, Tagging):
        found = [_same_words(answer, right) for answer, (right,) in zip(answers, references, strict=True)]
    else:
        assert isinstance(task, SequenceToSequence)
        found = [_chrf(answer, right) for answer, right in zip(answers, references, strict=True)]
    return np.array(found, np.float64)


def _same_words(tags: str, others: str) -> float:
    ours, theirs = tags.split(), others.split()
    return float(np.mean([mine == other for mine, other in zip(ours, theirs, strict=True)])) if ours else 1.0


def _chrf(text: str, references: Sequence[str]) -> float:
    """Two texts without a letter are alike; chrF would say 0."""
    if not text.strip() and not all(reference.strip() for reference in references):
        return 1.0
    return min(1.0, _CHRF.sentence_score(text, list(references)).score / 100)


_CHRF = CHRF()
