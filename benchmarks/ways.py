"""Every way of summing over taps on a CPU beside the one that is taken, as the sequence grows.

    python benchmarks/ways.py --threads 1
    python benchmarks/ways.py --batch 16 --lengths 64 256 1024 --causal
    python benchmarks/ways.py --threads 1 --check

The operation alone, at the shapes of ``mixers.py``: inputs and kernels are given, in float32, to which half precision
is raised. Each way is first compared with float64, gradients included. Then all ways and lengths take turns, forward
alone and forward and backward, in short samples. Times are medians of all rounds; the default is compared with another
way round by round, where both were timed within the same second or two, and that ratio is a median too. The way that is
the default is timed by what calls it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

import torch
from mixers import checked, describe, measured, shapes_parser
from rich.console import Console
from rich.table import Table
from timing import Run, interleaved_samples, peak_bytes
from torch import Tensor
from torch.nn import functional as F

from depthwise.kernels import correlation

Walk = Callable[[Tensor, Tensor, int], Tensor]
Case = tuple[str, bool, int]
"""Kind, whether with the backward pass, and length."""

CPU = torch.device("cpu")
KINDS = ("light", "dynamic")
MARGIN = 1.1
"""Times another way that the default may take under ``--check``: times of one way differ by as much in a run."""
SHORTEST_SAMPLE = 0.01
"""Seconds that one sample lasts at least: little, so that those of one round are near to each other."""
CLOSE = 1e-5
"""Norm-wise relative error up to which a way in float32 is right."""


@dataclass(frozen=True)
class Problem:
    """Inputs and kernels of one shape, and whether gradients are wanted too."""

    kind: str
    length: int
    backward: bool
    x: Tensor
    weight: Tensor
    left: int

    def run(self, walk: Walk) -> tuple[Tensor, ...]:
        """The output, or the gradients of input and kernels, for which the input stands in as that of the output."""
        if not self.backward:
            with torch.inference_mode():
                return (walk(self.x, self.weight, self.left),)
        x, weight = self.x.requires_grad_(), self.weight.requires_grad_()
        return torch.autograd.grad(walk(x, weight, self.left), (x, weight), grad_outputs=x.detach())

    def doubled(self) -> "Problem":
        x, weight = self.x.detach().double(), self.weight.detach().double()
        return Problem(self.kind, self.length, self.backward, x, weight, self.left)

    def default(self) -> str:
        """Name of the way that is taken."""
        with torch.set_grad_enabled(self.backward):
            needs = [each.detach().requires_grad_(self.backward) for each in (self.x, self.weight)]
            return correlation._walk_everywhere(*needs, self.left).__name__.removeprefix("correlate_")


@dataclass(frozen=True)
class Measurement:
    kind: str
    backward: bool
    length: int
    way: str
    is_default: bool
    rounds: list[float]
    """Seconds in each."""
    peak_bytes: int

    @property
    def seconds(self) -> float:
        return median(self.rounds)

    @property
    def case(self) -> Case:
        return self.kind, self.backward, self.length


def default(x: Tensor, weight: Tensor, left: int) -> Tensor:
    return correlation.correlate(x, weight, left=left, positions=None)


def unfolded(x: Tensor, weight: Tensor, left: int) -> Tensor:
    """A product of each kernel with the window of its position, row by row: windows of one row are no copy."""
    heads, taps = weight.shape[-2:]
    kernels = weight.expand(*x.shape[:2], -1, -1)
    mixed = []
    for padded, own in zip(F.pad(x, (0, 0, left, taps - 1 - left)), kernels, strict=True):
        windows = padded.unfold(0, taps, 1).unflatten(1, (heads, -1)).flatten(0, 1).transpose(1, 2)
        mixed.append((own.reshape(-1, 1, taps) @ windows).view_as(x[0]))
    return torch.stack(mixed)


def ways(problem: Problem) -> dict[str, Walk]:
    """Those that compute this problem, the default as it is called; where gradients are wanted, only what has them."""
    found: dict[str, Walk] = {
        "taps": correlation.correlate_taps,
        "banded": correlation.correlate_banded,
        "unfolded": unfolded,
    }
    if problem.kind == "light":
        found["grouped"] = correlation.correlate_grouped
    if not problem.backward:
        found["pieces"] = correlation.correlate_pieces
    return {**found, problem.default(): default}


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = shapes_parser(__doc__.splitlines()[0])
    parser.set_defaults(repeats=15, glu=False, dtype="float32", device="cpu")
    parser.add_argument(
        "--check", action="store_true", help=f"exit with 1 where the default takes over {MARGIN} times the fastest way"
    )
    return checked(parser, arguments, problems)


def problems(options: argparse.Namespace) -> Iterator[str]:
    """Why these options cannot be measured."""
    for name in ("width", "heads", "kernel"):
        if getattr(options, name) < 1:
            yield f"--{name} {getattr(options, name)} must be 1 or more"
    if options.heads > 0 and options.width % options.heads:
        yield f"--width {options.width} must be a multiple of --heads {options.heads}"


def shapes(options: argparse.Namespace) -> Iterator[Problem]:
    left = options.kernel - 1 if options.causal else (options.kernel - 1) // 2
    for length in options.lengths:
        x = torch.randn(options.batch, length, options.width)
        for kind in KINDS:
            rows = (1, 1) if kind == "light" else (options.batch, length)
            weight = torch.randn(*rows, options.heads, options.kernel).softmax(-1)
            for backward in (False, True):
                yield Problem(kind, length, backward, x.clone(), weight.clone(), left)


def check_ways(problem: Problem) -> None:
    """Each way beside sums tap by tap in float64."""
    expected = problem.doubled().run(correlation.correlate_taps)
    for name, walk in ways(problem).items():
        for found, wanted in zip(problem.run(walk), expected, strict=True):
            error = ((found - wanted).norm() / wanted.norm()).item()
            if not error <= CLOSE:
                raise SystemExit(f"{name} is wrong, {problem.kind} at T = {problem.length}: relative error {error:.1e}")


def measure(options: argparse.Namespace) -> list[Measurement]:
    runs: dict[tuple[str, bool, int, str, bool], Run] = {}
    for problem in shapes(options):
        check_ways(problem)
        for name, walk in ways(problem).items():
            runs[problem.kind, problem.backward, problem.length, name, walk is default] = partial(problem.run, walk)
    rounds = interleaved_samples(runs, device=CPU, repeats=options.repeats, shortest=SHORTEST_SAMPLE)
    return [Measurement(*name, rounds[name], peak_bytes(run, device=CPU)) for name, run in runs.items()]


def ratios(measurements: list[Measurement]) -> dict[Case, float]:
    """Time of the default over that of the way that beats it most, or 1 where none does."""
    default_of = {each.case: each for each in measurements if each.is_default}
    found = dict.fromkeys(default_of, 1.0)
    for each in measurements:
        in_rounds = [ours / other for ours, other in zip(default_of[each.case].rounds, each.rounds, strict=True)]
        found[each.case] = max(found[each.case], median(in_rounds))
    return found


def table(measurements: list[Measurement], kind: str, backward: bool) -> Table:
    """A row for each way, a column for each length; then what the default is, and how far from the fastest."""
    shown = [each for each in measurements if (each.kind, each.backward) == (kind, backward)]
    defaults, found = [each for each in shown if each.is_default], ratios(shown)
    title = f"{kind}, {'forward and backward' if backward else 'forward'}, milliseconds"
    drawn = Table("T =", title=title, title_justify="left")
    for each in defaults:
        drawn.add_column(str(each.length), justify="right")
    for way in dict.fromkeys(each.way for each in shown):
        drawn.add_row(way, *(f"{each.seconds * 1000:.3f}" for each in shown if each.way == way))
    drawn.add_row("default", *(each.way for each in defaults))
    drawn.add_row("default / fastest", *(f"{found[each.case]:.2f}" for each in defaults))
    drawn.add_row("default's peak, MiB", *(f"{each.peak_bytes / 2**20:.1f}" for each in defaults))
    return drawn


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    console = Console(width=120)
    measurements = measured(options, measure)
    console.print(describe(options))
    for kind in KINDS:
        for backward in (False, True):
            console.print(table(measurements, kind, backward))
    slow = {case: factor for case, factor in ratios(measurements).items() if factor > MARGIN}
    for (kind, backward, length), factor in slow.items():
        passes = "forward and backward" if backward else "forward"
        console.print(f"SLOWER  {kind}, {passes}, T = {length}: {factor:.2f} times the fastest way")
    if options.json is not None:
        result = {"setting": describe(options), "measurements": [asdict(each) for each in measurements]}
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if options.check and slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
