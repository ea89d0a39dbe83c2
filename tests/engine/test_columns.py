"""Memories that are written in place: they grow, forget, and move rows."""

import torch

from depthwise.engine.columns import FIRST_CAPACITY, Columns, RunningSum


def filled(columns: Columns, num_columns: int) -> None:
    """Column t of row b holds 1000 b + t."""
    for column in range(num_columns):
        columns.make_room(column + 1)
        values = 1000 * torch.arange(columns.num_rows).view(-1, 1) + column
        columns.put(column, values.expand(-1, columns.width).float())


def test_all_columns_are_kept_where_all_may_be_read() -> None:
    columns = Columns(torch.empty(0), 3, 2)
    filled(columns, 5 * FIRST_CAPACITY)
    seen = columns.between(0, 5 * FIRST_CAPACITY)
    assert torch.equal(seen[2, :, 1], 2000 + torch.arange(5.0 * FIRST_CAPACITY))


def test_only_what_is_in_reach_is_kept() -> None:
    columns = Columns(torch.empty(0), 3, 2, reach=6)
    filled(columns, 50 * FIRST_CAPACITY)
    end = 50 * FIRST_CAPACITY
    assert torch.equal(columns.between(end - 7, end)[1, :, 0], 1000 + torch.arange(end - 7.0, end))
    assert columns._table.shape[1] == FIRST_CAPACITY


def test_rows_move() -> None:
    columns = Columns(torch.empty(0), 4, 1)
    filled(columns, 3)
    columns.move(torch.tensor([3, 0]), torch.tensor([0, 3]))
    assert columns.between(0, 3)[..., 0].tolist() == [
        [3000, 3001, 3002],
        [1000, 1001, 1002],
        [2000, 2001, 2002],
        [0, 1, 2],
    ]
    columns.num_rows = 2
    assert columns.between(1, 3).shape == (2, 2, 1)


def test_single_places() -> None:
    columns = Columns(torch.empty(0), 3, 1)
    filled(columns, 4)
    rows, places = torch.tensor([0, 2]), torch.tensor([3, 1])
    columns.put_at(rows, places, torch.tensor([[7.0], [8.0]]))
    assert columns.at(rows, places).flatten().tolist() == [7, 8]
    assert columns.at(torch.tensor([1]), torch.tensor([2])).item() == 1002
    columns.put(2, torch.tensor([[5.0]]), torch.tensor([1]))
    assert columns.between(2, 3)[:, 0, 0].tolist() == [2, 5, 2002]


def test_sums_take_rows_more_than_once() -> None:
    total = RunningSum(torch.empty(0, dtype=torch.bfloat16), 3, 1)
    total.add(torch.tensor([0, 2, 0]), torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.bfloat16))
    total.add(None, torch.ones(3, 1))
    assert total.total.flatten().tolist() == [5, 1, 3]
    assert total.total.dtype == torch.float32
    total.move(torch.tensor([2]), torch.tensor([1]))
    assert total.total.flatten().tolist() == [5, 3, 3]
