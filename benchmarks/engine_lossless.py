"""Lossless decoding of the test set of a run: how much faster than full depth it is, and how much of a draft is kept.

    python benchmarks/engine_lossless.py --run runs/translator --depths 1 2 --drafted 2 4 --batches 1 16

Full depth and all drafts take turns, so that ratios mean more than times. Batches with other tokens are counted: there
may be none in float64 (``--double``).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from depthwise.engine import Engine
from depthwise.engine.decoding import Generated
from depthwise.evaluation.evaluating import read_examples
from depthwise.evaluation.runs import load_run


def batches_of(task: Any, size: int, most: int, device: torch.device) -> list[dict[str, Any]]:
    """The first sentences of the test set, in the order of its file."""
    rows = task.rows([task.inputs_of(example) for example in read_examples(task, "test")[:most]])
    batches = []
    for start in range(0, len(rows), size):
        collated = task.collate(rows[start : start + size])
        inputs = {name: collated[name].to(device) for name in ("input_ids", "attention_mask")}
        batches.append({**inputs, "limits": task.target_limits(collated["attention_mask"].sum(1)).tolist()})
    return batches


def measure(
    engine: Engine, batches: Sequence[dict[str, Any]], ways: dict[str, dict[str, int]], repeats: int
) -> dict[str, tuple[float, list[Generated]]]:
    """Median seconds of each way to decode all batches, and what came out. The first turn is not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    last: dict[str, list[Generated]] = {}
    for turn in range(repeats + 1):
        for way, options in ways.items():
            last[way] = [engine.generate(**batch, **options) for batch in batches]
            if turn:
                seconds[way].append(sum(found.seconds for found in last[way]))
    return {way: (median(seconds[way]), last[way]) for way in ways}


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
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    run = load_run(options.run, device=device.type)
    run.model.use_policy(None)
    engine = Engine(run.model.double() if options.double else run.model)
    ways: dict[str, dict[str, int]] = {"full depth": {}}
    for depth in options.depths:
        ways |= {f"drafts of {n} at {depth}": {"lossless": depth, "num_drafted": n} for n in options.drafted}
    table = Table("batch", "way", "tokens/s", "times as fast", "acceptance", "tokens a round", "batches that differ")
    for size in options.batches:
        measured = measure(engine, batches_of(run.task, size, options.sentences, device), ways, options.repeats)
        whole_seconds, whole = measured["full depth"]
        num_tokens = sum(int((found.depths > 0).sum()) for found in whole)
        for way, (seconds, parts) in measured.items():
            drafts = [found.drafts for found in parts if found.drafts is not None]
            kept, drafted = sum(each.num_accepted for each in drafts), sum(each.num_drafted for each in drafts)
            rounds = sum(each.num_verifications for each in drafts)
            differ = sum(not torch.equal(a.tokens, b.tokens) for a, b in zip(parts, whole, strict=True))
            table.add_row(
                str(size),
                way,
                f"{num_tokens / seconds:,.0f}",
                f"{whole_seconds / seconds:.2f}",
                f"{kept / drafted:.2f}" if drafted else "",
                f"{num_tokens / rounds:.2f}" if rounds else "",
                str(differ),
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
