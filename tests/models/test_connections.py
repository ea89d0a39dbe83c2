"""How layers are connected: scales that begin at 0 (ReZero), and combinations of all that was before (DLCL)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from depthwise.engine import CompactEncoder, Engine
from depthwise.errors import ConfigError
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.executing import executed_by
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.models.stack import Stack

Build = Callable[..., Any]
REZERO = {"connections": "rezero"}
DENSE = {"connections": "dense", "num_layers": 3}


def dense_by_hand(stack: Stack, x: Tensor, **options: Any) -> Tensor:
    """Σ w_k·LN_k(y_k) before every block and behind the last one."""
    outputs = [x]
    for layer in range(stack.num_layers + 1):
        norms = [
            F.layer_norm(y, y.shape[-1:], norm.weight, norm.bias, norm.eps)
            for y, norm in zip(outputs, stack.dense.norms, strict=False)
        ]
        x = sum(weight * norm for weight, norm in zip(stack.dense.weights[layer], norms, strict=True))
        if layer < stack.num_layers:
            outputs.append(stack.block(layer)(x, **options)[0])
    return stack.final_norm(x)


def test_a_rezero_model_begins_as_the_identity(build: Build, config_of: Build, draw_batch: Build) -> None:
    model = DepthwiseForSeq2SeqLM(config_of("seq2seq", norm="none", stack=REZERO)).double().eval()
    scales = [param for name, param in model.named_parameters() if name.endswith(".scale")]
    assert len(scales) == 4
    assert not any(scale.any() for scale in scales)
    batch = draw_batch("seq2seq")
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    embedded = model.model.decoder.embedding(ids, None)
    torch.testing.assert_close(model(**batch).logits, model.head(embedded))
    model(**batch).loss.backward()
    assert all(bool(scale.grad.any()) for scale in scales[2:])


def test_rezero_multiplies_every_branch(build: Build, draw_batch: Build, mixer: str) -> None:
    """As a plain stack with the scale in the last map of each branch would, where these are linear."""
    model = build("seq2seq", mixer, "none", stack=REZERO)
    for stack in (model.model.encoder.stack, model.model.decoder.stack):
        for block in stack.layers:
            x = torch.randn(2, 5, 8, dtype=torch.float64)
            scale = block.scale
            expected = x + scale * block.mixer.write_and_read(x, None, None)[0]
            if block.cross is not None:
                continue
            expected = expected + scale * block.feed_forward(expected)
            torch.testing.assert_close(block(x)[0], expected)


@pytest.mark.parametrize("norm", ["none"])
def test_rezero_runs_everywhere(build: Build, draw_batch: Build, mixer: str, norm: str) -> None:
    """Steps, the engine and the compact executor say what the model says."""
    model, batch = build("seq2seq", mixer, norm, stack=REZERO), draw_batch("seq2seq")
    with executed_by(CompactEncoder()):
        packed = model(**batch).logits
    torch.testing.assert_close(packed, model(**batch).logits)
    del batch["labels"]
    expected = model.generate(**batch, max_length=8)
    assert Engine(model).can_generate()
    found = Engine(model).generate(**batch, max_length=8).sequences
    assert torch.equal(found, expected[:, : found.shape[1]])


def test_dense_layers_read_all_before_them(build: Build, draw_batch: Build, mixer: str) -> None:
    model, batch = build("masked_lm", mixer, stack=DENSE), draw_batch("masked_lm")
    stack, valid = model.model.encoder.stack, batch["attention_mask"].bool()
    x = model.model.encoder.embedding(batch["input_ids"], valid)
    expected = dense_by_hand(stack, x, valid=valid)
    output = model.model(batch["input_ids"], batch["attention_mask"], output_hidden_states=True)
    torch.testing.assert_close(output.last_hidden_state, expected)
    torch.testing.assert_close(stack.final_norm(output.hidden_by_depth[-1]), expected)
    assert len(output.hidden_by_depth) == 4
    with executed_by(CompactEncoder()):
        torch.testing.assert_close(model(**batch).logits, model.eval()(**batch).logits)


def test_dense_weights_begin_as_means(config_of: Build) -> None:
    model = DepthwiseForSeq2SeqLM(config_of("seq2seq", stack=DENSE))
    for side in (model.model.encoder, model.model.decoder):
        assert [weights.tolist() for weights in side.stack.dense.weights] == [
            pytest.approx([1 / (layer + 1)] * (layer + 1)) for layer in range(4)
        ]


def test_dense_decoders_go_step_by_step(build: Build, draw_batch: Build, mixer: str) -> None:
    model, batch = build("seq2seq", mixer, stack=DENSE), draw_batch("seq2seq")
    ids = batch.pop("labels").clamp(min=4)
    whole = model(**batch, decoder_input_ids=ids)
    state, steps = None, []
    for step in range(ids.shape[1]):
        output = model(**batch, decoder_input_ids=ids[:, [step]], past_key_values=state, use_cache=True)
        state = output.past_key_values
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole.logits)


@pytest.mark.parametrize("stack", [REZERO, DENSE])
def test_connections_are_saved(build: Build, draw_batch: Build, tmp_path: Any, stack: dict[str, Any]) -> None:
    norm = "none" if stack is REZERO else "pre"
    model, batch = build("seq2seq", norm=norm, stack=stack), draw_batch("seq2seq")
    model.save_pretrained(tmp_path)
    again = DepthwiseForSeq2SeqLM.from_pretrained(tmp_path).double().eval()
    torch.testing.assert_close(again(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "pre", "stack": REZERO}, 'is "pre", but rezero starts as the identity, without norms; use "none"'),
        ({"norm": "none", "stack": DENSE}, 'is "none", but dense connections are those of pre-norm stacks'),
        ({"stack": DENSE, "exits": {}}, "dense wants all layers to run, and exits skips some"),
        ({"stack": DENSE, "latent": {}}, "dense wants all layers to run, and latent skips some"),
        ({"stack": {"connections": "loose"}}, "loose"),
        ({"stack": {"layer_dropout": 0.2}, "latent": {}}, "leaves out layers that latent gates draw already"),
        ({"stack": {"layer_dropout": 1.5}}, "1.5"),
    ],
)
def test_what_does_not_go_together(config_of: Build, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("seq2seq", **changes)


def test_exits_of_the_decoder_leave_a_dense_encoder_alone() -> None:
    stack = {"num_layers": 2, "num_heads": 2, "ffn_width": 8, "norm": "pre"}
    config = DepthwiseConfig(vocab_size=20, width=8, encoder={**stack, **DENSE}, decoder=stack, exits={})
    assert config.options.encoder.connections == "dense"
