"""What every memory can do: be appended to, shortened and indexed by row, without changing."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.memory import AverageMemory, InputMemory, KeyValueMemory, Memory
from depthwise.memory.base import first, first_valid, join_valid, keep_valid, last, last_valid

Make = Callable[[Tensor, Tensor | None], Any]


def keys_values(x: Tensor, valid: Tensor | None) -> KeyValueMemory:
    """Keys and values that show which steps they belong to: (B, T, 6) as 3 heads of 2."""
    keys = x.unflatten(-1, (3, 2)).transpose(1, 2)
    return KeyValueMemory(keys, -keys, valid)


MAKERS: dict[str, Make] = {"keys_values": keys_values, "inputs": InputMemory, "averages": AverageMemory}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
X = torch.arange(3 * 5 * 6, dtype=torch.float64).view(3, 5, 6)
VALID = torch.tensor(
    [[True, True, True, True, False], [False, True, True, True, True], [True, False, True, False, True]]
)


def contents(memory: Any) -> Tensor:
    """What a memory holds of its positions, as (B, L, 6)."""
    if isinstance(memory, KeyValueMemory):
        assert torch.equal(memory.values, -memory.keys)
        return memory.keys.transpose(1, 2).flatten(2)
    return memory.inputs


def same_mask(found: Tensor | None, expected: Tensor | None) -> bool:
    return found is None if expected is None else found is not None and torch.equal(found, expected)


@each
def test_it_is_a_memory(make: Make) -> None:
    memory = make(X, VALID)
    assert isinstance(memory, Memory)
    assert memory.length == 5
    assert make(X[:, :0], None).length == 0


@each
def test_it_cannot_be_changed(make: Make) -> None:
    with pytest.raises(FrozenInstanceError):
        make(X, None).valid = VALID


@each
@pytest.mark.parametrize("cut", [0, 1, 3, 5])
@pytest.mark.parametrize("masks", ["neither", "earlier", "later", "both"])
def test_append(make: Make, cut: int, masks: str) -> None:
    """A part without a mask has no padding; only where neither has one there is none at all."""
    earlier_mask = VALID[:, :cut] if masks in ("earlier", "both") else None
    later_mask = VALID[:, cut:] if masks in ("later", "both") else None
    earlier, later = make(X[:, :cut], earlier_mask), make(X[:, cut:], later_mask)
    joined = earlier.append(later)
    assert joined.length == 5
    assert torch.equal(contents(joined), X)
    expected = torch.ones(3, 5, dtype=torch.bool)
    if earlier_mask is not None:
        expected[:, :cut] = earlier_mask
    if later_mask is not None:
        expected[:, cut:] = later_mask
    assert same_mask(joined.valid, None if masks == "neither" else expected)
    assert (earlier.length, later.length) == (cut, 5 - cut)


@each
@pytest.mark.parametrize("valid", [None, VALID], ids=["unpadded", "padded"])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 9])
def test_recent(make: Make, count: int, valid: Tensor | None) -> None:
    memory = make(X, valid)
    recent = memory.recent(count)
    start = max(5 - count, 0)
    assert recent.length == min(count, 5)
    assert torch.equal(contents(recent), X[:, start:])
    assert same_mask(recent.valid, None if valid is None else valid[:, start:])
    assert memory.length == 5


@each
@pytest.mark.parametrize("valid", [None, VALID], ids=["unpadded", "padded"])
@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_without_last(make: Make, count: int, valid: Tensor | None) -> None:
    """What is left is what there was before those positions were appended."""
    shorter = make(X, valid).without_last(count)
    assert shorter.length == 5 - count
    assert torch.equal(contents(shorter), X[:, : 5 - count])
    assert same_mask(shorter.valid, None if valid is None else valid[:, : 5 - count])


@each
@pytest.mark.parametrize("valid", [None, VALID], ids=["unpadded", "padded"])
@pytest.mark.parametrize("rows", [[2, 0, 1], [1], [0, 0, 2, 0], []], ids=str)
def test_keep(make: Make, rows: list[int], valid: Tensor | None) -> None:
    """Reordered, fewer, more than once, none."""
    kept = make(X, valid).keep(torch.tensor(rows, dtype=torch.long))
    assert kept.length == 5
    assert torch.equal(contents(kept), X[rows])
    assert same_mask(kept.valid, None if valid is None else valid[rows])


@each
def test_a_memory_can_grow_from_nothing(make: Make) -> None:
    memory = make(X[:, :0], None)
    for step in range(5):
        memory = memory.append(make(X[:, step : step + 1], VALID[:, step : step + 1]))
    assert torch.equal(contents(memory), X)
    assert torch.equal(memory.valid, VALID)


# The bookkeeping of padding


def test_two_masks_are_joined() -> None:
    joined = join_valid(VALID[:, :2], VALID[:, 2:], (2, 3), X)
    assert same_mask(joined, VALID)


def test_no_mask_is_all_valid() -> None:
    ones = torch.ones(3, 2, dtype=torch.bool)
    assert join_valid(None, None, (2, 3), X) is None
    assert same_mask(join_valid(None, VALID, (2, 5), X), torch.cat([ones, VALID], dim=1))
    assert same_mask(join_valid(VALID, None, (5, 2), X), torch.cat([VALID, ones], dim=1))


def test_masks_of_rows() -> None:
    assert keep_valid(None, torch.tensor([1])) is None
    assert same_mask(keep_valid(VALID, torch.tensor([1, 1])), VALID[[1, 1]])


def test_first_and_last_entries() -> None:
    for count in (0, 2, 5, 7):
        assert torch.equal(last(X, count), X[:, max(5 - count, 0) :])
        assert same_mask(last_valid(VALID, count), VALID[:, max(5 - count, 0) :])
    for count in (0, 2, 5):
        assert torch.equal(first(X, count), X[:, :count])
        assert same_mask(first_valid(VALID, count), VALID[:, :count])
    assert torch.equal(last(X, 2, axis=2), X[..., 4:])
    assert torch.equal(first(X, 2, axis=2), X[..., :2])
    assert first_valid(None, 3) is None
    assert last_valid(None, 3) is None
