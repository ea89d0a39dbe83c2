"""What is written of an evaluation can be read again, and only that."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthwise.data import Example
from depthwise.errors import CheckpointError, DataError
from depthwise.evaluation import Evaluation, read_evaluation, read_predictions, replace_file, write_evaluation
from depthwise.evaluation.results import (
    examples_digest,
    finite,
    one_line,
    result_name,
    result_path,
    strict_json,
    weights_digest,
)

FOUND = Evaluation(
    task="translation",
    split="test",
    metric="sacrebleu",
    metrics={"sacrebleu": 12.5, "chrf": None},
    signatures={"sacrebleu": "a", "chrf": "b"},
    examples=3,
    mean_depth=1.5,
    seconds=0.25,
    hardware="abacus",
    seed=1,
    settings={"precision": "fp32", "depth": None, "generation": None},
    examples_digest="e",
    weights_digest="w",
    predictions=("a b", "", "c"),
)


def test_written_and_read(tmp_path: Path) -> None:
    path = write_evaluation(tmp_path, FOUND)
    assert path == tmp_path / "results" / "test.json"
    assert read_evaluation(path) == FOUND
    assert (tmp_path / "results" / "test.predictions.txt").read_text() == "a b\n\nc\n"
    content = json.loads(path.read_text())
    assert {"metrics", "mean_depth", "seconds", "examples"} <= content.keys()
    assert content["metrics"] == {"sacrebleu": 12.5, "chrf": None}
    assert "predictions" not in content


def test_another_depth_has_files_of_its_own(tmp_path: Path) -> None:
    write_evaluation(tmp_path, FOUND)
    cut = replace(FOUND, settings={"precision": "fp32", "depth": 2, "generation": None})
    assert (
        write_evaluation(tmp_path, cut)
        == result_path(tmp_path, "test-depth-2")
        == tmp_path / "results/test-depth-2.json"
    )
    assert read_evaluation(tmp_path / "results" / "test.json") == FOUND


@pytest.mark.parametrize(
    ("depth", "policy", "name"),
    [
        (None, None, "test"),
        (2, None, "test-depth-2"),
        (2, {"kind": "fixed", "depth": 2}, "test-depth-2"),
        (None, {"kind": "confidence", "threshold": [0.9]}, "test-confidence-0.9"),
        (None, {"kind": "token", "penalty": 0.1}, "test-token"),
    ],
)
def test_names_of_results(depth: int | None, policy: dict[str, Any] | None, name: str) -> None:
    assert result_name("test", {"depth": depth, "policy": policy}) == name


def test_predictions_with_line_breaks_stay_on_their_line(tmp_path: Path) -> None:
    texts = ("a\nb", "c\r\n\td", "e\u2028f\x85g")
    path = write_evaluation(tmp_path, replace(FOUND, predictions=texts))
    lines = path.with_name("test.predictions.txt").read_text().splitlines()
    assert lines == ["a b", "c   d", "e f g"] == [one_line(text) for text in texts]


@pytest.mark.parametrize("harm", ["no numbers", "no predictions", "other predictions", "no JSON", "missing field"])
def test_what_is_not_whole_is_nothing(tmp_path: Path, harm: str) -> None:
    path = write_evaluation(tmp_path, FOUND)
    predictions = path.with_name("test.predictions.txt")
    if harm == "no numbers":
        path.unlink()
    elif harm == "no predictions":
        predictions.unlink()
    elif harm == "other predictions":
        predictions.write_text("a\n\nc\n")
    elif harm == "no JSON":
        path.write_text(path.read_text()[:-10])
    else:
        content = json.loads(path.read_text())
        del content["seconds"]
        path.write_text(json.dumps(content))
    assert read_evaluation(path) is None


def test_json_is_strict() -> None:
    assert [finite(value) for value in (1.5, float("inf"), float("nan"))] == [1.5, None, None]
    with pytest.raises(ValueError, match="not JSON compliant"):
        strict_json({"value": float("nan")})


def test_digest_of_examples() -> None:
    """The same texts elsewhere are the same examples; other texts, labels or another order are not."""

    def example(*texts: str, label: str | None = None, file: str = "f", line: int = 1) -> Example:
        return Example(texts, label, file, line)

    base = examples_digest([example("a", "b"), example("c", "d")])
    assert examples_digest([example("a", "b", file="g", line=7), example("c", "d")]) == base
    others = [
        [example("c", "d"), example("a", "b")],
        [example("a", "b")],
        [example("a b"), example("c", "d")],
        [example("a", "b", label="x"), example("c", "d")],
        [example("a", "b"), example("c", "e")],
    ]
    assert base not in {examples_digest(other) for other in others}
    assert len({examples_digest(other) for other in others}) == len(others)


def test_digest_of_weights(tmp_path: Path) -> None:
    assert weights_digest(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = weights_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert None is not first != weights_digest(tmp_path)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    path.write_text("before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = f"{path} cannot be written: No space left on device; what it held before is unchanged"
    with pytest.raises(CheckpointError, match=message):
        replace_file(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["results.json"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written: File exists"):
        write_evaluation(tmp_path, FOUND)


def test_predictions_of_others(tmp_path: Path) -> None:
    path = tmp_path / "given.txt"
    path.write_bytes("a b\r\n\nçé\nlast".encode())
    assert read_predictions(path) == ["a b", "", "çé", "last"]
    path.write_bytes(b"good\nb\xffd\n")
    with pytest.raises(DataError, match=f"{path}:2: byte 2 of the line is not UTF-8; mend it"):
        read_predictions(path)
    with pytest.raises(DataError, match="none does not exist; give a file with one prediction on each line"):
        read_predictions(tmp_path / "none")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_predictions(tmp_path)
