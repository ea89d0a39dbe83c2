"""Vectors that fairseq computed and models built from its arguments and weights; small encoders of Transformers."""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, BertTokenizer, RobertaConfig, RobertaModel, RobertaTokenizer

from depthwise.interop.fairseq import convert_state_dict, options_from_args
from depthwise.models.causal_lm import DepthwiseForCausalLM
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
def imported() -> Callable[[Mapping[str, Any], Mapping[str, Tensor]], DepthwiseForSeq2SeqLM | DepthwiseForCausalLM]:
    """The model that arguments and weights of fairseq make."""

    def build(
        args: Mapping[str, Any], state: Mapping[str, Tensor], num_types: int | None = None
    ) -> DepthwiseForSeq2SeqLM | DepthwiseForCausalLM:
        is_alone = not any(key.startswith("encoder.") for key in state)
        names = ["decoder"] * 2 if is_alone else ["encoder", "decoder"]
        sizes = [num_types or state[f"{side}.embed_tokens.weight"].shape[0] for side in names]
        options = options_from_args(args, *sizes)
        kind = DepthwiseForCausalLM if is_alone else DepthwiseForSeq2SeqLM
        model = kind(DepthwiseConfig.from_options(options))
        model.load_state_dict(convert_state_dict(state, options))
        return model.eval()

    return build


@pytest.fixture
def fairseq_folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a checkpoint of these arguments and weights and with dictionaries of these sizes."""

    def write(
        args: Mapping[str, Any],
        state: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        name: str = "checkpoint_best.pt",
    ) -> Path:
        folder = tmp_path / "fairseq"
        folder.mkdir(exist_ok=True)
        torch.save({"args": argparse.Namespace(**args), "model": dict(state)}, folder / name)
        for dictionary, size in sizes.items():
            words = "".join(f"w{number} 1\n" for number in range(size - 4))
            (folder / dictionary).write_text(words, encoding="utf-8")
        return folder

    return write


# Older files


def _until_2022(state: dict[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """The same weights as files of late 2019 to October 2022 name them."""
    older: dict[str, Tensor] = {
        f"{side}.embed_positions._float_tensor": torch.zeros(1) for side in ("encoder", "decoder")
    }
    for key, tensor in state.items():
        if key.endswith(".conv.conv_bias") or (tied and key == "decoder.output_projection.weight"):
            continue
        renamed = re.sub(r"\.layer_norm([12])\.", lambda match: f".layer_norms.{int(match[1]) - 1}.", key)
        older["decoder.embed_out" if renamed == "decoder.output_projection.weight" else renamed] = tensor
    return older


def _until_2019(state: dict[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """The same weights as files up to autumn 2019 name them, kernels as the CUDA layer wrote them.

    A Transformer of that time numbers its norms too.
    """
    numbers = {
        "encoder": {"self_attn_layer_norm": 0, "final_layer_norm": 1},
        "decoder": {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1, "final_layer_norm": 2},
    }
    is_transformer = any(".self_attn." in key for key in state)
    older: dict[str, Tensor] = {
        f"{side}.embed_positions.weights": torch.zeros(66, 32) for side in ("encoder", "decoder")
    }
    for key, tensor in _until_2022(state, tied=tied).items():
        if projection := re.fullmatch(r"(.*_attn)\.([qkv])_proj\.(weight|bias)", key):
            attention, letter, leaf = projection.groups()
            if letter == "q":
                parts = [state[f"{attention}.{part}_proj.{leaf}"] for part in "qkv"]
                older[f"{attention}.in_proj_{leaf}"] = torch.cat(parts)
        elif is_transformer and (norm := re.fullmatch(r"(\w+)(\.layers\.\d+)\.(\w+_layer_norm)\.(\w+)", key)):
            side, layer, name, leaf = norm.groups()
            older[f"{side}{layer}.layer_norms.{numbers[side][name]}.{leaf}"] = tensor
        else:
            older[key] = tensor.squeeze(1) if key.endswith(".conv.weight") else tensor
    return older


@pytest.fixture
def until_2019() -> Callable[..., dict[str, Tensor]]:
    return _until_2019


@pytest.fixture(params=[_until_2022, _until_2019])
def older(request: pytest.FixtureRequest) -> Callable[..., dict[str, Tensor]]:
    """Each older way of naming weights in turn."""
    return request.param


# Small encoders as Transformers saves them

SMALL = {
    **{"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 12, "max_position_embeddings": 22},
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde", *(f"##{letter}" for letter in "abcde")]


def bert(folder: Path) -> Path:
    BertModel(BertConfig(**SMALL)).save_pretrained(folder)
    BertTokenizer(vocab={piece: index for index, piece in enumerate(PIECES)}).save_pretrained(folder)
    return folder


def roberta(folder: Path) -> Path:
    RobertaModel(RobertaConfig(**SMALL, type_vocab_size=1)).save_pretrained(folder)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdeĠ", "ab"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    RobertaTokenizer(vocab=vocabulary, merges=[("a", "b")]).save_pretrained(folder)
    return folder
