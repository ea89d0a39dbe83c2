"""Encoders by the engine: depths of tokens, rows of different lengths, one long source. ``engine.py`` runs them.

*Realised efficiency* is how many times as fast adaptive execution is as the whole stack, divided by how many times
fewer operations it takes, fill included (``models.cost``): 1 means that every operation saved was time saved. The whole
stack is timed by whichever of engine and model is faster. The *bound* is the same of the linear maps alone: products of
the sizes that the engine comes to, with nothing around them.

What is padding is known to the host, as it is to ``evaluate`` and ``predict``. Without that an engine asks the device
for it, at every call, and waits until whatever was asked before is done.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.table import Table
from timing import growth, interleaved_seconds, peak_bytes
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from depthwise.depth import Plan
from depthwise.engine import Engine
from depthwise.engine.packed_blocks import PackedLinear
from depthwise.engine.recorded import Graphs
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.cost import StackCost
from depthwise.models.token_classification import DepthwiseForTokenClassification

LAYERS = 12
LENGTH = 128
MIXERS = ("attention", "lightconv", "dynamicconv")
KINDS = ("uniform 1..8", "geometric 1..12")
KERNELS = [3, 7, 15, *[31] * (LAYERS - 3)]
LONGEST = {"cpu": [100, 1_000, 10_000, 100_000], "cuda": [1_000, 10_000, 100_000]}
SHARE_OF_GEOMETRIC = 0.3
NARROW = 128
"""Width of encoders that read long sources."""
SLOPE = 1.1
"""The steepest that time and memory may grow with the length of a source, as an exponent."""


@dataclass(frozen=True)
class Setting:
    """What is timed, and where."""

    device: torch.device
    width: int
    dtype: torch.dtype
    mixers: Sequence[str]
    batches: Sequence[int]
    repeats: int
    graphs: Graphs = "auto"
    """Whether blocks of adaptive encoders are recorded, on a GPU."""


@dataclass(frozen=True)
class Case:
    """Milliseconds of one batch: the whole stack, then adaptive execution, by the masked executor and by the engine.

    ``products`` are those of the engine's linear maps alone.
    """

    mixer: str
    depths: str
    batch: int
    mean_depth: float
    flops_saved: float
    model_full: float
    engine_full: float
    masked: float
    engine: float
    products_full: float
    products: float

    @property
    def speedup(self) -> float:
        return min(self.model_full, self.engine_full) / self.engine

    @property
    def efficiency(self) -> float:
        return self.speedup / self.flops_saved

    @property
    def bound(self) -> float:
        return self.products_full / self.products / self.flops_saved

    def row(self) -> dict[str, str]:
        return {
            "mixer": self.mixer,
            "depths": self.depths,
            "batch": str(self.batch),
            "mean depth": f"{self.mean_depth:.2f}",
            "Transformers": f"{self.model_full:.2f}",
            "engine, full": f"{self.engine_full:.2f}",
            "masked": f"{self.masked:.2f}",
            "compact": f"{self.engine:.2f}",
            "operations": f"1 / {self.flops_saved:.2f}",
            "faster": f"{self.speedup:.2f}",
            "efficiency": f"{self.efficiency:.2f}",
            "bound": f"{self.bound:.2f}",
        }


@dataclass(frozen=True)
class Ragged:
    """Milliseconds of a batch of rows of different lengths through the whole stack."""

    mixer: str
    batch: int
    padding: float
    model: float
    engine: float

    @property
    def speedup(self) -> float:
        return self.model / self.engine

    def row(self) -> dict[str, str]:
        return {
            "mixer": self.mixer,
            "batch": str(self.batch),
            "padding": f"{self.padding:.0%}",
            "Transformers": f"{self.model:.2f}",
            "engine": f"{self.engine:.2f}",
            "faster": f"{self.speedup:.2f}",
        }


@dataclass(frozen=True)
class Growing:
    """Exponents of time and memory as one source grows."""

    mixer: str
    lengths: list[int]
    seconds: list[float]
    time: float
    memory: float

    def row(self) -> dict[str, str]:
        timed = zip(self.lengths, self.seconds, strict=True)
        times = {f"T = {length:,}": f"{value:.3f} s" for length, value in timed}
        return {"mixer": self.mixer, **times, "time ~ T^": f"{self.time:.2f}", "memory ~ T^": f"{self.memory:.2f}"}


def build(mixer: str, setting: Setting) -> DepthwiseForTokenClassification:
    """A random tagger of twelve layers."""
    stack = {"num_layers": LAYERS, "num_heads": setting.width // 64, "ffn_width": 4 * setting.width, "mixer": mixer}
    stack |= {"norm": "post", "max_positions": None}
    if mixer != "attention":
        stack["kernel_sizes"] = KERNELS
    config = DepthwiseConfig(vocab_size=1000, width=setting.width, encoder=stack, num_labels=9)
    return DepthwiseForTokenClassification(config).to(setting.device, setting.dtype).eval()


def drawn_depths(kind: str, shape: tuple[int, int]) -> Tensor:
    if kind == KINDS[0]:
        return torch.randint(1, 9, shape)
    chances = (1 - SHARE_OF_GEOMETRIC) ** torch.arange(LAYERS)
    return torch.multinomial(chances, shape[0] * shape[1], replacement=True).view(shape) + 1


def cases(setting: Setting) -> Iterator[Case]:
    for mixer in setting.mixers:
        model = build(mixer, setting)
        engine, stack = Engine(model, graphs=setting.graphs), model.config.options.encoder
        by_kernel = Engine(model, graphs=False)  # of what is recorded, nobody hears which maps it makes use of
        assert stack is not None
        cost = StackCost(stack, setting.width)
        for kind in KINDS:
            for batch in setting.batches:
                inputs = _inputs((batch, LENGTH), setting.device)
                depths = drawn_depths(kind, (batch, LENGTH))
                plan = Plan.of_depths(depths, LAYERS)
                there = Plan(plan.run.to(setting.device))
                flops = sum(cost.plan(row).flops for row in depths.tolist())
                runs = {
                    "model_full": partial(_predicted, model, **inputs),
                    "engine_full": partial(engine, **inputs),
                    "masked": partial(_predicted, model, **inputs, plan=there),
                    "engine": partial(engine, **inputs, plan=plan),
                }
                runs["products_full"] = partial(_replayed, _products(runs["engine_full"]))
                runs["products"] = partial(_replayed, _products(partial(by_kernel, **inputs, plan=plan)))
                seconds = interleaved_seconds(runs, device=setting.device, repeats=setting.repeats)
                saved = cost.forward(LENGTH).flops * batch / flops
                times = {name: 1000 * value for name, value in seconds.items()}
                yield Case(mixer, kind, batch, float(depths.double().mean()), saved, **times)


def _inputs(shape: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
    """Rows without padding."""
    mask = torch.ones(shape, dtype=torch.long)
    return {"input_ids": torch.randint(4, 1000, shape).to(device), "attention_mask": mask}


@torch.inference_mode()
def _predicted(model: DepthwiseForTokenClassification, **inputs: object) -> object:
    return model(**inputs)


Products = list[tuple[nn.Module, Tensor]]
"""Linear maps, each with what it was given."""


def _products(run: Any) -> Products:
    """All linear maps that a run makes use of, in their order."""
    found: Products = []
    with _each_linear(found):
        run()
    return found


@contextmanager
def _each_linear(found: Products) -> Iterator[None]:
    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Linear | PackedLinear):
            found.append((module, given[0].clone()))

    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


@torch.inference_mode()
def _replayed(products: Products) -> None:
    for module, given in products:
        module(given)


def ragged(setting: Setting) -> Iterator[Ragged]:
    for mixer in setting.mixers:
        model = build(mixer, setting)
        engine = Engine(model)
        for batch in setting.batches:
            lengths = torch.randint(1, LENGTH + 1, (batch,))
            lengths[0] = LENGTH
            mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
            inputs = _inputs((batch, LENGTH), setting.device) | {"attention_mask": mask}
            there = inputs | {"attention_mask": mask.to(setting.device)}
            runs = {"model": partial(_predicted, model, **there), "engine": partial(engine, **inputs)}
            seconds = interleaved_seconds(runs, device=setting.device, repeats=setting.repeats)
            padding = 1 - float(lengths.sum()) / (batch * LENGTH)
            yield Ragged(mixer, batch, padding, 1000 * seconds["model"], 1000 * seconds["engine"])


def growing(setting: Setting, longest: int) -> Iterator[Growing]:
    """Narrower models, since only exponents are asked for."""
    setting = replace(setting, width=NARROW)
    lengths = [length for length in LONGEST[setting.device.type] if length <= longest]
    for mixer in setting.mixers:
        if mixer == "attention":
            continue
        engine = Engine(build(mixer, setting))
        runs = {length: partial(engine, **_inputs((1, length), setting.device)) for length in lengths}
        seconds = interleaved_seconds(runs, device=setting.device, repeats=1)
        memory = [float(peak_bytes(run, device=setting.device)) for run in runs.values()]
        times = list(seconds.values())
        yield Growing(mixer, lengths, times, growth(lengths, times), growth(lengths, memory))


def table_of(title: str, rows: Sequence[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in ("mixer", "depths") else "right")
    for row in rows:
        table.add_row(*row.values())
    return table
