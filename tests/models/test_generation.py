"""Transformers' generate: with and without a cache, in a batch and alone, for every mixer and search."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.memory import DecodeState
from depthwise.models.generation import generated_depths, left_padded

PADDING = 1
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 8, "temperature": 1.3},
    "beam": {"num_beams": 3},
    "long beam": {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
    "blocked beam": {"num_beams": 2, "no_repeat_ngram_size": 2, "num_return_sequences": 2},
    "beam sampling": {"num_beams": 2, "do_sample": True},
}
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


@pytest.fixture(params=SEARCHES)
def search(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SEARCHES[request.param]


def generate(model: Any, ids: Tensor, *, new: int = 8, **options: Any) -> Tensor:
    """Tokens after a fixed seed. Padding is suppressed, since an untrained model would make it like any other token."""
    torch.manual_seed(5)
    limits = {"max_new_tokens": new, "min_new_tokens": 2, "suppress_tokens": [PADDING]}
    return model.generate(ids, **{"attention_mask": ids != PADDING, **limits, **options})


def ended(tokens: Tensor) -> list[int]:
    """One row without the padding that follows its end."""
    return [token for token in tokens.tolist() if token != PADDING]


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_cached_is_uncached(build: Model, draw_ids: Ids, mixer: str, head: str, search: dict[str, Any]) -> None:
    model, ids = build(head, mixer), draw_ids(padding=[0, 2, -3])
    assert torch.equal(generate(model, ids, **search), generate(model, ids, **search, use_cache=False))


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_without_a_mask_padding_is_told_by_its_id(build: Model, draw_ids: Ids, head: str, num_beams: int) -> None:
    model, ids = build(head), draw_ids(padding=[0, 2, -3])
    options = {"num_beams": num_beams, "output_scores": True, "return_dict_in_generate": True}
    told, given = (generate(model, ids, **options, **mask) for mask in ({"attention_mask": None}, {}))
    assert torch.equal(told.sequences, given.sequences)
    for ours, theirs in zip(told.scores, given.scores, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", [name for name in SEARCHES if "sampling" not in name])
def test_a_batch_translates_as_its_rows_alone(build: Model, draw_ids: Ids, mixer: str, name: str) -> None:
    model, ids = build("seq2seq", mixer, "post"), draw_ids(padding=[0, 2, -3])
    together = generate(model, ids, **SEARCHES[name])
    per_row = len(together) // len(ids)
    for row in range(len(ids)):
        alone = generate(model, ids[row][ids[row] != PADDING].unsqueeze(0), **SEARCHES[name])
        batch = together[row * per_row : (row + 1) * per_row]
        assert [ended(tokens) for tokens in batch] == [ended(tokens) for tokens in alone]


@pytest.mark.parametrize("padding", [[0, 3, 1], [0, -3, -1], [2, -1, 0]], ids=["right", "left", "both"])
@pytest.mark.parametrize("name", ["greedy", "beam", "blocked beam"])
def test_a_batch_continues_as_its_rows_alone(
    build: Model, draw_ids: Ids, mixer: str, padding: list[int], name: str
) -> None:
    model, ids = build("causal_lm", mixer), draw_ids(padding=padding)
    together = generate(model, ids, **SEARCHES[name])[:, ids.shape[1] :]
    per_row = len(together) // len(ids)
    for row in range(len(ids)):
        prompt = ids[row][ids[row] != PADDING].unsqueeze(0)
        alone = generate(model, prompt, **SEARCHES[name])[:, prompt.shape[1] :]
        batch = together[row * per_row : (row + 1) * per_row]
        assert [ended(tokens) for tokens in batch] == [ended(tokens) for tokens in alone]


def test_padding_is_found_without_a_mask(build: Model, draw_ids: Ids) -> None:
    model, ids = build("causal_lm"), draw_ids(padding=[0, 3])
    assert torch.equal(generate(model, ids, attention_mask=None), generate(model, ids))


def test_a_mask_of_another_shape(build: Model, draw_ids: Ids) -> None:
    with pytest.raises(InputError, match=r"^attention_mask has shape \(2, 5\) but its ids have shape \(2, 6\)$"):
        generate(build("causal_lm"), draw_ids(), attention_mask=torch.ones(2, 5))


def test_float32_differs_only_where_two_tokens_are_as_good_as_equal(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("seq2seq", mixer).float(), draw_ids(padding=[0, 2, -3, 1])
    cached, plain = generate(model, ids, new=20), generate(model, ids, new=20, use_cache=False)
    for row, (one, other) in enumerate(zip(cached, plain, strict=True)):
        if not torch.equal(one, other):
            step = int((one != other).nonzero()[0])
            logits = model(ids[row : row + 1], decoder_input_ids=plain[row : row + 1, :step]).logits[0, -1]
            best = logits.topk(2).values
            assert best[0] - best[1] < 1e-4


def test_no_trigram_repeats_when_blocked(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("seq2seq", mixer), draw_ids(rows=4)
    tokens = generate(model, ids, new=30, num_beams=3, num_return_sequences=3, no_repeat_ngram_size=3)
    free = generate(model, ids, new=30, num_beams=3, num_return_sequences=3)

    def repeats(rows: Tensor) -> bool:
        return any(
            len(trigrams := list(zip(row, row[1:], row[2:], strict=False))) != len(set(trigrams))
            for row in map(ended, rows)
        )

    assert repeats(free)
    assert not repeats(tokens)


def test_length_limits(build: Model, draw_ids: Ids) -> None:
    model = build("seq2seq")
    assert model.generate(draw_ids(), max_length=4, min_length=4).shape[1] == 4


@pytest.mark.parametrize("draft_layers", [1, 2])
def test_drafting_with_the_first_layers_changes_nothing(
    build: Model, draw_ids: Ids, mixer: str, draft_layers: int
) -> None:
    model, prompt = build("causal_lm", mixer, stack={"num_layers": 3}), draw_ids(rows=1)
    plain = model.generate(prompt, max_new_tokens=15, min_new_tokens=15)
    options = GenerationConfig(max_new_tokens=15, min_new_tokens=15, assistant_early_exit=draft_layers)
    assert torch.equal(model.generate(prompt, generation_config=options), plain)
    assert model.config.num_hidden_layers == 3
    assert "_num_layers_drafting" not in model.config.to_dict()


def test_drafting_really_stops_early(build: Model, draw_ids: Ids) -> None:
    model, prompt, calls = build("causal_lm", stack={"num_layers": 3}), draw_ids(rows=1), [0, 0, 0]
    for layer, block in enumerate(model.model.decoder.stack.layers):
        block.register_forward_hook(lambda *_, layer=layer: calls.__setitem__(layer, calls[layer] + 1))
    model.generate(prompt, max_new_tokens=12, min_new_tokens=12, assistant_early_exit=1)
    assert calls[0] > calls[1] == calls[2]


class Collect(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value: Tensor) -> None:
        self.tokens.extend(value.flatten().tolist())

    def end(self) -> None:
        pass


def test_streaming_gives_the_same_tokens(build: Model, draw_ids: Ids) -> None:
    model, prompt, streamer = build("causal_lm"), draw_ids(rows=1), Collect()
    tokens = model.generate(prompt, max_new_tokens=6, streamer=streamer)
    assert streamer.tokens == tokens[0].tolist()


def test_hidden_states_and_scores_come_along(build: Model, draw_ids: Ids) -> None:
    model = build("seq2seq")
    output = model.generate(
        draw_ids(), max_new_tokens=3, return_dict_in_generate=True, output_hidden_states=True, output_scores=True
    )
    assert len(output.scores) == len(output.decoder_hidden_states) == output.sequences.shape[1] - 1
    assert len(output.decoder_hidden_states[0]) == model.config.num_hidden_layers + 1


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize("beams", [1, 3])
def test_depths_of_hypotheses(build: Model, draw_ids: Ids, head: str, beams: int) -> None:
    model, ids = build(head), draw_ids(rows=2)
    prompt = 1 if head == "seq2seq" else ids.shape[1]
    output = model.generate(ids, max_new_tokens=6, num_beams=beams, return_dict_in_generate=True)
    made, depth = output.sequences[:, prompt:], model.config.num_hidden_layers
    expected = torch.full_like(made, depth) if beams == 1 else torch.where(made == PADDING, 0, depth)
    assert torch.equal(generated_depths(output), expected)


def test_beam_indices_lead_to_the_row_that_made_a_token() -> None:
    """Two beams whose rows cross: the hypothesis takes its depths from the rows it was in."""
    state = DecodeState(depths=[torch.tensor([[9, 1], [9, 2]]), torch.tensor([[3], [4]]), torch.tensor([[5], [6]])])
    output = BeamOutput(past_key_values=state, beam_indices=torch.tensor([[0, 1, 1], [1, 0, -1]]))
    assert generated_depths(output).tolist() == [[1, 4, 6], [2, 3, 0]]


class BeamOutput(dict[str, Any]):
    """As much of an output of beam search as depths need."""


def test_depths_need_a_cache(build: Model, draw_ids: Ids) -> None:
    model = build("causal_lm")
    output = model.generate(draw_ids(), max_new_tokens=2, use_cache=False, return_dict_in_generate=True)
    with pytest.raises(InputError, match="use_cache=True"):
        generated_depths(output)


def test_depths_need_one_step_per_token(build: Model, draw_ids: Ids) -> None:
    """A drafting model checks several tokens at once, so that its steps are fewer than its tokens."""
    model, options = build("causal_lm"), {"max_new_tokens": 4, "min_new_tokens": 4, "assistant_early_exit": 1}
    output = model.generate(draw_ids(rows=1), return_dict_in_generate=True, **options)
    with pytest.raises(InputError, match="generate without an assistant"):
        generated_depths(output)


def test_a_state_can_be_continued(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("causal_lm", mixer), draw_ids(rows=2)
    whole = model.generate(ids, max_new_tokens=8, min_new_tokens=8)
    first = model.generate(ids, max_new_tokens=4, min_new_tokens=4, return_dict_in_generate=True)
    rest = model.generate(
        first.sequences,
        past_key_values=first.past_key_values,
        attention_mask=torch.ones_like(first.sequences),
        max_new_tokens=4,
        min_new_tokens=4,
    )
    assert torch.equal(rest, whole)


def test_crop_takes_steps_back(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, ids = build("causal_lm", mixer), draw_ids(rows=2, steps=9)
    state = model(ids[:, :5], past_key_values=DecodeState(remembers_all=True)).past_key_values
    before = model(ids[:, 5:6], past_key_values=state).logits
    longer = model(ids[:, 5:9], past_key_values=state).past_key_values
    longer.crop(-4)
    assert longer.length == 5
    assert torch.equal(torch.cat(longer.depths, dim=1), torch.cat(state.depths, dim=1))
    torch.testing.assert_close(model(ids[:, 5:6], past_key_values=longer).logits, before, rtol=0, atol=1e-12)


def test_state_records_the_depths_of_a_plan(build: Model, draw_ids: Ids) -> None:
    model, ids = build("causal_lm"), draw_ids(rows=2, steps=2)
    depths = torch.tensor([[1, 2], [2, 1]])
    state = model(ids, use_cache=True, plan=Plan.of_depths(depths, 2)).past_key_values
    assert torch.equal(state.depths[0], depths)


def test_only_our_own_cache(build: Model, draw_ids: Ids) -> None:
    model = build("causal_lm")
    with pytest.raises(InputError, match="cache_implementation"):
        model.generate(draw_ids(), max_new_tokens=2, cache_implementation="static")
    with pytest.raises(InputError, match="DecodeState"):
        model.generate(draw_ids(), max_new_tokens=2, past_key_values=object())


def test_attention_weights_are_refused(build: Model, draw_ids: Ids) -> None:
    with pytest.raises(InputError, match="output_attentions"):
        build("seq2seq").generate(draw_ids(), max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)


def test_left_padded_rolls_each_row() -> None:
    ids = torch.tensor([[5, 6, 1, 1], [1, 7, 8, 1], [4, 5, 6, 7]])
    rolled, valid = left_padded(ids, ids != PADDING)
    assert rolled.tolist() == [[1, 1, 5, 6], [1, 1, 7, 8], [4, 5, 6, 7]]
    assert valid is not None
    assert torch.equal(valid, rolled != PADDING)
