"""Folders of Transformers: text comes in as before, runs are whole, and whatever is wrong ends in one sentence."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertModel,
    AlbertTokenizer,
    AutoConfig,
    AutoModel,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForPreTraining,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
)

from depthwise.errors import CheckpointError, ConfigError
from depthwise.interop.hf import convert_hf

from .conftest import PIECES, SMALL, bert, roberta

ALONE = "The run is an encoder without a head: load it with the Auto class of your task to fine-tune it."
NO_TOKENIZER = "There is no tokenizer beside the weights: save one into the run before you give it text."


def bert_of_old(folder: Path) -> Path:
    """With the list of pieces alone, as the first files came."""
    BertModel(BertConfig(**SMALL)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return folder


def albert(folder: Path) -> Path:
    AlbertModel(AlbertConfig(**SMALL, embedding_size=4)).save_pretrained(folder)
    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    AlbertTokenizer(vocab=[*((name, 0.0) for name in specials), *((name, -3.0) for name in "▁abcde")]).save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return bert(tmp_path / "theirs")


# Text


@pytest.mark.parametrize("make", [bert, bert_of_old, roberta, albert])
def test_text_becomes_the_same_ids(make: Callable[[Path], Path], tmp_path: Path) -> None:
    folder, run = make(tmp_path / "theirs"), tmp_path / "run"
    convert_hf(folder, run)
    before, after = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(run)
    texts, seconds = ["abc de", "e"], ["d", "ab ab ab"]
    for inputs in ((texts,), (texts, seconds)):
        old, new = before(*inputs, padding=True), after(*inputs, padding=True)
        assert {name: new[name] for name in old} == dict(old)
    model = AutoModel.from_pretrained(run)
    assert model(**after(texts, seconds, padding=True, return_tensors="pt")).pooler_output.shape == (2, 8)
    long = after("a b c d e " * 9, truncation=True)["input_ids"]
    assert len(long) == model.config.encoder["max_positions"]


@pytest.mark.parametrize(("make", "several"), [(bert, True), (roberta, False), (albert, True)])
def test_types_come_where_a_model_has_several(make: Callable[[Path], Path], several: bool, tmp_path: Path) -> None:
    convert_hf(make(tmp_path / "theirs"), tmp_path / "run")
    encoded = AutoTokenizer.from_pretrained(tmp_path / "run")("ab", "cd")
    assert ("token_type_ids" in encoded) == several
    if several:
        assert (encoded["token_type_ids"][0], encoded["token_type_ids"][-1]) == (0, 1)


@pytest.mark.parametrize(("make", "expected"), [(bert, (2, 3, 0)), (roberta, (0, 2, 1)), (albert, (2, 3, 0))])
def test_special_ids(make: Callable[[Path], Path], expected: tuple[int, int, int], tmp_path: Path) -> None:
    """A BERT begins and ends with the tokens that only its tokenizer knows."""
    convert_hf(make(tmp_path / "theirs"), tmp_path / "run")
    config = AutoConfig.from_pretrained(tmp_path / "run")
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == expected


def test_without_a_tokenizer(tmp_path: Path) -> None:
    BertModel(BertConfig(**SMALL)).save_pretrained(tmp_path / "theirs")
    assert convert_hf(tmp_path / "theirs", tmp_path / "run").remarks == (ALONE, NO_TOKENIZER)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json", "model.safetensors"]
    config = AutoConfig.from_pretrained(tmp_path / "run")
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, None, 0)


def test_names_of_classes(tmp_path: Path) -> None:
    names = {0: "O", 1: "B-PER", 2: "I-PER"}
    config = BertConfig(**SMALL, id2label=names, label2id={name: number for number, name in names.items()})
    BertForTokenClassification(config).save_pretrained(tmp_path / "theirs")
    convert_hf(tmp_path / "theirs", tmp_path / "run")
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "run")
    assert (model.config.id2label, model.config.num_labels) == (names, 3)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    BertForPreTraining(BertConfig(**SMALL)).save_pretrained(tmp_path / "theirs")
    (remark, _) = convert_hf(tmp_path / "theirs", tmp_path / "run").remarks
    assert remark == "Left out, since this model has no use for it: bert.pooler.dense, cls.seq_relationship."


# Files of weights


def same_model(folder: Path, run: Path) -> bool:
    """Whether the run holds the encoder that stood in the folder's safetensors before something was done to it."""
    found = AutoModel.from_pretrained(run).get_input_embeddings().weight
    return torch.equal(found, load_file(folder / "kept.safetensors")["embeddings.word_embeddings.weight"])


def in_parts(folder: Path) -> str:
    model = BertModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="1KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return "model.safetensors.index.json"


def pickled(folder: Path) -> str:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return "pytorch_model.bin"


def pickled_in_parts(folder: Path) -> str:
    weights = load_file(folder / "model.safetensors")
    parts = {name: f"pytorch_model-0000{index % 2 + 1}-of-00002.bin" for index, name in enumerate(weights)}
    for part in set(parts.values()):
        torch.save({name: weights[name] for name in weights if parts[name] == part}, folder / part)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))
    (folder / "model.safetensors").unlink()
    return "pytorch_model.bin.index.json"


def beside_a_pickle(folder: Path) -> str:
    """Safetensors are preferred to what else lies there."""
    (folder / "pytorch_model.bin").write_text("not looked at")
    return "model.safetensors"


def of_the_first_days(folder: Path) -> str:
    """Under the name of the family, with gammas, betas and positions, in half precision where nothing is lost."""

    def name(key: str) -> str:
        return f"bert.{key}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    weights = {name(key): value for key, value in load_file(folder / "model.safetensors").items()}
    norms = {key: value.half() for key, value in weights.items() if key.endswith("gamma")}
    positions = {"bert.embeddings.position_ids": torch.arange(22).unsqueeze(0)}
    torch.save({**weights, **norms, **positions}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return "pytorch_model.bin"


@pytest.mark.parametrize(
    "change",
    [in_parts, pickled, beside_a_pickle, pickled_in_parts, of_the_first_days],
    ids=lambda one: one.__name__,
)
def test_every_kind_of_file(change: Callable[[Path], str], theirs: Path, tmp_path: Path) -> None:
    shutil.copy(theirs / "model.safetensors", theirs / "kept.safetensors")
    name = change(theirs)
    done = convert_hf(theirs, tmp_path / "run")
    assert done.checkpoint == theirs / name
    assert same_model(theirs, tmp_path / "run")
    assert {weight.dtype for weight in load_file(tmp_path / "run" / "model.safetensors").values()} == {torch.float32}


# One clear sentence


def no_folder(folder: Path) -> str:
    shutil.rmtree(folder)
    return f"{folder} is no folder; give one that Transformers saved a model to"


def no_config(folder: Path) -> str:
    (folder / "config.json").unlink()
    return f"{folder} has no config.json; give a folder that Transformers saved a model to"


def broken_config(folder: Path) -> str:
    (folder / "config.json").write_text("{")
    return f"{folder}/config.json cannot be read as JSON; copy it again"


def config_of_nothing(folder: Path) -> str:
    (folder / "config.json").write_text("[]")
    return f"{folder}/config.json holds no options by name; copy it again"


def no_weights(folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    remedy = "save the model with Transformers again"
    return f"{folder} has no model.safetensors or pytorch_model.bin; tf_model.h5 cannot be read; {remedy}"


def damaged(folder: Path) -> str:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])
    return f"{path} cannot be read: it is damaged or no file of weights; copy it again"


def damaged_pickle(folder: Path) -> str:
    path = folder / pickled(folder)
    path.write_bytes(path.read_bytes()[:2000])
    remedy = "give model.safetensors instead"
    return f"{path} was not loaded: it is damaged, or asks for code, which is refused; {remedy}"


def pickle_of_something_else(folder: Path) -> str:
    path = folder / pickled(folder)
    torch.save({"step": 3}, path)
    return f"{path} holds something else than weights by name; give the file that Transformers saved"


def missing_part(folder: Path) -> str:
    in_parts(folder)
    part = sorted(folder.glob("model-*.safetensors"))[1]
    part.unlink()
    return f"{folder} has no {part.name}, which model.safetensors.index.json lists; copy the missing part"


@pytest.mark.parametrize("weight_map", [{"a": "../elsewhere.safetensors"}, {}, ["model.safetensors"], {"a": 1}])
def test_an_index_of_files_elsewhere(weight_map: Any, theirs: Path, tmp_path: Path) -> None:
    (theirs / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = theirs / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError) as raised:
        convert_hf(theirs, tmp_path / "run")
    assert str(raised.value) == f"{index} does not say which files beside it hold the weights; copy it again"


def broken_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").write_text("{")
    reason = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    remedy = "give it as tokenizer.json, or take its files away to import the model alone"
    return f"the tokenizer in {folder} cannot be loaded ({reason}); {remedy}"


def larger_tokenizer(folder: Path) -> str:
    BertTokenizer(vocab={piece: index for index, piece in enumerate([*PIECES, *map(str, range(20))])}).save_pretrained(
        folder
    )
    remedy = "give the tokenizer that the model was trained with"
    return f"the tokenizer in {folder} has 35 types, but the model has 30 embeddings; {remedy}"


@pytest.mark.parametrize(
    "spoil",
    [
        *(no_folder, no_config, broken_config, config_of_nothing, no_weights, damaged, damaged_pickle),
        *(pickle_of_something_else, missing_part, broken_tokenizer, larger_tokenizer),
    ],
    ids=lambda one: one.__name__,
)
def test_files_that_are_wrong(spoil: Callable[[Path], str], theirs: Path, tmp_path: Path) -> None:
    sentence = spoil(theirs)
    with pytest.raises(CheckpointError) as raised:
        convert_hf(theirs, tmp_path / "run")
    assert str(raised.value) == sentence
    assert {path.name for path in tmp_path.iterdir()} <= {"theirs"}


def test_an_existing_destination(theirs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"model_type": "depthwise"}')
    (run / "old").touch()
    with pytest.raises(CheckpointError, match="is not empty; give another folder, or --force to replace it"):
        convert_hf(theirs, run)
    convert_hf(theirs, run, force=True)
    assert not (run / "old").exists()
    with pytest.raises(CheckpointError, match="holds the model to be imported"):
        convert_hf(theirs, theirs, force=True)


def test_weights_that_do_not_fit_leave_nothing(theirs: Path, tmp_path: Path) -> None:
    weights = load_file(theirs / "model.safetensors")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, theirs / "model.safetensors")
    with pytest.raises(ConfigError, match=r"nothing among the weights for encoder\.stack\.layers\.1\.feed_forward"):
        convert_hf(theirs, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


# Nothing is executed


class Attack:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def test_code_in_a_pickle_is_not_run(theirs: Path, tmp_path: Path) -> None:
    (theirs / "model.safetensors").unlink()
    torch.save({"weight": Attack(tmp_path / "trace")}, theirs / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="asks for code, which is refused"):
        convert_hf(theirs, tmp_path / "run")
    assert not (tmp_path / "trace").exists()


def test_code_beside_the_model_is_not_run(theirs: Path, tmp_path: Path) -> None:
    """Neither what the configuration names nor what the tokenizer names."""
    (theirs / "code.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\nclass Thing: pass\n")
    for name, kind in (("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer")):
        content = json.loads((theirs / name).read_text())
        named = ["code.Thing", "code.Thing"] if kind == "AutoTokenizer" else "code.Thing"
        (theirs / name).write_text(json.dumps({**content, "auto_map": {kind: named}}))
    convert_hf(theirs, tmp_path / "run")
    assert not (tmp_path / "trace").exists()
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in json.loads((tmp_path / "run" / name).read_text())
