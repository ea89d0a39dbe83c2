"""Fast decoding makes the tokens of Transformers' generate, for every mixer, policy, fill and search."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.depth import Context, Policy, State, Visit
from depthwise.engine.decoding import Decoding, Generated
from depthwise.models.generation import generated_depths

PADDING, LAYERS, NEW = 1, 4, 7
DEEP = {"num_layers": LAYERS}
SEARCHES: dict[str, dict[str, Any]] = {"greedy": {}, "beam": {"num_beams": 3}}
EXITS: dict[str, dict[str, Any]] = {"tied": {}, "separate": {"heads": "separate"}, "some": {"depths": [1, 3]}}
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


class ByState(Policy):
    """Leaves by the sign of one number of the state; counts how often it was asked."""

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


POLICIES: dict[str, Callable[[], Policy] | None] = {
    "none": None,
    "by state": ByState,
    "by scores": ByScores,
    "planned": BySteps,
}


def theirs(model: Any, ids: Tensor, **options: Any) -> Any:
    limits = {"max_new_tokens": NEW, "suppress_tokens": [PADDING], "return_dict_in_generate": True}
    return model.generate(ids, attention_mask=ids != PADDING, **{**limits, "output_scores": True, **options})


def ours(model: Any, ids: Tensor, **options: Any) -> Generated:
    limits = {"max_new_tokens": NEW, "suppress_tokens": [PADDING]}
    return Decoding(model).generate(ids, ids != PADDING, **{**limits, **options})


def assert_same(found: Generated, expected: Any, prompt_length: int) -> None:
    """Tokens, depths of those before the end, and scores of sequences."""
    assert torch.equal(found.sequences, expected.sequences)
    depths = generated_depths(expected)[:, : found.tokens.shape[1]]
    made = found.depths > 0
    assert torch.equal(found.depths[made], depths[made])
    if "sequences_scores" in expected:
        torch.testing.assert_close(found.scores, expected.sequences_scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_tokens_are_those_of_generate(
    build: Model, draw_ids: Ids, mixer: str, head: str, policy: str, search: str
) -> None:
    make, exits = POLICIES[policy], EXITS[list(EXITS)[len(mixer) % 3]]
    model = build(head, mixer, stack=DEEP, exits=exits)
    model.use_policy(None if make is None else make())
    for ids in (draw_ids(rows=1), draw_ids(padding=[0, 2, -5, 4, -1])):
        expected = theirs(model, ids, **SEARCHES[search])
        for fill in ("deferred",) if make is None else ("eager", "deferred"):
            found = ours(model, ids, fill=fill, **SEARCHES[search])
            assert_same(found, expected, ids.shape[1] if head == "causal_lm" else 1)
