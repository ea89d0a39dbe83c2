"""Decoders made ready for steps: how weights are packed for what they are given, and when that is done again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.engine import decoding, linear_maps, prepared
from depthwise.engine.decoding import Decoding
from depthwise.engine.drafting import Drafting
from depthwise.engine.linear_maps import Map, Packer
from depthwise.engine.prepared import Prepared

LAYERS, NEW = 4, 10
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


class Noted(Packer):
    """Tells of each weight for how many vectors it was packed."""

    seen: list[tuple[int, int]] = []

    def weights(self, weight: Tensor, bias: Tensor | None) -> Map:
        self.seen.append((weight.data_ptr(), self.num_rows))
        return super().weights(weight, bias)


@pytest.fixture
def model(build: Model) -> Any:
    """In float32, which is packed."""
    return build("seq2seq", tied_embeddings="none", stack={"num_layers": LAYERS}, exits={}).float()


def test_what_verifies_is_packed_for_drafts(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "Packer", Noted)
    monkeypatch.setattr(Noted, "seen", seen := [])
    ready = Prepared(model, 1, Drafting(2, 3))
    for depth in (1, 2, LAYERS):
        ready.head_at(depth)
    packed = {(pointer, rows) for pointer, rows in seen}
    for layer in range(LAYERS):
        pointer = model.model.decoder.stack.block(layer).feed_forward.hidden.weight.data_ptr()
        assert (pointer, 1 if layer < 2 else 4) in packed
        assert (pointer, 4 if layer < 2 else 1) not in packed
    head = model.head.weight.data_ptr()
    assert sorted(rows for pointer, rows in seen if pointer == head) == [1, 4]


@pytest.mark.parametrize("depth", [1, 3])
def test_packed_drafts_say_the_same(model: Any, draw_ids: Ids, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row in float32, every matrix packed."""
    monkeypatch.setattr(linear_maps, "PACKED_FROM", 0)
    ids, own = draw_ids(1, 7), Decoding(model)
    expected = own.generate(ids, max_new_tokens=NEW)
    found = own.generate(ids, max_new_tokens=NEW, lossless=depth, num_drafted=3)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-5)


def test_the_last_two_kinds_are_kept(model: Any, draw_ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, Any]] = []

    class Counted(Prepared):
        def __init__(self, model: Any, num_rows: int, drafting: Any = None) -> None:
            made.append((num_rows, drafting))
            super().__init__(model, num_rows, drafting)

    monkeypatch.setattr(decoding, "Prepared", Counted)
    own = Decoding(model)

    def generate(rows: int, **options: Any) -> None:
        own.generate(draw_ids(rows, 5), max_new_tokens=2, **options)

    for _ in range(2):
        generate(1)
        generate(1, lossless=2, num_drafted=2)
    assert made == [(1, None), (1, Drafting(2, 2))]
    generate(3)  # of the other two, the one that was used last is kept
    generate(5, lossless=1)
    generate(1, lossless=2, num_drafted=3)
    assert made[2:] == [(3, None)]
    with torch.no_grad():
        model.head.weight.mul_(2)
    generate(1, lossless=2, num_drafted=3)
    generate(3)
    assert made[3:] == [(1, Drafting(2, 3)), (3, None)]
