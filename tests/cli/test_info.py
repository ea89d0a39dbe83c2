"""``depthwise info``: the parts of a preset or of a saved model, and its mistakes."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from depthwise.cli.main import app, main
from depthwise.evaluation import evaluate_run, load_run
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.token_classification import DepthwiseForTokenClassification


def info(*arguments: str) -> str:
    """What the command prints, in one line."""
    result = CliRunner().invoke(app, ["info", *arguments])
    assert result.exit_code == 0, result.output
    return re.sub(r"[\s│┃┏┓┡┩└┘─━┴┼├┤┬╇╈]+", " ", result.output)


def complaint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a user is told; the exit code is 1."""
    monkeypatch.setattr(sys, "argv", ["depthwise", "info", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 1
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    return " ".join(errors.split())


def test_a_preset() -> None:
    output = info("iwslt-lightconv", "--length", "10")
    assert "DepthwiseForSeq2SeqLM at length 10" in output
    assert "encoder block 6: lightconv 31" in output
    assert "decoder block 5: lightconv 31" in output
    assert "kernel back end: reference" in output


def test_parameters_beside_published_ones() -> None:
    assert "encoder and pooler: 25.9M (published 30M, with heads); 26.5M with distances" in info("alberta-base")
    assert "published" not in info("iwslt-lightconv")


def test_a_run_folder(tmp_path: Path) -> None:
    """The model that was saved, with its parameters."""
    stack = {"num_layers": 2, "num_heads": 2, "ffn_width": 12}
    model = DepthwiseForTokenClassification(DepthwiseConfig(vocab_size=17, width=8, encoder=stack, num_labels=3))
    model.save_pretrained(tmp_path)
    output = info(str(tmp_path))
    assert "DepthwiseForTokenClassification at length 25" in output
    assert f" all {model.num_parameters():,} " in output


def test_shared_blocks(tmp_path: Path) -> None:
    """Each has the kernel of the layers that run it, not of the layer with its number."""
    stack = {"num_layers": 4, "num_heads": 2, "ffn_width": 12, "mixer": "lightconv"}
    shared = {**stack, "shared_layers": [0, 0, 1, 0], "kernel_sizes": [3, 3, 7, 3]}
    DepthwiseForTokenClassification(DepthwiseConfig(vocab_size=17, width=8, encoder=shared)).save_pretrained(tmp_path)
    output = info(str(tmp_path))
    assert "encoder block 0: lightconv 3, 3 times" in output
    assert "encoder block 1: lightconv 7 " in output
    assert "block 2" not in output


def test_a_trained_run(make_run: Callable[..., Path]) -> None:
    """What it is for, and what evaluations left on record; other files of results are none of them."""
    folder = make_run("classes", seed=2)
    output = info(str(folder))
    assert "trained for text_classification with seed 2 on " in output
    assert "results/" not in output
    found = evaluate_run(load_run(folder, device="cpu", depth=1), "test")
    (folder / "results" / "tune.json").write_text("{}")
    output = info(str(folder))
    assert f"results/test-depth-1.json: accuracy {found.value:.2f}, " in output
    assert "mean depth 1.00, 5 examples in" in output
    assert "tune.json" not in output


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown preset; did you mean iwslt-lightconv?" in complaint(monkeypatch, capsys, "iwslt-lightcov")


def test_a_folder_without_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    message = f"{tmp_path} holds no config.json; give a run folder, or the name of a preset"
    assert message in complaint(monkeypatch, capsys, str(tmp_path))


def test_a_model_of_another_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    message = f'{tmp_path} holds a model of type "bert", not a Depthwise model'
    assert message in complaint(monkeypatch, capsys, str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a valid JSON file"),
        ("[]", "Unrecognized model"),
        ('{"model_type": "nonsense"}', "model type `nonsense`"),
        ('{"model_type": "depthwise"}', "vocab_size required but missing"),
        (
            '{"model_type": "depthwise", "vocab_size": 9, "encoder": {}, "architectures": ["Other"]}',
            'config.json names the model "Other"; Depthwise has DepthwiseModel, ',
        ),
    ],
)
def test_a_damaged_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    assert message in complaint(monkeypatch, capsys, str(tmp_path))
