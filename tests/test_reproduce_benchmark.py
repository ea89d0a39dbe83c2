"""``benchmarks/reproduce.py``: every result of a table has a way to be made, and runs side by side leave records."""

import json
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def reproduce() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        import reproduce as module  # type: ignore[import-not-found]

        yield module
    finally:
        sys.path.remove(str(FOLDER))


def tables_of(reproduce: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(reproduce.results.TABLES.read_text(encoding="utf-8"))
    return found


def test_all_tables_can_be_planned(reproduce: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names = [name for name in tables_of(reproduce) if not name.startswith(reproduce.IN_ADVANCE)]
    assert len(names) > 15
    assert reproduce.main(["plan", *names, "--seeds", "1,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    trained = [line for line in lines if line.startswith("depthwise train ")]
    assert len({line.rpartition(" --out ")[2] for line in trained}) == len(trained) > 200
    assert "depthwise train translation/multi30k seed=1 --out runs/multi30k" in trained
    assert "depthwise train translation/multi30k seed=2 --out runs/multi30k-2" in trained


def test_results_of_one_row(reproduce: Any, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--results", "margin-0.5|chosen-margin", "--", "training.max_updates=2"]
    assert reproduce.main(["plan", "depth-multi30k", "--only", "aligned$", "--runs", "other", *more]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "depthwise train translation/dat-multi30k-aligned seed=1 training.max_updates=2 "
        "--out other/dat-multi30k-aligned",
        "depthwise evaluate other/dat-multi30k-aligned --depth policy policy.kind=confidence policy.measure=margin "
        "policy.threshold=0.5 --name test-margin-0.5",
        "depthwise evaluate other/dat-multi30k-aligned --depth policy policy.kind=confidence policy.measure=margin "
        "policy.threshold=0.5 generation.num_beams=1 --name test-greedy-margin-0.5",
        "depthwise calibrate other/dat-multi30k-aligned --quality-drop 0.3 policy.kind=confidence "
        "policy.measure=margin --name chosen-margin",
        "depthwise evaluate other/dat-multi30k-aligned --depth chosen-margin --name chosen-margin",
    ]


def test_data_that_judge_once_judge_once(reproduce: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """RTE has labels for validation alone: its recipe tests on the same."""
    assert reproduce.main(["plan", "finetuning", "--only", "rte|trec"]) == 0
    evaluated = [line for line in capsys.readouterr().out.splitlines() if " evaluate " in line]
    assert [line.split()[-1] for line in evaluated if "runs/rte" in line] == ["valid"]
    assert [line.split()[-1] for line in evaluated if "runs/trec" in line] == ["valid", "test"]


def test_models_without_gates_are_not_pruned(reproduce: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["plan", "latent", "--only", "tatoeba-(6-6|decoder-12-24)$", "--results", "test"]) == 0
    static, latent = "runs/latent-tatoeba-6-6", "runs/latent-tatoeba-decoder-12-24"
    assert capsys.readouterr().out.splitlines() == [
        f"depthwise train multilingual/latent-tatoeba-6-6 seed=1 --out {static}",
        f"depthwise evaluate {static} --name test",
        f"depthwise train multilingual/latent-tatoeba-decoder-12-24 seed=1 --out {latent}",
        f"depthwise evaluate {latent} --name test",
        f"depthwise prune {latent} {latent}/pruned --force --measure --name test-pruned",
    ]


def test_workers_start_as_in_a_plain_call(reproduce: Any) -> None:
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        multiprocessing.set_start_method("spawn", force=True)
        sys.modules["jobs"].start_processes_as_usual()
        assert multiprocessing.get_start_method(allow_none=True) is None
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_who_begins_with_another_waits(reproduce: Any) -> None:
    tables = ("structure", "structure-fixed", "structure-wanted", "structure-wanted-fixed", "structure-pretrained")
    rows = reproduce.wanted([tables_of(reproduce)[name] for name in tables])
    ways = yaml.safe_load(reproduce.EVALUATIONS.read_text(encoding="utf-8"))
    jobs = {job.name: job for job in reproduce.jobs_of(rows, [1], ways, Path("runs"))}
    assert jobs["alberta-small-mr"].needs == ("alberta-small",)
    assert jobs["alberta-small-mr-model.from_runs_alberta_small_fixed"].needs == ("alberta-small-fixed",)
    assert jobs["alberta-small"].needs == ()
    taught = jobs["alberta-small-wanted-mr-training.teacher.run_runs_alberta_small_wanted_fixed_mr"]
    assert taught.needs == ("alberta-small-wanted", "alberta-small-wanted-fixed-mr")


def test_long_names_stay_short_and_apart(reproduce: Any) -> None:
    changes = [f"training.optimizer.lr={number}" for number in range(9)]
    one, other = (reproduce._name("start/classify", [*changes, last]) for last in ("seed=1", "seed=2"))
    assert one != other
    assert max(map(len, (one, other))) <= reproduce.LONGEST + 9
    assert reproduce._name("start/classify", changes[:2]) == "-".join(
        ["classify", "training.optimizer.lr_0", "training.optimizer.lr_1"]
    )


def test_scripts_make_results_that_look_at_other_runs(reproduce: Any) -> None:
    ways = yaml.safe_load(reproduce.EVALUATIONS.read_text(encoding="utf-8"))
    found = reproduce.evaluation("frontier-mr", ways)
    beside = "alberta-small-mr-model.from_runs_alberta_small_fixed"
    assert found.others == {beside}
    calibrate, script = found.commands("runs/one")
    assert calibrate[:6] == ["calibrate", "runs/one", "--quality-drop", "0.5", "--beside", f"runs/{beside}"]
    assert script[:5] == ["structure.py", "frontier", "runs/one", "--split", "test"]
    assert script[-3:] == [f"runs/{beside}", "--name", "frontier-mr"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("table9", "there is no table table9; tables.yaml has "), ("faster-layers", "is made by python benchmarks/fast")],
)
def test_unknown_tables(reproduce: Any, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["plan", name]) == 1
    assert message in capsys.readouterr().err
    with pytest.raises(reproduce.NoTable, match="does not say how a result called magic is made"):
        reproduce.evaluation("magic", {"test": ""})


@pytest.mark.parametrize("given", [["--at-once", "0"], ["--results-at-once", "0"]])
def test_nothing_at_once_is_refused(reproduce: Any, given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It would wait forever."""
    with pytest.raises(SystemExit):
        reproduce.main(["run", "table3", *given])
    assert "--at-once and --results-at-once are 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--alone-seconds", "9"], ["--seconds", "5", "--alone-seconds", "9"]])
def test_last_seconds_of_none_are_refused(reproduce: Any, given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        reproduce.main(["run", "table3", *given])
    assert "--alone-seconds are the last of --seconds" in capsys.readouterr().err


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "x.tsv").write_text("a\tred red green\nb\tblue green\na\tred\nb\tblue blue one\n")
    content = {
        "task": "text_classification",
        "data": {**dict.fromkeys(("train", "valid", "test"), str(tmp_path / "x.tsv")), "cache": str(tmp_path)},
        "tokenizer": {"kind": "word", "vocab_size": 20},
        "model": {"width": 8, "encoder": {"num_layers": 1, "num_heads": 2}},
        "training": {"max_updates": 2},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    return str(tmp_path / "tiny.yaml")


def test_side_by_side(reproduce: Any, recipe: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Some work, and what fails takes with it only what needs it; then nothing is done twice."""
    from jobs import Campaign, Evaluation, Job  # type: ignore[import-not-found]

    valid, speed = Evaluation("valid", ("--split", "valid")), Evaluation("speed", is_alone=True)
    impossible = Evaluation("impossible", ("--depth", "7"))
    other = Evaluation("other", before=(("evaluate", "{run}", "--name", "first"),))
    jobs = [
        Job("later", recipe, ("seed=3", f"model.from={tmp_path}/runs/one"), (), ("one",)),
        Job("one", recipe, ("seed=1",), (speed, other, valid)),
        Job("two", recipe, ("seed=2",), (impossible, valid, Evaluation("beside", ("--against", "{runs}/wrong")))),
        Job("last", recipe, ("seed=5", f"model.from={tmp_path}/runs/two"), (), ("two",)),
        Job("wrong", recipe, ("model.width=7",), (valid,)),
        Job("lost", recipe, (f"model.from={tmp_path}/runs/wrong",), (), ("wrong",)),
    ]
    record = tmp_path / "records.json"

    def run(wanted: list[Any], **options: Any) -> int:
        code: int = Campaign(wanted, tmp_path / "runs", record, at_once=2, **options).run()
        return code

    assert run(jobs) == 1
    told = capfd.readouterr()
    assert "wrong train failed, see" in told.err
    assert "lost needs wrong, which was not trained" in told.err
    assert "two impossible failed, see" in told.err
    assert "two needs wrong, which was not trained" in told.err
    assert "width" in (tmp_path / "runs" / "wrong.log").read_text()
    order = [line.partition(" s  ")[2] for line in told.out.splitlines()]
    assert order.index("one train done") < order.index("later train begins")
    assert order.index("one valid done") < order.index("one other begins")
    assert order[-2:] == ["one speed begins", "one speed done"]
    found = {each["seed"]: each["results"] for each in json.loads(record.read_text())}
    names = {seed: sorted(results) for seed, results in found.items()}
    assert names == {1: ["first", "other", "speed", "valid"], 2: ["valid"], 3: [], 5: []}
    assert run(jobs[:2]) == 0
    assert capfd.readouterr().out == ""
    (tmp_path / "runs" / "lost").mkdir(exist_ok=True)
    (tmp_path / "runs" / "lost" / "metrics.jsonl").write_text('{"update": 1, "loss": null}\n')
    assert run([Job("lost", recipe, ("seed=4",), (valid,))]) == 0  # diverged in an earlier call, and would again
    assert capfd.readouterr().out == ""
    several = [Evaluation(name) for name in ("first", "second", "third")]
    assert run([Job("many", recipe, ("seed=6",), several)], results_at_once=1) == 0
    order = [line.partition(" s  ")[2] for line in capfd.readouterr().out.splitlines()]
    assert order[2:] == [f"many {each.name} {what}" for each in several for what in ("begins", "done")]
    assert run([Job("late", recipe, ("seed=4",), (valid,))], seconds=0.0) == 1
    assert "late was not finished in time; the same command goes on from there" in capfd.readouterr().err
    jobs = [Job("late", recipe, ("seed=4",), (valid,)), Job("many", recipe, ("seed=6",), (speed, other))]
    assert run(jobs, seconds=100.0, alone_seconds=100.0) == 1
    told = capfd.readouterr()
    assert [line.partition(" s  ")[2] for line in told.out.splitlines()] == ["many speed begins", "many speed done"]
    assert "late was not finished in time" in told.err
    assert "many was not finished in time" in told.err
