"""Memories that are written in place: they grow, forget, and move rows."""

import pytest
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


# Where rows come and go


def test_columns_are_counted_anew() -> None:
    """What lies before the first is forgotten, and what comes in front of it is 0, whatever was there before."""
    columns = Columns(torch.empty(0), 2, 1)
    filled(columns, 10)
    columns.shift(-6)
    assert columns.between(0, 4)[1, :, 0].tolist() == [1006, 1007, 1008, 1009]
    columns.shift(2)
    assert columns.between(0, 6)[1, :, 0].tolist() == [0, 0, 1006, 1007, 1008, 1009]
    columns.shift(FIRST_CAPACITY)
    seen = columns.between(0, FIRST_CAPACITY + 6)[1, :, 0].tolist()
    assert seen == [0] * (FIRST_CAPACITY + 2) + [1006, 1007, 1008, 1009]


def test_room_is_made_of_what_was_forgotten() -> None:
    columns = Columns(torch.empty(0), 1, 1)
    for column in range(20 * FIRST_CAPACITY):
        columns.shift(-1 if column > 9 else 0)
        columns.make_room(min(column, 9) + 1)
        columns.put(min(column, 9), torch.full((1, 1), float(column)))
    assert columns.between(0, 10)[0, :, 0].tolist() == list(range(20 * FIRST_CAPACITY - 10, 20 * FIRST_CAPACITY))
    assert columns._table.shape[1] == FIRST_CAPACITY


def test_only_what_is_in_reach_is_counted_anew() -> None:
    columns = Columns(torch.empty(0), 1, 1, reach=3)
    filled(columns, 2)
    columns.shift(5)
    assert columns.between(4, 7)[0, :, 0].tolist() == [0, 0, 1]
    columns.shift(2 * FIRST_CAPACITY)
    assert columns.between(2 * FIRST_CAPACITY + 4, 2 * FIRST_CAPACITY + 7)[0, :, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize("kind", ["columns", "sums"])
def test_rows_are_added(kind: str) -> None:
    """They are 0 where others have left something behind, and can be written apart from the others."""
    if kind == "columns":
        table: Columns | RunningSum = Columns(torch.empty(0), 3, 1)
        assert isinstance(table, Columns)
        filled(table, 2)
    else:
        table = RunningSum(torch.empty(0), 3, 1)
        table.add(None, torch.ones(3, 1))

    def rows() -> list[float]:
        seen = table.between(0, 2)[:, 1] if isinstance(table, Columns) else table.total
        return seen.flatten().tolist()

    kept = rows()[0]
    table.num_rows = 1
    table.add_rows(1)
    assert rows() == [kept, 0]
    table.add_rows(3)
    assert rows() == [kept, 0, 0, 0, 0]
    part = table.last_rows(2)
    if isinstance(part, Columns):
        part.put(1, torch.tensor([[7.0], [8.0]]))
    else:
        part.add(None, torch.tensor([[7.0], [8.0]]))
    assert rows() == [kept, 0, 0, 7, 8]
