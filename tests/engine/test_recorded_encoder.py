"""Sources encoded as recorded work: the states of the encoder itself, whatever was encoded before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.engine import recorded_encoder
from depthwise.engine.recorded_encoder import RecordedEncoder
from depthwise.engine.recorder import Rehearsal
from depthwise.engine.static_tables import Arena

PADDING = 1
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def recorded(model: Any) -> RecordedEncoder:
    like = torch.zeros(1, model.config.width, dtype=next(model.parameters()).dtype)
    return RecordedEncoder(model.model.encoder, Arena(like), Rehearsal())


@torch.no_grad()
def test_states_are_those_of_the_encoder(
    build: Model, draw_ids: Ids, mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that need more room, then less of it: what others left in the tables is padding."""
    monkeypatch.setattr(recorded_encoder, "LEAST_LENGTH", 4)
    model = build("seq2seq", mixer).double()
    encode = recorded(model)
    for padding in ([1], [0, 2, -5, 4, -1], [3, -2, 0], [0, 2, -5, 4, -1], [0]):
        ids = draw_ids(padding=padding)
        valid = None if bool((ids != PADDING).all()) else ids != PADDING
        assert encode.serves(ids)
        found, expected = encode(ids, valid), model.model.encoder(ids, ids != PADDING)[0]
        real = ids != PADDING
        torch.testing.assert_close(found[real], expected[real], rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_answers_stay_as_they_are(build: Model, draw_ids: Ids) -> None:
    """What is encoded next does not change what was given."""
    encode, first = recorded(build("seq2seq", "attention")), draw_ids(padding=[0, 0])
    given = encode(first, None)
    kept = given.clone()
    encode(first.roll(1, dims=1), None)
    assert torch.equal(given, kept)


def test_whom_it_serves(build: Model, draw_ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build("seq2seq", "attention"), draw_ids(padding=[0, 0])
    encode = recorded(model)
    assert encode.serves(ids)
    model.train()
    assert not encode.serves(ids), "dropout is drawn by those who train"
    model.eval()
    monkeypatch.setattr(recorded_encoder, "MOST_TOKENS", 8)
    assert not encode.serves(ids), "many tokens are not worth a recording"
