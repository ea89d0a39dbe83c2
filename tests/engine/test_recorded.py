"""Recorded decoding makes the tokens of decoding that Python runs, for every mixer, policy and search.

A CPU has no graphs: here every piece of work is the function that was first given for it, called again and again, so
that whatever depends on the step and not on tables shows. Tables begin small, so that they have to grow.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config.depth import (
    ConfidenceConfig,
    FixedDepthConfig,
    PatienceConfig,
    TokenExitConfig,
    UniformExitConfig,
)
from depthwise.depth import ConfidenceThreshold, FixedDepth, Patience, Policy, TokenExit, UniformExit
from depthwise.engine import Engine, static_state
from depthwise.engine.decoding import Decoding, Generated
from depthwise.engine.recorded import RecordedDecoding
from depthwise.engine.recorder import Recorder, Rehearsal
from depthwise.errors import InputError

from .test_decoding import At, ByScores, ByState, BySteps

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
    "uniform": lambda model: UniformExit(UniformExitConfig()),
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


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_state, "LEAST_CAPACITY", 4)
    monkeypatch.setattr(static_state, "LEAST_SOURCE", 2)


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
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-5, atol=1e-6)
    for count in ("num_token_layers", "num_steps", "num_filled"):
        assert getattr(found, count) == getattr(expected, count), count


# Every mixer, policy and search


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_the_whole_stack(make: Model, draw_ids: Ids, mixer: str, head: str) -> None:
    """Batches of several sizes, one after the other, from the same tables."""
    model = make(head, mixer)
    recorded, plain = rehearsed(model), Decoding(model)
    for padding, search in ([1, -2], {}), *((LENGTHS, search) for search in SEARCHES), ([0], {}):
        ids = draw_ids(padding=padding)
        assert_same(run(recorded, ids, **search), run(plain, ids, **search))


@pytest.mark.parametrize("policy", POLICIES)
def test_under_policies(make: Model, draw_ids: Ids, mixer: str, policy: str) -> None:
    head = ("seq2seq", "causal_lm")[(len(mixer) + len(policy)) % 2]
    model = make(head, mixer, stack=DEEP, exits=EXITS[len(mixer) % 3])
    model.use_policy(POLICIES[policy](model))
    recorded, plain = rehearsed(model), Decoding(model)
    for padding, search in (LENGTHS, {}), (LENGTHS, BEAM), ([0], {}):
        ids = draw_ids(padding=padding)
        assert_same(run(recorded, ids, **search), run(plain, ids, **search))


OTHER_MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm": "post"},
    "learned positions": {"stack": {"positions": "learned", "max_positions": 30}},
    "no positions": {"stack": {"positions": "none"}},
    "shared layers": {"stack": {"num_layers": 4, "shared_layers": [0, 0, 1, 0]}},
    "narrow embedding": {"embedding_width": 4, "embedding_norm": True, "head_transform": "gelu"},
    "adaptive softmax": {"adaptive": {"cutoffs": [6, 11], "factor": 2}},
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_other_models(make: Model, draw_ids: Ids, name: str) -> None:
    model, ids = make("causal_lm", exits={}, **OTHER_MODELS[name]), draw_ids(padding=LENGTHS)
    for policy in (None, ByScores()):
        model.use_policy(policy)
        assert_same(run(rehearsed(model), ids), run(Decoding(model), ids))


def test_one_depth_for_all(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq", stack=DEEP, exits={"heads": "separate"}), draw_ids(padding=LENGTHS)
    recorded, plain = rehearsed(model), Decoding(model)
    for depth in (1, 3, LAYERS):
        for policy in (FixedDepth(FixedDepthConfig(depth=depth)), At(depth)):
            model.use_policy(policy)
            found = run(recorded, ids)
            assert_same(found, run(plain, ids))
            assert set(found.depths.flatten().tolist()) <= {0, depth}


# Searches


RESTRICTED: dict[str, dict[str, Any]] = {
    "limits": {"limits": [3, 1, 6, 2, 5], "max_new_tokens": None},
    "limits and a least length": {"limits": [3, 1, 6, 2, 5], "min_new_tokens": 4, "max_new_tokens": None},
    "least length": {"min_new_tokens": 4, "suppress_tokens": None},
    "no end": {"eos_token_id": []},
    "several ends": {"eos_token_id": [END, 5, 6, 7]},
    "most length": {"max_length": 9, "max_new_tokens": None},
}


@pytest.mark.parametrize("name", RESTRICTED)
@pytest.mark.parametrize("policy", [None, ByState()])
def test_restrictions(make: Model, draw_ids: Ids, name: str, policy: Policy | None) -> None:
    """Rows end at different steps, and leave."""
    model, ids = make("causal_lm", stack=DEEP, exits={}), draw_ids(padding=LENGTHS)
    model.use_policy(policy)
    recorded, plain = rehearsed(model), Decoding(model)
    for _ in range(2):
        assert_same(run(recorded, ids, **RESTRICTED[name]), run(plain, ids, **RESTRICTED[name]))


def test_many_rows_that_end(make: Model, draw_ids: Ids) -> None:
    """Rows stay where they are until the rest is half; what is left is that of the right rows."""
    model, ids = make("seq2seq", "dynamicconv", exits={}), draw_ids(rows=21)
    limits = torch.randint(1, 20, (21,)).tolist()
    for policy in (None, BySteps()):
        model.use_policy(policy)
        options = {"limits": limits, "min_new_tokens": 20, "max_new_tokens": None}
        found = run(rehearsed(model), ids, **options)
        assert (found.depths > 0).sum(1).tolist() == limits
        assert_same(found, run(Decoding(model), ids, **options))


@pytest.mark.parametrize("policy", [None, ByState()])
def test_sampling(make: Model, draw_ids: Ids, policy: Policy | None) -> None:
    """The same generators choose the same tokens."""
    model, ids = make("seq2seq", stack=DEEP, exits={}), draw_ids(padding=LENGTHS)
    model.use_policy(policy)

    def drawn(decoding: Decoding) -> Generated:
        generators = [torch.Generator().manual_seed(row) for row in range(len(ids))]
        return run(decoding, ids, do_sample=True, top_k=0, temperature=2.0, generators=generators)

    assert_same(drawn(rehearsed(model)), drawn(Decoding(model)))


def test_batches_of_one_engine(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq", stack=DEEP, exits={}), draw_ids(padding=[0, 2, 5, 4, 1, 0, 3])
    model.use_policy(BySteps())
    recorded, plain = Engine(model), Engine(model, graphs=False)
    recorded._decoding = rehearsed(model)
    found, expected = (
        engine.generate(ids, ids != PADDING, max_new_tokens=NEW, rows_at_once=3) for engine in (recorded, plain)
    )
    assert_same(found, expected)


def test_the_last_position(make: Model, draw_ids: Ids) -> None:
    """A text may end where positions do, and one that does not is an error; the step too many is none."""
    model = make("causal_lm", stack={"positions": "learned", "max_positions": 9})
    recorded, ids = rehearsed(model), draw_ids(rows=3)
    ending = {"limits": [4, 4, 3], "max_new_tokens": 8}
    assert_same(run(recorded, ids, **ending), run(Decoding(model), ids, **ending))
    with pytest.raises(InputError, match="max_positions is 9; ask for fewer tokens"):
        run(recorded, ids, eos_token_id=[])


# What is kept from one text to the next


def test_nothing_is_left_of_earlier_texts(make: Model, draw_ids: Ids, mixer: str) -> None:
    """Not even where numbers were none."""
    model, ids = make("seq2seq", mixer, stack=DEEP, exits={}), draw_ids(padding=LENGTHS)
    model.use_policy(ByState())
    recorded = rehearsed(model)
    expected = run(recorded, ids)
    recording = recorded._recorded._recording
    assert recording is not None
    for (name, _), storage in recording.arena._storage.items():
        if storage.is_floating_point() and name != "positions":
            with torch.inference_mode():
                storage.fill_(torch.nan)
    found = run(recorded, ids)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.scores, expected.scores)


def test_tables_stay_where_they_are(make: Model, draw_ids: Ids) -> None:
    """Smaller batches and shorter texts need no others, nor do those that were there before."""
    model = make("seq2seq")
    recorded = rehearsed(model)

    def generate(rows: int, **options: Any) -> int:
        run(recorded, draw_ids(rows=rows), **options)
        recording = recorded._recorded._recording
        assert recording is not None
        return recording.arena.num_moves

    most = generate(7)
    assert [generate(rows) for rows in (1, 5, 8)] == [most] * 3
    assert generate(2, max_new_tokens=3) == most
    more = generate(9)
    assert more > most
    assert generate(7) == generate(16) == more


def test_changed_weights(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq"), draw_ids()
    recorded = rehearsed(model)
    before = run(recorded, ids)
    with torch.no_grad():
        model.head.weight.neg_()
    found = run(recorded, ids)
    assert not torch.equal(found.tokens, before.tokens)
    assert_same(found, run(Decoding(model), ids))


def test_changed_policies(make: Model, draw_ids: Ids) -> None:
    """Another one, the same one with other options, and with other weights."""
    model, ids = make("seq2seq", stack=DEEP, exits={}), draw_ids(padding=LENGTHS)
    recorded, plain = rehearsed(model), Decoding(model)
    policy = ConfidenceThreshold(ConfidenceConfig(threshold=(0.2,)))
    token = TokenExit(TokenExitConfig(), width=8, num_exits=LAYERS).double()
    model.use_policy(policy)
    first = run(recorded, ids)
    policy.options = replace(policy.options, threshold=(0.05,))
    second = run(recorded, ids)
    assert not torch.equal(first.depths, second.depths)
    assert_same(second, run(plain, ids))
    model.use_policy(token)
    third = run(recorded, ids)
    assert_same(third, run(plain, ids))
    with torch.no_grad():
        token.classifier.bias.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0]))
    fourth = run(recorded, ids)
    assert set(fourth.depths.flatten().tolist()) <= {0, 2}
    assert_same(fourth, run(plain, ids))


# Which way is taken


def test_a_cpu_records_nothing(make: Model, draw_ids: Ids) -> None:
    model, ids = make("seq2seq"), draw_ids()
    for graphs in ("auto", False):
        assert not Engine(model, graphs=graphs).generate(ids, max_new_tokens=2).recorded
    with pytest.raises(InputError, match="CUDA graphs do not serve a model on a CPU; move it to a GPU, or"):
        Engine(model, graphs=True).generate(ids, max_new_tokens=2)
    with pytest.raises(InputError, match="graphs is 'always', but may be \"auto\", True or False"):
        Engine(model, graphs="always")  # type: ignore[arg-type]


def test_what_is_not_recorded(make: Model, draw_ids: Ids) -> None:
    """With graphs by all means it is an error, and with "auto" Python runs it."""
    model, ids = make("seq2seq", exits={}), draw_ids()
    model.use_policy(ByState())
    with pytest.raises(InputError, match='the fill "recompute"; use "deferred"'):
        run(rehearsed(model), ids, fill="recompute")
    automatic = Decoding(model)
    automatic._recorded = Rehearsed("auto")
    assert not run(automatic, ids, fill="recompute").recorded
