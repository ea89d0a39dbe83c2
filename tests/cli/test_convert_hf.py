"""``depthwise convert hf``: from a folder of Transformers to the numbers that it computed, or one clear sentence."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertModel, BertTokenizer

from depthwise.cli.main import main

SMALL = {
    **{"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 12, "max_position_embeddings": 20},
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde"]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process: exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["depthwise", "convert", "hf", *map(str, arguments)])
        with pytest.raises(SystemExit) as raised:
            main()
        captured = capsys.readouterr()
        return int(raised.value.code or 0), *(re.sub(r"\x1b\[[0-9;]*m", "", text) for text in captured)

    return run


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    BertForMaskedLM(BertConfig(**SMALL)).save_pretrained(tmp_path / "theirs")
    BertTokenizer(vocab={piece: index for index, piece in enumerate(PIECES)}).save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


@torch.no_grad()
def test_the_whole_way(theirs: Path, tmp_path: Path) -> None:
    """In a process of its own, then through Transformers."""
    run = tmp_path / "runs" / "imported"
    command = [sys.executable, "-m", "depthwise", "convert", "hf", str(theirs), str(run)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    model = BertForMaskedLM.from_pretrained(theirs)
    size = f"{model.num_parameters():,}"
    assert result.stdout == f"{run}: DepthwiseForMaskedLM of {size} parameters from model.safetensors\n"
    ids = torch.randint(5, 30, (2, 7))
    everything = torch.ones_like(ids)
    logits = AutoModelForMaskedLM.from_pretrained(run)(ids, everything).logits
    assert (logits - model(ids, everything).logits).abs().max() < 1e-5


def test_the_encoder_alone(theirs: Path, call: Call, tmp_path: Path) -> None:
    code, output, errors = call(theirs, tmp_path / "run", "--bare")
    assert (code, errors) == (0, "")
    assert output.splitlines()[1:] == [
        "The run is an encoder without a head: load it with the Auto class of your task to fine-tune it.",
        "The weights hold no pooler: a classifier that starts from this run gets a new one.",
        "Left out, since this model has no use for it: cls.predictions, cls.predictions.transform.LayerNorm, "
        "cls.predictions.transform.dense.",
    ]
    assert type(AutoModel.from_pretrained(tmp_path / "run")).__name__ == "DepthwiseModel"


def test_one_clear_sentence(theirs: Path, call: Call, tmp_path: Path) -> None:
    config = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps({**config, "model_type": "t5"}))
    sentence = "config.json names the model_type 't5'; what can be imported is bert, roberta or albert"
    assert call(theirs, tmp_path / "run") == (1, "", f"error: {sentence}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_replacing_a_run(theirs: Path, call: Call, tmp_path: Path) -> None:
    assert call(theirs, tmp_path / "run")[0] == 0
    sentence = f"error: {tmp_path / 'run'} is not empty; give another folder, or --force to replace it\n"
    assert call(theirs, tmp_path / "run") == (1, "", sentence)
    BertModel(BertConfig(**SMALL)).save_pretrained(theirs)
    code, output, _ = call(theirs, tmp_path / "run", "--force")
    assert code == 0
    assert "DepthwiseModel" in output


def test_wrong_usage(call: Call, tmp_path: Path) -> None:
    code, _, errors = call(tmp_path)
    assert code == 2
    assert "DST" in errors
