"""Recorded lossless decoding: the tokens of full depth, by the drafts of lossless decoding that Python runs.

As in ``test_recorded``, pieces of work are called again as they were first given, and tables begin small.
"""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.engine import Drafting, Engine
from depthwise.engine.decoding import Decoding, Generated
from depthwise.engine.lossless import Drafts
from depthwise.engine.recorder import Rehearsal, Work
from depthwise.engine.static_round_mixers import read_slots
from depthwise.errors import InputError
from depthwise.kernels.backend import use_backend
from depthwise.kernels.column_attention import read_columns

from .test_lossless import LAYERS, LENGTHS, NEW, PADDING, make
from .test_recorded import Rehearsed, _small_tables, rehearsed

__all__ = ["_small_tables", "make"]

Model = Callable[..., Any]
Ids = Callable[..., Tensor]


def run(decoding: Decoding, ids: Tensor, **options: Any) -> Generated:
    usual = {"max_new_tokens": NEW, "suppress_tokens": [PADDING], "eos_token_id": None}
    return decoding.generate(ids, ids != PADDING, **{**usual, **options})


def check(recorded: Decoding, ids: Tensor, depth: int, num_drafted: int, **options: Any) -> Drafts:
    """The text is that of full depth, and all counts are those of rounds that Python runs; returns these."""
    plain, drafting = Decoding(recorded.model), {"lossless": depth, "num_drafted": num_drafted}
    found, expected = (run(decoding, ids, **drafting, **options) for decoding in (recorded, plain))
    whole = run(plain, ids, **options)
    assert found.recorded
    assert not expected.recorded
    for other in (whole, expected):
        assert torch.equal(found.tokens, other.tokens)
        assert torch.equal(found.depths, other.depths)
        assert found.num_steps == other.num_steps
        torch.testing.assert_close(found.scores, other.scores, rtol=1e-5, atol=1e-6)
    assert found.drafts == expected.drafts
    assert found.num_token_layers == expected.num_token_layers
    assert found.num_filled == 0
    assert found.drafts is not None
    return found.drafts


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_tokens_of_the_whole_stack(make: Model, draw_ids: Ids, head: str, mixer: str) -> None:
    """Every mixer, drafts of any length from any depth, one row and several that are padded, from the same tables."""
    model, drafts = make(head, mixer), Drafts()
    recorded = rehearsed(model)
    for ids in (draw_ids(1, 7), draw_ids(steps=7, padding=LENGTHS)):
        for depth, num_drafted in ((1, 1), (1, 5), (2, 3), (3, 20)):
            drafts += check(recorded, ids, depth, num_drafted)
    assert drafts.num_accepted > 20
    assert drafts.num_drafted - drafts.num_accepted > 20


OTHER_MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm": "post"},
    "separate heads": {"exits": {"heads": "separate", "depths": [2]}},
    "learned positions": {"stack": {"num_layers": LAYERS, "positions": "learned", "max_positions": 30}},
    "no positions": {"stack": {"num_layers": LAYERS, "positions": "none"}},
    "adaptive softmax": {"adaptive": {"cutoffs": [6, 11], "factor": 2}},
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_models(make: Model, draw_ids: Ids, name: str) -> None:
    model = make("causal_lm", **OTHER_MODELS[name])
    assert check(rehearsed(model), draw_ids(steps=7, padding=LENGTHS), 2, 3).num_accepted


@pytest.mark.parametrize("mixer", ["attention", "dynamicconv", "average"])
@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_texts_end_within_drafts(make: Model, draw_ids: Ids, head: str, mixer: str) -> None:
    """Rows end at lengths of their own, some of them within a draft that is right."""
    model, ids = make(head, mixer), draw_ids(steps=7, padding=LENGTHS)
    recorded = rehearsed(model)
    for end in run(Decoding(model), ids).tokens.unique().tolist():
        for num_drafted in (2, 6):
            check(recorded, ids, 2, num_drafted, eos_token_id=end)


def test_many_rows_that_end(make: Model, draw_ids: Ids) -> None:
    """Rows stay where they are until the rest is half; what is left is that of the right rows."""
    model, ids = make("seq2seq", "lightconv"), draw_ids(rows=21)
    limits = torch.randint(1, 20, (21,)).tolist()
    options = {"limits": limits, "min_new_tokens": 20, "max_new_tokens": None, "eos_token_id": 2}
    for depth in (1, 3):
        check(rehearsed(model), ids, depth, 3, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": None, "max_length": 11},
        {"limits": [1, 4, 9, 14, 6], "eos_token_id": 2},
        {"limits": [3, 1, 6, 2, 5], "min_new_tokens": 4, "max_new_tokens": None, "eos_token_id": 2},
        {"min_new_tokens": 5, "eos_token_id": [4, 5, 6, 7, 8], "suppress_tokens": None},
    ],
    ids=lambda options: ",".join(options),
)
def test_options_of_the_search(make: Model, draw_ids: Ids, options: dict[str, Any]) -> None:
    model, ids = make("causal_lm", exits={"heads": "separate", "depths": [1, 3]}), draw_ids(steps=7, padding=LENGTHS)
    recorded = rehearsed(model)
    for depth in (1, 3, 1):
        check(recorded, ids, depth, 4, **options)


def test_the_last_position(make: Model, draw_ids: Ids) -> None:
    """It serves, also a text that ends there; one more is an error, as at full depth."""
    model = make("causal_lm", stack={"num_layers": LAYERS, "positions": "learned", "max_positions": 9})
    recorded, ids = rehearsed(model), draw_ids(3, 4)
    check(recorded, ids, 1, 20, max_new_tokens=6)
    check(recorded, ids, 1, 3, limits=[6, 4, 3], max_new_tokens=8, eos_token_id=2)
    with pytest.raises(InputError, match="has 10 steps but max_positions is 9; ask for fewer tokens"):
        run(recorded, ids, lossless=1, max_new_tokens=7)


# What is recorded, and kept from one text to the next


class Counting(Rehearsal):
    """Counts how often each piece of work is done."""

    def __init__(self) -> None:
        super().__init__()
        self.done: dict[Any, int] = {}

    def __call__(self, key: Hashable, work: Work) -> None:
        super().__call__(key, work)
        *_, name = key if isinstance(key, tuple) else (key,)
        name = name[0] if isinstance(name, tuple) else name
        self.done[name] = self.done.get(name, 0) + 1


def test_a_round_is_two_pieces_of_work(make: Model, draw_ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second ends it. The first was already begun for a next round when nobody went on."""
    counting, model = Counting(), make("seq2seq")
    recorded = rehearsed(model)
    monkeypatch.setattr(recorded._recorded, "recorder", lambda device: counting)
    monkeypatch.setattr("depthwise.engine.static_state.LEAST_CAPACITY", 64)
    found = run(recorded, draw_ids(1, 7), lossless=2, num_drafted=3)
    assert found.drafts is not None
    rounds = found.drafts.num_verifications
    assert counting.done["begin round"] == rounds + 1
    assert counting.done["end round"] == rounds


def test_nothing_is_left_of_earlier_texts(make: Model, draw_ids: Ids, mixer: str) -> None:
    """Not even where numbers were none, nor of decoding at full depth, which shares the tables."""
    model, ids = make("seq2seq", mixer), draw_ids(padding=LENGTHS)
    recorded, plain = rehearsed(model), Decoding(model)
    expected = run(plain, ids).tokens
    for _ in range(2):
        assert torch.equal(run(recorded, ids, lossless=2).tokens, expected)
        recording = recorded._recorded._recording
        assert recording is not None
        for (name, _), storage in recording.arena._storage.items():
            if storage.is_floating_point() and name != "positions":
                with torch.inference_mode():
                    storage.fill_(torch.nan)
        assert torch.equal(run(recorded, ids).tokens, expected)


def test_tables_stay_where_they_are(make: Model, draw_ids: Ids) -> None:
    model = make("seq2seq", "dynamicconv")
    recorded = rehearsed(model)

    def generate(rows: int, **options: Any) -> int:
        ids = draw_ids(rows=rows)
        run(recorded, ids, **options)
        run(recorded, ids, lossless=2, **options)
        recording = recorded._recorded._recording
        assert recording is not None
        return recording.arena.num_moves

    most = generate(7)
    assert [generate(rows) for rows in (1, 5, 8)] == [most] * 3
    assert generate(2, max_new_tokens=3) == most


def test_changed_weights(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq"), draw_ids()
    recorded = rehearsed(model)
    check(recorded, ids, 1, 2)
    before = run(recorded, ids, lossless=1)
    with torch.no_grad():
        model.head.weight.neg_()
    assert not torch.equal(run(recorded, ids, lossless=1).tokens, before.tokens)
    check(recorded, ids, 1, 2)


def test_an_engine_that_drafts(make: Model, draw_ids: Ids) -> None:
    """Batches are joined, and what they drafted is counted."""
    model, ids = make("seq2seq"), draw_ids(steps=7, padding=[0, 2, 5, 4, 1])
    recorded, plain = (Engine(model, drafting=Drafting(2, 3)) for _ in range(2))
    recorded._decoding = rehearsed(model)
    options = {"max_new_tokens": NEW, "rows_at_once": 2}
    found, expected = (engine.generate(ids, ids != PADDING, **options) for engine in (recorded, plain))
    assert found.recorded
    assert torch.equal(found.tokens, expected.tokens)
    assert recorded.drafts == plain.drafts
    assert recorded.generated_layers == plain.generated_layers


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_slots_are_read_each_behind_a_mask_of_its_own(backend: str, num_rows: int) -> None:
    """As one query after the other; by Triton's interpreter where there is no GPU."""
    pytest.importorskip("triton")
    num_slots, length, heads, width = 4, 13, 2, 8
    device = "cuda" if torch.cuda.is_available() else "cpu"
    queries = torch.randn(num_rows * num_slots, heads * width, device=device)
    columns = torch.randn(num_rows, length, 2 * heads * width, device=device)
    masks = torch.zeros(num_rows, num_slots, length, device=device)
    masks.masked_fill_(torch.rand(masks.shape, device=device) < 0.4, -torch.inf)[..., 5] = 0
    with use_backend(backend):
        found = read_slots(queries, columns, masks, heads).view(num_rows, num_slots, -1)
    for slot in range(num_slots):
        alone = queries.view(num_rows, num_slots, -1)[:, slot]
        expected = read_columns(alone, columns, masks[:, slot], num_heads=heads, backend="reference")
        torch.testing.assert_close(found[:, slot], expected)


# Which way is taken


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True}, "lossless decoding that samples; leave out do_sample"),
        ({"no_repeat_ngram_size": 2}, "lossless decoding that looks back; leave out no_repeat_ngram_size"),
        ({"logits_processor": [lambda ids, scores: scores]}, "that looks back; .* logits_processor"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_recorded(make: Model, draw_ids: Ids, options: dict[str, Any], message: str) -> None:
    """With graphs by all means it is an error, and with "auto" Python runs it."""
    model, ids = make("seq2seq"), draw_ids()
    with pytest.raises(InputError, match=f'CUDA graphs do not serve .*{message}.*, or set graphs to "auto"'):
        run(rehearsed(model), ids, lossless=1, **options)
    automatic = Decoding(model)
    automatic._recorded = Rehearsed("auto")
    found = run(automatic, ids, lossless=1, **options)
    assert not found.recorded
    assert found.drafts is not None
    assert run(automatic, ids, lossless=1).recorded
    assert run(automatic, ids, **options).recorded
