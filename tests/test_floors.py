"""The house stands: a folder of the package imports only from floors below its own.

Imports are read from the syntax tree, so those inside functions and under ``TYPE_CHECKING`` count like any other.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "depthwise"
TESTS = REPOSITORY / "tests"

FLOORS = {
    folder: floor
    for floor, folders in enumerate(
        [
            ["errors", "shapes"],
            ["config"],
            ["kernels", "memory"],
            ["mixers", "depth", "losses", "data", "metrics"],
            ["models"],
            ["tasks", "engine"],
            ["evaluation"],
            ["training", "interop"],
            ["serving", "report"],
            ["cli"],
        ]
    )
    for folder in folders
}
FRONT_DOOR = ("__init__", "__main__", "registration")
"""Modules at the root that may import anything and that nobody below may import."""
HEAVY = ("torch", "numpy", "transformers")
LIGHT_FOLDERS = ("errors", "config")
"""What `depthwise.config` loads of ours; `shapes` is no part of it because it imports torch."""
NAMELESS = ("utils.py", "helpers.py", "common.py", "misc.py")
MAX_LINES = 400


def python_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)


def folder_of(path: Path, package: Path) -> str:
    """`mixers/attention.py` is of folder `mixers`; `errors.py`, at the root, is its own folder."""
    return path.relative_to(package).with_suffix("").parts[0]


def imported_modules(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import; ``from a import b`` gives ``a.b``, which may be a module or a name."""
    here = [package.name, *path.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) + 1 - node.level] if node.level else []
            source = [*base, *(node.module.split(".") if node.module else [])]
            yield from ((node.lineno, ".".join([*source, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            argument = node.args[0]
            if called in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)


def upward_imports(package: Path) -> list[str]:
    """Every import that the floors forbid, as one line of text each."""
    found = []
    for path in python_files(package):
        folder = folder_of(path, package)
        if path.parent == package and folder in FRONT_DOOR:
            continue
        where = path.relative_to(package)
        if folder not in FLOORS:
            found.append(f"{where}: {folder} stands on no floor")
            continue
        for line, module in imported_modules(path, package):
            root, *rest = module.split(".")
            if root != package.name:
                continue
            target = rest[0] if rest else "__init__"
            if target == folder:
                continue
            if target not in FLOORS:
                found.append(f"{where}:{line}: {module} is the front door or stands on no floor")
            elif FLOORS[target] >= FLOORS[folder]:
                found.append(f"{where}:{line}: {folder} (floor {FLOORS[folder]}) imports {target} ({FLOORS[target]})")
    return found


def heavy_imports(package: Path) -> list[str]:
    """Imports of large packages, or of our `shapes` that brings one, in what must load fast."""
    return [
        f"{path.relative_to(package)}:{line}: {module}"
        for path in python_files(package)
        if folder_of(path, package) in LIGHT_FOLDERS
        for line, module in imported_modules(path, package)
        if module.split(".")[0] in HEAVY or module.split(".")[:2] == [package.name, "shapes"]
    ]


def strangers(tests: Path, package: Path) -> list[str]:
    """Folders that hold tests but mirror no folder of the package. Folders of mere data are free."""
    holding_tests = {path.parent.relative_to(tests) for path in python_files(tests) if path.name.startswith("test_")}
    return sorted(str(folder) for folder in holding_tests if not (package / folder).is_dir())


def plant(root: Path, files: dict[str, str]) -> Path:
    """A package called `depthwise` below `root` with the given files."""
    package = root / "depthwise"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def test_a_folder_imports_only_from_below() -> None:
    assert upward_imports(PACKAGE) == []


def test_config_imports_nothing_heavy() -> None:
    assert heavy_imports(PACKAGE) == []


def test_files_are_named_after_what_they_hold() -> None:
    roots = (PACKAGE, TESTS, REPOSITORY / "benchmarks")
    assert [path for root in roots for path in python_files(root) if path.name in NAMELESS] == []


def test_files_stay_readable() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(PACKAGE)}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_tests_mirror_the_package() -> None:
    """But for the tests of ``docs/``, which stands beside the package."""
    assert strangers(TESTS, PACKAGE) == ["docs"]


@pytest.mark.parametrize(
    "statement",
    [
        "import depthwise.models",
        "import depthwise.models.stack as stack",
        "from depthwise.models.stack import Stack",
        "from depthwise import models",
        "from .. import models",
        "from ..models import Stack",
        "from ..models.stack import Stack",
        "def build():\n    from depthwise.models import Stack",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from depthwise.models import Stack",
        "import importlib\nimportlib.import_module('depthwise.models')",
    ],
)
def test_an_upward_import_is_caught(tmp_path: Path, statement: str) -> None:
    package = plant(tmp_path, {"mixers/attention.py": statement})
    (problem,) = upward_imports(package)
    assert problem.startswith("mixers/attention.py:")
    assert problem.endswith("mixers (floor 3) imports models (4)")


@pytest.mark.parametrize("statement", ["from depthwise.losses import nll", "from ..data import rows"])
def test_a_neighbour_on_the_same_floor_is_caught(tmp_path: Path, statement: str) -> None:
    (problem,) = upward_imports(plant(tmp_path, {"mixers/attention.py": statement}))
    assert "mixers (floor 3) imports" in problem


@pytest.mark.parametrize(
    "statement",
    [
        "import depthwise",
        "import depthwise.registration",
        "from depthwise import __version__",
        "from depthwise import registration",
        "from .. import __version__",
        "from ..registration import register",
    ],
)
def test_importing_the_front_door_is_caught(tmp_path: Path, statement: str) -> None:
    (problem,) = upward_imports(plant(tmp_path, {"cli/main.py": statement}))
    assert "front door" in problem


def test_a_folder_without_a_floor_is_caught(tmp_path: Path) -> None:
    assert upward_imports(plant(tmp_path, {"attic/box.py": "", "loose.py": ""})) == [
        "attic/box.py: attic stands on no floor",
        "loose.py: loose stands on no floor",
    ]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from depthwise.cli.main import main",
        "__main__.py": "from depthwise.cli.main import main",
        "registration.py": "from depthwise.models import Stack",
        "errors.py": "from dataclasses import dataclass",
        "config/model.py": "from depthwise.errors import ConfigError\nfrom . import presets",
        "mixers/__init__.py": "from .attention import Attention",
        "mixers/attention.py": "from ..kernels.conv import conv\nfrom depthwise import errors\nimport depthwisely",
        "mixers/build.py": "import depthwise.config.model\nfrom .attention import Attention",
        "cli/main.py": "from depthwise.report import page",
    }
    assert upward_imports(plant(tmp_path, files)) == []


@pytest.mark.parametrize(
    "statement",
    [
        "import torch",
        "import numpy as np",
        "from transformers import AutoConfig",
        "def build():\n    import torch.nn",
        "from depthwise.shapes import Float",
        "from ..shapes import Float",
    ],
)
def test_a_heavy_import_in_config_is_caught(tmp_path: Path, statement: str) -> None:
    package = plant(tmp_path, {"config/model.py": statement, "mixers/attention.py": statement})
    (problem,) = heavy_imports(package)
    assert problem.startswith("config/model.py:")


def test_a_test_folder_without_a_counterpart_is_caught(tmp_path: Path) -> None:
    package = plant(tmp_path, {"config/model.py": ""})
    for name in ("test_floors.py", "config/test_model.py", "attic/test_box.py", "golden/vectors.json"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert strangers(tmp_path / "tests", package) == ["attic"]
