"""How small each script of ``benchmarks/`` and ``examples/`` is made when a page's command of it is run.

Whoever adds a script says here which of its sizes are replaced, and by what, and what has to stand in its output.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from depthwise.config import ModelConfig, as_dict, model_options, with_vocabulary
from depthwise.config.presets import PRESETS

from .miniature import MOST_LAYERS, small_model

MOMENT = 1e-9
"""Seconds that a sample lasts at least."""


@dataclass(frozen=True)
class Small:
    """How a script is made small, and what it has to print.

    ``options`` stand in the place of what the command line was given, by a value or by a function of what was given.
    ``constants`` are names in modules of the script.
    """

    shows: str
    """A pattern."""
    options: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    runs: Sequence[str] = ()
    """Runs that it looks for without being told."""
    needs_gpu: bool = False
    """Whether it refuses to run without one."""


def small_presets(*names: str) -> dict[str, ModelConfig]:
    """Published models with few narrow layers."""
    return {name: with_vocabulary(model_options(small_model(as_dict(PRESETS[name]))), 50, 50) for name in names}


def below_the_last(depths: Sequence[int]) -> list[int]:
    """Depths at which small models have an exit before their last."""
    return sorted({min(depth, MOST_LAYERS - 1) for depth in depths})


def first(names: str) -> str:
    """Of names with commas between them."""
    return names.partition(",")[0]


SAMPLES = {"timing.SHORTEST_SAMPLE": MOMENT}
DECODED = {
    **SAMPLES,
    "engine_decoding.PRESETS": small_presets("iwslt-transformer", "iwslt-dynamicconv"),
    "engine_decoding.MEAN_LENGTH": 3,
    "engine_depths.MEAN_LENGTH": 3,
}
DEPTHS = {"mean_depth": 2.0, "sentences": 2, "repeats": 1}
BENCHMARKS = {
    "attention": Small(
        "Microseconds on the GPU",
        {"lengths": [32], "heads": ["2x32"], "sets": 2},
        {"attention.TOKENS": 64, "attention.DROPOUTS": [0.1], "kernels.REPEATS": 1},
        needs_gpu=True,
    ),
    "buckets": Small(
        "encoder, up to 64 tokens",
        {"batches": [2], "rows": 4, "new": 2, "repeats": 1},
        {**SAMPLES, "buckets.LAYERS": 2, "buckets.DEPTHS": 2},
    ),
    "choosing": Small(
        "present constants",
        {"widths": [32], "layers": [2], "tokens": ["2x4"], "repeats": 1},
        {**SAMPLES, "choosing.SHORTEST_SAMPLE": MOMENT},
    ),
    "curves": Small("after update"),
    "engine": Small(
        "Asked and found",
        {"width": 64, "batches": [2], "presets": ["iwslt-dynamicconv"], **DEPTHS},
        {
            **DECODED,
            "engine._batches": lambda *_: [2],
            "engine_encoder.LENGTH": 8,
            "engine_encoder.NARROW": 64,
            "engine_encoder.LONGEST": {"cpu": [8, 16], "cuda": [8, 16]},
        },
    ),
    "engine_decoding": Small("tokens per second", {"batches": [2], "repeats": 1}, DECODED),
    "engine_depths": Small("milliseconds per token", {"batches": [2], **DEPTHS}, DECODED),
    "engine_lossless": Small(
        r"drafts of \d at 1",
        {"batches": [2], "sentences": 2, "repeats": 1, "depths": below_the_last},
    ),
    "faster": Small(
        r"^( +[\d.]+ s  |depthwise train|\||$)",
        {"sets": first, "seeds": first, "rows": "1,2", "most": 4},
        {
            "faster.FOLDS": 3,
            "faster.PENALTIES": (0, 0.1),
            "faster.BLOCKS": 2,
            "faster.DEEPER_BLOCKS": 3,
            "faster_speed.REPEATS": 1,
            **SAMPLES,
        },
        runs=("runs/minilm",),
    ),
    "fused": Small(
        "64 rows",
        {"rows": 64, "widths": [64], "types": [100], "dtypes": ["fp16"]},
        {"fused.CACHE_BYTES": 1, "kernels.REPEATS": 1},
        needs_gpu=True,
    ),
    "information": Small(
        "documents of 5 words counted", {"documents": 16, "length": 5, "types": 20}, {"information.CHUNK": 8}
    ),
    "kernels": Small(
        "Targets",
        {"check": False},  # what it asks for is asked of full sizes
        {
            "kernels.TOKENS": 1024,
            "kernels.WIDTH": 128,
            "kernels.HEADS": 2,
            "kernels.LENGTHS": [64],
            "kernels.CACHE_BYTES": 1,
            "kernels.ROUNDS": 1,
            "kernels.REPEATS": 1,
        },
        needs_gpu=True,
    ),
    "mixers": Small(
        "Speed, attention = 1",
        {"width": 16, "heads": 2, "lengths": [4, 8], "batch": 2, "repeats": 1},
        {
            **SAMPLES,
            "mixers.CLAIMED_FOR": {"width": 16, "kernel": 31, "device": "cpu"},
            "mixers.COMPARED_AT": 8,
            "mixers.GROWTH_POINTS": 2,
            "mixers.STEEPEST": math.inf,
            "mixers.SPEEDUP": 0.0,
        },
    ),
    "oracles": Small("correctness oracle", {"penalties": [0.0, 0.1], "smoothings": [0.0, math.inf]}),
    "passes": Small(
        "half states", {"presets": ["multi30k"], "types": 100, "rows": 4, "steps": 8, "repeats": 1}, needs_gpu=True
    ),
    "pretraining_text": Small(r"train\.txt: \d+ documents"),
    "promises": Small("nothing promised|kept|exceeded", {"resamples": 3, "examples": 200}),
    "reproduce": Small(r"^depthwise train|^ +[\d.]+ s  ", {"seeds": first, "at_once": 1}),
    "request_queue": Small(
        "answers that differ", {"requests": 12, "static": 4, "rows": 4, "width": 16, "layers": 2, "vocabulary": 50}
    ),
    "serving": Small(
        "95 % of the answers within",
        {"most_texts": 3, "seconds": 0.3, "start": 8.0, "attempts": 1, "minutes": 0.01, "max_new_tokens": 2},
        {"serving.WARM_UP": 0.1, "serving.COMPARED": 2},
    ),
    "serving_reliability": Small(
        '"healthy": true',
        {"requests": 60, "clients": 4, "inputs": 6},
        {"serving_reliability.MOST_GROWTH": math.inf},
    ),
    "structure": Small(
        r'"threshold"|_of_full_|: \d+ runs$',
        {"limit": 4},
        {
            "structure.TIMED": {1: 2, 2: 3},
            **SAMPLES,
            "structure.LENGTHS": (4, 8),
            "structure.BATCHES": (1, 2),
            "structure.THRESHOLDS": (0.0, 0.5),
            "structure.REPEATS": 1,
        },
    ),
    "ways": Small(
        "default / fastest",
        {"width": 16, "heads": 2, "lengths": [4, 40], "batch": 2, "repeats": 1},
        {**SAMPLES, "ways.SHORTEST_SAMPLE": MOMENT, "ways.MARGIN": math.inf},
    ),
}
EXAMPLES = {"client": Small(r"\d of \d+ layers")}
