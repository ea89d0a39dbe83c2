"""What batches of rows of similar depth gain over batches of similar length, where depths of rows are known in advance.

    python benchmarks/buckets.py --threads 1
    python benchmarks/buckets.py --device cuda --batches 8 32 128

Text: greedy translation with a model of IWSLT size and random weights, in which a policy plans one of six depths for
each source; sources are encoded in batches of similar length in either case. Encoders: twelve layers, a depth for each
row at random, by the compact executor. Both ways take turns.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from timing import interleaved_seconds
from torch import Tensor, nn

from depthwise.config import SequenceExitConfig
from depthwise.depth import Context, Plan
from depthwise.depth.sequence_exit import SequenceExit
from depthwise.engine import CompactEncoder, Engine
from depthwise.engine.buckets import bucketed
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.models.stack import Stack
from depthwise.models.token_classification import DepthwiseForTokenClassification

LAYERS, DEPTHS = 12, 6
Row = tuple[str, str, float, float]
"""A kind of work, the size of its batches, and the seconds of both ways."""


class Hidden(SequenceExit):
    """The same policy, about which nobody is told in advance."""

    by_sequence = False


class AnyDepth(SequenceExit):
    """Depths as if at random, but always the same for a source."""

    def plan(self, context: Context) -> Tensor:
        return 1 + self._log_prob(context)[0].mul(1e4).long().remainder(DEPTHS).unsqueeze(1).expand(context.shape)


class AnyHiddenDepth(AnyDepth, Hidden):
    by_sequence = False


def main(arguments: list[str]) -> None:
    summary = __doc__.splitlines()[0] if __doc__ else None
    parser = argparse.ArgumentParser(description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 8, 32], metavar="B")
    parser.add_argument("--rows", type=int, default=128, help="rows altogether")
    parser.add_argument("--new", type=int, default=16, help="tokens of every text")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, help="threads of the CPU; torch's own choice if not given")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of which the median is taken")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    table = Table("work", "rows in a batch", "by length, s", "by depth, s", "times as fast")
    for work, size, by_length, by_depth in [*_texts(options), *_encoders(options)]:
        table.add_row(work, size, f"{by_length:.3f}", f"{by_depth:.3f}", f"{by_length / by_depth:.2f}")
    Console(width=120).print(table)


def _texts(options: argparse.Namespace) -> Iterator[Row]:
    device, stack = torch.device(options.device), {"num_heads": 4, "ffn_width": 1024, "max_positions": None}
    sides = {"encoder": {"num_layers": 6, **stack}, "decoder": {"num_layers": DEPTHS, **stack}}
    special = {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2}
    model = DepthwiseForSeq2SeqLM(DepthwiseConfig(vocab_size=8000, width=512, exits={}, **sides, **special))
    model, ids = model.to(device).eval(), torch.randint(4, 8000, (options.rows, 20)).to(device)
    engine, policies = Engine(model), {}
    for name, kind in (("by length", AnyHiddenDepth), ("by depth", AnyDepth)):
        torch.manual_seed(2)
        policies[name] = kind(SequenceExitConfig(), width=512, num_exits=DEPTHS).to(device)
        nn.init.normal_(policies[name].classifier.weight)

    def run(name: str, size: int) -> None:
        model.use_policy(policies[name])
        engine.generate(ids, max_new_tokens=options.new, suppress_tokens=[2], rows_at_once=size)

    for size in options.batches:
        runs = {name: partial(run, name, size) for name in policies}
        seconds = interleaved_seconds(runs, device=device, repeats=options.repeats)
        yield "text", str(size), seconds["by length"], seconds["by depth"]


def _encoders(options: argparse.Namespace) -> Iterator[Row]:
    device, width = torch.device(options.device), 384
    stack_options = {"num_layers": LAYERS, "num_heads": 6, "ffn_width": 4 * width, "max_positions": None}
    model = DepthwiseForTokenClassification(DepthwiseConfig(vocab_size=9, width=width, encoder=stack_options))
    assert model.model.encoder is not None
    stack, executor = model.to(device).eval().model.encoder.stack, CompactEncoder()
    for longest in (16, 64):
        lengths = torch.randint(longest // 2, longest + 1, (options.rows,))
        depths = torch.randint(1, LAYERS + 1, (options.rows,))
        x = torch.randn(options.rows, longest, width, device=device)
        for size in options.batches:
            unknown, known = [0] * options.rows, depths.tolist()
            runs = {}
            for name, sorted_by in (("by length", unknown), ("by depth", known)):
                batches = bucketed(lengths.tolist(), sorted_by, max_rows=size)
                runs[name] = partial(_encode, executor, stack, x, lengths, depths, batches)
            seconds = interleaved_seconds(runs, device=device, repeats=options.repeats)
            yield f"encoder, up to {longest} tokens", str(size), seconds["by length"], seconds["by depth"]


@torch.inference_mode()
def _encode(
    executor: CompactEncoder, stack: Stack, x: Tensor, lengths: Tensor, depths: Tensor, batches: list[list[int]]
) -> None:
    for rows in batches:
        width = int(lengths[rows].max())
        valid = torch.arange(width) < lengths[rows].unsqueeze(1)
        plan, steps = (
            Plan.of_depths(depths[rows].unsqueeze(1) * valid, stack.num_layers),
            torch.zeros_like(valid).long(),
        )
        there = {"valid": valid.to(x.device), "steps": steps.to(x.device)}
        executor(stack, x[rows, :width], plan=plan, leaving=None, **there)


if __name__ == "__main__":
    main(sys.argv[1:])
