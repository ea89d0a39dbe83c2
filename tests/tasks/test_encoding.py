"""What goes into a model: inputs without labels, and portions that fit."""

import numpy as np
import pytest
import torch

from depthwise.data.rows import IdRow, Rows
from depthwise.tasks.encoding import inputs_in, portions


def rows(*lengths: int) -> list[IdRow]:
    return [IdRow(np.zeros(length, np.int32)) for length in lengths]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((), []),
        ((3,), [[3]]),
        ((50,), [[50]]),
        ((3, 3, 3, 3), [[3, 3, 3], [3]]),
        ((1, 5, 5, 2), [[1, 5], [5, 2]]),
        ((2, 9, 2, 2), [[2], [9], [2, 2]]),
    ],
)
def test_portions_keep_the_order_and_the_budget(lengths: tuple[int, ...], expected: list[list[int]]) -> None:
    assert [[len(row.ids) for row in portion] for portion in portions(rows(*lengths), 10)] == expected


def test_labels_stay_outside() -> None:
    batch = {name: torch.zeros(1) for name in ("labels", "input_ids", "token_type_ids", "attention_mask")}
    assert set(inputs_in(batch)) == {"input_ids", "attention_mask", "token_type_ids"}


def test_rows_have_a_report() -> None:
    assert Rows(rows(1)).report.num_bad == 0
