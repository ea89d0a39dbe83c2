"""Many rows in several batches are what they are in one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthwise.config import parse_policy
from depthwise.depth import build_policy
from depthwise.engine import Engine
from depthwise.engine.decoding import Decoding
from depthwise.errors import InputError

Model = Callable[..., Any]
Ids = Callable[..., Tensor]
PADDING, END, LAYERS, NEW = 1, 2, 4, 7
LENGTHS = [0, 2, 3, 4, 1, 0, 2]


@pytest.fixture
def planning(build: Model) -> Any:
    """A translator in which every sequence has a depth of its own."""
    model = build("seq2seq", stack={"num_layers": LAYERS}, exits={"heads": "separate"}, tied_embeddings="none")
    torch.manual_seed(3)
    policy = build_policy(parse_policy({"kind": "sequence"}), width=8, exits=model.exit_depths, has_source=True)
    nn.init.normal_(policy.classifier.weight, std=3)  # type: ignore[union-attr, arg-type]
    nn.init.zeros_(policy.classifier.bias)  # type: ignore[union-attr, arg-type]
    model.use_policy(policy.double())
    return model


def assert_same(found: Any, expected: Any) -> None:
    for name in ("tokens", "depths", "sequences"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    torch.testing.assert_close(found.scores, expected.scores)
    assert (found.num_token_layers, found.num_steps) == (expected.num_token_layers, expected.num_steps)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}])
@pytest.mark.parametrize("room", [{"rows_at_once": 2}, {"rows_at_once": 3}, {"tokens_at_once": 12}])
def test_batches_by_depth(
    planning: Any, draw_ids: Ids, monkeypatch: pytest.MonkeyPatch, room: dict[str, int], options: dict[str, Any]
) -> None:
    ids, engine = draw_ids(padding=LENGTHS), Engine(planning)
    expected = engine.generate(ids, max_new_tokens=NEW, **options)
    planned = expected.depths[:: options.get("num_return_sequences", 1)].amax(1).tolist()
    assert len(set(planned)) > 1, "this test is about rows of different depths"
    batches: list[list[int]] = []
    usual = Decoding.generate

    def noted(self: Decoding, *given: Any, **more: Any) -> Any:
        found = usual(self, *given, **more)
        batches.append(found.depths[:: options.get("num_return_sequences", 1)].amax(1).tolist())
        return found

    monkeypatch.setattr(Decoding, "generate", noted)
    assert_same(engine.generate(ids, max_new_tokens=NEW, **options, **room), expected)
    assert len(batches) > 1
    assert [depth for batch in batches for depth in batch] == sorted(planned, reverse=True)
    assert all(len(batch) <= room.get("rows_at_once", 12) for batch in batches)


def test_the_source_is_encoded_once(planning: Any, draw_ids: Ids) -> None:
    ids, engine = draw_ids(padding=LENGTHS), Engine(planning)
    engine.generate(ids, max_new_tokens=NEW, rows_at_once=2)
    assert engine.token_layers == int((ids != PADDING).sum()) * LAYERS


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_without_a_plan_batches_are_by_length(build: Model, draw_ids: Ids, head: str) -> None:
    model, ids = build(head, tied_embeddings="none"), draw_ids(padding=LENGTHS)
    engine, limits = Engine(model), [7, 1, 3, 2, 5, 4, 6]
    assert not engine.plans_sequences
    expected = engine.generate(ids, limits=limits)
    assert_same(engine.generate(ids, limits=limits, rows_at_once=3), expected)
    assert (expected.depths > 0).sum(1).max() > 1


def test_values_of_single_rows_go_with_them(planning: Any, draw_ids: Ids) -> None:
    ids, engine = draw_ids(padding=LENGTHS), Engine(planning)
    starts = [4, 5, 6, 7, 8, 9, 10]

    def made(**room: int) -> Any:
        generators = [torch.Generator().manual_seed(number) for number in range(len(ids))]
        sampled = {"do_sample": True, "generators": generators, "decoder_start_token_id": starts}
        return engine.generate(ids, max_new_tokens=NEW, fill="eager", **sampled, **room)

    expected = made()
    assert_same(made(rows_at_once=2), expected)
    assert expected.prompt.squeeze(1).tolist() == starts


def test_who_plans_sequences(planning: Any, build: Model) -> None:
    assert Engine(planning).plans_sequences
    assert not Engine(build("token_classification")).plans_sequences
    planning.generation_config.repetition_penalty = 2.0
    assert not Engine(planning).plans_sequences


def test_mistakes(planning: Any, draw_ids: Ids) -> None:
    engine, ids = Engine(planning), draw_ids()
    with pytest.raises(InputError, match="rows_at_once is 0, which leaves no batch; give at least 1"):
        engine.generate(ids, rows_at_once=0)
    with pytest.raises(InputError, match="encoder_outputs are of one batch; leave out rows_at_once"):
        engine.generate(ids, encoder_outputs=(torch.zeros(3, 6, 8),), rows_at_once=2)
