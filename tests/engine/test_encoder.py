"""The compact executor of encoders says what the masked one says."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from depthwise.config import parse_policy
from depthwise.depth import Plan, Policy, build_policy
from depthwise.engine import CompactEncoder, Engine
from depthwise.engine.encoder import SPARED_THAT_PARTS, _partings, on_host
from depthwise.engine.walk import Walk
from depthwise.models.executing import current_executor, executed_by
from depthwise.models.masked import run_masked
from depthwise.models.stack import Stack

from ..models.conftest import HEADS, MIXERS, config_for, randomized

PADDING, LAYERS = 1, 4
DEEP = {"num_layers": LAYERS}
ENCODERS = ("sequence_classification", "token_classification", "question_answering", "masked_lm")
POLICIES: dict[str, dict[str, Any]] = {
    "fixed": {"kind": "fixed", "depth": 2},
    "confidence": {"kind": "confidence", "threshold": 0.45},
    "saturation": {"kind": "confidence", "measure": "saturation", "threshold": 0.9},
    "patience": {"kind": "patience", "patience": 1},
    "token": {"kind": "token"},
    "poisson": {"kind": "poisson_binomial"},
    "learned": {"kind": "learned_confidence"},
    "uniform": {"kind": "uniform"},
}
Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def encoder_of(mixer: str, norm: str) -> Any:
    model = HEADS["token_classification"](config_for("token_classification", mixer, norm, stack=DEEP))
    return randomized(model).double().eval().model.encoder


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5) | st.sampled_from([[6], [4, 4, 4]]),
    left=st.booleans(),
    num_full=st.sampled_from([0, 0, 1, LAYERS]),
    spared=st.sampled_from([0, 5, 1000]),
)
def test_any_plan(mixer: str, norm: str, seed: int, lengths: list[int], left: bool, num_full: int, spared: int) -> None:
    """Any token may run any block, or all of them the first ones; padding stands on either side; also weights, where
    norms allow them. It does not matter when sequences part, and the states that come in stay as they are."""
    torch.manual_seed(seed)
    encoder, longest = encoder_of(mixer, norm), max(lengths)
    x = torch.randn(len(lengths), longest, 8, dtype=torch.float64)
    valid = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
    valid = valid.flip(1) if left else valid
    run = torch.rand(LAYERS, *x.shape[:2]) < torch.rand(LAYERS, 1, 1)
    run[:num_full] = True
    weight = torch.rand(LAYERS, *x.shape[:2], dtype=torch.float64) if norm == "pre" and seed % 2 else None
    plan, steps = Plan(run, weight), torch.zeros(x.shape[:2], dtype=torch.long)
    executor, before = CompactEncoder(), x.clone()
    with torch.inference_mode(), patch.dict(SPARED_THAT_PARTS, cpu=spared):
        expected = run_masked(encoder.stack, x, plan, valid=valid)
        found, depths = executor(encoder.stack, x, valid=valid, plan=plan, leaving=None, steps=steps)
    assert_same(found.last, expected.last)
    assert_same(found.final, expected.final)
    assert torch.equal(depths, (run & valid).sum(0))
    assert torch.equal(x, before)
    assert executor.token_layers == int((run & valid).sum())


@pytest.mark.parametrize("head", ENCODERS)
def test_the_whole_stack(build: Model, draw_batch: Batch, mixer: str, head: str) -> None:
    model, batch = build(head, mixer), draw_batch(head)
    found, expected = Engine(model)(**batch), model(**batch)
    assert torch.equal(found.depths, expected.depths)
    assert_same(found.loss, expected.loss)
    assert_same(*(said(output, batch, ...) for output in (found, expected)))


def said(output: Any, batch: dict[str, Tensor], row: Any) -> Tensor:
    """The logits of a row, or of all, without those of padding."""
    logits, valid = output.logits[row], batch["attention_mask"].bool()[row]
    return logits[valid] if output.logits.dim() == 3 else logits


def policy_of(model: Any, name: str) -> Policy:
    options = model.config.options
    summed = model.classifier.in_features if hasattr(model, "classifier") else options.width
    torch.manual_seed(4)
    policy = build_policy(parse_policy(POLICIES[name]), width=summed, exits=options.exit_depths, has_source=False)
    for parameter in policy.parameters():
        nn.init.normal_(parameter, std=0.5)
    return policy.double()


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("head", "norm", "num_labels"),
    [("token_classification", "pre", 3), ("sequence_classification", "post", 3), ("question_answering", "pre", 2)],
)
def test_every_policy(
    build: Model, draw_batch: Batch, mixer: str, head: str, norm: str, num_labels: int, name: str
) -> None:
    """Scores and depths, for a batch and for each of its rows by itself."""
    model = build(head, mixer, norm, stack=DEEP, exits={"heads": "separate"}, num_labels=num_labels)
    model.use_policy(policy_of(model, name))
    batch = {key: value for key, value in draw_batch(head, (6, 3, 5, 1, 4)).items() if key != "labels"}
    engine, expected = Engine(model), model(**batch)
    found = engine(**batch)
    assert torch.equal(found.depths, expected.depths)
    assert_same(said(found, batch, ...), said(expected, batch, ...))
    assert engine.token_layers == int(expected.depths.sum())
    for row in range(5):
        alone = {key: value[row : row + 1] for key, value in batch.items()}
        assert_same(said(Engine(model)(**alone), alone, 0), said(expected, batch, row))


def test_policies_of_these_tests_decide(build: Model, draw_batch: Batch) -> None:
    """Otherwise they would test nothing: depths differ within a batch."""
    for name in sorted(set(POLICIES) - {"fixed"}):
        torch.manual_seed(2)
        model = build("token_classification", stack=DEEP, exits={"heads": "separate"}, num_labels=3)
        model.use_policy(policy_of(model, name))
        depths = torch.cat([model(**draw_batch("token_classification")).depths.flatten() for _ in range(8)])
        assert len(depths[depths > 0].unique()) > 1, name


def test_the_encoder_of_a_translator(build: Model, draw_batch: Batch, mixer: str) -> None:
    model, batch = build("seq2seq", mixer), draw_batch("seq2seq")
    assert_same(Engine(model)(**batch).logits, model(**batch).logits)


def test_what_left_is_not_computed(build: Model) -> None:
    """Feed-forward networks see those who run, and nothing is written for sequences that are done."""
    model = build("token_classification", stack=DEEP)
    written: list[int] = []
    fed: list[int] = []
    for block in model.model.encoder.stack.layers:
        block.mixer.projections.key.register_forward_pre_hook(lambda _, given: written.append(given[0].shape[1]))
        block.feed_forward.register_forward_pre_hook(lambda _, given: fed.append(given[0].shape[1]))
    ids = torch.randint(4, 17, (3, 6))
    ids[2, 2:] = PADDING
    depths = torch.tensor([[1, 4, 1, 1, 2, 1], [2, 2, 2, 2, 2, 2], [1, 1, 0, 0, 0, 0]])
    Engine(model)(ids, plan=Plan.of_depths(depths, LAYERS))
    assert written == [14, 12, 6, 6]
    assert fed == [14, 8, 1, 1]


def test_another_executor_is_used_within_and_not_after(build: Model, draw_batch: Batch) -> None:
    executor = CompactEncoder()
    with executed_by(executor):
        assert current_executor() is executor
    assert current_executor() is None
    model = build("token_classification").train()
    with executed_by(executor):
        model(**draw_batch("token_classification")).loss.backward()
    assert executor.token_layers == 0


def test_a_device_is_not_asked_for_padding_that_the_host_knows() -> None:
    real = torch.tensor([[True, True], [True, False]])
    plan = Plan.of_depths(torch.tensor([[1, 2], [2, 0]]), LAYERS)
    elsewhere = torch.empty(2, 2, dtype=torch.bool, device="meta")
    assert on_host(elsewhere, replace(plan, real=real)) is real
    assert on_host(real, plan) is real
    assert on_host(real, None) is real
    with pytest.raises(NotImplementedError):
        on_host(elsewhere, plan)


@pytest.mark.parametrize("padded", [False, True])
def test_blocks_that_all_run_come_before_the_others_are_planned(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has work while the host looks at the plan. Without padding they run before anything is laid out."""
    done: list[str] = []
    run, tell, run_layer = Walk.run, Walk.tell, Stack.run_layer

    def noted_run_layer(self: Stack, layer: int, *given: Any, **options: Any) -> Any:
        done.append(f"run {layer} as it lies")
        return run_layer(self, layer, *given, **options)

    def noted_run(self: Walk, layer: int, *given: Any) -> None:
        done.append(f"run {layer}")
        run(self, layer, *given)

    def noted_tell(self: Walk, layer: int, readers: Any) -> None:
        done.append(f"tell {layer}")
        tell(self, layer, readers)

    monkeypatch.setattr(Walk, "run", noted_run)
    monkeypatch.setattr(Walk, "tell", noted_tell)
    monkeypatch.setattr(Stack, "run_layer", noted_run_layer)
    plan = Plan.of_depths(torch.tensor([[2, 4, 3], [2, 2, 0 if padded else 2]]), LAYERS)
    valid = torch.tensor([[True, True, True], [True, True, False]]) if padded else None
    x, steps = torch.randn(2, 3, 8, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.long)
    with torch.inference_mode():
        stack = encoder_of("attention", "pre").stack
        CompactEncoder()(stack, x, valid=valid, plan=plan, leaving=None, steps=steps)
    first = ["run 0", "run 1"] if padded else ["run 0 as it lies", "run 1 as it lies"]
    assert done == [*first, "tell 2", "run 2", "run 3"]


@pytest.mark.parametrize(
    ("first", "spared", "partings"),
    [
        (0, 0, [0, 2, 3]),
        (0, 4, [0, 2, 3]),
        (0, 5, [2, 3]),
        (0, 8, [2]),
        (0, 9, [3]),
        (0, 12, []),
        (3, 11, [3]),
        (3, 12, []),
    ],
)
def test_sequences_part_where_enough_is_spared(first: int, spared: int, partings: list[int]) -> None:
    """Of ten tokens one runs no layer, two run two layers, three run three and four run five."""
    assert _partings(np.array([0, 2, 2, 3, 3, 3, 5, 5, 5, 5]), first, spared) == partings


def test_nobody_parts_from_nobody() -> None:
    assert _partings(np.array([], dtype=np.int64), 0, 0) == []
    assert _partings(np.zeros(3, dtype=np.int64), 0, 0) == []
