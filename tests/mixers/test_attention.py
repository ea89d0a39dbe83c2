"""Attention as a module: within a sequence, within a window, over a source."""

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from depthwise.memory import KeyValueMemory, Places, Sequences
from depthwise.mixers import CrossAttention, SelfAttention

Randomized = Callable[[Any], Any]


def torch_attention(mixer: SelfAttention | CrossAttention, width: int) -> nn.MultiheadAttention:
    """Torch's own module with the same parameters."""
    parts = mixer.projections
    attention = nn.MultiheadAttention(width, parts.num_heads, batch_first=True, dtype=torch.float64)
    maps = (parts.query, parts.key, parts.value)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([each.weight for each in maps]))
        attention.in_proj_bias.copy_(torch.cat([each.bias for each in maps]))
        attention.out_proj.weight.copy_(parts.out.weight)
        attention.out_proj.bias.copy_(parts.out.bias)
    return attention


@given(
    length=st.integers(1, 7),
    heads=st.sampled_from([1, 2, 3, 6]),
    causal=st.booleans(),
    window=st.sampled_from([None, 1, 3, 5]),
    padded=st.booleans(),
)
def test_against_torch(
    length: int,
    heads: int,
    causal: bool,
    window: int | None,
    padded: bool,
    randomized: Randomized,
    assert_same: Callable[..., None],
) -> None:
    mixer = randomized(SelfAttention(6, heads, causal=causal, window=window))
    x = torch.randn(2, length, 6, dtype=torch.float64)
    valid = torch.rand(2, length) < 0.7 if padded else torch.ones(2, length, dtype=torch.bool)
    distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
    hidden = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window is not None:
        hidden = hidden | (distance >= window if causal else 2 * distance.abs() > window - 1)
    hidden = (hidden | ~valid.unsqueeze(1)) & (distance != 0)
    expected, _ = torch_attention(mixer, 6)(x, x, x, attn_mask=hidden.repeat_interleave(heads, dim=0))
    assert_same(mixer(x, valid if padded else None), expected)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("extra", [0, 2, 100])
@pytest.mark.parametrize("padded", [False, True])
def test_a_window_that_reaches_everything_is_full_attention(
    length: int, extra: int, padded: bool, randomized: Randomized, assert_same: Callable[..., None]
) -> None:
    x = torch.randn(2, length, 6, dtype=torch.float64)
    valid = torch.arange(length) < torch.tensor([[length], [1]]) if padded else None
    for causal, window in ((True, length + extra), (False, 2 * length - 1 + extra)):
        full = randomized(SelfAttention(6, 2, causal=causal))
        windowed = randomized(SelfAttention(6, 2, causal=causal, window=window))
        windowed.load_state_dict(full.state_dict())
        assert_same(windowed(x, valid), full(x, valid))


@pytest.mark.parametrize(("causal", "window"), [(True, 4), (False, 7)])
def test_a_window_one_smaller_is_not(causal: bool, window: int, randomized: Randomized) -> None:
    x = torch.randn(1, 5, 6, dtype=torch.float64)
    full, windowed = (randomized(SelfAttention(6, 2, causal=causal, window=size)) for size in (None, window))
    windowed.load_state_dict(full.state_dict())
    assert not torch.allclose(windowed(x), full(x))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_a_window_of_one_only_projects(
    causal: bool, padded: bool, randomized: Randomized, assert_same: Callable[..., None]
) -> None:
    mixer = randomized(SelfAttention(6, 3, causal=causal, window=1))
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    valid = torch.rand(2, 5) < 0.5 if padded else None
    assert_same(mixer(x, valid), mixer.projections.out(mixer.projections.value(x)))


def test_what_is_written_can_be_read_by_other_states(randomized: Randomized, assert_same: Callable[..., None]) -> None:
    """Queries come from those who read; keys and values from the memory."""
    mixer = randomized(SelfAttention(6, 2, causal=False))
    x, other = torch.randn(2, 2, 4, 6, dtype=torch.float64)
    expected, _ = torch_attention(mixer, 6)(other, x, x)
    assert_same(mixer.read(other, mixer.write(x)), expected)


@pytest.mark.parametrize("options", [{}, {"window": 3}], ids=["full", "window"])
@pytest.mark.parametrize("causal", [True, False])
def test_dropout_acts_in_training_only(
    causal: bool, options: dict[str, Any], randomized: Randomized, training: Callable[[nn.Module], Any]
) -> None:
    mixer = randomized(SelfAttention(6, 2, causal=causal, dropout=0.5, **options))
    plain = randomized(SelfAttention(6, 2, causal=causal, **options))
    plain.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 8, 6, dtype=torch.float64)
    undropped = plain(x)
    assert torch.equal(mixer(x), undropped)
    with training(mixer), training(plain):
        assert torch.equal(plain(x), undropped)
        first, second = mixer(x), mixer(x)
    assert not torch.allclose(first, undropped)
    assert not torch.allclose(first, second)


# Over a source


@given(
    length=st.integers(1, 4),
    source=st.integers(1, 6),
    heads=st.sampled_from([1, 2, 6]),
    padded=st.booleans(),
)
def test_source_against_torch(
    length: int, source: int, heads: int, padded: bool, randomized: Randomized, assert_same: Callable[..., None]
) -> None:
    cross = randomized(CrossAttention(6, heads))
    x, states = torch.randn(2, length, 6, dtype=torch.float64), torch.randn(2, source, 6, dtype=torch.float64)
    valid = torch.rand(2, source) < 0.6
    valid[:, 0] = True
    valid = valid if padded else None
    expected, _ = torch_attention(cross, 6)(x, states, states, key_padding_mask=None if valid is None else ~valid)
    memory = cross.write(states, valid)
    assert isinstance(memory, KeyValueMemory)
    assert memory.length == source
    assert_same(cross.read(x, memory), expected)
    for step in range(length):  # what one position reads does not depend on the others
        assert_same(cross.read(x[:, step : step + 1], memory), expected[:, step : step + 1])


def test_padding_of_the_source_changes_nothing(randomized: Randomized, assert_same: Callable[..., None]) -> None:
    cross = randomized(CrossAttention(6, 2))
    x, states = torch.randn(1, 3, 6, dtype=torch.float64), torch.randn(1, 4, 6, dtype=torch.float64)
    alone = cross.read(x, cross.write(states))
    noise = 10 * torch.randn(1, 3, 6, dtype=torch.float64)
    real, padding = torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.bool)
    for parts, masks in (((states, noise), (real, padding)), ((noise, states), (padding, real))):
        assert_same(cross.read(x, cross.write(torch.cat(parts, dim=1), torch.cat(masks, dim=1))), alone)


def test_rows_of_a_source_can_be_kept(randomized: Randomized, assert_same: Callable[..., None]) -> None:
    cross = randomized(CrossAttention(6, 2))
    x, states = torch.randn(3, 2, 6, dtype=torch.float64), torch.randn(3, 4, 6, dtype=torch.float64)
    rows = torch.tensor([2, 2, 0])
    whole: Tensor = cross.read(x, cross.write(states))
    assert_same(cross.read(x[rows], cross.write(states).keep(rows)), whole[rows])


def test_dropout_over_a_source_acts_in_training_only(
    randomized: Randomized, training: Callable[[nn.Module], Any]
) -> None:
    cross, plain = randomized(CrossAttention(6, 2, dropout=0.5)), randomized(CrossAttention(6, 2))
    plain.load_state_dict(cross.state_dict())
    x, states = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64)
    undropped = plain.read(x, plain.write(states))
    assert torch.equal(cross.read(x, cross.write(states)), undropped)
    with training(cross):
        first, second = (cross.read(x, cross.write(states)) for _ in range(2))
    assert not torch.allclose(first, undropped)
    assert not torch.allclose(first, second)


def folded_and_plain(mixer: SelfAttention, monkeypatch: pytest.MonkeyPatch, readers: list[int] | None) -> list[Tensor]:
    """What readers take of three sequences, with keys and values that nobody computes and with all of them."""
    torch.manual_seed(0)
    x = torch.randn(1, 23, 8, dtype=torch.float64)
    sequences = Sequences(np.repeat([0, 1, 2], [9, 4, 10]), x.device)
    found = []
    for worth in (0, inf):
        monkeypatch.setattr("depthwise.mixers.attention.WORTH_FOLDING", worth)
        found.append(mixer.mix_packed(x, Places(sequences, None if readers is None else np.array(readers))))
    return found


@pytest.mark.parametrize("readers", [[0], [3, 10, 11, 22], None])
def test_few_readers_need_no_keys_and_values(monkeypatch: pytest.MonkeyPatch, readers: list[int] | None) -> None:
    mixer = SelfAttention(8, 2, causal=False).double().eval()
    nn.init.normal_(mixer.projections.value.bias)
    nn.init.normal_(mixer.projections.key.bias)
    heard = []
    with mixer.projections.key.register_forward_hook(lambda *_: heard.append(1)):
        folded_and_plain(mixer, monkeypatch, readers)
    assert len(heard) == 2, "a map that somebody listens to is not folded"
    folded, plain = folded_and_plain(mixer, monkeypatch, readers)
    torch.testing.assert_close(folded, plain, rtol=1e-12, atol=1e-12)


def test_folding_is_chosen_where_it_takes_fewer_operations() -> None:
    mixer = SelfAttention(8, 2, causal=False).double().eval()
    x, sequences = (
        torch.randn(1, 40, 8, dtype=torch.float64),
        Sequences(np.zeros(40, dtype=np.int64), torch.device("cpu")),
    )
    for readers, is_folded in ((np.array([7]), True), (np.arange(39), False)):
        places = Places(sequences, readers)
        queries = mixer.projections.split(places.reader_grid(mixer.projections.query(places.taken(x))))
        assert (mixer.projections.folded(queries, x, places) is not None) is is_folded


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nothing_is_folded_in_16_bits(dtype: torch.dtype) -> None:
    mixer = SelfAttention(8, 2, causal=False).to(dtype).eval()
    x, row = torch.randn(1, 40, 8, dtype=dtype), Sequences(np.zeros(40, dtype=np.int64), torch.device("cpu"))
    places = Places(row, np.array([7]))
    queries = mixer.projections.split(places.reader_grid(mixer.projections.query(places.taken(x))))
    assert mixer.projections.folded(queries, x, places) is None
    assert mixer.projections.folded(queries.float(), x, places) is None
