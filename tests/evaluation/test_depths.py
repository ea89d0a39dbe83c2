"""Depths of the sequences that a model saw."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from depthwise.data import PieceRow, Row
from depthwise.evaluation import load_run
from depthwise.evaluation.depths import by_part, recorded_depths
from depthwise.tasks.tagging import SentenceRow

MakeRun = Callable[..., Path]


def test_an_input_in_several_parts() -> None:
    parts = tuple(PieceRow(np.zeros(size, np.int32), sentence=0, words=np.zeros(size, np.int32)) for size in (2, 3))
    row = SentenceRow(0, (), None, parts=parts, num_words=5)
    assert list(by_part(row, (1, 2, 3, 4, 5))) == [(1, 2), (3, 4, 5)]
    assert list(by_part(Row(0, (), None), (1, 2))) == [(1, 2)]


@torch.no_grad()
def test_depths_are_recorded_meanwhile(make_run: MakeRun) -> None:
    model = load_run(make_run("classes"), device="cpu").model
    ids, mask = torch.tensor([[4, 5, 6], [4, 2, 1]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    with recorded_depths(model) as record:
        model(ids, mask)
        model(ids[:1])
    model(ids)
    assert record() == [[2, 2, 2], [2, 2], [2, 2, 2]]
