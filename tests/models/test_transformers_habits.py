"""What users of Transformers do with any model: resize its vocabulary, checkpoint it, feed it in other forms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from torch import Tensor

from depthwise.depth import Plan
from depthwise.errors import ConfigError, InputError

PADDING = 1
Model = Callable[..., Any]
Ids = Callable[..., Tensor]
Config = Callable[..., Any]


@pytest.mark.parametrize("tied", ["all", "none"])
@pytest.mark.parametrize("head", ["causal_lm", "masked_lm", "token_classification"])
def test_the_vocabulary_grows(build: Model, draw_ids: Ids, head: str, tied: str) -> None:
    model, ids = build(head, tied_embeddings=tied), draw_ids()
    before = model(ids).logits
    model.resize_token_embeddings(20, mean_resizing=False)
    after = model(ids).logits
    torch.testing.assert_close(after[..., : before.shape[-1]], before, rtol=0, atol=1e-12)
    assert model(torch.full((1, 2), 19)).logits.isfinite().all()
    assert model.config.vocab_size == 20
    if head != "token_classification":
        assert after.shape[-1] == 20
        assert (model.head.weight is model.model.get_input_embeddings().weight) == (tied == "all")


def test_one_table_for_both_sides_grows(build: Model, draw_ids: Ids) -> None:
    model, ids = build("seq2seq"), draw_ids()
    before = model(ids, decoder_input_ids=ids).logits
    model.resize_token_embeddings(20, mean_resizing=False)
    torch.testing.assert_close(model(ids, decoder_input_ids=ids).logits[..., :17], before, rtol=0, atol=1e-12)
    new = torch.full((1, 2), 19)
    assert model(new, decoder_input_ids=new).logits.shape[-1] == 20
    assert model.model.decoder.embedding.tokens.weight is model.model.encoder.embedding.tokens.weight


def test_tables_that_cannot_grow(build: Model) -> None:
    with pytest.raises(ConfigError, match="a table for each side"):
        build("seq2seq", tied_embeddings="decoder").resize_token_embeddings(20)
    with pytest.raises(ConfigError, match="bands of its own"):
        build("causal_lm", adaptive={"cutoffs": [8], "factor": 2}).resize_token_embeddings(20)


def test_reentrant_checkpointing_is_refused(build: Model) -> None:
    with pytest.raises(ConfigError, match="use_reentrant"):
        build("seq2seq").gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})


def test_states_of_an_encoder_as_a_tuple(build: Model, draw_ids: Ids) -> None:
    model, source, target = build("seq2seq"), draw_ids(), draw_ids(steps=3)
    states = model.model.encoder(source).last_hidden_state
    output = model(encoder_outputs=(states,), decoder_input_ids=target)
    assert torch.equal(output.logits, model(source, decoder_input_ids=target).logits)


def test_a_state_holds_the_source(build: Model, draw_ids: Ids, mixer: str) -> None:
    model, source, target = build("seq2seq", mixer), draw_ids(padding=[0, 2]), draw_ids(steps=2)
    first = model(source, decoder_input_ids=target[:, :1], use_cache=True)
    calls: list[Any] = []
    model.model.encoder.register_forward_hook(lambda *_: calls.append(1))
    second = model(decoder_input_ids=target[:, 1:], past_key_values=first.past_key_values)
    assert calls == []
    whole = model(source, decoder_input_ids=target).logits[:, 1:]
    torch.testing.assert_close(second.logits, whole, rtol=0, atol=1e-10)


def test_padding_never_runs_whatever_the_plan_says(build: Model, draw_ids: Ids) -> None:
    model, ids = build("masked_lm"), draw_ids(padding=[0, 3])
    depths = torch.where(ids == PADDING, 2, 1)
    calls = [0, 0]
    for layer, block in enumerate(model.model.encoder.stack.layers):
        block.register_forward_hook(lambda *_, layer=layer: calls.__setitem__(layer, calls[layer] + 1))
    output = model(ids, plan=Plan.of_depths(depths, 2))
    assert calls == [1, 0]
    assert torch.equal(output.depths, (ids != PADDING).long())


def test_weights_of_a_plan_must_fit(build: Model, draw_ids: Ids) -> None:
    plan = Plan(torch.ones(2, 2, 6, dtype=torch.bool))
    object.__setattr__(plan, "weight", torch.ones(2, 2, 1))  # past the check of shapes that only tests have
    with pytest.raises(InputError, match="weights of the plan"):
        build("masked_lm")(draw_ids(), plan=plan)


@pytest.mark.parametrize("ids", [torch.ones(1, 2), [[5, 6]], torch.ones(1, 2, dtype=torch.bool)], ids=str)
def test_ids_are_whole_numbers(build: Model, ids: Any) -> None:
    with pytest.raises(InputError, match="input_ids must be a tensor of whole numbers, not"):
        build("masked_lm")(ids)


@pytest.mark.parametrize("head", ["masked_lm", "token_classification", "sequence_classification", "causal_lm"])
def test_labels_that_no_class_has(build: Model, draw_ids: Ids, head: str) -> None:
    ids = draw_ids()
    labels = torch.full((2,), 1) if head == "sequence_classification" else torch.full_like(ids, 1)
    labels[1] = 99
    with pytest.raises(InputError, match="labels row 1 holds 99, outside the"):
        build(head)(ids, labels=labels)


def test_adaptive_labels_that_no_type_has(build: Model, draw_ids: Ids) -> None:
    ids = draw_ids()
    with pytest.raises(InputError, match="labels row 0 holds 17"):
        build("causal_lm", adaptive={"cutoffs": [8], "factor": 2})(ids, labels=torch.full_like(ids, 17))


def test_numbers_of_another_shape(build: Model, draw_ids: Ids) -> None:
    model = build("sequence_classification", num_labels=1)
    with pytest.raises(InputError, match=r"labels have shape \(3,\) but predictions have shape \(2, 1\)"):
        model(draw_ids(), labels=torch.ones(3))


def test_an_unknown_problem(config_of: Config) -> None:
    """Early versions of Transformers 5 check this option themselves, before we can."""
    with pytest.raises((ConfigError, StrictDataclassFieldValidationError), match="problem_type"):
        config_of("sequence_classification", problem_type="foo")
