"""Registers and memory that each thread of the convolutions takes on an H200, by the compiler alone: no GPU is asked.

    python tests/kernels/registers.py

``test_registers.py`` runs it in a process of its own, without Triton's interpreter. Prints JSON: for every variant the
registers of a thread and the bytes of memory that stand in for those it lacks.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from depthwise.kernels import triton_launch
from depthwise.kernels.call import call_of
from depthwise.kernels.plan import Plan
from depthwise.kernels.triton_band import CHANGING

HEADS, WIDTH, TOKENS = 12, 768, 4096
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
VARIANTS = {"plain": (32, None), "padded": (32, "valid"), "packed": (1, "segments")}
"""Rows, and what else is given."""
TABLES = {"valid": torch.bool, "segments": torch.int32}
OTHERS = {"lse": "fp32", "parts": "fp32", "valid": "u8", "positions": "i64", "segments": "i32", "seed": "i64"}
READER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def plans(dtype: torch.dtype, taps: int, variant: str, *, is_fixed: bool) -> Iterator[tuple[str, Plan]]:
    """All launches of a convolution, forward and backward."""
    rows, given = VARIANTS[variant]
    shape = (rows, TOKENS // rows)
    x = torch.empty(*shape, WIDTH, dtype=dtype, device="meta")
    kernel = x.new_empty(*(() if is_fixed else shape), HEADS, taps)
    tables = {name: x.new_empty(*shape, dtype=kind) if name == given else None for name, kind in TABLES.items()}
    optional = (tables["valid"], None, tables["segments"], None)
    call = call_of(x, kernel, taps // 2, shape[1], optional, True, False, 0.0, False)
    yield "forward", triton_launch.plan_sum(call, None, not is_fixed).plan
    yield "forward alone", triton_launch.plan_sum(call, None, False).plan
    both = triton_launch.plan_both(call, x.stride()) if is_fixed else None
    if both is not None:
        yield "both gradients", both.plan
        return
    yield "input gradient", triton_launch.plan_sum(call, x.stride(), not is_fixed).plan
    yield "kernel gradient", triton_launch.plan_kernel_gradient(call, x.stride()).plan


def taken(plan: Plan, dtype: torch.dtype) -> tuple[int, int]:
    """Registers, and bytes of memory in their place, of one thread."""
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    aligned: dict[Any, Any] = {}
    for place, name in enumerate(plan.kernel.arg_names):
        if name in plan.constants:
            signature[name], constants[(place,)] = "constexpr", plan.constants[name]
        elif name == "dropconnect":
            signature[name] = "fp32"
        else:
            is_number = name.startswith(("num_", "stride_")) or name in ("shift", "length")
            signature[name] = "i32" if is_number else f"*{OTHERS.get(name, TYPES[dtype])}"
            if not is_number or name not in CHANGING:
                aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(plan.kernel, signature, constants, aligned)
    options = {"num_warps": plan.num_warps, "enable_fp_fusion": True}
    compiled = triton.compile(source, GPUTarget("cuda", 90, 32), options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.run([READER, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def main() -> int:
    found = {}
    for dtype, name in TYPES.items():
        for is_fixed in (False, True):
            for taps in (31, 63):
                for variant in VARIANTS:
                    for operation, plan in plans(dtype, taps, variant, is_fixed=is_fixed):
                        case = f"{'light' if is_fixed else 'dynamic'}, {name}, K = {taps}, {variant}, {operation}"
                        found[case] = taken(plan, dtype)
    json.dump(found, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
