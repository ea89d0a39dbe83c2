"""Time and gradients of recorded training passes on a GPU: by autocast, and in half precision throughout.

    python benchmarks/passes.py
    python benchmarks/passes.py --presets iwslt-dynamicconv --precision fp16 --rows 128 --steps 32

A pass is forward and backward of one batch of translation with smoothed labels, of random ids and fresh weights without
dropout; the optimiser is not in it. Both ways take turns while they are timed. ``off`` is how far all gradients
together are from those of float32, as a share of their norm: rounding, which should be of about the same size for both.
"""

import argparse
import sys
from dataclasses import asdict
from functools import partial
from types import MethodType

import torch
from timing import interleaved_seconds
from torch import Tensor, nn

from depthwise.config import merged, parse_model, preset
from depthwise.losses import label_smoothed_cross_entropy
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.tasks import Losses
from depthwise.training.graphs import NUM_PLAIN, RecordedPasses
from depthwise.training.half_states import PRECISIONS, HalfStates

SMALL = {"num_layers": 4, "num_heads": 4, "ffn_width": 256, "norm": "post"}
MULTI30K = {"width": 128, "encoder": SMALL, "decoder": SMALL}
"""The model of the recipe translation/multi30k."""
STILL = ("dropout", "attention_dropout", "activation_dropout", "dropconnect", "input_dropout")


def parse_options(arguments: list[str]) -> argparse.Namespace:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    names = ["multi30k", "iwslt-transformer", "iwslt-dynamicconv"]
    parser.add_argument("--presets", nargs="+", default=names, metavar="NAME", help="models, multi30k among them")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="bf16")
    parser.add_argument("--types", type=int, default=10_000, help="types of the vocabulary")
    parser.add_argument("--rows", type=int, default=170, help="rows of a batch")
    parser.add_argument("--steps", type=int, default=24, help="steps of source and target, a multiple of 4")
    parser.add_argument("--repeats", type=int, default=11, help="rounds of which the median is taken")
    return parser.parse_args(arguments)


def model_of(name: str, num_types: int) -> DepthwiseForSeq2SeqLM:
    given = MULTI30K if name == "multi30k" else asdict(preset(name))
    sides = {side: dict.fromkeys(STILL, 0.0) for side in ("encoder", "decoder")}
    sizes = {"vocab_size": num_types, "source_vocab_size": num_types}
    options = parse_model(merged(given, {**sizes, **sides}))
    torch.manual_seed(0)
    special = {"bos_token_id": 2, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(options, **special)).train()


def batch_of(options: argparse.Namespace, device: torch.device) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(4, options.types, (2, options.rows, options.steps))
    ids[:, 0, -2:] = 1  # padding, so that there is a mask
    batch = {"input_ids": ids[0], "attention_mask": ids[0] != 1, "labels": ids[1].masked_fill(ids[1] == 1, -100)}
    return {name: value.to(device) for name, value in batch.items()}


def run(model: nn.Module, scale: float, batch: dict[str, Tensor], num_items: Tensor) -> Losses:
    labels = batch["labels"]
    earlier = torch.cat([torch.full_like(labels[:, :1], 2), labels[:, :-1].masked_fill(labels[:, :-1] < 0, 1)], dim=1)
    logits = model(batch["input_ids"], batch["attention_mask"], earlier).logits
    smoothed = label_smoothed_cross_entropy(logits, labels, 0.1, num_items)
    (smoothed.loss * scale).backward()
    return Losses(smoothed.loss, {"nll": smoothed.nll_sum})


class Pass:
    """A recorded pass over one batch, as an update begins it."""

    def __init__(self, model: nn.Module, batch: dict[str, Tensor], scale: float, half: HalfStates | None) -> None:
        self.params, self.batch, self.scale = list(model.parameters()), batch, scale
        self.num_items = (batch["labels"] >= 0).sum()
        self.passes = RecordedPasses(partial(run, model, scale), self.params, half)
        for _ in range(NUM_PLAIN + 1):
            self()

    def __call__(self) -> None:
        for param in self.params:
            param.grad = None
        self.passes(self.batch, self.num_items)

    def gradients(self) -> Tensor:
        self()
        found = [param.grad for param in self.params if param.grad is not None]
        return torch.cat([gradient.flatten().double() for gradient in found]) / self.scale


def measure(name: str, options: argparse.Namespace, device: torch.device) -> None:
    dtype = PRECISIONS[options.precision]
    scale = 2.0**10 if options.precision == "fp16" else 1.0
    batch = batch_of(options, device)
    exact = Pass(model_of(name, options.types).to(device), batch, 1.0, None).gradients()
    by_autocast, by_halves = (model_of(name, options.types).to(device) for _ in range(2))
    around = torch.autocast(device.type, dtype)(type(by_autocast).forward)
    by_autocast.forward = MethodType(around, by_autocast)  # type: ignore[method-assign]
    passes = {
        "autocast": Pass(by_autocast, batch, scale, None),
        "half states": Pass(by_halves, batch, scale, HalfStates(by_halves, dtype)),
    }
    seconds = interleaved_seconds(passes, device=device, repeats=options.repeats)
    for way, one in passes.items():
        off = float((one.gradients() - exact).norm() / exact.norm())
        print(f"{name:20s} {options.precision} {way:12s} {1000 * seconds[way]:7.3f} ms   off {off:.4f}")


def main(arguments: list[str]) -> None:
    options = parse_options(arguments)
    if not torch.cuda.is_available():
        sys.exit("passes are recorded on a GPU, and torch sees none here; use a machine with one")
    for name in options.presets:
        measure(name, options, torch.device("cuda"))


if __name__ == "__main__":
    main(sys.argv[1:])
