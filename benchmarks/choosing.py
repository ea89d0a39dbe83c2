"""Where the compact executor of encoders loses to the masked one, and which ``WORTH`` chooses best among both.

    python benchmarks/choosing.py --threads 1
    python benchmarks/choosing.py --device cuda --dtype bfloat16 --widths 256 768 --tokens 32x64 32x128 128x128

Stacks with random weights run batches in four ways: tokens of any depth, most tokens to the end, one depth for each
row, and padding alone. *Saved* is by how many operations a block of the batch is smaller for the compact executor. For
several values of ``WORTH`` the last table says how much slower a choice by it is than the faster of both, over all
cases. Both executors take turns, so that a busy machine slows them alike.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.table import Table
from timing import interleaved_seconds
from torch import Tensor

from depthwise.depth import Plan
from depthwise.engine.choosing import WORTH, MaskedEncoder, worth
from depthwise.engine.encoder import CompactEncoder
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.stack import Stack
from depthwise.models.token_classification import DepthwiseForTokenClassification

MIXERS = ("attention", "lightconv", "dynamicconv")
KINDS = ("any depth", "most", "rows", "padding")
FACTORS = (-float("inf"), 0.0, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, float("inf"))
"""Of the present constant, the values that are tried."""


@dataclass(frozen=True)
class Case:
    """Seconds of one batch by both executors."""

    mixer: str
    width: int
    layers: int
    batch: str
    kind: str
    saved: float
    masked: float
    compact: float

    def slower(self, constant: float) -> float:
        """How many times as long as the faster one the chosen one takes."""
        return (self.compact if self.saved > constant else self.masked) / min(self.compact, self.masked)


def main(arguments: list[str]) -> None:
    options = _parsed(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    console, device, dtype = Console(width=120), torch.device(options.device), getattr(torch, options.dtype)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"{where}, torch {torch.__version__}, {options.dtype}")
    cases = list(_cases(options, device, dtype))
    table = Table("mixer", "width", "layers", "batch", "kind", "saved, Mops", "masked, ms", "compact, ms", "ratio")
    for case in cases:
        numbers = f"{case.saved / 1e6:.2f}", f"{1e3 * case.masked:.2f}", f"{1e3 * case.compact:.2f}"
        names = case.mixer, str(case.width), str(case.layers), case.batch, case.kind
        table.add_row(*names, *numbers, f"{case.compact / case.masked:.2f}")
    console.print(table)
    present, chosen = worth(device, dtype), Table("WORTH, Mops", "slower on average", "at worst")
    for factor in FACTORS:
        slower = [case.slower(factor * present) for case in cases]
        note = {-float("inf"): " (compact)", 1.0: " (present)", float("inf"): " (masked)"}.get(factor, "")
        chosen.add_row(f"{factor * present / 1e6:g}{note}", f"{mean(slower) - 1:.1%}", f"{max(slower) - 1:.0%}")
    console.print(chosen)
    if options.json:
        content = {"device": where, "torch": torch.__version__, "dtype": options.dtype, "worth": WORTH}
        options.json.write_text(json.dumps({**content, "cases": [asdict(case) for case in cases]}, indent=1) + "\n")


def _parsed(arguments: list[str]) -> argparse.Namespace:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=MIXERS)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 128, 384], metavar="D")
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12], metavar="N")
    parser.add_argument("--tokens", nargs="+", default=["1x8", "1x32", "1x128", "8x16", "8x64", "32x32"], metavar="BxT")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
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
                        yield _case(stack, x, mixer, batch, kind, options.repeats)


def _stack(mixer: str, width: int, layers: int) -> Stack:
    options = {"num_layers": layers, "num_heads": max(1, width // 64), "ffn_width": 4 * width, "mixer": mixer}
    options |= {"norm": "post", "max_positions": None}
    if mixer != "attention":
        options["kernel_sizes"] = [3, 7, 15, *[31] * layers][:layers]
    model = DepthwiseForTokenClassification(DepthwiseConfig(vocab_size=9, width=width, encoder=options))
    assert model.model.encoder is not None
    return model.eval().model.encoder.stack


def _case(stack: Stack, x: Tensor, mixer: str, batch: str, kind: str, repeats: int) -> Case:
    (rows, length, width), layers = x.shape, stack.num_layers
    depths, valid = _depths(kind, rows, length, layers)
    plan = None if kind == "padding" else Plan.of_depths(depths, layers)
    there = None if plan is None else Plan(plan.run.to(x.device))
    steps = torch.zeros(rows, length, dtype=torch.long, device=x.device)
    known = {"valid": None if valid is None else valid.to(x.device), "leaving": None, "steps": steps}
    runs: dict[str, Callable[[], object]] = {
        "masked": partial(_run, MaskedEncoder(), stack, x, plan=there, **known),
        "compact": partial(_run, CompactEncoder(), stack, x, plan=plan, **known),
    }
    seconds = interleaved_seconds(runs, device=x.device, repeats=repeats)
    blocks = int(depths.max())
    operations = 2 * sum(weight.numel() for weight in stack.block(0).parameters())
    saved = operations * (rows * length - float(depths.sum()) / blocks)
    return Case(mixer, width, layers, batch, kind, saved, **seconds)


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
