"""What holds for all policies: rows do not meet, padding does not matter, scores are dear, nobody waits."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import depthwise.depth
from depthwise.config import POLICIES, parse_policy
from depthwise.depth import Context, Lesson, Policy, Visit, build_policy

DepthsOf = Callable[..., torch.Tensor]
EXITS = (1, 2, 4, 6)
ALL: dict[str, dict[str, Any]] = {
    "fixed": {"depth": 2},
    "sequence": {},
    "sequence whole numbers": {"oracle": "likelihood", "penalty": 1},
    "token": {},
    "token whole numbers": {"penalty": 1, "smoothing": 2},
    "poisson_binomial": {},
    "poisson_binomial shared": {"shared": True},
    "poisson_binomial expected_loss": {"objective": "expected_loss", "beta": 1},
    "poisson_binomial quantile": {"decision": "quantile", "threshold": 0.6},
    "confidence max_probability": {"threshold": [0.9, 0.8, 0.7]},
    "confidence margin": {"measure": "margin", "threshold": 0.6, "decay": "code", "decay_rate": 3, "max_length": 5},
    "confidence entropy": {"measure": "entropy", "threshold": -0.8},
    "confidence normalized_entropy": {"measure": "normalized_entropy", "threshold": 0.5},
    "confidence saturation": {"measure": "saturation", "threshold": 0.1},
    "patience": {"patience": 1},
    "learned_confidence": {},
    "learned_confidence decay": {"threshold": [0.6, 0.5, 0.5], "decay": "paper", "max_length": 20},
    "uniform": {},
    "uniform seed": {"seed": 2},
}
"""Deterministic policies, by kind and what is special about them."""
LOOK = (
    *("confidence max_probability", "confidence margin", "confidence entropy", "confidence normalized_entropy"),
    "patience",
)
"""Those that decide by scores."""


def policy_named(name: str, **options: Any) -> Policy:
    config = parse_policy({"kind": name.split()[0], **ALL.get(name, {}), **options})
    return build_policy(config, width=8, exits=EXITS).double()


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source() -> torch.Tensor:
    return torch.randn(3, 6, 8, dtype=torch.float64)


@pytest.fixture
def context(source: torch.Tensor, make_context: Callable[..., Context]) -> Context:
    return make_context(source=source, source_valid=torch.arange(6) < torch.tensor([[2], [6], [4]]))


def rows_of(context: Context, rows: list[int]) -> Context:
    parts = {each: getattr(context, each)[rows] for each in ("steps", "source", "source_valid")}
    return Context(shape=(len(rows), context.shape[1]), exits=context.exits, **parts)


def test_every_kind_is_here() -> None:
    """But for the one that has a say inside the encoder alone."""
    assert {name.split()[0] for name in ALL} == set(POLICIES) - {"structure"}


def test_depths_are_exits(
    name: str, states: torch.Tensor, scores: torch.Tensor, context: Context, depths_of: DepthsOf
) -> None:
    found = depths_of(policy_named(name), states, scores, context)
    assert found.shape == (3, 5)
    assert found.dtype == torch.long
    assert set(found.flatten().tolist()) <= set(EXITS)
    if name.split()[0] not in ("fixed", "sequence"):
        assert len(found.unique()) > 1, "these states should tell tokens apart"


def test_rows_do_not_meet(
    name: str, states: torch.Tensor, scores: torch.Tensor, context: Context, depths_of: DepthsOf
) -> None:
    policy = policy_named(name)
    together = depths_of(policy, states, scores, context)
    for rows in ([0], [1], [2], [2, 0], [1, 1, 0]):
        apart = depths_of(policy, states[:, rows], scores[:, rows], rows_of(context, rows))
        assert torch.equal(apart, together[rows])


def test_steps_do_not_meet(
    name: str, states: torch.Tensor, scores: torch.Tensor, context: Context, depths_of: DepthsOf
) -> None:
    """One step at a time, as in decoding, gives the same as all at once."""
    policy = policy_named(name)
    together = depths_of(policy, states, scores, context)
    for step in range(5):
        known = {"source": context.source, "source_valid": context.source_valid}
        alone = Context(shape=(3, 1), exits=EXITS, steps=context.steps[:, [step]], **known)
        found = depths_of(policy, states[:, :, [step]], scores[:, :, [step]], alone)
        assert torch.equal(found, together[:, [step]])


def test_padding_does_not_matter(
    name: str, states: torch.Tensor, scores: torch.Tensor, context: Context, depths_of: DepthsOf
) -> None:
    valid = torch.arange(5) < torch.tensor([[5], [2], [3]])
    known = {"source": context.source, "source_valid": context.source_valid, "valid": valid}
    padded = Context(shape=(3, 5), exits=EXITS, steps=context.steps, **known)
    policy = policy_named(name)
    quiet = depths_of(policy, states, scores, padded)
    away = ~valid.unsqueeze(-1)
    loud = depths_of(policy, states.masked_fill(away, torch.nan), scores.masked_fill(away, torch.nan), padded)
    assert torch.equal(quiet[valid], loud[valid])


def test_scores_are_looked_at_only_by_those_who_decide_by_them(
    name: str, states: torch.Tensor, context: Context, depths_of: DepthsOf
) -> None:
    if name in LOOK:
        with pytest.raises(AssertionError, match="scores were looked at"):
            depths_of(policy_named(name), states, None, context)
    else:
        depths_of(policy_named(name), states, None, context)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fixed", {"depth": 6}),
        ("poisson_binomial", {"threshold": 1.0}),
        *((name, {"threshold": 2}) for name in ALL if name.startswith("confidence ") and "entropy" not in name),
        ("confidence normalized_entropy", {"threshold": 1.5}),
        ("learned_confidence", {"threshold": 2}),
    ],
)
def test_never_leaving_takes_no_look_at_scores(
    states: torch.Tensor, context: Context, depths_of: DepthsOf, name: str, options: dict[str, Any]
) -> None:
    assert depths_of(policy_named(name, **options), states, None, context).eq(6).all()


def test_patience_without_end_never_leaves(states: torch.Tensor, scores: torch.Tensor, depths_of: DepthsOf) -> None:
    policy = policy_named("patience", patience=10**12)
    assert depths_of(policy, states, scores[:1].expand(4, -1, -1, -1)).eq(6).all()


def test_nobody_waits_for_the_device(
    name: str, states: torch.Tensor, scores: torch.Tensor, context: Context, lesson: Lesson, depths_of: DepthsOf
) -> None:
    """Tensors without values serve too: nothing is ever read back from one."""
    policy = policy_named(name)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        valueless = mode.from_tensor
        parts = {each: valueless(getattr(context, each)) for each in ("steps", "source", "source_valid")}
        context = Context(shape=context.shape, exits=EXITS, **parts)
        assert depths_of(policy, valueless(states), valueless(scores), context).shape == (3, 5)
        parts = {each: valueless(getattr(lesson, each)) for each in ("nll", "correct", "agrees", "valid")}
        lesson = Lesson(context=context, hidden=tuple(map(valueless, lesson.hidden)), **parts)
        assert all(loss.shape == () for loss in policy.losses(lesson).values())


def test_losses_are_there_where_parameters_are(name: str, lesson: Lesson) -> None:
    policy = policy_named(name)
    losses = policy.losses(lesson)
    assert bool(losses) == policy.needs_training == bool(list(policy.parameters()))
    for loss in losses.values():
        assert loss.dtype == torch.float64
        assert loss.requires_grad
        assert torch.isfinite(loss)


def test_lessons_without_labels_teach_nothing(name: str, lesson: Lesson) -> None:
    policy = policy_named(name)
    nobody = Lesson(
        context=lesson.context,
        hidden=lesson.hidden,
        nll=lesson.nll,
        correct=lesson.correct,
        agrees=lesson.agrees,
        valid=torch.zeros_like(lesson.valid),
    )
    losses = list(policy.losses(nobody).values())
    assert all(loss == 0 for loss in losses)
    if losses:
        torch.stack(losses).sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in policy.parameters())


def test_half_precision_decides_in_full(
    name: str, states: torch.Tensor, scores: torch.Tensor, context: Context, depths_of: DepthsOf
) -> None:
    policy = policy_named(name).bfloat16()
    context = Context(
        shape=context.shape,
        exits=EXITS,
        steps=context.steps,
        source=context.source.bfloat16(),
        source_valid=context.source_valid,
    )
    found = depths_of(policy, states.bfloat16(), scores.float(), context)
    assert set(found.flatten().tolist()) <= set(EXITS)


def test_a_question_that_a_policy_does_not_answer(
    name: str, states: torch.Tensor, scores: torch.Tensor, context: Context, make_visits: Callable[..., list[Visit]]
) -> None:
    policy = policy_named(name)
    if policy.plans:
        with pytest.raises(TypeError, match="decides before the stack runs"):
            policy.leaving(make_visits(states, scores, context)[0], {})
    else:
        with pytest.raises(TypeError, match="plans nothing"):
            policy.plan(context)


def policy_classes() -> Iterator[type[Policy]]:
    for each in vars(depthwise.depth).values():
        if inspect.isclass(each) and issubclass(each, Policy) and each is not Policy:
            yield each


@pytest.mark.parametrize("policy_class", list(policy_classes()))
def test_docstrings_say_what_users_ask(policy_class: type[Policy]) -> None:
    text = policy_class.__doc__ or ""
    lines = [line.strip() for line in text.splitlines()]
    for heading in ("Decides: ", "Source: ", "Choose it: ", "Needs: "):
        assert sum(line.startswith(heading) for line in lines) == 1, f"{policy_class.__name__} lacks {heading}"
    assert ("classifier" in text.split("Needs: ")[1]) == policy_class.needs_training
