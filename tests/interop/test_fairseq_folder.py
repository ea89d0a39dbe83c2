"""Folders of fairseq become runs: which files are taken, what is written, and one sentence for all that is wrong."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from depthwise.errors import CheckpointError, ConfigError
from depthwise.interop.fairseq import convert_fairseq

PADDING = 1
EXPECTS_PRETOKENIZED = "The run expects pre-tokenised input: types of the dictionary between blanks."


@dataclass(frozen=True)
class Material:
    """Arguments and weights of one vector, and how to write them into a folder."""

    golden: Any
    write: Callable[..., Path]
    run: Path

    def folder(self, sizes: tuple[int, int] = (44, 44), **args: Any) -> Path:
        given = {**self.golden.args, "source_lang": "de", "target_lang": "en", **args}
        names = {"dict.de.txt": sizes[0], "dict.en.txt": sizes[1]}
        return self.write(given, self.golden.state, names)

    def refused(self, folder: Path, **options: Any) -> str:
        """The one sentence; nothing is left at or beside the destination."""
        before = sorted(self.run.parent.iterdir())
        with pytest.raises(CheckpointError) as caught:
            convert_fairseq(folder, self.run, **options)
        assert sorted(self.run.parent.iterdir()) == before
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def material(golden_named: Callable[[str], Any], fairseq_folder: Callable[..., Path], tmp_path: Path) -> Material:
    return Material(golden_named("lightconv_noglu_postnorm"), fairseq_folder, tmp_path / "run")


# What is written


@torch.no_grad()
def test_every_vector_comes_through(
    golden: Any, older: Callable[..., Any], fairseq_folder: Callable[..., Path], tmp_path: Path
) -> None:
    state = older(golden.state, tied=golden.args["share_all_embeddings"])
    args = {**golden.args, "source_lang": "de", "target_lang": "en"}
    folder = fairseq_folder(args, state, {"dict.de.txt": 44, "dict.en.txt": 44})
    done = convert_fairseq(folder, tmp_path / "run")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    logits = model(**golden.batch).logits
    assert (logits - golden.tensors["out.logits"])[golden.target != PADDING].abs().max() < 1e-5
    assert (done.model, done.num_parameters) == ("DepthwiseForSeq2SeqLM", model.num_parameters())
    assert done.remarks == (EXPECTS_PRETOKENIZED,)


def test_the_run_is_an_ordinary_one(material: Material) -> None:
    convert_fairseq(material.folder(), material.run)
    files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in material.run.iterdir()) == files
    settings = GenerationConfig.from_pretrained(material.run)
    ids = (settings.bos_token_id, settings.pad_token_id, settings.eos_token_id, settings.decoder_start_token_id)
    assert (*ids, settings.max_length) == (0, 1, 2, 2, 64)


def test_half_precision(material: Material) -> None:
    state = {name: tensor.half() for name, tensor in material.golden.state.items()}
    folder = material.write(
        {**material.golden.args, "source_lang": "de", "target_lang": "de"}, state, {"dict.de.txt": 44}
    )
    convert_fairseq(folder, material.run)
    model = AutoModelForSeq2SeqLM.from_pretrained(material.run)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}


def test_two_vocabularies_are_two_tokenizers(material: Material) -> None:
    state = {**material.golden.state}
    for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        state[name] = state[name][:40]
    args = {**material.golden.args, "source_lang": "de", "target_lang": "en"}
    folder = material.write(args, state, {"dict.de.txt": 44, "dict.en.txt": 40})
    convert_fairseq(folder, material.run)
    source, target = (AutoTokenizer.from_pretrained(path) for path in (material.run, material.run / "target"))
    assert (len(source), len(target)) == (44, 40)
    assert (source("w39").input_ids, target("w39").input_ids) == ([43, 2], [3, 2])


def test_a_language_model(golden_named: Callable[[str], Any], material: Material) -> None:
    golden = golden_named("transformer_prenorm")
    state = {
        key: tensor for key, tensor in golden.state.items() if key.startswith("decoder.") and "encoder_attn" not in key
    }
    args = {**golden.args, "arch": "transformer_lm"}
    folder = material.write(args, state, {"dict.txt": 44})
    done = convert_fairseq(folder, material.run)
    assert done.model == "DepthwiseForCausalLM"
    tokenizer = AutoTokenizer.from_pretrained(material.run)
    model = AutoModelForCausalLM.from_pretrained(material.run)
    batch = tokenizer(["w3 w4 w5", "w6"], padding=True, return_tensors="pt")
    assert batch.input_ids.tolist() == [[2, 7, 8, 9], [1, 1, 2, 10]]
    texts = tokenizer.batch_decode(model.generate(**batch, max_new_tokens=3, do_sample=False))
    alone = model.generate(**tokenizer("w6", return_tensors="pt"), max_new_tokens=3, do_sample=False)
    assert texts[1].removeprefix("<pad> <pad> ") == tokenizer.decode(alone[0])


def test_bands_come_back_from_disk(material: Material) -> None:
    """A tied adaptive softmax, whose tables are stored once."""
    args = {
        **material.golden.args,
        **dict.fromkeys(("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim", "decoder_conv_dim"), 16),
        **{"arch": "lightconv_lm", "decoder_layers": 1, "decoder_kernel_size_list": [3]},
        **{"adaptive_input": True, "adaptive_input_cutoff": "20", "adaptive_softmax_cutoff": "20"},
        **{"tie_adaptive_weights": True, "tie_adaptive_proj": True},
    }
    embeddings, softmax = "decoder.embed_tokens.embeddings", "decoder.adaptive_softmax"
    tables, projections = [torch.randn(20, 16), torch.randn(24, 4)], [torch.randn(16, 16), torch.randn(16, 4)]
    state = {
        key: torch.randn(shape)
        for key, shape in {
            "linear1.weight": (16, 16),
            "linear1.bias": (16,),
            "linear2.weight": (16, 16),
            "linear2.bias": (16,),
            "conv.weight": (4, 1, 3),
            "conv_layer_norm.weight": (16,),
            "conv_layer_norm.bias": (16,),
            "fc1.weight": (48, 16),
            "fc1.bias": (48,),
            "fc2.weight": (16, 48),
            "fc2.bias": (16,),
            "final_layer_norm.weight": (16,),
            "final_layer_norm.bias": (16,),
        }.items()
    }
    state = {f"decoder.layers.0.{key}": tensor for key, tensor in state.items()}
    for band in range(2):
        state[f"{embeddings}.{band}.0.weight"] = tables[band]
        state[f"{embeddings}.{band}.1.weight"] = projections[band]
    state[f"{softmax}.head.word_proj.weight"] = tables[0]
    state[f"{softmax}.head.class_proj.weight"] = torch.randn(1, 16)
    state[f"{softmax}.tail.0.0.weight"], state[f"{softmax}.tail.0.2.weight"] = projections[1], tables[1]
    convert_fairseq(material.write(args, state, {"dict.txt": 44}), material.run)
    model = AutoModelForCausalLM.from_pretrained(material.run)
    found = model.state_dict()
    assert torch.equal(found["head.tables.1.weight"], tables[1])
    assert torch.equal(found["head.projections.0.weight"], projections[1])
    assert model.head.tables[0].weight is model.model.decoder.embedding.tokens.tables[0].weight


# Which files are taken


def test_the_best_checkpoint_is_preferred(material: Material) -> None:
    folder = material.folder()
    for name in ("checkpoint_last.pt", "checkpoint1.pt"):
        (folder / name).write_text("no checkpoint", encoding="utf-8")
    assert convert_fairseq(folder, material.run).checkpoint == folder / "checkpoint_best.pt"
    (folder / "checkpoint_best.pt").replace(folder / "checkpoint_last.pt")
    assert convert_fairseq(folder, material.run, force=True).checkpoint == folder / "checkpoint_last.pt"
    (folder / "checkpoint_last.pt").replace(folder / "checkpoint2.pt")
    assert convert_fairseq(folder, material.run, force=True, checkpoint="checkpoint2.pt").folder == material.run
    message = (
        f"{folder} has no checkpoint_best.pt; there is checkpoint1.pt, checkpoint2.pt, choose one with --checkpoint"
    )
    assert material.refused(folder, force=True) == message
    (folder / "checkpoint1.pt").unlink()
    assert convert_fairseq(folder, material.run, force=True).checkpoint == folder / "checkpoint2.pt"


def test_no_checkpoint(material: Material, tmp_path: Path) -> None:
    folder = material.folder()
    assert material.refused(folder, checkpoint="other.pt") == f"{folder} has no other.pt; there is checkpoint_best.pt"
    (folder / "checkpoint_best.pt").unlink()
    assert material.refused(folder) == (
        f"{folder} has no checkpoint_best.pt; there is none, give a folder with a file such as checkpoint_best.pt"
    )
    remedy = "give the one that holds the checkpoint and its dictionaries"
    for wrong in (tmp_path / "absent", folder / "dict.de.txt"):
        assert material.refused(wrong) == f"{wrong} is no folder; {remedy}"


BESIDE = "put the dictionary of the training data beside the checkpoint"


def test_a_missing_dictionary(material: Material) -> None:
    folder = material.folder()
    (folder / "dict.en.txt").unlink()
    assert material.refused(folder) == f"{folder} has no dict.en.txt; there is dict.de.txt, {BESIDE}"
    (folder / "dict.de.txt").unlink()
    assert material.refused(folder) == f"{folder} has no dict.de.txt; there is none, {BESIDE}"


@pytest.mark.parametrize(("sizes", "side"), [((48, 44), "encoder"), ((44, 43), "decoder")])
def test_a_dictionary_of_another_size(material: Material, sizes: tuple[int, int], side: str) -> None:
    folder = material.folder(sizes)
    name, size = ("dict.de.txt", sizes[0]) if side == "encoder" else ("dict.en.txt", sizes[1])
    assert material.refused(folder) == (
        f"{folder / name} makes {size} types with the special ones, but the {side} has 44 embeddings; give the "
        "dictionary that the model was trained with"
    )


def test_languages_of_the_user(material: Material) -> None:
    folder = material.folder(source_lang=None, target_lang=None)
    ambiguous = "there is dict.de.txt, dict.en.txt, give --source-lang and --target-lang"
    assert material.refused(folder) == f"the checkpoint in {folder} does not name its languages; {ambiguous}"
    convert_fairseq(folder, material.run, source_lang="en", target_lang="de")
    convert_fairseq(folder, material.run, source_lang="en", force=True)


def test_languages_by_the_size_of_their_dictionaries(material: Material) -> None:
    state = {**material.golden.state}
    state["encoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"][:40]
    args = {**material.golden.args, "share_all_embeddings": False}
    folder = material.write(args, state, {"dict.de.txt": 44, "dict.en.txt": 40})
    convert_fairseq(folder, material.run)
    assert len(AutoTokenizer.from_pretrained(material.run)) == 40


def test_languages_where_there_are_none(material: Material) -> None:
    folder = material.write({"arch": "lightconv_lm"}, material.golden.state, {"dict.txt": 44})
    remedy = "leave --source-lang and --target-lang out"
    expected = f"a language model has one dictionary, dict.txt; {remedy}"
    assert material.refused(folder, source_lang="de") == expected
    (folder / "dict.txt").unlink()
    assert material.refused(folder) == f"{folder} has no dict.txt; there is none, {BESIDE}"


# Codes


CODES = "#version: 0.2\nw 3</w>\n"
RAW_TEXT = "The run takes raw text and gives detokenised text, by Moses and the byte-pair codes of {}."
NO_CAPITALS = "The source dictionary has no capital letters: if the training data was lower-cased, add --lowercase."


@pytest.mark.parametrize("names", [{}, {"tokenizer": "moses", "bpe": "subword_nmt"}, {"bpe": "fastbpe"}])
def test_codes_in_the_folder(material: Material, names: dict[str, str]) -> None:
    folder = material.folder(**names)
    (folder / "bpecodes").write_text(CODES, encoding="utf-8")
    done = convert_fairseq(folder, material.run)
    assert done.remarks == (RAW_TEXT.format("bpecodes"), NO_CAPITALS)
    assert AutoTokenizer.from_pretrained(material.run)("w3").input_ids == [7, 2]
    assert AutoTokenizer.from_pretrained(material.run).decode([2, 7, 8, 2], skip_special_tokens=True) == "w3 w4"


def test_codes_of_the_user(material: Material, tmp_path: Path) -> None:
    folder = material.folder(bpe="sentencepiece")
    (tmp_path / "mine").write_text(CODES, encoding="utf-8")
    done = convert_fairseq(folder, material.run, bpe_codes=tmp_path / "mine", lowercase=True)
    assert done.remarks == (RAW_TEXT.format("mine"),)
    assert AutoTokenizer.from_pretrained(material.run)("W3").input_ids == [7, 2]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"bpe": "sentencepiece"}, "the model names sentencepiece as its bpe"),
        ({"tokenizer": "nltk"}, "the model names nltk as its tokenizer"),
        ({"moses_no_escape": True}, "the model was trained with other settings of Moses"),
        ({"bpe_separator": "~"}, "pieces of words are marked by ~, not by @@"),
    ],
)
def test_codes_that_do_not_serve(material: Material, args: dict[str, Any], reason: str) -> None:
    folder = material.folder(**args)
    (folder / "code").write_text(CODES, encoding="utf-8")
    assert convert_fairseq(folder, material.run).remarks == (EXPECTS_PRETOKENIZED, f"code was not used: {reason}.")
    settings = json.loads((material.run / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["expects_pretokenized"] is True


def test_several_codes(material: Material) -> None:
    folder = material.folder()
    for name in ("de.codes", "en.codes"):
        (folder / name).write_text(CODES, encoding="utf-8")
    assert convert_fairseq(folder, material.run).remarks == (
        EXPECTS_PRETOKENIZED,
        "de.codes, en.codes was not used: there are several; choose one with --bpe-codes.",
    )


def test_codes_of_an_early_version(material: Material) -> None:
    folder = material.folder()
    (folder / "code").write_text("w 3\n", encoding="utf-8")
    first, second = convert_fairseq(folder, material.run).remarks
    assert first == EXPECTS_PRETOKENIZED
    assert second.startswith(f"code was not used: {folder / 'code'} holds codes of an early version")
    assert material.refused(folder, bpe_codes=folder / "code", force=True).startswith(
        f"{folder / 'code'} holds codes of"
    )


def test_codes_cannot_serve_a_language_model(material: Material) -> None:
    folder = material.write({"arch": "lightconv_lm"}, material.golden.state, {"dict.txt": 44})
    (folder / "code").write_text(CODES, encoding="utf-8")
    with pytest.raises(ConfigError):  # the weights are those of a translation model
        convert_fairseq(folder, material.run)
    assert material.refused(folder, bpe_codes=folder / "code") == (
        "byte-pair codes cannot be used because they serve translation between two languages only; leave --bpe-codes "
        "out"
    )


def test_a_missing_library_is_named(material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthwise.interop.fairseq_folder.find_spec", lambda name: None)
    folder = material.folder()
    (folder / "code").write_text(CODES, encoding="utf-8")
    assert convert_fairseq(folder, material.run).remarks[1] == (
        "Its tokenizer needs sacremoses: pip install 'depthwise[convert]'."
    )


# Where it is written


def test_a_destination_with_content(material: Material, tmp_path: Path) -> None:
    folder = material.folder()
    material.run.mkdir()
    convert_fairseq(folder, material.run)
    message = f"{material.run} is not empty; give another folder, or --force to replace it"
    assert material.refused(folder) == message
    (material.run / "old").touch()
    convert_fairseq(folder, material.run, force=True)
    assert not (material.run / "old").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fairseq", "run"]


def test_a_destination_that_cannot_be(material: Material, tmp_path: Path) -> None:
    folder = material.folder()
    material.run.touch()
    assert material.refused(folder) == f"{material.run} is a file; give a folder for the run"
    inside = material.run / "deeper"
    with pytest.raises(CheckpointError, match=rf"^{inside} cannot be written: .*; give another folder$"):
        convert_fairseq(folder, inside)
    for holder in (folder, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            convert_fairseq(folder, holder, force=True)
        assert str(caught.value) == f"{holder} holds the model to be imported; give another folder for the run"
    assert (folder / "checkpoint_best.pt").is_file()


def test_an_error_while_writing_leaves_things_as_they_were(
    material: Material, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = material.folder()
    material.run.mkdir()
    (material.run / "config.json").write_text('{"model_type": "depthwise"}')

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("depthwise.interop.fairseq_folder.write_word_tokenizer", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        convert_fairseq(folder, material.run, force=True)
    assert [path.name for path in material.run.iterdir()] == ["config.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fairseq", "run"]


def test_a_failing_move_brings_the_earlier_run_back(
    material: Material, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = material.folder()
    material.run.mkdir()
    (material.run / "config.json").write_text('{"model_type": "depthwise"}')
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    message = f"{material.run} cannot be written: No space left on device; give another folder"
    assert material.refused(folder, force=True) == message
    assert [path.name for path in material.run.iterdir()] == ["config.json"]


# Options


def test_an_option_without_counterpart(material: Material) -> None:
    folder = material.folder(adaptive_softmax_cutoff="10,20")
    with pytest.raises(ConfigError, match="an adaptive softmax over the target has no counterpart here"):
        convert_fairseq(folder, material.run)
    assert not material.run.exists()


def test_an_unknown_architecture_comes_before_missing_dictionaries(material: Material) -> None:
    folder = material.write({"arch": "roberta"}, material.golden.state, {})
    with pytest.raises(ConfigError, match="'roberta' is no architecture that can be imported"):
        convert_fairseq(folder, material.run)
