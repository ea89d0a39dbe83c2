"""Vectors that fairseq computed, and models built from its arguments and weights."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from depthwise.interop.fairseq import convert_state_dict, options_from_args
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Tensor

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PADDING = 1


@dataclass(frozen=True)
class Golden:
    """One model of fairseq: what made it, its weights, a batch and what came out."""

    args: dict[str, Any]
    state: dict[str, Tensor]
    tensors: dict[str, Tensor]

    @property
    def source(self) -> Tensor:
        return self.tensors["in.src_tokens"]

    @property
    def target(self) -> Tensor:
        return self.tensors["in.prev_output_tokens"]

    @property
    def batch(self) -> dict[str, Tensor]:
        return {
            "input_ids": self.source,
            "attention_mask": self.source != PADDING,
            "decoder_input_ids": self.target,
            "decoder_attention_mask": self.target != PADDING,
        }


def read_golden(name: str) -> Golden:
    described = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    state = {key.removeprefix("param."): tensor for key, tensor in tensors.items() if key.startswith("param.")}
    return Golden({**described["args"], "arch": described["arch"]}, state, tensors)


@pytest.fixture(params=sorted(path.stem for path in GOLDEN.glob("*.json")))
def golden(request: pytest.FixtureRequest) -> Golden:
    """Each vector in turn."""
    return read_golden(request.param)


@pytest.fixture
def golden_named() -> Callable[[str], Golden]:
    return read_golden


@pytest.fixture
def golden_folder() -> Path:
    return GOLDEN


@pytest.fixture
def imported() -> Callable[[Mapping[str, Any], Mapping[str, Tensor]], DepthwiseForSeq2SeqLM]:
    """The model that arguments and weights of fairseq make."""

    def build(args: Mapping[str, Any], state: Mapping[str, Tensor]) -> DepthwiseForSeq2SeqLM:
        sizes = (state[f"{side}.embed_tokens.weight"].shape[0] for side in ("encoder", "decoder"))
        options = options_from_args(args, *sizes)
        model = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(options))
        model.load_state_dict(convert_state_dict(state, options))
        return model.eval()

    return build
