"""What leaving at the best exit would be worth: oracles of depth over prices and smoothings (Elbayad et al. 2020).

    python benchmarks/oracles.py runs/mine
    python benchmarks/oracles.py runs/mine --limit 1000 --penalties 0 0.02 0.1 --smoothings 0 5 inf --plot oracles.png

The model of a run with exits reads a split once, every token behind the right ones before it (teacher forcing), and
what each exit says of each token is kept: how likely the right token is, and whether it is the first guess. What the
oracles choose that policies learn from, for every price λ and every smoothing σ, follows without the model:

    exit of t = argmax_n  Σ_t' κ(t, t')·score[n, t'] − λ·n          κ(t, t') ~ exp(−|t − t'|²/σ), Σ_t' κ(t, t') = 1

σ = 0 looks at each token alone, σ = inf at whole sequences: that is the oracle of sequences, at a price of λ for each
token. Told are mean depth, negative log-likelihood and the share of first guesses that are right at the exits that were
chosen, beside fixed exits, which are joined by straight lines to compare at the same mean depth.

All tokens run the whole stack here: nobody reads a state that was copied since its token had left. And an oracle knows
the right token. What it finds is what exits have to offer, not what a policy reaches.
"""

import argparse
import io
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from depthwise.config import TokenExitConfig
from depthwise.data import BatchOptions, TokenBatches
from depthwise.data.progress import shown
from depthwise.depth import Lesson, Policy
from depthwise.depth.exit_targets import depth_of_exit, token_targets
from depthwise.errors import DepthwiseError, InputError
from depthwise.evaluation import Run, load_run, replace_file, strict_json
from depthwise.evaluation.plotting import DOTS_PER_INCH, MARKERS
from depthwise.models.exits import HasExits
from depthwise.models.objective import ExitObjective
from depthwise.shapes import Float, Int, Tensor
from depthwise.tasks import MultilingualTranslation, SequenceToSequence

ORACLES = ("likelihood", "correctness")
PENALTIES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SMOOTHINGS = (0.0, 1.0, 5.0, 25.0, math.inf)
MEASURES = {"nll": "nll per token (lower is better)", "accuracy": "first guesses that are right (higher is better)"}


@dataclass(frozen=True, kw_only=True)
class Means:
    """Over all tokens, at the exits that were chosen for them."""

    depth: float
    nll: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What an oracle finds, and what fixed exits have at the same mean depth."""

    oracle: str
    penalty: float
    smoothing: float
    found: Means
    fixed: Means

    def as_dict(self) -> dict[str, Any]:
        """As plain data; JSON has no infinity, and gets it as text."""
        smoothing = self.smoothing if math.isfinite(self.smoothing) else str(self.smoothing)
        return {**asdict(self), "smoothing": smoothing}


# What exits say


class _Pupil(Policy):
    """Learns nothing, and keeps what a policy would learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.lessons: list[Lesson] = []

    def losses(self, lesson: Lesson) -> dict[str, Float[Tensor, ""]]:
        context = replace(lesson.context, source=None, source_valid=None)
        self.lessons.append(replace(lesson, context=context, hidden=()))
        return {}


@torch.no_grad()
def lessons_of(run: Run, split: str, limit: int | None = None) -> list[Lesson]:
    """What all exits say of the first examples of a split, batch by batch, as training makes it for policies."""
    model, task = run.model, run.task
    if not isinstance(task, SequenceToSequence) or isinstance(task, MultilingualTranslation):
        raise InputError(f"{run.folder} is a run of {task.kind}; oracles are measured for translation or summarization")
    if model.config.exits is None:
        raise InputError(f"{run.folder} has no exits to leave at; train a run with model.exits")
    assert isinstance(model, HasExits)
    store, own = task.examples(split), model.trained_policy
    options = BatchOptions(max_tokens=task.tokens_at_once, order="sorted")
    batches = TokenBatches(task.lengths(store)[:limit], options)
    objective = ExitObjective(weights=(1.0,) * len(model.exit_depths))
    model.trained_policy = pupil = _Pupil()
    try:
        for batch in shown(batches, "reading", len(batches)):
            inputs = task.collate([store[number] for number in batch])
            model(**{name: value.to(model.device) for name, value in inputs.items()}, objective=objective)
    finally:
        model.trained_policy = own
    return pupil.lessons


# What is found where tokens leave


def means_at(lessons: Sequence[Lesson], chosen: Iterable[Int[Tensor, "B T"]]) -> Means:
    """The means where every token leaves at the exit, counted from 1, that was chosen for it."""
    sums, num_tokens = torch.zeros(3, dtype=torch.float64), 0
    for lesson, exits in zip(lessons, chosen, strict=True):
        index = exits.clamp(min=1) - 1
        depths = depth_of_exit(index, lesson.context.exits)
        here = (depths, *(values.gather(0, index[None])[0] for values in (lesson.nll, lesson.correct)))
        sums += torch.stack([values[lesson.valid].double().sum() for values in here]).cpu()
        num_tokens += int(lesson.valid.sum())
    depth, nll, accuracy = (sums / num_tokens).tolist()
    return Means(depth=depth, nll=nll, accuracy=accuracy)


def fixed_exits(lessons: Sequence[Lesson]) -> list[Means]:
    """All tokens leave at the same exit: at each of them."""
    numbers = range(1, len(lessons[0].context.exits) + 1)
    return [means_at(lessons, (lesson.valid * number for lesson in lessons)) for number in numbers]


def at_depth(fixed: Sequence[Means], depth: float) -> Means:
    """What fixed exits have at a mean depth: on the straight line between the two around it."""
    depths = [means.depth for means in fixed]
    nll, accuracy = (float(np.interp(depth, depths, [getattr(means, name) for means in fixed])) for name in MEASURES)
    return Means(depth=depth, nll=nll, accuracy=accuracy)


def choices(
    lessons: Sequence[Lesson], fixed: Sequence[Means], penalties: Sequence[float], smoothings: Sequence[float]
) -> list[Choice]:
    """What both oracles find for every σ and every λ."""
    found = []
    for oracle, smoothing, penalty in product(ORACLES, smoothings, penalties):
        options = TokenExitConfig(oracle=oracle, penalty=penalty, smoothing=smoothing)
        means = means_at(lessons, (token_targets(lesson, options) for lesson in lessons))
        beside = at_depth(fixed, means.depth)
        found.append(Choice(oracle=oracle, penalty=penalty, smoothing=smoothing, found=means, fixed=beside))
    return found


# As tables and as a figure


def table_of_fixed(fixed: Sequence[Means]) -> Table:
    table = Table("all leave at depth", "nll", "accuracy", title="fixed exits")
    for means in fixed:
        table.add_row(f"{means.depth:.0f}", f"{means.nll:.3f}", f"{means.accuracy:.1%}")
    return table


def table_of_oracle(oracle: str, found: Sequence[Choice]) -> Table:
    columns = ("σ", "λ", "mean depth", "nll", "accuracy", "nll of fixed exits there", "their accuracy")
    table = Table(*columns, title=f"{oracle} oracle")
    for place, choice in enumerate(found, 1):
        means, fixed = choice.found, choice.fixed
        table.add_row(
            *(f"{choice.smoothing:g}", f"{choice.penalty:g}", f"{means.depth:.2f}"),
            *(f"{means.nll:.3f}", f"{means.accuracy:.1%}", f"{fixed.nll:.3f}", f"{fixed.accuracy:.1%}"),
            end_section=place < len(found) and found[place].smoothing != choice.smoothing,
        )
    return table


def figure_of(fixed: Sequence[Means], found: Sequence[Choice], title: str) -> Figure:
    """One column for each oracle, nll above accuracy, a line for every σ along which λ changes."""
    figure = Figure(figsize=(10.0, 7.5), layout="constrained")
    grid = figure.subplots(len(MEASURES), len(ORACLES), sharex=True, sharey="row")
    for row, (measure, label) in zip(grid, MEASURES.items(), strict=True):
        for axes, oracle in zip(row, ORACLES, strict=True):
            for number, smoothing in enumerate(dict.fromkeys(choice.smoothing for choice in found)):
                means = [choice.found for choice in found if (choice.oracle, choice.smoothing) == (oracle, smoothing)]
                depths, values = [each.depth for each in means], [getattr(each, measure) for each in means]
                name = "σ = ∞" if math.isinf(smoothing) else f"σ = {smoothing:g}"
                style = f"{MARKERS[number % len(MARKERS)]}-"
                axes.plot(depths, values, style, markersize=5, linewidth=1.2, label=name)
            values = [getattr(means, measure) for means in fixed]
            axes.plot([means.depth for means in fixed], values, "o-", color="black", linewidth=2, label="fixed exits")
            axes.grid(alpha=0.3)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[0].set_ylabel(label)
    for axes, oracle in zip(grid[0], ORACLES, strict=True):
        axes.set_title(f"{oracle} oracle")
    for axes in grid[-1]:
        axes.set_xlabel(f"mean depth (blocks per token, of {fixed[-1].depth:.0f})")
    grid[0, 0].legend(fontsize="small")
    figure.suptitle(title)
    return figure


# On the command line


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed(arguments)
    console = Console(width=120, highlight=False, markup=False)
    disable_progress_bar()
    try:
        run = load_run(options.run, device=options.device)
        lessons = lessons_of(run, options.split, options.limit)
        num_rows, num_tokens = sum(len(each.valid) for each in lessons), sum(int(each.valid.sum()) for each in lessons)
        about = f"{run.task.kind}, {options.split}: {num_rows:,} examples, {num_tokens:,} tokens"
        console.print(f"{options.run}, {about}")
        fixed = fixed_exits(lessons)
        found = choices(lessons, fixed, options.penalties, options.smoothings)
        console.print(table_of_fixed(fixed))
        for oracle in ORACLES:
            console.print(table_of_oracle(oracle, [choice for choice in found if choice.oracle == oracle]))
        if options.json:
            told = {"run": str(options.run), "split": options.split, "examples": num_rows, "tokens": num_tokens}
            points = {"fixed": [asdict(means) for means in fixed], "oracles": [choice.as_dict() for choice in found]}
            replace_file(options.json, strict_json({**told, **points}) + "\n")
        if options.plot:
            picture = io.BytesIO()
            figure_of(fixed, found, about).savefig(picture, format="png", dpi=DOTS_PER_INCH)
            replace_file(options.plot, picture.getvalue())
    except DepthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _amount(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 on")
    return value


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--split", choices=["train", "valid", "test"], default="valid", help="valid")
    parser.add_argument("--limit", type=int, metavar="N", help="take only the first N examples")
    for name, values, sign in (("penalties", PENALTIES, "λ"), ("smoothings", SMOOTHINGS, "σ")):
        told = " ".join(f"{value:g}" for value in values)
        parser.add_argument(f"--{name}", type=_amount, nargs="+", default=values, metavar=sign, help=told)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it there, as PNG")
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        parser.error("--limit takes at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
