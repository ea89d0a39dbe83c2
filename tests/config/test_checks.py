"""Options that contradict each other: every problem by its message, and that what is right stays without one."""

from typing import Any

import pytest

from depthwise.config import KERNEL_NORMALIZATIONS, MIXERS, parse_model
from depthwise.errors import ConfigError

LIGHT = {"mixer": "lightconv", "kernel_sizes": [3]}
ADAPTIVE = {"cutoffs": [20, 50], "factor": 2}


def problems_of(**options: Any) -> list[tuple[str, str]]:
    """The (option, message) pairs of a model with these options; 100 types unless told otherwise."""
    try:
        parse_model({"vocab_size": 100, **options})
    except ConfigError as error:
        return [(problem.option, problem.message) for problem in error.problems]
    return []


def encoder(**options: Any) -> list[tuple[str, str]]:
    return problems_of(encoder=options)


def decoder(**options: Any) -> list[tuple[str, str]]:
    return problems_of(decoder=options)


# The model as a whole


def test_a_model_without_stacks() -> None:
    assert problems_of() == [("encoder", "a model needs at least one stack; add an encoder, a decoder or both")]


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_source_vocabulary_of_one_side(side: str) -> None:
    assert problems_of(source_vocab_size=5, **{side: {}}) == [
        ("source_vocab_size", "has no effect without both an encoder and a decoder; remove it and use vocab_size")
    ]


def test_one_matrix_for_two_vocabularies() -> None:
    assert problems_of(encoder={}, decoder={}, source_vocab_size=90) == [
        (
            "tied_embeddings",
            '"all" shares one matrix, but source_vocab_size is 90 and vocab_size is 100; use "decoder" or "none", or '
            "one joint vocabulary",
        )
    ]
    for right in ({"source_vocab_size": 100}, {"source_vocab_size": 90, "tied_embeddings": "decoder"}):
        assert problems_of(encoder={}, decoder={}, **right) == []


def test_tied_decoder_without_decoder() -> None:
    expected = [("tied_embeddings", '"decoder" needs a decoder; use "all" or "none"')]
    assert problems_of(encoder={}, tied_embeddings="decoder") == expected


@pytest.mark.parametrize("sides", [{"encoder": {}}, {"encoder": {}, "decoder": {}}])
def test_adaptive_outside_language_models(sides: dict[str, Any]) -> None:
    assert problems_of(adaptive=ADAPTIVE, **sides) == [
        ("adaptive", "serves language models only (a decoder without an encoder); remove adaptive or the encoder")
    ]


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_adaptive_language_models(tied: str) -> None:
    assert problems_of(adaptive=ADAPTIVE, decoder={}, tied_embeddings=tied) == []


# One stack


def test_attention_heads() -> None:
    expected = "7 attention heads do not divide width 20; use one of 1, 2, 4, 5, 10, 20"
    assert problems_of(width=20, encoder={"num_heads": 7}) == [("encoder.num_heads", expected)]


def test_heads_of_cross_attention_and_of_kernels_are_reported_once() -> None:
    found = problems_of(width=20, encoder={"num_heads": 4}, decoder={**LIGHT, "num_heads": 7})
    assert found == [("decoder.num_heads", "7 attention heads do not divide width 20; use one of 1, 2, 4, 5, 10, 20")]


def test_heads_do_not_matter_where_there_are_none() -> None:
    for mixer in ("cnn", "depthwise"):
        assert problems_of(width=20, decoder={"mixer": mixer, "num_heads": 7, "kernel_sizes": 3}) == []
    assert problems_of(width=20, encoder={"mixer": "average", "num_heads": 7}) == []


@pytest.mark.parametrize("mixer", ["lightconv", "dynamicconv"])
@pytest.mark.parametrize(
    ("options", "option", "heads", "channels", "divisors"),
    [
        ({"num_heads": 7}, "num_heads", 7, 20, "1, 2, 4, 5, 10, 20"),
        ({"num_heads": 5, "kernel_heads": 3}, "kernel_heads", 3, 20, "1, 2, 4, 5, 10, 20"),
        ({"num_heads": 5, "conv_width": 12}, "num_heads", 5, 12, "1, 2, 3, 4, 6, 12"),
    ],
)
def test_kernel_heads(
    mixer: str, options: dict[str, Any], option: str, heads: int, channels: int, divisors: str
) -> None:
    expected = f"{heads} heads do not divide the {channels} channels of the convolution; use one of {divisors}"
    found = problems_of(width=20, encoder={"mixer": mixer, "kernel_sizes": 3, **options})
    assert found == [(f"encoder.{option}", expected)]


@pytest.mark.parametrize("mixer", ["lightconv", "dynamicconv", "cnn", "depthwise"])
def test_convolutions_need_kernels(mixer: str) -> None:
    expected = f"{mixer} needs kernel sizes; give one number for all layers or one for each, such as 3"
    assert decoder(mixer=mixer) == [("decoder.kernel_sizes", expected)]


@pytest.mark.parametrize("mixer", ["attention", "lightconv", "cnn"])
@pytest.mark.parametrize("sizes", [[], [3, 7], [3] * 7])
def test_number_of_kernels(mixer: str, sizes: list[int]) -> None:
    expected = f"{len(sizes)} kernel sizes for num_layers 6; give one number for all layers or exactly 6"
    assert encoder(mixer=mixer, kernel_sizes=sizes) == [("encoder.kernel_sizes", expected)]


@pytest.mark.parametrize("mixer", ["attention", "lightconv", "dynamicconv", "cnn", "depthwise"])
def test_even_kernels_need_a_causal_stack(mixer: str) -> None:
    what = "window" if mixer == "attention" else "kernel"
    options = {"mixer": mixer, "num_layers": 3, "kernel_sizes": [4, 3, 8]}
    assert encoder(**options) == [
        ("encoder.kernel_sizes", f"{what} {size} in layer {layer} of an encoder looks both ways, but even {what}s have "
         f"no centre; use {size - 1} or {size + 1}")
        for layer, size in ((0, 4), (2, 8))
    ]  # fmt: skip
    assert decoder(**options) == []


def test_an_even_kernel_for_all_layers() -> None:
    expected = "kernel 4 in every layer of an encoder looks both ways, but even kernels have no centre; use 3 or 5"
    assert encoder(mixer="cnn", kernel_sizes=4) == [("encoder.kernel_sizes", expected)]


PROJECTED = ("lightconv", "dynamicconv", "depthwise")


@pytest.mark.parametrize(
    ("option", "value", "serves"),
    [
        ("kernel_sizes", (3,), ("attention", *PROJECTED, "cnn")),
        ("glu", True, PROJECTED),
        ("conv_width", 64, PROJECTED),
        ("input_dropout", 0.1, PROJECTED),
        ("kernel_heads", 4, ("lightconv", "dynamicconv")),
        ("kernel_normalization", "sigmoid", ("lightconv", "dynamicconv")),
        ("dropconnect", 0.1, PROJECTED),
        ("dropconnect_shared", True, PROJECTED),
        ("renormalize_padding", True, PROJECTED),
        ("conv_bias", True, (*PROJECTED, "cnn")),
        ("kernel_from", "layer_input", ("dynamicconv",)),
    ],
)
@pytest.mark.parametrize("mixer", MIXERS)
def test_options_without_effect(option: str, value: Any, serves: tuple[str, ...], mixer: str) -> None:
    kernels = {} if mixer in ("attention", "average") else {"kernel_sizes": 3}
    found = decoder(mixer=mixer, **{**kernels, option: value})
    listed = [message for where, message in found if where == f"decoder.{option}" and "with mixer" in message]
    *front, last = serves
    names = f"{', '.join(front)} and {last}" if front else last
    expected = f"has no effect with mixer {mixer}, only with {names}; remove it"
    assert listed == ([] if mixer in serves else [expected])
    if mixer not in serves:
        assert len(found) == 1


def test_attention_dropout_without_attention() -> None:
    expected = "has no effect in a stack of lightconv without cross-attention; remove it"
    stack = {**LIGHT, "attention_dropout": 0.1}
    assert problems_of(encoder=stack) == [("encoder.attention_dropout", expected)]
    assert problems_of(decoder=stack) == [("decoder.attention_dropout", expected)]
    assert problems_of(encoder=LIGHT, decoder=stack) == []
    assert problems_of(encoder={"attention_dropout": 0.1}) == []


def test_shared_dropconnect_without_dropconnect() -> None:
    expected = "has no effect while dropconnect is 0; set dropconnect above 0 or remove it"
    assert encoder(**LIGHT, dropconnect_shared=True) == [("encoder.dropconnect_shared", expected)]
    assert encoder(**LIGHT, dropconnect_shared=True, dropconnect=0.1) == []


@pytest.mark.parametrize("normalization", KERNEL_NORMALIZATIONS)
def test_renormalization_needs_nonnegative_kernels(normalization: str) -> None:
    found = encoder(**LIGHT, renormalize_padding=True, kernel_normalization=normalization)
    expected = (
        "encoder.renormalize_padding",
        "divides by kernel mass, which can be zero or negative for lightconv with kernel normalisation "
        f"{normalization}; remove it or use lightconv or dynamicconv with softmax, sigmoid, square, abs, abs_l1 or "
        "abs_l2",
    )
    assert found == ([expected] if normalization in ("none", "tanh", "l1", "l2") else [])


def test_renormalization_of_depthwise_kernels() -> None:
    ((option, message),) = encoder(mixer="depthwise", kernel_sizes=3, renormalize_padding=True)
    assert option == "encoder.renormalize_padding"
    assert "for depthwise with kernel normalisation none; remove it or use lightconv" in message


def test_positions() -> None:
    expected = "learned positions need a table of known length; give a number such as 1024"
    assert encoder(positions="learned", max_positions=None) == [("encoder.max_positions", expected)]
    for right in ({"positions": "none", "max_positions": 9}, {"positions": "sinusoidal", "max_positions": None}):
        assert encoder(**right) == []


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("final_norm", [True, False, None])
def test_a_final_norm_goes_with_every_norm(norm: str, final_norm: bool | None) -> None:
    assert encoder(norm=norm, final_norm=final_norm) == []


def test_sinusoids_allow_odd_widths() -> None:
    assert problems_of(width=9, encoder={"num_heads": 3}) == []


# Sharing and embeddings


@pytest.mark.parametrize("blocks", [[], [0, 0], [0, 1, 2, 3]])
def test_number_of_shared_blocks(blocks: list[int]) -> None:
    expected = f"{len(blocks)} blocks for num_layers 3; give 0 for all layers or exactly 3 numbers"
    assert encoder(num_layers=3, shared_layers=blocks) == [("encoder.shared_layers", expected)]


def test_shared_blocks_have_one_kernel() -> None:
    options = {"mixer": "lightconv", "num_layers": 3, "kernel_sizes": [3, 5, 7]}
    assert encoder(**options, shared_layers=[0, 1, 0]) == [
        (
            "encoder.kernel_sizes",
            "layer 2 has kernel size 7, but shares its block with a layer of kernel size 3; give them one size or "
            "separate blocks",
        )
    ]
    assert [option for option, _ in encoder(**options, shared_layers=0)] == ["encoder.kernel_sizes"] * 2
    for right in ({"kernel_sizes": [3, 5, 3]}, {"kernel_sizes": 3}, {"shared_layers": [0, 1, 2]}):
        assert encoder(**{**options, "shared_layers": [0, 1, 0], **right}) == []


@pytest.mark.parametrize(("option", "value"), [("embedding_width", 4), ("head_transform", "gelu")])
def test_adaptive_bands_have_their_own_widths(option: str, value: Any) -> None:
    expected = "does not go with adaptive, whose bands have their own widths; remove one"
    assert problems_of(decoder={}, adaptive=ADAPTIVE, **{option: value}) == [(option, expected)]
    for sides in ({"decoder": {}}, {"encoder": {}}, {"encoder": {}, "decoder": {}}):
        assert problems_of(**sides, **{option: value}) == []


@pytest.mark.parametrize("sides", [{"decoder": {}}, {"encoder": {}, "decoder": {}}])
def test_token_types_outside_encoders(sides: dict[str, Any]) -> None:
    expected = "serves encoders without a decoder only; remove it or the decoder"
    assert problems_of(token_types=2, **sides) == [("token_types", expected)]
    assert problems_of(token_types=2, encoder={}) == []
