"""Where the compact executor of encoders loses to the masked one, and which constants choose best among both.

    python benchmarks/choosing.py --threads 1
    python benchmarks/choosing.py --device cuda --dtype bfloat16 --widths 256 768 --tokens 32x64 32x128 128x128

Stacks with random weights run batches in four ways: tokens of any depth, most tokens to the end, one depth for each
row, and padding alone. The last table says, for several constants of ``engine.choosing``, how much slower a choice by
them is than the faster of both, on average over all cases and at worst. Both executors take turns, so that a busy
machine slows them alike; on a CPU with one thread, time is that of the processor alone. On a GPU the compact one
repeats recorded blocks, as ``Engine`` lets it, but for ``--by-kernel``.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import torch
from rich.console import Console
from rich.table import Table
from timing import SHORTEST_SAMPLE, interleaved_seconds
from torch import Tensor

from depthwise.depth import Plan
from depthwise.engine.choosing import MaskedEncoder, constants
from depthwise.engine.encoder import CompactEncoder
from depthwise.engine.recorded_walk import RecordedWalks
from depthwise.engine.recorder import GraphRecorder
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.stack import Stack
from depthwise.models.token_classification import DepthwiseForTokenClassification

MIXERS = ("attention", "lightconv", "dynamicconv")
KINDS = ("any depth", "most", "rows", "padding")
WORTHS = {"cpu": (0, 2e6, 4e6, 8e6, 16e6, 24e6, 32e6, 48e6), "cuda": (0, 3e8, 1e9, 3e9, 1e10, 3e10, 1e11, 3e11)}
RATES = (0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Case:
    """Seconds of one batch by both executors, and operations of the average block."""

    mixer: str
    width: int
    layers: int
    batch: str
    kind: str
    whole: float
    run: float
    masked: float
    compact: float

    def slower(self, worth: float, rate: float) -> float:
        """How many times as long as the faster one the chosen one takes."""
        is_compact = self.whole - rate * self.run > worth
        return (self.compact if is_compact else self.masked) / min(self.compact, self.masked)


def main(arguments: list[str]) -> None:
    options = _parsed(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    console, device, dtype = Console(width=120), torch.device(options.device), getattr(torch, options.dtype)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"{where}, torch {torch.__version__}, {options.dtype}")
    cases = list(_cases(options, device, dtype))
    table = Table(
        "mixer", "width", "layers", "batch", "kind", "Mops", "of them run", "masked, ms", "compact, ms", "ratio"
    )
    for case in cases:
        names = case.mixer, str(case.width), str(case.layers), case.batch, case.kind
        operations = f"{case.whole / 1e6:.2f}", f"{case.run / case.whole:.0%}"
        times = f"{1e3 * case.masked:.2f}", f"{1e3 * case.compact:.2f}", f"{case.compact / case.masked:.2f}"
        table.add_row(*names, *operations, *times)
    console.print(table)
    present = constants(device, dtype, is_recorded=device.type == "cuda" and not options.by_kernel)
    console.print(f"always compact: {_told(cases, -1e30, 1.0)}; always masked: {_told(cases, 1e30, 1.0)}")
    console.print(f"present constants, {present}: {_told(cases, present.worth, present.rate)}")
    chosen = Table("worth, Mops", *(f"rate {rate}" for rate in RATES))
    for worth in WORTHS[device.type]:
        chosen.add_row(f"{worth / 1e6:g}", *(_told(cases, worth, rate) for rate in RATES))
    console.print(chosen)
    if options.json:
        content = {"device": where, "torch": torch.__version__, "dtype": options.dtype}
        options.json.write_text(json.dumps({**content, "cases": [asdict(case) for case in cases]}, indent=1) + "\n")


def _told(cases: list[Case], worth: float, rate: float) -> str:
    slower = [case.slower(worth, rate) - 1 for case in cases]
    return f"{mean(slower):.1%}, {max(slower):.0%}"


def _parsed(arguments: list[str]) -> argparse.Namespace:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=MIXERS)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 128, 384], metavar="D")
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12], metavar="N")
    parser.add_argument("--tokens", nargs="+", default=["1x8", "1x32", "1x128", "8x16", "8x64", "32x32"], metavar="BxT")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--by-kernel", action="store_true", help="record nothing, on a GPU")
    parser.add_argument("--threads", type=int, help="threads of the CPU; torch's own choice if not given")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there too")
    return parser.parse_args(arguments)


def _cases(options: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    for mixer in options.mixers:
        for width in options.widths:
            for layers in options.layers:
                stack = _stack(mixer, width, layers).to(device, dtype)
                for batch in options.tokens:
                    rows, length = (int(number) for number in batch.split("x"))
                    x = torch.randn(rows, length, width, device=device, dtype=dtype)
                    for kind in KINDS:
                        yield _case(stack, x, mixer, batch, kind, options)


def _stack(mixer: str, width: int, layers: int) -> Stack:
    options = {"num_layers": layers, "num_heads": max(1, width // 64), "ffn_width": 4 * width, "mixer": mixer}
    options |= {"norm": "post", "max_positions": None}
    if mixer != "attention":
        options["kernel_sizes"] = [3, 7, 15, *[31] * layers][:layers]
    model = DepthwiseForTokenClassification(DepthwiseConfig(vocab_size=9, width=width, encoder=options))
    assert model.model.encoder is not None
    return model.eval().model.encoder.stack


def _case(stack: Stack, x: Tensor, mixer: str, batch: str, kind: str, options: argparse.Namespace) -> Case:
    (rows, length, width), layers = x.shape, stack.num_layers
    depths, valid = _depths(kind, rows, length, layers)
    plan = None if kind == "padding" else Plan.of_depths(depths, layers)
    there = None if plan is None else Plan(plan.run.to(x.device))
    steps = torch.zeros(rows, length, dtype=torch.long, device=x.device)
    known = {"valid": None if valid is None else valid.to(x.device), "leaving": None, "steps": steps}
    recorded = RecordedWalks(GraphRecorder) if x.device.type == "cuda" and not options.by_kernel else None
    repeats: int = options.repeats
    runs: dict[str, Callable[[], object]] = {
        "masked": partial(_run, MaskedEncoder(), stack, x, plan=there, **known),
        "compact": partial(_run, CompactEncoder(recorded), stack, x, plan=plan, **known),
    }
    alone = x.device.type == "cpu" and torch.get_num_threads() == 1
    seconds = _cpu_seconds(runs, repeats) if alone else interleaved_seconds(runs, device=x.device, repeats=repeats)
    operations = 2.0 * sum(weight.numel() for weight in stack.block(0).parameters())
    run = operations * float(depths.sum()) / int(depths.max())
    return Case(mixer, width, layers, batch, kind, operations * rows * length, run, **seconds)


def _cpu_seconds(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of the processor, one sample of each run per round."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            begin, calls = time.process_time(), 0
            while time.process_time() - begin < (SHORTEST_SAMPLE if turn else 0) or not calls:
                run()
                calls += 1
            if turn:  # the first round is a warm-up
                samples[name].append((time.process_time() - begin) / calls)
    return {name: median(values) for name, values in samples.items()}


def _depths(kind: str, rows: int, length: int, layers: int) -> tuple[Tensor, Tensor | None]:
    """How deep tokens run, and which are no padding."""
    if kind == "any depth":
        return torch.randint(1, layers + 1, (rows, length)), None
    if kind == "most":
        return torch.where(torch.rand(rows, length) < 0.15, layers // 2, layers), None
    if kind == "rows":
        return torch.randint(1, layers + 1, (rows, 1)).expand(rows, length).contiguous(), None
    lengths = torch.randint(max(1, length // 2), length + 1, (rows, 1))
    valid = torch.arange(length) < lengths
    return layers * valid.long(), valid


@torch.inference_mode()
def _run(executor: MaskedEncoder | CompactEncoder, stack: Stack, x: Tensor, **known: object) -> object:
    return executor(stack, x, **known)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1:])
