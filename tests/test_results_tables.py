"""The tables of docs/results.md: made of what runs hold, and of nothing else."""

import json
import re
import shlex
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from depthwise.config import Recipe, built_in, read_recipe
from depthwise.tasks.build import TASKS

from .scripts import loaded

results = loaded("benchmarks/results.py")

TABLE = {
    "label": "model",
    "columns": [
        {"title": "BLEU", "result": "test", "metric": "bleu", "published": "published"},
        {"title": "tokens/s", "result": "speed", "metric": "tokens_per_second", "digits": 0},
    ],
    "rows": [
        {"label": "Transformer", "runs": "translation/x", "published": {"BLEU": 41.0}},
        {"label": "unnormalised", "runs": "translation/y"},
        {"label": "never trained", "runs": "translation/z"},
    ],
}

OTHERS = {"label": "somebody's", "published": {"BLEU": 41.02}}


def make_run(folder: Path, command: str, seed: int, test: float | None, valid: float = 0.0) -> Path:
    """A run whose training diverged where there is no score."""
    (folder / "results").mkdir(parents=True)
    (folder / "recipe.given.yaml").write_text(f"# {command}\nseed: {seed}\n")
    (folder / "recipe.yaml").write_text(f"seed: {seed}\n")
    loss = {"update": 300, "loss": None if test is None else 2.0}
    (folder / "metrics.jsonl").write_text(json.dumps({"update": 100, "loss": 3.0}) + "\n" + json.dumps(loss) + "\n")
    if test is not None:
        training = {"seconds": 59.6 + seed, "num_parameters": 2_570_000, "hardware": "a GPU", "num_updates": 300}
        (folder / "training.json").write_text(json.dumps(training))
        for name, value in {"test": test, "valid": valid}.items():
            costs = {"tokens_per_second": 1234.5, "mean_depth": 2.5, "flops": 3 * 10**9}
            content = {"metric": "bleu", "metrics": {"bleu": value}, **costs, "examples_digest": "abc"}
            (folder / "results" / f"{name}.json").write_text(json.dumps(content))
            (folder / "results" / "frontier.json").write_text("{}")
    return folder


@pytest.fixture
def records(tmp_path: Path) -> list[Any]:
    runs = [
        make_run(tmp_path / "1", "depthwise train translation/x", 1, test=40.0, valid=30.0),
        make_run(tmp_path / "2", "depthwise train translation/x seed=2", 2, test=41.0, valid=32.0),
        make_run(tmp_path / "3", "depthwise train translation/x seed=3", 3, test=42.0, valid=31.0),
        make_run(tmp_path / "4", "depthwise train translation/y", 1, test=None),
    ]
    into = tmp_path / "some" / "records.json"
    assert results.main(["collect", *map(str, runs), "--into", str(into)]) == 0
    assert results.main(["collect", str(runs[0]), "--into", str(into)]) == 0  # once more, which changes nothing
    found: list[Any] = json.loads(into.read_text())
    return found


def test_recipes_tell_what_was_measured(records: list[Any]) -> None:
    row = results.rows(records)["translation/x"]
    recipe = "# A model\n# command: depthwise train translation/x\ntask: translation\n"
    first = results.headed(recipe, row)
    line = first.splitlines()[2]
    assert line.startswith("# measured: bleu 4")
    assert line.endswith(f"on a GPU, {len(row.records)} seeds")
    assert first.replace(f"{line}\n", "") == recipe
    assert results.headed(first, row) == first
    assert results.headed(first, results.Row(())) == recipe
    trained_only = {**row.records[0], "seed": 9, "results": {}}
    assert results.headed(recipe, results.Row((*row.records, trained_only))).splitlines()[2].endswith(line[-7:])


def test_what_is_collected(records: list[Any]) -> None:
    assert [(record["seed"], record["diverged"]) for record in records] == [(1, None), (2, None), (3, None), (1, 300)]
    assert list(records[0]["results"]) == ["test", "valid"]
    assert "examples_digest" not in records[0]["results"]["test"]


def test_a_table(records: list[Any]) -> None:
    lines = results.table(TABLE, results.rows(records)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][:4] == ["model", "BLEU", "published", "tokens/s"]
    assert cells[2][:4] == ["Transformer", "41.0 (41.0 ± 1.0)", "41.0", "–"]  # seed 2 is the best on validation data
    assert cells[2][4:] == ["3", "2.6M", "1:02", "a GPU", "`translation/x`"]
    assert cells[3] == ["unnormalised", "diverged", "–", "diverged", "1", "–", "–", "–", "`translation/y`"]
    assert len(cells) == 4


def test_seeds_that_diverge_are_told(records: list[Any], tmp_path: Path) -> None:
    lost = make_run(tmp_path / "5", "depthwise train translation/x seed=5", 5, test=None)
    scored, unmeasured = TABLE["columns"]
    row = results.rows([*records, results.collected(lost)])["translation/x"]
    assert results._cell(row, scored, None, True) == ["41.0 (41.0 ± 1.0), 1 diverged", "–"]
    assert results._cell(row, unmeasured, None, False) == ["–, 1 diverged"]
    row = results.rows([records[0], results.collected(lost)])["translation/x"]
    assert results._cell(row, scored, None, False) == ["40.0, 1 diverged"]


def test_the_preferred_seed_may_not_be_measured_yet(records: list[Any]) -> None:
    del records[1]["results"]["test"]
    column = {"title": "x", "result": "test", "metric": "bleu"}
    assert results._cell(results.rows(records)["translation/x"], column, None, False) == ["41.0 ± 1.4"]


def test_one_seed_and_lower_is_better(records: list[Any]) -> None:
    column = {"title": "x", "result": "test", "metric": "bleu", "lower_is_better": True}
    assert results._cell(results.rows(records)["translation/x"], column, None, False) == ["40.0 (41.0 ± 1.0)"]
    assert results._cell(results.rows(records[:1])["translation/x"], column, None, False) == ["40.0"]


def test_a_seed_alone_among_diverged_ones_is_told(records: list[Any], tmp_path: Path) -> None:
    lost = make_run(tmp_path / "5", "depthwise train translation/x seed=5", 5, test=None)
    row = results.rows([records[0], results.collected(lost)])["translation/x"]
    assert results._cell(row, TABLE["columns"][0], None, False) == ["40.0, 1 diverged"]  # type: ignore[index]


def test_seeds_that_were_not_evaluated(records: list[Any]) -> None:
    """Validation data prefers seed 2, which has no score on the test set; and it does not judge speed."""
    del records[1]["results"]["test"]
    row = results.rows(records)["translation/x"]
    assert results._cell(row, TABLE["columns"][0], None, False) == ["41.0 ± 1.4"]  # type: ignore[index]
    speed = {"title": "tokens/s", "result": "valid", "metric": "tokens_per_second"}
    assert results._cell(row, speed, None, False) == ["1234.5 ± 0.0"]


def test_what_no_table_shows_is_told(
    records: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RECORDS", tmp_path / "some")
    results.main(["write", "--check"])
    assert "translation/x was measured, but no table" in capsys.readouterr().err


def test_nothing_measured() -> None:
    assert results.table(TABLE, {}) == "Not measured yet.\n"
    assert results.table({**TABLE, "rows": [OTHERS]}, {}) == "Not measured yet.\n"


def test_layers_one_by_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "depthwise train translation/x", 1, test=40.0)
    pruned = {"de": [0, 1, 2, 5, 7, 8], "fr": [3]}
    content = {"metric": "bleu", "metrics": {"decoder_layers/de": 6.0}, "settings": {"layers": {"decoder": pruned}}}
    (run / "results" / "test-pruned.json").write_text(json.dumps(content))
    row = results.rows([results.collected(run)])["translation/x"]

    def cell(metric: str) -> str:
        (text,) = results._cell(row, {"result": "test-pruned", "metric": metric, "lists": True}, None, False)
        return str(text)

    assert cell("decoder_layers/de") == "6: 0–2, 5, 7–8"
    assert cell("decoder_layers/fr") == "1: 3"
    assert cell("decoder_layers/nl") == cell("encoder_layers/de") == "–"


def cells_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_figures_of_others_stand_where_they_are_named(records: list[Any]) -> None:
    table = {**TABLE, "rows": [OTHERS, *TABLE["rows"]], "facts": ["seeds"]}
    head, _, first, second, _ = cells_of(results.table(table, results.rows(records)))
    assert head == ["model", "BLEU", "published", "tokens/s", "seeds"]
    assert first == ["somebody's", "41.02", "–", "–", "–"]
    assert second == ["Transformer", "41.0 (41.0 ± 1.0)", "41.0", "–", "3"]


def test_a_row_may_have_its_own_result_and_metric(records: list[Any]) -> None:
    row = {"label": "x", "runs": "translation/x", "result": "training", "metric": "num_updates", "digits": 0}
    *_, cells = cells_of(results.table({**TABLE, "rows": [row]}, results.rows(records[:1])))
    assert cells[:4] == ["x", "300", "–", "300"]


def test_a_row_may_have_its_own_result_in_one_column(records: list[Any]) -> None:
    two = [
        {"title": "test", "result": "test", "metric": "bleu"},
        {"title": "again", "result": "test", "metric": "bleu"},
    ]
    row = {"label": "valid", "runs": "translation/x", "result": {"again": "valid"}}
    text = results.table({"label": "", "columns": two, "rows": [row], "facts": []}, results.rows(records))
    assert text.splitlines()[-1] == "| valid | 41.0 (41.0 ± 1.0) | 32.0 (31.0 ± 1.0) |"


def test_a_row_may_fill_names(records: list[Any]) -> None:
    rows = [{"label": "x", "runs": "translation/x", "of": "est", "at": "eu"}]
    columns = [{"title": "BLEU", "result": "t{of}", "metric": "bl{at}"}]
    text = results.table({**TABLE, "columns": columns, "rows": rows}, results.rows(records))
    assert "| x | 41.0 (41.0 ± 1.0) | 3 |" in text


def test_a_column_may_show_the_same_of_all_rows(records: list[Any]) -> None:
    column = {"title": "depth", "result": "test", "metric": "mean_depth"}
    row = {"label": "x", "runs": "translation/x", "metric": "bleu"}
    of_rows, of_all = (
        results.table({"label": "", "columns": [each], "rows": [row], "facts": []}, results.rows(records[:1]))
        for each in (column, {**column, "same_of_all": True})
    )
    assert of_rows.splitlines()[-1] == "| x | 40.0 |"
    assert of_all.splitlines()[-1] == "| x | 2.5 |"


def test_costs_of_a_result(records: list[Any]) -> None:
    columns = [
        {"title": "depth", "result": "other", "metric": "mean_depth", "digits": 2},
        {"title": "GFLOPs", "result": "other", "metric": "flops", "scale": 1e-9},
    ]
    row = {"label": "x", "runs": "translation/x", "result": "test"}
    *_, cells = cells_of(results.table({"label": "", "columns": columns, "rows": [row]}, results.rows(records[:1])))
    assert cells[1:3] == ["2.50", "3.0"]


def test_runs_side_by_side(records: list[Any]) -> None:
    columns = [
        {"title": "ours", "result": "test", "metric": "bleu", "published": "theirs"},
        {"title": "other", "result": "test", "metric": "bleu"},
    ]
    row = {"label": "x", "runs": {"ours": "translation/x", "other": "translation/nothing"}, "published": {"ours": 40.5}}
    table = {"label": "data", "columns": columns, "rows": [row], "facts": []}
    head, _, cells = cells_of(results.table(table, results.rows(records)))
    assert head == ["data", "ours", "theirs", "other"]
    assert cells == ["x", "41.0 (41.0 ± 1.0)", "40.5", "–"]
    unmeasured = {**table, "rows": [{**row, "runs": {"ours": "translation/nothing"}}]}
    assert results.table(unmeasured, results.rows(records)) == "Not measured yet.\n"


def test_folds_are_seeds(tmp_path: Path) -> None:
    commands = [f"depthwise train c/x seed={fold} data.train=data/mr/fold{fold}/train.tsv" for fold in (1, 2)]
    runs = [make_run(tmp_path / str(fold), command, fold, test=40.0) for fold, command in enumerate(commands, 1)]
    found = results.rows(map(results.collected, runs))
    assert list(found) == ["c/x data.train=data/mr/fold/train.tsv"]
    assert len(found["c/x data.train=data/mr/fold/train.tsv"].records) == 2


def test_what_can_be_collected_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = make_run(tmp_path / "whole", "depthwise train translation/x", 1, test=40.0)
    broken = make_run(tmp_path / "broken", "depthwise train translation/x seed=2", 2, test=40.0)
    (broken / "training.json").unlink()  # interrupted
    into = tmp_path / "x.json"
    assert results.main(["collect", str(broken), str(whole), "--into", str(into)]) == 1
    assert f"{broken} holds no finished training" in capsys.readouterr().err
    assert [record["seed"] for record in json.loads(into.read_text())] == [1]


RATES = {"examples_per_second", "tokens_per_second", "updates_per_second", "items_per_second", "mean_depth", "flops"}
OF_TRAINING = {"best"}
OF_PRUNING = re.compile(
    r"(?:soft_|hard_)(?P<score>\w+)|times_as_fast"
    r"|(?P<side>encoder|decoder)_layers(?:_before|/(?P<language>\w+))?"
)
TABLES = yaml.safe_load(results.TABLES.read_text())


def is_of_pruning(metric: str, result: str, recipe: Recipe, known: Collection[str]) -> bool:
    """Whether ``depthwise prune --measure --name`` finds it of such a run; those without gates have an empty cell."""
    match = OF_PRUNING.fullmatch(metric)
    if "pruned" not in result or match is None:
        return False
    pairs, place = recipe.data.pairs, ("encoder", "decoder").index(match["side"] or "encoder")
    languages = ["all"] if pairs is None else [pair.split("-")[place] for pair in pairs]
    return match["score"] in (None, *RATES, *known) and match["language"] in (None, *languages)


OF_STRUCTURE = ("frontier-", "speeds-")
"""Results that ``benchmarks/structure.py`` makes; what they hold is tested there."""


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_of_recipes_and_metrics_that_exist(name: str) -> None:
    columns = TABLES[name]["columns"]
    assert set(TABLES[name].get("facts", ())) <= set(results.FACTS)
    for row in TABLES[name]["rows"]:
        assert set(row) <= {"label", "runs", "published", "of", "at", *results.OWN}
        assert set(row.get("published", {})) <= {
            column["title"] for column in columns if "runs" not in row or "published" in column
        }
        if "runs" not in row:
            continue
        assert isinstance(row["runs"], str) or set(row["runs"]) <= {column["title"] for column in columns}
        for recipe_name, *changes in map(shlex.split, results.runs_of(row)):
            recipe = read_recipe(recipe_name, changes)
            task = object.__new__(TASKS[recipe.task])
            task.recipe, task.tokenizers = recipe, SimpleNamespace(source=range(100), target=range(100))  # type: ignore[assignment]
            for column in columns:
                own = results._own(column, row)
                metric, result, known = own["metric"], own["result"], task.known_metrics()
                assert (
                    metric in RATES
                    or (result == results.TRAINING and metric in OF_TRAINING)
                    or is_of_pruning(metric, result, recipe, known)
                    or result.startswith(OF_STRUCTURE)
                    or metric.split("/")[0] in known
                ), f"{row['label']}: {metric}"


def test_every_recipe_that_is_trained_here_has_a_row() -> None:
    rows = [row for table in TABLES.values() for row in table["rows"]]
    shown = {name.split(" ")[0] for row in rows for name in results.runs_of(row)}
    elsewhere = (
        "start/",
        "demo/",
        "translation/table",
        "translation/iwslt14-",
        "translation/wmt",
        "translation/dat-iwslt14-",
        "translation/dat-wmt",
        "translation/latent-wmt",
        "multilingual/latent-ted8",
        "masked_language_modeling/latent-wiki25",
        "summarization/cnndm",
        *(f"classification/faster-{name}-" for name in ("dbpedia", "subj", "yelp_p", "yelp_f")),
        *(f"masked_language_modeling/alberta-{size}" for size in ("base", "large", "xlarge", "xxlarge")),
        *(f"classification/alberta-{name}" for name in ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")),
        *("answering/alberta-squad2", "tagging/alberta-conll2003"),
    )
    others = {
        "classification/finetune",
        "masked_language_modeling/anytime",
        "language_modeling/billion_word-transformer",
        "language_modeling/billion_word-dynamicconv",
    }
    shown = {name for name in shown if not name.startswith(elsewhere)}
    assert shown == {known.name for known in built_in() if not known.name.startswith(elsewhere)} - others


def test_pages_are_filled_between_marks() -> None:
    page = "a\n<!-- table one -->\nold | table\n<!-- end -->\nb <!-- end -->\n"
    assert results.filled(page, {"one": "new\n"}) == "a\n<!-- table one -->\nnew\n<!-- end -->\nb <!-- end -->\n"
    with pytest.raises(results.NoRun, match="a table one"):
        results.filled(page, {})


@pytest.mark.parametrize("name", ["training.json", "recipe.given.yaml"])
def test_folders_that_are_no_runs(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", "depthwise train translation/x", 1, test=40.0)
    (run / name).write_text("\n") if name.endswith("yaml") else (run / name).unlink()
    assert results.main(["collect", str(run), "--into", str(tmp_path / "x.json")]) == 1
    assert str(run) in capsys.readouterr().err


def test_the_documentation_is_up_to_date() -> None:
    assert results.main(["write", "--check"]) == 0
