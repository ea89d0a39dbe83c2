"""``benchmarks/faster.py``: the commands of depth in advance are those that the tables look for."""

import shlex
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from depthwise.config import TeacherConfig, read_recipe
from depthwise.evaluation import evaluate_run, load_run

from .evaluation.test_word_depths import LAYERS, masked_word_run, word_run
from .scripts import loaded

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def faster() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        yield loaded("benchmarks/faster.py")
    finally:
        sys.path.remove(str(FOLDER))


def every(faster: Any) -> list[Any]:
    sets = ["trec", "mr", "sst2", "imdb", "agnews", "amazon16", "dbpedia", "subj", "yelp_p", "yelp_f"]
    domains = [f"amazon16-{name}" for name in faster.DOMAINS]
    jobs = faster.jobs([*sets, *domains], list(faster.METHODS), [1])
    jobs += faster.jobs(list(faster.FOLDED), list(faster.METHODS), [1], folds=True)
    sweeps = (("penalty", None), ("weights", None), ("layers", None), ("layers", "runs/faster-imdb-masked-12"))
    for sweep, begin in sweeps:
        jobs += faster.sweep_jobs(sweep, ["imdb", "trec"], [1], begin)
    return [*jobs, *faster.jobs(["imdb"], list(faster.METHODS), [1], begin="runs/faster-imdb-masked-12")]


def test_commands_are_recipes(faster: Any) -> None:
    """One of each kind of change."""
    jobs = {tuple(change.partition("=")[0] for change in job.changes): job for job in every(faster)}
    assert len(jobs) > 15
    for job in [*jobs.values(), *faster.jobs(["dbpedia", "subj", "yelp_p", "yelp_f"], ["mi"], [1])]:
        recipe = read_recipe(job.recipe, job.changes)
        assert recipe.data.train
        assert {each.name for each in job.evaluations} >= {"valid"}
        words = shlex.split(job.command)
        assert words[:3] == ["depthwise", "train", job.recipe]
    assert len(faster.DOMAINS) == 16


def test_tables_show_what_is_trained(faster: Any) -> None:
    results, trained = faster.results, {}
    for job in every(faster):
        trained[results.without_seed(job.command).removeprefix("depthwise train ")] = {
            each.name for each in job.evaluations
        }
    tables = results.yaml.safe_load(results.TABLES.read_text(encoding="utf-8"))
    names = [name for name in tables if name.startswith(faster.TABLES)]
    assert len(names) == 12
    for name in names:
        columns = {column["title"]: column for column in tables[name]["columns"]}
        for row in tables[name]["rows"]:
            runs = dict.fromkeys(columns, row["runs"]) if isinstance(row["runs"], str) else row["runs"]
            for title, command in runs.items():
                assert {**columns[title], **row}["result"] in trained[command], f"{name}, {row['label']}: {command}"


def test_folds(faster: Any, tmp_path: Path) -> None:
    lines = [f"{number % 2}\ttext {number}" for number in range(23)]
    (tmp_path / "a.tsv").write_text("".join(f"{line}\n" for line in lines[:20]))
    (tmp_path / "b.tsv").write_text("".join(f"{line}\n" for line in lines[20:]))
    assert faster.main(["folds", str(tmp_path / "a.tsv"), str(tmp_path / "b.tsv"), "--into", str(tmp_path)]) == 0
    tests = []
    for fold in range(1, faster.FOLDS + 1):
        parts = {split: (tmp_path / f"fold{fold}" / f"{split}.tsv").read_text().splitlines() for split in faster.SPLITS}
        assert sorted(line for part in parts.values() for line in part) == sorted(lines)
        tests += parts["test"]
    assert sorted(tests) == sorted(lines)


def test_what_is_planned(faster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert faster.main(["plan", "--sets", "trec", "--methods", "mi,reconstruction", "--seeds", "1,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    trained = [line for line in lines if line.startswith("depthwise train")]
    assert trained[0] == "depthwise train classification/faster-trec-mi seed=1 --out runs/faster-trec-mi-1"
    assert [line.rpartition("/")[2] for line in trained[2:]] == [
        *("faster-trec-masked", "faster-trec-reconstruction-1", "faster-trec-reconstruction-2")
    ]
    assert faster.main(["plan", "--sets", "trec", "--methods", "reconstruction", "--runs", "else/where"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "reconstruction-1" in line and "train" in line)
    assert "model.word_depths.run=else/where/faster-trec-masked" in line
    assert line.endswith("--out else/where/faster-trec-reconstruction-1")
    with pytest.raises(SystemExit):
        faster.main(["plan", "--methods", "magic"])


def test_who_is_taught_follows_the_teacher(faster: Any) -> None:
    """One model of all blocks for every seed and fold, shared by all that begin with it and learn from it."""
    methods = [name for name, method in faster.METHODS.items() if method.taught]
    assert len(methods) == 6
    for folds, ending in ((False, ""), (True, "-cv")):
        jobs = [
            faster.kept_in(Path("else"), job) for job in faster.jobs(["mr"], [*methods, "full"], [1, 2], folds=folds)
        ]
        seeds = range(1, faster.FOLDS + 1) if folds else (1, 2)
        names = [job.name for job in jobs]
        assert len(names) == len(set(names)) == (1 + len(methods)) * len(seeds)
        for seed, name in product(seeds, methods):
            full = f"faster-mr-full{ending}-{seed}"
            (job,) = (job for job in jobs if job.name == f"faster-mr-{name}{ending}-{seed}")
            assert job.needs == (full,)
            assert names.index(full) < names.index(job.name)
            recipe = read_recipe(job.recipe, job.changes)
            assert recipe.model["from"] == f"else/{full}"
            assert recipe.training.teacher == TeacherConfig(run=f"else/{full}", weight=0.7, temperature=2)
            assert (recipe.model["word_depths"] is None) is (name == "full-patient")
            longer = 3 if name.endswith("-patient") else 1
            assert recipe.training.max_epochs == longer * read_recipe(job.recipe).training.max_epochs
            assert job.evaluations == faster.USUAL
    keys = {faster.results.without_seed(job.command) for job in faster.jobs(["mr"], methods, [1, 2]) if job.needs}
    assert len(keys) == len(methods)
    assert all("model.from=runs/faster-mr-full training.teacher.run=runs/faster-mr-full " in key for key in keys)


def test_two_runs_on_the_same_words(faster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for estimator in ("mutual_information", "frequency"):
        (tmp_path / estimator).mkdir()
        folders.append(str(word_run(tmp_path / estimator, estimator=estimator)))
    capsys.readouterr()
    assert faster.main(["compare", *folders, "--most", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " words of 4 texts: " in lines[0]
    cells = [[int(cell) for cell in line.split("|")[2:-2]] for line in lines[3:] if line.startswith("|")]
    assert sum(map(sum, cells)) == int(lines[0].split()[0])
    assert faster.main(["compare", folders[0], folders[0]]) == 0
    assert "rank correlation 1.000" in capsys.readouterr().out


def test_what_stands_in_for_exact_depths(faster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = ("reconstruction", "reconstruction_table", "reconstruction_predictor")
    folders = [masked_word_run(tmp_path, kind) for kind in kinds]
    score = evaluate_run(load_run(folders[1], device="cpu"), "test").value
    capsys.readouterr()
    assert faster.main(["amortised", *map(str, folders), "--most", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    *rows, constant = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:])
    assert [row[:2] for row in rows] == [[str(folder), kind] for folder, kind in zip(folders, kinds, strict=True)]
    assert [row[2] for row in rows] == ["–", f"{score:.2f}", "–"]
    assert rows[0][4:6] == ["100.0", "0.000"]
    tasks = [load_run(folder, device="cpu").task for folder in folders]
    texts = ("a b", "b c c", "a a c", "c")
    exact, table, predictor = (
        [depth for text in texts for _, depth in task.words_with_depths([text])]  # type: ignore[attr-defined]
        for task in tasks
    )
    most = [max(set(exact), key=lambda depth: (exact.count(depth), -depth))] * len(exact)
    for row, depths in ((rows[1], table), (rows[2], predictor), (constant, most)):
        same = [one == other for one, other in zip(depths, exact, strict=True)]
        off = [abs(one - other) for one, other in zip(depths, exact, strict=True)]
        assert float(row[4]) == pytest.approx(100 * sum(same) / len(same), abs=0.05)
        assert float(row[5]) == pytest.approx(sum(off) / len(off), abs=0.0005)
        assert row is constant or float(row[6]) > 0


def test_speed_by_both_executors(
    faster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import faster_speed  # type: ignore[import-not-found]

    monkeypatch.setattr(faster_speed, "REPEATS", 1)
    folder = word_run(tmp_path)
    capsys.readouterr()
    assert faster.main(["speed", str(folder), "--rows", "1,3", "--device", "cpu"]) == 0
    *_, one, three = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (one, three)]
    assert [row[1] for row in cells] == ["1", "3"]
    assert cells[0][2] == cells[1][2]
    assert 1 <= float(cells[0][3]) <= float(cells[1][3]) <= LAYERS
    assert all(float(cell) > 0 for row in cells for cell in row[4:])


def test_depths_before_training(faster: Any, tmp_path: Path) -> None:
    import faster_depths  # type: ignore[import-not-found]

    (tmp_path / "x.tsv").write_text("a\tred red green\nb\tblue green\na\tred\nb\tblue blue one\n")
    recipe = {
        "task": "text_classification",
        "data": {**dict.fromkeys(("train", "test"), str(tmp_path / "x.tsv")), "cache": str(tmp_path)},
        "tokenizer": {"kind": "word", "vocab_size": 20},
        "model": {"width": 8, "encoder": {"num_layers": 3, "num_heads": 2}, "word_depths": {}},
        "training": {"max_updates": 1},
    }
    (tmp_path / "recipe.yaml").write_text(faster.yaml.safe_dump(recipe))
    *_, line = faster_depths.tabled([str(tmp_path / "recipe.yaml")], ["mutual_information"], 10, [])
    _, _, mean, deepest, _, shares = (cell.strip() for cell in line.strip("|").split("|"))
    # red, blue and the ends behind them run 1 block; green and one run more, and so do the ends of their texts
    assert 1 < float(mean) < float(deepest) <= 3
    assert sum(map(float, shares.split())) == pytest.approx(100, abs=0.2)
