"""What is wrong on a page makes the test of its blocks fail, and says where."""

from collections.abc import Callable

import pytest

from .blocks import REPOSITORY, BadBlock, blocks_of
from .running import Runner

PAGE = "docs/some.md"
IN_ERRORS = "--- a/src/depthwise/errors.py\n+++ b/src/depthwise/errors.py\n@@\n"


def fence(language: str, text: str) -> str:
    return f"# A page\n\n```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (fence("", "depthwise info"), r'docs/some\.md:3: a block of ""; say which it is: python, sh'),
        (fence("console", "$ depthwise info"), 'a block of "console"'),
        (fence("python title=x", "1"), 'a block of "python title=x"'),
        (fence("text", "then\ndepthwise info"), '"depthwise info" is a command; make it a block of sh'),
        ("# A page\n\n    depthwise info\n", r"docs/some\.md:3: an indented block; fence it"),
    ],
)
def test_blocks_of_no_known_kind(text: str, message: str) -> None:
    with pytest.raises(BadBlock, match=message):
        blocks_of(PAGE, text)


@pytest.mark.parametrize(
    ("language", "text", "message"),
    [
        ("python", "import depthwise as dw\ndw.Engin", "AttributeError: module 'depthwise' has no attribute 'Engin'"),
        ("python", "x = (", "SyntaxError"),
        ("python", "assert 1 + 1 == 3", r"docs/some\.md:3: "),
        ("sh", "depthwise evalute RUN", "No such command 'evalute'"),
        ("sh", "depthwise evaluate RUN --dept 3", "No such option: --dept"),
        ("sh", "depthwise evaluate RUN --depth 7", "RUN has no exit at depth 7"),
        ("sh", "depthwise evaluate RUN generation.beams=1", "unknown option; did you mean generation.num_beams"),
        ("sh", "depthwise evaluate runs/nobodys", "nobody says how runs/nobodys is trained"),
        ("sh", "depthwise evaluate RUN [--json]", r"\[--json\]"),
        ("sh", "depthwise demo --nmbers 3", "No such option: --nmbers"),
        ("sh", "depthwise train start/clasify --out RUN", "did you mean start/classify"),
        ("sh", "depthwise train start/translate", "Missing parameter: out"),
        (
            "sh",
            "depthwise train translation/multi30k model.decoder.layers=3 --out RUN",
            "decoder.layers +unknown option",
        ),
        ("sh", "depthwise train translation/multi30k model.width=7 --out RUN", "heads do not divide width 7"),
        (
            "sh",
            "depthwise train RECIPE --out runs/a\ndepthwise train RECIPE seed=2 --out runs/a",
            "runs/a was trained by another recipe before",
        ),
        ("sh", "for n in 3 9; do depthwise evaluate RUN --depth $n; done", "evaluate RUN --depth 9"),
        ("sh", "echo hello | depthwise predict RUN --scores", "No such option: --scores"),
        ("sh", "python benchmarks/mixer.py", r"benchmarks/mixer\.py does not exist"),
        ("sh", "python benchmarks/mixers.py --lenghts 3", "unrecognized arguments: --lenghts"),
        ("sh", "python benchmarks/timing.py", r"say in tests/docs/small_benchmarks\.py how it is made small"),
        ("sh", "python benchmarks/promises.py RUN --settings", "RUN has no calibrated settings"),
        ("sh", "python benchmarks/engine.py --parts gredy", "invalid choice: 'gredy'"),
        ("sh", "python -c 'print()'", "nobody knows how to check that"),
        ("sh", "torchrun --nproc-per-node 2 train.py", "torchrun is to start -m depthwise"),
        ("sh", "make dem", "No rule to make target 'dem'"),
        ("sh", "pip install 'depthwise[everything]'", "this package has no such extra"),
        ("sh", "pip install -c constraint.txt .", "there is no such file"),
        ("sh", "curl https://example.org:80/", "ask a server at localhost:PORT"),
        ("sh", "curl localhost:8000/predict -d '{text: 1}'", "JSONDecodeError"),
        ("sh", "curl localhost:8000/ready", "no server listens there"),
        ("sh", "curl -k localhost:8000/ready", "nobody knows how to check -k"),
        ("sh", "depthwise serve RUN --port x", "should be a valid integer"),
        ("sh", "wget example.org", "wget: (command|No such)"),
        ("sh", "depthwise info 'iwslt", "unexpected EOF"),
        ("yaml", "task: translation\ntraning: {}", "traning +unknown option"),
        ("yaml", "base: start/nothing", "neither a file nor a built-in recipe"),
        ("yaml", "a: [", "ParserError"),
        ("json", "{'a': 1}", "JSONDecodeError"),
        ("diff", "--- a/src/x.py\n+++ b/src/x.py\n@@\n-a\n+b", r"there is no src/x\.py"),
        ("diff", f"{IN_ERRORS}-nothing like it\n+b", r"errors\.py has these lines 0 times"),
        ("diff", f"{IN_ERRORS}+b", r"errors\.py has these lines"),
        ("diff", "no difference", "is no line of a difference"),
        ("python", "# src/depthwise/new.py\nx = (", "SyntaxError"),
    ],
)
def test_blocks_that_do_not_work(language: str, text: str, message: str, make_runner: Callable[[str], Runner]) -> None:
    runner = make_runner(PAGE)
    (block,) = blocks_of(PAGE, fence(language, text))
    with pytest.raises(BadBlock, match=message) as raised:
        runner.run(block)
    assert "docs/some.md:3: " in str(raised.value)


def test_commands_of_a_changed_package(make_runner: Callable[[str], Runner]) -> None:
    """They see the change, and fail as others do."""
    runner = make_runner(PAGE)
    version = '--- a/src/depthwise/cli/info.py\n+++ b/src/depthwise/cli/info.py\n@@\n+raise ValueError("changed")\n'
    first = (REPOSITORY / "src" / "depthwise" / "cli" / "info.py").read_text(encoding="utf-8").splitlines()[0]
    for block in blocks_of(PAGE, fence("diff", f"{version} {first}")):
        runner.run(block)
    with pytest.raises(BadBlock, match="only depthwise is run from a changed package"):
        runner.run(*blocks_of(PAGE, fence("sh", "make test")))
    with pytest.raises(BadBlock, match="ValueError: changed"):
        runner.run(*blocks_of(PAGE, fence("sh", "depthwise info")))


def test_output_that_is_not_printed(make_runner: Callable[[str], Runner]) -> None:
    runner = make_runner(PAGE)
    for block in blocks_of(PAGE, fence("python", "print(1 + 1)") + "\n" + fence("text", "2").partition("\n\n")[2]):
        runner.run(block)
    code, shown = blocks_of(PAGE, fence("python", "print(1 + 1)") + "\n" + fence("text", "3").partition("\n\n")[2])
    runner.run(code)
    with pytest.raises(BadBlock, match=r"docs/some\.md:7: this was printed instead:\n2"):
        runner.run(shown)
