"""Tokens that leave a decoder early: what is saved of the time in its blocks, and what each fill costs.

    python benchmarks/engine_depths.py
    python benchmarks/engine_depths.py --run runs/adaptive-translator --batches 1 64

Without a run, a random model of IWSLT size decodes sources of one length, and each token has a depth drawn at random
whose mean is asked for; with one, its own policy decides about its test set. The time in blocks holds all that fills do
and what a policy asks for on the way; the head (all products with the vocabulary, those that policies ask for
included), the encoder and the search are apart. Full depth and every fill take turns.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from engine_decoding import MEAN_LENGTH, build, sources
from rich.console import Console
from rich.table import Table
from timing import Stopwatch
from torch import Tensor

from depthwise.depth import Context, Policy
from depthwise.engine import Engine
from depthwise.engine.decoding import Generated
from depthwise.engine.fills import FILLS, CopyDeferred, CopyEager, Fill, NoFill, Recompute
from depthwise.engine.prepared import Prepared
from depthwise.evaluation.evaluating import read_examples
from depthwise.evaluation.runs import POLICY, load_run
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

MUST, AIM = 0.7, 0.9
"""Shares of N / d that the gain in block time has to reach."""
LONGEST = 200


@dataclass(frozen=True)
class Measured:
    """Milliseconds per token that was made, by part, of one way to decode."""

    name: str
    batch: int
    way: str
    num_layers: int
    mean_depth: float
    blocks: float
    head: float
    encoder: float
    search: float
    token_layers: int
    filled: int

    @property
    def total(self) -> float:
        return self.blocks + self.head + self.encoder + self.search


@dataclass(frozen=True)
class Sample:
    """What is decoded: a model with the policy to try, and batches of sources."""

    name: str
    model: DepthwiseForSeq2SeqLM
    policy: Policy
    batches: Sequence[dict[str, Any]]
    batch: int


class Drawn(Policy):
    """Depths at random, uniform on 1..2d-1: the same for the same row and step."""

    plans = True

    def __init__(self, mean: float, num_rows: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        table = torch.randint(1, round(2 * mean), (num_rows, LONGEST), generator=generator)
        self.register_buffer("table", table)

    def plan(self, context: Context) -> Tensor:
        rows: Tensor = self.table[: context.shape[0]]
        return rows.gather(1, context.steps)


def drawn_sample(preset: str, batch: int, mean: float, device: torch.device) -> Sample:
    """A random model; all rows make as many tokens as a sentence of IWSLT has."""
    model = build(preset, device, exits={})
    lengths = torch.full((batch,), MEAN_LENGTH)
    inputs = {"input_ids": sources(model, lengths).to(device), "limits": lengths.tolist()}
    least = {"min_new_tokens": MEAN_LENGTH}
    return Sample(f"{preset}, random depths", model, Drawn(mean, batch).to(device), [{**inputs, **least}], batch)


def run_sample(folder: Path, policy_changes: Sequence[str], batch: int, most: int, device: torch.device) -> Sample:
    """The first sentences of the test set of a run, in the order of its file, under its own policy."""
    run = load_run(folder, device=device.type, depth=POLICY, policy_changes=policy_changes)
    assert isinstance(run.model, DepthwiseForSeq2SeqLM), "depths are compared in translation and summarisation"
    task, policy = run.task, run.model.policy
    assert policy is not None
    rows = task.rows([task.inputs_of(example) for example in read_examples(task, "test")[:most]])
    batches = []
    for start in range(0, len(rows), batch):
        collated = task.collate(rows[start : start + batch])
        limits = task.target_limits(collated["attention_mask"].sum(1))  # type: ignore[attr-defined]
        inputs = {name: collated[name].to(device) for name in ("input_ids", "attention_mask")}
        batches.append({**inputs, "limits": limits.tolist()})
    return Sample(f"{folder.name}, its policy", run.model, policy, batches, batch)


def measure(sample: Sample, fills: Sequence[str], device: torch.device, repeats: int) -> list[Measured]:
    """Full depth first, then each fill."""
    engine, ways = Engine(sample.model), {"full depth": None, **dict.fromkeys(fills, sample.policy)}
    parts: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    last: dict[str, list[Generated]] = {}
    with _timed_parts(device) as stopwatch:
        for turn in range(repeats + 1):
            for way, policy in ways.items():
                sample.model.use_policy(policy)
                fill = {} if policy is None else {"fill": way}
                stopwatch.taken()
                found = [engine.generate(**inputs, **fill) for inputs in sample.batches]
                if turn:  # the first is for warming up
                    taken = {**stopwatch.taken(), "encoder": sum(each.encoder_seconds for each in found)}
                    taken["search"] = sum(each.seconds for each in found) - sum(taken.values())
                    parts[way].append(taken)
                last[way] = found
    return [_measured(sample, way, parts[way], last[way]) for way in ways]


def _measured(sample: Sample, way: str, parts: list[dict[str, float]], found: list[Generated]) -> Measured:
    layers = sum(each.num_token_layers for each in found)
    num_tokens = sum(int((each.depths > 0).sum()) for each in found)
    per_token = {name: 1000 * median(part[name] for part in parts) / num_tokens for name in parts[0]}
    return Measured(
        name=sample.name,
        batch=sample.batch,
        way=way,
        num_layers=sample.model.model.decoder.stack.num_layers,  # type: ignore[union-attr]
        mean_depth=layers / num_tokens,
        token_layers=layers,
        filled=sum(each.num_filled for each in found),
        **per_token,
    )


@contextmanager
def _timed_parts(device: torch.device) -> Iterator[Stopwatch]:
    """While this lasts, blocks and heads of decoders are timed."""
    stopwatch, head_at = Stopwatch(device), Prepared.head_at

    def timed_head(prepared: Prepared, depth: int) -> Callable[[Tensor], Tensor]:
        return stopwatch.timed("head", head_at(prepared, depth))

    with ExitStack() as patches:
        patches.enter_context(patch.object(Prepared, "head_at", timed_head))
        kinds: list[type[Fill]] = [NoFill, CopyEager, CopyDeferred, Recompute]
        for kind in kinds:
            for name in ("run", "finish"):
                patches.enter_context(patch.object(kind, name, stopwatch.timed("blocks", getattr(kind, name))))
        yield stopwatch


def gain(measured: Sequence[Measured], way: str) -> tuple[float, float]:
    """How many times as fast the blocks are as at full depth, and as a share of N / d."""
    full, (chosen,) = measured[0], [each for each in measured if each.way == way]
    found = full.blocks / chosen.blocks
    return found, found * chosen.mean_depth / chosen.num_layers


def table_of(groups: Sequence[Sequence[Measured]]) -> Table:
    table = Table(title="Decoding with tokens that leave early; milliseconds per token", title_justify="left")
    for name in ("model", "way"):
        table.add_column(name)
    for name in ("batch", "d of N", "blocks", "head", "encoder", "search", "filled", "gain", "of N / d"):
        table.add_column(name, justify="right")
    for group in groups:
        for each in group:
            times = [f"{getattr(each, part):.3f}" for part in ("blocks", "head", "encoder", "search")]
            depth = f"{each.mean_depth:.2f} of {each.num_layers}"
            gains = [f"{value:.2f}" for value in gain(group, each.way)]
            table.add_row(each.name, each.way, str(each.batch), depth, *times, f"{each.filled:,}", *gains)
    return table


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_options(parser)
    parser.add_argument("--presets", nargs="+", default=["iwslt-transformer", "iwslt-dynamicconv"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(arguments)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, help="a run folder with a policy; random depths if not given")
    parser.add_argument(
        "--policy", nargs="+", default=[], metavar="policy.OPTION=VALUE", help="another policy of the run"
    )
    parser.add_argument("--sentences", type=int, default=64, help="how many sentences of the run's test set")
    parser.add_argument("--mean-depth", type=float, default=3.0, help="of random depths")


def groups_of(
    options: argparse.Namespace, batches: Sequence[int], device: torch.device, fills: Sequence[str] = tuple(FILLS)
) -> Iterator[list[Measured]]:
    """Full depth and each fill, by model and batch."""
    for batch in batches:
        if options.run is not None:
            sample = run_sample(options.run, options.policy, batch, options.sentences, device)
            yield measure(sample, fills, device, options.repeats)
            continue
        for preset in options.presets:
            sample = drawn_sample(preset, batch, options.mean_depth, device)
            yield measure(sample, fills, device, options.repeats)


def main(arguments: list[str]) -> None:
    options = parse_options(arguments)
    Console(width=140).print(table_of(list(groups_of(options, options.batches, torch.device(options.device)))))


if __name__ == "__main__":
    main(sys.argv[1:])
