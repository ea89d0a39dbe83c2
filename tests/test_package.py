"""The package as others meet it: the wheel, the command in a fresh environment, the README's tree, the two commands."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "depthwise"
MAX_HELP_SECONDS = 1.0


@dataclass(frozen=True)
class Environment:
    """A virtual environment with `depthwise` from the wheel and its dependencies from the environment of the tests."""

    root: Path

    @property
    def programs(self) -> Path:
        return self.root / ("Scripts" if os.name == "nt" else "bin")

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of this environment in its own folder, so that the checkout is out of reach."""
        return run_quietly(str(self.programs / program), *arguments, cwd=self.root)


def run_quietly(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)


def run_checked(*command: str, cwd: Path) -> None:
    result = run_quietly(*command, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr


def package_files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path


def folders_of(package: Path) -> set[str]:
    return {path.relative_to(package).parts[0] for path in package_files(package) if path.parent != package}


def readme_folders(readme: str) -> dict[str, str]:
    """Folder and phrase of each entry below `src/depthwise/` in the first fenced block that draws the tree."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    tree = next((block for block in blocks if "src/depthwise/" in block), None)
    assert tree is not None, "README.md draws no tree of src/depthwise/"
    lines = tree.splitlines()
    start = next(number for number, line in enumerate(lines) if "src/depthwise/" in line)
    entries = []
    for line in lines[start + 1 :]:
        if not line.strip():
            continue
        indent = indent_of(line)
        if indent <= indent_of(lines[start]):
            break
        entries.append((indent, line[indent:]))
    shallowest = min((indent for indent, _ in entries), default=0)
    found = [re.match(r"(\w+)/\s*(.*)", text) for indent, text in entries if indent == shallowest]
    return {match[1]: match[2] for match in found if match}


def indent_of(line: str) -> int:
    """Column of the first letter, past blanks and the strokes of a drawn tree."""
    match = re.search(r"\w", line)
    return match.start() if match else len(line)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    options = ("--wheel", "--no-isolation", "--outdir", str(target), str(REPOSITORY))
    run_checked(sys.executable, "-m", "build", *options, cwd=target)
    (path,) = target.glob("depthwise-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, symlinks=os.name != "nt")
    environment = Environment(root)
    python = str(environment.programs / "python")
    command = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel))
    run_checked(*command, cwd=root)
    site_packages = sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)})
    # A path named in a .pth file comes after the environment's own, and .pth files found there are not followed:
    # the dependencies become visible, an editable install of the checkout does not.
    outer = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(site_packages, "dependencies.pth").write_text("\n".join(outer) + "\n", encoding="utf-8")
    return environment


def test_the_wheel_carries_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("depthwise/")}
    assert names == {path.relative_to(PACKAGE.parent).as_posix() for path in package_files(PACKAGE)}
    assert "depthwise/py.typed" in names


def test_the_package_comes_from_the_wheel(installed: Environment) -> None:
    script = "import depthwise, pathlib; print(pathlib.Path(depthwise.__file__).resolve())"
    result = installed.run("python", "-c", script)
    assert result.returncode == 0, result.stderr
    package = Path(result.stdout.strip()).parent
    assert package.is_relative_to(installed.root.resolve())
    assert (package / "py.typed").is_file()


@pytest.mark.parametrize("command", [("depthwise", "--help"), ("python", "-m", "depthwise", "--help")])
def test_help_is_there(installed: Environment, command: tuple[str, ...]) -> None:
    result = installed.run(*command)
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("module", ["depthwise", "depthwise.config"])
def test_importing_loads_neither_torch_nor_transformers(installed: Environment, module: str) -> None:
    script = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    result = installed.run("python", "-c", script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_help_answers_in_under_a_second(installed: Environment) -> None:
    """Of the processor's time, and the best of five: how busy the machine is does not count."""
    seconds = []
    for _ in range(5):
        before = os.times()
        assert installed.run("depthwise", "--help").returncode == 0
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert 0 < min(seconds) < MAX_HELP_SECONDS


def test_continuous_integration_runs_make_test_and_nothing_else() -> None:
    script = REPOSITORY / ".ci" / "run"
    lines = [line.strip() for line in script.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line and not line.startswith("#")] == ["make test"]
    assert os.access(script, os.X_OK)


def test_the_readme_draws_the_real_tree() -> None:
    drawn = readme_folders((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert set(drawn) == folders_of(PACKAGE)
    assert [folder for folder, phrase in drawn.items() if not phrase] == []


PLAIN_TREE = """\
src/depthwise/
  errors.py    what can go wrong
  config/      plain options
  mixers/      move information
tests/         mirror of the above
"""
DRAWN_TREE = """\
src/depthwise/    the package
├── config/       plain options
│   └── deep/     not a folder of the package itself
└── mixers/       move information
docs/             text
"""


@pytest.mark.parametrize("tree", [PLAIN_TREE, DRAWN_TREE])
def test_the_tree_is_read_whatever_its_strokes(tree: str) -> None:
    readme = f"# Title\n\n```python\nimport depthwise\n```\n\n```\n{tree}```\n"
    assert readme_folders(readme) == {"config": "plain options", "mixers": "move information"}
