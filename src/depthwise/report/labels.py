"""What the classes of a task are called."""

from collections.abc import Callable

from depthwise.data.tokenizers import BLANK
from depthwise.tasks import LanguageModeling, SequenceToSequence, Tagging, Task, TextClassification

Names = Callable[[int], str]


def names_of(task: Task) -> Names | None:
    """The name of each class: a token, a label or a tag; none where a guess is no class, but a number or a span."""
    if isinstance(task, TextClassification | Tagging):
        if isinstance(task, TextClassification) and task.is_regression:
            return None
        labels = task.label_names
        return lambda number: labels[number]
    if not isinstance(task, SequenceToSequence | LanguageModeling):
        return None
    tokenizer = task.tokenizers.target

    def token(number: int) -> str:
        name = tokenizer.convert_ids_to_tokens(number) if number < len(tokenizer) else None
        return "(end)" if name == tokenizer.eos_token else str(name).removeprefix(BLANK) or BLANK

    return token
