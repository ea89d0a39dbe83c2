"""Recorded decoding makes the tokens of decoding that Python runs, for every mixer, policy and search.

A CPU has no graphs: here every piece of work is the function that was first given for it, called again and again, so
that whatever depends on the step and not on tables shows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config.depth import ConfidenceConfig, PatienceConfig, TokenExitConfig
from depthwise.depth import ConfidenceThreshold, Patience, Policy, TokenExit
from depthwise.engine.decoding import Decoding, Generated
from depthwise.engine.recorded import RecordedDecoding
from depthwise.engine.recorder import Recorder, Rehearsal

from .test_decoding import ByState, BySteps

PADDING, END, LAYERS, NEW = 1, 2, 4, 6
DEEP = {"num_layers": LAYERS}
LENGTHS = [0, 2, -5, 4, -1]
BEAM = {"num_beams": 3}
SEARCHES: list[dict[str, Any]] = [{}, {"no_repeat_ngram_size": 2}, BEAM]
EXITS: list[dict[str, Any]] = [{}, {"heads": "separate"}, {"depths": [1, 3]}]
POLICIES: dict[str, Callable[[Any], Policy]] = {
    "by state": lambda model: ByState(),
    "planned": lambda model: BySteps(),
    "confidence": lambda model: ConfidenceThreshold(ConfidenceConfig(threshold=(0.2,))),
    "patience": lambda model: Patience(PatienceConfig(patience=1)),
    "token": lambda model: TokenExit(TokenExitConfig(), width=8, num_exits=len(model.exit_depths)).double(),
}
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


class Rehearsed(RecordedDecoding):
    """Recorded decoding on a CPU."""

    def serves(self, device: torch.device, **asked: Any) -> bool:
        return super().serves(torch.device("cuda"), **asked)

    def recorder(self, device: torch.device) -> Recorder:
        return Rehearsal()


def rehearsed(model: Any) -> Decoding:
    decoding = Decoding(model)
    decoding._recorded = Rehearsed(True)
    return decoding


@pytest.fixture
def make(build: Model) -> Model:
    """A model that does not say the same token again and again, as those with one table for both sides do."""
    return partial(build, tied_embeddings="none")


def run(decoding: Decoding, ids: Tensor, **options: Any) -> Generated:
    return decoding.generate(ids, ids != PADDING, **{"max_new_tokens": NEW, "suppress_tokens": [PADDING], **options})


def assert_same(found: Generated, expected: Generated) -> None:
    assert found.recorded
    assert not expected.recorded
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-6, atol=1e-6)
    for count in ("num_token_layers", "num_steps", "num_filled"):
        assert getattr(found, count) == getattr(expected, count), count


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_the_whole_stack(make: Model, draw_ids: Ids, mixer: str, head: str) -> None:
    """Batches of several sizes and lengths, one after the other, from the same tables."""
    model = make(head, mixer)
    recorded, plain = rehearsed(model), Decoding(model)
    for padding in (LENGTHS, [1, -2], LENGTHS, [0]):
        ids = draw_ids(padding=padding)
        for search in SEARCHES:
            assert_same(run(recorded, ids, **search), run(plain, ids, **search))


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize("policy", POLICIES)
def test_under_policies(make: Model, draw_ids: Ids, mixer: str, head: str, policy: str) -> None:
    model = make(head, mixer, stack=DEEP, exits=EXITS[len(mixer) % 3])
    model.use_policy(POLICIES[policy](model))
    recorded, plain = rehearsed(model), Decoding(model)
    for padding in (LENGTHS, [0], [1, -2]):
        ids = draw_ids(padding=padding)
        for search in ({}, BEAM):
            assert_same(run(recorded, ids, **search), run(plain, ids, **search))
