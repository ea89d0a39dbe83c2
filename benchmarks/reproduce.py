"""Train and evaluate what tables of docs/results.md show, many runs side by side.

    python benchmarks/reproduce.py plan table3 table7 --seeds 1,2,3
    python benchmarks/reproduce.py run table3 table7 --seeds 1,2,3 --at-once 8 --into docs/results/mine.json
    python benchmarks/reproduce.py run finetuning --only mr --seconds 900 --alone-seconds 200 -- training.workers=0

``plan`` prints the commands, ``run`` runs those whose results are not there yet and takes each finished run into a file
of records; ``results.py write`` then makes the tables. Tables and rows are those of ``tables.yaml``, and
``evaluations.yaml`` says how a result of that name is made. A run is called like its recipe, and every seed after the
first has its number behind the name. A run that begins with another one waits for it. Tables of depth in advance are
made by ``faster.py``, which plans them from data sets and methods.
"""

import argparse
import hashlib
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import results
import yaml
from jobs import Campaign, Evaluation, Job, lines_of

from depthwise.config import DataConfig, Recipe, read_recipe

EVALUATIONS = Path(__file__).with_name("evaluations.yaml")
IN_ADVANCE = "faster"
"""Begins the names of tables that have a plan of their own."""
LONGEST = 200
"""Letters of a run's name; what is left out of a longer one is told apart by its hash."""
VALID = "valid"
"""Always evaluated: it decides which seed is quoted."""


class NoTable(Exception):
    """A table, or a result of one, is not described."""


def evaluation(name: str, ways: Mapping[str, Any]) -> Evaluation:
    """How a result of this name is made: by the first pattern that the whole name fits."""
    for pattern, way in ways.items():
        if (match := re.fullmatch(pattern, name)) is not None:
            given = {"arguments": way} if isinstance(way, str) else way
            arguments = match.expand(given.get("arguments", ""))
            before = tuple(tuple(shlex.split(match.expand(command))) for command in given.get("before", ()))
            by = tuple(shlex.split(given.get("by", "evaluate")))
            return Evaluation(name, tuple(shlex.split(arguments)), before, given.get("alone", False), by)
    raise NoTable(f"{EVALUATIONS.name} does not say how a result called {name} is made")


def wanted(tables: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The names of results of every run that tables show, under what follows ``depthwise train``."""
    found: dict[str, list[str]] = {}
    for table in tables:
        for row in table["rows"]:
            for column in table["columns"]:
                runs = row.get("runs", {})
                run = runs if isinstance(runs, str) else runs.get(column["title"])
                result = results.result_of(column, row)
                if run is not None and result not in (names := found.setdefault(run, [VALID])):
                    names.append(result)
    return found


def jobs_of(rows: Mapping[str, Sequence[str]], seeds: Sequence[int], ways: Mapping[str, Any], runs: Path) -> list[Job]:
    """All seeds of all rows; one that begins with another row's run needs it."""
    found = {}
    for row, names in rows.items():
        recipe, *changes = shlex.split(row)
        resolved = read_recipe(recipe, changes)
        evaluations = [evaluation(result, ways) for result in names if result != results.TRAINING]
        has_gates = resolved.model.get("latent") is not None
        possible = tuple(
            each
            for each in evaluations
            if _says_something(_split(each), resolved.data) and (has_gates or not _asks_for_gates(each))
        )
        for seed in seeds:
            name = _name(recipe, changes) + (f"-{seed}" if seed != seeds[0] else "")
            found[name] = Job(name, recipe, (f"seed={seed}", *changes), possible, _needs(resolved, runs))
    return [replace(job, needs=tuple(need for need in job.needs if need in found)) for job in found.values()]


def _name(recipe: str, changes: Sequence[str]) -> str:
    """The recipe, and what its changes set; file systems know no names much longer than that."""
    words = [recipe.rpartition("/")[2], *(re.sub(r"[^\w.]+", "_", change) for change in changes)]
    name = "-".join(words)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _split(each: Evaluation) -> str:
    return VALID if VALID in each.arguments else "test"


def _asks_for_gates(each: Evaluation) -> bool:
    """Whether models without latent layers have no such result."""
    return each.by == ("prune",) or any(word.startswith("evaluation.gates=") for word in each.arguments)


def _says_something(split: str, data: DataConfig) -> bool:
    """Whether there is such data, and no test data that are those of validation once more."""
    return bool(getattr(data, split)) and (split == VALID or data.test != data.valid)


def _needs(recipe: Recipe, runs: Path) -> tuple[str, ...]:
    """Runs that a recipe begins with, takes depths from or learns from."""
    depths, teacher = recipe.model.get("word_depths") or {}, recipe.training.teacher
    given = [str(run) for run in (recipe.model.get("from"), depths.get("run"), teacher and teacher.run) if run]
    return tuple(run.removeprefix(f"{runs}/") for run in given)


def _described(names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    described = yaml.safe_load(results.TABLES.read_text(encoding="utf-8"))
    for name in names:
        if name not in described:
            raise NoTable(f"there is no table {name}; {results.TABLES.name} has {', '.join(described)}")
        if name.startswith(IN_ADVANCE):
            raise NoTable(f"{name} is made by python benchmarks/faster.py run")
        yield described[name]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("plan", "run"))
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--only", default="", help="rows whose command this pattern is found in")
    parser.add_argument("--results", default="", help="results whose name this pattern is found in")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--into", type=Path, default=Path("runs/results.json"), help="file of records")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side")
    parser.add_argument("--results-at-once", type=int, help="of those, how many make results; all, if not given")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--alone-seconds", type=float, default=0.0, help="of these, the last for what is timed alone")
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    options, extra = parser.parse_args(given[:split]), given[split + 1 :]
    if any(number is not None and number < 1 for number in (options.at_once, options.results_at_once)):
        parser.error("--at-once and --results-at-once are 1 or more")
    if options.alone_seconds and not 0 < options.alone_seconds <= options.seconds < float("inf"):
        parser.error("--alone-seconds are the last of --seconds; give both, and no more than there are")
    try:
        rows = wanted(_described(options.tables))
        chosen = {
            row: [name for name in names if re.search(options.results, name)]
            for row, names in rows.items()
            if re.search(options.only, row)
        }
        ways = yaml.safe_load(EVALUATIONS.read_text(encoding="utf-8"))
        jobs = jobs_of(chosen, [int(seed) for seed in options.seeds.split(",")], ways, options.runs)
    except NoTable as error:
        print(error, file=sys.stderr)
        return 1
    if options.command == "plan":
        print(*lines_of(jobs, options.runs, extra), sep="\n")
        return 0
    return Campaign(
        jobs,
        options.runs,
        options.into,
        extra,
        at_once=options.at_once,
        seconds=options.seconds,
        results_at_once=options.results_at_once,
        alone_seconds=options.alone_seconds,
    ).run()


if __name__ == "__main__":
    sys.exit(main())
