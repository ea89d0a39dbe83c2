"""Fast decoding makes the tokens of Transformers' generate, for every mixer, policy, fill and search."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import UniformExitConfig
from depthwise.depth import Context, Plan, Policy, State, UniformExit, Visit
from depthwise.engine import step_attention
from depthwise.engine.decoding import Decoding, Generated, generate
from depthwise.errors import InputError
from depthwise.models.generation import generated_depths

PADDING, END, LAYERS, NEW = 1, 2, 4, 6
DEEP = {"num_layers": LAYERS}
LENGTHS = [0, 2, -5, 4, -1]
EXITS: list[dict[str, Any]] = [{}, {"heads": "separate"}, {"depths": [1, 3]}]
BEAM = {"num_beams": 3}
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


class ByState(Policy):
    """Leaves by the sign of one number of the state; has to be asked once at each exit."""

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        count = state.get("count", torch.zeros(visit.context.shape, dtype=torch.long)) + 1
        assert count.eq(visit.index + 1).all()
        assert (visit.before is None) == (visit.index == 0)
        return visit.hidden[..., 0] > 0.1, {"count": count}


class ByScores(Policy):
    """Leaves where the first guess is even."""

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        torch.testing.assert_close(visit.log_prob.exp().sum(-1), torch.ones(visit.context.shape, dtype=torch.float64))
        return visit.log_prob.argmax(-1) % 2 == 0, state


class BySteps(Policy):
    """Plans depths that change from token to token and, where there is a source, from source to source."""

    plans = True

    def plan(self, context: Context) -> Tensor:
        of_row = torch.zeros(context.shape) if context.source is None else context.source[:, :1, 0].abs() * 10
        chosen = (context.steps * 7 + of_row.long()) % len(context.exits)
        return torch.tensor(context.exits)[chosen]


class At(Policy):
    """Everybody leaves at one depth."""

    plans = True

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def plan(self, context: Context) -> Tensor:
        return torch.full(context.shape, self.depth)


class LastGoesDeep(Policy):
    """The last token runs one block that no other has run."""

    plans = True

    def plan(self, context: Context) -> Tensor:
        return torch.where(context.steps == NEW - 1, LAYERS, LAYERS - 1)


class BySource(Policy):
    """Leaves by the source at all exits; each row has to find its own."""

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        source = visit.context.source
        assert source is not None
        known = state.get("source", source[:, :1, 0])
        assert torch.equal(known, source[:, :1, 0])
        if visit.context.source_valid is not None:
            assert visit.context.source_valid.shape == source.shape[:2]
        return (known * 100).long() % (LAYERS - visit.index) == 0, {"source": known}


POLICIES: dict[str, Callable[[], Policy]] = {
    "by state": ByState,
    "by scores": ByScores,
    "planned": BySteps,
    "uniform": lambda: UniformExit(UniformExitConfig()),
}


@pytest.fixture
def make(build: Model) -> Model:
    """A model that does not say the same token again and again, as those with one table for both sides do."""
    return partial(build, tied_embeddings="none")


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]()


def theirs(model: Any, ids: Tensor, **options: Any) -> Any:
    limits = {"max_new_tokens": NEW, "suppress_tokens": [PADDING], "return_dict_in_generate": True}
    return model.generate(ids, attention_mask=ids != PADDING, **{**limits, "output_scores": True, **options})


def ours(model: Any, ids: Tensor, **options: Any) -> Generated:
    limits = {"max_new_tokens": NEW, "suppress_tokens": [PADDING]}
    return Decoding(model).generate(ids, ids != PADDING, **{**limits, **options})


def assert_found(found: Generated, expected: Any) -> None:
    """The same tokens, the same depths of those before the end, and the same scores of sequences."""
    assert torch.equal(found.sequences, expected.sequences)
    made = found.depths > 0
    assert torch.equal(found.depths[made], generated_depths(expected)[:, : made.shape[1]][made])
    assert made[:, 0].all()
    if "sequences_scores" in expected:
        torch.testing.assert_close(found.scores, expected.sequences_scores, rtol=1e-5, atol=1e-6)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


# The tokens of generate


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_under_policies(make: Model, draw_ids: Ids, mixer: str, head: str, policy: Policy) -> None:
    """Greedy and beam search, fills that copy, five rows of different lengths."""
    model = make(head, mixer, stack=DEEP, exits=EXITS[len(mixer) % 3])
    model.use_policy(policy)
    ids = draw_ids(padding=LENGTHS)
    for search in ({}, BEAM):
        expected = theirs(model, ids, **search)
        eager, deferred = (ours(model, ids, fill=fill, **search) for fill in ("eager", "deferred"))
        for found in (eager, deferred):
            assert_found(found, expected)
        assert_close(eager.scores, deferred.scores)
        assert eager.num_token_layers == deferred.num_token_layers
        if not search:  # hypotheses of one beam fill for themselves what they had in common
            assert eager.num_filled >= deferred.num_filled


def test_policies_that_look_at_the_source(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq", stack=DEEP, exits={}), draw_ids(padding=LENGTHS)
    model.use_policy(BySource())
    for search in ({}, BEAM):
        found = ours(model, ids, **search)
        assert_found(found, theirs(model, ids, **search))
        assert len(set(found.depths.flatten().tolist())) > 2


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize("is_folded", [False, True])
def test_one_row(
    make: Model, draw_ids: Ids, mixer: str, head: str, is_folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the maps of a source folded into it, as for wider models."""
    monkeypatch.setattr(step_attention, "FOLDED_FROM", 1 if is_folded else 256)
    model = make(head, mixer, stack=DEEP, exits={})
    model.use_policy(ByState())
    ids = draw_ids(rows=1, steps=3)
    for search in ({}, BEAM):
        assert_found(ours(model, ids, **search), theirs(model, ids, **search))


@pytest.mark.parametrize(("head", "norm"), [("seq2seq", "post"), ("causal_lm", "none"), ("causal_lm", "post")])
def test_the_whole_stack(make: Model, draw_ids: Ids, mixer: str, head: str, norm: str) -> None:
    model, ids = make(head, mixer, norm), draw_ids(padding=LENGTHS)
    search = BEAM if norm == "none" else {}
    found = ours(model, ids, **search)
    assert_found(found, theirs(model, ids, **search))
    assert found.num_filled == 0


OTHER_MODELS: dict[str, dict[str, Any]] = {
    "learned positions": {"stack": {"positions": "learned", "max_positions": 30}},
    "no positions": {"stack": {"positions": "none"}},
    "shared layers": {"stack": {"num_layers": 4, "shared_layers": [0, 0, 1, 0]}},
    "narrow embedding": {"embedding_width": 4, "embedding_norm": True, "head_transform": "gelu"},
    "later positions": {"position_offset": 2},
}


@pytest.mark.parametrize("name", OTHER_MODELS)
@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_other_models(make: Model, draw_ids: Ids, name: str, head: str) -> None:
    model, ids = make(head, **OTHER_MODELS[name]), draw_ids(padding=LENGTHS)
    assert_found(ours(model, ids), theirs(model, ids))


@pytest.mark.parametrize("policy", [None, ByScores()])
def test_an_adaptive_softmax(make: Model, draw_ids: Ids, policy: Policy | None) -> None:
    model = make("causal_lm", stack=DEEP, exits={}, adaptive={"cutoffs": [6, 11], "factor": 2})
    model.use_policy(policy)
    ids = draw_ids(padding=LENGTHS)
    for search in ({}, BEAM):
        assert_found(ours(model, ids, **search), theirs(model, ids, **search))


SEARCHES: dict[str, dict[str, Any]] = {
    "short": {"length_penalty": -1.0},
    "long": {"length_penalty": 2.0, "early_stopping": True},
    "exhaustive": {"early_stopping": "never", "length_penalty": 0.5},
    "blocked": {"no_repeat_ngram_size": 2, "num_return_sequences": 3},
    "late": {"min_new_tokens": 4, "num_beams": 2},
    "two ends": {"eos_token_id": [END, 7], "num_return_sequences": 2},
    "greedy, blocked": {"num_beams": 1, "no_repeat_ngram_size": 1},
    "greedy, late": {"num_beams": 1, "min_new_tokens": 3, "eos_token_id": [4, 5, 6, 7]},
    "greedy, suppressed": {"num_beams": 1, "suppress_tokens": [PADDING, END, 5, 6]},
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_searches(make: Model, draw_ids: Ids, head: str, name: str) -> None:
    """Ten rows, so that some end early; the end is made likely."""
    model, ids = make(head, "dynamicconv", stack=DEEP, exits={}), draw_ids(padding=LENGTHS * 2)
    model.use_policy(ByState())
    search = {"max_new_tokens": 12, **BEAM, **SEARCHES[name]}
    assert_found(ours(model, ids, **search), theirs(model, ids, **search))


def test_lengths_with_the_prompt(make: Model, draw_ids: Ids) -> None:
    model, ids = make("causal_lm"), draw_ids(padding=[0, 2])
    limits = {"max_new_tokens": None, "max_length": 12, "min_length": 9}
    assert_found(ours(model, ids, **limits), theirs(model, ids, **limits))
    unlimited = {"max_new_tokens": None, "eos_token_id": [3, 4]}
    with pytest.warns(UserWarning, match="max_length"):
        expected = theirs(model, ids, **unlimited)
    assert_found(ours(model, ids, **unlimited), expected)


def test_rows_may_begin_from_different_tokens(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq"), draw_ids(rows=2)
    starts = {"decoder_start_token_id": [5, 9]}
    assert_found(ours(model, ids, **starts), theirs(model, ids, **starts))


def test_a_source_may_come_encoded(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq"), draw_ids(padding=LENGTHS)
    encoded = model.model.encoder(ids)
    found = Decoding(model).generate(None, ids != PADDING, encoder_outputs=encoded, max_new_tokens=NEW)
    assert torch.equal(found.tokens, generate(model, ids, max_new_tokens=NEW).tokens)


# What is recorded


def assert_scored(model: Any, ids: Tensor, found: Generated) -> None:
    """Teacher forcing with the recorded depths gives the log-probabilities of all tokens."""
    fed, is_source = found.sequences[:, :-1], model.config.is_encoder_decoder
    plan = Plan.of_depths(found.depths.clamp(min=1), LAYERS)
    inputs = {"input_ids": ids, "decoder_input_ids": fed} if is_source else {"input_ids": fed}
    model.use_policy(None)
    scores = model(**inputs, plan=plan).logits.log_softmax(-1).gather(2, found.tokens.unsqueeze(2)).squeeze(2)
    made = found.depths > 0
    torch.testing.assert_close(found.scores[made].double(), scores[made], rtol=1e-5, atol=1e-6)


def test_text_scored_under_its_depths_has_its_scores(make: Model, draw_ids: Ids, mixer: str, policy: Policy) -> None:
    """Whole texts at once, by the masked executor (I5, I6)."""
    head = "seq2seq" if policy.plans else "causal_lm"
    model = make(head, mixer, stack=DEEP, exits=EXITS[1])
    model.use_policy(policy)
    ids = draw_ids(rows=3, steps=1 if head == "causal_lm" else 6)
    assert_scored(model, ids, ours(model, ids))


def test_many_columns(make: Model, draw_ids: Ids, mixer: str) -> None:
    """More than memories have room for at first; convolutions make room by forgetting."""
    model, ids = make("causal_lm", mixer, stack=DEEP, exits={}), draw_ids(rows=2, steps=1)
    model.use_policy(BySteps())
    assert_scored(model, ids, ours(model, ids, max_new_tokens=80, min_new_tokens=80))


def test_token_layers_are_the_sum_of_depths(make: Model, draw_ids: Ids, mixer: str, policy: Policy) -> None:
    """Nothing runs for tokens that have left, nor for rows that have ended (I9); eager fills write all the rest."""
    model, ids = make("seq2seq", mixer, stack=DEEP, exits={}), draw_ids(padding=LENGTHS)
    model.use_policy(policy)
    limits = [1, 4, 2, 6, 3]
    found = ours(model, ids, fill="eager", limits=limits, min_new_tokens=6)
    assert (found.depths > 0).sum(1).tolist() == limits
    assert found.num_token_layers == int(found.depths.sum())
    assert found.num_filled == int((found.depths > 0).sum()) * LAYERS - found.num_token_layers


def test_deferred_fills_write_only_what_is_read(make: Model, draw_ids: Ids) -> None:
    """Where nobody goes deeper, nothing; convolutions never write what is out of reach."""
    ids = draw_ids(rows=2)
    for mixer, reach in (("attention", NEW - 1), ("lightconv", 2)):
        model = make("seq2seq", mixer, stack=DEEP, exits={})
        model.use_policy(At(2))
        assert ours(model, ids).num_filled == 0
        model.use_policy(LastGoesDeep())
        assert ours(model, ids, min_new_tokens=NEW).num_filled == 2 * reach


# Fills that run what was skipped


@pytest.mark.parametrize(("chosen", "max_pending"), [(ByState, 1), (ByState, 100), (BySteps, 3)])
def test_recomputed_memory_is_that_of_the_whole_stack(
    make: Model, draw_ids: Ids, mixer: str, chosen: Callable[[], Policy], max_pending: int
) -> None:
    """Each token is scored by its exit of a model in which all earlier tokens ran to the end (I7)."""
    model = make("causal_lm", mixer, stack=DEEP, exits=EXITS[1])
    model.use_policy(chosen())
    ids, limits = draw_ids(padding=LENGTHS), [8, 4, 8, 6, 7]
    found = ours(model, ids, fill="recompute", max_pending=max_pending, limits=limits, min_new_tokens=8)
    model.use_policy(None)
    sequences = found.sequences[:, :-1]
    mask = torch.cat([found.prompt != PADDING, torch.ones_like(found.tokens[:, 1:], dtype=torch.bool)], dim=1)
    whole = model(sequences, mask, output_hidden_states=True).hidden_by_depth
    stack, first = model.model.decoder.stack, ids.shape[1] - 1
    for row, step in (found.depths > 0).nonzero().tolist():
        depth = int(found.depths[row, step])
        state = stack.normalized(whole[depth][row : row + 1, first + step : first + step + 1], depth)
        score = model.head_at(depth)(state)[0, 0].log_softmax(-1)[found.tokens[row, step]]
        torch.testing.assert_close(found.scores[row, step].double(), score, rtol=1e-5, atol=1e-6)
    assert found.num_token_layers == int(found.depths.sum())


def test_recompute_in_a_beam(make: Model, draw_ids: Ids, mixer: str) -> None:
    """How many columns wait changes when blocks run, and nothing else."""
    model, ids = make("seq2seq", mixer, stack=DEEP, exits={}), draw_ids(padding=LENGTHS)
    model.use_policy(ByState())
    one, many = (ours(model, ids, fill="recompute", max_pending=pending, **BEAM) for pending in (1, 100))
    assert torch.equal(one.tokens, many.tokens)
    assert torch.equal(one.depths, many.depths)
    assert_close(one.scores, many.scores)
    assert one.num_token_layers == many.num_token_layers


# Limits, weights and errors


def test_rows_end_at_their_limits(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq"), draw_ids(padding=LENGTHS)
    limits = [1, 4, 2, 6, 3]
    for search in ({}, BEAM):
        found = Decoding(model).generate(ids, limits=limits, suppress_tokens=[PADDING], min_new_tokens=0, **search)
        ends = (found.tokens == END).int().argmax(1) + 1
        assert (found.tokens == END).any(1).all()
        assert all(end <= limit for end, limit in zip(ends.tolist(), limits, strict=True))
    free = ours(model, ids, eos_token_id=None, suppress_tokens=[PADDING, END])
    bound = ours(model, ids, limits=limits, max_new_tokens=None, min_new_tokens=6)
    for row, limit in enumerate(limits):
        assert bound.tokens[row, : limit - 1].tolist() == free.tokens[row, : limit - 1].tolist()
        assert int(bound.tokens[row, limit - 1]) == END


def test_weights_that_changed_are_noticed(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq").float(), draw_ids(rows=3)
    decoding = Decoding(model)
    before = decoding.generate(ids, max_new_tokens=NEW)
    with torch.no_grad():
        model.head.weight.normal_()
        model.model.decoder.stack.layers[0].feed_forward.hidden.weight.normal_()
    after = decoding.generate(ids, max_new_tokens=NEW)
    assert torch.equal(after.sequences, model.generate(ids, max_new_tokens=NEW))
    assert not torch.equal(after.tokens, before.tokens)


@pytest.mark.parametrize("rows", [1, 5])
def test_float32_differs_only_where_two_tokens_are_as_good_as_equal(
    make: Model, draw_ids: Ids, mixer: str, rows: int
) -> None:
    model, ids = make("seq2seq", mixer).float(), draw_ids(rows=rows)
    fast, slow = ours(model, ids, max_new_tokens=15).sequences, theirs(model, ids, max_new_tokens=15).sequences
    length = min(fast.shape[1], slow.shape[1])
    for row, different in enumerate(fast[:, :length] != slow[:, :length]):
        if different.any():
            step = int(different.nonzero()[0])
            best = model(ids[row : row + 1], decoder_input_ids=slow[row : row + 1, :step]).logits[0, -1].topk(2).values
            assert best[0] - best[1] < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fill": "lazy"}, 'no fill "lazy"; use one of eager, deferred, recompute'),
        ({"fill": "recompute", "max_pending": 0}, "max_pending is 0"),
        ({"num_beems": 2}, "knows no num_beems"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 2, "do_sample": True}, "samples without beams"),
        ({"num_return_sequences": 2}, "set num_beams"),
        ({"num_beams": 2, "num_return_sequences": 3}, "a beam of 2 has no 3 sequences"),
        ({"do_sample": True, "temperature": 0.0}, "must be above 0"),
        ({"early_stopping": "soon"}, "True, False or 'never'"),
        ({"do_sample": True, "generators": []}, "0 generators for 2 rows"),
        ({"decoder_start_token_id": [1]}, "1 start tokens for 2 sources"),
        ({"max_new_tokens": None, "max_length": 1}, "the prompt alone has 1"),
        ({"max_new_tokens": 40, "min_new_tokens": 40}, "max_positions is 30; ask for fewer"),
        ({"input_ids": None}, "input_ids is missing"),
    ],
)
def test_what_cannot_be_done(make: Model, draw_ids: Ids, options: dict[str, Any], message: str) -> None:
    model = make("seq2seq", stack={"max_positions": 30})
    with pytest.raises(InputError, match=message):
        Decoding(model).generate(**{"input_ids": draw_ids(rows=2), "max_new_tokens": 3, **options})


def test_settings_of_a_model_that_the_engine_does_not_know(make: Model, draw_ids: Ids) -> None:
    model = make("seq2seq")
    model.generation_config.forced_eos_token_id = END
    with pytest.raises(InputError, match=r"knows no forced_eos_token_id; leave it out, or search with the model's own"):
        generate(model, draw_ids())


def test_models_in_training_are_refused(make: Model, draw_ids: Ids) -> None:
    with pytest.raises(InputError, match=r"call model\.eval\(\) first"):
        generate(make("seq2seq").train(), draw_ids())


def test_plans_beyond_the_stack(make: Model, draw_ids: Ids) -> None:
    model = make("seq2seq", stack=DEEP, exits={})
    model.use_policy(At(LAYERS + 1))
    with pytest.raises(InputError, match="found 5 to 5"):
        generate(model, draw_ids())
