"""Encoders whose first layers say how many of the others an input needs (I26)."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import ConfidenceConfig, FixedDepthConfig, StructureExitConfig
from depthwise.depth import FixedDepth, Plan, StructureExit, build_policy
from depthwise.engine import Engine
from depthwise.errors import InputError

from .conftest import decisive

LAYERS, STATIC = 4, 1
DEEP = {"num_layers": LAYERS}
HEADS = ("sequence_classification", "token_classification", "question_answering", "masked_lm")
Build = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]


def needing(threshold: float) -> StructureExit:
    return StructureExit(StructureExitConfig(threshold=threshold))


@pytest.fixture
def structured(build: Build) -> Build:
    """A model that does not say the same of all inputs."""

    def make(head: str, mixer: str = "attention", **changes: Any) -> Any:
        stack = {**DEEP, **changes.pop("stack", {})}
        structure = {"num_static": STATIC, **changes.pop("structure", {})}
        return decisive(build(head, mixer, stack=stack, structure=structure, **changes))

    return make


def rows_of(batch: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    length = int(batch["attention_mask"][row].sum())
    return {
        name: value[[row]] if name == "labels" else value[[row], :length]
        for name, value in batch.items()
        if name != "labels" or value.dim() == 1
    }


@pytest.mark.parametrize("head", HEADS)
def test_a_threshold_of_zero_is_the_training_forward(structured: Build, draw_batch: Batch, head: str) -> None:
    model, batch = structured(head), draw_batch(head)
    trained = model.train()(**batch)
    model.eval()
    for policy in (None, needing(0.0)):
        model.use_policy(policy)
        found = model(**batch)
        assert torch.equal(found.loss, trained.loss)
        assert torch.equal(found.logits, trained.logits)
        assert torch.equal(found.depths, LAYERS * batch["attention_mask"])


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_a_sure_number_is_a_plain_model_of_that_depth(
    build: Build, draw_ids: Callable[..., Tensor], needed: int
) -> None:
    model = build("token_classification", stack=DEEP, structure={"num_static": STATIC})
    with torch.no_grad():
        model.structure.out.weight.zero_()
        model.structure.out.bias.copy_(torch.where(torch.arange(3) == needed - 1, 0.0, -torch.inf))
    plain = build("token_classification", stack={"num_layers": STATIC + needed})
    weights = {n: v for n, v in model.state_dict().items() if ".structure." not in n}
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    ids = draw_ids(padding=[0, 2, 3])
    expected = plain(ids).logits
    for policy in (None, needing(0.5)):
        model.use_policy(policy)
        torch.testing.assert_close(model(ids).logits[ids != 1], expected[ids != 1], rtol=1e-10, atol=1e-12)
    assert model(ids).depths.max() == STATIC + needed


def test_weights_are_on_every_branch(structured: Build, draw_ids: Callable[..., Tensor]) -> None:
    model = structured("token_classification")
    ids = draw_ids(3, 5)
    hidden = model(ids, output_hidden_states=True).hidden_by_depth
    weights = model.structure(hidden[STATIC], None).weight
    stack = model.model.encoder.stack
    for layer in range(LAYERS):
        x, block = hidden[layer], stack.block(layer)
        gate = 1.0 if layer < STATIC else weights[layer - STATIC].view(-1, 1, 1)
        x = x + gate * block.mixer(block.mixer_residual.norm(x))
        x = x + gate * block.feed_forward(block.feed_forward_residual.norm(x))
        torch.testing.assert_close(hidden[layer + 1], x)


@pytest.mark.parametrize("head", HEADS)
def test_every_mixer_runs_mixed_depths_as_it_runs_single_rows(
    structured: Build, draw_batch: Batch, mixer: str, head: str
) -> None:
    model, batch = structured(head, mixer), draw_batch(head, (6, 3, 5, 4, 6, 1) * 2)
    model.use_policy(needing(0.5))
    together = model(**{name: value for name, value in batch.items() if name != "labels"})
    depths = together.depths.amax(1)
    assert len(set(depths.tolist())) > 1
    for row in range(len(depths)):
        one = {name: value for name, value in rows_of(batch, row).items() if name != "labels"}
        alone = model(**one)
        assert alone.depths[0, 0] == depths[row]
        found = (
            together.logits[row] if head == "sequence_classification" else together.logits[row, : alone.logits.shape[1]]
        )
        torch.testing.assert_close(found, alone.logits[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("cumulative", [True, False])
def test_the_predictor_learns_from_the_loss_of_the_task(
    structured: Build, draw_batch: Batch, head: str, cumulative: bool
) -> None:
    model = structured(head, structure={"cumulative": cumulative}).train()
    model(**draw_batch(head)).loss.backward()
    for name, parameter in model.structure.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_an_encoder_below_a_decoder(structured: Build, draw_batch: Batch) -> None:
    """An extension: what the decoder attends to is as deep as its source needs."""
    model, batch = structured("seq2seq"), draw_batch("seq2seq")
    full = model(**batch)
    assert torch.equal(full.encoder_depths, LAYERS * batch["attention_mask"])
    model.use_policy(needing(0.5))
    found = model(**batch)
    assert found.encoder_depths.max() < LAYERS or found.encoder_depths[batch["attention_mask"] > 0].min() < LAYERS
    assert torch.equal(found.depths, full.depths)
    assert model.policy is None
    ids = {name: value for name, value in batch.items() if name != "labels"}
    torch.testing.assert_close(Engine(model)(**batch).loss, found.loss)
    tokens = Engine(model).generate(**ids, num_beams=2, max_length=6).sequences
    assert torch.equal(tokens, model.generate(**ids, num_beams=2, max_length=6))
    model.train()(**batch).loss.backward()
    assert model.structure.out.weight.grad.abs().max() > 0


def test_sources_of_mixed_depths_are_read_as_single_ones(structured: Build, draw_batch: Batch, mixer: str) -> None:
    """With every mixer on both sides, by the model itself and by the engine, scores and generated text."""
    model, batch = structured("seq2seq", mixer), draw_batch("seq2seq", (6, 3, 5, 4, 6, 1) * 2)
    given = {name: value for name, value in batch.items() if name != "labels"}
    targets = torch.randint(4, 17, (len(batch["input_ids"]), 4))
    model.use_policy(needing(0.5))
    together = model(**given, decoder_input_ids=targets)
    depths = together.encoder_depths.amax(1)
    assert len(set(depths.tolist())) > 1
    engine = Engine(model)
    by_engine = engine(**given, decoder_input_ids=targets)
    torch.testing.assert_close(by_engine.logits, together.logits, rtol=1e-9, atol=1e-11)
    assert torch.equal(by_engine.encoder_depths, together.encoder_depths)
    texts = engine.generate(**given, max_length=6).sequences
    for row in range(len(depths)):
        one = rows_of(given, row)
        alone = model(**one, decoder_input_ids=targets[[row]])
        assert alone.encoder_depths[0, 0] == depths[row]
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-9, atol=1e-11)
        text = engine.generate(**one, max_length=6).sequences[0]
        assert torch.equal(texts[row, : len(text)], text)


def test_one_depth_for_all_sources(structured: Build, draw_batch: Batch) -> None:
    """Without exits in the decoder, a fixed depth is that of the encoder; with exits it is theirs."""
    model, batch = structured("seq2seq"), draw_batch("seq2seq")
    model.use_policy(FixedDepth(FixedDepthConfig(depth=2)))
    assert torch.equal(model(**batch).encoder_depths, 2 * batch["attention_mask"])
    assert model.policy is None
    model.use_policy(None)
    assert torch.equal(model(**batch).encoder_depths, LAYERS * batch["attention_mask"])
    leaving = structured("seq2seq", exits={})
    leaving.use_policy(FixedDepth(FixedDepthConfig(depth=2)))
    found = leaving(**batch)
    assert torch.equal(found.encoder_depths, LAYERS * batch["attention_mask"])
    assert found.depths.max() == 2


def test_parts_are_saved_and_a_new_one_begins_where_it_is_told(structured: Build, tmp_path: Path) -> None:
    model = structured("masked_lm", stack={"relative": {"max_distance": 2}, "groups": 2})
    assert len(model.model.encoder.stack.layers) == 2
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert sum("distances" in name for name in model.state_dict()) == 1
    fresh = type(model)(structured("masked_lm", structure={"last_bias": 3.0}).config)
    assert fresh.structure.out.bias.tolist() == [0.0, 0.0, 3.0]


def test_what_it_cannot_be_told(structured: Build, build: Build, draw_ids: Callable[..., Tensor]) -> None:
    model, ids = structured("token_classification"), draw_ids()
    with pytest.raises(InputError, match="leave plan and depths out"):
        model(ids, plan=Plan.of_depths(torch.full_like(ids, 2), LAYERS))
    confidence = build_policy(ConfidenceConfig(threshold=(0.9,)), width=8, exits=(1, 2, 3, 4))
    with pytest.raises(InputError, match="use the policy structure or fixed"):
        model.use_policy(confidence)
    with pytest.raises(InputError, match=r"train one with model\.structure"):
        build("token_classification").use_policy(needing(0.5))


def test_one_depth_for_all(structured: Build, draw_ids: Callable[..., Tensor]) -> None:
    model, ids = structured("token_classification"), draw_ids()
    policy = FixedDepth(FixedDepthConfig(depth=2))
    model.use_policy(policy)
    assert model.policy is policy
    assert (model(ids).depths == 2).all()
    model.use_policy(None)
    assert model.policy is None


def test_copies_have_run_nothing_yet(structured: Build, draw_batch: Batch) -> None:
    """Though what the model itself expects of its last pass has gradients."""
    model, batch = structured("token_classification").train(), draw_batch("token_classification")
    model(**batch)
    assert model.structure.expected.requires_grad
    copied = copy.deepcopy(model)
    assert copied.structure.expected is None
    assert model.structure.expected is not None
    assert torch.equal(copied.eval()(**batch).logits, model.eval()(**batch).logits)
