"""Batches: each example once, within the budget, the same again, shared by processes, resumed anywhere."""

import logging
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.data import BatchOptions, TokenBatches
from depthwise.data.batches import ORDERS
from depthwise.errors import ConfigError, DataError

Lengths = np.ndarray[Any, Any]
LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60).map(np.array)


@st.composite
def all_options(draw: st.DrawFn) -> BatchOptions:
    max_tokens = draw(st.none() | st.integers(1, 120))
    return BatchOptions(
        max_tokens=max_tokens,
        max_rows=draw(st.integers(1, 9) | (st.none() if max_tokens is not None else st.nothing())),
        order=draw(st.sampled_from(ORDERS)),
        seed=draw(st.integers(0, 3)),
        pad_to_multiple=draw(st.sampled_from([1, 8])),
    )


def epoch_of(lengths: Lengths, options: BatchOptions, epoch: int = 0, **place: int) -> list[list[int]]:
    batches = TokenBatches(lengths, options, **place)
    batches.set_epoch(epoch)
    return list(batches)


def counted(batches: list[list[int]]) -> list[int]:
    """Examples that are not to be ignored, sorted."""
    return sorted(example for batch in batches for example in batch if example >= 0)


@given(LENGTHS, all_options())
def test_every_example_once_and_within_the_budget(lengths: Lengths, options: BatchOptions) -> None:
    batches = epoch_of(lengths, options)
    assert counted(batches) == list(range(len(lengths)))
    assert len(batches) == len(TokenBatches(lengths, options))
    multiple = options.pad_to_multiple
    for batch in batches:
        assert len(batch) <= (options.max_rows or np.inf)
        padded = len(batch) * -(lengths[batch].max() // -multiple) * multiple
        assert len(batch) == 1 or padded <= (options.max_tokens or np.inf)


@given(LENGTHS, all_options(), st.integers(0, 5))
def test_the_same_seed_and_epoch_give_the_same_batches(lengths: Lengths, options: BatchOptions, epoch: int) -> None:
    again = TokenBatches(lengths, options)
    epochs = [list(again) for _ in range(epoch + 1)]
    assert epochs[-1] == epoch_of(lengths, options, epoch)
    assert len({len(batches) for batches in epochs}) == 1


@given(LENGTHS, all_options(), st.integers(1, 7))
def test_processes_share_an_epoch(lengths: Lengths, options: BatchOptions, world_size: int) -> None:
    shares = [epoch_of(lengths, options, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert counted(list(chain(*shares))) == list(range(len(lengths)))
    assert len({len(share) for share in shares}) == 1
    assert all(share[step] for share in shares for step in range(len(share)))
    for step, together in enumerate(zip(*shares, strict=True)):
        for batch in together:
            ignored = [example for example in batch if example < 0]
            assert not ignored or (len(batch) == 1 and step == len(shares[0]) - 1)
            assert all(0 <= ~example < len(lengths) for example in ignored)
    alone = epoch_of(lengths, options)
    whole_steps = len(alone) // world_size
    assert [batch for step in zip(*shares, strict=True) for batch in step][: whole_steps * world_size] == (
        alone[: whole_steps * world_size]
    )


def resumed(lengths: Lengths, options: BatchOptions, state: dict[str, int], **place: int) -> Iterator[list[int]]:
    batches = TokenBatches(lengths, options, **place)
    batches.load_state_dict(state)
    batches.set_epoch(state["epoch"])  # as a trainer does at the start of an epoch
    return iter(batches)


@given(LENGTHS, all_options(), st.integers(1, 4), st.data())
def test_resuming_gives_exactly_the_rest(
    lengths: Lengths, options: BatchOptions, world_size: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    uninterrupted = TokenBatches(lengths, options, rank=rank, world_size=world_size)
    two_epochs = [*uninterrupted, *uninterrupted]
    num_used = data.draw(st.integers(0, len(two_epochs) // 2))
    batches = TokenBatches(lengths, options, rank=rank, world_size=world_size)
    taken_ahead = list(islice(batches, data.draw(st.integers(num_used, len(two_epochs) // 2))))
    assert taken_ahead[:num_used] == two_epochs[:num_used]
    state = batches.state_dict(num_used)
    rest = list(resumed(lengths, options, state, rank=rank, world_size=world_size))
    assert rest == two_epochs[num_used:][: len(rest)]
    assert len(rest) == (len(two_epochs) // 2 - num_used or len(two_epochs) // 2)
    if num_used == len(taken_ahead):
        assert batches.state_dict() == state


@given(LENGTHS, all_options(), st.integers(1, 5), st.integers(1, 5), st.data())
def test_another_number_of_processes_goes_on(
    lengths: Lengths, options: BatchOptions, before: int, after: int, data: st.DataObject
) -> None:
    samplers = [TokenBatches(lengths, options, rank=rank, world_size=before) for rank in range(before)]
    num_steps = data.draw(st.integers(0, len(samplers[0]) - 1))
    done = [batch for sampler in samplers for batch in islice(sampler, num_steps)]
    (state,) = {tuple(sampler.state_dict().items()) for sampler in samplers}
    shares = [resumed(lengths, options, dict(state), rank=rank, world_size=after) for rank in range(after)]
    assert counted([*done, *chain(*shares)]) == list(range(len(lengths)))


def test_a_resumed_run_resumes_again() -> None:
    lengths, options = np.full(20, 5), BatchOptions(max_rows=2)
    expected, state, found = epoch_of(lengths, options), None, []
    for num_used in (3, 2, 1, 4):
        batches = TokenBatches(lengths, options)
        if state:
            batches.load_state_dict(state)
        found += list(islice(batches, 5))[:num_used]
        state = batches.state_dict(num_used)
    assert found == expected
    assert state is not None
    assert (state["epoch"], state["position"]) == (1, 0)


def test_nothing_used_is_no_progress() -> None:
    lengths, options = np.full(20, 5), BatchOptions(max_rows=2)
    batches = TokenBatches(lengths, options)
    list(islice(batches, 4))
    state = batches.state_dict()
    resumed = TokenBatches(lengths, options)
    resumed.load_state_dict(state)
    assert resumed.state_dict(0) == state
    for epoch, begin in ((1, lambda: iter(resumed)), (2, lambda: resumed.set_epoch(2))):
        list(resumed)
        begin()
        assert resumed.state_dict(0) == {**state, "epoch": epoch, "position": 0}


def test_order() -> None:
    lengths = np.array([3, 9, 4, 1, 7, 2])
    assert epoch_of(lengths, BatchOptions(max_rows=2, order="given")) == [[0, 1], [2, 3], [4, 5]]
    assert epoch_of(lengths, BatchOptions(max_rows=2, order="sorted")) == [[4, 1], [0, 2], [3, 5]]
    shuffled = [
        epoch_of(np.full(50, 4), BatchOptions(max_rows=5, seed=seed), epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert shuffled[0] != shuffled[1] != shuffled[2] != shuffled[0]
    assert {tuple(sorted(batch)) for batch in shuffled[0]} != {tuple(sorted(batch)) for batch in shuffled[1]}


def test_batches_hold_examples_of_similar_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 5000)
    batches = epoch_of(lengths, BatchOptions(max_tokens=1000))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded < 1.05 * lengths.sum()
    assert len(batches) < 1.1 * lengths.sum() / 1000


def test_the_widest_so_far_counts_where_the_order_is_given() -> None:
    options = BatchOptions(max_tokens=20, order="given")
    assert epoch_of(np.array([5, 10, 1, 1]), options) == [[0, 1], [2, 3]]


def test_lengths_count_as_they_are_padded() -> None:
    rounded = BatchOptions(max_tokens=16, order="given", pad_to_multiple=8)
    assert epoch_of(np.array([1, 2, 3, 4]), rounded) == [[0, 1], [2, 3]]


def test_the_last_step_is_shared_out() -> None:
    def last(num: int, max_rows: int, world_size: int) -> list[list[int]]:
        options = BatchOptions(max_rows=max_rows, order="given")
        return [
            epoch_of(np.ones(num, int), options, rank=rank, world_size=world_size)[-1] for rank in range(world_size)
        ]

    assert last(6, 4, 4) == [[0], [1], [2, 3], [4, 5]]
    assert last(3, 1, 2) == [[2], [~2]]
    assert last(2, 2, 4) == [[0], [1], [~0], [~0]]


def test_examples_that_exceed_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    lengths = np.array([3, 50, 4, 60])
    with caplog.at_level(logging.WARNING):
        alone = TokenBatches(lengths, BatchOptions(max_tokens=20))
        skipped = TokenBatches(lengths, BatchOptions(max_tokens=20, too_long="skip"))
    assert alone.too_long.tolist() == skipped.too_long.tolist() == [1, 3]
    assert sorted(map(sorted, alone)) == [[0, 2], [1], [3]]
    assert list(map(sorted, skipped)) == [[0, 2]]
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 4 examples are longer than max_tokens=20 and get batches of their own, up to 60 tokens",
        "2 of 4 examples are longer than max_tokens=20 and are left out",
    ]


def test_nothing_to_batch() -> None:
    with pytest.raises(DataError, match="there is nothing to batch: every example is longer than max_tokens=2"):
        TokenBatches(np.array([3, 4]), BatchOptions(max_tokens=2, too_long="skip"))
    with pytest.raises(DataError, match="there is nothing to batch: no example is there"):
        TokenBatches(np.empty((0, 2), int), BatchOptions(max_tokens=2))


def test_a_state_of_other_data_or_options_is_refused() -> None:
    state = TokenBatches(np.array([3, 4]), BatchOptions(max_tokens=9)).state_dict()
    for lengths, options in (([3, 5], BatchOptions(max_tokens=9)), ([3, 4], BatchOptions(max_tokens=9, seed=1))):
        with pytest.raises(DataError, match="saved for other data or other batch options; resume with those"):
            TokenBatches(np.array(lengths), options).load_state_dict(state)


def test_options_are_checked_together() -> None:
    with pytest.raises(ConfigError) as caught:
        BatchOptions(order="random", too_long="cut", seed=-1, pad_to_multiple=0)
    names = [problem.option for problem in caught.value.problems]
    assert names == ["max_tokens", "pad_to_multiple", "order", "too_long", "seed"]
