"""Variants that no stored vector covers, against a plain computation from fairseq's names and arguments.

The computation shares no code with the package. It is itself held against the stored vectors first.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from depthwise.shapes import Tensor

PADDING = 1
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu, "tanh": torch.tanh}
NUM_SOURCE_TYPES, NUM_TARGET_TYPES = 17, 13


def both(option: str, value: Any) -> dict[str, Any]:
    """An argument of encoder and decoder."""
    return {f"{side}_{option}": value for side in ("encoder", "decoder")}


TRANSFORMER: dict[str, Any] = {
    "arch": "transformer",
    **{**both("embed_dim", 12), **both("ffn_embed_dim", 20), **both("attention_heads", 3), **both("layers", 2)},
    "max_source_positions": 20,
    "max_target_positions": 24,
}
PRE_NORM_DECODER: dict[str, Any] = {**TRANSFORMER, "decoder_normalize_before": True}
DYNAMIC: dict[str, Any] = {
    **TRANSFORMER,
    "arch": "lightconv",
    "encoder_kernel_size_list": [3, 7],
    "decoder_kernel_size_list": [2, 5],
}
LIGHT: dict[str, Any] = {**DYNAMIC, **both("conv_type", "lightweight")}
VARIANTS: dict[str, dict[str, Any]] = {
    "transformer post-norm": TRANSFORMER,
    "transformer pre-norm": {**TRANSFORMER, **both("normalize_before", True)},
    "transformer norms differ": PRE_NORM_DECODER,
    "transformer without last norm": {**PRE_NORM_DECODER, "no_decoder_final_norm": True},
    "transformer gelu": {**TRANSFORMER, "activation_fn": "gelu"},
    "transformer swish": {**TRANSFORMER, "activation_fn": "swish"},
    "transformer tanh": {**TRANSFORMER, "activation_fn": "tanh"},
    "transformer learned positions": {**TRANSFORMER, **both("learned_pos", True)},
    "transformer source positions learned": {**TRANSFORMER, "encoder_learned_pos": True},
    "transformer without positions": {**TRANSFORMER, "no_token_positional_embeddings": True},
    "transformer unscaled": {**TRANSFORMER, "no_scale_embedding": True},
    "transformer tied decoder": {**TRANSFORMER, "share_decoder_input_output_embed": True},
    "transformer sides differ": {
        **TRANSFORMER,
        "encoder_ffn_embed_dim": 16,
        "encoder_attention_heads": 2,
        "encoder_layers": 3,
    },
    "transformer odd width": {**TRANSFORMER, **both("embed_dim", 9)},
    "dynamic": {**DYNAMIC, **both("glu", False)},
    "dynamic GLU in words": {**DYNAMIC, "encoder_glu": "True", "decoder_glu": "False"},
    "dynamic GLU by default": DYNAMIC,
    "dynamic unnormalised": {**DYNAMIC, "weight_softmax": False},
    "light": LIGHT,
    "light unnormalised": {**LIGHT, "weight_softmax": "False"},
    "light below dynamic": {**DYNAMIC, "encoder_conv_type": "lightweight"},
    "one kernel for all": {**DYNAMIC, "encoder_kernel_size_list": [5], "decoder_kernel_size_list": [3]},
    "wider convolution": {**DYNAMIC, "encoder_conv_dim": 18, "decoder_conv_dim": 24},
    "light wider convolution": {**LIGHT, "encoder_conv_dim": 18, "encoder_glu": False},
    "convolution learned positions": {**DYNAMIC, **both("learned_pos", True)},
    "convolution pre-norm encoder": {**DYNAMIC, "encoder_normalize_before": True},
    "convolution ignores what it does not read": {
        **DYNAMIC,
        "no_scale_embedding": True,
        "activation_fn": "gelu",
        "no_decoder_final_norm": True,
        "decoder_normalize_before": True,
    },
}


NUM_TYPES = 23
LIGHTCONV_LM: dict[str, Any] = {
    "arch": "lightconv_lm",
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 20,
    "decoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_kernel_size_list": [2, 5],
    "tokens_per_sample": 24,
}
TRANSFORMER_LM: dict[str, Any] = {**LIGHTCONV_LM, "arch": "transformer_lm"}
BANDS: dict[str, Any] = {"adaptive_input": True, "adaptive_input_cutoff": "7,13", "adaptive_softmax_cutoff": [7, 13]}
TIED_BANDS: dict[str, Any] = {**BANDS, "tie_adaptive_weights": True, "tie_adaptive_proj": True}
TWO_BANDS: dict[str, Any] = {"adaptive_input_cutoff": [7], "adaptive_softmax_cutoff": "7,23"}
HALVES: dict[str, Any] = {"adaptive_input_factor": 2.0, "adaptive_softmax_factor": 2.0}
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "dynamic": LIGHTCONV_LM,
    "light without GLU": {**LIGHTCONV_LM, "decoder_conv_type": "lightweight", "decoder_glu": False},
    "dynamic of the Billion Word benchmark": {**LIGHTCONV_LM, "arch": "lightconv_lm_gbw"},
    "dynamic tied": {**LIGHTCONV_LM, "share_decoder_input_output_embed": True},
    "dynamic learned positions": {**LIGHTCONV_LM, "decoder_learned_pos": True},
    "dynamic wider convolution": {**LIGHTCONV_LM, "decoder_conv_dim": 32},
    "dynamic in bands": {**LIGHTCONV_LM, **BANDS},
    "dynamic in tied bands": {**LIGHTCONV_LM, **TIED_BANDS},
    "dynamic in tied bands, projections apart": {**LIGHTCONV_LM, **TIED_BANDS, "tie_adaptive_proj": False},
    "dynamic in tied projections alone, which are none": {**LIGHTCONV_LM, **TIED_BANDS, "tie_adaptive_weights": False},
    "dynamic in two bands": {**LIGHTCONV_LM, **TIED_BANDS, **TWO_BANDS},
    "dynamic in bands of half the width": {**LIGHTCONV_LM, **BANDS, **HALVES},
    "transformer": TRANSFORMER_LM,
    "transformer without last norm": {**TRANSFORMER_LM, "no_decoder_final_norm": True},
    "transformer unscaled, tied, gelu": {
        **TRANSFORMER_LM,
        "no_scale_embedding": True,
        "share_decoder_input_output_embed": True,
        "activation_fn": "gelu",
    },
    "transformer in tied bands": {**TRANSFORMER_LM, **TIED_BANDS},
    "transformer in tied bands of early files": {**TRANSFORMER_LM, **TIED_BANDS, "no_tie_adaptive_proj": False},
}


class Plain:
    """The published arithmetic, straight from a state dict of the newest generation."""

    def __init__(self, args: dict[str, Any], state: dict[str, Tensor]) -> None:
        self.args, self.state = args, state
        self.is_transformer = args["arch"].startswith("transformer")

    def flag(self, name: str, default: bool = False) -> bool:
        return str(self.args.get(name, default)) == "True"

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.state[f"{name}.weight"]
        return F.layer_norm(x, weight.shape, weight, self.state[f"{name}.bias"])

    def vectors(self, side: str, ids: Tensor) -> Tensor:
        if f"{side}.embed_tokens.weight" in self.state:
            return self.state[f"{side}.embed_tokens.weight"][ids]
        rows, bands = [], sum(key.startswith(f"{side}.embed_tokens.embeddings.") for key in self.state) // 2
        for band in range(bands):
            name = f"{side}.embed_tokens.embeddings.{band}"
            rows.append(self.state[f"{name}.0.weight"] @ self.state[f"{name}.1.weight"].t())
        return torch.cat(rows)[ids]

    def embed(self, side: str, ids: Tensor) -> Tensor:
        vectors = self.vectors(side, ids)
        width = vectors.shape[-1]
        scaled = not (self.is_transformer and self.flag("no_scale_embedding"))
        x = (math.sqrt(width) if scaled else 1.0) * vectors
        if self.flag("no_token_positional_embeddings"):
            return x
        real = ids != PADDING
        steps = torch.where(real, real.cumsum(1), 0) + PADDING
        if self.flag(f"{side}_learned_pos"):
            positions = self.state[f"{side}.embed_positions.weight"][steps]
        else:
            # angles of single precision, whatever the weights are; their sines to the precision of the comparison
            frequencies = torch.exp(torch.arange(width // 2).float() * -(math.log(10000) / (width // 2 - 1)))
            angles = (steps.unsqueeze(-1).float() * frequencies).double()
            positions = F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width % 2)).to(x.dtype)
        return x + positions * real.unsqueeze(-1)

    def attention(self, name: str, x: Tensor, seen: Tensor, heads: int, allowed: Tensor) -> Tensor:
        query, key, value = (
            self.linear(states, f"{name}.{part}_proj").unflatten(-1, (heads, -1)).transpose(1, 2)
            for states, part in ((x, "q"), (seen, "k"), (seen, "v"))
        )
        scores = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~allowed, -torch.inf)
        return self.linear((scores.softmax(-1) @ value).transpose(1, 2).flatten(2), f"{name}.out_proj")

    def convolution(self, name: str, side: str, x: Tensor, real: Tensor | None, heads: int) -> Tensor:
        x = self.linear(x, f"{name}.linear1")
        if self.flag(f"{side}_glu", default=True):
            x = F.glu(x)
        if real is not None:
            x = x * real.unsqueeze(-1)
        if f"{name}.conv.weight" in self.state:
            kernel = self.state[f"{name}.conv.weight"].squeeze(1).expand(*x.shape[:2], -1, -1)
        else:
            kernel = self.linear(x, f"{name}.conv.weight_linear").unflatten(-1, (heads, -1))
        if self.flag("weight_softmax", default=True):
            kernel = kernel.softmax(-1)
        taps = kernel.shape[-1]
        left = taps // 2 if side == "encoder" else taps - 1
        windows = F.pad(x, (0, 0, left, taps - 1 - left)).unfold(1, taps, 1).unflatten(2, (heads, -1))
        return self.linear((windows * kernel.unsqueeze(3)).sum(-1).flatten(2), f"{name}.linear2")

    def residual(self, side: str, norm: str, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        if self.flag(f"{side}_normalize_before"):
            return x + branch(self.norm(x, norm))
        return self.norm(x + branch(x), norm)

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.args.get("activation_fn", "relu")] if self.is_transformer else F.relu
        return self.linear(activation(self.linear(x, f"{name}.fc1")), f"{name}.fc2")

    def run(self, side: str, ids: Tensor, encoded: Tensor | None = None, encoded_real: Tensor | None = None) -> Tensor:
        x, real, is_encoder = self.embed(side, ids), ids != PADDING, side == "encoder"
        heads, length = self.args[f"{side}_attention_heads"], ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        allowed = real[:, None, None, :] if is_encoder else causal
        norms = ("layer_norm1", "layer_norm2") if is_encoder else ("conv_layer_norm", "final_layer_norm")
        first, last = ("self_attn_layer_norm", "final_layer_norm") if self.is_transformer else norms
        for layer in range(self.args[f"{side}_layers"]):
            name = f"{side}.layers.{layer}"

            def mix(x: Tensor, name: str = name) -> Tensor:
                if self.is_transformer:
                    return self.attention(f"{name}.self_attn", x, x, heads, allowed)
                return self.convolution(name, side, x, real if is_encoder else None, heads)

            def look(x: Tensor, name: str = name) -> Tensor:
                assert encoded is not None
                assert encoded_real is not None
                return self.attention(f"{name}.encoder_attn", x, encoded, heads, encoded_real[:, None, None, :])

            def feed(x: Tensor, name: str = name) -> Tensor:
                return self.feed_forward(name, x)

            x = self.residual(side, f"{name}.{first}", x, mix)
            if encoded is not None:
                x = self.residual(side, f"{name}.encoder_attn_layer_norm", x, look)
            x = self.residual(side, f"{name}.{last}", x, feed)
        return self.norm(x, f"{side}.layer_norm") if f"{side}.layer_norm.weight" in self.state else x

    def __call__(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder output and logits."""
        encoded = self.run("encoder", source)
        states = self.run("decoder", target, encoded, source != PADDING)
        return encoded, self.linear(states, "decoder.output_projection")


class PlainLanguageModel(Plain):
    """The same for a decoder alone, which is pre-norm, with a softmax that may be in bands."""

    def flag(self, name: str, default: bool = False) -> bool:
        return name == "decoder_normalize_before" or super().flag(name, default)

    def scores(self, ids: Tensor) -> Tensor:
        """Logits, or log-probabilities where there are bands."""
        states = self.run("decoder", ids)
        if "decoder.output_projection.weight" in self.state:
            return self.linear(states, "decoder.output_projection")
        softmax = "decoder.adaptive_softmax"
        if f"{softmax}.head.weight" in self.state:
            head = self.linear(states, f"{softmax}.head")
        else:
            words, classes = (self.linear(states, f"{softmax}.head.{part}_proj") for part in ("word", "class"))
            head = torch.cat([words, classes], -1)
        head = head.log_softmax(-1)
        bands = sum(key.startswith(f"{softmax}.tail.") for key in self.state) // 2
        parts = [head[..., :-bands]]
        for band in range(bands):
            narrowing = self.state[f"{softmax}.tail.{band}.0.weight"]
            is_tied = self.flag("tie_adaptive_weights") and self.flag("tie_adaptive_proj")
            narrow = states @ (narrowing if is_tied else narrowing.t())
            within = self.linear(narrow, f"{softmax}.tail.{band}.2").log_softmax(-1)
            parts.append(head[..., band - bands].unsqueeze(-1) + within)
        return torch.cat(parts, -1)


def random_language_model(args: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights of a decoder alone: its layers are those of a translation model without the second attention."""
    width, flags = args["decoder_embed_dim"], PlainLanguageModel(args, {})
    both = {**args, "decoder_normalize_before": True, "max_target_positions": args["tokens_per_sample"]}
    both |= {"encoder_embed_dim": width, "encoder_layers": 0}
    if "no_tie_adaptive_proj" in args:
        both["no_decoder_final_norm"] = True
    state = {
        key: tensor
        for key, tensor in random_state(both).items()
        if key.startswith("decoder.") and "encoder_attn" not in key
    }
    if not flags.is_transformer:
        del state["decoder.layer_norm.weight"], state["decoder.layer_norm.bias"]
    state["decoder.version"] = torch.tensor([3.0])
    del state["decoder.embed_tokens.weight"], state["decoder.output_projection.weight"]
    if "adaptive_input" not in args:
        table, output = torch.randn(2, NUM_TYPES, width).double()
        state["decoder.embed_tokens.weight"] = table
        is_tied = flags.flag("share_decoder_input_output_embed")
        state["decoder.output_projection.weight"] = table if is_tied else output
        return state
    factor = int(args.get("adaptive_softmax_factor", 4))
    bounds = [0, 7, 23] if args["adaptive_input_cutoff"] == [7] else [0, 7, 13, 23]
    tied, tied_projections = flags.flag("tie_adaptive_weights"), flags.flag("tie_adaptive_proj")
    embeddings, softmax = "decoder.embed_tokens.embeddings", "decoder.adaptive_softmax"
    state["decoder.embed_tokens._float_tensor"] = torch.zeros(1)
    state[f"{softmax}.version"] = torch.tensor([1])
    for band, (start, end) in enumerate(pairwise(bounds)):
        narrow = width // factor**band
        table = state[f"{embeddings}.{band}.0.weight"] = torch.randn(end - start, narrow).double()
        projection = state[f"{embeddings}.{band}.1.weight"] = torch.randn(width, narrow).double() / 4
        if band:
            name = f"{softmax}.tail.{band - 1}"
            shared = tied and tied_projections
            state[f"{name}.0.weight"] = projection if shared else torch.randn(narrow, width).double() / 4
            state[f"{name}.2.weight"] = table if tied else torch.randn(end - start, narrow).double()
    num_bands = len(bounds) - 2
    if tied:
        state[f"{softmax}.head.word_proj.weight"] = state[f"{embeddings}.0.0.weight"]
        state[f"{softmax}.head.class_proj.weight"] = torch.randn(num_bands, width).double()
    else:
        state[f"{softmax}.head.weight"] = torch.randn(7 + num_bands, width).double()
    return state


def random_state(args: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights of every name that these arguments give rise to: doubles that single precision holds exactly."""
    shapes: dict[str, tuple[int, ...]] = {}
    flags = Plain(args, {})
    width = args["encoder_embed_dim"]

    def linear(name: str, out: int, inner: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (out, inner), (out,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    for side, num_types in (("encoder", NUM_SOURCE_TYPES), ("decoder", NUM_TARGET_TYPES)):
        is_encoder = side == "encoder"
        shapes[f"{side}.embed_tokens.weight"] = (num_types, width)
        if flags.flag(f"{side}_learned_pos"):
            limit = args["max_source_positions" if is_encoder else "max_target_positions"]
            shapes[f"{side}.embed_positions.weight"] = (limit + PADDING + 1, width)
        no_last_norm = flags.is_transformer and not is_encoder and flags.flag("no_decoder_final_norm")
        if flags.flag(f"{side}_normalize_before") and not no_last_norm:
            norm(f"{side}.layer_norm")
        for layer in range(args[f"{side}_layers"]):
            name = f"{side}.layers.{layer}"
            linear(f"{name}.fc1", args[f"{side}_ffn_embed_dim"], width)
            linear(f"{name}.fc2", width, args[f"{side}_ffn_embed_dim"])
            attentions = [] if is_encoder else ["encoder_attn"]
            if flags.is_transformer:
                attentions.append("self_attn")
                norms = ["self_attn_layer_norm", "final_layer_norm"]
            else:
                norms = ["layer_norm1", "layer_norm2"] if is_encoder else ["conv_layer_norm", "final_layer_norm"]
                channels, heads = args.get(f"{side}_conv_dim", width), args[f"{side}_attention_heads"]
                sizes = args[f"{side}_kernel_size_list"]
                taps = sizes[layer] if len(sizes) > 1 else sizes[0]
                linear(f"{name}.linear1", channels * (2 if flags.flag(f"{side}_glu", default=True) else 1), width)
                linear(f"{name}.linear2", width, channels)
                if args.get(f"{side}_conv_type", "dynamic") == "lightweight":
                    shapes[f"{name}.conv.weight"] = (heads, 1, taps)
                else:
                    shapes[f"{name}.conv.weight_linear.weight"] = (heads * taps, channels)
                    shapes[f"{name}.conv.conv_bias"] = (1, 1, channels)
            for attention in attentions:
                for part in ("q", "k", "v", "out"):
                    linear(f"{name}.{attention}.{part}_proj", width, width)
            for part in norms if is_encoder else [*norms, "encoder_attn_layer_norm"]:
                norm(f"{name}.{part}")
    state = {name: torch.randn(shape).double() / 2 for name, shape in shapes.items()}
    tied = flags.flag("share_decoder_input_output_embed")
    output = torch.randn(NUM_TARGET_TYPES, width).double()
    state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"] if tied else output
    return state


def test_the_plain_computation_is_fairseqs(golden: Any) -> None:
    encoded, logits = Plain(golden.args, golden.state)(golden.source, golden.target)
    real_source, real_target = golden.source != PADDING, golden.target != PADDING
    assert (encoded - golden.tensors["out.encoder"])[real_source].abs().max() < 1e-5
    assert (logits - golden.tensors["out.logits"])[real_target].abs().max() < 1e-5


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name: str, imported: Callable[..., Any]) -> None:
    args, state = VARIANTS[name], random_state(VARIANTS[name])
    source = torch.randint(4, NUM_SOURCE_TYPES, (3, 9))
    target = torch.randint(4, NUM_TARGET_TYPES, (3, 8))
    source[1, 5:] = target[2, 6:] = PADDING
    model = imported(args, state).double()
    encoded, logits = Plain(args, state)(source, target)
    with torch.no_grad():
        output = model(source, source != PADDING, target, target != PADDING)
    assert (output.encoder_last_hidden_state - encoded)[source != PADDING].abs().max() < 1e-10
    assert (output.logits - logits)[target != PADDING].abs().max() < 1e-10


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_model(name: str, imported: Callable[..., Any]) -> None:
    args, state = LANGUAGE_MODELS[name], random_language_model(LANGUAGE_MODELS[name])
    ids = torch.randint(4, NUM_TYPES, (3, 9))
    ids[1, 5:] = PADDING
    model = imported(args, state, NUM_TYPES).double()
    with torch.no_grad():
        logits = model(ids, ids != PADDING).logits
    scores = PlainLanguageModel(args, state).scores(ids)
    assert (logits - scores)[ids != PADDING].abs().max() < 1e-10
    is_in_bands = "adaptive_input" in args
    assert torch.allclose(scores.exp().sum(-1), torch.ones(1).double()) == is_in_bands
