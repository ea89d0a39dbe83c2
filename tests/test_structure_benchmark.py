"""What benchmarks/structure.py compares a run that says how many layers it needs with."""

import math
from typing import Any

import pytest

from .scripts import ROOT, loaded

QUALITIES = {2: 70.0, 3: 80.0, 4: 80.0, 5: 81.0, 6: 79.0}


@pytest.fixture
def structure(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return loaded("benchmarks/structure.py")


@pytest.mark.parametrize(
    ("mean_depth", "sign", "best"),
    [
        (3.0, 1, 3),
        (3.2, 1, 3),  # four layers are as good as three, and more
        (4.1, 1, 5),  # rounded up to whole layers: in favour of the constant depth
        (6.0, 1, 5),
        (2.0, 1, 2),
        (5.0, -1, 2),
        (0.5, 1, None),
        (math.nan, 1, None),
    ],
)
def test_the_best_constant_depth(structure: Any, mean_depth: float, sign: int, best: int | None) -> None:
    assert structure.best_constant(QUALITIES, mean_depth, sign) == best
