"""Tokens that leave a decoder early: what is saved of the time in its blocks, and what each fill costs.

    python benchmarks/engine_depths.py
    python benchmarks/engine_depths.py --run runs/adaptive-translator --batches 1 64

Without a run, a random model of IWSLT size decodes sources of one length, and each token has a depth drawn at random
whose mean is asked for; with one, its own policy decides about its test set. The time in blocks holds all that fills do
and what a policy asks for on the way; the head (all products with the vocabulary, those that policies ask for
included), the encoder and the search are apart. Full depth and every fill take turns.

On a GPU blocks run from recorded work ("deferred"), and beside it kernel by kernel. Their time is that of its own
clock, in pieces that are recorded apart for the purpose; ``alone`` is the time of whole decodings that nobody looks
into. There a policy of confidence is tried as well, with thresholds that give about the same depths, since being asked
is what a host has to wait for.
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
from engine_decoding import MEAN_LENGTH, build, run_batches, sources
from rich.console import Console
from rich.table import Table
from timing import Stopwatch
from torch import Tensor

from depthwise.config.depth import ConfidenceConfig
from depthwise.depth import ConfidenceThreshold, Context, Policy, State, Visit
from depthwise.engine import Engine
from depthwise.engine.decoding import Generated
from depthwise.engine.fills import FILLS, CopyDeferred, CopyEager, Fill, NoFill, Recompute
from depthwise.engine.prepared import Prepared
from depthwise.engine.static_state import StaticState
from depthwise.engine.static_walk import AdaptiveStepper
from depthwise.evaluation.runs import POLICY, load_run
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

MUST, AIM = 0.7, 0.9
"""Shares of N / d that the gain in block time has to reach."""
LONGEST = 200
NUM_FIRST = 2
"""Turns before anything is measured: work is done by hand first, then recorded."""
PARTS = ("blocks", "head", "encoder", "search")
PIECES = {"blocks": "blocks", "ask": "head", "score": "head"}
"""Pieces of recorded work, and the parts that they count for; all others are of the search."""


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
    alone: float
    token_layers: int
    filled: int


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


class Whole(Policy):
    """Everybody runs the whole stack, by a plan."""

    plans = True

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def plan(self, context: Context) -> Tensor:
        return torch.full(context.shape, self.depth, device=context.steps.device)


class Watching(Policy):
    """Notes how sure each exit is, and lets nobody leave."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, list[Tensor]] = {}

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        self.seen.setdefault(visit.index, []).append(visit.log_prob.max(-1).values.exp().flatten())
        return torch.zeros(visit.context.shape, dtype=torch.bool, device=visit.hidden.device), state


def drawn_sample(preset: str, batch: int, mean: float, device: torch.device, dtype: torch.dtype) -> Sample:
    """A random model; all rows make as many tokens as a sentence of IWSLT has."""
    model = build(preset, device, exits={}).to(dtype)
    lengths = torch.full((batch,), MEAN_LENGTH)
    inputs = {"input_ids": sources(model, lengths).to(device), "limits": lengths.tolist()}
    least = {"min_new_tokens": MEAN_LENGTH}
    return Sample(f"{preset}, random depths", model, Drawn(mean, batch).to(device), [{**inputs, **least}], batch)


def confident(sample: Sample, mean: float) -> Sample:
    """The same with thresholds of confidence under which depths have about the same mean: as near as halving comes."""
    watching, model, tried = Watching(), sample.model, dict[float, Policy]()
    _mean_depth(sample, watching)
    seen = [torch.cat(each).float() for each in watching.seen.values()]
    low, high = 0.0, 1.0
    for _ in range(8):
        share = (low + high) / 2
        thresholds = tuple(float(sure.quantile(1 - share)) for sure in seen)
        policy = ConfidenceThreshold(ConfidenceConfig(measure="max_probability", threshold=thresholds))
        depth = _mean_depth(sample, policy)
        tried[abs(depth - mean)] = policy
        low, high = (share, high) if depth > mean else (low, share)
    name = f"{sample.name.split(',')[0]}, confidence"
    return Sample(name, model, tried[min(tried)], sample.batches, sample.batch)


def _mean_depth(sample: Sample, policy: Policy) -> float:
    sample.model.use_policy(policy)
    depths = [Engine(sample.model, graphs=False).generate(**inputs).depths for inputs in sample.batches]
    return float(torch.cat([each[each > 0] for each in depths]).float().mean())


def run_sample(folder: Path, policy_changes: Sequence[str], batch: int, most: int, device: torch.device) -> Sample:
    """The first sentences of the test set of a run, in the order of its file, under its own policy."""
    run = load_run(folder, device=device.type, depth=POLICY, policy_changes=policy_changes)
    assert isinstance(run.model, DepthwiseForSeq2SeqLM), "depths are compared in translation and summarisation"
    policy = run.model.policy
    assert policy is not None
    batches = run_batches(run.task, batch, most, device)
    return Sample(f"{folder.name}, its policy", run.model, policy, batches, batch)


@dataclass(frozen=True)
class Way:
    """One way to decode; without ``fill`` to full depth."""

    fill: str | None
    graphs: bool

    def options(self) -> dict[str, Any]:
        return {} if self.fill is None else {"fill": self.fill}


def ways_of(fills: Sequence[str], device: torch.device) -> dict[str, Way]:
    """Full depth first, then each fill; on a GPU from recorded work where there is such, and kernel by kernel."""
    by_hand = {"full depth": Way(None, False), **{fill: Way(fill, False) for fill in fills}}
    if device.type != "cuda":
        return by_hand
    recorded = {"full depth, recorded": Way(None, True), "deferred, recorded": Way("deferred", True)}
    return {**recorded, **by_hand}


def measure(sample: Sample, fills: Sequence[str], device: torch.device, repeats: int) -> list[Measured]:
    """Full depth first, then each fill. The whole stack runs by a plan for it, as pieces that are recorded apart."""
    ways = ways_of(fills, device)
    engines = {graphs: Engine(sample.model, graphs=graphs) for graphs in {way.graphs for way in ways.values()}}
    whole = Whole(sample.model.model.decoder.stack.num_layers)  # type: ignore[union-attr]
    parts: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    alone: dict[str, list[float]] = {way: [] for way in ways}
    last: dict[str, list[Generated]] = {}

    def decode(way: Way, policy: Policy | None) -> list[Generated]:
        sample.model.use_policy(policy)
        return [engines[way.graphs].generate(**inputs, **way.options()) for inputs in sample.batches]

    for turn in range(-NUM_FIRST, repeats):
        for name, way in ways.items():
            found = decode(way, None if way.fill is None else sample.policy)
            if turn >= 0:
                alone[name].append(sum(each.seconds for each in found))
    with _timed_parts(device) as stopwatch:
        for turn in range(-NUM_FIRST, repeats):
            for name, way in ways.items():
                stopwatch.taken()
                found = decode(way, whole if way.fill is None and way.graphs else sample.policy if way.fill else None)
                if turn >= 0:
                    taken = {**stopwatch.taken(), "encoder": sum(each.encoder_seconds for each in found)}
                    taken["search"] = sum(each.seconds for each in found) - sum(taken.values())
                    parts[name].append({**dict.fromkeys(PARTS, 0.0), **taken})
                last[name] = found
    return [_measured(sample, way, parts[way], alone[way], last[way]) for way in ways]


def _measured(
    sample: Sample, way: str, parts: list[dict[str, float]], alone: list[float], found: list[Generated]
) -> Measured:
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
        alone=1000 * median(alone) / num_tokens,
        **per_token,
    )


@contextmanager
def _timed_parts(device: torch.device) -> Iterator[Stopwatch]:
    """While this lasts, blocks and heads of decoders are timed."""
    stopwatch, head_at = Stopwatch(device), Prepared.head_at

    def timed_head(prepared: Prepared, depth: int) -> Callable[[Tensor], Tensor]:
        head = head_at(prepared, depth)
        is_recording = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return head if is_recording else stopwatch.timed("head", head)

    def timed_work(state: StaticState, key: Any, work: Callable[[], None]) -> None:
        name = PIECES.get(key if isinstance(key, str) else key[0])
        (do if name is None else stopwatch.timed(name, do))(state, key, work)

    do = StaticState.do
    with ExitStack() as patches:
        patches.enter_context(patch.object(Prepared, "head_at", timed_head))
        patches.enter_context(patch.object(StaticState, "do", timed_work))
        patches.enter_context(patch.object(AdaptiveStepper, "asks_apart", True))
        kinds: list[type[Fill]] = [NoFill, CopyEager, CopyDeferred, Recompute]
        for kind in kinds:
            for name in ("run", "finish"):
                patches.enter_context(patch.object(kind, name, stopwatch.timed("blocks", getattr(kind, name))))
        yield stopwatch


def gain(measured: Sequence[Measured], way: str) -> tuple[float, float]:
    """How many times as fast the blocks are as at full depth, and as a share of N / d."""
    ways = {each.way: each for each in measured}
    full, chosen = ways["full depth, recorded" if way.endswith("recorded") else "full depth"], ways[way]
    found = full.blocks / chosen.blocks
    return found, found * chosen.mean_depth / chosen.num_layers


def table_of(groups: Sequence[Sequence[Measured]]) -> Table:
    table = Table(title="Decoding with tokens that leave early; milliseconds per token", title_justify="left")
    for name in ("model", "way"):
        table.add_column(name)
    for name in ("batch", "d of N", "blocks", "head", "encoder", "search", "alone", "filled", "gain", "of N / d"):
        table.add_column(name, justify="right")
    for group in groups:
        for each in group:
            times = [f"{getattr(each, part):.3f}" for part in (*PARTS, "alone")]
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
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(arguments)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", type=Path, help="a run folder, for depths one with a policy; random models and depths if not given"
    )
    parser.add_argument(
        "--policy", nargs="+", default=[], metavar="policy.OPTION=VALUE", help="another policy of the run"
    )
    parser.add_argument("--sentences", type=int, default=64, help="how many sentences of the run's test set")
    parser.add_argument("--mean-depth", type=float, default=3.0, help="of random depths")


def groups_of(
    options: argparse.Namespace,
    batches: Sequence[int],
    device: torch.device,
    fills: Sequence[str] = tuple(FILLS),
    *,
    asks: bool = True,
) -> Iterator[list[Measured]]:
    """Full depth and each fill, by model and batch; on a GPU also with a policy that asks, if that is wanted."""
    for batch in batches:
        for sample in _samples(options, batch, device, asks=asks and device.type == "cuda"):
            yield measure(sample, fills, device, options.repeats)


def _samples(options: argparse.Namespace, batch: int, device: torch.device, *, asks: bool) -> Iterator[Sample]:
    if options.run is not None:
        yield run_sample(options.run, options.policy, batch, options.sentences, device)
        return
    for preset in options.presets:
        sample = drawn_sample(preset, batch, options.mean_depth, device, getattr(torch, options.dtype))
        yield sample
        if asks:
            yield confident(sample, options.mean_depth)


def main(arguments: list[str]) -> None:
    options = parse_options(arguments)
    Console(width=140).print(table_of(list(groups_of(options, options.batches, torch.device(options.device)))))


if __name__ == "__main__":
    main(sys.argv[1:])
