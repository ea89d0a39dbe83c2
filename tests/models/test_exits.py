"""Tokens that leave: the model is the fixed one where nobody does, and a shorter one where all do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import UniformExitConfig, check_model, parse_model, parse_policy
from depthwise.depth import Context, Plan, Policy, State, UniformExit, Visit, build_policy
from depthwise.errors import ConfigError, InputError
from depthwise.models.generation import generated_depths

PADDING, LAYERS, STEPS = 1, 4, 5
DEEP = {"num_layers": LAYERS}
EXITS: dict[str, dict[str, Any]] = {
    "tied": {},
    "separate": {"heads": "separate"},
    "some": {"depths": [1, 3], "heads": "separate"},
}
ENCODERS = ("sequence_classification", "token_classification", "question_answering")
Model = Callable[..., Any]
Ids = Callable[..., Tensor]
Batch = Callable[..., dict[str, Tensor]]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


class Never(Policy):
    """Looks at nothing, and lets nobody leave."""

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        return torch.zeros(visit.context.shape, dtype=torch.bool), state


class At(Policy):
    """Everybody leaves at one depth."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        return torch.full(visit.context.shape, visit.depth >= self.depth), state


class Planned(At):
    """The same, said in advance."""

    plans = True

    def plan(self, context: Context) -> Tensor:
        return torch.full(context.shape, self.depth)


class ByState(Policy):
    """Leaves by the sign of one number of the state; needs to have been asked before."""

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        count = state.get("count", torch.zeros(visit.context.shape, dtype=torch.long)) + 1
        assert int(count.max()) == visit.index + 1
        assert (visit.before is None) == (visit.index == 0)
        return visit.hidden[..., 0] > 0.1, {"count": count}


class ByScores(Policy):
    """Leaves where the first guess is even; those it looks at are normalised."""

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        torch.testing.assert_close(visit.log_prob.exp().sum(-1), torch.ones(visit.context.shape, dtype=torch.float64))
        return visit.log_prob.argmax(-1) % 2 == 0, state


POLICIES = {"by state": ByState, "by scores": ByScores, "uniform": lambda: UniformExit(UniformExitConfig())}


@pytest.fixture(params=EXITS)
def exits(request: pytest.FixtureRequest) -> dict[str, Any]:
    return EXITS[request.param]


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]()


def _count(calls: list[int], *_: Any) -> None:
    calls.append(1)


def inputs_of(head: str, draw_batch: Batch) -> dict[str, Tensor]:
    return {name: value for name, value in draw_batch(head).items() if head == "seq2seq" or name != "labels"}


def depths_of(model: Any) -> list[int]:
    return list(model.config.options.exit_depths)


# Nobody leaves, all leave


def test_where_nobody_leaves_the_model_is_the_fixed_one(
    build: Model, draw_batch: Batch, head: str, norm: str, exits: dict[str, Any]
) -> None:
    """Bit for bit, with as many calls of blocks, and none of other heads (I1)."""
    if head == "masked_lm":
        return
    model, batch, calls = build(head, norm=norm, stack=DEEP, exits=exits), inputs_of(head, draw_batch), []
    for name, module in model.named_modules():
        if ("layers." in name and name.count(".") == 4) or name.startswith("exit_heads."):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    fixed = model(**batch)
    num_fixed = len(calls)
    model.use_policy(Never())
    adaptive = model(**batch)
    real = slice(None) if head in ("seq2seq", "sequence_classification") else batch["attention_mask"].bool()
    assert torch.equal(adaptive.logits[real], fixed.logits[real])
    assert torch.equal(adaptive.depths, fixed.depths)
    assert len(calls) == 2 * num_fixed


def test_where_all_leave_the_model_is_a_shorter_one(
    build: Model, draw_batch: Batch, head: str, norm: str, exits: dict[str, Any]
) -> None:
    """Cut after n blocks, with the norm and the head of exit n (I2); blocks above do not run."""
    if head == "masked_lm":
        return
    model, batch = build(head, norm=norm, stack=DEEP, exits=exits), inputs_of(head, draw_batch)
    side = model.model.encoder if model.model.decoder is None else model.model.decoder
    valid = batch["attention_mask"].bool()
    whole = model(**batch, output_hidden_states=True).hidden_by_depth
    for depth in depths_of(model):
        states, calls = side.stack.normalized(whole[depth], depth), []
        if head == "sequence_classification":
            expected = model.head_at(depth)(model.pooled(states, valid))
        else:
            expected = model.head_at(depth)(states)
        if head == "question_answering":
            expected = expected.masked_fill(~valid.unsqueeze(-1), torch.finfo(expected.dtype).min)
        count = partial(_count, calls)
        hooks = [block.register_forward_hook(count) for block in side.stack.layers]
        for policy in (At(depth), Planned(depth)):
            model.use_policy(policy)
            output = model(**batch)
            kept = slice(None) if head in ("sequence_classification", "seq2seq") else valid
            assert_same(output.logits[kept], expected[kept])
            real = torch.ones_like(output.depths, dtype=torch.bool) if head == "seq2seq" else valid
            assert (output.depths == depth * real).all()
        assert len(calls) == 2 * depth
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm", *ENCODERS])
def test_rows_do_not_depend_on_each_other(
    build: Model, draw_batch: Batch, head: str, mixer: str, policy: Policy
) -> None:
    model, batch = build(head, mixer, stack=DEEP, exits=EXITS["some"]), inputs_of(head, draw_batch)
    model.use_policy(policy)
    together = model(**batch)
    depths = set(together.depths.flatten().tolist())
    assert depths <= {0, *depths_of(model)}
    for row in range(len(batch["input_ids"])):
        alone = model(**{name: value[row : row + 1] for name, value in batch.items()})
        assert torch.equal(alone.depths[0], together.depths[row])
        assert_same(alone.logits[0], together.logits[row])


# Decoding


def stepwise(model: Any, ids: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
    """Logits and depths of all steps, one at a time."""
    name = "decoder_input_ids" if inputs else "input_ids"
    outputs, state = [], None
    for step in range(ids.shape[1]):
        output = model(**inputs, **{name: ids[:, step : step + 1]}, past_key_values=state, use_cache=True)
        state = output.past_key_values
        outputs.append(output)
    logits = torch.cat([output.logits for output in outputs], dim=1)
    return logits, torch.cat([output.depths for output in outputs], dim=1)


@pytest.mark.parametrize(("rows", "norm", "exits"), [(1, "pre", "some"), (5, "pre", "separate"), (5, "post", "tied")])
def test_step_by_step_is_all_at_once(
    build: Model, draw_ids: Ids, mixer: str, policy: Policy, rows: int, norm: str, exits: str
) -> None:
    """The same depths and scores, under the policy and under a plan of the depths it found (I5)."""
    model, ids = build("causal_lm", mixer, norm, stack=DEEP, exits=EXITS[exits]), draw_ids(rows, STEPS)
    model.use_policy(policy)
    whole = model(ids)
    logits, depths = stepwise(model, ids)
    assert torch.equal(depths, whole.depths)
    assert_same(logits, whole.logits)
    model.use_policy(None)
    assert_same(model(ids, plan=Plan.of_depths(depths, LAYERS)).logits, logits)


def test_translation_step_by_step(build: Model, draw_ids: Ids, mixer: str, policy: Policy) -> None:
    model = build("seq2seq", mixer, stack=DEEP, exits=EXITS["separate"])
    source, target = draw_ids(padding=[0, 2, 1]), draw_ids(3, STEPS)
    model.use_policy(policy)
    whole = model(source, decoder_input_ids=target)
    encoded = model.model.encoder(source)
    mask = source != PADDING
    logits, depths = stepwise(model, target, encoder_outputs=encoded, attention_mask=mask)
    assert torch.equal(depths, whole.depths)
    assert_same(logits, whole.logits)


@pytest.mark.parametrize(("num_beams", "exits"), [(1, "some"), (3, "tied"), (3, "separate")])
def test_what_is_generated_has_the_score_it_was_given(
    build: Model, draw_ids: Ids, mixer: str, policy: Policy, num_beams: int, exits: str
) -> None:
    """Every hypothesis carries its own depths; the whole text, scored under them, has the sum of its steps (I6)."""
    model, source = build("seq2seq", mixer, stack=DEEP, exits=EXITS[exits]), draw_ids(padding=[0, 2])
    model.use_policy(policy)
    options = {"num_beams": num_beams, "max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    found = model.generate(source, **options, length_penalty=0.0, early_stopping=False)
    depths = generated_depths(found)
    ids = found.sequences
    num_made = ids.shape[1] - 1
    steps = model.compute_transition_scores(
        ids, found.scores, found.get("beam_indices"), normalize_logits=num_beams == 1
    )
    made = (ids[:, 1:] != PADDING) & (depths[:, :num_made] > 0)
    model.use_policy(None)
    plan = Plan.of_depths(depths[:, :num_made], LAYERS)
    logits = model(source, decoder_input_ids=ids[:, :-1], plan=plan).logits
    scores = logits.log_softmax(-1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(steps[made].double(), scores[made], rtol=1e-5, atol=1e-6)
    assert made.any()


def test_sampling(build: Model, draw_ids: Ids, policy: Policy) -> None:
    model = build("causal_lm", "dynamicconv", stack=DEEP, exits={})
    model.use_policy(policy)
    torch.manual_seed(3)
    found = model.generate(draw_ids(2, 3), do_sample=True, max_new_tokens=5, return_dict_in_generate=True)
    assert set(generated_depths(found).flatten().tolist()) <= set(range(1, LAYERS + 1))


# What models make of their options


def test_policies_are_no_part_of_a_model(build: Model) -> None:
    model = build("causal_lm", stack=DEEP, exits={})
    names = set(model.state_dict())
    model.use_policy(ByState())
    assert set(model.state_dict()) == names
    model.train()
    assert model.leaving() is None


def test_each_exit_of_a_pre_norm_stack_has_its_norm(build: Model, norm: str) -> None:
    for norms, own in (("separate", {"1", "2", "3"}), ("shared", set())):
        if norms == "shared" and norm != "pre":
            continue
        model = build("causal_lm", norm=norm, stack=DEEP, exits={"norms": norms})
        assert set(model.model.decoder.stack.exit_norms) == (own if norm == "pre" else set())


def test_only_the_side_that_is_left_has_norms_of_exits(build: Model) -> None:
    model = build("seq2seq", stack=DEEP, exits={})
    assert not model.model.encoder.stack.exit_norms
    assert len(model.model.decoder.stack.exit_norms) == LAYERS - 1


def test_a_model_without_exits_takes_no_policy(build: Model) -> None:
    model = build("causal_lm")
    with pytest.raises(InputError, match="no exits"):
        model.use_policy(Never())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": [2, 1]}, "from low to high"),
        ({"depths": []}, "from low to high"),
        ({"depths": [0]}, "from low to high"),
        ({"depths": [9]}, "no exit after 9"),
        ({"depths": [6]}, "names the end alone"),
        ({"heads": "many"}, "tied"),
        ({"norms": "shared"}, "without a last norm"),
        ({"hats": 3}, "unknown"),
    ],
)
def test_exits_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_model({"vocab_size": 9, "decoder": {}, "exits": options})


def test_bands_have_one_head() -> None:
    adaptive = {"cutoffs": [4], "factor": 2}
    with pytest.raises(ConfigError, match="adaptive softmax serves all exits or none"):
        parse_model({"vocab_size": 9, "decoder": {}, "exits": {"heads": "separate"}, "adaptive": adaptive})
    assert not check_model(parse_model({"vocab_size": 9, "decoder": {}, "exits": {}, "adaptive": adaptive}))


def test_one_block_has_nowhere_to_leave() -> None:
    with pytest.raises(ConfigError, match="nowhere to leave"):
        parse_model({"vocab_size": 9, "decoder": {"num_layers": 1}, "exits": {}})


def test_an_adaptive_softmax_serves_all_exits(build: Model, draw_ids: Ids) -> None:
    model = build("causal_lm", stack=DEEP, exits={}, adaptive={"cutoffs": [6, 11], "factor": 2})
    model.use_policy(ByScores())
    ids = draw_ids(3, STEPS)
    logits, depths = stepwise(model, ids)
    assert torch.equal(depths, model(ids).depths)
    assert_same(logits, model(ids).logits)


def test_the_policy_in_use_goes_where_its_model_goes(build: Any) -> None:
    model = build("token_classification", "attention", exits={"heads": "separate"}, num_labels=3)
    policy = build_policy(parse_policy({"kind": "token"}), width=8, exits=model.exit_depths, has_source=False)
    model.use_policy(policy.float())
    model.double()
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float64}
    assert not any(parameter is other for parameter in policy.parameters() for other in model.parameters())
