"""A queue of mixed requests beside the same requests one at a time, and beside static batches in file order.

    python benchmarks/request_queue.py                          # 10,000 requests, float32
    python benchmarks/request_queue.py --double                 # float64: every answer has to be the same
    python benchmarks/request_queue.py --kind text --mixer dynamicconv --requests 2000

The model is random. Sources or prompts and texts have lengths of their own; requests are greedy or sampled, at full
depth, at a fixed one, or leave by confidence. In float32 an answer may differ from that of the request alone from a
tie on: where the scores of the first two tokens, the share of a random number or the confidence of an exit and its
threshold are less than 1e-4 apart. Such ties are counted; any other difference is an error.
"""

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from depthwise.config import ConfidenceConfig, FixedDepthConfig
from depthwise.depth import Policy, State, Visit, build_policy
from depthwise.engine import Answer, Engine, RequestQueue
from depthwise.engine.restrictions import sampling_processors
from depthwise.engine.search import DRAWN_AT_ONCE, drawn_from
from depthwise.engine.search_options import SearchOptions
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

PADDING, END, FIRST = 1, 2, 4
TIE = 1e-4
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Asked:
    """One request; ``way`` names its policy, and a seed stands for its generator."""

    ids: Tensor
    limit: int
    way: str = "full"
    seed: int | None = None

    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {"limits": [self.limit], "eos_token_id": END, "suppress_tokens": [PADDING]}
        if self.seed is not None:
            found |= {"do_sample": True, "temperature": 1.2, "top_k": 20, "top_p": 0.9}
            found["generators"] = [torch.Generator().manual_seed(self.seed)]
        return found


def build(options: argparse.Namespace) -> Any:
    """A random model whose texts do not repeat themselves and whose exits are of different minds."""
    torch.manual_seed(options.seed)
    sizes = {"num_heads": 4, "ffn_width": 2 * options.width, "mixer": options.mixer, "dropout": 0.0, "norm": "pre"}
    if options.mixer in ("lightconv", "dynamicconv", "cnn"):
        sizes["kernel_sizes"] = [7]
    sides = {"decoder": {**sizes, "num_layers": options.layers}}
    if options.kind == "translation":
        sides["encoder"] = {**sizes, "num_layers": 2}
    config = DepthwiseConfig(
        vocab_size=options.vocabulary, width=options.width, exits={}, tied_embeddings="none", **sides
    )
    kind = DepthwiseForSeq2SeqLM if options.kind == "translation" else DepthwiseForCausalLM
    model = kind(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.6 if "head" in name else 0.25)
    return model.double() if options.double else model


def policies(model: Any, threshold: float) -> dict[str, Policy | None]:
    exits, width = model.exit_depths, model.config.width
    made = {"fixed": FixedDepthConfig(depth=exits[0]), "confidence": ConfidenceConfig(threshold=(threshold,))}
    built = {name: build_policy(each, width=width, exits=exits, has_source=False) for name, each in made.items()}
    return {"full": None, **built}


def requests(options: argparse.Namespace) -> list[Asked]:
    choose = random.Random(options.seed)

    def length(most: int) -> int:
        return min(most, 1 + int(choose.lognormvariate(2.1, 0.6)))

    return [
        Asked(
            torch.tensor([choose.randrange(FIRST, options.vocabulary) for _ in range(length(40))]),
            length(60),
            choose.choice(["full", "fixed", "confidence", "confidence"]),
            choose.randrange(2**31) if choose.random() < 0.3 else None,
        )
        for _ in range(options.requests)
    ]


def alone(engine: Engine, asked: Asked, policy: Policy | None, **more: Any) -> Any:
    engine.model.use_policy(policy)
    return engine.generate(asked.ids.unsqueeze(0), torch.ones(1, len(asked.ids)), **asked.options(), **more)


def queued(
    queue: RequestQueue,
    all_asked: Sequence[Asked],
    ways: dict[str, Policy | None],
    outstanding: int,
    at: Callable[[int], None] = lambda _: None,
) -> list[Answer]:
    """Answers of a queue that always has enough to do, but never everything at once."""
    found: list[Answer] = []
    waiting: deque[Any] = deque()

    def take() -> None:
        found.append(waiting.popleft().result())
        at(len(found))

    for asked in all_asked:
        if len(waiting) == outstanding:
            take()
        waiting.append(queue.submit(asked.ids, policy=ways[asked.way], **asked.options()))
    while waiting:
        take()
    return found


def static(engine: Engine, all_asked: Sequence[Asked], policy: Policy | None, rows: int) -> list[list[int]]:
    """Batches of so many rows in the order of the requests; rows that have ended leave."""
    engine.model.use_policy(policy)
    found = []
    for start in range(0, len(all_asked), rows):
        some = all_asked[start : start + rows]
        longest = max(len(asked.ids) for asked in some)
        ids = torch.full((len(some), longest), PADDING)
        for row, asked in enumerate(some):
            ids[row, : len(asked.ids)] = asked.ids
        given = {**some[0].options(), "limits": [asked.limit for asked in some]}
        made = engine.generate(ids, ids != PADDING, **given)
        found += [row[depths > 0].tolist() for row, depths in zip(made.tokens, made.depths, strict=True)]
    return found


class Watched(Policy):
    """The policy by confidence, with how far each step was from its threshold at the exits that were asked."""

    def __init__(self, policy: Policy, threshold: float) -> None:
        super().__init__()
        self.policy, self.threshold = policy, threshold
        self.margins: list[float] = []

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        margin = float((visit.log_prob.exp().amax(-1)[0, -1] - self.threshold).abs())
        if visit.index == 0:
            self.margins.append(margin)
        else:
            self.margins[-1] = min(self.margins[-1], margin)
        return self.policy.leaving(visit, state)


def is_tie(engine: Engine, asked: Asked, policy: Policy | None, threshold: float, answer: Answer) -> bool:
    """Whether the first difference from the request alone is where it was a matter of less than ``TIE``."""
    watched = Watched(policy, threshold) if asked.way == "confidence" and policy is not None else policy
    scores: list[Tensor] = []

    def record(_: Tensor, given: Tensor) -> Tensor:
        scores.append(given.clone())
        return given

    found = alone(engine, asked, watched, logits_processor=[record])
    theirs, depths = found.tokens[0].tolist(), found.depths[0].tolist()
    step = next(
        place
        for place, pair in enumerate(zip(answer.tokens, answer.depths, theirs, depths, strict=False))
        if pair[:2] != pair[2:]
    )
    if isinstance(watched, Watched):
        steps = watched.margins[-len(theirs) :]
        if min(steps[: step + 1]) < TIE:
            return True
    if asked.seed is None:
        first, second = scores[step][0].topk(2).values.tolist()
        return first - second < TIE
    given = asked.options()
    drawn = torch.rand(
        DRAWN_AT_ONCE * (step // DRAWN_AT_ONCE + 1), dtype=torch.float64, generator=given["generators"][0]
    )
    sampled = scores[step]
    for process in sampling_processors(SearchOptions(**given)):
        sampled = process(asked.ids.unsqueeze(0), sampled)
    around = [(drawn[step] + by).clamp(0, 1).reshape(1) for by in (-TIE, 0, TIE)]
    return len({int(drawn_from(sampled, number)) for number in around}) > 1


def size_of(answer: Answer) -> int:
    """Bytes of an answer; Python has each small number only once."""
    parts = (answer, answer.__dict__, answer.tokens, answer.depths, answer.scores, *answer.scores)
    return sum(map(sys.getsizeof, parts))


def clocks() -> tuple[float, float]:
    """Seconds by the clock, and those that processors spent on this process, which others disturb less."""
    return time.perf_counter(), time.process_time()


def resident() -> float:
    """Mebibytes that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MEBIBYTE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--kind", choices=["translation", "text"], default="translation")
    parser.add_argument("--mixer", default="attention")
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=200)
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--static", type=int, default=1000, help="requests of the comparison with static batches")
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console, model = Console(width=120), build(options)
    engine, ways, all_asked = Engine(model), policies(model, options.threshold), requests(options)
    few = 4 * options.rows

    memory: list[float] = []
    with engine.queue(max_rows=options.rows) as queue:
        queued(queue, all_asked[: 2 * few], ways, few)
        before, begin = resident(), time.perf_counter()
        every = max(1, len(all_asked) // 10)
        answers = queued(
            queue, all_asked, ways, few, lambda count: memory.append(resident()) if count % every == 0 else None
        )
        seconds = time.perf_counter() - begin
    num_tokens = sum(len(answer.tokens) for answer in answers)
    console.print(
        f"queue of {options.rows} rows: {len(answers):,} requests, {num_tokens:,} tokens in {seconds:.1f} s, "
        f"{num_tokens / seconds:,.0f} tokens/s"
    )
    kept = sum(map(size_of, answers)) / MEBIBYTE
    console.print(
        f"memory: {before:.0f} MiB before, at most {max(memory):.0f} after, by tenths: "
        + " ".join(f"{size:.0f}" for size in memory)
        + f"; of these, the answers that are kept here take {kept:.0f} in the end"
    )

    begin = time.perf_counter()
    differing = []
    for asked, answer in zip(all_asked, answers, strict=True):
        found = alone(engine, asked, ways[asked.way])
        expected = (found.tokens[0].tolist(), found.depths[0].tolist())
        if expected != (list(answer.tokens), list(answer.depths)):
            differing.append((asked, answer))
    seconds = time.perf_counter() - begin
    console.print(f"one at a time: {seconds:.1f} s, {num_tokens / seconds:,.0f} tokens/s")
    ties = sum(is_tie(engine, asked, ways[asked.way], options.threshold, answer) for asked, answer in differing)
    console.print(f"answers that differ: {len(differing):,}, all but {len(differing) - ties:,} of them from a tie on")
    if len(differing) > (0 if options.double else ties):
        raise SystemExit("a queue may not change answers")

    table = Table("greedy", "static", "queue", "times as fast", "by CPU seconds", "same")
    for way in ("full", "confidence"):
        some = [Asked(asked.ids, asked.limit, way) for asked in all_asked[: options.static]]
        static(engine, some[: options.rows], ways[way], options.rows)
        begin = clocks()
        in_batches = static(engine, some, ways[way], options.rows)
        middle = clocks()
        with engine.queue(max_rows=options.rows) as queue:
            in_queue = queued(queue, some, ways, few)
        end, count = clocks(), sum(map(len, in_batches))
        same = sum(list(answer.tokens) == tokens for answer, tokens in zip(in_queue, in_batches, strict=True))
        alone_took, queue_took = (
            [late - early for early, late in zip(*pair, strict=True)] for pair in ((begin, middle), (middle, end))
        )
        table.add_row(
            way,
            f"{count / alone_took[0]:,.0f} tokens/s",
            f"{count / queue_took[0]:,.0f} tokens/s",
            *(f"{one / other:.2f}" for one, other in zip(alone_took, queue_took, strict=True)),
            f"{same:,} of {len(some):,}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
