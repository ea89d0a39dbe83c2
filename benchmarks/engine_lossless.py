"""Lossless decoding of the test set of a run: how much faster than full depth it is, and how much of a draft is kept.

    python benchmarks/engine_lossless.py --run runs/translator --depths 1 2 --drafted 2 4 --batches 1 16
    python benchmarks/engine_lossless.py --run runs/translator --depths 1 2 --drafted 2 4 --batches 1 16 --device cuda

Full depth and all drafts take turns, so that ratios mean more than times. On a GPU both are decoded from recorded work
(CUDA graphs), and full depth is beside that decoded kernel by kernel; with ``--by-kernel``, so are drafts. Ratios are
those to full depth as the engine decodes it there: of all the time, and of what encoders do not take. Batches with
other tokens are counted: there may be none in float64 (``--double``).
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from engine_decoding import TURNS_BEFORE, run_batches
from rich.console import Console
from rich.table import Table

from depthwise.engine import Engine
from depthwise.engine.decoding import Generated
from depthwise.evaluation.runs import load_run

FULL_DEPTH = "full depth"


@dataclass(frozen=True)
class Way:
    """An engine with what it is told beside the batch."""

    engine: Engine
    drafting: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """Median seconds for all batches, the same without encoders, and what came out."""

    seconds: float
    decoder_seconds: float
    found: list[Generated]


def ways_of(model: Any, options: argparse.Namespace) -> dict[str, Way]:
    """Full depth first."""
    drafts = {
        f"{n} at {depth}": {"lossless": depth, "num_drafted": n} for depth in options.depths for n in options.drafted
    }
    is_on_gpu = model.device.type == "cuda"
    engine = Engine(model, graphs=is_on_gpu)
    ways = {FULL_DEPTH: Way(engine), **{f"drafts of {name}": Way(engine, draft) for name, draft in drafts.items()}}
    if is_on_gpu:
        by_kernel = Engine(model, graphs=False)
        others = {FULL_DEPTH: {}, **(drafts if options.by_kernel else {})}
        ways |= {f"{name}, by kernel": Way(by_kernel, draft) for name, draft in others.items()}
    return ways


def measure(batches: Sequence[dict[str, Any]], ways: dict[str, Way], repeats: int) -> dict[str, Measured]:
    """What each way takes to decode all batches, in turns."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    last: dict[str, list[Generated]] = {}
    for turn in range(TURNS_BEFORE + repeats):
        for name, way in ways.items():
            found = last[name] = [way.engine.generate(**batch, **way.drafting) for batch in batches]
            if turn >= TURNS_BEFORE:
                whole, encoder = sum(each.seconds for each in found), sum(each.encoder_seconds for each in found)
                seconds[name].append((whole, whole - encoder))
    return {name: Measured(*map(median, zip(*seconds[name], strict=True)), last[name]) for name in ways}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--depths", type=int, nargs="+", default=[1])
    parser.add_argument("--drafted", type=int, nargs="+", default=[4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--by-kernel", action="store_true", help="on a GPU, drafts kernel by kernel as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    run = load_run(options.run, device=device.type)
    run.model.use_policy(None)
    ways = ways_of(run.model.double() if options.double else run.model, options)
    titles = ("batch", "way", "tokens/s", "times as fast", "without encoder", "acceptance", "tokens a round")
    table = Table(*titles, "batches that differ")
    for size in options.batches:
        measured = measure(run_batches(run.task, size, options.sentences, device), ways, options.repeats)
        whole = measured[FULL_DEPTH]
        num_tokens = sum(int((found.depths > 0).sum()) for found in whole.found)
        for name, each in measured.items():
            drafts = [found.drafts for found in each.found if found.drafts is not None]
            kept, drafted = sum(draft.num_accepted for draft in drafts), sum(draft.num_drafted for draft in drafts)
            rounds = sum(draft.num_verifications for draft in drafts)
            differ = sum(not torch.equal(a.tokens, b.tokens) for a, b in zip(each.found, whole.found, strict=True))
            table.add_row(
                str(size),
                name,
                f"{num_tokens / each.seconds:,.0f}",
                f"{whole.seconds / each.seconds:.2f}",
                f"{whole.decoder_seconds / each.decoder_seconds:.2f}",
                f"{kept / drafted:.2f}" if drafted else "",
                f"{num_tokens / rounds:.2f}" if rounds else "",
                str(differ),
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
