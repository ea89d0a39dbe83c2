"""The state of decoding is one value: it moves on, is reordered and taken back as a whole."""

import pytest
import torch
from torch import Tensor

from depthwise.memory import AverageMemory, DecodeState, InputMemory, KeyValueMemory, LayerMemory

X = torch.arange(3 * 4 * 6, dtype=torch.float32).view(3, 4, 6)
VALID = torch.tensor([[True, True, True, False], [False, True, True, True], [True, True, True, True]])
NUM_REAL = torch.tensor([3, 3, 4])
ROWS = torch.tensor([2, 0, 2, 1])


def keys_values() -> KeyValueMemory:
    keys = torch.randn(3, 2, 5, 3)
    return KeyValueMemory(keys, keys + 1, torch.rand(3, 5) < 0.5)


def state_of(*memories: LayerMemory, remembers_all: bool = False) -> DecodeState:
    """After two calls, of three steps and of one."""
    depths = (torch.tensor([[2, 2, 1], [0, 2, 2], [1, 2, 1]]), torch.tensor([[1], [2], [2]]))
    return DecodeState(memories, 4, NUM_REAL, depths, remembers_all)


def inputs_of(layer: LayerMemory) -> Tensor:
    assert isinstance(layer.past, InputMemory | AverageMemory)
    return layer.past.inputs


def test_a_layer_keeps_rows_of_past_and_source() -> None:
    past, source = InputMemory(X, VALID), keys_values()
    kept = LayerMemory(past, source).keep(ROWS)
    assert isinstance(kept.past, InputMemory)
    assert kept.source is not None
    assert torch.equal(kept.past.inputs, X[ROWS])
    assert torch.equal(kept.past.valid, VALID[ROWS])
    assert torch.equal(kept.source.keys, source.keys[ROWS])
    assert torch.equal(kept.source.values, source.values[ROWS])
    assert torch.equal(kept.source.valid, source.valid[ROWS])


def test_a_layer_without_source() -> None:
    assert LayerMemory(InputMemory(X)).keep(ROWS).source is None


def test_a_layer_takes_back_its_past_but_not_its_source() -> None:
    source = keys_values()
    shorter = LayerMemory(InputMemory(X, VALID), source).without_last(3)
    assert torch.equal(inputs_of(shorter), X[:, :1])
    assert shorter.source is source


def test_a_state_keeps_rows_of_all_layers() -> None:
    """Layers may hold different memories; the number of steps is the same for all rows."""
    attention = keys_values()
    state = state_of(
        LayerMemory(InputMemory(X)), LayerMemory(AverageMemory(X, VALID).recent(1)), LayerMemory(attention)
    )
    kept = state.keep(ROWS)
    assert kept.length == kept.get_seq_length() == 4
    assert kept.num_real.tolist() == [4, 3, 4, 3]
    first, second, third = kept.memories
    assert torch.equal(inputs_of(first), X[ROWS])
    assert torch.equal(inputs_of(second), X[ROWS, -1:])
    assert isinstance(second.past, AverageMemory)
    assert second.past.before is not None
    assert second.past.before[1].flatten().tolist() == [3.0, 3.0, 3.0, 2.0]
    assert isinstance(third.past, KeyValueMemory)
    assert torch.equal(third.past.keys, attention.keys[ROWS])
    assert state.num_real is NUM_REAL
    assert torch.equal(inputs_of(state.memories[0]), X)


@pytest.mark.parametrize("remembers_all", [False, True])
def test_keeping_rows_keeps_the_record(remembers_all: bool) -> None:
    state = state_of(LayerMemory(InputMemory(X)), remembers_all=remembers_all)
    kept = state.keep(ROWS)
    assert kept.remembers_all == remembers_all
    assert kept.depths == state.depths


def test_the_state_before_the_first_step() -> None:
    kept = DecodeState().keep(ROWS)
    assert (kept.memories, kept.length, kept.num_real, kept.depths) == ((), 0, None, ())


def test_moving_on() -> None:
    state = DecodeState()
    first = state.advanced([LayerMemory(InputMemory(X))], 4, NUM_REAL, torch.ones(3, 4, dtype=torch.long))
    second = first.advanced([LayerMemory(InputMemory(X))], 1, torch.tensor([1, 1, 0]), torch.tensor([[2], [1], [0]]))
    assert (state.length, first.length, second.length) == (0, 4, 5)
    assert first.num_real.tolist() == [3, 3, 4]
    assert second.num_real.tolist() == [4, 4, 4]
    assert [depths.shape for depths in second.depths] == [(3, 4), (3, 1)]


def test_reordering_in_place() -> None:
    """As beam search asks for it: the same as ``keep``."""
    for reorder in (DecodeState.reorder_cache, DecodeState.batch_select_indices):
        state = state_of(LayerMemory(InputMemory(X, VALID), keys_values()))
        kept = state.keep(ROWS)
        reorder(state, ROWS)
        assert torch.equal(inputs_of(state.memories[0]), inputs_of(kept.memories[0]))
        assert torch.equal(state.memories[0].source.keys, kept.memories[0].source.keys)
        assert state.num_real.tolist() == kept.num_real.tolist()


def test_repeating_rows_in_place() -> None:
    state = state_of(LayerMemory(InputMemory(X)))
    state.batch_repeat_interleave(2)
    assert torch.equal(inputs_of(state.memories[0]), X[[0, 0, 1, 1, 2, 2]])
    assert state.num_real.tolist() == [3, 3, 3, 3, 4, 4]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_taking_steps_back(count: int) -> None:
    state = state_of(LayerMemory(InputMemory(X, VALID)))
    state.activate_past_recording()
    state.crop(-count)
    assert state.length == 4 - count
    assert state.num_real.tolist() == [3 - count, 3 - count, 4 - count]
    assert torch.equal(inputs_of(state.memories[0]), X[:, : 4 - count])
    per_step = torch.tensor([[2, 2, 1, 1], [0, 2, 2, 2], [1, 2, 1, 2]])
    assert torch.equal(torch.cat(state.depths, dim=1), per_step[:, : 4 - count])


def test_steps_that_cannot_be_taken_back() -> None:
    state = state_of(LayerMemory(InputMemory(X)))
    with pytest.raises(AssertionError, match="activate_past_recording must come before"):
        state.crop(-1)
    state.activate_past_recording()
    for count in (-5, 1):
        with pytest.raises(AssertionError, match="cannot be cropped by more steps than it has"):
            state.crop(count)
