"""From finished runs to the tables of docs/results.md; nothing in them is typed by hand.

    python benchmarks/results.py collect runs/multi30k-1 runs/multi30k-2 --into docs/results/multi30k.json
    python benchmarks/results.py write
    python benchmarks/results.py write --check

``collect`` takes what ``depthwise train`` and ``depthwise evaluate`` left in runs into one file. ``write`` fills the
tables that ``tables.yaml`` describes, between the marks ``<!-- table NAME -->`` and ``<!-- end -->``, and with
``--check`` only says whether they are as they should be. Where several seeds were trained, a cell shows the score of
the seed that validation data prefers, and the mean and deviation of all of them. Folds of cross-validation, which are
named /fold1/ and so on in the names of data files, count as seeds. A row without runs shows figures of others; one with
runs for every column compares them side by side. It also writes into the header of each recipe what was measured of it.
"""

import argparse
import json
import math
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "results"
RECIPES = ROOT / "src" / "depthwise" / "recipes"
TABLES = Path(__file__).with_name("tables.yaml")
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
KEPT = (
    *("metric", "metrics", "signatures", "examples", "mean_depth", "token_layers", "flops", "seconds"),
    *("examples_per_second", "tokens_per_second", "peak_memory_bytes", "hardware", "settings"),
)
"""What of an evaluation goes into a record; digests and predictions stay with the run."""
TRAINING = "training"
"""Stands for what training.json says in the place of a result's name."""
FACTS = ("seeds", "parameters", "trained in", "on", "command: `depthwise train` …")
"""What stands behind the scores of a row, unless a table lists fewer of them."""
OWN = ("result", "metric", "digits", "scale", "lower_is_better")
"""Options of a column that a row may have of its own."""
MEASURED = "# measured: "
"""Begins the line of a recipe's header that tells what came of it."""
QUOTED = ("test", "test_2016_flickr", "valid")
"""Which result of a run such a line quotes, the first that there is."""
_FOLD = re.compile(r"/fold\d+/")
OF_SAME_SEED = ("model.from=", "training.teacher.run=")
"""What names another run, whose folder ends in the seed where it has the same one."""
_MARK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class NoRun(Exception):
    """A folder holds nothing that could be collected."""


@dataclass(frozen=True)
class Row:
    """All seeds of one recipe with the same changes."""

    records: tuple[Mapping[str, Any], ...]

    @property
    def finished(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(record for record in self.records if not record["diverged"])

    def values(self, result: str, metric: str) -> dict[int, float]:
        """The metric of every seed that has it; ``metric`` may also be a rate such as ``tokens_per_second``."""
        found = {}
        for record in self.finished:
            evaluation = record["training"] if result == TRAINING else record["results"].get(result, {})
            value = evaluation.get("metrics", {}).get(metric, evaluation.get(metric))
            if value is not None:
                found[record["seed"]] = float(value)
        return found

    def preferred(self, metric: str, lower_is_better: bool) -> int | None:
        """The seed with the best score on validation data, if all have one; rates are no scores."""
        valid = {record["seed"]: record["results"].get("valid", {}).get("metrics", {}) for record in self.finished}
        values = {seed: metrics[metric] for seed, metrics in valid.items() if metrics.get(metric) is not None}
        if len(values) < len(valid) or not values:
            return None
        choose = min if lower_is_better else max
        return choose(values, key=lambda seed: (values[seed], -seed))

    def layers(self, result: str, metric: str) -> list[int] | None:
        """The layers that ``metric``, such as ``decoder_layers/de``, counts in a result of the first seed with it."""
        side, _, language = metric.partition("_layers/")
        for record in self.finished:
            of_side = record["results"].get(result, {}).get("settings", {}).get("layers", {}).get(side, {})
            if language in of_side:
                return list(of_side[language])
        return None


def collected(folder: Path) -> dict[str, Any]:
    """The record of one run: how it was trained, and every evaluation that it holds."""
    training = _json(folder / "training.json")
    diverged = diverged_at(folder) if training is None else None
    if training is None and diverged is None:
        raise NoRun(f"{folder} holds no finished training; train it first")
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    results = {}
    for path in sorted((folder / "results").glob("*.json")):
        content = _json(path) or {}
        if "metrics" in content:
            results[path.stem] = {name: content[name] for name in KEPT if name in content}
    return {
        "command": _command(folder / "recipe.given.yaml"),
        "seed": recipe["seed"],
        "diverged": diverged,
        "training": training,
        "results": results,
    }


def _command(path: Path) -> str:
    """The first line of the recipe that was asked for."""
    first, *_ = path.read_text(encoding="utf-8").splitlines()
    if not first.startswith("# depthwise train "):
        raise NoRun(f"{path} does not say which command it came from; train the run by depthwise train")
    return first.removeprefix("# ")


def merged(old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Records by command and seed, later ones in the place of earlier ones."""
    found = {(without_seed(record["command"]), record["seed"]): record for record in (*old, *new)}
    return [found[key] for key in sorted(found)]


def add(into: Path, found: Iterable[Mapping[str, Any]]) -> None:
    """Put records into a file, which is whole at any moment."""
    records = merged(_json(into) or [], found)
    into.parent.mkdir(parents=True, exist_ok=True)
    new = into.with_name(f".{into.name}.new")
    new.write_text(json.dumps(records, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    new.replace(into)


def without_seed(command: str) -> str:
    """A command as it is for all seeds, and for all folds; runs of the same seed are named without it."""
    words = shlex.split(command)
    seeds = [word.removeprefix("seed=") for word in words if word.startswith("seed=")]
    kept = [word for word in words if not word.startswith("seed=")]
    for seed in seeds:
        kept = [word.removesuffix(f"-{seed}") if word.startswith(OF_SAME_SEED) else word for word in kept]
    return shlex.join(_FOLD.sub("/fold/", word) for word in kept)


def runs_of(wanted: Mapping[str, Any]) -> list[str]:
    """The names of all runs that a row of a table shows."""
    runs = wanted.get("runs", {})
    return [runs] if isinstance(runs, str) else list(runs.values())


def rows(records: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """Records of the same command but for the seed, under what follows ``depthwise train``."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        found.setdefault(without_seed(record["command"]).removeprefix("depthwise train "), []).append(record)
    return {name: Row(tuple(records)) for name, records in found.items()}


def table(description: Mapping[str, Any], measured: Mapping[str, Row]) -> str:
    """One table as Markdown. Rows that were not measured are left out, and so is a table without any."""
    columns, facts, lines, num_measured = description["columns"], description.get("facts", FACTS), [], 0
    for wanted in description["rows"]:
        if "runs" not in wanted:
            lines.append([wanted["label"], *_figures_of_others(wanted, columns), *["–"] * len(facts)])
        elif not isinstance(wanted["runs"], str):
            if any(name in measured for name in wanted["runs"].values()):
                lines.append([wanted["label"], *_side_by_side(wanted, columns, measured), *["–"] * len(facts)])
                num_measured += 1
        elif (row := measured.get(wanted["runs"])) is not None:
            own = [_own(column, wanted) for column in columns]
            if row.finished and not any(row.values(column["result"], column["metric"]) for column in own):
                continue
            cells = [wanted["label"]]
            for column in own:
                published = wanted.get("published", {}).get(column["title"])
                cells += _cell(row, column, published, "published" in column)
            known = _facts(wanted["runs"], row)
            lines.append([*cells, *(known[fact] for fact in facts)])
            num_measured += 1
    if not num_measured:
        return "Not measured yet.\n"
    head = [description["label"]]
    for column in columns:
        head += [column["title"], *([column["published"]] if "published" in column else [])]
    head += facts
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines))


def _own(column: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """A column with the options that a row has of its own, unless it shows the same of all rows."""
    if column.get("same_of_all"):
        return column
    own = {option: wanted[option] for option in OWN if option in wanted}
    merged = {**column, **own, "result": result_of(column, wanted)}
    return {**merged, "metric": _of_row(merged["metric"], wanted)}


def result_of(column: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Which result a row shows in a column: its own for all columns, its own for this one, or the column's."""
    own = wanted.get("result", {})
    return _of_row(own if isinstance(own, str) else own.get(column["title"], column["result"]), wanted)


def _of_row(name: str, wanted: Mapping[str, Any]) -> str:
    """A name with what stands in a row under ``of`` and ``at`` in the place of {of} and {at}."""
    return name.replace("{of}", wanted.get("of", "")).replace("{at}", wanted.get("at", ""))


def _figures_of_others(wanted: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cells of a row that nobody trained here."""
    cells = []
    for column in columns:
        cells += [str(wanted["published"].get(column["title"], "–")), *(["–"] if "published" in column else [])]
    return cells


def _side_by_side(
    wanted: Mapping[str, Any], columns: Sequence[Mapping[str, Any]], measured: Mapping[str, Row]
) -> list[str]:
    """Cells of a row that has runs of its own for every column, by the column's title."""
    cells = []
    for column in (_own(each, wanted) for each in columns):
        row = measured.get(wanted["runs"].get(column["title"], ""), Row(()))
        published = wanted.get("published", {}).get(column["title"])
        shown = _cell(row, column, published, "published" in column)
        cells += shown if row.records else ["–", *shown[1:]]
    return cells


def _cell(row: Row, column: Mapping[str, Any], published: Any, has_published: bool) -> list[str]:
    """A score, and what was published for it where the column has that; or layers, one by one."""
    if column.get("lists") and (layers := row.layers(column["result"], column["metric"])) is not None:
        return [f"{len(layers)}: {_ranges(layers)}"]
    digits, scale = column.get("digits", 1), column.get("scale", 1)
    values = row.values(column["result"], column["metric"])
    if not values:
        text = "–" if row.finished else "diverged"
    elif len(values) == 1:
        text = f"{next(iter(values.values())) * scale:.{digits}f}"
    else:
        spread = f"{mean(values.values()) * scale:.{digits}f} ± {stdev(values.values()) * scale:.{digits}f}"
        best = row.preferred(column["metric"], column.get("lower_is_better", False))
        text = f"{values[best] * scale:.{digits}f} ({spread})" if best in values else spread
    num_diverged = len(row.records) - len(row.finished)
    text += f", {num_diverged} diverged" if num_diverged and row.finished else ""
    return [text, "–" if published is None else str(published)] if has_published else [text]


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in their order, those that follow each other as one range."""
    ends: list[tuple[int, int]] = []
    for number in numbers:
        first = ends.pop()[0] if ends and ends[-1][1] == number - 1 else number
        ends.append((first, number))
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in ends)


def _facts(runs: str, row: Row) -> dict[str, str]:
    trained = [record["training"] for record in row.finished]
    where = sorted({training["hardware"] for training in trained})
    cells = (
        str(len(row.records)),
        f"{trained[0]['num_parameters'] / 1e6:.1f}M" if trained else "–",
        _clock(mean(training["seconds"] for training in trained)) if trained else "–",
        ", ".join(where) or "–",
        f"`{runs}`",
    )
    return dict(zip(FACTS, cells, strict=True))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def filled(page: str, tables: Mapping[str, str]) -> str:
    """A page with its tables in the place of what stood between their marks."""

    def of(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise NoRun(f"the page has a table {match[2]}, which {TABLES.name} does not describe")
        return f"{match[1]}{tables[match[2]]}{match[3]}"

    return _MARK.sub(of, page)


def headed(recipe: str, row: Row) -> str:
    """A recipe with a line in its header that tells what was measured, in the place of an earlier one."""
    lines = [line for line in recipe.splitlines(keepends=True) if not line.startswith(MEASURED)]
    end = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    quoted = next((name for name in QUOTED if any(name in record["results"] for record in row.finished)), None)
    if quoted is None:
        return "".join(lines)
    evaluation = next(record["results"][quoted] for record in row.finished if quoted in record["results"])
    (score,) = _cell(row, {"result": quoted, "metric": evaluation["metric"], "digits": 2}, None, False)
    num_diverged = len(row.records) - len(row.finished)
    facts, num_seeds = _facts("", row), num_diverged + len(row.values(quoted, evaluation["metric"]))
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
    said = f"{evaluation['metric']} {score} on {quoted}, trained in {facts['trained in']} on {facts['on']}, {seeds}"
    return "".join([*lines[:end], f"{MEASURED}{said}\n", *lines[end:]])


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def diverged_at(folder: Path) -> int | None:
    """The update at which the loss of a run was no number any more, by the last line of its log."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    loss = last.get("loss", last.get("valid_loss", 0.0))
    return last["update"] if loss is None or not math.isfinite(loss) else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collect = commands.add_parser("collect", help="take what runs hold into one file")
    collect.add_argument("runs", nargs="+", type=Path)
    collect.add_argument("--into", type=Path, required=True)
    write = commands.add_parser("write", help="fill the tables of the documentation")
    write.add_argument("--check", action="store_true", help="only say whether they are up to date")
    options = parser.parse_args(arguments)
    try:
        return _collect(options.runs, options.into) if options.command == "collect" else _write(options.check)
    except NoRun as error:
        print(error, file=sys.stderr)
        return 1


def _collect(runs: Sequence[Path], into: Path) -> int:
    """What can be collected is; folders that hold nothing are named."""
    found, problems = [], []
    for run in runs:
        try:
            found.append(collected(run))
        except NoRun as error:
            problems.append(error)
    add(into, found)
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


def _write(check: bool) -> int:
    measured = rows(record for path in sorted(RECORDS.glob("*.json")) for record in _json(path))
    descriptions = yaml.safe_load(TABLES.read_text(encoding="utf-8"))
    tables = {name: table(description, measured) for name, description in descriptions.items()}
    shown = {name for description in descriptions.values() for row in description["rows"] for name in runs_of(row)}
    for name in sorted(measured.keys() - shown):
        print(f"{name} was measured, but no table of {TABLES.name} shows it", file=sys.stderr)
    made = {page: filled(page.read_text(encoding="utf-8"), tables) for page in PAGES}
    for path in sorted(RECIPES.rglob("*.yaml")):
        row = measured.get(path.relative_to(RECIPES).with_suffix("").as_posix(), Row(()))
        made[path] = headed(path.read_text(encoding="utf-8"), row)
    is_old = False
    for page, new in made.items():
        if page.read_text(encoding="utf-8") != new:
            is_old = True
            if check:
                print(f"{page} is not what its results make it; run python benchmarks/results.py write")
            else:
                page.write_text(new, encoding="utf-8")
    return int(check and is_old)


if __name__ == "__main__":
    sys.exit(main())
