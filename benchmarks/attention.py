"""Attention over short sequences in training: the Triton kernels beside torch's scaled dot-product attention.

    python benchmarks/attention.py
    python benchmarks/attention.py --lengths 32 --heads 4x128 --json attention.json
    python benchmarks/attention.py --lengths 32 64 --heads 4x128 --warps 4

4,096 tokens in float16. Times are those on the GPU in microseconds, from a CUDA graph that walks through several sets
of inputs, more than the cache holds; with ``--sets 2`` inputs stay in the cache, as they partly do in a model. Queries,
keys and values of self-attention are chunks of one projection, keys and values of a source are chunks of another; the
gradients are those of each. Torch chooses among the kernels that training lets it choose from: all but cuDNN's.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from kernels import CACHE_BYTES, kernel_ms
from rich.console import Console
from rich.table import Table
from timing import Run
from torch import Tensor

from depthwise.kernels import attend, short_attention
from depthwise.kernels.attention import attend_source, for_changing_lengths

TOKENS = 4096
DTYPE = torch.float16
LENGTHS = [24, 32, 48, 64, 96, 128]
HEADS = ["4x128", "4x32", "8x64"]
KINDS = ["masked", "causal", "cross"]
DROPOUTS = [0.0, 0.1]
BACKENDS = ("triton", "reference")


@dataclass(frozen=True)
class Case:
    kind: str
    heads: int
    width: int
    length: int
    dropout: float

    @property
    def rows(self) -> int:
        return TOKENS // self.length


@dataclass(frozen=True)
class Measured:
    """Microseconds of ours and of torch's."""

    case: Case
    forward: float
    torch_forward: float
    both: float
    torch_both: float


def inputs(case: Case) -> tuple[list[Tensor], Tensor, Tensor]:
    """Queries, keys and values that need gradients, the gradient of the output, and a mask of random lengths."""
    joined = [randn(case, 3)] if case.kind != "cross" else [randn(case, 1), randn(case, 2)]
    parts = [part for each in joined for part in each.chunk(each.shape[-1] // (case.heads * case.width), dim=-1)]
    states = [part.unflatten(-1, (case.heads, case.width)).transpose(1, 2).requires_grad_() for part in parts]
    outgoing = randn(case, 1).unflatten(-1, (case.heads, case.width)).transpose(1, 2)
    ends = torch.randint(case.length // 2, case.length + 1, (case.rows, 1), device="cuda")
    return states, outgoing, torch.arange(case.length, device="cuda") < ends


def randn(case: Case, count: int) -> Tensor:
    return torch.randn(case.rows, case.length, count * case.heads * case.width, device="cuda").to(DTYPE)


def call(case: Case, backend: str, states: list[Tensor], valid: Tensor) -> Tensor:
    if case.kind == "cross":
        return attend_source(*states, valid=valid, dropout=case.dropout, backend=backend)
    if case.kind == "causal":
        return attend(*states, causal=True, dropout=case.dropout, backend=backend)
    return attend(*states, causal=False, valid=valid, dropout=case.dropout, backend=backend)


def runs(case: Case, backend: str, num_sets: int | None, *, backward: bool) -> list[Run]:
    """The same call on several sets of inputs."""
    size = 4 * 2 * TOKENS * case.heads * case.width
    return [_run(case, backend, backward) for _ in range(num_sets or max(2, CACHE_BYTES // size))]


def _run(case: Case, backend: str, backward: bool) -> Run:
    states, outgoing, valid = inputs(case)
    forward: Callable[[], Tensor] = lambda: call(case, backend, states, valid)  # noqa: E731 (one line says it)
    return (lambda: torch.autograd.grad(forward(), states, outgoing)) if backward else (lambda: forward().detach())


def measure(case: Case, num_sets: int | None) -> Measured:
    times = [
        1000 * kernel_ms(runs(case, backend, num_sets, backward=backward))
        for backward in (False, True)
        for backend in BACKENDS
    ]
    return Measured(case, *times)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for kind in options.kinds:
        for shape in options.heads:
            heads, width = (int(number) for number in shape.split("x"))
            for dropout in DROPOUTS:
                for length in options.lengths:
                    yield Case(kind, heads, width, length, dropout)


def show(console: Console, measured: list[Measured]) -> None:
    table = Table("kind", "heads", "dropout", "T", title="Microseconds on the GPU", title_justify="left")
    for heading in ("forward", "torch", "times as fast", "both passes", "torch", "times as fast"):
        table.add_column(heading, justify="right")
    for each in measured:
        case = each.case
        pairs = ((each.forward, each.torch_forward), (each.both, each.torch_both))
        numbers = [text for ours, theirs in pairs for text in (f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}")]
        table.add_row(case.kind, f"{case.heads}x{case.width}", str(case.dropout), str(case.length), *numbers)
    console.print(table)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="T")
    parser.add_argument("--heads", nargs="+", default=HEADS, metavar="HxD", help="number of heads x width of each")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--sets", type=int, metavar="N", help="sets of inputs; else more than the cache holds")
    parser.add_argument("--warps", type=int, metavar="N", help="warps per program of ours; else by size of tile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there too")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here")
    if options.warps is not None:
        short_attention.num_warps = lambda *_: options.warps
    torch.manual_seed(0)
    console = Console(width=120)
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {TOKENS} tokens, {DTYPE}")
    with for_changing_lengths():
        measured = [measure(case, options.sets) for case in cases(options)]
    show(console, measured)
    if options.json is not None:
        result = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "measured": [asdict(each) for each in measured],
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
