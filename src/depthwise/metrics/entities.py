"""F1 of entities: one counts as found where type, first and last word are all right (Tjong Kim Sang & De Meulder 2003).

Which entities tags stand for is decided as by CoNLL's own script and by seqeval: tags are IOB2, but an ``I-`` that
follows nothing of its type begins an entity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depthwise.errors import InputError

Tags = Sequence[Sequence[str]]
"""One tag for every word of every sentence."""


class Entity(NamedTuple):
    """Words ``start`` to ``end``, the latter excluded, of one type."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class EntityScores:
    """Precision, recall and F1, 0 to 100, and how many entities were right, predicted and there."""

    precision: float
    recall: float
    f1: float
    num_right: int
    num_predicted: int
    num_there: int


@dataclass(frozen=True)
class EntityReport:
    """Scores over all entities (micro), of each type by name, and the mean of the types' F1 (macro)."""

    overall: EntityScores
    by_type: dict[str, EntityScores]
    macro_f1: float


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of tags in IOB2, in order. An ``I-`` that follows nothing of its type begins one."""
    found: list[Entity] = []
    kind_before = ""
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix == "I" and kind == kind_before:
            found[-1] = found[-1]._replace(end=place + 1)
        elif kind:
            found.append(Entity(kind, place, place + 1))
        kind_before = kind
    return found


def entity_report(predictions: Tags, answers: Tags) -> EntityReport:
    """Scores of a corpus. A ratio whose divisor is 0 is 0."""
    counts, types = _counts_by_type(predictions, answers)
    by_type = {name: _scores(counts[:, number].sum(axis=0)) for number, name in enumerate(types)}
    macro = float(np.mean([scores.f1 for scores in by_type.values()])) if by_type else 0.0
    return EntityReport(_scores(counts.sum(axis=(0, 1))), by_type, macro)


def entity_counts(predictions: Tags, answers: Tags) -> NDArray[np.float64]:
    """Entities right, predicted and there: one row per sentence, for ``paired_bootstrap`` with ``f1_of_counts``."""
    counts, _ = _counts_by_type(predictions, answers)
    return counts.sum(axis=1)


def f1_of_counts(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1, 0 to 100, of summed counts ``(..., 3)``: 2·right / (predicted + there), 0 where there is nothing at all."""
    return 200 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


def _scores(counts: NDArray[np.float64]) -> EntityScores:
    right, predicted, there = (int(count) for count in counts)
    f1 = float(f1_of_counts(counts))
    return EntityScores(100 * right / max(predicted, 1), 100 * right / max(there, 1), f1, right, predicted, there)


def _counts_by_type(predictions: Tags, answers: Tags) -> tuple[NDArray[np.float64], list[str]]:
    """Counts (sentences, types, 3) and the types that occur, sorted."""
    _check(predictions, answers)
    found = [(set(entities(mine)), set(entities(right))) for mine, right in zip(predictions, answers, strict=True)]
    types = sorted({entity.kind for both in found for side in both for entity in side})
    places = {name: place for place, name in enumerate(types)}
    counts = np.zeros((len(found), len(types), 3))
    for row, (mine, right) in enumerate(found):
        for column, side in enumerate((mine & right, mine, right)):
            for entity in side:
                counts[row, places[entity.kind], column] += 1
    return counts, types


def _check(predictions: Tags, answers: Tags) -> None:
    if len(predictions) != len(answers):
        raise InputError(f"tags were predicted for {len(predictions)} sentences but are given for {len(answers)}")
    if not len(answers):
        raise InputError("there are no sentences to score")
    for number, (mine, right) in enumerate(zip(predictions, answers, strict=True)):
        if isinstance(mine, str) or isinstance(right, str):
            raise InputError(f"sentence {number} is one text; give a list of tags for each sentence")
        if len(mine) != len(right):
            raise InputError(f"sentence {number} has {len(mine)} predicted tags but {len(right)} words")
        for tag in (*mine, *right):
            if tag != "O" and (tag[:2] not in ("B-", "I-") or len(tag) < 3):
                raise InputError(f'sentence {number} has the tag "{tag}", which is not in IOB2; write O, B-… or I-…')
