"""What ``depthwise demo`` shows of its run: the frontier, numbers that training never saw, the depth of every token."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from depthwise.cli.report import write_page
from depthwise.cli.sweep import Cell, depth_cell, frontier_table, name_of, seconds_cell
from depthwise.config import ConfidenceConfig

if TYPE_CHECKING:
    from depthwise.data import Example
    from depthwise.evaluation import Evaluation, Frontier, Point, Run

PROBABILITIES = (0.5, 0.7, 0.9, 0.95, 0.99)
LANGUAGES = {"en": "English", "de": "German"}
NUM_SAMPLES = 4
NUM_SAMPLES_OF_PAGE = 100
PAGE = "report.html"
END = "(end)"


def show_results(out: Path, num_swept: int, console: Console) -> None:
    """Sweep validation data one input at a time, then judge the setting that it suggests on test data."""
    from depthwise.evaluation import evaluate_run, hardware, load_run, read_examples, sweep, write_frontier

    run = load_run(out, ["evaluation.batch_rows=1"])
    examples = read_examples(run.task, "valid")[:num_swept]
    console.print(
        f"\nAccuracy against depth and time: {len(examples) // len(LANGUAGES):,} other numbers in both languages, "
        f"one at a time on {hardware(run.device)}\n"
    )
    policies = [ConfidenceConfig(threshold=(level,)) for level in PROBABILITIES]
    frontier = sweep(run, "valid", examples, policies=policies)
    files = write_frontier(out, frontier)
    _show_frontier(frontier, console)
    chosen = chosen_point(frontier)
    console.print(verdict(frontier, chosen))

    full, changes, name = evaluate_run(load_run(out), "test"), _changes(chosen), name_of(chosen)
    run = load_run(out, depth="policy", policy_changes=changes)
    examples, early = read_examples(run.task, "test"), evaluate_run(run, "test")
    console.print(f"\n{len(examples) // len(LANGUAGES):,} numbers that training never saw:\n")
    console.print(_accuracy(examples, {"full model": full, name: early}))
    console.print(f"\nSome of them by {name}, token by token, with the blocks that each one ran:\n")
    show_samples(run, examples, console)
    _show_what_next(out, [*files, _page(out)], changes, console)


def _show_frontier(frontier: "Frontier", console: Console) -> None:
    num_layers = frontier.num_layers
    columns: dict[str, Cell] = {
        "right": lambda point: f"{point.quality:.1f} %",
        "mean depth": depth_cell,
        "of full": lambda point: "-" if point.mean_depth is None else f"{100 * point.mean_depth / num_layers:.0f} %",
        "seconds": seconds_cell,
    }
    console.print(frontier_table(frontier, columns, by_depth=True))
    console.print(
        f"\n  fixed N       every token runs the first N of the decoder's {num_layers} blocks\n"
        "  confidence P  a token leaves after the first block whose best guess has a probability of at least P\n"
    )


def chosen_point(frontier: "Frontier") -> "Point":
    """The cheapest setting that is as accurate as the full model, or else the most accurate by confidence."""
    if frontier.cheapest is not None:
        return frontier.cheapest
    early = [point for point in frontier.points if point.policy == ConfidenceConfig.kind]
    return max(early, key=lambda point: point.quality or 0.0)


def verdict(frontier: "Frontier", chosen: "Point") -> str:
    """What the chosen setting saves in blocks, and what that was in time."""
    full, name = frontier.full, name_of(chosen)
    assert chosen.mean_depth is not None
    if frontier.cheapest is None:
        first = f"Nothing below full depth is as accurate as the full model here; {name} comes closest."
    else:
        first = f"{name} has the lowest mean depth of all that are as accurate as the full model."
    fewer, less = 1 - chosen.mean_depth / frontier.num_layers, 1 - chosen.seconds / full.seconds
    told = (
        f"{first}\n"
        f"A token runs {chosen.mean_depth:.2f} blocks instead of {frontier.num_layers}: {100 * fewer:.0f} % fewer. "
        f"That took {chosen.seconds:.2f} seconds instead of {full.seconds:.2f}: {100 * abs(less):.0f} % "
        f"{'less' if less >= 0 else 'more'}."
    )
    if less >= fewer:
        return told
    return (
        f"{told}\n"
        "Time falls less than depth: blocks this small are only a part of every step, later blocks are told of tokens\n"
        "that left, and asking an exit how sure it is takes time as well."
    )


def _changes(point: "Point") -> list[str]:
    """A setting as it is given on the command line; the usual measure goes without saying."""
    setting = {name: value for name, value in point.setting.items() if value != ConfidenceConfig.measure}
    return [f"policy.kind={point.policy}", *(f"policy.{name}={value}" for name, value in setting.items())]


def _accuracy(examples: Sequence["Example"], evaluations: dict[str, "Evaluation"]) -> Table:
    """How many are right in each language, and at which depth."""
    table = Table("", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in evaluations:
        table.add_column(name, justify="right")
    for language, name in LANGUAGES.items():
        shares = []
        for found in evaluations.values():
            pairs = zip(examples, found.predictions, strict=True)
            rights = [_is_right(*pair) for pair in pairs if pair[0].texts[0].startswith(language)]
            shares.append(sum(rights) / len(rights))
        table.add_row(f"{name}, right", *(f"{100 * share:.1f} %" for share in shares))
    table.add_row("mean depth", *(f"{found.mean_depth or 0:.2f}" for found in evaluations.values()))
    return table


def _is_right(example: "Example", given: str) -> bool:
    return example.texts[1] == given


def show_samples(run: "Run", examples: Sequence["Example"], console: Console) -> None:
    """A few numbers with the depth of every token below it: wrong ones, the first right ones, and the deepest."""
    from depthwise.data.tokenizers import BLANK
    from depthwise.evaluation import predict_all

    found = predict_all(run, [run.task.inputs_of(example) for example in examples])
    places: dict[bool, list[int]] = {True: [], False: []}
    for place, (example, said) in enumerate(zip(examples, found, strict=True)):
        places[_is_right(example, said.text)].append(place)
    deepest = sorted(places[True], key=lambda place: -sum(found[place].depths) / len(found[place].depths))
    half = NUM_SAMPLES // 2
    tokenizer = run.task.tokenizers.target
    for place in list(dict.fromkeys([*places[False][:half], *places[True][:half], *deepest]))[:NUM_SAMPLES]:
        (source, words), said = examples[place].texts, found[place]
        names = tokenizer.convert_ids_to_tokens(list(said.token_ids))
        pieces = [END if name == tokenizer.eos_token else name.removeprefix(BLANK) or BLANK for name in names]
        depths = [f"{depth:>{len(piece)}}" for piece, depth in zip(pieces, said.depths, strict=True)]
        console.print(f"  {source}   {said.text}" + ("" if said.text == words else f"   (right: {words})"))
        console.print(f"    {' '.join(pieces)}\n    {' '.join(depths)}")


def _page(out: Path) -> Path:
    """The report page of the run, with the depths of some tokens."""
    from depthwise.report import read_runs, sample

    (run,) = read_runs([out])
    sample(run, NUM_SAMPLES_OF_PAGE)
    path = out / PAGE
    write_page([run], path)
    return path


def _show_what_next(out: Path, files: Sequence[Path], changes: Sequence[str], console: Console) -> None:
    run, setting = shlex.quote(str(out)), shlex.join(changes)
    what = "the run", "all numbers of the table", "their plot", "everything to look at; open it in a browser"
    places = dict(zip((out, *files), what, strict=True))
    widest = max(len(str(path)) for path in places)
    console.print("\nWhere things are:")
    for path, told in places.items():
        console.print(f"  {path!s:{widest}}  {told}")
    console.print(
        "\nWhat next:\n"
        f"  echo 'de 1 2 3 4 5' | depthwise predict {run} - --depths --depth policy {setting}\n"
        f"  depthwise sweep {run} --batch-rows 1 --limit 50    # more policies\n"
        "  depthwise train start/translate data.train=mine data.valid=… data.source=en data.target=de 'model.exits={}' "
        "--out runs/mine"
    )
    console.print(
        f"\nServe it, and try it in a browser at http://127.0.0.1:8000:\n  {_command()} serve {run} --examples 3"
    )


def _command() -> str:
    """How this program is called from here."""
    if shutil.which("depthwise") is not None:
        return "depthwise"
    program = Path(sys.executable).with_name("depthwise")
    return shlex.quote(os.path.relpath(program)) if program.exists() else f"{shlex.quote(sys.executable)} -m depthwise"
