"""Depth saved is time saved: the engine beside the masked executor and Transformers' own forward and generate.

    python benchmarks/engine.py
    python benchmarks/engine.py --quick
    python benchmarks/engine.py --device cuda --json engine.json
    python benchmarks/engine.py --parts greedy beam policy --run runs/adaptive-translator

One run prints everything that was asked of the engine, with a verdict on each case. Weights are random, and depths are,
unless a run is given. All variants of a case take turns, so that a busy machine slows them alike. Compare times
of one run with each other, not with those of another.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import engine_decoding
import engine_depths
import engine_encoder
import torch
from rich.console import Console
from rich.table import Table

PARTS = ("encoder", "ragged", "greedy", "policy", "beam", "fills", "growth")
PRESETS = ("iwslt-transformer", "iwslt-dynamicconv")


@dataclass(frozen=True)
class Verdict:
    """What a case came to, and what was asked of it; more is better unless ``is_least``."""

    case: str
    value: float
    must: float
    aim: float | None = None
    is_least: bool = False

    def reaches(self, asked: float) -> bool:
        return self.value <= asked if self.is_least else self.value >= asked

    @property
    def text(self) -> str:
        if self.aim is not None and self.reaches(self.aim):
            return "aim met"
        return "met" if self.reaches(self.must) else "MISSED"


@dataclass
class Results:
    """Everything that was measured, by part, and the verdicts on it."""

    console: Console
    measured: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def judge(self, verdict: Verdict) -> None:
        """Keep a verdict, and say it at once: all of it takes a while."""
        self.verdicts.append(verdict)
        self.console.print(f"{verdict.case}: {verdict.value:.2f}, {verdict.text}", highlight=False)


def main(arguments: list[str]) -> None:
    options = _parsed(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    console, device = Console(width=150), torch.device(options.device)
    results = Results(console)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    setting = _setting(options, device)
    console.print(f"{where}, torch {torch.__version__}, {options.dtype}; encoders of width {setting.width}")
    for part in options.parts:
        console.print(_RUNS[part](options, setting, results))
    console.print(_summary(results.verdicts))
    if options.json:
        content = {"device": where, "torch": torch.__version__, "width": setting.width, "dtype": options.dtype}
        verdicts = [{**asdict(each), "verdict": each.text} for each in results.verdicts]
        options.json.write_text(json.dumps({**content, **results.measured, "verdicts": verdicts}, indent=1) + "\n")


def _parsed(arguments: list[str]) -> argparse.Namespace:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="fewer mixers, batches and repeats; minutes, not an hour")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--width", type=int, help="of encoders; 384 on a CPU and 768 on a GPU if not given")
    parser.add_argument("--batches", type=int, nargs="+", metavar="B", help="of encoders")
    parser.add_argument("--mixers", nargs="+", choices=engine_encoder.MIXERS, help="of encoders")
    parser.add_argument("--by-kernel", action="store_true", help="on a GPU, without recording blocks of encoders")
    parser.add_argument("--presets", nargs="+", help="models that decode")
    parser.add_argument("--repeats", type=int, help="rounds of which the median is taken")
    parser.add_argument("--threads", type=int, help="threads of the CPU; torch's own choice if not given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there too")
    engine_depths.add_options(parser)
    options = parser.parse_args(arguments)
    options.repeats = options.repeats or (3 if options.quick else 5)
    options.presets = options.presets or (PRESETS[:1] if options.quick else PRESETS)
    return options


def _setting(options: argparse.Namespace, device: torch.device) -> engine_encoder.Setting:
    on_gpu = device.type == "cuda"
    usual = [32, 128, 512] if on_gpu else [1, 8, 32, 64]
    mixers = ["attention", "dynamicconv"] if options.quick else engine_encoder.MIXERS
    return engine_encoder.Setting(
        device=device,
        width=options.width or (768 if on_gpu else 384),
        dtype=getattr(torch, options.dtype),
        mixers=options.mixers or mixers,
        batches=options.batches or (usual[:2] if options.quick else usual),
        repeats=options.repeats,
        graphs=False if options.by_kernel else "auto",
    )


def _encoder(options: argparse.Namespace, setting: engine_encoder.Setting, results: Results) -> Table:
    must, aim = (0.7, 0.9) if setting.device.type == "cuda" else (0.8, 0.95)
    rows = []
    for case in engine_encoder.cases(setting):
        name = f"encoder, {case.mixer}, {case.depths}, batch {case.batch}: realised efficiency"
        results.judge(Verdict(name, case.efficiency, must, aim))
        derived = {"efficiency": case.efficiency, "bound": case.bound}
        results.measured.setdefault("encoder", []).append({**asdict(case), **derived})
        rows.append(case.row())
    return engine_encoder.table_of(f"Encoders of 12 layers, T = {engine_encoder.LENGTH}; milliseconds", rows)


def _ragged(options: argparse.Namespace, setting: engine_encoder.Setting, results: Results) -> Table:
    rows = []
    for case in engine_encoder.ragged(setting):
        name = f"encoder, {case.mixer}, mixed lengths, batch {case.batch}: against Transformers' forward"
        results.judge(Verdict(name, case.speedup, 1.0, 1.3))
        results.measured.setdefault("ragged", []).append(asdict(case))
        rows.append(case.row())
    return engine_encoder.table_of("Rows of 1 to 128 tokens, the whole stack; milliseconds", rows)


def _greedy(options: argparse.Namespace, setting: engine_encoder.Setting, results: Results) -> Table:
    return _decoding(options, setting, results, "greedy", beams=1, batches=_batches(options, [1, 32], [1, 32, 128]))


def _beam(options: argparse.Namespace, setting: engine_encoder.Setting, results: Results) -> Table:
    return _decoding(options, setting, results, "beam", beams=4, batches=_batches(options, [16], [64]))


def _batches(options: argparse.Namespace, quick: list[int], usual: list[int]) -> list[int]:
    """Of decoders: a GPU has time for all of them."""
    return quick if options.quick and options.device == "cpu" else usual


def _decoding(
    options: argparse.Namespace,
    setting: engine_encoder.Setting,
    results: Results,
    part: str,
    beams: int,
    batches: Sequence[int],
) -> Table:
    """Lengths are those of sentences in the order of a file, and with a run its own."""
    measured = []
    for preset in options.presets if options.run is None else [options.run.name]:
        for batch in batches:
            repeats = min(3, options.repeats) if batch > 1 else options.repeats
            if options.run is None:
                case = engine_decoding.Case(preset, batch, beams, "mixed")
                found = engine_decoding.measure(case, setting.device, repeats, setting.dtype)
            else:
                chosen = options.run, batch, beams, options.sentences
                found = engine_decoding.measure_run(*chosen, setting.device, repeats, setting.dtype)
            measured.append(found)
            must, aim = _asked(setting.device, batch, beams)
            name = f"{part}, {preset}, batch {batch}: tokens/s against generate"
            results.judge(Verdict(name, found.speedup, must, aim))
            results.measured.setdefault(part, []).append({**asdict(found), "speedup": found.speedup})
    return engine_decoding.table_of(measured)


def _asked(device: torch.device, batch: int, beams: int) -> tuple[float, float | None]:
    if beams > 1:
        return 2.0, 5.0
    if device.type == "cuda":
        return 4.0, 10.0
    return (1.5 if batch == 1 else 2.0), None


def _policy(options: argparse.Namespace, setting: engine_encoder.Setting, results: Results) -> Table:
    """The gain has to reach its share of N / d on a CPU, and with a single row on a GPU."""
    on_gpu = setting.device.type == "cuda"
    fills = ("deferred",) if on_gpu else tuple(engine_depths.FILLS)
    batches = _batches(options, [1], [1, 32])
    groups = list(engine_depths.groups_of(options, batches, setting.device, fills))
    for group in groups:
        way = "deferred, recorded" if on_gpu else "deferred"
        batch, (value, share) = group[0].batch, engine_depths.gain(group, way)
        is_asked = not on_gpu or batch == 1
        name = f"depths, {group[0].name}, batch {batch}: gain {value:.2f} in block time, of N / d"
        must = engine_depths.MUST if is_asked else 0.0
        results.judge(Verdict(name, share, must, engine_depths.AIM))
        results.measured.setdefault("policy", []).extend(asdict(each) for each in group)
    return engine_depths.table_of(groups)


def _fills(options: argparse.Namespace, setting: engine_encoder.Setting, results: Results) -> Table:
    batches = [1] if options.quick else [1, 32]
    groups = list(engine_depths.groups_of(options, batches, setting.device, fills=("eager", "deferred"), asks=False))
    for group in groups:
        eager, deferred = ({each.way: each for each in group}[fill] for fill in ("eager", "deferred"))
        name = f"fills, {eager.name}, batch {eager.batch}: time of deferred"
        results.judge(Verdict(f"{name} / eager, blocks", deferred.blocks / eager.blocks, 1.0, is_least=True))
        work = deferred.filled / max(1, eager.filled)
        results.judge(Verdict(f"{name.replace('time', 'work')} / eager", work, 0.999, is_least=True))
        results.measured.setdefault("fills", []).extend(asdict(each) for each in group)
    return engine_depths.table_of(groups)


def _growth(options: argparse.Namespace, setting: engine_encoder.Setting, results: Results) -> Table:
    rows = []
    for case in engine_encoder.growing(setting, 10_000 if options.quick else 100_000):
        for name, slope in (("time", case.time), ("memory", case.memory)):
            verdict = Verdict(f"growth, {case.mixer}: slope of {name}", slope, engine_encoder.SLOPE, is_least=True)
            results.judge(verdict)
        results.measured.setdefault("growth", []).append(asdict(case))
        rows.append(case.row())
    return engine_encoder.table_of("One long source through the engine", rows)


def _summary(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Asked and found", title_justify="left")
    table.add_column("case")
    for name in ("found", "must", "aim", "verdict"):
        table.add_column(name, justify="right")
    for each in verdicts:
        sign = "<=" if each.is_least else ">="
        aim = "" if each.aim is None else f"{sign} {each.aim:.2f}"
        table.add_row(each.case, f"{each.value:.2f}", f"{sign} {each.must:.2f}", aim, each.text)
    return table


_RUNS: dict[str, Callable[[argparse.Namespace, engine_encoder.Setting, Results], Table]] = {
    "encoder": _encoder,
    "ragged": _ragged,
    "greedy": _greedy,
    "policy": _policy,
    "beam": _beam,
    "fills": _fills,
    "growth": _growth,
}


if __name__ == "__main__":
    main(sys.argv[1:])
