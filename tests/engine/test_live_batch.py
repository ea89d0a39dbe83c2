"""Rows come and go as they like; what each of them says is what it says by itself.

Everything is float64, where only the order of sums may differ.
"""

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depthwise.config import parse_policy
from depthwise.depth import Policy, SequenceExit, build_policy
from depthwise.engine import Engine, columns
from depthwise.engine.decoding import Decoding
from depthwise.engine.live_batch import Joining, LiveBatch
from depthwise.engine.requests import Request, request_of
from depthwise.errors import InputError

from ..models.conftest import HEADS, MIXERS, config_for, randomized
from .test_decoding import BySteps
from .test_encoder import POLICIES

LAYERS = 4
SEED = st.integers(0, 2**31)
FILLED = ("eager", "deferred", "recompute")
DECIDING = {**POLICIES, "confidence": {"kind": "confidence", "threshold": 0.3}, "sequence": {"kind": "sequence"}}
BOTH = [*sorted(POLICIES), "steps", "full"]


def model_of(head: str, mixer: str, norm: str = "pre", **options: Any) -> Any:
    changes = {"stack": {"num_layers": LAYERS}, "exits": {"heads": "separate"}, "tied_embeddings": "none", **options}
    return randomized(HEADS[head](config_for(head, mixer, norm, **changes))).double().eval()


def policy_of(model: Any, name: str, head: str) -> Policy | None:
    """A policy by name, with random parameters."""
    if name == "full":
        return None
    if name == "steps":
        return BySteps()
    config, width = parse_policy(DECIDING[name]), model.config.options.width
    policy = build_policy(config, width=width, exits=model.exit_depths, has_source=head == "seq2seq")
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return policy.double()


def alone(model: Any, ids: Tensor, policy: Policy | None, fill: str = "deferred", **options: Any) -> Any:
    """What the engine says of one request."""
    before = model.policy
    model.use_policy(policy)
    try:
        return Engine(model).generate(ids.unsqueeze(0), torch.ones(1, len(ids)), fill=fill, **options)
    finally:
        model.use_policy(before)


class Crowd:
    """Requests with random sources or prompts and options, which join and leave a batch at random times.

    Some are made ready together but join later.
    """

    def __init__(self, model: Any, seed: int, policies: list[Policy | None], fill: str = "deferred") -> None:
        torch.manual_seed(seed)
        self.model, self.fill, self.choose = model, fill, random.Random(seed)
        self.policies = policies
        self.batch: LiveBatch = Decoding(model).live_batch(4, fill, 3)
        self.asked: list[tuple[Request, Tensor, dict[str, Any], int]] = []
        self.called_off: set[int] = set()
        self.later: list[Joining] = []
        self.most_columns = self.most_rows = 0

    def join(self, count: int) -> None:
        found = []
        for _ in range(count):
            ids, options, seed = *self._drawn(), self.choose.randrange(2**31)
            policy = self.choose.choice(self.policies)
            request = request_of(self.model, ids, policy, self._with_generator(options, seed))
            self.asked.append((request, ids, options, seed))
            found.append(request)
        for joining in self.batch.arrivals(found):
            places = list(range(len(joining.requests)))
            self.choose.shuffle(places)
            cut = self.choose.randint(1, len(places))
            self.batch.admit([joining.those(places[:cut])])
            if places[cut:]:
                self.later.append(joining.those(places[cut:]))

    def _drawn(self) -> tuple[Tensor, dict[str, Any]]:
        choose = self.choose
        options: dict[str, Any] = {"max_new_tokens": choose.randint(1, 14), "eos_token_id": [2, 9]}
        options |= choose.choice([{}, {}, {"min_new_tokens": 3}, {"no_repeat_ngram_size": 2}, {"suppress_tokens": [7]}])
        options |= choose.choice([{}, {}, {"limits": [choose.randint(1, 9)]}])
        options |= choose.choice([{}, {"do_sample": True, "temperature": 1.3}, {"do_sample": True, "top_p": 0.8}])
        return torch.randint(4, 17, (choose.randint(1, 9),)), options

    @staticmethod
    def _with_generator(options: dict[str, Any], seed: int) -> dict[str, Any]:
        return options | ({"generators": [torch.Generator().manual_seed(seed)]} if options.get("do_sample") else {})

    def run(self, total: int, most: int) -> None:
        """Answer so many requests, at most some at a time; now and then one is called off."""
        while len(self.asked) < total or len(self.batch) or self.later:
            num_later = sum(len(joining.requests) for joining in self.later)
            room = min(most - len(self.batch) - num_later, total - len(self.asked))
            if self.later and (not len(self.batch) or self.choose.random() < 0.5):
                self.batch.admit([self.later.pop()])
            if room and (not len(self.batch) or self.choose.random() < 0.4):
                self.join(self.choose.randint(1, room))
            self.batch.step()
            self.most_columns = max(self.most_columns, self.batch.state.length)
            self.most_rows = max(self.most_rows, len(self.batch))
            leaving = [each for each in self.batch.requests if each.is_done]
            going_on = [each for each in self.batch.requests if not each.is_done]
            if going_on and self.choose.random() < 0.05:
                leaving.append(self.choose.choice(going_on))
                self.called_off.add(id(leaving[-1]))
            self.choose.shuffle(leaving)
            self.batch.drop(leaving)

    def check(self) -> None:
        """Everybody got what is due; who was called off got the beginning of it."""
        for request, ids, options, seed in self.asked:
            expected = alone(self.model, ids, request.policy, self.fill, **self._with_generator(options, seed))
            count = len(request.said)
            assert [each.token for each in request.said] == expected.tokens[0, :count].tolist()
            assert [each.depth for each in request.said] == expected.depths[0, :count].tolist()
            torch.testing.assert_close(torch.tensor([each.score for each in request.said]), expected.scores[0, :count])
            assert id(request) in self.called_off or count == expected.tokens.shape[1]


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=2)
@given(seed=SEED)
def test_everybody_is_answered_as_if_alone(head: str, mixer: str, seed: int) -> None:
    """Every mixer, fill and placement of norms: policies that decide on the way, that plan, and none, side by side."""
    model = model_of(head, mixer, ("pre", "post")[seed % 2])
    fill = FILLED[seed % 3]
    policies = [policy_of(model, name, head) for name in ("confidence", "full", "steps", "fixed")]
    crowd = Crowd(model, seed, policies, fill)
    crowd.run(10, 4)
    assert crowd.most_rows > 1
    crowd.check()


@pytest.mark.parametrize(
    ("head", "name"), [*(("seq2seq", name) for name in [*BOTH, "sequence"]), *(("causal_lm", name) for name in BOTH)]
)
def test_every_policy(head: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows by the same policy, with tables that begin small, and heads that serve all exits."""
    monkeypatch.setattr(columns, "FIRST_CAPACITY", 3)
    torch.manual_seed(3)
    model = model_of(head, "attention", exits={"heads": "tied"})
    policy = policy_of(model, name, head)
    assert (name == "sequence") == isinstance(policy, SequenceExit)
    crowd = Crowd(model, 3, [policy])
    crowd.run(12, 5)
    crowd.check()
    depths = {each.depth for request, *_ in crowd.asked for each in request.said}
    assert len(depths) > 1 or name in ("fixed", "full", "sequence")


@pytest.mark.parametrize("mixer", ["attention", "dynamicconv", "average", "windowed attention"])
@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_memory_does_not_grow(head: str, mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are bounded by the longest request and the most rows, however many requests there were."""
    monkeypatch.setattr(columns, "FIRST_CAPACITY", 4)
    crowd = Crowd(model_of(head, mixer), 5, [None])
    crowd.run(20, 4)
    sizes, longest = sizes_of(crowd.batch), 9 + 14
    crowd.run(100, 4)
    assert crowd.most_columns <= longest
    for before, after in zip(sizes, sizes_of(crowd.batch), strict=True):
        assert after[0] <= max(before[0], 4)
        assert after[1] <= 2 * (longest + 1)


def sizes_of(batch: LiveBatch) -> list[tuple[int, int]]:
    """Rows and columns of all tables."""
    state = batch.state
    tables = [memory._table for memory in [*state.memories, state.states] if hasattr(memory, "_table")]
    if state._live is not None:
        tables += [state._live._states._table, *(found[0]._table for found in state._live._layers.values())]
    assert state.states is not None
    return [(table.shape[0], table.shape[1]) for table in tables]


def test_layers_that_nobody_reaches_see_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of sources are written by a layer when somebody runs it, and then once."""
    model = model_of("seq2seq", "attention")
    crowd = Crowd(model, 1, [policy_of(model, "fixed", "seq2seq")])
    crowd.run(6, 3)
    assert crowd.batch.state._live is not None
    assert sorted(crowd.batch.state._live._layers) == [0, 1]
    written: list[int] = []
    cross = crowd.batch.prepared.blocks[0].cross
    assert cross is not None
    usual = cross.written
    monkeypatch.setattr(cross, "written", lambda states: (written.append(len(states)), usual(states))[1])
    crowd.run(20, 3)
    assert sum(written) == 14


def test_a_long_prompt_joins_a_short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more columns then than anybody has run."""
    monkeypatch.setattr(columns, "FIRST_CAPACITY", 3)
    for mixer in MIXERS:
        model = model_of("causal_lm", mixer)
        crowd = Crowd(model, 2, [None, policy_of(model, "confidence", "causal_lm")])
        crowd._drawn = lambda: (torch.randint(4, 17, (1,)), {"max_new_tokens": 25, "eos_token_id": None})  # type: ignore
        crowd.join(2)
        crowd.batch.step()
        crowd._drawn = lambda: (torch.randint(4, 17, (20,)), {"max_new_tokens": 12, "eos_token_id": None})  # type: ignore
        crowd.join(2)
        assert crowd.batch.state.length == 19
        crowd.run(4, 4)
        crowd.check()


def test_positions_end() -> None:
    """Who comes to the last position without an end has an error, and the others go on."""
    stack = {"num_layers": 2, "positions": "learned", "max_positions": 9}
    model = model_of("causal_lm", "attention", stack=stack)
    batch = Decoding(model).live_batch(4, "deferred", 3)
    options = {"eos_token_id": None}
    rows = [(torch.randint(4, 17, (length,)), most) for length, most in ((4, 7), (4, 6), (1, 9))]
    requests = [request_of(model, ids, None, {"max_new_tokens": most, **options}) for ids, most in rows]
    batch.admit(batch.arrivals(requests))
    while len(batch):
        batch.step()
        batch.drop([each for each in batch.requests if each.is_done])
    assert isinstance(requests[0].error, InputError)
    assert str(requests[0].error).startswith("input_ids has 10 steps but max_positions is 9")
    for request, (ids, most) in list(zip(requests, rows, strict=True))[1:]:
        assert request.error is None
        expected = alone(model, ids, None, max_new_tokens=most, **options)
        assert [each.token for each in request.said] == expected.tokens[0].tolist()
