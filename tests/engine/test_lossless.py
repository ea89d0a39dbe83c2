"""Lossless decoding says what the whole stack says, whatever the draft is worth."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import FixedDepthConfig
from depthwise.depth import FixedDepth
from depthwise.engine import Engine, columns, step_embedding
from depthwise.engine.decoding import Generated
from depthwise.errors import InputError

PADDING, LAYERS, NEW = 1, 4, 14
LENGTHS = [0, 2, -5, 4, -1]
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


@pytest.fixture
def make(build: Model) -> Model:
    """A model that does not say the same token again and again, and whose exits agree with each other now and then."""

    def make_model(head: str, mixer: str = "attention", **changes: Any) -> Any:
        settings = {"tied_embeddings": "none", "stack": {"num_layers": LAYERS}, "exits": {}, **changes}
        model = build(head, mixer, **settings)
        with torch.no_grad():
            for layer in range(1, LAYERS):
                for parameter in model.model.decoder.stack.block(layer).parameters():
                    parameter.mul_(0.5)
        return model

    return make_model


def ours(model: Any, ids: Tensor, **options: Any) -> Generated:
    usual = {"max_new_tokens": NEW, "suppress_tokens": [PADDING], "eos_token_id": None}
    return Engine(model).generate(ids, ids != PADDING, **{**usual, **options})


def assert_same(found: Generated, expected: Generated) -> None:
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.depths, expected.depths)
    assert found.num_steps == expected.num_steps
    torch.testing.assert_close(found.scores, expected.scores)


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_tokens_of_the_whole_stack(
    make: Model, draw_ids: Ids, head: str, mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mixer, drafts of any length from any depth, one row and several that are padded; tables begin small."""
    monkeypatch.setattr(columns, "FIRST_CAPACITY", 3)
    monkeypatch.setattr(step_embedding, "FIRST_STEPS", 3)
    model, accepted, rejected = make(head, mixer), 0, 0
    for ids in (draw_ids(1, 7), draw_ids(steps=7, padding=LENGTHS)):
        expected = ours(model, ids)
        for depth, num_drafted in ((1, 1), (1, 5), (2, 3), (3, 20)):
            found = ours(model, ids, lossless=depth, num_drafted=num_drafted)
            assert_same(found, expected)
            assert found.drafts is not None
            accepted += found.drafts.num_accepted
            rejected += found.drafts.num_drafted - found.drafts.num_accepted
    assert accepted > 20
    assert rejected > 20


@pytest.mark.parametrize("mixer", ["attention", "dynamicconv", "average"])
@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_texts_end_within_drafts(make: Model, draw_ids: Ids, head: str, mixer: str) -> None:
    """Rows end at lengths of their own and leave; what the draft said behind the end is gone."""
    model, ids = make(head, mixer), draw_ids(steps=7, padding=LENGTHS)
    said, lengths = ours(model, ids).tokens, set()
    for end in said.unique().tolist():
        expected = ours(model, ids, eos_token_id=end)
        lengths |= set((expected.depths > 0).sum(1).tolist())
        for num_drafted in (2, 6):
            assert_same(ours(model, ids, eos_token_id=end, lossless=2, num_drafted=num_drafted), expected)
    assert len(lengths) > 3


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": None, "max_length": 11},
        {"limits": [1, 4, 9, 14, 6], "eos_token_id": 2},
        {"min_new_tokens": 5, "eos_token_id": [4, 5, 6, 7, 8]},
        {"no_repeat_ngram_size": 2},
        {"logits_processor": [lambda ids, scores: scores.scatter(1, ids[:, -1:], -torch.inf)]},
    ],
    ids=lambda options: ",".join(options),
)
def test_options_of_the_search(make: Model, draw_ids: Ids, options: dict[str, Any]) -> None:
    model, ids = make("causal_lm", exits={"heads": "separate", "depths": [1, 3]}), draw_ids(steps=7, padding=LENGTHS)
    expected = ours(model, ids, **options)
    for depth in (1, 3):
        assert_same(ours(model, ids, lossless=depth, num_drafted=4, **options), expected)


def test_no_position_is_drafted_that_is_not_there(make: Model, draw_ids: Ids) -> None:
    """The last position serves; one more is an error, as at full depth."""
    model, ids = (
        make("causal_lm", stack={"num_layers": LAYERS, "positions": "learned", "max_positions": 9}),
        draw_ids(2, 4),
    )
    assert_same(ours(model, ids, lossless=1, num_drafted=20, max_new_tokens=6), ours(model, ids, max_new_tokens=6))
    for options in ({}, {"lossless": 1}):
        with pytest.raises(InputError, match="max_positions is 9"):
            ours(model, ids, max_new_tokens=7, **options)


def test_a_perfect_draft_is_accepted(make: Model, draw_ids: Ids) -> None:
    """Where upper layers change nothing, each verification gives a whole draft and one token."""
    model, ids = make("causal_lm", exits={"norms": "shared"}), draw_ids(3, 5)
    with torch.no_grad():
        for layer in range(1, LAYERS):
            block = model.model.decoder.stack.block(layer)
            for out in (block.mixer.projections.out, block.feed_forward.out):
                out.weight.zero_()
                out.bias.zero_()
    found = ours(model, ids, lossless=1, num_drafted=4, max_new_tokens=15)
    assert found.drafts is not None
    assert found.drafts.acceptance_rate == 1
    assert (found.drafts.num_drafted, found.drafts.num_verifications) == (3 * 12, 3)
    assert found.num_token_layers == 3 * 15 * LAYERS
    assert ours(model, ids).drafts is None


def test_batches_are_joined(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq"), draw_ids(steps=7, padding=[0, 2, 5, 4, 1])
    found = ours(model, ids, lossless=1, rows_at_once=2)
    assert torch.equal(found.tokens, ours(model, ids).tokens)
    parts = [ours(model, ids[row : row + 1], lossless=1).drafts for row in range(len(ids))]
    assert found.drafts is not None
    assert found.drafts.num_accepted == sum(part.num_accepted for part in parts if part is not None)


# Sampling


def test_sampled_texts_have_the_probabilities_of_the_whole_stack(make: Model, draw_ids: Ids) -> None:
    """A chi-squared test over all texts of three tokens; the draft's own probabilities would fail it."""
    torch.manual_seed(5)
    model, ids, kept, rows = make("causal_lm"), draw_ids(1, 4), 3, 6000
    options = {"do_sample": True, "top_k": kept, "temperature": 1.5, "max_new_tokens": 3, "suppress_tokens": None}
    found = ours(model, ids.expand(rows, -1), lossless=1, num_drafted=2, **options)
    assert found.drafts is not None
    assert 0.2 < found.drafts.acceptance_rate < 0.95
    by_stack, by_draft = (_probabilities(model, ids, depth, kept, 1.5) for depth in (LAYERS, 1))
    texts = list(by_stack)
    counts = torch.tensor([(found.tokens == torch.tensor(text)).all(1).sum() for text in texts]).double()
    assert counts.sum() == rows
    expected = rows * torch.tensor([by_stack[text] for text in texts]).double()
    drafted = rows * torch.tensor([by_draft.get(text, 0.0) for text in texts]).double()
    assert _chance(counts, expected) > 1e-3
    assert _chance(drafted, expected) < 1e-9


def _probabilities(
    model: Any, prompt: Tensor, depth: int, kept: int, temperature: float
) -> dict[tuple[int, ...], float]:
    """Of every text of three tokens, by the exit of this depth."""
    texts: dict[Any, float] = {(): 1.0}
    with torch.no_grad():
        for _ in range(3):
            longer = {}
            for text, probability in texts.items():
                ids = torch.cat([prompt, torch.tensor([text], dtype=torch.long)], dim=1)
                hidden = model(ids, output_hidden_states=True).hidden_by_depth[depth][:, -1:]
                scores = model.head_at(depth)(model.model.decoder.stack.normalized(hidden, depth))[0, 0]
                best = (scores / temperature).topk(kept)
                for token, share in zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True):
                    longer[*text, token] = probability * share
            texts = longer
    return texts


def _chance(counts: Tensor, expected: Tensor) -> float:
    """Of counts at least so far from those expected."""
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    return float(torch.special.gammaincc(torch.tensor(freedom / 2).double(), statistic / 2))


def test_what_is_drawn_for_a_row_depends_on_it_alone(make: Model, draw_ids: Ids) -> None:
    model, ids = make("causal_lm"), draw_ids(steps=7, padding=LENGTHS)

    def drawn(rows: list[int]) -> Tensor:
        generators = [torch.Generator().manual_seed(row) for row in rows]
        return ours(model, ids[rows], do_sample=True, generators=generators, lossless=2, eos_token_id=4).tokens

    together = drawn([0, 1, 2, 3, 4])
    for row in range(5):
        alone = drawn([row])
        assert torch.equal(together[row : row + 1, : alone.shape[1]], alone)
        assert (together[row, alone.shape[1] :] == PADDING).all()


# Mistakes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lossless": LAYERS}, "lossless is 4, but a draft needs an exit below the last; use one of 1, 3"),
        ({"lossless": 2}, "use one of 1, 3"),
        ({"lossless": 0}, "use one of 1, 3"),
        ({"lossless": 1, "num_drafted": 0}, "num_drafted is 0; draft at least 1"),
        ({"lossless": 1, "num_beams": 2}, "lossless decoding has no beams; leave out num_beams"),
    ],
    ids=str,
)
def test_mistakes(make: Model, draw_ids: Ids, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ours(make("causal_lm", exits={"depths": [1, 3]}), draw_ids(), **options)


def test_models_without_exits_and_with_a_policy(make: Model, draw_ids: Ids) -> None:
    with pytest.raises(InputError, match="no exit to draft at; train one"):
        ours(make("causal_lm", exits=None), draw_ids(), lossless=1)
    model = make("causal_lm")
    model.use_policy(FixedDepth(FixedDepthConfig(depth=2)))
    with pytest.raises(InputError, match=r"call model.use_policy\(None\) first"):
        ours(model, draw_ids(), lossless=1)
