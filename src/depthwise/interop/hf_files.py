"""The files of a model that Transformers saved, read without running anything that they may hold."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from depthwise.errors import CheckpointError
from depthwise.interop.weights import in_single_precision
from depthwise.shapes import Tensor

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names that weights are saved under, the preferred one first. Cut in parts, ``<name>.index.json`` lists the parts."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model"),
)
"""A folder with none of these has no tokenizer."""


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration as it stands in the file."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; give one that Transformers saved a model to")
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}; give a folder that Transformers saved a model to")
    return _read_json(path)


def read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The weights, in single precision where they were in half, and the file they are in (or that lists their parts).

    Safetensors are preferred. A file of torch is loaded weights-only: one that asks for anything else is refused.
    """
    for name in WEIGHTS:
        whole, index = folder / name, folder / f"{name}.index.json"
        if whole.is_file():
            return whole, in_single_precision(_load(whole))
        if index.is_file():
            return index, in_single_precision(_load_parts(index))
    found = sorted(path.name for path in folder.iterdir() if path.suffix in (".h5", ".msgpack", ".onnx", ".gguf"))
    there_is = f"; {', '.join(found)} cannot be read" if found else ""
    raise CheckpointError(f"{folder} has no {' or '.join(WEIGHTS)}{there_is}; save the model with Transformers again")


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside the weights, where there is one."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a damaged file, or one for a package that is not there, makes of the loader
        reason = str(error).strip().split("\n")[0].rstrip(".:") or type(error).__name__
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be loaded ({reason}); give it as tokenizer.json, or take its files away "
            "to import the model alone"
        ) from error
    return tokenizer


def _load_parts(index: Path) -> dict[str, Tensor]:
    places = _read_json(index).get("weight_map")
    names = list(dict.fromkeys(places.values())) if isinstance(places, dict) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise CheckpointError(f"{index} does not say which files beside it hold the weights; copy it again")
    weights: dict[str, Tensor] = {}
    for name in names:
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index.parent} has no {name}, which {index.name} lists; copy the missing part")
        weights.update(_load(index.parent / name))
    return weights


def _load(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} cannot be read: it is damaged or no file of weights; copy it again"
            ) from error
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of the loader
        raise CheckpointError(
            f"{path} was not loaded: it is damaged, or asks for code, which is refused; give model.safetensors instead"
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(
            f"{path} holds something else than weights by name; give the file that Transformers saved"
        )
    return weights


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON; copy it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no options by name; copy it again")
    return content
