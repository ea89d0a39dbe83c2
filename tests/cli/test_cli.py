"""The command line: what it prints, and what it returns to the shell."""

import re
import subprocess
import sys
from typing import get_type_hints

import pytest
import typer.main
from typer.models import OptionInfo
from typer.testing import CliRunner

from depthwise.cli.convert import convert
from depthwise.cli.main import app, main


def plain(text: str) -> str:
    """Text without colours, boxes and line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def depthwise(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of ``python -m depthwise``."""
    result = subprocess.run(
        [sys.executable, "-m", "depthwise", *arguments], capture_output=True, text=True, check=False
    )
    return result.returncode, plain(result.stdout), plain(result.stderr)


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The same through ``main`` in this process: exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", ["depthwise", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    captured = capsys.readouterr()
    return int(raised.value.code or 0), plain(captured.out), plain(captured.err)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(flag: str) -> None:
    result = CliRunner().invoke(app, [flag])
    assert result.exit_code == 0
    output = plain(result.output)
    assert "Sequence models that spend only the depth each input needs." in output
    for command in typer.main.get_command(app).commands:
        assert f" {command} " in output


def test_help_of_every_command() -> None:
    for name, command in typer.main.get_command(app).commands.items():
        result = CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == 0
        assert plain(command.help.split("\n")[0]) in plain(result.output)


def test_options_that_are_called_like_their_value_name_themselves() -> None:
    """Typer 0.27 and 0.28 call an option as its value is written: ``--LANGUAGE`` for a ``language`` in capitals."""
    functions = [command.callback for command in (*app.registered_commands, *convert.registered_commands)]
    for function in functions:
        assert function is not None
        for name, kind in get_type_hints(function, include_extras=True).items():
            for option in getattr(kind, "__metadata__", ()):
                if isinstance(option, OptionInfo) and option.metavar and option.metavar.lower() == name:
                    names = (option.default, *(option.param_decls or ()))
                    assert f"--{name}" in names, f"{function.__name__} --{name}"


def test_no_arguments_show_the_help() -> None:
    result = CliRunner().invoke(app, [])
    assert "Usage" in result.output
    assert result.exit_code == 2


def test_version() -> None:
    import depthwise as package

    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"depthwise {package.__version__}"


def test_as_a_module() -> None:
    code, output, errors = depthwise("--version")
    assert (code, errors) == (0, "")
    assert output.startswith("depthwise ")


def test_a_mistake_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, errors = call(monkeypatch, capsys, "train", "start/clasify", "--out", "unused")
    assert (code, output) == (1, "")
    assert errors.startswith("error: start/clasify: 1 problem recipe neither a file nor a built-in recipe")
    assert "did you mean start/classify?" in errors
    assert "Traceback" not in errors


def test_a_mistake_in_a_shell() -> None:
    code, output, errors = depthwise("train", "start/clasify", "--out", "unused")
    assert (code, output) == (1, "")
    assert "did you mean start/classify?" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmo"], "No such command"),
        (["demo", "--ou"], "No such option"),
        (["demo", "--updates", "0"], "Invalid value for '--updates'"),
        (["demo", "--numbers", "many"], "Invalid value for '--numbers'"),
        (["demo", "extra"], "unexpected extra argument"),
    ],
)
def test_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, _, errors = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in errors


def test_mistakes_of_our_own_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a user's mistake becomes a sentence; a bug keeps its traceback."""
    monkeypatch.setattr(sys, "argv", ["depthwise", "demo"])
    monkeypatch.setattr("depthwise.cli.demo.read_recipe", lambda name, changes: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main()
