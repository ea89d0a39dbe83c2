"""The fused residual norm and the fused cross-entropy on a GPU, beside torch's own operators and the floor.

    python benchmarks/fused.py
    python benchmarks/fused.py --rows 8192 --dtypes bf16 --json fused.json

Times are those on the GPU: of a CUDA graph that walks through several sets of inputs, more than the cache holds. The
floor is the bytes that must move (every input read once, every output written once, in either pass) at the speed of a
plain copy, measured first. The norm is that of a sub-block in training, dropout of the branch and the sum included; the
loss is summed over rows with smoothed labels. What draws the seed of dropout counts.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from kernels import CACHE_BYTES, copy_speed, kernel_ms
from rich.console import Console
from rich.table import Table
from timing import Run
from torch import Tensor

from depthwise.kernels import residual_norm, smoothed_cross_entropy

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DROPOUT, SMOOTHING = 0.1, 0.1


@dataclass(frozen=True)
class Case:
    """One operation on rows of so many elements."""

    what: str
    width: int
    dtype: str
    backward: bool

    def num_bytes(self, rows: int) -> int:
        """Norm: x and branch to y; with dy to their gradients. Loss: scores; scores to their gradient."""
        forward, both = (3, 8) if self.what == "norm" else (1, 3)
        return (both if self.backward else forward) * rows * self.width * DTYPES[self.dtype].itemsize

    def runs(self, rows: int, backend: str) -> list[Run]:
        """The operation on several sets of inputs."""
        size = rows * self.width * DTYPES[self.dtype].itemsize * (3 if self.what == "norm" else 1)
        make = norm_run if self.what == "norm" else loss_run
        return [make(self, rows, backend) for _ in range(max(2, CACHE_BYTES // size))]


@dataclass(frozen=True)
class Measured:
    """Microseconds of one case."""

    case: Case
    floor: float
    fused: float
    torch: float


def norm_run(case: Case, rows: int, backend: str) -> Run:
    x, branch, outgoing = (randn(rows, case.width, dtype=case.dtype) for _ in range(3))
    weight, bias = randn(case.width, dtype=case.dtype), randn(case.width, dtype=case.dtype)

    def run(*inputs: Tensor) -> Tensor:
        return residual_norm(*inputs, epsilon=1e-5, dropout=DROPOUT, backend=backend)

    return bound(run, [x, branch, weight, bias], outgoing, case.backward)


def loss_run(case: Case, rows: int, backend: str) -> Run:
    labels = torch.randint(case.width, (rows,), device="cuda")
    labels[::16] = -100

    def run(logits: Tensor) -> Tensor:
        return smoothed_cross_entropy(logits, labels, SMOOTHING, backend=backend)[0]

    return bound(run, [randn(rows, case.width, dtype=case.dtype)], torch.ones((), device="cuda"), case.backward)


def bound(run: Callable[..., Tensor], inputs: list[Tensor], outgoing: Tensor, backward: bool) -> Run:
    """Forward as in training, or that and the gradients of all inputs."""
    inputs = [each.requires_grad_() for each in inputs]
    if backward:
        return lambda: torch.autograd.grad(run(*inputs), inputs, outgoing)
    return lambda: run(*inputs)


def randn(*shape: int, dtype: str) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=DTYPES[dtype])


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for dtype in options.dtypes:
        for what, widths in (("norm", options.widths), ("loss", options.types)):
            for width in widths:
                for backward in (False, True):
                    yield Case(what, width, dtype, backward)


def measure(case: Case, rows: int, bytes_per_ms: float) -> Measured:
    fused, plain = (1000 * kernel_ms(case.runs(rows, backend)) for backend in ("triton", "reference"))
    return Measured(case, 1000 * case.num_bytes(rows) / bytes_per_ms, fused, plain)


def print_table(console: Console, rows: int, measured: list[Measured]) -> None:
    table = Table("what", "width or types", "precision", "pass", title=f"{rows} rows", title_justify="left")
    for heading in ("floor µs", "fused µs", "torch µs", "times as fast"):
        table.add_column(heading, justify="right")
    for each in measured:
        case = each.case
        cells = (case.what, str(case.width), case.dtype, "forward + backward" if case.backward else "forward")
        numbers = (each.floor, each.fused, each.torch)
        table.add_row(*cells, *(f"{number:.1f}" for number in numbers), f"{each.torch / each.fused:.2f}")
    console.print(table)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096, help="tokens of a batch")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512, 1024], help="widths of norms")
    parser.add_argument("--types", type=int, nargs="+", default=[6489, 8424, 10_000], help="types of losses")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["fp16", "bf16"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there too")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here")
    return options


def main(arguments: list[str]) -> None:
    options = parse_options(arguments)
    torch.manual_seed(0)
    console = Console(width=120)
    speed = copy_speed()
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {speed / 1e9:.2f} TB/s")
    measured = [measure(case, options.rows, speed) for case in cases(options)]
    print_table(console, options.rows, measured)
    if options.json is not None:
        result = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "copy_bytes_per_second": speed * 1000,
            "rows": options.rows,
            "measured": [asdict(each) for each in measured],
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
