"""Greedy decoding equals taking the best token of a full forward again and again, row by row."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.errors import InputError
from depthwise.models.greedy import greedy_decode

PADDING, END, START = 1, 2, 2
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


@torch.no_grad()
def best_continuation(model: Any, prompt: Tensor, steps: int) -> Tensor:
    """The prompt's continuation by repeated full forwards, without stopping."""
    ids = prompt
    for _ in range(steps):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[:, prompt.shape[1] :]


@torch.no_grad()
def best_translation(model: Any, source: Tensor, steps: int) -> Tensor:
    ids = torch.full((len(source), 1), START)
    for _ in range(steps):
        ids = torch.cat([ids, model(source, decoder_input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[:, 1:]


def real(ids: Tensor) -> Tensor:
    """One row without its padding, as a batch."""
    return ids[ids != PADDING].unsqueeze(0)


def test_translation(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model, source = build("seq2seq", mixer, norm), draw_ids(padding=[0, 2, -3])
    tokens = greedy_decode(model, source, max_new_tokens=5, stop_at_eos=False)
    assert torch.equal(tokens, best_translation(model, source, 5))


def test_continuation(build: Model, draw_ids: Ids, mixer: str, norm: str) -> None:
    model, prompt = build("causal_lm", mixer, norm), draw_ids(steps=4)
    tokens = greedy_decode(model, prompt, max_new_tokens=5, stop_at_eos=False)
    assert torch.equal(tokens, best_continuation(model, prompt, 5))


@pytest.mark.parametrize("padding", [[0, 3, 1], [0, -3, -1], [2, -1, 0]], ids=["right", "left", "both"])
def test_padded_prompts_continue_as_each_alone(build: Model, draw_ids: Ids, mixer: str, padding: list[int]) -> None:
    model, prompts = build("causal_lm", mixer), draw_ids(steps=4, padding=padding)
    tokens = greedy_decode(model, prompts, prompts != PADDING, max_new_tokens=4, stop_at_eos=False)
    for row, prompt in enumerate(prompts):
        assert torch.equal(tokens[row : row + 1], best_continuation(model, real(prompt), 4))


@pytest.mark.parametrize("given", ["mask", "ids"])
def test_padded_sources_are_translated_as_each_alone(build: Model, draw_ids: Ids, given: str) -> None:
    model, sources = build("seq2seq", "dynamicconv"), draw_ids(padding=[0, 4, -2])
    mask = (sources != PADDING).long() if given == "mask" else None
    tokens = greedy_decode(model, sources, mask, max_new_tokens=4, stop_at_eos=False)
    for row, source in enumerate(sources):
        assert torch.equal(tokens[row : row + 1], best_translation(model, real(source), 4))


def scripted(build: Model, head: str, ends: list[int]) -> Any:
    """A model whose row r says 5 until step ``ends[r]`` of decoding, and there the end of the sequence."""
    model, steps = build(head), []

    def script(_module: Any, _inputs: Any, logits: Tensor) -> Tensor:
        best = torch.tensor([END if len(steps) == end else 5 for end in ends])
        steps.append(1)
        return torch.zeros_like(logits).scatter(2, best.view(-1, 1, 1).expand(-1, logits.shape[1], 1), 1.0)

    model.head.register_forward_hook(script)
    return model


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_rows_that_ended_are_padded_and_all_ended_stops(build: Model, draw_ids: Ids, head: str) -> None:
    tokens = greedy_decode(scripted(build, head, [1, 3, 0]), draw_ids(3, 4), max_new_tokens=9)
    expected = [[5, END, PADDING, PADDING], [5, 5, 5, END], [END, PADDING, PADDING, PADDING]]
    assert tokens.tolist() == expected


def test_the_end_may_be_passed_over(build: Model, draw_ids: Ids) -> None:
    tokens = greedy_decode(scripted(build, "seq2seq", [1, 0]), draw_ids(2, 4), max_new_tokens=3, stop_at_eos=False)
    assert tokens.tolist() == [[5, END, 5], [END, 5, 5]]


def test_one_step_per_token(build: Model, draw_ids: Ids) -> None:
    """The memory is used: the encoder runs once, and after the first call the decoder is fed single steps."""
    model, fed, encoded = build("seq2seq"), [], []
    model.model.decoder.register_forward_pre_hook(lambda _module, args: fed.append(args[0].shape[1]))
    model.model.encoder.register_forward_hook(lambda *_: encoded.append(1))
    greedy_decode(model, draw_ids(), max_new_tokens=4, stop_at_eos=False)
    assert (fed, len(encoded)) == ([1, 1, 1, 1], 1)


def test_nothing_is_recorded_for_gradients(build: Model, draw_ids: Ids) -> None:
    assert not greedy_decode(build("causal_lm"), draw_ids(), max_new_tokens=1).requires_grad


def test_prompts_that_grow_too_long(build: Model, draw_ids: Ids) -> None:
    model = build("causal_lm", stack={"max_positions": 6})
    greedy_decode(model, draw_ids(steps=4), max_new_tokens=3, stop_at_eos=False)
    with pytest.raises(InputError, match="input_ids has 7 steps but max_positions is 6; shorten the input"):
        greedy_decode(model, draw_ids(steps=4), max_new_tokens=4, stop_at_eos=False)


def test_no_tokens_wanted(build: Model, draw_ids: Ids) -> None:
    with pytest.raises(InputError, match="max_new_tokens"):
        greedy_decode(build("causal_lm"), draw_ids(), max_new_tokens=0)


def test_a_prompt_of_padding_only(build: Model, draw_ids: Ids) -> None:
    prompts = draw_ids(padding=[0, 6])
    with pytest.raises(InputError, match="attention_mask row 1 has no real token"):
        greedy_decode(build("causal_lm"), prompts, prompts != PADDING, max_new_tokens=1)
