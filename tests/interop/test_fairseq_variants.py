"""Variants that no stored vector covers, against a plain computation from fairseq's names and arguments.

The computation shares no code with the package. It is itself held against the stored vectors first.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from depthwise.shapes import Tensor

PADDING = 1
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu, "tanh": torch.tanh}
NUM_SOURCE_TYPES, NUM_TARGET_TYPES = 17, 13

TRANSFORMER: dict[str, Any] = {
    "arch": "transformer",
    **{f"{side}_embed_dim": 12 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_embed_dim": 20 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 3 for side in ("encoder", "decoder")},
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    "max_source_positions": 20,
    "max_target_positions": 24,
}
LIGHTCONV: dict[str, Any] = {
    **TRANSFORMER,
    "arch": "lightconv",
    "encoder_kernel_size_list": [3, 7],
    "decoder_kernel_size_list": [2, 5],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "transformer post-norm": TRANSFORMER,
    "transformer pre-norm": {**TRANSFORMER, "encoder_normalize_before": True, "decoder_normalize_before": True},
    "transformer norms differ": {**TRANSFORMER, "decoder_normalize_before": True},
    "transformer without last norm": {
        **TRANSFORMER,
        "decoder_normalize_before": True,
        "no_decoder_final_norm": True,
    },
    "transformer gelu": {**TRANSFORMER, "activation_fn": "gelu"},
    "transformer swish": {**TRANSFORMER, "activation_fn": "swish"},
    "transformer tanh": {**TRANSFORMER, "activation_fn": "tanh"},
    "transformer learned positions": {**TRANSFORMER, "encoder_learned_pos": True, "decoder_learned_pos": True},
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
    "transformer odd width": {
        **TRANSFORMER,
        **{f"{side}_embed_dim": 9 for side in ("encoder", "decoder")},
    },
    "dynamic": {**LIGHTCONV, "encoder_glu": False, "decoder_glu": False},
    "dynamic GLU in words": {**LIGHTCONV, "encoder_glu": "True", "decoder_glu": "False"},
    "dynamic GLU by default": LIGHTCONV,
    "dynamic unnormalised": {**LIGHTCONV, "weight_softmax": False},
    "light": {**LIGHTCONV, "encoder_conv_type": "lightweight", "decoder_conv_type": "lightweight"},
    "light unnormalised": {
        **LIGHTCONV,
        "encoder_conv_type": "lightweight",
        "decoder_conv_type": "lightweight",
        "weight_softmax": "False",
    },
    "light below dynamic": {**LIGHTCONV, "encoder_conv_type": "lightweight"},
    "one kernel for all": {**LIGHTCONV, "encoder_kernel_size_list": [5], "decoder_kernel_size_list": [3]},
    "wider convolution": {**LIGHTCONV, "encoder_conv_dim": 18, "decoder_conv_dim": 24},
    "light wider convolution": {
        **LIGHTCONV,
        "encoder_conv_type": "lightweight",
        "decoder_conv_type": "lightweight",
        "encoder_conv_dim": 18,
        "encoder_glu": False,
    },
    "convolution learned positions": {**LIGHTCONV, "encoder_learned_pos": True, "decoder_learned_pos": True},
    "convolution pre-norm encoder": {**LIGHTCONV, "encoder_normalize_before": True},
    "convolution ignores what it does not read": {
        **LIGHTCONV,
        "no_scale_embedding": True,
        "activation_fn": "gelu",
        "no_decoder_final_norm": True,
        "decoder_normalize_before": True,
    },
}


class Plain:
    """The published arithmetic, straight from a state dict of the newest generation."""

    def __init__(self, args: dict[str, Any], state: dict[str, Tensor]) -> None:
        self.args, self.state = args, state
        self.is_transformer = args["arch"] == "transformer"

    def flag(self, name: str, default: bool = False) -> bool:
        return str(self.args.get(name, default)) == "True"

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.state[f"{name}.weight"]
        return F.layer_norm(x, weight.shape, weight, self.state[f"{name}.bias"])

    def embed(self, side: str, ids: Tensor) -> Tensor:
        table = self.state[f"{side}.embed_tokens.weight"]
        width = table.shape[1]
        scaled = not (self.is_transformer and self.flag("no_scale_embedding"))
        x = (math.sqrt(width) if scaled else 1.0) * table[ids]
        if self.flag("no_token_positional_embeddings"):
            return x
        real = ids != PADDING
        steps = torch.where(real, real.cumsum(1), 0) + PADDING
        if self.flag(f"{side}_learned_pos"):
            positions = self.state[f"{side}.embed_positions.weight"][steps]
        else:
            # a table of single precision, whatever the weights are
            frequencies = torch.exp(torch.arange(width // 2).float() * -(math.log(10000) / (width // 2 - 1)))
            angles = steps.unsqueeze(-1).float() * frequencies
            positions = F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width % 2))
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
            if not is_encoder:
                x = self.residual(side, f"{name}.encoder_attn_layer_norm", x, look)
            x = self.residual(side, f"{name}.{last}", x, feed)
        return self.norm(x, f"{side}.layer_norm") if f"{side}.layer_norm.weight" in self.state else x

    def __call__(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder output and logits."""
        encoded = self.run("encoder", source)
        states = self.run("decoder", target, encoded, source != PADDING)
        return encoded, self.linear(states, "decoder.output_projection")


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
