"""What exits learn: the identities I10, I11 and I15, and the same loss however it is put together."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthwise.depth import Plan
from depthwise.errors import InputError
from depthwise.losses import ExitTargets
from depthwise.models.objective import ExitObjective
from depthwise.models.scaled_gradients import own_factors

LAYERS = 3
DEEP = {"num_layers": LAYERS}
HEADS = (
    *("seq2seq", "causal_lm", "masked_lm"),
    *("sequence_classification", "token_classification", "question_answering"),
)
WITH_POLICIES = tuple(head for head in HEADS if head != "masked_lm")
"""Heads beside which a policy learns."""
EXITS: dict[str, dict[str, Any]] = {"tied": {}, "separate": {"heads": "separate"}, "shared": {"norms": "shared"}}
NUM_ITEMS = 7
Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Those of all parameters; no gradient is one of 0."""
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(param) if param.grad is None else param.grad.clone()
        for name, param in model.named_parameters()
    }


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-9, atol=1e-12, msg=name)


def at_last(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The loss of the model itself."""
    loss: Tensor = model(**batch, num_items_in_batch=NUM_ITEMS).loss
    return loss


def at_depth(model: Any, batch: dict[str, Tensor], depth: int) -> Tensor:
    """The loss where everybody leaves at one depth."""
    ids = batch.get("labels") if model.config.is_encoder_decoder else batch["input_ids"]
    plan = Plan.of_depths(torch.full_like(ids, depth), LAYERS)
    loss: Tensor = model(**batch, num_items_in_batch=NUM_ITEMS, plan=plan).loss
    return loss


def taught(model: Any, batch: dict[str, Tensor], **objective: Any) -> Any:
    if isinstance(weights := objective.get("weights"), tuple):
        objective["weights"] = tuple(map(float, weights))
    return model(**batch, num_items_in_batch=NUM_ITEMS, objective=ExitObjective(**objective))


@pytest.fixture(params=HEADS)
def pair(request: pytest.FixtureRequest, build: Model, draw_batch: Batch) -> tuple[Any, dict[str, Tensor]]:
    """A model in training with exits of its own, and a batch."""
    model = build(request.param, stack=DEEP, exits={"heads": "separate"}).train()
    return model, draw_batch(request.param)


# I10


def test_the_last_exit_alone_is_the_standard_loss(pair: Any) -> None:
    model, batch = pair
    output = taught(model, batch, weights=(0, 0, 1))
    standard = at_last(model, batch)
    assert_same(output.loss, standard)
    assert_same_gradients(gradients(model, output.loss), gradients(model, standard))
    assert output.logits is None


def test_weights_have_any_scale(pair: Any) -> None:
    model, batch = pair
    ours, theirs = (taught(model, batch, weights=weights).loss for weights in ((1, 2, 4), torch.tensor([3.0, 6, 12])))
    assert_same(ours, theirs)
    assert_same_gradients(gradients(model, ours), gradients(model, theirs))


@pytest.mark.parametrize("exits", EXITS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("head", HEADS)
def test_aligned_is_the_mean_of_what_every_depth_would_lose(
    build: Model, draw_batch: Batch, head: str, norm: str, exits: str
) -> None:
    if (norm, exits) == ("post", "shared"):
        pytest.skip("there is no last norm to be shared")
    model, batch = build(head, "dynamicconv", norm, stack=DEEP, exits=EXITS[exits]).train(), draw_batch(head)
    output = taught(model, batch, weights=(1, 2, 3))
    each = [at_depth(model, batch, depth) for depth in range(1, LAYERS + 1)]
    expected = (each[0] + 2 * each[1] + 3 * each[2]) / 6
    assert_same(output.loss, expected)
    assert_same_gradients(gradients(model, output.loss), gradients(model, expected))
    assert_same(output.exit_nll / NUM_ITEMS, torch.stack(each).detach())


@pytest.mark.parametrize("num_labels", [1, 3])
def test_numbers_and_several_labels(build: Model, draw_batch: Batch, num_labels: int) -> None:
    model = build("sequence_classification", stack=DEEP, exits={}, num_labels=num_labels).train()
    batch = draw_batch("sequence_classification")
    batch["labels"] = torch.rand(3, num_labels, dtype=torch.float64).round(decimals=1 if num_labels == 1 else 0)
    if num_labels == 1:
        batch["labels"][1] = torch.nan
    output = taught(model, batch, weights=(1, 0, 1))
    expected = (at_depth(model, batch, 1) + at_depth(model, batch, 3)) / 2
    assert_same(output.loss, expected)
    assert_same_gradients(gradients(model, output.loss), gradients(model, expected))
    assert output.exit_items.tolist() == [3 - (num_labels == 1)] * 3
    chosen = torch.tensor([[0], [2], [2]])
    mixed = taught(model, batch, chosen=chosen)
    assert_same(mixed.exit_nll.sum() / NUM_ITEMS, mixed.loss.detach())
    with pytest.raises(InputError, match="numbers have none; set distill to 0"):
        taught(model, batch, weights=(1, 1, 1), targets=ExitTargets(from_last=1.0))


# I11


@pytest.mark.parametrize("depth", [1, 2, LAYERS])
def test_mixed_with_one_exit_is_that_of_aligned(pair: Any, depth: int) -> None:
    """With all tokens at the last exit that is the standard loss."""
    model, batch = pair
    of_target = batch["labels" if model.config.is_encoder_decoder else "input_ids"]
    shape = (2 * len(of_target), 1 if model.leaves_by_rows else of_target.shape[1])
    chosen = torch.full(shape, depth - 1)
    ours = taught(model, batch, chosen=chosen, paths=2).loss
    theirs = at_depth(model, batch, depth)
    assert_same(ours, theirs)
    assert_same_gradients(gradients(model, ours), gradients(model, theirs))


@pytest.mark.parametrize("exits", EXITS)
@pytest.mark.parametrize("head", HEADS)
def test_mixed_is_the_mean_over_paths(build: Model, draw_batch: Batch, head: str, exits: str) -> None:
    model, batch = build(head, stack=DEEP, exits=EXITS[exits]).train(), draw_batch(head)
    of_target = batch["labels" if head == "seq2seq" else "input_ids"]
    shape = (len(of_target), 1 if model.leaves_by_rows else of_target.shape[1])
    paths = [torch.randint(LAYERS, shape) for _ in range(3)]
    together = taught(model, batch, chosen=torch.cat(paths), paths=3)
    alone = [taught(model, batch, chosen=chosen) for chosen in paths]
    assert_same(together.loss, sum(one.loss for one in alone) / 3)
    assert_same(together.exit_nll, sum(one.exit_nll for one in alone))
    for chosen, one in zip(paths, alone, strict=True):  # as the plan says it
        plan = Plan.of_depths((chosen + 1).expand(of_target.shape), LAYERS)
        assert_same(one.loss, model(**batch, num_items_in_batch=NUM_ITEMS, plan=plan).loss)
    mean = sum(one.loss for one in alone) / 3
    assert_same_gradients(gradients(model, together.loss), gradients(model, mean))


def test_paths_are_drawn(pair: Any) -> None:
    model, batch = pair
    torch.manual_seed(0)
    output = taught(model, batch, paths=40)
    num_items = taught(model, batch, weights=(1, 1, 1)).exit_items[0]
    assert output.exit_items.sum() == 40 * num_items
    assert output.exit_items.min() > 40 * num_items * 0.2
    assert output.loss.isfinite()


# Other targets, and blocks that are left out


@pytest.mark.parametrize(
    "targets",
    [
        ExitTargets(smoothing=0.2, over_others=True),
        ExitTargets(from_last=1.0),
        ExitTargets(smoothing=0.1, from_last=0.4, divergence="teacher"),
    ],
)
def test_small_heads_learn_what_large_ones_learn(build: Model, draw_batch: Batch, targets: ExitTargets) -> None:
    """Both ways through the exits agree: that of classifiers, and that which never holds all scores."""
    from depthwise.losses import class_exits, exit_cross_entropy

    heads = [nn.Linear(5, 4).double() for _ in range(3)]
    states = tuple(torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True) for _ in heads)
    labels = torch.randint(4, (2, 6))
    labels[0, 3:] = -100
    for how in ({"weights": (1.0, 2.0, 0.5)}, {"chosen": torch.randint(3, (2, 6))}):
        small = class_exits([h(s) for h, s in zip(heads, states, strict=True)], labels, targets=targets, **how)
        large = exit_cross_entropy(states, heads, labels, targets=targets, statistics=True, **how)
        assert_same(small.loss, large.loss)
        assert_same(small.nll_sums, large.nll_sums)
        assert torch.equal(small.num_tokens, large.num_tokens)
        for name in ("nll", "guesses", "correct"):
            torch.testing.assert_close(getattr(small.statistics, name), getattr(large.statistics, name))
        wanted = [*states, *(param for head in heads for param in head.parameters())]
        ours, theirs = (torch.autograd.grad(one.loss, wanted, allow_unused=True) for one in (small, large))
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)


def test_blocks_that_are_always_left_out_are_not_there(pair: Any) -> None:
    model, batch = pair
    output = taught(model, batch, weights=(1, 1, 1), dropped=(0.0, 1.0, 0.0))
    found = gradients(model, output.loss)
    side = "encoder" if model.model.decoder is None else "decoder"
    norms = [value.abs().sum() for name, value in found.items() if f"{side}.stack.layers.1." in name]
    assert sum(norms) == 0
    assert_same(output.exit_nll[1] / output.exit_nll[1], torch.ones((), dtype=torch.float64))
    assert output.depths.max() == LAYERS - 1
    drawn = taught(model, batch, weights=(1, 1, 1), dropped=torch.tensor([0.0, 0.5, 0.5]), drops_by_row=True)
    assert drawn.loss.isfinite()


def test_the_last_norm_is_that_of_the_end_even_with_blocks_left_out(build: Model, draw_batch: Batch) -> None:
    """Who ran two of three blocks has not left at depth 2."""
    model, batch = build("causal_lm", stack=DEEP, exits={}).train(), draw_batch("causal_lm")
    output = taught(model, batch, weights=(0, 0, 1), dropped=(0.0, 0.0, 1.0))
    with torch.no_grad():
        hidden = model.model(
            batch["input_ids"],
            batch["attention_mask"],
            plan=Plan(torch.tensor([1, 1, 0]).bool().view(-1, 1, 1).expand(3, 3, 6)),
            output_hidden_states=True,
        ).hidden_by_depth[-1]
        scores = model.head(model.model.decoder.stack.final_norm(hidden))[:, :-1]
    expected = nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")
    assert_same(output.loss.detach(), expected / NUM_ITEMS)


# I12


def block_gradients(found: dict[str, Tensor], layer: int, side: str) -> dict[str, Tensor]:
    return {name: value for name, value in found.items() if f"{side}.stack.layers.{layer}." in name}


def test_factors_of_one_change_nothing(pair: Any) -> None:
    model, batch = pair
    scaled, plain = (taught(model, batch, weights=(1, 2, 3), own_factors=own) for own in ((1.0, 1.0, 1.0), None))
    assert torch.equal(scaled.loss, plain.loss)
    assert_same_gradients(gradients(model, scaled.loss), gradients(model, plain.loss))


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_block_learns_more_from_its_own_exit_alone(pair: Any, layer: int) -> None:
    """Its gradient is γ times that of its exit and once that of those above; nothing else changes."""
    model, batch = pair
    factors = [1.0, 1.0, 1.0]
    factors[layer] = 2.5
    side = "encoder" if model.model.decoder is None else "decoder"
    weights = torch.ones(3)
    scaled, plain = (taught(model, batch, weights=weights, own_factors=own) for own in (tuple(factors), None))
    assert torch.equal(scaled.loss, plain.loss)
    found, expected = gradients(model, scaled.loss), gradients(model, plain.loss)
    of_exit = gradients(model, taught(model, batch, weights=tuple(map(float, torch.eye(3)[layer]))).loss)
    inside = block_gradients(expected, layer, side)
    assert inside
    for name in inside:
        expected[name] = expected[name] + 1.5 * of_exit[name] / 3
        assert (found[name] - expected[name]).abs().max() < 1e-10
    assert sum((1.5 * of_exit[name]).abs().sum() for name in inside) > 0
    assert_same_gradients(found, expected)


def test_scaling_keeps_dropout_and_plans(build: Model, draw_batch: Batch) -> None:
    """The block runs once, so that both of its gradients belong to the same draws."""
    model = build("causal_lm", stack={**DEEP, "dropout": 0.5}, exits={}).train()
    batch, found = draw_batch("causal_lm"), []
    for own in ((1.0, 1.0, 1.0), None):
        torch.manual_seed(0)
        output = taught(model, batch, weights=(1, 1, 1), own_factors=own, dropped=(0.5, 0.5, 0.5), drops_by_row=True)
        found.append((output.loss, gradients(model, output.loss)))
    assert torch.equal(found[0][0], found[1][0])
    assert_same_gradients(found[0][1], found[1][1])


def test_factors_by_depth() -> None:
    assert own_factors(0.5, 4) == (1.5, 1.0, 0.5, 1.0)
    assert own_factors(0.3, 1) == (1.0,)


# Policies, I15


POLICIES: dict[str, dict[str, Any]] = {
    "sequence": {"kind": "sequence", "oracle": "likelihood", "detach_features": True},
    "token": {"kind": "token", "oracle": "likelihood", "detach_features": True},
    "poisson": {"kind": "poisson_binomial", "detach_features": True, "penalty": 0.1},
    "confidence": {"kind": "learned_confidence"},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("head", WITH_POLICIES)
def test_an_oracle_is_a_constant(build: Model, draw_batch: Batch, head: str, policy: str) -> None:
    """Nothing but the policy learns from what the policy loses, where states are constants to it."""
    if policy == "sequence" and head != "seq2seq":
        pytest.skip("there is no source")
    model = build(head, stack=DEEP, exits={}, policy=POLICIES[policy]).train()
    batch = draw_batch(head)
    with_policy = taught(model, batch, weights=(1, 1, 1), policy_weight=3.0)
    without = taught(model, batch, weights=(1, 1, 1), policy_weight=0.0)
    assert without.policy_loss is None
    assert with_policy.policy_loss > 0
    ours, theirs = gradients(model, with_policy.loss), gradients(model, without.loss)
    for name, gradient in ours.items():
        if name.startswith("trained_policy."):
            assert theirs[name].abs().sum() == 0
        else:
            torch.testing.assert_close(gradient, theirs[name], rtol=1e-9, atol=1e-12, msg=name)
    assert sum(gradient.abs().sum() for name, gradient in ours.items() if name.startswith("trained_policy.")) > 0


@pytest.mark.parametrize("head", WITH_POLICIES)
def test_states_learn_from_the_policy_unless_they_are_constants(build: Model, draw_batch: Batch, head: str) -> None:
    model, batch = build(head, stack=DEEP, exits={}, policy={"kind": "token"}).train(), draw_batch(head)
    output = taught(model, batch, weights=(1, 1, 1), policy_weight=1.0)
    plain = taught(model, batch, weights=(1, 1, 1), policy_weight=0.0)
    items = 2 if head == "question_answering" else 1
    assert_same(output.loss.detach(), plain.loss.detach() + items * output.policy_loss / NUM_ITEMS)
    side = "encoder" if model.model.decoder is None else "decoder"
    ours, theirs = gradients(model, output.loss), gradients(model, plain.loss)
    name = next(name for name in ours if f"{side}.stack.layers.0.feed_forward" in name)
    assert (ours[name] - theirs[name]).abs().max() > 1e-8


def test_a_sequence_weighs_as_much_as_its_tokens_do(build: Model, draw_batch: Batch) -> None:
    """The policy's mean over sequences stands beside the mean over tokens."""
    model = build("seq2seq", stack=DEEP, exits={}, policy={"kind": "sequence", "oracle": "likelihood"}).train()
    batch = draw_batch("seq2seq")
    output, plain = (
        model(**batch, objective=ExitObjective(weights=(1.0, 1.0, 1.0), policy_weight=weight)) for weight in (1.0, 0.0)
    )
    with torch.no_grad():
        encoded = model.model.encoder(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        mean = (encoded * mask).sum(1) / mask.sum(1)
        log_probs = model.trained_policy.classifier(mean).log_softmax(-1)
    each = torch.stack(
        [
            model(
                **{name: value[row : row + 1] for name, value in batch.items()},
                objective=ExitObjective(weights=(1.0, 1.0, 1.0), policy_weight=0.0),
            ).exit_nll
            for row in range(3)
        ]
    )
    expected = -log_probs.gather(1, each.argmin(1, keepdim=True)).mean()
    assert_same(output.loss.detach() - plain.loss.detach(), expected)


def test_the_expected_loss_trains_small_exits_too(build: Model, draw_batch: Batch) -> None:
    policy = {"kind": "poisson_binomial", "objective": "expected_loss", "detach_features": True}
    model = build("token_classification", stack=DEEP, exits={"heads": "separate"}, policy=policy).train()
    batch = draw_batch("token_classification")
    ours = gradients(model, taught(model, batch, weights=(0, 0, 1)).loss)
    assert ours["exit_heads.1.weight"].abs().sum() > 0


class Kept:
    """A tensor that waits for the backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("depths", [[LAYERS - 1], None])
def test_memory_does_not_grow_with_exits(build: Model, depths: list[int] | None) -> None:
    """What is kept for the backward pass is states: nothing is as large as the scores of all tokens."""
    steps, types = 64, 1000
    model = build("causal_lm", stack=DEEP, exits={"depths": depths}, vocab_size=types).train()
    ids, seen = torch.randint(4, types, (2, steps)), []

    def pack(tensor: Tensor) -> Kept:
        kept = Kept(tensor)
        seen.append(weakref.ref(kept))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        weights = (1.0,) * len(model.exit_depths)
        output = model(input_ids=ids, labels=ids, objective=ExitObjective(weights=weights))
    largest = max(kept.tensor.numel() for reference in seen if (kept := reference()) is not None)
    assert largest < (steps - 1) * types
    output.loss.backward()


def test_labels_are_needed(pair: Any) -> None:
    model, batch = pair
    del batch["labels"]
    with pytest.raises(InputError, match="give labels beside the objective"):
        model(**batch, objective=ExitObjective(weights=(1.0, 1.0, 1.0)))
