"""Weights of fairseq: its own outputs come out again, from files of every generation; nothing is lost or made up."""

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from depthwise.errors import ConfigError
from depthwise.interop.fairseq import convert_state_dict, options_from_args, without_absent_norms
from depthwise.models.greedy import greedy_decode
from depthwise.shapes import Tensor

PADDING = 1
TOLERANCE = 1e-5
REMEDY = "check that arguments and dictionaries belong to these weights"

State = dict[str, Tensor]
Imported = Callable[..., Any]


def options_of(golden: Any) -> Any:
    return options_from_args(golden.args, 44, 44)


def problems_of(state: State, options: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        convert_state_dict(state, options)
    assert caught.value.source == "fairseq weights"
    return [(problem.option, problem.message) for problem in caught.value.problems]


# Outputs


@torch.no_grad()
def test_outputs_are_fairseqs(golden: Any, imported: Imported) -> None:
    output = imported(golden.args, golden.state)(**golden.batch)
    encoded, logits = output.encoder_last_hidden_state, output.logits
    assert (encoded - golden.tensors["out.encoder"])[golden.source != PADDING].abs().max() < TOLERANCE
    assert (logits - golden.tensors["out.logits"])[golden.target != PADDING].abs().max() < TOLERANCE


def test_greedy_tokens_are_fairseqs(golden: Any, imported: Imported) -> None:
    model = imported(golden.args, golden.state)
    mask = golden.source != PADDING
    tokens = greedy_decode(model, golden.source, mask, max_new_tokens=12, stop_at_eos=False)
    assert torch.equal(tokens, golden.tensors["out.greedy"])


@torch.no_grad()
def test_padding_on_the_left_changes_nothing(golden: Any, imported: Imported) -> None:
    model = imported(golden.args, golden.state)
    lengths = golden.tensors["in.src_lengths"].tolist()
    rolled = [row.roll(len(row) - length) for row, length in zip(golden.source, lengths, strict=True)]
    source = torch.stack(rolled)
    assert not torch.equal(source, golden.source)
    assert bool((source[:, -1] != PADDING).all())
    batch = {**golden.batch, "input_ids": source, "attention_mask": source != PADDING}
    logits = model(**batch).logits
    assert (logits - golden.tensors["out.logits"])[golden.target != PADDING].abs().max() < TOLERANCE


@torch.no_grad()
def test_a_checkpoint_of_the_trainer(golden_folder: Path, imported: Imported) -> None:
    folder = golden_folder / "fairseq_checkpoint"
    with torch.serialization.safe_globals([argparse.Namespace]):
        checkpoint = torch.load(folder / "checkpoint_best.pt", weights_only=True)
    expected = load_file(folder / "expected.safetensors")
    source, target = expected["in.src_tokens"], expected["in.prev_output_tokens"]
    model = imported(vars(checkpoint["args"]), checkpoint["model"])
    logits = model(source, source != PADDING, target, target != PADDING).logits
    assert (logits - expected["out.logits"])[target != PADDING].abs().max() < TOLERANCE


# Generations


@torch.no_grad()
def test_older_generations_hold_the_same_model(golden: Any, imported: Imported, older: Callable[..., State]) -> None:
    state = older(golden.state, tied=golden.args["share_all_embeddings"])
    assert state.keys() != golden.state.keys()
    converted = convert_state_dict(state, options_of(golden))
    newest = convert_state_dict(golden.state, options_of(golden))
    assert converted.keys() == newest.keys()
    assert all(torch.equal(tensor, newest[name]) for name, tensor in converted.items())
    logits = imported(golden.args, state)(**golden.batch).logits
    assert torch.equal(logits, imported(golden.args, golden.state)(**golden.batch).logits)


def test_the_oldest_generation_looks_like_it(
    golden_named: Callable[[str], Any], until_2019: Callable[..., State]
) -> None:
    """The names in question do occur in the simulated files, and the newest do not."""
    light = until_2019(golden_named("lightconv_noglu_postnorm").state, tied=False)
    assert {"encoder.layers.0.layer_norms.0.weight", "decoder.layers.1.encoder_attn.in_proj_bias"} <= light.keys()
    assert {"decoder.embed_out", "encoder.version", "decoder.embed_positions._float_tensor"} <= light.keys()
    assert light["encoder.layers.0.conv.weight"].shape == (4, 3)
    dynamic = until_2019(golden_named("dynamicconv_glu_prenorm").state, tied=True)
    attention = until_2019(golden_named("transformer_prenorm").state, tied=True)
    assert {"encoder.layers.2.self_attn.in_proj_weight", "decoder.layers.0.layer_norms.2.bias"} <= attention.keys()
    newest = re.compile(r"layer_norm[12]\.|[qkv]_proj|output_projection|conv_bias|self_attn_layer_norm")
    assert [key for state in (light, dynamic, attention) for key in state if newest.search(key)] == []


@pytest.mark.parametrize("bias", [torch.nan, 1e30])
def test_the_bias_that_fairseq_ignores_is_ignored(golden_named: Callable[[str], Any], bias: float) -> None:
    golden = golden_named("dynamicconv_glu_prenorm")
    noisy = {k: torch.full_like(v, bias) if k.endswith("conv_bias") else v for k, v in golden.state.items()}
    clean, found = (convert_state_dict(state, options_of(golden)) for state in (golden.state, noisy))
    assert all(torch.equal(found[name], tensor) for name, tensor in clean.items())


def test_early_transformers_have_no_last_norm(golden_named: Callable[[str], Any]) -> None:
    golden = golden_named("transformer_prenorm")
    options = options_of(golden)
    assert without_absent_norms(options, golden.state) == options
    state = {key: tensor for key, tensor in golden.state.items() if not re.fullmatch(r"\w+\.layer_norm\.\w+", key)}
    assert without_absent_norms(options, state) == options, "a new file without its norm is incomplete"
    second = {**state, "encoder.version": torch.tensor([2.0]), "decoder.version": torch.tensor([2.0])}
    changed = without_absent_norms(options, second)
    assert (changed.encoder.has_final_norm, changed.decoder.has_final_norm) == (True, False)
    first = {key: tensor for key, tensor in state.items() if not key.endswith("version")}
    changed = without_absent_norms(options, first)
    assert (changed.encoder.has_final_norm, changed.decoder.has_final_norm) == (False, False)
    names = convert_state_dict(first, changed)
    assert [name for name in names if "final_norm" in name] == []


def test_convolutions_always_end_in_their_norm(golden_named: Callable[[str], Any]) -> None:
    """Their version is 2 from the first file on."""
    golden = golden_named("dynamicconv_glu_prenorm")
    assert without_absent_norms(options_of(golden), {}) == options_of(golden)


# What does not fit


def test_a_weight_without_a_place(golden: Any) -> None:
    extra = {"encoder.quant_noise.weight": torch.zeros(2), "decoder.layers.0.adapter.fc1.weight": torch.zeros(2)}
    assert problems_of({**golden.state, **extra}, options_of(golden)) == [
        (
            "left over",
            "no place in this model for encoder.quant_noise.weight, decoder.layers.0.adapter.fc1.weight; " + REMEDY,
        )
    ]


@pytest.mark.parametrize(
    "key",
    [
        "decoder.embed_positions.weight",
        "encoder.layers.9.fc1.weight",
        "encoder.layers.0.encoder_attn.q_proj.weight",
        "encoder.layers.0.fc1.scale",
        "teacher.embed_tokens.weight",
        "embed_tokens.weight",
    ],
)
def test_a_weight_that_only_looks_familiar(golden: Any, key: str) -> None:
    ((option, message),) = problems_of({**golden.state, key: torch.zeros(66, 32)}, options_of(golden))
    assert option == "left over"
    assert message == f"no place in this model for {key}; {REMEDY}"


def test_a_convolution_bias_that_is_used(golden_named: Callable[[str], Any]) -> None:
    golden = golden_named("dynamicconv_glu_prenorm")
    key = "decoder.layers.1.conv.conv_bias"
    assert problems_of({**golden.state, key: torch.zeros(32)}, options_of(golden)) == [
        ("left over", f"no place in this model for {key}; {REMEDY}")
    ]


def test_a_missing_weight(golden: Any) -> None:
    state = {key: tensor for key, tensor in golden.state.items() if key != "encoder.layers.1.fc1.bias"}
    assert problems_of(state, options_of(golden)) == [
        (
            "missing",
            f"nothing among the weights for model.encoder.stack.layers.1.feed_forward.hidden.bias; {REMEDY}",
        )
    ]


def test_every_weight_is_needed(golden: Any) -> None:
    """Without any one of them there is an error, unless fairseq makes no use of it or a tied one stands in."""
    tied = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"}
    spare = tied if golden.args["share_all_embeddings"] else set()
    spare |= {key for key in golden.state if key.endswith(("version", "conv_bias"))}
    for key in golden.state.keys() - spare:
        problems_of({other: tensor for other, tensor in golden.state.items() if other != key}, options_of(golden))
    for key in spare:
        convert_state_dict(
            {other: tensor for other, tensor in golden.state.items() if other != key}, options_of(golden)
        )


def test_untied_options_need_an_output_matrix(golden_named: Callable[[str], Any]) -> None:
    golden = golden_named("transformer_prenorm")
    state = {key: tensor for key, tensor in golden.state.items() if "output_projection" not in key}
    options = replace(options_of(golden), tied_embeddings="none")
    assert problems_of(state, options) == [("missing", f"nothing among the weights for head.weight; {REMEDY}")]


def test_long_lists_are_cut(golden_named: Callable[[str], Any]) -> None:
    """Arguments of a Transformer with the weights of a convolutional model: both lists would be endless."""
    options = options_of(golden_named("transformer_prenorm"))
    left_over, missing = problems_of(golden_named("dynamicconv_glu_prenorm").state, options)
    assert left_over[0] == "left over"
    assert missing[0] == "missing"
    for _, message in (left_over, missing):
        assert re.search(r" and \d+ more; ", message)
        assert len(message) < 1000


def test_a_weight_of_another_shape(golden_named: Callable[[str], Any]) -> None:
    """Such as an embedding over another dictionary."""
    golden = golden_named("lightconv_noglu_postnorm")
    assert problems_of(golden.state, options_from_args(golden.args, 40, 44)) == [
        ("encoder.embed_tokens.weight", f"has shape (44, 32), but the options ask for (40, 32); {REMEDY}")
    ]


def test_tied_matrices_that_differ(golden_named: Callable[[str], Any]) -> None:
    golden = golden_named("lightconv_noglu_postnorm")
    options = replace(options_of(golden), tied_embeddings="all")
    message = "differs from encoder.embed_tokens.weight, to which the options tie it; check how embeddings are shared"
    assert problems_of(golden.state, options) == [
        ("decoder.embed_tokens.weight", message),
        ("decoder.output_projection.weight", message),
    ]


def test_a_weight_under_two_names(golden_named: Callable[[str], Any]) -> None:
    golden = golden_named("lightconv_noglu_postnorm")
    state = {**golden.state, "decoder.embed_out": golden.state["decoder.output_projection.weight"]}
    assert problems_of(state, options_of(golden)) == [
        ("decoder.embed_out", "is the same weight as decoder.output_projection.weight; remove one of them")
    ]
