"""Scripts of ``benchmarks/`` and ``examples/``: what makes them small exists, and those that no page runs run as well.

What pages call is run with the pages (``test_blocks.py``), on a CPU where there is no GPU; here it is run on one.
"""

import argparse
import ast
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import scripts
from .blocks import REPOSITORY, Span, blocks_of, pages, read_page, spans_of
from .calling import Failed
from .running import Runner
from .scripts import FOLDERS, imported, parser_of, path_of, run_script, small_of
from .small_benchmarks import Small
from .spans import call_of

SCRIPTS = tuple(f"{folder}/{name}.py" for folder, known in FOLDERS.items() for name in known)
NO_PROGRAMS = ("open_loop", "timing", "engine_encoder", "faster_blocks", "faster_depths", "faster_speed", "jobs")
TESTED_ELSEWHERE = {"results": "tests/test_results_tables.py", "plain_server": "tests/serving/test_load.py"}
"""Programs that no page calls, and where they are run."""


def commands_of(script: str) -> list[str]:
    """Those that the docstring of a script shows, without the word python."""
    told = ast.get_docstring(ast.parse(path_of(script).read_text(encoding="utf-8"))) or ""
    return re.findall(r"^ +python ((?:benchmarks|examples)/.*?)(?:  +#.*)?$", told.replace("\\\n", ""), re.MULTILINE)


def scripts_of_pages() -> set[str]:
    """Scripts that pages call in blocks of shell or in sentences."""
    found = set[str]()
    for page in pages():
        text = read_page(page)
        blocks = [block.text for block in blocks_of(page, text) if block.language == "sh"]
        found |= set(re.findall(r"^python (\S+)", "\n".join(blocks), re.MULTILINE))
        found |= {call.arguments[0] for span in spans_of(page, text) if (call := call_of(span)) is not None}
    return found


def on_gpu() -> Iterator[Span]:
    """Commands in sentences that name a GPU, or need one."""
    for page in pages():
        for span in spans_of(page, read_page(page)):
            call = call_of(span)
            if call is not None and call.program == "python":
                needs = small_of(call.arguments[0]).needs_gpu
                if needs or re.search(r"--device cuda", str(call)):
                    yield span


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Names of what a command line reads, those of its own commands too."""
    found = {action.dest for action in parser._actions}
    for action in parser._actions:
        if isinstance(action.choices, dict):
            found |= {name for nested in action.choices.values() for name in options_of(nested)}
    return found


def test_every_program_is_known() -> None:
    """Whoever adds a script says how it is made small."""
    files = {path.stem for path in (REPOSITORY / "benchmarks").glob("*.py")}
    assert files == {*FOLDERS["benchmarks"], *NO_PROGRAMS, *TESTED_ELSEWHERE}
    assert all((REPOSITORY / path).is_file() for path in TESTED_ELSEWHERE.values())


@pytest.mark.parametrize("script", SCRIPTS)
def test_sizes_are_those_of_the_script(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = small_of(script)
    assert set(small.options) <= options_of(parser_of(script, [], reads=False))
    with imported(path_of(script), monkeypatch):
        for name, value in small.constants.items():
            monkeypatch.setattr(name, value)  # raises where there is none


@pytest.mark.parametrize("script", [*SCRIPTS, *(f"benchmarks/{name}.py" for name in TESTED_ELSEWHERE)])
def test_commands_in_docstrings_can_be_read(script: str) -> None:
    assert commands_of(script)
    for command in commands_of(script):
        name, *arguments = shlex.split(command)
        parser_of(name, arguments)


@pytest.mark.parametrize("script", sorted(set(SCRIPTS) - scripts_of_pages()))
def test_scripts_that_no_page_calls(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(commands_of(script)[0])
    run_script(script, arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("span", list(on_gpu()), ids=lambda span: span.where)
def test_commands_for_a_gpu(span: Span, make_runner: Callable[[str], Runner]) -> None:
    make_runner(span.page).run(span)


@pytest.mark.parametrize(
    ("arguments", "small", "message"),
    [
        ([], Small("nothing like it"), 'information.py : "nothing like it" is nowhere in what it printed'),
        (["--json", "x.json"], Small(""), "ended with 2: .*unrecognized arguments: --json"),
        ([], Small("", {"labels": -1}), "ValueError: "),
        ([], Small("", needs_gpu=True), "ended with 0 without a GPU"),
    ],
)
def test_scripts_that_do_not_work(
    arguments: list[str], small: Small, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"documents": 2, "types": 20, "length": 5, **small.options}
    monkeypatch.setattr(scripts, "small_of", lambda _: Small(small.shows, sizes, needs_gpu=small.needs_gpu))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(Failed, match=re.compile(message, re.DOTALL)):
        run_script("benchmarks/information.py", arguments)


def test_files_that_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failed, match=r"folds\.json was not written"):
        scripts.check_files("it", ["--json", "folds.json"])
    Path("folds.json").write_text("{")
    with pytest.raises(ValueError, match="property name"):
        scripts.check_files("it", ["--json", "folds.json"])
