"""Decoding through a state equals one forward over everything: step by step, in chunks, padded, after reordering."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.memory import DecodeState

PADDING = 1
STEPS = 6
RIGHT = [0, 4, 1]  # steps of padding in each row
LEFT = [0, -4, -1]
BOTH = [-2, 3, 0]
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def decode(model: Any, ids: Tensor, sizes: list[int], mask: Tensor | None = None, **inputs: Any) -> Tensor:
    """Logits of all steps, computed a chunk at a time; the mask covers each chunk alone."""
    name, mask_name = ("decoder_input_ids", "decoder_attention_mask") if inputs else ("input_ids", "attention_mask")
    masks = [None] * len(sizes) if mask is None else mask.split(sizes, dim=1)
    logits, state = [], None
    for chunk, chunk_mask in zip(ids.split(sizes, dim=1), masks, strict=True):
        fed = {name: chunk, mask_name: chunk_mask}
        output = model(**inputs, **fed, past_key_values=state, use_cache=True)
        state = output.past_key_values
        logits.append(output.logits)
    assert state.length == ids.shape[1]
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("sizes", [[1] * 6, [3, 1, 2]], ids=["steps", "chunks"])
def test_language_model(build: Model, draw_ids: Ids, mixer: str, norm: str, sizes: list[int]) -> None:
    model, ids = build("causal_lm", mixer, norm), draw_ids(steps=STEPS)
    assert_same(decode(model, ids, sizes), model(ids).logits)


def test_translation(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model = build("seq2seq", mixer, norm)
    source, target = draw_ids(steps=5, padding=[0, 2]), draw_ids(steps=4)
    expected = model(source, decoder_input_ids=target).logits
    assert_same(decode(model, target, [1, 2, 1], input_ids=source), expected)


def test_the_source_is_read_from_the_state(build: Model, draw_ids: Ids) -> None:
    """Once a state exists, what the encoder says is not used again."""
    model, source, target = build("seq2seq", "lightconv"), draw_ids(steps=5), draw_ids(steps=2)
    state = model(source, decoder_input_ids=target[:, :1], use_cache=True).past_key_values
    logits = model(draw_ids(steps=3), decoder_input_ids=target[:, 1:], past_key_values=state).logits
    assert_same(logits[:, -1], model(source, decoder_input_ids=target).logits[:, -1])


@pytest.mark.parametrize(
    ("padding", "sizes"),
    [(RIGHT, [1] * 6), (RIGHT, [1, 3, 2]), (LEFT, [5, 1]), (BOTH, [3, 1, 1, 1])],
    ids=["right, steps", "right, chunks", "left", "both"],
)
def test_padded_language_model(build: Model, draw_ids: Ids, mixer: str, padding: list[int], sizes: list[int]) -> None:
    """Chunks give what the whole gives, and the whole gives each row what it gets alone."""
    model, ids = build("causal_lm", mixer), draw_ids(steps=STEPS, padding=padding)
    mask = ids != PADDING
    whole = model(ids, mask).logits
    assert_same(decode(model, ids, sizes, mask)[mask], whole[mask])
    for row, real in enumerate(mask):
        assert_same(whole[row, real], model(ids[row, real].unsqueeze(0)).logits[0])


def test_padded_translation(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model = build("seq2seq", mixer, norm)
    source, target = draw_ids(padding=[1, 0, -4]), draw_ids(steps=STEPS, padding=BOTH)
    mask = target != PADDING
    whole = model(source, decoder_input_ids=target, decoder_attention_mask=mask).logits
    assert_same(decode(model, target, [3, 1, 2], mask, input_ids=source)[mask], whole[mask])
    for row, real in enumerate(mask):
        words = source[row][source[row] != PADDING].unsqueeze(0)
        assert_same(whole[row, real], model(words, decoder_input_ids=target[row, real].unsqueeze(0)).logits[0])


@pytest.mark.parametrize(("padding", "sizes"), [(LEFT, [5, 1]), (RIGHT, [2] * 3)], ids=["left", "right"])
@pytest.mark.parametrize("offset", [0, 2])
def test_positions_count_real_tokens(
    build: Model, draw_ids: Ids, positions: str, padding: list[int], sizes: list[int], offset: int
) -> None:
    model = build("causal_lm", position_offset=offset, stack={"positions": positions, "max_positions": STEPS})
    ids = draw_ids(steps=STEPS, padding=padding)
    mask = ids != PADDING
    stepwise = decode(model, ids, sizes, mask)
    for row, real in enumerate(mask):
        assert_same(stepwise[row, real], model(ids[row, real].unsqueeze(0)).logits[0])


def test_without_positions_attention_knows_no_order(build: Model, draw_ids: Ids, positions: str) -> None:
    model, ids = build("token_classification", stack={"positions": positions}), draw_ids(1, 4)
    moved = (model(ids).logits - model(ids.flip(1)).logits.flip(1)).abs().amax()
    assert moved < 1e-12 if positions == "none" else moved > 1e-6


def test_a_mask_may_cover_everything_since_the_first_step(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("causal_lm", mixer), draw_ids(steps=5, padding=[0, -2])
    mask = ids != PADDING
    state = model(ids[:, :3], mask[:, :3], use_cache=True).past_key_values
    for step in (3, 4):
        chunk = ids[:, step : step + 1]
        long = model(chunk, mask[:, : step + 1], past_key_values=state)
        short = model(chunk, mask[:, step : step + 1], past_key_values=state)
        assert torch.equal(long.logits, short.logits)
        state = long.past_key_values


def test_a_state_is_made_only_on_request(build: Model, draw_ids: Ids) -> None:
    model, ids = build("causal_lm"), draw_ids()
    assert model(ids).past_key_values is None
    assert model(ids, use_cache=False).past_key_values is None
    assert isinstance(model(ids, use_cache=True).past_key_values, DecodeState)


def test_a_state_is_never_changed(build: Model, draw_ids: Ids, mixer: str) -> None:
    """Two continuations of one state do not disturb each other."""
    model, ids = build("causal_lm", mixer), draw_ids(steps=6)
    state = model(ids[:, :4], use_cache=True).past_key_values
    first = model(ids[:, 4:], past_key_values=state).logits
    model(draw_ids(steps=3), past_key_values=state)
    assert torch.equal(model(ids[:, 4:], past_key_values=state).logits, first)
    assert state.length == 4


@pytest.mark.parametrize("rows", [[1, 2, 0, 1], [2]], ids=str)
@pytest.mark.parametrize("padding", [[0, 0, 0], [0, -3, -1]], ids=["full", "padded"])
def test_kept_rows_of_a_language_model(
    build: Model, draw_ids: Ids, mixer: str, rows: list[int], padding: list[int]
) -> None:
    """Reordering, repeating and dropping rows of a state, then going on, equals computing those rows afresh."""
    model = build("causal_lm", mixer)
    prompt, later = draw_ids(steps=4, padding=padding), draw_ids(len(rows), 2)
    state = model(prompt, prompt != PADDING, use_cache=True).past_key_values.keep(torch.tensor(rows))
    continued = torch.cat([prompt[rows], later], dim=1)
    whole = model(continued, continued != PADDING).logits
    for step in range(2):
        output = model(later[:, step : step + 1], past_key_values=state, use_cache=True)
        state = output.past_key_values
        assert_same(output.logits[:, 0], whole[:, 4 + step])


def test_kept_rows_of_a_translation(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    """The memories of the source go with the rows; the encoder's input is reordered likewise."""
    model, rows = build("seq2seq", mixer, norm), [1, 1, 0, 2, 1]
    source, target, later = draw_ids(steps=4, padding=[0, 2, -1]), draw_ids(3, 3), draw_ids(len(rows), 2)
    state = model(source, decoder_input_ids=target, use_cache=True).past_key_values.keep(torch.tensor(rows))
    continued = torch.cat([target[rows], later], dim=1)
    whole = model(source[rows], decoder_input_ids=continued).logits
    logits = model(source[rows], decoder_input_ids=later, past_key_values=state).logits
    assert_same(logits, whole[:, 3:])


def test_the_future_never_leaks(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model, ids = build("causal_lm", mixer, norm), draw_ids(1, STEPS)
    others = (ids + 5) % 17  # no token is the same
    futures = torch.cat([torch.cat([ids[:, :seen], others[:, seen:]], dim=1) for seen in range(1, STEPS)])
    expected = model(ids).logits[0]
    for seen, logits in enumerate(model(futures).logits, start=1):
        assert_same(logits[:seen], expected[:seen])
        assert not torch.allclose(logits[seen:], expected[seen:])


def test_the_future_of_a_target_never_leaks(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, source, first, second = build("seq2seq", mixer), draw_ids(), draw_ids(), draw_ids()
    second[:, :2] = first[:, :2]
    here, there = (model(source, decoder_input_ids=ids).logits for ids in (first, second))
    assert torch.equal(here[:, :2], there[:, :2])
    assert not torch.allclose(here[:, 2:], there[:, 2:])


def test_the_past_is_seen(build: Model, draw_ids: Ids, mixer: str) -> None:
    """The other side of not leaking: the step before the last reaches it, with every mixer."""
    model, ids = build("causal_lm", mixer), draw_ids(steps=4)
    changed = ids.clone()
    changed[:, 2] = torch.where(ids[:, 2] == 5, 6, 5)
    assert (model(ids).logits[:, 3] - model(changed).logits[:, 3]).abs().amax() > 1e-6


def test_encoders_look_both_ways(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("token_classification", mixer), draw_ids(1, 5)
    changed = ids.clone()
    changed[:, 2] = torch.where(ids[:, 2] == 5, 6, 5)
    moved = (model(ids).logits - model(changed).logits).abs().amax((0, 2))
    assert (moved[[1, 3]] > 1e-6).all()


def test_padding_is_invisible_to_encoders(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    """A padded row gets what it gets alone, whatever ids stand on the padding."""
    model, ids = build("token_classification", mixer, norm), draw_ids(padding=[0, 3, -5, 5, -1])
    mask = ids != PADDING
    whole = model(ids).logits
    assert torch.equal(model(ids, mask).logits, whole)
    assert_same(model(ids.masked_fill(~mask, 9), mask).logits[mask], whole[mask])
    for row, real in enumerate(mask):
        assert_same(whole[row, real], model(ids[row, real].unsqueeze(0)).logits[0])


def test_padding_of_the_source_is_invisible(build: Model, draw_ids: Ids, mixer: str) -> None:
    """Padding found from the ids, and padding told by a mask beside the output of the encoder, come to the same."""
    model = build("seq2seq", mixer)
    source, target = draw_ids(padding=[0, 4, -1]), draw_ids(3, 4)
    mask = source != PADDING
    whole = model(source, decoder_input_ids=target).logits
    encoded = model.model.encoder(source.masked_fill(~mask, 9), mask)
    assert_same(model(None, mask, target, encoder_outputs=encoded).logits, whole)


def test_padding_ids_of_a_target_are_ordinary_without_a_mask(build: Model, draw_ids: Ids) -> None:
    """The padding id may be the first token of a target, so a decoder takes no id for padding by itself."""
    model, ids = build("causal_lm"), draw_ids(1, 4)
    ids[0, 0] = PADDING
    mask = torch.tensor([[False, True, True, True]])
    assert not torch.allclose(model(ids).logits[:, 1:], model(ids, mask).logits[:, 1:])
    assert torch.equal(model(ids).depths, torch.full((1, 4), 2))
    assert torch.equal(model(ids, mask).depths, torch.tensor([[0, 2, 2, 2]]))
