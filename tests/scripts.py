"""Programs that are no part of the package, as modules."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def loaded(path: str) -> Any:
    """The module of a file, by its path in the repository; its dataclasses look for it under its name."""
    file = ROOT / path
    name = f"{file.stem}_script"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
