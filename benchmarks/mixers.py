"""Time and peak memory of every mixer beside self-attention, as the sequence grows.

    python benchmarks/mixers.py
    python benchmarks/mixers.py --backward --batch 16 --lengths 64 256 1024
    python benchmarks/mixers.py --check

Each mixer is the module that a block holds, projections included. Times are medians of samples for which all mixers and
lengths take turns, so that a busy machine slows all alike: read them as ratios to attention within one run. Memory is
the peak of what torch allocates during one run above its inputs and parameters, counted from the profiler's record of
every allocation and release; on a GPU it comes from the allocator's own statistics.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.table import Table
from timing import Run, growth, interleaved_seconds, peak_bytes
from torch import Tensor, nn

from depthwise.config import ModelConfig, StackConfig, check_model
from depthwise.mixers import Mixer, build_mixer

Result = TypeVar("Result")
LENGTHS = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
BASELINE = "attention"
LINEAR = ("lightconv", "dynamicconv")
"""Mixers that are claimed to grow linearly in time and memory."""
STEEPEST = 1.15
"""Exponent up to which growth counts as linear; noise and caches bend the line a little."""
COMPARED_AT, SPEEDUP = 4096, 4.0
"""At this length dynamic convolution is claimed to be this many times as fast as attention."""
CLAIMED_FOR = {"width": 512, "kernel": 31, "device": "cpu"}
GROWTH_POINTS = 4
"""Growth is measured over this many of the longest lengths, where constant costs no longer count."""


@dataclass(frozen=True)
class Measurement:
    mixer: str
    length: int
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Growth:
    """Exponents p of T**p over the longest lengths."""

    time: float
    memory: float


def shapes_parser(summary: str) -> argparse.ArgumentParser:
    """Options that name shapes and how they are measured."""
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="width of the model (D)")
    parser.add_argument("--heads", type=int, default=8, help="heads of attention and of the convolutions (H)")
    parser.add_argument("--kernel", type=int, default=31, help="kernel width (K), and the window of windowed attention")
    parser.add_argument("--batch", type=int, default=1, help="rows (B)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="T", help="steps (T)")
    parser.add_argument("--causal", action="store_true", help="look back only, as a decoder does")
    parser.add_argument("--threads", type=int, help="threads of the CPU; torch's own choice if not given")
    parser.add_argument("--repeats", type=int, default=5, help="rounds in which all take turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there too")
    return parser


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = shapes_parser(__doc__.splitlines()[0])
    parser.add_argument("--glu", action="store_true", help="gate the in-projection of the convolutions")
    parser.add_argument("--backward", action="store_true", help="forward and backward instead of forward alone")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--check", action="store_true", help="exit with 1 unless the claims of the project hold")
    return checked(parser, arguments, problems)


def checked(
    parser: argparse.ArgumentParser, arguments: list[str], problems: Callable[[argparse.Namespace], Iterator[str]]
) -> argparse.Namespace:
    """The options, lengths from short to long; where some cannot be measured, all problems at once."""
    options = parser.parse_args(arguments)
    options.lengths = sorted(set(options.lengths))
    if found := [*problems_of_shapes(options), *problems(options)]:
        parser.error("\n  ".join(found))
    return options


def problems_of_shapes(options: argparse.Namespace) -> Iterator[str]:
    """What is wrong with numbers, whatever is measured."""
    for name in ("batch", "repeats", "threads"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            yield f"--{name} {getattr(options, name)} must be 1 or more"
    if options.lengths[0] < 1:
        yield f"--lengths {options.lengths[0]} must be 1 or more"


def problems(options: argparse.Namespace) -> Iterator[str]:
    """Why these options cannot be measured, or not checked."""
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        yield f"--device {options.device}: torch sees no GPU here; use cpu"
    for name, stack in stacks(options).items():
        centred, causal = (None, stack) if options.causal else (stack, None)
        for problem in check_model(ModelConfig(vocab_size=1, width=options.width, encoder=centred, decoder=causal)):
            yield f"{name}: {problem.option} {problem.message}"
    if options.check:
        for name, value in CLAIMED_FOR.items():
            if getattr(options, name) != value:
                yield f"--check tests claims that are made for --{name} {value}"
        if COMPARED_AT not in options.lengths or len(options.lengths) < GROWTH_POINTS:
            yield f"--check needs {GROWTH_POINTS} lengths or more, {COMPARED_AT} among them"


def stacks(options: argparse.Namespace) -> dict[str, StackConfig]:
    """What is compared: a name for the table and the options of a one-layer stack."""
    kernels = (options.kernel,)
    stack = partial(StackConfig, num_layers=1, num_heads=options.heads, ffn_width=4 * options.width)
    return {
        BASELINE: stack(mixer="attention"),
        f"attention, window {options.kernel}": stack(mixer="attention", kernel_sizes=kernels),
        "lightconv": stack(mixer="lightconv", kernel_sizes=kernels, glu=options.glu),
        "dynamicconv": stack(mixer="dynamicconv", kernel_sizes=kernels, glu=options.glu),
        "cnn, kernel 3": stack(mixer="cnn", kernel_sizes=(3,)),
        "depthwise": stack(mixer="depthwise", kernel_sizes=kernels, glu=options.glu),
        "average": stack(mixer="average"),
    }


def build_mixers(options: argparse.Namespace) -> dict[str, Mixer]:
    place = {"device": torch.device(options.device), "dtype": getattr(torch, options.dtype)}
    mixers = {}
    for name, stack in stacks(options).items():
        mixer = build_mixer(stack, 0, width=options.width, causal=options.causal)
        for parameter in mixer.parameters():
            nn.init.normal_(parameter, std=options.width**-0.5)
        mixers[name] = mixer.to(**place).eval()
    return mixers


def forward(mixer: Mixer, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return mixer(x)


def forward_backward(mixer: Mixer, x: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the input and of every parameter; the input itself stands in for the gradient of the output."""
    return torch.autograd.grad(mixer(x), [x, *mixer.parameters()], grad_outputs=x.detach())


def measure(options: argparse.Namespace) -> list[Measurement]:
    """Every mixer at every length, by mixer and then by length."""
    device = torch.device(options.device)
    one_pass: Callable[..., object] = forward_backward if options.backward else forward
    inputs = {}
    for length in options.lengths:
        x = torch.randn(options.batch, length, options.width, device=device, dtype=getattr(torch, options.dtype))
        inputs[length] = x.requires_grad_(options.backward)
    mixers = build_mixers(options)
    runs: dict[tuple[str, int], Run] = {
        (name, length): partial(one_pass, mixer, x) for length, x in inputs.items() for name, mixer in mixers.items()
    }
    seconds = interleaved_seconds(runs, device=device, repeats=options.repeats)
    return [
        Measurement(name, length, seconds[name, length], peak_bytes(runs[name, length], device=device))
        for name in mixers
        for length in options.lengths
    ]


def growth_by_mixer(measurements: list[Measurement]) -> dict[str, Growth]:
    """Empty where there are too few lengths to draw a line."""
    found = {}
    for name in dict.fromkeys(each.mixer for each in measurements):
        longest = [each for each in measurements if each.mixer == name][-GROWTH_POINTS:]
        lengths = [each.length for each in longest]
        if len(lengths) > 1:
            found[name] = Growth(
                growth(lengths, [each.seconds for each in longest]),
                growth(lengths, [each.peak_bytes for each in longest]),
            )
    return found


def speedup(measurements: list[Measurement]) -> float | None:
    """Time of attention over that of dynamic convolution at the length of the claim; none if it was not measured."""
    seconds = {each.mixer: each.seconds for each in measurements if each.length == COMPARED_AT}
    return seconds[BASELINE] / seconds["dynamicconv"] if seconds else None


def claims(growths: dict[str, Growth], factor: float) -> Iterator[tuple[str, bool]]:
    """What the project says about its mixers, and whether it is so."""
    for name in LINEAR:
        for quantity, exponent in asdict(growths[name]).items():
            yield f"{quantity} of {name} grows as T^{exponent:.2f}, at most T^{STEEPEST}", exponent <= STEEPEST
    claim = f"dynamicconv is {factor:.1f} times as fast as attention at T = {COMPARED_AT}, at least {SPEEDUP:g}"
    yield claim, factor >= SPEEDUP


def table(
    title: str, measurements: list[Measurement], show: Callable[[Measurement], str], exponents: dict[str, float]
) -> Table:
    """A row for each mixer, a column for each length and, where known, one for the growth."""
    cells = {(each.mixer, each.length): show(each) for each in measurements}
    lengths = sorted({length for _, length in cells})
    drawn = Table("T =", title=title, title_justify="left")
    for heading in [*map(str, lengths), *(["growth"] if exponents else [])]:
        drawn.add_column(heading, justify="right")
    for name in dict.fromkeys(each.mixer for each in measurements):
        growing = [f"T^{exponents[name]:.2f}"] if exponents else []
        drawn.add_row(name, *(cells[name, length] for length in lengths), *growing)
    return drawn


def print_tables(console: Console, measurements: list[Measurement], growths: dict[str, Growth], what: str) -> None:
    baseline = {each.length: each for each in measurements if each.mixer == BASELINE}
    times = {name: each.time for name, each in growths.items()}
    memories = {name: each.memory for name, each in growths.items()}
    shown: list[tuple[str, Callable[[Measurement], str], dict[str, float]]] = [
        (f"Milliseconds, {what}", lambda each: f"{each.seconds * 1000:.2f}", times),
        ("Speed, attention = 1", lambda each: f"{baseline[each.length].seconds / each.seconds:.2f}", {}),
        (f"Peak memory in MiB, {what}", lambda each: f"{each.peak_bytes / 2**20:.1f}", memories),
    ]
    for title, show, exponents in shown:
        console.print(table(title, measurements, show, exponents))


def describe(options: argparse.Namespace) -> str:
    on_cpu = torch.device(options.device).type == "cpu"
    where = f"{torch.get_num_threads()} CPU threads" if on_cpu else torch.cuda.get_device_name(options.device)
    return ", ".join(
        [
            *(f"{name} {getattr(options, name)}" for name in ("width", "heads", "kernel", "batch")),
            "causal" if options.causal else "centred",
            *(["gated"] if options.glu else []),
            f"{options.dtype} on {where} with torch {torch.__version__}",
        ]
    )


def measured(options: argparse.Namespace, measure: Callable[[argparse.Namespace], list[Result]]) -> list[Result]:
    """What is measured, on as many threads as are asked for and from one seed."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with Console(stderr=True).status("measuring"):
        return measure(options)


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    console = Console(width=120)
    measurements = measured(options, measure)
    growths, factor = growth_by_mixer(measurements), speedup(measurements)
    console.print(describe(options))
    print_tables(console, measurements, growths, "forward and backward" if options.backward else "forward")
    if factor is not None:
        console.print(f"attention / dynamicconv at T = {COMPARED_AT}: {factor:.2f}")
    if options.json is not None:
        result = {
            "setting": describe(options),
            "measurements": [asdict(each) for each in measurements],
            "growth": {name: asdict(each) for name, each in growths.items()},
            "speedup": factor,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if not options.check:
        return 0
    assert factor is not None, "the options have been checked"
    held = list(claims(growths, factor))
    for claim, holds in held:
        console.print(f"{'holds' if holds else 'FAILS'}  {claim}")
    return 0 if all(holds for _, holds in held) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
