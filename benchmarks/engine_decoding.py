"""Tokens per second of fast decoding beside Transformers' generate, with random models of IWSLT size or a trained one.

    python benchmarks/engine_decoding.py
    python benchmarks/engine_decoding.py --presets iwslt-dynamicconv --batches 1 32 --beams 1 4 --lengths mixed
    python benchmarks/engine_decoding.py --run runs/translator --batches 1 32 --sentences 64

On a GPU the engine is measured twice: with steps that Python runs kernel by kernel, and with recorded ones. All run
the whole stack in the same precision on the same sources, in turns. With lengths ``fixed`` every row makes the same
number of tokens, so that nothing is gained by rows that end; with ``mixed`` each ends at a length of its own, as
translations of a test set in file order do. With a run, its own model translates the first sentences of its test set,
at least one batch of them, and rows end where it says. Encoding the source is part of the time.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from timing import interleaved_seconds, seconds_of
from torch import Tensor
from transformers import LogitsProcessorList

from depthwise.config import as_dict
from depthwise.config.presets import PRESETS
from depthwise.engine import Engine
from depthwise.evaluation.evaluating import read_examples
from depthwise.evaluation.runs import load_run
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

MEAN_LENGTH, SPREAD = 24, 0.6
"""Sources of IWSLT's test set have about so many pieces; lengths are drawn from a log-normal of this spread."""
TURNS_BEFORE = 2
"""Turns of a run that are not counted: work is done by hand when it first comes, and recorded when it comes again."""


@dataclass(frozen=True)
class Case:
    preset: str
    batch: int
    beams: int
    lengths: str


@dataclass(frozen=True)
class Measurement:
    case: Case
    num_tokens: int
    generate_seconds: float
    engine_seconds: float
    recorded_seconds: float | None
    same_rows: int
    num_rows: int

    @property
    def speedup(self) -> float:
        """Of what the engine does by itself: on a GPU, from recorded steps."""
        return self.generate_seconds / (self.recorded_seconds or self.engine_seconds)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--presets", nargs="+", default=["iwslt-transformer", "iwslt-dynamicconv"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 128])
    parser.add_argument("--beams", nargs="+", type=int, default=[1])
    parser.add_argument("--lengths", nargs="+", choices=["fixed", "mixed"], default=["fixed", "mixed"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", type=Path, help="a run folder; random models if not given")
    parser.add_argument("--sentences", type=int, default=64, help="how many sentences of the run's test set")
    return parser.parse_args(arguments)


def build(preset: str, device: torch.device, **options: Any) -> DepthwiseForSeq2SeqLM:
    """A random model of this size."""
    torch.manual_seed(0)
    return DepthwiseForSeq2SeqLM(DepthwiseConfig(**{**as_dict(PRESETS[preset]), **options})).to(device).eval()


def sources(model: DepthwiseForSeq2SeqLM, lengths: Tensor) -> Tensor:
    """Random ids, each row as long as it has to be and padded on the right."""
    vocabulary, padding = model.config.source_vocab_size or model.config.vocab_size, model.config.pad_token_id
    ids = torch.randint(4, vocabulary, (len(lengths), int(lengths.max())))
    return ids.masked_fill(torch.arange(ids.shape[1]) >= lengths.unsqueeze(1), padding)


def drawn_lengths(case: Case) -> Tensor:
    if case.lengths == "fixed":
        return torch.full((case.batch,), MEAN_LENGTH)
    torch.manual_seed(1)
    return (torch.randn(case.batch).mul(SPREAD).exp() * MEAN_LENGTH).round().long().clamp(3, 4 * MEAN_LENGTH)


def measure(case: Case, device: torch.device, repeats: int, dtype: torch.dtype = torch.float32) -> Measurement:
    """Ends of sequences come at the limits and nowhere else."""
    model, limits = build(case.preset, device).to(dtype), drawn_lengths(case)
    ids, most, end = sources(model, limits).to(device), int(limits.max()), model.config.eos_token_id
    assert isinstance(end, int)
    penalty = {"length_penalty": 0.0} if case.beams > 1 else {}

    def by_generate() -> Tensor:
        bounds = LogitsProcessorList([OnlyAtLimit(limits.to(device), end)])
        options = {"num_beams": case.beams, "max_length": most + 1, **penalty}
        with torch.no_grad():
            tokens: Tensor = model.generate(ids, do_sample=False, logits_processor=bounds, **options)  # type: ignore[operator]
        return tokens

    def by_engine(engine: Engine) -> Tensor:
        options = {"num_beams": case.beams, "limits": limits.tolist(), **penalty}
        return engine.generate(ids, min_new_tokens=most, **options).sequences

    runs = {"generate": by_generate, "engine": partial(by_engine, Engine(model, graphs=False))}
    if device.type == "cuda":
        runs["recorded"] = partial(by_engine, Engine(model, graphs=True))
    tokens = {name: run() for name, run in runs.items()}
    same = min(int((tokens["generate"] == found).all(1).sum()) for found in tokens.values())
    seconds = interleaved_seconds(runs, device=device, repeats=repeats)
    found = seconds["generate"], seconds["engine"], seconds.get("recorded")
    return Measurement(case, int(limits.sum()), *found, same, case.batch)


def run_batches(task: Any, size: int, most: int, device: torch.device) -> list[dict[str, Any]]:
    """The first sentences of the test set of a run, in the order of its file."""
    rows = task.rows([task.inputs_of(example) for example in read_examples(task, "test")[:most]])
    batches = []
    for start in range(0, len(rows), size):
        collated = task.collate(rows[start : start + size])
        inputs = {name: collated[name].to(device) for name in ("input_ids", "attention_mask")}
        batches.append({**inputs, "limits": task.target_limits(collated["attention_mask"].sum(1)).tolist()})
    return batches


def measure_run(
    folder: Path, batch: int, beams: int, most: int, device: torch.device, repeats: int, dtype: torch.dtype
) -> Measurement:
    """A trained model to its full depth, on its test set in file order."""
    run = load_run(folder, device=device.type)
    assert isinstance(run.model, DepthwiseForSeq2SeqLM), "decoding is measured in translation and summarisation"
    model = run.model.to(dtype)
    model.use_policy(None)
    batches = run_batches(run.task, batch, max(most, batch), device)
    penalty = {"length_penalty": run.recipe.generation.length_penalty} if beams > 1 else {}

    def by_generate() -> list[Tensor]:
        found = []
        for inputs in batches:
            given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            options = {"num_beams": beams, "max_new_tokens": max(inputs["limits"]), **penalty}
            with torch.no_grad():
                found.append(model.generate(**given, do_sample=False, **options))  # type: ignore[operator]
        return found

    def by_engine(engine: Engine) -> list[Tensor]:
        return [engine.generate(**inputs, num_beams=beams, **penalty).sequences for inputs in batches]

    runs = {"generate": by_generate, "engine": partial(by_engine, Engine(model, graphs=False))}
    if device.type == "cuda":
        runs["recorded"] = partial(by_engine, Engine(model, graphs=True))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    rows: dict[str, list[list[int]]] = {}
    for turn in range(-TURNS_BEFORE, repeats):
        for name, decode in runs.items():
            taken, found = seconds_of(decode, device)
            rows[name] = [_made(row, model) for each in found for row in each.tolist()]
            if turn >= 0:
                seconds[name].append(taken)
    same = sum(all(row == other for other in others) for row, *others in zip(*rows.values(), strict=True))
    taken_by = {name: median(each) for name, each in seconds.items()}
    times = taken_by["generate"], taken_by["engine"], taken_by.get("recorded")
    num_tokens = sum(map(len, rows["engine"]))
    return Measurement(Case(folder.name, batch, beams, "its own"), num_tokens, *times, same, len(rows["engine"]))


def _made(row: Sequence[int], model: DepthwiseForSeq2SeqLM) -> list[int]:
    """The tokens that a row made: after its first, which starts it, and without padding."""
    return [token for token in row[1:] if token != model.config.pad_token_id]


class OnlyAtLimit:
    """Lets sequences end at their limits and nowhere else; rows of the same source stand together."""

    def __init__(self, limits: Tensor, end: int) -> None:
        self.limits, self.end = limits, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """``input_ids`` begin with the start token."""
        must_end = input_ids.shape[1] >= self.limits.repeat_interleave(len(input_ids) // len(self.limits))
        of_end = scores[:, self.end].clone()
        scores = scores.masked_fill(must_end.unsqueeze(1), -torch.inf)
        scores[:, self.end] = of_end.masked_fill(~must_end, -torch.inf)
        return scores


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for chosen in product(options.presets, options.batches, options.beams, options.lengths):
        yield Case(*chosen)


def table_of(measured: Sequence[Measurement]) -> Table:
    table = Table(title="Decoding, the whole stack; tokens per second", title_justify="left")
    for name in ("preset", "batch", "beams", "lengths", "generate", "engine", "recorded", "faster", "same rows"):
        table.add_column(name, justify="left" if name == "preset" else "right")
    for found in measured:
        case = found.case
        times = (found.generate_seconds, found.engine_seconds, found.recorded_seconds)
        rates = ["" if seconds is None else f"{found.num_tokens / seconds:,.0f}" for seconds in times]
        same = f"{found.same_rows} of {found.num_rows}"
        table.add_row(case.preset, str(case.batch), str(case.beams), case.lengths, *rates, f"{found.speedup:.2f}", same)
    return table


def main(arguments: list[str]) -> None:
    options = parse_options(arguments)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    if options.run is None:
        measured = [measure(case, device, options.repeats, dtype) for case in cases(options)]
    else:
        chosen = product([options.run], options.batches, options.beams, [options.sentences])
        measured = [measure_run(*each, device, options.repeats, dtype) for each in chosen]
    Console(width=120).print(table_of(measured))
    if options.json is not None:
        found = [{**asdict(each), "speedup": each.speedup} for each in measured]
        options.json.write_text(json.dumps({"threads": torch.get_num_threads(), "measured": found}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
