"""Named models: every row of Wu et al. 2019 ("Pay Less Attention with Lightweight and Dynamic Convolutions"), and
those of ``alberta``.

Where the text of the paper and its parameter counts disagree, the counts decide: LightConv has its GLU on the encoder
side only, the ablations have none, and summarisation models are 512 wide. For Chinese-English, with three separate
embedding matrices, the paper gives no vocabulary sizes; 40,000 source and 36,470 target types make the published counts
of all three models come out (292M, 285M and 296M). Dropouts are those of the paper where it gives them, else those of
the released architectures. Positions count from 2, since padding has id 1. New models start as the reference
implementation starts them, whose post-norm branches are not small: on little data they learn later and better.
"""

from dataclasses import replace
from typing import Any

from depthwise.config.alberta import ALBERTA_PRESETS
from depthwise.config.model import KERNEL_NORMALIZATIONS, AdaptiveConfig, ModelConfig, StackConfig
from depthwise.config.parsing import nearest
from depthwise.errors import ConfigError, Problem

ENCODER_KERNELS = (3, 7, 15, 31, 31, 31, 31)
DECODER_KERNELS = (3, 7, 15, 31, 31, 31)


def preset(name: str) -> ModelConfig:
    """The options of a named model; ``preset_names()`` lists the names."""
    if name in PRESETS:
        return PRESETS[name]
    close = nearest(name, PRESETS)
    remedy = f"did you mean {close}?" if close else f"choose one of {', '.join(PRESETS)}"
    raise ConfigError("preset", [Problem(name, f"unknown preset; {remedy}")])


def preset_names() -> tuple[str, ...]:
    return tuple(PRESETS)


def _with(
    model: ModelConfig,
    both: dict[str, Any] | None = None,
    encoder: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
) -> ModelConfig:
    """The model with other options in both stacks or in one of them; a side that it lacks stays absent."""
    both = both or {}

    def changed(stack: StackConfig | None, options: dict[str, Any] | None) -> StackConfig | None:
        return None if stack is None else replace(stack, **{**both, **(options or {})})

    return replace(model, encoder=changed(model.encoder, encoder), decoder=changed(model.decoder, decoder))


def _convolutional(model: ModelConfig, mixer: str, **both: Any) -> ModelConfig:
    """The model with convolutions for self-attention: seven encoder layers, kernels that grow with depth.

    Attention dropout stays in the decoder, which still attends to the encoder.
    """
    return _with(
        model,
        both={"mixer": mixer, **both},
        encoder={"num_layers": 7, "kernel_sizes": ENCODER_KERNELS, "attention_dropout": 0.0},
        decoder={"kernel_sizes": DECODER_KERNELS},
    )


def _transformer(model: ModelConfig, attention_dropout: float = 0.1, **both: Any) -> ModelConfig:
    """The model with six post-norm layers of attention on both sides."""
    options = {"attention_dropout": attention_dropout, "out_gain": 1.0, **both}
    side = StackConfig(num_layers=6, mixer="attention", norm="post", **options)
    return replace(model, encoder=side, decoder=side, position_offset=2)


_BIG: dict[str, Any] = {"num_heads": 16, "ffn_width": 4096}
_CONV: dict[str, Any] = {"dropconnect": 0.1, "input_dropout": 0.1}

# Table 2: IWSLT'14 German-English, with a dictionary for each language
_IWSLT = _transformer(
    ModelConfig(vocab_size=6_632, source_vocab_size=8_848, width=512, tied_embeddings="none"),
    num_heads=4,
    ffn_width=1024,
    dropout=0.3,
)
_IWSLT_PRESETS = {
    "iwslt-transformer": replace(_with(_IWSLT, both={"ffn_init": "torch"}), tied_embeddings="decoder"),
    "iwslt-lightconv": _convolutional(_IWSLT, "lightconv", dropconnect=0.1),
    "iwslt-dynamicconv": _convolutional(_IWSLT, "dynamicconv", dropconnect=0.1),
}

# Tables 1 and 2: WMT, big models; one joint vocabulary for German and for French
_EN_DE = _transformer(ModelConfig(vocab_size=32_768, width=1024), dropout=0.3, **_BIG)
_EN_FR = _transformer(ModelConfig(vocab_size=40_000, width=1024), dropout=0.1, **_BIG)
_ZH_EN = _transformer(
    ModelConfig(vocab_size=36_470, source_vocab_size=40_000, width=1024, tied_embeddings="none"),
    dropout=0.25,
    attention_dropout=0.2,
    **_BIG,
)


def _wmt(pair: str, transformer: ModelConfig, dropconnect: float = 0.1) -> dict[str, ModelConfig]:
    light = _convolutional(transformer, "lightconv", dropconnect=dropconnect, input_dropout=0.1)
    return {
        f"wmt-{pair}-transformer": transformer,
        f"wmt-{pair}-lightconv": _with(light, encoder={"glu": True}),
        f"wmt-{pair}-dynamicconv": _with(light, both={"mixer": "dynamicconv", "glu": True}),
    }


# Table 3: ablations on WMT English-German, no GLU; from the depthwise row on, each adds to the one before
_DEPTHWISE = _convolutional(_EN_DE, "depthwise", input_dropout=0.1)
_LIGHT = _convolutional(_EN_DE, "lightconv", **_CONV)
_DYNAMIC = _convolutional(_EN_DE, "dynamicconv", **_CONV)
_TABLE_3 = {
    "table3-attention": _EN_DE,
    "table3-attention-windows": _with(_EN_DE, both={"kernel_sizes": DECODER_KERNELS}),
    "table3-cnn": _with(_convolutional(_EN_DE, "cnn"), both={"kernel_sizes": (3,)}),
    "table3-depthwise": _with(_DEPTHWISE, both={"kernel_sizes": (3,)}),
    "table3-depthwise-kernels": _DEPTHWISE,
    "table3-depthwise-dropconnect": _with(_DEPTHWISE, both={"dropconnect": 0.1}),
    "table3-sharing": _with(_LIGHT, both={"kernel_normalization": "none"}),
    "table3-lightconv": _LIGHT,
    "table3-dynamicconv": _DYNAMIC,
    "table3-dynamicconv-unnormalized": _with(_DYNAMIC, both={"kernel_normalization": "none"}),
    "table3-average-decoder": _with(_EN_DE, decoder={"mixer": "average"}),
    "table3-average-both": _with(_EN_DE, both={"mixer": "average"}, encoder={"attention_dropout": 0.0}),
}

# Table 4: language models on the Billion Word benchmark, pre-norm without a last norm
_GBW = ModelConfig(
    vocab_size=793_471,
    width=1024,
    decoder=StackConfig(num_layers=16, mixer="attention", norm="pre", final_norm=False, dropout=0.1, **_BIG),
    tied_embeddings="all",
    adaptive=AdaptiveConfig(cutoffs=(60_000, 160_000), factor=4),
    position_offset=2,
)
_GBW_KERNELS = (*[15] * 2, *[31] * 4, *[63] * 11)
_TABLE_4 = {
    "gbw-transformer": _with(_GBW, decoder={"attention_dropout": 0.1}),
    "gbw-dynamicconv": _with(
        _GBW, decoder={"mixer": "dynamicconv", "num_layers": 17, "kernel_sizes": _GBW_KERNELS, "glu": True, **_CONV}
    ),
}

# Table 5: summarisation on CNN-DailyMail; three separate matrices over the same 30K types
_CNNDM = _transformer(
    ModelConfig(vocab_size=30_000, width=512, tied_embeddings="none"),
    num_heads=8,
    ffn_width=2048,
    dropout=0.3,
)
_TABLE_5 = {
    "cnndm-transformer": _CNNDM,
    "cnndm-lightconv": _convolutional(_CNNDM, "lightconv", **_CONV),
    "cnndm-dynamicconv": _convolutional(_CNNDM, "dynamicconv", **_CONV),
}

# Table 6: what normalises a dynamic kernel
_TABLE_6 = {
    f"table6-{name.replace('_', '-')}": _with(_DYNAMIC, both={"kernel_normalization": name})
    for name in KERNEL_NORMALIZATIONS
}

# Table 7: small decoders
_TABLE_7 = {
    "table7-dynamicconv-1": _with(_DYNAMIC, decoder={"num_layers": 1, "kernel_sizes": (31,)}),
    "table7-dynamicconv-3": _with(_DYNAMIC, decoder={"num_layers": 3, "kernel_sizes": (3, 7, 15)}),
    "table7-dynamicconv-6": _DYNAMIC,
}

PRESETS: dict[str, ModelConfig] = {
    **_IWSLT_PRESETS,
    **_wmt("en-de", _EN_DE),
    **_wmt("en-fr", _EN_FR),
    **_wmt("zh-en", _ZH_EN, dropconnect=0.2),
    **_TABLE_3,
    **_TABLE_4,
    **_TABLE_5,
    **_TABLE_6,
    **_TABLE_7,
    **ALBERTA_PRESETS,
}
