"""Sampling: the distribution of Transformers' generate, and random numbers that belong to a row."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.engine.decoding import Decoding
from depthwise.engine.search import DRAWN_AT_ONCE, Draws

PADDING, DRAWN = 1, 4000
Model = Callable[..., Any]
Ids = Callable[..., Tensor]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"top_k": 0},
    "hot": {"temperature": 1.7, "top_k": 0},
    "top k": {"top_k": 5},
    "top p": {"top_k": 0, "top_p": 0.7, "temperature": 0.8},
}


def seeded(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_come_as_often_as_in_generate(build: Model, draw_ids: Ids, name: str) -> None:
    """Chi-square of the second token, against the probabilities that generate works out for it."""
    model, options = build("causal_lm"), {"do_sample": True, "max_new_tokens": 2, **OPTIONS[name]}
    prompt = draw_ids(rows=1, steps=3)
    found = Decoding(model).generate(prompt.expand(DRAWN, -1), generators=seeded(*range(DRAWN)), **options)
    first = torch.bincount(found.tokens[:, 0]).argmax()
    drawn = found.tokens[found.tokens[:, 0] == first, 1]
    limits = {**options, "max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True}
    scores = model.generate(torch.cat([prompt, first.view(1, 1)], dim=1), **limits).scores[0][0]
    expected = scores.softmax(-1).double() * len(drawn)
    counts = torch.bincount(drawn, minlength=len(expected)).double()
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    statistic = ((counts - expected) ** 2 / expected)[often].sum()
    degrees = int(often.sum()) - 1
    assert degrees > 1
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5  # four standard deviations


def test_a_row_is_drawn_the_same_in_every_batch(build: Model, draw_ids: Ids) -> None:
    model, ids = build("seq2seq", "dynamicconv"), draw_ids(padding=[0, 2, -1, 3])
    options = {"do_sample": True, "max_new_tokens": DRAWN_AT_ONCE + 3, "top_k": 0, "suppress_tokens": [PADDING]}
    together = Decoding(model).generate(ids, generators=seeded(1, 2, 3, 4), **options)
    for row in range(len(ids)):
        alone = Decoding(model).generate(ids[row : row + 1], generators=seeded(row + 1), **options)
        length = alone.tokens.shape[1]
        assert together.tokens[row, :length].tolist() == alone.tokens[0].tolist()
    assert len({tuple(row) for row in together.tokens.tolist()}) > 1


def test_without_generators_the_seed_of_torch_decides(build: Model, draw_ids: Ids) -> None:
    model, ids = build("seq2seq"), draw_ids(rows=3)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(Decoding(model).generate(ids, do_sample=True, top_k=0, max_new_tokens=9).tokens.tolist())
    assert runs[0] == runs[1] != runs[2]


def test_only_possible_tokens_are_drawn() -> None:
    scores = torch.full((50, 4), -torch.inf)
    scores[:, 2] = 0.0
    assert Draws(None, 50).choose(scores, torch.arange(50).numpy()).eq(2).all()
