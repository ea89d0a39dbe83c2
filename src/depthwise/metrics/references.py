"""What texts are compared with: one reference each, or several."""

from collections.abc import Sequence

from depthwise.errors import InputError

References = Sequence[str] | Sequence[Sequence[str]]
"""One reference per text, or a list of several for each."""


def reference_lists(hypotheses: Sequence[str], references: References) -> list[Sequence[str]]:
    """The references of every text, after checking that there is at least one for each."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise InputError("hypotheses and references are lists of texts; put a single text into a list")
    if len(hypotheses) != len(references):
        raise InputError(f"{len(hypotheses)} hypotheses but references for {len(references)} texts; give both for each")
    if not hypotheses:
        raise InputError("there are no texts to score; give at least one")
    by_text = [[given] if isinstance(given, str) else given for given in references]
    for index, of_text in enumerate(by_text):
        if not of_text:
            raise InputError(f"text {index} has no reference; give at least one for each")
    return by_text


def num_references(references: References) -> str:
    """How many references texts have, as a part of a signature."""
    numbers = {1 if isinstance(given, str) else len(given) for given in references}
    return f"nrefs:{numbers.pop() if len(numbers) == 1 else 'var'}"
