"""What the engine makes of depth that is saved: its time beside that of the masked executor and of the whole stack.

    python benchmarks/engine.py
    python benchmarks/engine.py --device cuda --width 768 --batches 32 128 512 --dtype bfloat16 --json engine.json

An encoder of twelve layers with random weights; every token has a depth drawn at random. *Realised efficiency* is how
many times as fast adaptive execution is as the whole stack, divided by how many times fewer operations it takes, fill
included (``models.cost``): 1 means that every operation saved was time saved. The whole stack is timed by whichever of
engine and model is faster. All variants of a case take turns, so that a busy machine slows them alike.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from timing import growth, interleaved_seconds, peak_bytes
from torch import Tensor

from depthwise.depth import Plan
from depthwise.engine import Engine
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.cost import StackCost
from depthwise.models.token_classification import DepthwiseForTokenClassification

LAYERS = 12
LENGTH = 128
MIXERS = ("attention", "lightconv", "dynamicconv")
KERNELS = [3, 7, 15, *[31] * (LAYERS - 3)]
LONGEST = {"cpu": [100, 1_000, 10_000, 100_000], "cuda": [1_000, 10_000, 100_000]}
SHARE_OF_GEOMETRIC = 0.3


@dataclass(frozen=True)
class Case:
    """Milliseconds of one batch: the whole stack, then adaptive execution, by the masked executor and by the engine."""

    mixer: str
    depths: str
    batch: int
    mean_depth: float
    flops_saved: float
    model_full: float
    engine_full: float
    masked: float
    engine: float

    @property
    def speedup(self) -> float:
        return min(self.model_full, self.engine_full) / self.engine

    @property
    def efficiency(self) -> float:
        return self.speedup / self.flops_saved


@dataclass(frozen=True)
class Ragged:
    """Milliseconds of a batch of rows of different lengths through the whole stack."""

    mixer: str
    batch: int
    padding: float
    model: float
    engine: float


@dataclass(frozen=True)
class Growing:
    """Exponents of time and memory as one source grows."""

    mixer: str
    lengths: list[int]
    seconds: list[float]
    time: float
    memory: float


def main(arguments: list[str]) -> None:
    options = _parsed(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    console = Console(width=140)
    device = torch.device(options.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    console.print(f"{where}, torch {torch.__version__}, width {options.width}, {LAYERS} layers, {options.dtype}")
    cases = list(_cases(options, device))
    console.print(_table(f"Depths of tokens, T = {LENGTH}; milliseconds", [_row(case) for case in cases]))
    ragged = list(_ragged(options, device))
    console.print(
        _table("Rows of 1 to 128 tokens, the whole stack; milliseconds", [_ragged_row(row) for row in ragged])
    )
    growing = list(_growing(options, device)) if options.growth else []
    if growing:
        console.print(_table("One long source through the engine", [_growing_row(row) for row in growing]))
    if options.json:
        content = {"device": where, "torch": torch.__version__, "width": options.width, "dtype": options.dtype}
        found = {"cases": [{**asdict(case), "efficiency": case.efficiency} for case in cases]}
        others = {"ragged": [asdict(row) for row in ragged], "growth": [asdict(row) for row in growing]}
        options.json.write_text(json.dumps({**content, **found, **others}, indent=1) + "\n")


def _parsed(arguments: list[str]) -> argparse.Namespace:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64], metavar="B")
    parser.add_argument("--mixers", nargs="+", choices=MIXERS, default=MIXERS)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, help="threads of the CPU; torch's own choice if not given")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of which the median is taken")
    parser.add_argument("--growth", action="store_true", help="also time sources of up to 100,000 tokens")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there too")
    return parser.parse_args(arguments)


def _model(mixer: str, options: argparse.Namespace, device: torch.device) -> DepthwiseForTokenClassification:
    stack = {"num_layers": LAYERS, "num_heads": options.width // 64, "ffn_width": 4 * options.width, "mixer": mixer}
    stack |= {"norm": "post", "max_positions": None}
    if mixer != "attention":
        stack["kernel_sizes"] = KERNELS
    config = DepthwiseConfig(vocab_size=1000, width=options.width, encoder=stack, num_labels=9)
    return DepthwiseForTokenClassification(config).to(device, getattr(torch, options.dtype)).eval()


def _depths(kind: str, shape: tuple[int, int]) -> Tensor:
    if kind == "uniform 1..8":
        return torch.randint(1, 9, shape)
    chances = (1 - SHARE_OF_GEOMETRIC) ** torch.arange(LAYERS)
    return torch.multinomial(chances, shape[0] * shape[1], replacement=True).view(shape) + 1


def _cases(options: argparse.Namespace, device: torch.device) -> Iterator[Case]:
    for mixer in options.mixers:
        model = _model(mixer, options, device)
        engine, stack = Engine(model), model.config.options.encoder
        assert stack is not None
        cost = StackCost(stack, options.width)
        for kind in ("uniform 1..8", "geometric 1..12"):
            for batch in options.batches:
                ids = torch.randint(4, 1000, (batch, LENGTH)).to(device)
                depths = _depths(kind, (batch, LENGTH))
                plan = Plan.of_depths(depths, LAYERS)
                there = Plan(plan.run.to(device))
                flops = sum(cost.plan(row).flops for row in depths.tolist())
                runs = {
                    "model_full": partial(_predicted, model, ids),
                    "engine_full": partial(engine, ids),
                    "masked": partial(_predicted, model, ids, plan=there),
                    "engine": partial(engine, ids, plan=plan),
                }
                seconds = interleaved_seconds(runs, device=device, repeats=options.repeats)
                saved = cost.forward(LENGTH).flops * batch / flops
                times = {name: 1000 * value for name, value in seconds.items()}
                yield Case(mixer, kind, batch, float(depths.double().mean()), saved, **times)


@torch.inference_mode()
def _predicted(model: DepthwiseForTokenClassification, ids: Tensor, **inputs: object) -> object:
    return model(ids, **inputs)


def _ragged(options: argparse.Namespace, device: torch.device) -> Iterator[Ragged]:
    for mixer in options.mixers:
        model = _model(mixer, options, device)
        engine = Engine(model)
        for batch in options.batches:
            lengths = torch.randint(1, LENGTH + 1, (batch,))
            lengths[0] = LENGTH
            mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long().to(device)
            ids = torch.randint(4, 1000, (batch, LENGTH)).to(device)
            runs = {
                "model": partial(_predicted, model, ids, attention_mask=mask),
                "engine": partial(engine, ids, attention_mask=mask),
            }
            seconds = interleaved_seconds(runs, device=device, repeats=options.repeats)
            padding = 1 - float(lengths.sum()) / (batch * LENGTH)
            yield Ragged(mixer, batch, padding, 1000 * seconds["model"], 1000 * seconds["engine"])


def _growing(options: argparse.Namespace, device: torch.device) -> Iterator[Growing]:
    lengths = LONGEST[device.type]
    for mixer in options.mixers:
        if mixer == "attention":
            continue
        engine = Engine(_model(mixer, options, device))
        runs = {length: partial(engine, torch.randint(4, 1000, (1, length)).to(device)) for length in lengths}
        seconds = interleaved_seconds(runs, device=device, repeats=3)
        memory = [float(peak_bytes(run, device=device)) for run in runs.values()]
        times = list(seconds.values())
        yield Growing(mixer, lengths, times, growth(lengths, times), growth(lengths, memory))


def _row(case: Case) -> dict[str, str]:
    return {
        "mixer": case.mixer,
        "depths": case.depths,
        "batch": str(case.batch),
        "mean depth": f"{case.mean_depth:.2f}",
        "model, whole": f"{case.model_full:.2f}",
        "engine, whole": f"{case.engine_full:.2f}",
        "masked": f"{case.masked:.2f}",
        "engine": f"{case.engine:.2f}",
        "operations": f"1 / {case.flops_saved:.2f}",
        "times as fast": f"{case.speedup:.2f}",
        "efficiency": f"{case.efficiency:.2f}",
    }


def _ragged_row(row: Ragged) -> dict[str, str]:
    return {
        "mixer": row.mixer,
        "batch": str(row.batch),
        "padding": f"{row.padding:.0%}",
        "model": f"{row.model:.2f}",
        "engine": f"{row.engine:.2f}",
        "times as fast": f"{row.model / row.engine:.2f}",
    }


def _growing_row(row: Growing) -> dict[str, str]:
    times = {f"T = {length:,}": f"{value:.3f} s" for length, value in zip(row.lengths, row.seconds, strict=True)}
    return {"mixer": row.mixer, **times, "time ~ T^": f"{row.time:.2f}", "memory ~ T^": f"{row.memory:.2f}"}


def _table(title: str, rows: list[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("mixer", "depths") else "right")
    for row in rows:
        table.add_row(*row.values())
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
