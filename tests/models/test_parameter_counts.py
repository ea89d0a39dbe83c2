"""Presets have the parameter counts that Wu et al. 2019 publish, to within the rounding of their tables."""

import pytest
import torch

from depthwise.config import preset
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

PUBLISHED_MILLIONS = {
    # Tables 1 and 2
    "wmt-en-de-transformer": 210,
    "wmt-en-de-lightconv": 202,
    "wmt-en-de-dynamicconv": 213,
    "wmt-zh-en-transformer": 292,
    "wmt-zh-en-lightconv": 285,
    "wmt-zh-en-dynamicconv": 296,
    # Table 3
    "table3-attention": 210,
    "table3-attention-windows": 210,
    "table3-cnn": 208,
    "table3-depthwise": 195,
    "table3-depthwise-kernels": 195,
    "table3-depthwise-dropconnect": 195,
    "table3-sharing": 195,
    "table3-lightconv": 195,
    "table3-dynamicconv": 200,
    "table3-dynamicconv-unnormalized": 200,
    "table3-average-decoder": 260,
    "table3-average-both": 310,
    # Table 4
    "gbw-transformer": 331,
    "gbw-dynamicconv": 339,
    # Table 5
    "cnndm-transformer": 90,
    "cnndm-lightconv": 86,
    "cnndm-dynamicconv": 87,
    # Table 7
    "table7-dynamicconv-1": 124,
    "table7-dynamicconv-3": 153,
    "table7-dynamicconv-6": 200,
}


def parameters_in_millions(name: str) -> float:
    """Trainable parameters of a preset in millions, a tied matrix counted once."""
    options = preset(name)
    kind = DepthwiseForCausalLM if options.encoder is None else DepthwiseForSeq2SeqLM
    with torch.device("meta"):
        model = kind(DepthwiseConfig.from_options(options))
    unique = {id(parameter): parameter.numel() for parameter in model.parameters()}
    return sum(unique.values()) / 1e6


@pytest.mark.parametrize(("name", "published"), PUBLISHED_MILLIONS.items())
def test_parameter_count(name: str, published: float) -> None:
    assert parameters_in_millions(name) == pytest.approx(published, abs=1.0)
