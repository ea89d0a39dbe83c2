"""``depthwise predict``: a line for a line, whatever comes."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from depthwise.evaluation import load_run, predict_all

MakeRun = Callable[..., Path]
Depthwise = Callable[..., tuple[int, str, str]]


def feed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))  # type: ignore[arg-type]


def test_a_file(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    folder, source = make_run("translation"), tmp_path / "in.txt"
    source.write_bytes(b"a b c\n\nb\xff\na\tb\n" + b"a " * 60 + b"\nlast")
    code, output, errors = depthwise("predict", folder, source)
    assert code == 0
    lines = output.split("\n")
    assert len(lines) == 7
    run = load_run(folder, device="cpu")
    assert lines[0] == predict_all(run, [("a b c",)])[0].text
    assert lines[1] == lines[3] == lines[6] == ""
    assert errors.splitlines() == [
        f"note: {source}:3: the line has bytes that are no UTF-8, from byte 2 on; they were replaced",
        f"note: {source}:4: the line has 2 of the 1 columns that are needed: text",
        f"note: {source}:5: the line has 61 tokens and was cut to 24",
    ]


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input(
    make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    feed(monkeypatch, b"a b\n\nc\n")
    code, output, errors = depthwise("predict", make_run("classes"), *arguments, "--depths", "data.max_chars=50")
    assert (code, errors) == (0, "")
    assert [line.partition("\t")[2] for line in output.split("\n")] == ["2 2 2", "", "2 2", ""]


@pytest.mark.parametrize("depth", [["--depth", "3"], ["--depth", "policy", "policy.kind=fixed", "policy.depth=3"]])
def test_depths_by_which_tokens_leave(
    make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch, depth: list[str]
) -> None:
    feed(monkeypatch, b"a b\nc\n")
    code, output, errors = depthwise("predict", make_run("leaving classes"), "--depths", *depth)
    assert (code, errors) == (0, "")
    assert [line.partition("\t")[2] for line in output.split("\n")] == ["3 3 3", "3 3", ""]


def test_a_policy_that_cannot_be(make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"a\n")
    code, output, errors = depthwise("predict", make_run("leaving classes"), "--depth", "policy")
    assert (code, output) == (1, "")
    assert "was trained with no policy; choose one that needs no training" in errors


def test_log_probabilities(make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"a b\tgood\na b\tbad\na b\tugly\n")
    code, output, errors = depthwise("predict", make_run("classes"), "--score")
    good, bad, ugly, _ = output.split("\n")
    assert code == 0
    assert 2.718281828 ** float(good) + 2.718281828 ** float(bad) == pytest.approx(1, abs=1e-5)
    assert ugly == ""
    assert errors.startswith('note: standard input:3: the line has no answer: "ugly" is no label of this model')


def test_a_number_has_no_probability(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\t1\n")
    code, output, errors = depthwise("predict", make_run("numbers"), tmp_path / "in.txt", "--score")
    assert (code, output) == (1, "")
    assert "a number that is estimated has no probability; leave --score out" in errors


def test_out(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    """Also onto the input itself; nothing but the file is left."""
    path = tmp_path / "lines.txt"
    path.write_text("a\nb c\n")
    code, output, _ = depthwise("predict", make_run("classes"), path, "--out", path)
    assert (code, output) == (0, "")
    assert set(path.read_text().splitlines()) <= {"good", "bad"}
    assert len(path.read_text().splitlines()) == 2
    assert not path.with_name("lines.txt.partial").exists()


def test_an_error_on_the_way_keeps_both_old_and_new(
    make_run: MakeRun, depthwise: Depthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out, source = make_run("classes"), tmp_path / "out.txt", tmp_path / "in.gz"
    out.write_text("before")
    source.write_bytes(b"no gzip")
    code, _, errors = depthwise("predict", folder, source, "--out", out)
    assert code == 1
    assert "is no complete gzip file" in errors
    assert out.read_text() == "before"

    from depthwise.data import lines

    class Interrupted(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            if self.tell() > 0:
                raise KeyboardInterrupt
            return super().read1(4)

    monkeypatch.setattr(lines.Path, "open", lambda path, mode="r", *_, **__: _open(path, mode, Interrupted))
    source = tmp_path / "in.txt"
    source.touch()
    code, _, errors = depthwise("predict", folder, source, "--out", out)
    monkeypatch.undo()
    assert code == 130
    assert f"what was done by then is in {out}.partial" in errors
    assert out.read_text() == "before"
    assert len((tmp_path / "out.txt.partial").read_text().splitlines()) == 2


def _open(path: Path, mode: str, stream: type[io.BytesIO]) -> object:
    return stream(b"a\nb\nc\n") if path.name == "in.txt" else open(path, mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    """Which also shows that a device is written to and not replaced."""
    (tmp_path / "in.txt").write_text("a\n")
    code, _, errors = depthwise("predict", make_run("classes"), tmp_path / "in.txt", "--out", "/dev/full")
    assert code == 1
    assert "/dev/full cannot be written: No space left on device" in errors
    assert not Path("/dev/full.partial").exists()
    assert Path("/dev/full").is_char_device()


def test_mistakes(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    folder = make_run("classes")
    code, _, errors = depthwise("predict", folder, tmp_path / "none.txt")
    assert code == 1
    assert "none.txt does not exist or is no file; give a text file, or - for standard input" in errors
    (tmp_path / "in.txt").write_text("a\n")
    code, _, errors = depthwise("predict", folder, tmp_path / "in.txt", "--out", tmp_path)
    assert code == 1
    assert f"{tmp_path} cannot be written: it is a folder; give another file" in errors
    assert depthwise("predict", folder, "a", "b")[0] == 2
    assert depthwise("predict", folder, "--score", "--depths")[0] == 2


def test_slow_input_interrupts_and_readers_who_leave(make_run: MakeRun) -> None:
    """In a process of its own: each line is answered as it comes; Ctrl-C and a closed pipe end it without a word."""
    folder = make_run("classes")
    command = [sys.executable, "-m", "depthwise", "predict", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    with subprocess.Popen(command, **pipes) as interrupted, subprocess.Popen(command, **pipes) as left:  # type: ignore[call-overload]
        for process in (interrupted, left):
            for line in (b"a b\n", b"c\n"):
                process.stdin.write(line)
                process.stdin.flush()
                assert process.stdout.readline() in (b"good\n", b"bad\n")
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(timeout=600) == 130
        left.stdout.close()
        left.stdin.write(b"a\n")
        left.stdin.close()
        assert left.wait(timeout=600) == 0
        assert interrupted.stderr.read() == left.stderr.read() == b""
