"""Tiles are cut so that the registers of a GPU suffice: where they do not, a kernel takes several times as long."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("registers.py")
MOST_BYTES = 512
"""Memory that may stand in for registers of a thread. Where too many are missing, compilers give up and put thousands
of bytes there."""


def test_registers_suffice() -> None:
    """As compiled for an H200, without one."""
    triton = pytest.importorskip("triton")
    if not (Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump").exists():
        pytest.skip("this Triton brings no tools for NVIDIA's code")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert len(found) > 50
    assert {case: taken for case, taken in found.items() if taken[1] > MOST_BYTES} == {}
