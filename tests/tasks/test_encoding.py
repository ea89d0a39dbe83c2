"""What goes into a model: inputs without labels, and portions that fit."""

import numpy as np
import pytest
import torch

from depthwise.data.rows import IdRow, Rows
from depthwise.tasks.encoding import inputs_in, least, padded_sizes, portions


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


def test_a_group_counts_as_no_more_than_the_budget() -> None:
    assert padded_sizes([rows(3, 2), rows(), rows(9, 1, 1)], 10).tolist() == [[6], [0], [10]]
    assert padded_sizes([], 10).shape == (0, 1)


def test_the_strictest_limit() -> None:
    assert [least(3, None, 2), least(None, 0), least(None), least()] == [2, 0, None, None]


def test_labels_stay_outside() -> None:
    batch = {name: torch.zeros(1) for name in ("labels", "input_ids", "token_type_ids", "attention_mask")}
    assert set(inputs_in(batch)) == {"input_ids", "attention_mask", "token_type_ids"}


def test_rows_have_a_report() -> None:
    assert Rows(rows(1)).report.num_bad == 0
