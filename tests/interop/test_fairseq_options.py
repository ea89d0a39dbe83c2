"""Architecture arguments of fairseq as our options, and every sentence about those that have no counterpart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from depthwise.config import ModelConfig, StackConfig
from depthwise.errors import ConfigError
from depthwise.interop.fairseq import LIGHTCONVS, TRANSFORMERS, options_from_args

WITHOUT_IT = "has no counterpart here; import a model that was trained without it"


def options_of(arch: str, **args: Any) -> ModelConfig:
    return options_from_args({"arch": arch, **args}, 60, 50)


def problems_of(arch: str | None, **args: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        options_from_args({"arch": arch, **args}, 60, 50)
    assert caught.value.source == "fairseq arguments"
    return [(problem.option, problem.message) for problem in caught.value.problems]


def sides(config: ModelConfig, option: str) -> tuple[Any, Any]:
    assert config.encoder is not None
    assert config.decoder is not None
    return getattr(config.encoder, option), getattr(config.decoder, option)


# Options


def test_defaults_of_a_transformer() -> None:
    stack = StackConfig(num_layers=6, mixer="attention", num_heads=8, ffn_width=2048, norm="post", dropout=0.1)
    assert options_of("transformer") == ModelConfig(
        vocab_size=50,
        source_vocab_size=60,
        width=512,
        encoder=stack,
        decoder=stack,
        tied_embeddings="none",
        position_offset=2,
    )


def test_defaults_of_convolutions() -> None:
    decoder = StackConfig(
        num_layers=6,
        mixer="dynamicconv",
        num_heads=8,
        ffn_width=2048,
        kernel_sizes=(3, 7, 15, 31, 31, 31),
        glu=True,
        norm="post",
        dropout=0.1,
        input_dropout=0.1,
    )
    config = options_of("lightconv")
    assert config.decoder == decoder
    assert config.encoder == replace(decoder, num_layers=7, kernel_sizes=(3, 7, 15, 31, 31, 31, 31))


def test_all_options_of_a_vector(golden_named: Callable[[str], Any]) -> None:
    decoder = StackConfig(
        num_layers=2,
        mixer="dynamicconv",
        num_heads=4,
        ffn_width=48,
        kernel_sizes=(3, 7),
        glu=True,
        norm="pre",
        max_positions=64,
        dropout=0.0,
    )
    assert options_from_args(golden_named("dynamicconv_glu_prenorm").args, 44, 44) == ModelConfig(
        vocab_size=44,
        width=32,
        encoder=replace(decoder, num_layers=3, kernel_sizes=(3, 7, 15)),
        decoder=decoder,
        tied_embeddings="all",
        position_offset=2,
    )


@pytest.mark.parametrize("arch", [*TRANSFORMERS, *LIGHTCONVS, "latent_multilingual_transformer"])
def test_named_architectures(arch: str) -> None:
    mixer = "dynamicconv" if arch in LIGHTCONVS else "attention"
    assert sides(options_of(arch), "mixer") == (mixer, mixer)


def test_mixers_of_each_side() -> None:
    config = options_of("lightconv", encoder_conv_type="lightweight", decoder_conv_type="dynamic")
    assert sides(config, "mixer") == ("lightconv", "dynamicconv")


def test_the_decoder_follows_the_encoder() -> None:
    config = options_of("transformer", encoder_embed_dim=64, encoder_ffn_embed_dim=96)
    assert config.width == 64
    assert sides(config, "ffn_width") == (96, 96)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("[3, 5]", (3, 5)), ("3,5", (3, 5)), ([3, 5], (3, 5)), ((3, 5), (3, 5)), ([9], (9,)), (9, (9,))],
)
def test_kernel_sizes(given: Any, meant: tuple[int, ...]) -> None:
    config = options_of("lightconv", encoder_layers=2, encoder_kernel_size_list=given)
    assert config.encoder is not None
    assert config.encoder.kernel_sizes == meant


@pytest.mark.parametrize(
    ("given", "meant"), [(True, True), (False, False), ("True", True), ("False", False), ("1", True), (0, False)]
)
def test_flags_in_words(given: Any, meant: bool) -> None:
    config = options_of("lightconv", encoder_glu=given, decoder_glu=True, weight_softmax=given)
    assert sides(config, "glu") == (meant, True)
    assert sides(config, "kernel_normalization") == (("softmax",) * 2 if meant else ("none",) * 2)


def test_norms_of_each_side() -> None:
    config = options_of("transformer", encoder_normalize_before=True)
    assert sides(config, "norm") == ("pre", "post")
    assert sides(config, "has_final_norm") == (True, False)
    config = options_of("transformer", decoder_normalize_before=True, no_decoder_final_norm=True)
    assert sides(config, "has_final_norm") == (False, False)
    config = options_of("lightconv", decoder_normalize_before=True, no_decoder_final_norm=True)
    assert sides(config, "has_final_norm") == (False, True), "convolutions do not read this argument"


@pytest.mark.parametrize(
    ("args", "tied"),
    [
        ({}, "none"),
        ({"share_decoder_input_output_embed": True}, "decoder"),
        ({"share_all_embeddings": True, "share_decoder_input_output_embed": False}, "all"),
    ],
)
def test_sharing(args: dict[str, bool], tied: str) -> None:
    config = options_from_args({"arch": "transformer", **args}, 50, 50)
    assert (config.tied_embeddings, config.vocab_size, config.source_vocab_size) == (tied, 50, None)


def test_positions() -> None:
    config = options_of("transformer", encoder_learned_pos=True, max_source_positions=70, max_target_positions=80)
    assert sides(config, "positions") == ("learned", "sinusoidal")
    assert sides(config, "max_positions") == (70, 80)
    config = options_of("lightconv", decoder_learned_pos=True, no_token_positional_embeddings=True)
    assert sides(config, "positions") == ("none", "none")
    assert config.position_offset == 2


def test_dropouts_go_where_they_serve() -> None:
    given = {"dropout": 0.3, "attention_dropout": 0.2, "input_dropout": 0.15, "relu_dropout": 0.05}
    attention = options_of("transformer", weight_dropout=0.4, **given)
    assert sides(attention, "dropout") == (0.3, 0.3)
    assert sides(attention, "attention_dropout") == (0.2, 0.2)
    assert sides(attention, "activation_dropout") == (0.05, 0.05)
    assert sides(attention, "dropconnect") == sides(attention, "input_dropout") == (0.0, 0.0)
    convolution = options_of("lightconv", activation_dropout=0.4, **given)
    assert sides(convolution, "attention_dropout") == (0.0, 0.2)
    assert sides(convolution, "input_dropout") == (0.15, 0.15)
    assert sides(convolution, "activation_dropout") == (0.05, 0.05)
    assert sides(convolution, "dropconnect") == (0.2, 0.2), "follows the dropout of attention"
    assert sides(options_of("lightconv", weight_dropout=0.1, **given), "dropconnect") == (0.1, 0.1)
    assert sides(options_of("transformer", activation_dropout=0.4, **given), "activation_dropout") == (0.4, 0.4)


@pytest.mark.parametrize(("given", "meant"), [("relu", "relu"), ("gelu", "gelu"), ("swish", "silu"), ("tanh", "tanh")])
def test_activations(given: str, meant: str) -> None:
    assert sides(options_of("transformer", activation_fn=given), "activation") == (meant, meant)
    assert sides(options_of("lightconv", activation_fn=given), "activation") == ("relu", "relu")


def test_scale() -> None:
    assert not options_of("transformer", no_scale_embedding=True).scale_embedding
    assert options_of("lightconv", no_scale_embedding=True).scale_embedding, "convolutions do not read this argument"


def test_width_of_the_convolution() -> None:
    config = options_of("lightconv", encoder_conv_dim=256, decoder_conv_dim=512)
    assert sides(config, "conv_width") == (256, None)


# Latent depth


def test_defaults_of_latent_depth() -> None:
    config = options_of("latent_multilingual_transformer")
    assert sides(config, "num_layers") == (12, 24)
    assert sides(config, "num_heads") == (4, 4)
    assert sides(config, "ffn_width") == (1024, 1024)
    assert sides(options_of("latent_multilingual_transformer", decoder_layers=3), "num_layers") == (12, 3)


# Sentences


@pytest.mark.parametrize("arch", ["fconv", "roberta", "multilingual_transformer"])
def test_an_architecture_that_is_not_known(arch: str) -> None:
    remedy = "give transformer, lightconv, transformer_lm or lightconv_lm if it is one of these under another name"
    assert problems_of(arch) == [("arch", f"{arch!r} is no architecture that can be imported; {remedy}")]


def test_no_architecture() -> None:
    ((option, message),) = problems_of(None)
    assert option == "arch"
    assert message.startswith("is missing; ")


UNSUPPORTED = {
    "layernorm_embedding": (True, "a norm on the embeddings"),
    "cross_self_attention": (True, "attention over source and target at once"),
    "no_cross_attention": (True, "a decoder that does not attend to the source"),
    "merge_src_tgt_embed": (True, "one embedding over two merged dictionaries"),
    "char_inputs": (True, "input in characters"),
    "quant_noise_pq": (0.1, "quantisation noise"),
    "quant_noise_scalar": (0.5, "quantisation noise"),
    "base_layers": (1, "a layer of routed experts"),
    "scale_attn": (True, "a norm after self-attention"),
    "scale_fc": (True, "a norm inside the feed-forward network"),
    "scale_heads": ("True", "a weight for each attention head"),
    "scale_resids": (True, "a weight on the residual"),
    "encoder_layers_to_keep": ("0,2", "a choice of layers made while loading"),
    "decoder_layers_to_keep": ("1", "a choice of layers made while loading"),
    "encoder_xformers_att_config": ("{}", "attention by xFormers"),
    "decoder_xformers_att_config": ("{}", "attention by xFormers"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_argument_without_counterpart(name: str) -> None:
    value, meaning = UNSUPPORTED[name]
    assert problems_of("transformer", **{name: value}) == [(name, f"{meaning} {WITHOUT_IT}")]
    options_of("lightconv", **{name: value})  # which does not read it


@pytest.mark.parametrize("unset", [None, False, "False", 0, 0.0, ""])
def test_an_argument_without_counterpart_that_is_off(unset: Any) -> None:
    options_of("transformer", **dict.fromkeys(UNSUPPORTED, unset))


@pytest.mark.parametrize("arch", ["transformer", "lightconv"])
def test_adaptive_softmax(arch: str) -> None:
    assert problems_of(arch, adaptive_softmax_cutoff="10,20") == [
        ("adaptive_softmax_cutoff", f"an adaptive softmax over the target {WITHOUT_IT}")
    ]


def test_sides_of_different_width() -> None:
    assert problems_of("transformer", encoder_embed_dim=512, decoder_embed_dim=256) == [
        ("decoder_embed_dim", "256 differs from encoder_embed_dim 512; import a model whose sides are equally wide")
    ]


def test_output_of_another_width() -> None:
    assert problems_of("lightconv", decoder_embed_dim=512, decoder_output_dim=256) == [
        ("decoder_output_dim", "256 differs from decoder_embed_dim 512; import a model where they are equal")
    ]


def test_unknown_activation() -> None:
    assert problems_of("transformer", activation_fn="gelu_fast") == [
        ("activation_fn", "'gelu_fast' has no counterpart here; only relu, gelu, swish, tanh can be imported")
    ]


def test_unknown_convolution() -> None:
    assert problems_of("lightconv", decoder_conv_type="wavelet") == [
        ("decoder_conv_type", "'wavelet' has no counterpart here; only lightweight, dynamic can be imported")
    ]


def test_a_flag_that_is_none() -> None:
    assert problems_of("lightconv", encoder_glu="perhaps") == [
        ("encoder_glu", "'perhaps' is neither true nor false; give one of these")
    ]


def test_kernel_sizes_that_are_none() -> None:
    assert problems_of("lightconv", encoder_kernel_size_list="three") == [
        ("encoder_kernel_size_list", "'three' is no list of kernel sizes; give one such as [3, 7, 15]")
    ]


def test_an_even_kernel_in_an_encoder() -> None:
    ((option, message),) = problems_of("lightconv", encoder_kernel_size_list=[4])
    assert option == "encoder.kernel_sizes"
    assert "even kernels have no centre" in message


def test_one_matrix_for_two_dictionaries() -> None:
    ((option, message),) = problems_of("transformer", share_all_embeddings=True)
    assert option == "tied_embeddings"
    assert "source_vocab_size is 60 and vocab_size is 50" in message


def test_all_problems_at_once() -> None:
    problems = problems_of(
        "transformer",
        layernorm_embedding=True,
        quant_noise_pq=0.1,
        no_cross_attention=True,
        decoder_embed_dim=256,
        activation_fn="linear",
        encoder_normalize_before="sometimes",
        decoder_attention_heads=7,
    )
    assert [option for option, _ in problems] == [
        "layernorm_embedding",
        "no_cross_attention",
        "quant_noise_pq",
        "decoder_embed_dim",
        "encoder_normalize_before",
        "activation_fn",
        "decoder.num_heads",
    ]
