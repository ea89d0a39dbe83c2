"""Architecture arguments of fairseq as our options.

Covered are the Transformer and the light and dynamic convolutions of ``lightconv``, as translation and as language
models, and the Transformer with latent depth. Ids of special tokens stay as they are in fairseq (bos 0, pad 1, eos 2,
unk 3), which are the defaults of ``DepthwiseConfig``.
"""

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from depthwise.config import AdaptiveConfig, ModelConfig, StackConfig, check_model
from depthwise.errors import ConfigError, Problem

TRANSFORMERS = (
    "transformer",
    "transformer_tiny",
    "transformer_iwslt_de_en",
    "transformer_wmt_en_de",
    "transformer_wmt_en_de_big",
    "transformer_wmt_en_de_big_t2t",
    "transformer_vaswani_wmt_en_de_big",
    "transformer_vaswani_wmt_en_fr_big",
)
LIGHTCONVS = (
    "lightconv",
    "lightconv_iwslt_de_en",
    "lightconv_wmt_en_de",
    "lightconv_wmt_en_de_big",
    "lightconv_wmt_en_fr_big",
    "lightconv_wmt_zh_en_big",
)
TRANSFORMER_LMS = (
    "transformer_lm",
    "transformer_lm_big",
    "transformer_lm_baevski_wiki103",
    "transformer_lm_wiki103",
    "transformer_lm_baevski_gbw",
    "transformer_lm_gbw",
    "transformer_lm_gpt",
    "transformer_lm_gpt2_small",
    "transformer_lm_gpt2_medium",
    "transformer_lm_gpt2_big",
)
LIGHTCONV_LMS = ("lightconv_lm", "lightconv_lm_gbw")
LATENT = "latent_multilingual_transformer"
LANGUAGE_MODELS = (*TRANSFORMER_LMS, *LIGHTCONV_LMS)
ARCHITECTURES = (*TRANSFORMERS, *LIGHTCONVS, *LANGUAGE_MODELS, LATENT)
MIXERS = {"lightweight": "lightconv", "dynamic": "dynamicconv"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "tanh": "tanh"}
ENCODER_KERNELS = (3, 7, 15, 31, 31, 31, 31)
DECODER_KERNELS = (3, 7, 15, 31, 31, 31)
FIRST_POSITION = 2
"""Positions count from the padding id plus one."""

LATENT_DEFAULTS = {
    **{f"{side}_ffn_embed_dim": 1024 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    "encoder_layers": 12,
    "decoder_layers": 24,
}
"""What a Transformer with latent depth has where its arguments say nothing."""

UNSUPPORTED_IN_TRANSLATION = {"adaptive_softmax_cutoff": "an adaptive softmax over the target"}
"""Arguments that our models have no counterpart for, in words."""
UNSUPPORTED_IN_LANGUAGE_MODELS = {"character_embeddings": "input in characters"}
UNSUPPORTED_IN_TRANSFORMERS = {
    "layernorm_embedding": "a norm on the embeddings",
    "cross_self_attention": "attention over source and target at once",
    "no_cross_attention": "a decoder that does not attend to the source",
    "merge_src_tgt_embed": "one embedding over two merged dictionaries",
    "char_inputs": "input in characters",
    "quant_noise_pq": "quantisation noise",
    "quant_noise_scalar": "quantisation noise",
    "base_layers": "a layer of routed experts",
    "scale_attn": "a norm after self-attention",
    "scale_fc": "a norm inside the feed-forward network",
    "scale_heads": "a weight for each attention head",
    "scale_resids": "a weight on the residual",
    "encoder_layers_to_keep": "a choice of layers made while loading",
    "decoder_layers_to_keep": "a choice of layers made while loading",
    "encoder_xformers_att_config": "attention by xFormers",
    "decoder_xformers_att_config": "attention by xFormers",
}
_WORDS = {"true": True, "1": True, "false": False, "0": False}
_BOTH_OR_NEITHER = "import a model that has both or neither"
_SAME_BANDS = "import a model whose bands are the same on both sides"
_UNSET: tuple[Any, ...] = (None, False, 0, "", "0", "False", "None", [], ())


def options_from_args(args: Mapping[str, Any], num_source_types: int, num_target_types: int) -> ModelConfig:
    """Our options for a model with these architecture arguments and dictionaries of these sizes.

    ``args`` holds ``arch`` and what the command line of fairseq was given (``vars`` of the namespace in a checkpoint).
    An argument that is absent or null has the default that fairseq gives it when it loads a file; one that its
    architecture does not read is not looked at. LayerDrop is left out: it changes training alone. A language model has
    one dictionary, that of the target. Raises ``ConfigError`` with everything that our models cannot represent.
    """
    arch = architecture(args)
    reader = _Reader(args, arch)
    if arch in LANGUAGE_MODELS:
        config = _language_model(reader, num_target_types)
    else:
        config = _translation_model(reader, num_source_types, num_target_types)
    problems = [*reader.problems.values(), *check_model(config)]
    if problems:
        raise ConfigError("fairseq arguments", problems)
    return config


def architecture(args: Mapping[str, Any]) -> str:
    """The name of the architecture; raises ``ConfigError`` if it is none that can be imported."""
    arch = args.get("arch")
    if arch not in ARCHITECTURES:
        found = "is missing" if arch is None else f"{arch!r} is no architecture that can be imported"
        remedy = "give transformer, lightconv, transformer_lm or lightconv_lm if it is one of these under another name"
        raise ConfigError("fairseq arguments", [Problem("arch", f"{found}; {remedy}")])
    return str(arch)


def is_language_model(args: Mapping[str, Any]) -> bool:
    """Whether the arguments are those of a decoder alone, with one dictionary."""
    return args.get("arch") in LANGUAGE_MODELS


class _Reader:
    """Arguments with their defaults. What is wrong with one is noted once, and something harmless stands in for it."""

    def __init__(self, args: Mapping[str, Any], arch: str) -> None:
        self.is_transformer = arch not in (*LIGHTCONVS, *LIGHTCONV_LMS)
        self.is_language_model = arch in LANGUAGE_MODELS
        self.args = {**(LATENT_DEFAULTS if arch == LATENT else {}), **_given(args)}
        self.problems: dict[str, Problem] = {}
        unsupported = UNSUPPORTED_IN_LANGUAGE_MODELS if self.is_language_model else UNSUPPORTED_IN_TRANSLATION
        for name, meaning in {**unsupported, **(UNSUPPORTED_IN_TRANSFORMERS if self.is_transformer else {})}.items():
            if args.get(name) not in _UNSET:
                self.refuse(name, f"{meaning} has no counterpart here; import a model that was trained without it")

    def refuse(self, name: str, message: str) -> None:
        self.problems[name] = Problem(name, message)

    def value(self, name: str, default: Any) -> Any:
        return self.args.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean, which may be written as text: a file can hold "False" where False is meant."""
        value = self.value(name, default)
        word = str(value).lower()
        if word not in _WORDS:
            self.refuse(name, f"{value!r} is neither true nor false; give one of these")
        return _WORDS.get(word, default)

    def choice(self, name: str, default: str, known: Mapping[str, str]) -> str:
        """Our word for theirs."""
        value = self.value(name, default)
        if str(value) not in known:
            self.refuse(name, f"{value!r} has no counterpart here; only {', '.join(known)} can be imported")
        return known.get(str(value), known[default])

    def number(self, name: str, default: float) -> float:
        value = self.value(name, default)
        try:
            return float(value)
        except (TypeError, ValueError):
            self.refuse(name, f"{value!r} is no number; give one")
            return default

    def sizes(self, name: str, default: tuple[int, ...], what: str = "kernel sizes") -> tuple[int, ...]:
        """A list of numbers, which may be written as text. A single number stands for a list of one."""
        value = self.value(name, default)
        try:
            value = ast.literal_eval(value) if isinstance(value, str) else value
        except (ValueError, SyntaxError):
            self.refuse(name, f"{value!r} is no list of {what}; give one such as [3, 7, 15]")
            return default
        return tuple(value) if isinstance(value, list | tuple) else (value,)


def _given(args: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if value is not None}


def _translation_model(reader: _Reader, num_source_types: int, num_target_types: int) -> ModelConfig:
    width = reader.value("encoder_embed_dim", 512)
    decoder_width = reader.value("decoder_embed_dim", width)
    if decoder_width != width:
        message = f"{decoder_width} differs from encoder_embed_dim {width}; import a model whose sides are equally wide"
        reader.refuse("decoder_embed_dim", message)
    _refuse_other_width(reader, "decoder_output_dim", decoder_width)
    tied = "decoder" if reader.flag("share_decoder_input_output_embed") else "none"
    stack = _attention_stack if reader.is_transformer else _convolution_stack
    return ModelConfig(
        vocab_size=num_target_types,
        source_vocab_size=None if num_source_types == num_target_types else num_source_types,
        width=width,
        encoder=stack(reader, "encoder"),
        decoder=stack(reader, "decoder"),
        tied_embeddings="all" if reader.flag("share_all_embeddings") else tied,
        scale_embedding=not (reader.is_transformer and reader.flag("no_scale_embedding")),
        position_offset=FIRST_POSITION,
    )


def _language_model(reader: _Reader, num_types: int) -> ModelConfig:
    """A decoder alone. Convolutional ones are pre-norm whatever the arguments say, and never end in a norm."""
    if reader.is_transformer:
        _renew(reader)
    width = reader.value("decoder_embed_dim", 512)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        _refuse_other_width(reader, name, width)
    adaptive = _bands(reader, num_types)
    is_tied = reader.flag("share_decoder_input_output_embed" if adaptive is None else "tie_adaptive_weights")
    reader.args.setdefault("max_target_positions", reader.value("tokens_per_sample", 1024))
    if reader.is_transformer:
        reader.args.setdefault("decoder_normalize_before", True)
        stack = _attention_stack(reader, "decoder")
    else:
        reader.args["decoder_normalize_before"] = True
        stack = replace(_convolution_stack(reader, "decoder"), final_norm=False, attention_dropout=0.0)
    return ModelConfig(
        vocab_size=num_types,
        width=width,
        decoder=stack,
        tied_embeddings="decoder" if is_tied else "none",
        scale_embedding=not (reader.is_transformer and reader.flag("no_scale_embedding")),
        position_offset=FIRST_POSITION,
        adaptive=adaptive,
    )


def _renew(reader: _Reader) -> None:
    """Put the arguments of early Transformer language models into today's.

    Tying of projections was opted out of, and models of that time ended without a norm unless they said otherwise.
    """
    if "no_tie_adaptive_proj" in reader.args:
        reader.args["no_decoder_final_norm"] = True
        if not reader.flag("no_tie_adaptive_proj"):
            reader.args["tie_adaptive_proj"] = True
    if "decoder_final_norm" in reader.args:
        reader.args["no_decoder_final_norm"] = not reader.flag("decoder_final_norm")


def _bands(reader: _Reader, num_types: int) -> AdaptiveConfig | None:
    """The bands of adaptive input and softmax. Ours are the same on both sides, or there are none."""
    has_input = reader.flag("adaptive_input")
    has_softmax = reader.value("adaptive_softmax_cutoff", None) not in _UNSET
    if not has_input and not has_softmax:
        return None
    if has_input != has_softmax:
        one, other = ("input", "softmax") if has_input else ("softmax", "input")
        name = "adaptive_input" if has_input else "adaptive_softmax_cutoff"
        reader.refuse(name, f"adaptive {one} without adaptive {other} has no counterpart here; {_BOTH_OR_NEITHER}")
        return None
    softmax, given = (
        tuple(cutoff for cutoff in reader.sizes(f"adaptive_{side}_cutoff", (), "cutoffs") if cutoff != num_types)
        for side in ("softmax", "input")
    )
    factors = [reader.number(f"adaptive_{side}_factor", 4.0) for side in ("softmax", "input")]
    if softmax != given:
        reader.refuse("adaptive_input_cutoff", f"{given} differs from adaptive_softmax_cutoff {softmax}; {_SAME_BANDS}")
    if factors[0] != factors[1] or not factors[0].is_integer():
        message = f"{factors[1]:g} and adaptive_softmax_factor {factors[0]:g} are not one whole number; {_SAME_BANDS}"
        reader.refuse("adaptive_input_factor", message)
    return AdaptiveConfig(
        cutoffs=softmax,
        factor=int(factors[0]),
        tied_projections=reader.flag("tie_adaptive_proj"),
        dropout=reader.value("adaptive_softmax_dropout", 0.0),
    )


def _refuse_other_width(reader: _Reader, name: str, width: int) -> None:
    if (found := reader.value(name, width)) != width:
        message = f"{found} differs from decoder_embed_dim {width}; import a model where they are equal"
        reader.refuse(name, message)


def _attention_stack(reader: _Reader, side: str) -> StackConfig:
    has_no_final_norm = side == "decoder" and reader.flag("no_decoder_final_norm")
    return StackConfig(
        **_common(reader, side),
        mixer="attention",
        num_layers=reader.value(f"{side}_layers", 6),
        final_norm=False if has_no_final_norm else None,
        activation=reader.choice("activation_fn", "relu", ACTIVATIONS),
        attention_dropout=reader.value("attention_dropout", 0.0),
        activation_dropout=reader.value("activation_dropout", 0.0) or reader.value("relu_dropout", 0.0),
    )


def _convolution_stack(reader: _Reader, side: str) -> StackConfig:
    """The encoder has no attention, so that dropout of attention weights concerns the decoder alone."""
    is_encoder = side == "encoder"
    width = reader.value(f"{side}_embed_dim", reader.value("encoder_embed_dim", 512))
    conv_width = reader.value(f"{side}_conv_dim", width)
    attention_dropout = reader.value("attention_dropout", 0.0)
    return StackConfig(
        **_common(reader, side),
        mixer=reader.choice(f"{side}_conv_type", "dynamic", MIXERS),
        num_layers=reader.value(f"{side}_layers", 7 if is_encoder else 6),
        kernel_sizes=reader.sizes(f"{side}_kernel_size_list", ENCODER_KERNELS if is_encoder else DECODER_KERNELS),
        conv_width=None if conv_width == width else conv_width,
        glu=reader.flag(f"{side}_glu", default=True),
        kernel_normalization="softmax" if reader.flag("weight_softmax", default=True) else "none",
        dropconnect=reader.value("weight_dropout", attention_dropout),
        input_dropout=reader.value("input_dropout", 0.1),
        attention_dropout=0.0 if is_encoder else attention_dropout,
        activation_dropout=reader.value("relu_dropout", 0.0),
    )


def _common(reader: _Reader, side: str) -> dict[str, Any]:
    """Options that every mixer has."""
    has_none, learned = reader.flag("no_token_positional_embeddings"), reader.flag(f"{side}_learned_pos")
    return {
        "num_heads": reader.value(f"{side}_attention_heads", 8),
        "ffn_width": reader.value(f"{side}_ffn_embed_dim", reader.value("encoder_ffn_embed_dim", 2048)),
        "norm": "pre" if reader.flag(f"{side}_normalize_before") else "post",
        "positions": "none" if has_none else "learned" if learned else "sinusoidal",
        "max_positions": reader.value("max_source_positions" if side == "encoder" else "max_target_positions", 1024),
        "dropout": reader.value("dropout", 0.1),
    }
