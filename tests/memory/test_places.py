"""Tokens in one long row, and who of them reads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depthwise.memory import Around, Places, Sequences, sent, sent_together

CPU = torch.device("cpu")
Rows = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def drawn(lengths: list[int], seed: int, share: float) -> tuple[Sequences, torch.Tensor, np.ndarray]:
    sequences = Sequences(np.repeat(np.arange(len(lengths)), lengths), CPU)
    x = torch.arange(1.0, len(sequences) + 1).view(1, -1, 1)
    return sequences, x, np.flatnonzero(np.random.default_rng(seed).random(len(sequences)) < share)


@settings(max_examples=60, deadline=None)
@given(lengths=Rows, seed=st.integers(0, 999), left=st.integers(0, 4), right=st.integers(0, 4))
def test_every_reader_sees_what_it_saw(lengths: list[int], seed: int, left: int, right: int) -> None:
    sequences, x, readers = drawn(lengths, seed, 0.15)
    if len(readers) == 0:
        return
    whole = Places(sequences, readers)
    narrow_x, narrow = whole.narrowed(x, left, right)
    assert torch.equal(narrow.taken(narrow_x), whole.taken(x))
    assert torch.equal(seen(narrow, narrow_x, left, right), seen(whole, x, left, right))


def seen(places: Places, x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """What stands around each reader, zeros beyond the ends of its sequence."""
    padded = torch.nn.functional.pad(places.spaced(x, left + right)[0, :, 0], (left, right))
    return padded.unfold(0, left + right + 1, 1)[places.spaced_readers(left + right)[0]]


@settings(max_examples=60, deadline=None)
@given(lengths=Rows, seed=st.integers(0, 999), left=st.integers(0, 4), right=st.integers(0, 4), is_all=st.booleans())
def test_windows_end_with_their_sequence(lengths: list[int], seed: int, left: int, right: int, is_all: bool) -> None:
    sequences, x, readers = drawn(lengths, seed, 0.5)
    places = Places(sequences, None if is_all else readers)
    tokens, are_there = places.windows(left, right)
    assert torch.equal(x[0, :, 0][tokens] * are_there, seen(places, x, left, right))
    rows = sequences.rows[:, None] if is_all else sequences.rows[readers][:, None]
    assert (sequences.rows[tokens.numpy()] == rows).all(), "what stands for others is of the same sequence"


@settings(max_examples=40, deadline=None)
@given(lengths=Rows, seed=st.integers(0, 999), left=st.integers(0, 4), right=st.integers(0, 4))
def test_windows_of_several_and_in_tables(lengths: list[int], seed: int, left: int, right: int) -> None:
    """Whoever looks around for others, or for everybody, finds what each would."""
    sequences, _, readers = drawn(lengths, seed, 0.5)
    lists = [readers, readers[1:], readers[:0]]
    shape = len(sequences), 9
    around = Around(torch.empty(shape, dtype=torch.long), torch.empty(shape, dtype=torch.bool), 4)
    around.look(sequences.segments)
    tabled = Sequences.tabled(sequences.segments, around=around)
    for place, each in zip(Places.several(sequences, lists, in_grid=False), lists, strict=True):
        tokens, are_there = Places(sequences, each).windows(left, right)
        assert all(map(torch.equal, place.windows(left, right), (tokens, are_there)))
        found = Places.tabled(tabled, torch.from_numpy(each)).windows(left, right)
        assert torch.equal(found[1], are_there)
        assert torch.equal(found[0] * are_there, tokens * are_there)


def test_tokens_that_nobody_sees_are_left_out() -> None:
    sequences = Sequences(np.repeat([0, 1], [20, 6]), CPU)
    x = torch.arange(26.0).view(1, -1, 1)
    narrow_x, narrow = Places(sequences, np.array([2, 15, 19])).narrowed(x, 2, 1)
    assert narrow_x[0, :, 0].tolist() == [0, 1, 2, 3, 13, 14, 15, 16, 17, 18, 19]
    assert narrow.sequences.lengths.tolist() == [4, 7]
    assert narrow.readers is not None
    assert narrow.readers.tolist() == [2, 6, 10]


def test_where_nearly_all_are_seen_nothing_changes() -> None:
    sequences, x, _ = drawn([8, 8], 0, 0)
    for readers in (None, np.arange(0, 16, 2), np.array([3, 4, 11, 12])):
        places = Places(sequences, readers)
        assert places.narrowed(x, 3, 3) == (x, places)


@pytest.mark.parametrize(("device", "is_narrowed"), [("cpu", True), ("meta", False)])
def test_other_devices_deal_with_few_tokens_at_once(device: str, is_narrowed: bool) -> None:
    where = torch.device(device)
    places, x = (
        Places(Sequences(np.zeros(40, dtype=np.int64), where), np.array([7])),
        torch.empty(1, 40, 1, device=where),
    )
    assert (places.narrowed(x, 1, 1)[1] is not places) is is_narrowed


@settings(max_examples=40, deadline=None)
@given(lengths=Rows, seed=st.integers(0, 999), share=st.floats(0.05, 1))
def test_a_grid_and_the_way_back(lengths: list[int], seed: int, share: float) -> None:
    sequences, x, readers = drawn(lengths, seed, share)
    if len(readers) == 0:
        return
    places = Places(sequences, readers)
    grid = places.grid(x)
    assert grid.shape == (len(lengths), max(lengths), 1)
    for row, (length, part) in enumerate(zip(lengths, x[0].split(lengths), strict=True)):
        assert torch.equal(grid[row, :length], part)
        assert not grid[row, length:].any()
    taken = places.taken(x)
    assert torch.equal(places.from_reader_grid(places.reader_grid(taken)), taken)
    padded, valid = places.padded(x, max(lengths) + 2)
    assert torch.equal(padded[valid], x[0])


def test_rows_are_numbered_without_a_gap() -> None:
    assert Sequences.of(np.array([3, 3, 7, 9, 9]), CPU).rows.tolist() == [0, 0, 1, 2, 2]
    assert len(Sequences.of(np.array([], dtype=np.int64), CPU)) == 0


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_sent_arrives(device: str) -> None:
    found = sent(torch.arange(3), torch.device(device))
    assert found.device.type == device
    assert found.shape == (3,)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_lists_that_are_sent_together(device: str) -> None:
    """Each begins where a kernel may assume it to."""
    lists = [np.arange(3), np.arange(0), np.arange(17), np.arange(16)]
    there = sent_together(lists, torch.device(device))
    assert [len(each) for each in there] == [3, 0, 17, 16]
    if device == "cpu":
        assert [each.tolist() for each in there] == [each.tolist() for each in lists]
    else:
        assert [each.storage_offset() for each in there] == [0, 16, 16, 48]
    assert sent_together([], torch.device(device)) == []


@pytest.mark.parametrize("in_grid", [False, True])
def test_several_lists_of_readers_at_once(monkeypatch: pytest.MonkeyPatch, in_grid: bool) -> None:
    """They are what each is by itself, and nothing is sent again when it is asked for."""
    sequences, x, first = drawn([5, 3, 4], 1, 0.5)
    lists = [first, first[1:], first[:0]]
    made = Places.several(sequences, lists, in_grid=in_grid)
    alone = [Places(sequences, readers) for readers in lists]
    expected = [(place.taken(x), place.reader_grid(place.taken(x)) if place.num_readers else None) for place in alone]
    monkeypatch.setattr(Sequences, "sent", None)
    for place, (taken, grid) in zip(made, expected, strict=True):
        assert torch.equal(place.taken(x), taken)
        if in_grid and grid is not None:
            assert torch.equal(place.reader_grid(taken), grid)
