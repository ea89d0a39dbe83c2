"""Presets are sound, survive the way through plain data, and are the rows of the paper's tables."""

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from depthwise.config import (
    KERNEL_NORMALIZATIONS,
    PRESETS,
    ModelConfig,
    StackConfig,
    as_dict,
    check_model,
    parse_model,
    preset,
    preset_names,
)
from depthwise.errors import ConfigError

OF_PAPER = [name for name in preset_names() if not name.startswith("alberta-")]
every_preset = pytest.mark.parametrize("name", OF_PAPER)


def sides(name: str) -> tuple[StackConfig, StackConfig]:
    config = preset(name)
    assert config.encoder is not None
    assert config.decoder is not None
    return config.encoder, config.decoder


@every_preset
def test_preset_is_sound(name: str) -> None:
    assert check_model(preset(name)) == []


@every_preset
def test_preset_survives_plain_data(name: str) -> None:
    assert parse_model(as_dict(preset(name)), source=name) == preset(name)


@every_preset
def test_preset_names_are_kebab_case(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)


@every_preset
def test_positions_follow_padding(name: str) -> None:
    assert preset(name).position_offset == 2


def test_every_row_has_a_preset() -> None:
    assert set(OF_PAPER) == {
        *(f"iwslt-{mixer}" for mixer in ("transformer", "lightconv", "dynamicconv")),
        *(f"wmt-{pair}-transformer" for pair in ("en-de", "en-fr", "zh-en")),
        *(f"wmt-{pair}-lightconv" for pair in ("en-de", "en-fr", "zh-en")),
        *(f"wmt-{pair}-dynamicconv" for pair in ("en-de", "en-fr", "zh-en")),
        *("table3-attention", "table3-attention-windows", "table3-cnn", "table3-depthwise", "table3-depthwise-kernels"),
        *("table3-depthwise-dropconnect", "table3-sharing", "table3-lightconv", "table3-dynamicconv"),
        *("table3-dynamicconv-unnormalized", "table3-average-decoder", "table3-average-both"),
        *("gbw-transformer", "gbw-dynamicconv"),
        *(f"cnndm-{mixer}" for mixer in ("transformer", "lightconv", "dynamicconv")),
        *(f"table6-{name.replace('_', '-')}" for name in KERNEL_NORMALIZATIONS),
        *(f"table7-dynamicconv-{layers}" for layers in (1, 3, 6)),
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("iwslt-lightcov", "unknown preset; did you mean iwslt-lightconv?"),
        (
            "WMT_en_de_transformer",
            "unknown preset; did you mean wmt-en-de-transformer?",
        ),
        ("xyz", f"unknown preset; choose one of {', '.join(PRESETS)}"),
    ],
)
def test_unknown_preset(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preset(name)
    assert str(caught.value) == f"preset: 1 problem\n  {name}  {message}"


@pytest.mark.parametrize(
    ("names", "width", "ffn_width", "num_heads"),
    [("wmt-", 1024, 4096, 16), ("table", 1024, 4096, 16), ("iwslt-", 512, 1024, 4), ("cnndm-", 512, 2048, 8)],
)
def test_sizes_of_translation_and_summarisation(names: str, width: int, ffn_width: int, num_heads: int) -> None:
    for name in (name for name in PRESETS if name.startswith(names)):
        assert preset(name).width == width
        for side in sides(name):
            assert (side.ffn_width, side.num_heads, side.norm) == (ffn_width, num_heads, "post")


@every_preset
def test_depth_and_kernels(name: str) -> None:
    for side, num_layers in ((preset(name).encoder, 7), (preset(name).decoder, 6)):
        if side is None or name.startswith("gbw") or (name.startswith("table7") and num_layers == 6):
            continue
        convolutional = side.mixer not in ("attention", "average")
        assert side.num_layers == (num_layers if convolutional else 6)
        if name in ("table3-cnn", "table3-depthwise"):
            assert side.kernel_sizes == (3,)
        elif convolutional or name == "table3-attention-windows":
            assert side.kernel_sizes == (3, 7, 15, 31, 31, 31, 31)[: side.num_layers]
        else:
            assert side.kernel_sizes is None


@pytest.mark.parametrize(
    ("suffix", "glu"), [("transformer", (False, False)), ("lightconv", (True, False)), ("dynamicconv", (True, True))]
)
@pytest.mark.parametrize("pair", ["en-de", "en-fr", "zh-en"])
def test_only_big_translation_models_are_gated(pair: str, suffix: str, glu: tuple[bool, bool]) -> None:
    encoder, decoder = sides(f"wmt-{pair}-{suffix}")
    assert (encoder.glu, decoder.glu) == glu
    for name in OF_PAPER:
        if not name.startswith(("wmt-", "gbw-")):
            assert not any(side.glu for side in sides(name))


@pytest.mark.parametrize(
    ("name", "source", "target", "tied"),
    [
        ("iwslt-transformer", 8_848, 6_632, "decoder"),
        ("iwslt-lightconv", 8_848, 6_632, "none"),
        ("iwslt-dynamicconv", 8_848, 6_632, "none"),
        ("wmt-en-de-lightconv", None, 32_768, "all"),
        ("wmt-en-fr-lightconv", None, 40_000, "all"),
        ("wmt-zh-en-lightconv", 40_000, 36_470, "none"),
        ("cnndm-transformer", None, 30_000, "none"),
        ("gbw-transformer", None, 793_471, "all"),
    ],
)
def test_embeddings(name: str, source: int | None, target: int, tied: str) -> None:
    config = preset(name)
    assert (config.source_vocab_size, config.vocab_size, config.tied_embeddings) == (source, target, tied)


@pytest.mark.parametrize(
    ("name", "dropout", "attention", "dropconnect", "input_dropout"),
    [
        ("iwslt-lightconv", 0.3, 0.1, 0.1, 0.0),
        ("iwslt-transformer", 0.3, 0.1, 0.0, 0.0),
        ("wmt-en-de-transformer", 0.3, 0.1, 0.0, 0.0),
        ("wmt-en-de-dynamicconv", 0.3, 0.1, 0.1, 0.1),
        ("wmt-en-fr-dynamicconv", 0.1, 0.1, 0.1, 0.1),
        ("wmt-zh-en-dynamicconv", 0.25, 0.2, 0.2, 0.1),
        ("cnndm-lightconv", 0.3, 0.1, 0.1, 0.1),
        ("table3-cnn", 0.3, 0.1, 0.0, 0.0),
        ("table3-depthwise", 0.3, 0.1, 0.0, 0.1),
        ("table3-depthwise-kernels", 0.3, 0.1, 0.0, 0.1),
        ("table3-depthwise-dropconnect", 0.3, 0.1, 0.1, 0.1),
    ],
)
def test_dropouts(name: str, dropout: float, attention: float, dropconnect: float, input_dropout: float) -> None:
    encoder, decoder = sides(name)
    assert decoder.attention_dropout == attention
    for side in (encoder, decoder):
        assert (side.dropout, side.dropconnect, side.input_dropout) == (dropout, dropconnect, input_dropout)


def test_table_3_adds_one_thing_at_a_time() -> None:
    def with_both(name: str, **options: Any) -> ModelConfig:
        encoder, decoder = sides(name)
        return replace(preset(name), encoder=replace(encoder, **options), decoder=replace(decoder, **options))

    assert with_both("table3-depthwise-kernels", kernel_sizes=(3,)) == preset("table3-depthwise")
    assert with_both("table3-depthwise-dropconnect", dropconnect=0.0) == preset("table3-depthwise-kernels")
    assert with_both("table3-sharing", mixer="depthwise", kernel_normalization="softmax") == preset(
        "table3-depthwise-dropconnect"
    )
    assert with_both("table3-lightconv", kernel_normalization="none") == preset("table3-sharing")
    assert with_both("table3-dynamicconv", mixer="lightconv") == preset("table3-lightconv")
    assert with_both("table3-dynamicconv", kernel_normalization="none") == preset("table3-dynamicconv-unnormalized")


def test_average_attention() -> None:
    assert [side.mixer for side in sides("table3-average-decoder")] == ["attention", "average"]
    assert [side.mixer for side in sides("table3-average-both")] == ["average", "average"]


def test_table_6_changes_the_normalisation_only() -> None:
    assert preset("table6-softmax") == preset("table3-dynamicconv")
    for name in KERNEL_NORMALIZATIONS:
        for side in sides(f"table6-{name.replace('_', '-')}"):
            assert (side.mixer, side.kernel_normalization) == ("dynamicconv", name)


@pytest.mark.parametrize(("layers", "kernels"), [(1, (31,)), (3, (3, 7, 15)), (6, (3, 7, 15, 31, 31, 31))])
def test_table_7_has_small_decoders(layers: int, kernels: tuple[int, ...]) -> None:
    encoder, decoder = sides(f"table7-dynamicconv-{layers}")
    assert encoder.num_layers == 7
    assert (decoder.num_layers, decoder.kernel_sizes) == (layers, kernels)


def test_language_models() -> None:
    for name, num_layers, kernels in (
        ("gbw-transformer", 16, None),
        ("gbw-dynamicconv", 17, (15,) * 2 + (31,) * 4 + (63,) * 11),
    ):
        config = preset(name)
        assert config.encoder is None
        assert config.decoder is not None
        assert config.adaptive is not None
        assert (config.decoder.num_layers, config.decoder.kernel_sizes) == (num_layers, kernels)
        assert (config.decoder.norm, config.decoder.has_final_norm) == ("pre", False)
        assert (config.adaptive.cutoffs, config.adaptive.factor) == ((60_000, 160_000), 4)
        assert config.decoder.glu == (name == "gbw-dynamicconv")


def test_configuration_loads_no_torch() -> None:
    program = "import sys, depthwise.config; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
