"""Light and dynamic convolution on a GPU: their Triton kernels beside the floor, FlashAttention and the reference.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --json kernels.json --check
    python benchmarks/kernels.py --parts targets --one-thread
    python benchmarks/kernels.py --launches

Everything is bfloat16, width 1024, 16 heads, 16,384 tokens. "Kernel" times come from a CUDA graph that walks through
several sets of inputs, more than the cache holds, so they hold neither the time Python takes nor numbers that were
still in the cache. "Single" times are those of plain calls, each behind a cleared cache, by
``triton.testing.do_bench``: Python prepares a call while the GPU clears. "Eager" times are those of plain calls in a
loop over the same sets. The floor is the bytes that must move (every input read once, every output written once) at the
speed of a plain copy, measured first. Attention is torch's scaled dot-product attention, causal, with as many heads.

With ``--one-thread`` backward passes of all contenders run on the thread that asks for them, in place of the one that
torch keeps for every GPU: plain calls then do not wait for one thread to wake the other.

With ``--launches`` nothing is measured but both passes of a light convolution, whose gradients one launch or two find:
by turns in one process, because hosts differ more than these do.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from timing import Run, peak_bytes
from torch import Tensor, nn
from torch.nn import functional as F
from triton.testing import do_bench

from depthwise.config import StackConfig
from depthwise.kernels import dynamic_conv, light_conv, tiles, triton_launch
from depthwise.mixers import build_mixer

WIDTH, HEADS, TOKENS = 1024, 16, 16384
DTYPE = torch.bfloat16
LENGTHS = [64, 256, 1024, 4096, 16384]
CACHE_BYTES = 400 * 2**20
"""Bytes of inputs that are walked through: several times what a cache of today holds."""
ROUNDS = 5
"""In which single calls are timed."""
REPEATS = 15
PARTS = ("targets", "operators", "layers")
WAYS = {"two launches": None} | {
    f"one launch, {num_warps} warps, {programs} programs": (num_warps, programs)
    for num_warps in (2, 4)
    for programs in (528, 640, 1056)
}
"""In which the gradients of a light convolution are found."""


@dataclass(frozen=True)
class Target:
    """What was asked of one case, in milliseconds."""

    kind: str
    taps: int
    backward: bool
    must: float
    aim: float

    @property
    def name(self) -> str:
        return f"{self.kind}, K = {self.taps}, {'forward + backward' if self.backward else 'forward'}"


TARGETS = [
    Target("dynamic", 7, False, 0.030, 0.022),
    Target("dynamic", 31, False, 0.050, 0.030),
    Target("dynamic", 31, True, 0.25, 0.12),
    Target("light", 31, False, 0.040, 0.025),
    Target("light", 31, True, 0.15, 0.08),
]


@dataclass(frozen=True)
class Measured:
    target: Target
    floor: float
    kernel: float
    single: float
    eager: float
    reference: float
    peak_mib: float
    reference_peak_mib: float


@dataclass(frozen=True)
class Duel:
    """A convolution against attention at one length: the three times of each, in milliseconds."""

    what: str
    taps: int
    length: int
    backward: bool
    convolution: "Times"
    attention: "Times"


@dataclass(frozen=True)
class Times:
    """Milliseconds of one operation, taken in three ways."""

    kernel: float
    single: float
    eager: float

    @classmethod
    def of(cls, runs: list[Run]) -> "Times":
        return cls(kernel_ms(runs), single_ms(runs[0]), eager_ms(runs))


def kernel_ms(runs: list[Run]) -> float:
    """Milliseconds per run inside a CUDA graph of all runs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for run in runs * 2:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    graph.replay()
    return median(_elapsed_ms(graph.replay) for _ in range(REPEATS)) / len(runs)


def single_ms(run: Run) -> float:
    """Milliseconds of one plain call behind a cleared cache: the median over many, and over rounds of those.

    What Python takes is in it wherever the GPU waits for Python, and changes from one moment to the next.
    """
    return median(do_bench(run, return_mode="median") for _ in range(ROUNDS))


def eager_ms(runs: list[Run]) -> float:
    """Milliseconds per run of plain calls, those that Python takes included where the GPU waits for it."""

    def every() -> None:
        for run in runs * 4:
            run()

    every()
    return median(_elapsed_ms(every) for _ in range(3)) / (4 * len(runs))


def _elapsed_ms(run: Run) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def copy_speed() -> float:
    """Bytes per millisecond of a plain copy, read and written ones."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / median(_elapsed_ms(lambda: target.copy_(source)) for _ in range(REPEATS))


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=DTYPE)


def gradients(run: Callable[..., Tensor], inputs: list[Tensor], outgoing: Tensor) -> Run:
    """Forward and backward, giving the gradients of all inputs."""
    inputs = [each.requires_grad_() for each in inputs]
    return lambda: torch.autograd.grad(run(*inputs), inputs, outgoing)


def convolution_runs(kind: str, taps: int, length: int, backward: bool, backend: str = "auto") -> list[Run]:
    """The same convolution on several sets of inputs."""
    shape = (TOKENS // length if length <= TOKENS else 1, length)
    runs: list[Run] = []
    for _ in range(max(2, CACHE_BYTES // (2 * TOKENS * WIDTH))):
        x = randn(*shape, WIDTH)
        kernel = randn(*shape, HEADS, taps) if kind == "dynamic" else randn(HEADS, taps)
        convolve = dynamic_conv if kind == "dynamic" else light_conv

        def run(x: Tensor, kernel: Tensor, convolve: Callable[..., Tensor] = convolve) -> Tensor:
            return convolve(x, kernel, left=taps - 1, backend=backend)

        runs.append(gradients(run, [x, kernel], randn(*shape, WIDTH)) if backward else _bound(run, x, kernel))
    return runs


def attention_runs(length: int, backward: bool) -> list[Run]:
    shape = (TOKENS // length, length, HEADS, WIDTH // HEADS)
    runs: list[Run] = []
    for _ in range(max(2, CACHE_BYTES // (3 * 2 * TOKENS * WIDTH))):
        states = [randn(*shape).transpose(1, 2) for _ in range(3)]
        outgoing = randn(*shape).transpose(1, 2)
        runs.append(gradients(_attend, states, outgoing) if backward else _bound(_attend, *states))
    return runs


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def _bound(run: Callable[..., Tensor], *arguments: Tensor) -> Run:
    return lambda: run(*arguments)


def floor_bytes(target: Target) -> int:
    """Forward reads x and the kernels and writes y; backward reads both and dy, and writes their gradients."""
    states = 2 * TOKENS * WIDTH
    kernels = 2 * HEADS * target.taps * (TOKENS if target.kind == "dynamic" else 1)
    return 2 * states + kernels + (3 * states + 2 * kernels if target.backward else 0)


def measure(target: Target, speed: float) -> Measured:
    ours = convolution_runs(target.kind, target.taps, 1024, target.backward)
    plain = convolution_runs(target.kind, target.taps, 1024, target.backward, "reference")[:2]
    device = torch.device("cuda")
    return Measured(
        target,
        floor_bytes(target) / speed,
        *astuple(Times.of(ours)),
        eager_ms(plain),
        peak_bytes(ours[0], device=device) / 2**20,
        peak_bytes(plain[0], device=device) / 2**20,
    )


def launches() -> Iterator[tuple[str, float, float]]:
    """Kernel and single times of both passes of a light convolution, for each of the ways to find its gradients."""
    runs = convolution_runs("light", 31, 1024, backward=True)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            _find_gradients(way)
            times[name].append((kernel_ms(runs), do_bench(runs[0], return_mode="median")))
    for name, found in times.items():
        kernel, single = zip(*found, strict=True)
        yield name, median(kernel), median(single)


def _find_gradients(way: tuple[int, int] | None) -> None:
    """In one of ``WAYS`` from now on."""
    tiles.BOTH_UP_TO = 33 if way is not None else 0
    if way is not None:
        num_warps, triton_launch.PROGRAMS_OF_BOTH = way
        tiles.MEASURED["fixed_gradients"] = ((33, tiles.Tile(32, 64, num_warps)),)
    triton_launch.plan_both.cache_clear()


def duels() -> Iterator[Duel]:
    """Dynamic convolution against attention at every length."""
    for backward in (False, True):
        for length in LENGTHS:
            attention = Times.of(attention_runs(length, backward))
            for taps in (7, 31):
                ours = convolution_runs("dynamic", taps, length, backward)
                yield Duel("operator", taps, length, backward, Times.of(ours), attention)


def layer_duels() -> Iterator[Duel]:
    """The encoder module of dynamic convolution, projections included, against that of attention."""
    taps = 31
    stacks = {
        "dynamicconv": StackConfig(
            mixer="dynamicconv", num_layers=1, num_heads=HEADS, ffn_width=WIDTH, kernel_sizes=(taps,)
        ),
        "attention": StackConfig(mixer="attention", num_layers=1, num_heads=HEADS, ffn_width=WIDTH),
    }
    mixers: dict[str, nn.Module] = {}
    for name, stack in stacks.items():
        mixer = build_mixer(stack, 0, width=WIDTH, causal=False).to(device="cuda", dtype=DTYPE)
        for parameter in mixer.parameters():
            nn.init.normal_(parameter, std=WIDTH**-0.5)
        mixers[name] = mixer
    for backward in (False, True):
        for length in LENGTHS:
            times = {}
            for name, mixer in mixers.items():
                runs = [_layer_run(mixer, randn(TOKENS // length, length, WIDTH), backward) for _ in range(4)]
                times[name] = Times.of(runs)
            yield Duel("layer", taps, length, backward, times["dynamicconv"], times["attention"])


def _layer_run(mixer: nn.Module, x: Tensor, backward: bool) -> Run:
    if backward:
        inputs = [x.requires_grad_(), *mixer.parameters()]
        outgoing = torch.randn_like(x)
        return lambda: torch.autograd.grad(mixer(x), inputs, outgoing)

    def run() -> Tensor:
        with torch.no_grad():
            output: Tensor = mixer(x)
        return output

    return run


def errors() -> Iterator[tuple[str, float]]:
    """Norm-wise relative errors against the reference in float64, at the shape of the targets, fresh inputs."""
    for kind, taps in (("dynamic", 7), ("dynamic", 31), ("light", 31)):
        convolve = dynamic_conv if kind == "dynamic" else light_conv
        x = randn(4, 1000, WIDTH)
        kernel = randn(4, 1000, HEADS, taps) if kind == "dynamic" else randn(HEADS, taps)
        outgoing = randn(4, 1000, WIDTH)
        found, wanted = (
            _outcome(convolve, [each.to(dtype).requires_grad_() for each in (x, kernel)], outgoing.to(dtype), backend)
            for dtype, backend in ((DTYPE, "triton"), (torch.float64, "reference"))
        )
        for name, ours, exact in zip(("output", "input gradient", "kernel gradient"), found, wanted, strict=True):
            yield f"{kind}, K = {taps}, {name}", float((ours.double() - exact).norm() / exact.norm())


def _outcome(
    convolve: Callable[..., Tensor], inputs: list[Tensor], outgoing: Tensor, backend: str
) -> tuple[Tensor, ...]:
    y = convolve(*inputs, left=inputs[1].shape[-1] - 1, backend=backend)
    return y.detach(), *torch.autograd.grad(y, inputs, outgoing)


def _verdict(milliseconds: float, target: Target) -> str:
    return "aim met" if milliseconds <= target.aim else "met" if milliseconds <= target.must else "MISSED"


def print_targets(console: Console, measured: list[Measured]) -> None:
    table = Table("milliseconds", title="Targets", title_justify="left")
    timed = ("floor", "kernel", "single", "eager", "reference", "must", "aim")
    for heading in (*timed, "by kernel", "by single", "peak MiB", "of reference"):
        table.add_column(heading, justify="right")
    for each in measured:
        target = each.target
        verdicts = [_verdict(time, target) for time in (each.kernel, each.single)]
        numbers = (each.floor, each.kernel, each.single, each.eager, each.reference, target.must, target.aim)
        peaks = (f"{each.peak_mib:.0f}", f"{each.reference_peak_mib:.0f}")
        table.add_row(target.name, *(f"{number:.3f}" for number in numbers), *verdicts, *peaks)
    console.print(table)


def print_launches(console: Console, found: Iterator[tuple[str, float, float]]) -> None:
    table = Table("gradients", title="Light convolution, K = 31, forward + backward", title_justify="left")
    for heading in ("kernel ms", "single ms"):
        table.add_column(heading, justify="right")
    for name, *times in found:
        table.add_row(name, *(f"{time:.4f}" for time in times))
    console.print(table)


def print_duels(console: Console, title: str, found: list[Duel]) -> None:
    table = Table("K", "T", "pass", title=title, title_justify="left")
    for way in ("kernel", "single", "eager"):
        for heading in (f"{way} ms", "attention", "times as fast"):
            table.add_column(heading, justify="right")
    for each in found:
        cells = [str(each.taps), str(each.length), "forward + backward" if each.backward else "forward"]
        for ours, theirs in zip(astuple(each.convolution), astuple(each.attention), strict=True):
            cells += [f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.2f}"]
        table.add_row(*cells)
    console.print(table)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there too")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--one-thread", action="store_true", help="run backward passes on the calling thread")
    parser.add_argument("--launches", action="store_true", help="only compare ways to find gradients of light ones")
    parser.add_argument("--check", action="store_true", help="exit with 1 unless all that was measured is met")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here")
    torch.manual_seed(0)
    torch.autograd.set_multithreading_enabled(not options.one_thread)
    console = Console(width=160)
    speed = copy_speed()
    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {speed / 1e9:.2f} TB/s")
    if options.launches:
        for name, error in errors():
            console.print(f"relative error {error:.1e}  {name}")
        print_launches(console, launches())
        return 0
    precision, measured, operators, layers = {}, [], [], []
    if "targets" in options.parts:
        precision = dict(errors())
        for name, error in precision.items():
            console.print(f"relative error {error:.1e}  {name}")
        measured = [measure(target, speed) for target in TARGETS]
        print_targets(console, measured)
    if "operators" in options.parts:
        operators = list(duels())
        print_duels(console, f"Dynamic convolution against causal attention, B x T = {TOKENS}", operators)
    if "layers" in options.parts:
        layers = list(layer_duels())
        print_duels(console, f"Encoder modules, projections included, B x T = {TOKENS}", layers)
    if options.json is not None:
        result = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "one_thread": options.one_thread,
            "copy_bytes_per_second": speed * 1000,
            "errors": precision,
            "targets": [asdict(each) for each in measured],
            "duels": [asdict(each) for each in operators + layers],
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    met = all(each.kernel <= each.target.must for each in measured)
    won = all(each.convolution.kernel < each.attention.kernel for each in operators + layers)
    return 1 if options.check and not (met and won) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
