"""``depthwise convert fairseq``: from a folder of fairseq to the numbers that it computed, or one clear sentence."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from depthwise.cli.main import main

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "fairseq_checkpoint"
PADDING, EOS = 1, 2

Call = Callable[..., tuple[int, str, str]]


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process: exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["depthwise", "convert", "fairseq", *map(str, arguments)])
        with pytest.raises(SystemExit) as raised:
            main()
        captured = capsys.readouterr()
        return int(raised.value.code or 0), plain(captured.out), plain(captured.err)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the checkpoint folder, for changes."""
    copy = tmp_path / "fairseq"
    copy.mkdir()
    for path in GOLDEN.iterdir():
        if path.suffix in (".pt", ".txt"):
            shutil.copy(path, copy)
    return copy


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The folder with its checkpoint changed."""
    path = folder / "checkpoint_best.pt"
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(path, weights_only=True)
    change(content)
    torch.save(content, path)
    return folder


@torch.no_grad()
def test_the_numbers_of_fairseq_come_out(tmp_path: Path) -> None:
    """The whole way in a process of its own, then through Transformers."""
    run = tmp_path / "runs" / "imported"
    command = [sys.executable, "-m", "depthwise", "convert", "fairseq", str(GOLDEN), str(run)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == (
        f"{run}: DepthwiseForSeq2SeqLM of 46,704 parameters from checkpoint_best.pt\n"
        "The run expects pre-tokenised input: types of the dictionary between blanks.\n"
    )
    expected = load_file(GOLDEN / "expected.safetensors")
    model = AutoModelForSeq2SeqLM.from_pretrained(run)
    source, target = expected["in.src_tokens"], expected["in.prev_output_tokens"]
    logits = model(source, source != PADDING, target, target != PADDING).logits
    assert (logits - expected["out.logits"])[target != PADDING].abs().max() < 1e-5


def test_greedy_tokens_are_those_of_the_logits(call: Call, tmp_path: Path) -> None:
    """From text: what ``generate`` takes at each step is the best of the scores of the whole prefix."""
    run = tmp_path / "run"
    assert call(GOLDEN, run)[0] == 0
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    batch = tokenizer(["w0 w1 w2 w3", "w10 w11"], padding=True, return_tensors="pt")
    tokens = model.generate(**batch, max_new_tokens=12, do_sample=False)
    assert tokens[:, 0].tolist() == [EOS, EOS]
    with torch.no_grad():
        best = model(**batch, decoder_input_ids=tokens[:, :-1]).logits.argmax(-1)
    goes_on = (tokens[:, 1:-1] != EOS).cumprod(1).bool()
    assert torch.equal(best[:, 0], tokens[:, 1])
    assert torch.equal(best[:, 1:][goes_on], tokens[:, 2:][goes_on])


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.parent.glob("*.json")))
def test_greedy_tokens_are_fairseqs(name: str, call: Call, folder: Path, tmp_path: Path) -> None:
    """Twelve steps through ``generate``, on past the end of sentences, as the vectors were made."""
    described = json.loads((GOLDEN.parent / f"{name}.json").read_text(encoding="utf-8"))
    vectors = load_file(GOLDEN.parent / f"{name}.safetensors")
    weights = {key.removeprefix("param."): tensor for key, tensor in vectors.items() if key.startswith("param.")}
    args = argparse.Namespace(**described["args"], arch=described["arch"], source_lang="de", target_lang="en")
    torch.save({"args": args, "model": weights}, folder / "checkpoint_best.pt")
    assert call(folder, tmp_path / "run")[0] == 0
    model, source = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run"), vectors["in.src_tokens"]
    model.generation_config.eos_token_id = None
    tokens = model.generate(source, attention_mask=source != PADDING, max_new_tokens=12, do_sample=False)
    assert torch.equal(tokens[:, 1:], vectors["out.greedy"])


def test_raw_text(call: Call, folder: Path, tmp_path: Path) -> None:
    (folder / "bpecodes").write_text("#version: 0.2\nw 3</w>\nw 4</w>\n", encoding="utf-8")
    code, output, errors = call(folder, tmp_path / "run")
    assert (code, errors) == (0, "")
    assert "The run takes raw text and gives detokenised text, by Moses and the byte-pair codes of bpecodes." in output
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert tokenizer("w3 w4").input_ids == [7, 8, 2]
    assert tokenizer.decode([2, 8, 7, 2], skip_special_tokens=True) == "w4 w3"


def test_every_option(call: Call, folder: Path, tmp_path: Path) -> None:
    (folder / "checkpoint_best.pt").rename(folder / "other.pt")
    (folder / "checkpoint_last.pt").touch()
    (folder / "dict.en.txt").rename(folder / "dict.fr.txt")
    (tmp_path / "mine").write_text("#version: 0.2\nw 3</w>\n", encoding="utf-8")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"model_type": "depthwise"}')
    (run / "old").touch()
    languages = ("--source-lang", "fr", "--target-lang", "de")
    options = ("--checkpoint", "other.pt", *languages, "--bpe-codes", tmp_path / "mine", "--lowercase", "--force")
    code, output, errors = call(folder, run, *options)
    assert (code, errors) == (0, "")
    assert "from other.pt" in output
    assert not (run / "old").exists()
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert (tokenizer.src_lang, tokenizer.tgt_lang, tokenizer.do_lower_case) == ("fr", "de", True)


# One clear sentence


def wrong_file(folder: Path) -> str:
    (folder / "checkpoint_best.pt").write_text("not a checkpoint", encoding="utf-8")
    return f"{folder}/checkpoint_best.pt is no file of torch; give a checkpoint that fairseq saved"


def cut_short(folder: Path) -> str:
    path = folder / "checkpoint_best.pt"
    path.write_bytes(path.read_bytes()[:20_000])
    return f"{path} cannot be read: it is damaged, incomplete or no checkpoint; copy it again"


def missing_dictionary(folder: Path) -> str:
    (folder / "dict.en.txt").unlink()
    remedy = "put the dictionary of the training data beside the checkpoint"
    return f"{folder} has no dict.en.txt; there is dict.de.txt, {remedy}"


def dictionary_of_another_size(folder: Path) -> str:
    with (folder / "dict.de.txt").open("a", encoding="utf-8") as dictionary:
        dictionary.write("one 1\n")
    remedy = "give the dictionary that the model was trained with"
    return f"{folder}/dict.de.txt makes 45 types with the special ones, but the encoder has 44 embeddings; {remedy}"


def unsupported_option(folder: Path) -> str:
    rewritten(folder, lambda content: vars(content["args"]).update(adaptive_softmax_cutoff=[10, 20]))
    remedy = "import a model that was trained without it"
    problem = f"an adaptive softmax over the target has no counterpart here; {remedy}"
    return f"fairseq arguments: 1 problem\n  adaptive_softmax_cutoff  {problem}"


def unknown_architecture(folder: Path) -> str:
    rewritten(folder, lambda content: vars(content["args"]).update(arch="fconv"))
    names = "transformer, lightconv, transformer_lm or lightconv_lm"
    problem = f"'fconv' is no architecture that can be imported; give {names} if it is one of these under another name"
    return f"fairseq arguments: 1 problem\n  arch  {problem}"


def missing_weight(folder: Path) -> str:
    rewritten(folder, lambda content: content["model"].__delitem__("encoder.layers.0.fc1.bias"))
    remedy = "check that arguments and dictionaries belong to these weights"
    ours = "model.encoder.stack.layers.0.feed_forward.hidden.bias"
    return f"fairseq weights: 1 problem\n  missing  nothing among the weights for {ours}; {remedy}"


def no_weights(folder: Path) -> str:
    rewritten(folder, lambda content: content.__delitem__("model"))
    return f'{folder}/checkpoint_best.pt holds no weights under "model"; give a checkpoint that fairseq saved'


@pytest.mark.parametrize(
    "spoil",
    [
        wrong_file,
        cut_short,
        missing_dictionary,
        dictionary_of_another_size,
        unsupported_option,
        unknown_architecture,
        missing_weight,
        no_weights,
    ],
)
def test_one_clear_sentence_and_nothing_left_behind(
    spoil: Callable[[Path], str], call: Call, folder: Path, tmp_path: Path
) -> None:
    sentence = spoil(folder)
    assert call(folder, tmp_path / "run") == (1, "", f"error: {sentence}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["fairseq"]


def test_an_existing_destination(call: Call, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "precious").touch()
    sentence = f"error: {run} is not empty and holds no run to replace; give another folder\n"
    assert call(folder, run) == call(folder, run, "--force") == (1, "", sentence)
    assert [path.name for path in run.iterdir()] == ["precious"]


class Attack:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


def test_code_in_a_file_is_not_run(folder: Path, tmp_path: Path) -> None:
    """In a process of its own, which has loaded nothing before."""
    rewritten(folder, lambda content: content.update(extra_state=Attack(tmp_path / "trace")))
    command = [sys.executable, "-m", "depthwise", "convert", "fairseq", str(folder), str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert re.search(r"asks for (posix|nt)\.system, which is refused because it could run code", result.stderr)
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["fairseq"]


def test_wrong_usage(call: Call, tmp_path: Path) -> None:
    code, _, errors = call(tmp_path)
    assert code == 2
    assert "DST" in errors
