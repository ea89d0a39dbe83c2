"""Commands on a translator whose encoder says how many layers it needs: what they call its depth."""

import json
from collections.abc import Callable
from pathlib import Path

MakeRun = Callable[..., Path]
Depthwise = Callable[..., tuple[int, str, str]]


def test_depths_are_said_to_be_those_of_the_encoder(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    folder = make_run("structured translation")
    code, output, errors = depthwise("evaluate", folder, "--depth", "policy", "policy.threshold=1.0")
    assert (code, errors) == (0, "")
    lines = [line.split() for line in output.splitlines()]
    assert ["encoder", "depth", "2.00"] in lines
    assert "encoder token-layers" in output
    kept = json.loads((folder / "results" / "test-structure-1.json").read_text())
    assert (kept["mean_depth"], kept["depth_of"]) == (2, "encoder")

    code, output, errors = depthwise("sweep", folder, "--limit", 3)
    assert (code, errors) == (0, "")
    assert "encoder depth" in output.splitlines()[1]
    assert json.loads((folder / "results" / "frontier.json").read_text())["depth_of"] == "encoder"

    (tmp_path / "pairs.tsv").write_text("a b c\tc b a\nb\tb\nc c a\ta c c\n" * 9)
    given = ["--depth-budget", 2.5, f"data.valid={tmp_path / 'pairs.tsv'}", "--name", "half"]
    code, output, errors = depthwise("calibrate", folder, *given)
    assert (code, errors) == (0, "")
    assert "at a mean encoder depth of" in output

    (tmp_path / "text").write_text("a b c\n")
    code, output, errors = depthwise("predict", folder, tmp_path / "text", "--depths", "--depth", "half")
    assert (code, errors) == (0, "")
    code, output, errors = depthwise("predict", folder, tmp_path / "text", "--depths", "--depth", "3")
    assert (code, errors) == (0, "")
    assert set(output.rstrip("\n").split("\t")[1].split()) == {"3"}


def test_exits_of_the_decoder_are_what_is_swept(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("structured translation with exits")
    code, _, errors = depthwise("sweep", folder, "policy.kind=structure")
    assert (code, "has exits in its decoder, whose depths are tried here" in errors) == (1, True)
    code, _, errors = depthwise("calibrate", folder, "--depth-budget", 1.5, "policy.kind=structure")
    assert (code, "has exits in its decoder, whose depths are tried here" in " ".join(errors.split())) == (1, True)
