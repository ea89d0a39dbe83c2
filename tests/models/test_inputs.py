"""Batches that a model cannot take end in a sentence that names the argument and the row, never in NaN."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.errors import DepthwiseError, InputError
from depthwise.models.inputs import check_ids, valid_tokens

PADDING = 1
ENCODER_HEADS = ("masked_lm", "sequence_classification", "token_classification", "question_answering")
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


@pytest.fixture(params=["seq2seq", "causal_lm", *ENCODER_HEADS])
def head(request: pytest.FixtureRequest) -> str:
    return request.param


def fed(head: str, **inputs: Any) -> dict[str, Any]:
    """Inputs of a head; a translation model gets a target of its own beside them."""
    return {**({"decoder_input_ids": torch.full((2, 3), 5)} if head == "seq2seq" else {}), **inputs}


def refuses(message: str) -> Any:
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


# Ids


@pytest.mark.parametrize("wrong", [17, 99, -1, -100])
def test_ids_outside_the_vocabulary(build: Model, draw_ids: Ids, head: str, wrong: int) -> None:
    """On every device but the CPU the embedding itself would fail; here the row and the step are named."""
    ids = draw_ids()
    ids[1, 4] = wrong
    with refuses(f"input_ids row 1 step 4 holds id {wrong}, outside the vocabulary of 17 types"):
        build(head)(**fed(head, input_ids=ids))


@pytest.mark.parametrize("wrong", [17, -1])
def test_target_ids_outside_the_vocabulary(build: Model, draw_ids: Ids, wrong: int) -> None:
    target = torch.tensor([[2, 5], [2, wrong]])
    with refuses(f"decoder_input_ids row 1 step 1 holds id {wrong}, outside the vocabulary of 17 types"):
        build("seq2seq")(draw_ids(), decoder_input_ids=target)


def test_each_side_has_its_vocabulary(build: Model) -> None:
    model = build("seq2seq", source_vocab_size=30, tied_embeddings="none")
    model(torch.tensor([[29]]), decoder_input_ids=torch.tensor([[16]]))
    with refuses("input_ids row 0 step 0 holds id 30, outside the vocabulary of 30 types"):
        model(torch.tensor([[30]]), decoder_input_ids=torch.tensor([[16]]))
    with refuses("decoder_input_ids row 0 step 0 holds id 17, outside the vocabulary of 17 types"):
        model(torch.tensor([[29]]), decoder_input_ids=torch.tensor([[17]]))


@pytest.mark.parametrize("wrong", [17, -1])
def test_ids_of_an_adaptive_model(build: Model, wrong: int) -> None:
    """Bands clamp what they look up, so nothing but the check would notice."""
    model = build("causal_lm", adaptive={"cutoffs": [6, 11], "factor": 2})
    with refuses(f"input_ids row 0 step 1 holds id {wrong}, outside the vocabulary of 17 types"):
        model(torch.tensor([[5, wrong]]))


def test_an_empty_batch(build: Model, head: str) -> None:
    with refuses("input_ids is an empty batch; give it at least one row"):
        build(head)(**fed(head, input_ids=torch.zeros(0, 4, dtype=torch.long)))


def test_an_empty_sequence(build: Model, head: str) -> None:
    with refuses("input_ids has no steps; give every row at least one token"):
        build(head)(**fed(head, input_ids=torch.zeros(2, 0, dtype=torch.long)))


def test_an_empty_target(build: Model, draw_ids: Ids) -> None:
    with refuses("decoder_input_ids has no steps; give every row at least one token"):
        build("seq2seq")(draw_ids(), decoder_input_ids=torch.zeros(2, 0, dtype=torch.long))


@pytest.mark.parametrize("shape", [(4,), (2, 3, 1)])
def test_axes(build: Model, head: str, shape: tuple[int, ...]) -> None:
    with refuses(f"input_ids must have two axes (rows, steps), not {len(shape)}"):
        build(head)(**fed(head, input_ids=torch.full(shape, 5)))


@pytest.mark.parametrize("shape", [(4,), (2, 3, 1)])
def test_axes_of_a_target(build: Model, draw_ids: Ids, shape: tuple[int, ...]) -> None:
    with refuses(f"decoder_input_ids must have two axes (rows, steps), not {len(shape)}"):
        build("seq2seq")(draw_ids(), decoder_input_ids=torch.full(shape, 5))


# What is missing or does not go together


def test_missing_ids(build: Model, head: str) -> None:
    with refuses("input_ids is missing; this model cannot run without it"):
        build(head)(**fed(head))


def test_a_missing_target(build: Model, draw_ids: Ids) -> None:
    with refuses("decoder_input_ids is missing; this model cannot run without it"):
        build("seq2seq")(draw_ids())


def test_rows_of_source_and_target(build: Model, draw_ids: Ids) -> None:
    model = build("seq2seq")
    with refuses("decoder_input_ids has 3 rows but the source has 2"):
        model(draw_ids(), decoder_input_ids=draw_ids(3))
    with refuses("decoder_input_ids has 1 rows but the source has 2"):
        model(encoder_outputs=model.model.encoder(draw_ids()), decoder_input_ids=draw_ids(1))


def test_rows_of_a_state(build: Model, draw_ids: Ids, mixer: str) -> None:
    """A single row would otherwise be spread over all rows that the state remembers."""
    model = build("causal_lm", mixer)
    state = model(draw_ids(2), use_cache=True).past_key_values
    for rows in (1, 3):
        with pytest.raises(InputError, match=f"input_ids has {rows} rows but .* 2"):
            model(draw_ids(rows, 1), past_key_values=state)


# Length


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "none"])
def test_sequences_beyond_the_positions(build: Model, draw_ids: Ids, head: str, kind: str) -> None:
    model = build(head, stack={"positions": kind, "max_positions": 6})
    model(**fed(head, input_ids=draw_ids(steps=6)))
    with refuses("input_ids has 7 steps but max_positions is 6; shorten the input"):
        model(**fed(head, input_ids=draw_ids(steps=7)))


def test_targets_beyond_the_positions(build: Model, draw_ids: Ids) -> None:
    model = build("seq2seq", stack={"max_positions": 6})
    with refuses("decoder_input_ids has 7 steps but max_positions is 6; shorten the input"):
        model(draw_ids(), decoder_input_ids=draw_ids(steps=7))


def test_decoding_beyond_the_positions(build: Model, draw_ids: Ids, positions: str) -> None:
    model = build("causal_lm", stack={"positions": positions, "max_positions": 6})
    state = model(draw_ids(steps=5), use_cache=True).past_key_values
    state = model(draw_ids(steps=1), past_key_values=state, use_cache=True).past_key_values
    with refuses("input_ids has 7 steps but max_positions is 6; shorten the input"):
        model(draw_ids(steps=1), past_key_values=state)


@pytest.mark.parametrize("kind", ["sinusoidal", "none"])
def test_no_limit(build: Model, kind: str) -> None:
    model = build("causal_lm", "lightconv", stack={"positions": kind, "max_positions": None})
    assert model(torch.full((1, 1500), 5)).logits.isfinite().all()


# Masks


@pytest.mark.parametrize("shape", [(2, 5), (1, 6), (2, 7), (2, 6, 1), (12,), (6,)])
def test_masks_of_another_shape(build: Model, draw_ids: Ids, head: str, shape: tuple[int, ...]) -> None:
    """A mask of another shape is refused, even one that torch would spread over the rows."""
    name = "the mask of input_ids" if head == "causal_lm" else "attention_mask"
    with refuses(f"{name} has shape {shape} but its ids have shape (2, 6)"):
        build(head)(**fed(head, input_ids=draw_ids(), attention_mask=torch.ones(shape)))


def test_masks_of_a_target(build: Model, draw_ids: Ids) -> None:
    with refuses("the mask of decoder_input_ids has shape (2, 4) but its ids have shape (2, 3)"):
        build("seq2seq")(draw_ids(), decoder_input_ids=draw_ids(steps=3), decoder_attention_mask=torch.ones(2, 4))


def test_masks_beside_the_output_of_an_encoder(build: Model, draw_ids: Ids) -> None:
    model = build("seq2seq")
    with pytest.raises(InputError, match=r"attention_mask has shape \(2, 5\)"):
        model(None, torch.ones(2, 5), draw_ids(), encoder_outputs=model.model.encoder(draw_ids()))


def test_a_source_of_padding_beside_the_output_of_an_encoder(build: Model, draw_ids: Ids) -> None:
    model, mask = build("seq2seq"), torch.tensor([[1] * 6, [0] * 6])
    with pytest.raises(InputError, match="attention_mask row 1 has no real token"):
        model(None, mask, draw_ids(), encoder_outputs=model.model.encoder(draw_ids()))


@pytest.mark.parametrize("given", ["mask", "ids"])
def test_rows_of_padding(build: Model, draw_ids: Ids, head: str, given: str) -> None:
    """A row without a single token has nothing to mix, to pool or to point at."""
    ids = draw_ids(padding=[0, 6]) if given == "ids" else draw_ids()
    mask = torch.tensor([[1] * 6, [0] * 6]) if given == "mask" else None
    if head == "causal_lm" and given == "ids":  # padding may be the first token of a target
        assert build(head)(ids).logits.isfinite().all()
        return
    name = "the mask of input_ids" if head == "causal_lm" else "attention_mask"
    with refuses(f"{name} row 1 has no real token; drop the row or give it one"):
        build(head)(**fed(head, input_ids=ids, attention_mask=mask))


def test_later_steps_may_be_padding(build: Model, draw_ids: Ids, mixer: str) -> None:
    """A row that has ended goes on with padding while others decode; everything stays finite."""
    model, state = build("causal_lm", mixer), None
    for mask in (None, torch.tensor([[1], [0]]), torch.tensor([[0], [0]]), torch.tensor([[1], [1]])):
        output = model(draw_ids(steps=1), mask, past_key_values=state, use_cache=True)
        state = output.past_key_values
        assert output.logits.isfinite().all()
    assert state.num_real.tolist() == [3, 2]


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32])
def test_masks_of_any_kind(build: Model, draw_ids: Ids, head: str, kind: torch.dtype) -> None:
    model, ids = build(head), draw_ids(padding=[0, 2])
    mask = (ids != PADDING).to(kind)
    expected = model(**fed(head, input_ids=ids, attention_mask=ids != PADDING)).logits
    assert torch.equal(model(**fed(head, input_ids=ids, attention_mask=mask)).logits, expected)


def test_nothing_is_ever_nan(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    """Not on padding either, which reads what nobody uses: with gradients, in training, at every length."""
    for steps, padding in ((1, [0, 0]), (2, [1, -1]), (6, [5, -5])):
        model = build("token_classification", mixer, norm).train()
        output = model(draw_ids(steps=steps, padding=padding), output_hidden_states=True)
        assert all(state.isfinite().all() for state in output.hidden_by_depth)
        output.logits.square().sum().backward()
        assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)


# The checks themselves


def test_messages_are_errors_of_ours() -> None:
    assert issubclass(InputError, DepthwiseError)
    assert issubclass(InputError, ValueError)


def test_tensors_on_other_devices_are_not_looked_into() -> None:
    """Looking would wait for the device; shapes are checked all the same."""
    ids = torch.zeros(2, 3, dtype=torch.long, device="meta")
    check_ids(ids, "ids", 5, 8)
    assert valid_tokens(None, ids, "mask", 1).shape == (2, 3)
    with refuses("ids has 9 steps but max_positions is 8; shorten the input"):
        check_ids(ids, "ids", 5, 8, earlier=6)
    with refuses("mask has shape (2, 2) but its ids have shape (2, 3)"):
        valid_tokens(ids[:, :2], ids, "mask")


def test_a_mask_without_padding_is_no_mask() -> None:
    ids = torch.full((2, 3), 5)
    assert valid_tokens(torch.ones(2, 3), ids, "mask") is None
    assert valid_tokens(None, ids, "mask", 1) is None
    assert valid_tokens(None, ids, "mask") is None


# Types of tokens


@pytest.fixture(params=ENCODER_HEADS)
def encoder_head(request: pytest.FixtureRequest) -> str:
    return request.param


def test_types_change_the_scores(build: Model, draw_ids: Ids, encoder_head: str) -> None:
    model, ids = build(encoder_head, token_types=2), draw_ids()
    none = model(ids).logits
    assert torch.equal(model(ids, token_type_ids=torch.zeros_like(ids)).logits, none)
    assert not torch.allclose(model(ids, token_type_ids=torch.ones_like(ids)).logits, none)


def test_types_that_the_model_does_not_have(build: Model, draw_ids: Ids, encoder_head: str) -> None:
    ids = draw_ids()
    with refuses("token_type_ids were given, but this model has no token types; leave them out"):
        build(encoder_head)(ids, token_type_ids=torch.zeros_like(ids))


@pytest.mark.parametrize("wrong", [2, -1])
def test_types_outside(build: Model, draw_ids: Ids, encoder_head: str, wrong: int) -> None:
    ids = draw_ids()
    kinds = torch.zeros_like(ids)
    kinds[1, 3] = wrong
    with refuses(f"token_type_ids row 1 step 3 holds {wrong}, but token_types is 2"):
        build(encoder_head, token_types=2)(ids, token_type_ids=kinds)


def test_types_of_another_shape(build: Model, draw_ids: Ids, encoder_head: str) -> None:
    with refuses("token_type_ids has shape (2, 5) but its ids have shape (2, 6)"):
        build(encoder_head, token_types=2)(draw_ids(), token_type_ids=torch.zeros(2, 5, dtype=torch.long))


def test_types_that_are_no_whole_numbers(build: Model, draw_ids: Ids, encoder_head: str) -> None:
    with refuses("token_type_ids must be a tensor of whole numbers, not torch.float32"):
        build(encoder_head, token_types=2)(draw_ids(), token_type_ids=torch.zeros(2, 6))


@pytest.mark.parametrize("side", ["seq2seq", "causal_lm"])
def test_types_beside_a_decoder(build: Model, draw_ids: Ids, side: str) -> None:
    ids = draw_ids()
    with refuses("token_type_ids serve an encoder without a decoder; leave them out"):
        build(side).model(ids, token_type_ids=torch.zeros_like(ids))
