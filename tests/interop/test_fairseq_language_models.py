"""Architecture arguments of fairseq's language models as our options; test_fairseq_variants.py has their outputs."""

from typing import Any

import pytest

from depthwise.config import AdaptiveConfig, ModelConfig, StackConfig
from depthwise.errors import ConfigError
from depthwise.interop.fairseq import LANGUAGE_MODELS, options_from_args

WITHOUT_IT = "has no counterpart here; import a model that was trained without it"


def problems_of(arch: str, **args: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        options_from_args({"arch": arch, **args}, 0, 500)
    return [(problem.option, problem.message) for problem in caught.value.problems]


def language_model(arch: str, **args: Any) -> ModelConfig:
    config = options_from_args({"arch": arch, **args}, 0, 500)
    assert config.encoder is None
    return config


def test_defaults_of_a_convolutional_language_model() -> None:
    assert language_model("lightconv_lm", attention_dropout=0.2) == ModelConfig(
        vocab_size=500,
        width=512,
        decoder=StackConfig(
            num_layers=6,
            mixer="dynamicconv",
            kernel_sizes=(3, 7, 15, 31, 31, 31),
            glu=True,
            norm="pre",
            final_norm=False,
            dropconnect=0.2,
            input_dropout=0.1,
        ),
        tied_embeddings="none",
        position_offset=2,
    )


def test_defaults_of_a_transformer_language_model() -> None:
    config = language_model("transformer_lm", tokens_per_sample=70, attention_dropout=0.2)
    assert config.decoder == StackConfig(norm="pre", max_positions=70, attention_dropout=0.2)
    assert config.decoder.has_final_norm


@pytest.mark.parametrize("arch", LANGUAGE_MODELS)
def test_named_language_models(arch: str) -> None:
    stack = language_model(arch, decoder_normalize_before=True).decoder
    assert stack is not None
    assert (stack.mixer, stack.norm) == ("dynamicconv" if arch.startswith("lightconv") else "attention", "pre")


def test_convolutional_language_models_are_pre_norm_whatever_is_said() -> None:
    stack = language_model("lightconv_lm", decoder_normalize_before=False, no_decoder_final_norm=False).decoder
    assert stack is not None
    assert (stack.norm, stack.has_final_norm) == ("pre", False)


@pytest.mark.parametrize(
    ("args", "has_norm", "ties_projections"),
    [
        ({}, True, False),
        ({"no_decoder_final_norm": True}, False, False),
        ({"no_tie_adaptive_proj": False}, False, True),
        ({"no_tie_adaptive_proj": True}, False, False),
        ({"no_tie_adaptive_proj": False, "decoder_final_norm": True}, True, True),
        ({"decoder_final_norm": False}, False, False),
    ],
)
def test_arguments_of_early_language_models(args: dict[str, bool], has_norm: bool, ties_projections: bool) -> None:
    config = language_model("transformer_lm", **BANDS, **args)
    assert config.decoder is not None
    assert config.adaptive is not None
    assert (config.decoder.has_final_norm, config.adaptive.tied_projections) == (has_norm, ties_projections)


BANDS: dict[str, Any] = {
    "adaptive_input": True,
    "adaptive_input_cutoff": "10,20",
    "adaptive_softmax_cutoff": [10, 20],
}


@pytest.mark.parametrize("arch", ["lightconv_lm", "transformer_lm"])
def test_bands(arch: str) -> None:
    config = language_model(arch, **BANDS, adaptive_softmax_dropout=0.2)
    assert config.adaptive == AdaptiveConfig(cutoffs=(10, 20), factor=4, tied_projections=False, dropout=0.2)
    assert config.tied_embeddings == "none"
    tied = {"tie_adaptive_weights": True, "tie_adaptive_proj": True}
    factors = {"adaptive_softmax_factor": 2.0, "adaptive_input_factor": 2}
    config = language_model(arch, **BANDS, **tied, **factors, share_decoder_input_output_embed=False)
    assert config.adaptive == AdaptiveConfig(cutoffs=(10, 20), factor=2)
    assert config.tied_embeddings == "decoder"


def test_a_last_cutoff_that_is_the_whole_dictionary() -> None:
    config = language_model("lightconv_lm", **{**BANDS, "adaptive_softmax_cutoff": "10,20,500"})
    assert config.adaptive is not None
    assert config.adaptive.cutoffs == (10, 20)


SAME_BANDS = "import a model whose bands are the same on both sides"
BOTH = "has no counterpart here; import a model that has both or neither"


@pytest.mark.parametrize(
    ("args", "option", "message"),
    [
        (
            {**BANDS, "adaptive_input_cutoff": [10]},
            "adaptive_input_cutoff",
            f"(10,) differs from adaptive_softmax_cutoff (10, 20); {SAME_BANDS}",
        ),
        (
            {**BANDS, "adaptive_input_factor": 2},
            "adaptive_input_factor",
            f"2 and adaptive_softmax_factor 4 are not one whole number; {SAME_BANDS}",
        ),
        ({**BANDS, "adaptive_input_factor": "four"}, "adaptive_input_factor", "'four' is no number; give one"),
        (
            {"decoder_conv_type": ["dynamic"]},
            "decoder_conv_type",
            "['dynamic'] has no counterpart here; only lightweight, dynamic can be imported",
        ),
        (
            {"adaptive_softmax_cutoff": [10]},
            "adaptive_softmax_cutoff",
            f"adaptive softmax without adaptive input {BOTH}",
        ),
        ({"adaptive_input": True}, "adaptive_input", f"adaptive input without adaptive softmax {BOTH}"),
        ({"character_embeddings": True}, "character_embeddings", f"input in characters {WITHOUT_IT}"),
        (
            {"decoder_input_dim": 256},
            "decoder_input_dim",
            "256 differs from decoder_embed_dim 512; import a model where they are equal",
        ),
    ],
)
def test_what_a_language_model_here_cannot_have(args: dict[str, Any], option: str, message: str) -> None:
    assert problems_of("lightconv_lm", **args) == [(option, message)]
