"""``benchmarks/promises.py``: promises that are kept, those that are not, and the settings of a run on other data."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from depthwise.config import ConfidenceConfig
from depthwise.evaluation import (
    Goal,
    Run,
    calibrate,
    evaluation_of,
    load_run,
    read_examples,
    read_settings,
    write_setting,
)
from depthwise.metrics import compare_means
from depthwise.metrics import risk as bounds

from .evaluation.conftest import MakeRun, _no_bars, make_run, originals
from .scripts import loaded

__all__ = ["_no_bars", "make_run", "originals"]

promises = loaded("benchmarks/promises.py")

RISK, ERROR = 0.1, 0.1


def made_up(*rows: Any, full_depth: int = 9) -> Any:
    """Losses of examples at thresholds, each of which saves a block more than the one before."""
    return promises.Measured(
        names=tuple(f"threshold {place}" for place in range(len(rows))),
        losses=np.array(rows, np.float64),
        depths=tuple(float(8 - place) for place in range(len(rows))),
        full_depth=full_depth,
    )


def drawn(*chances: float, num: int = 4000, seed: int = 0) -> Any:
    """Losses of 0 and 1, of which bounds are tightest; harder examples fail at every bolder threshold too."""
    hardness = np.random.default_rng(seed).random(num)
    return made_up(*(hardness < chance for chance in chances))


def by_bound(known: Any, examples: int, risk: float = RISK, resamples: int = 200) -> dict[str, Any]:
    found = promises.resampled(known, risk, ERROR, examples, resamples, seed=1)
    return {kept.bound: kept for kept in found}


def test_promises_are_kept_where_means_are_not_to_be_trusted() -> None:
    """One threshold is a little too bold. The mean falls for it every other time, the bounds at most by ε."""
    found = by_bound(drawn(0.01, 0.04, 0.07, 0.102, 0.3), 600)
    assert set(found) == {"hoeffding", "bentkus", "no bound"}
    for bound in ("hoeffding", "bentkus"):
        assert found[bound].rate <= ERROR
        assert found[bound].broken_on_pool <= ERROR * 200
        assert found[bound].nothing == 0
        assert found[bound].mean_loss < RISK
    assert found["no bound"].broken_on_pool > 50
    assert found["no bound"].interval[0] > ERROR
    assert found["bentkus"].mean_depth < found["hoeffding"].mean_depth
    assert found["no bound"].mean_depth < found["bentkus"].mean_depth


def test_a_bound_that_is_none_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bounds.P_VALUES, "hoeffding", lambda mean_loss, num, risk: float(mean_loss > risk + 0.05))
    found = by_bound(drawn(0.01, 0.04, 0.07, 0.102, 0.3), 600)
    assert found["hoeffding"].interval[0] > ERROR
    assert found["bentkus"].rate <= ERROR


def test_counts_by_hand() -> None:
    """All examples alike: 0 lost, then everything, then nothing again. The walk ends before what the mean jumps to."""
    found = by_bound(made_up([0.0] * 200, [1.0] * 200, [0.0] * 200), 160, resamples=5)
    for bound, depth in (("hoeffding", 8), ("bentkus", 8), ("no bound", 6)):
        kept = found[bound]
        assert (kept.broken, kept.broken_on_pool, kept.nothing, kept.mean_depth, kept.mean_loss) == (0, 0, 0, depth, 0)
    kept = found["bentkus"].as_dict()
    assert kept["rate"] == 0
    assert kept["interval"] == pytest.approx((0, 1 - 0.025 ** (1 / 5)))


def test_the_rest_judges() -> None:
    """Three losses of 30: a set that has none of them passes, and leaves all three to the ten others."""
    known = made_up([1.0] * 3 + [0.0] * 27)
    kept = by_bound(known, 20, risk=0.2, resamples=300)["no bound"]
    assert kept.nothing == 0
    assert kept.broken_on_pool == 0
    assert 0 < kept.broken < 300
    # All three among ten of thirty: (10 · 9 · 8) / (30 · 29 · 28)
    assert kept.rate == pytest.approx(720 / 24360, abs=0.03)


def test_where_nothing_can_be_promised() -> None:
    few = by_bound(made_up([0.0] * 100), 30)
    assert few["hoeffding"].nothing == few["bentkus"].nothing == 200
    assert (few["hoeffding"].mean_depth, few["hoeffding"].mean_loss, few["hoeffding"].rate) == (None, None, 0)
    assert few["no bound"].nothing == 0
    bad = by_bound(made_up([1.0] * 400), 200)
    assert {kept.nothing for kept in bad.values()} == {200}
    saves_nothing = by_bound(made_up([0.0] * 400, full_depth=8), 200)
    assert {kept.nothing for kept in saves_nothing.values()} == {200}


def test_the_same_seed_draws_the_same_sets() -> None:
    known = drawn(0.05, 0.1, 0.11, num=300)
    first, second = (promises.resampled(known, RISK, ERROR, 150, 50, seed=3) for _ in range(2))
    assert first == second
    assert first != promises.resampled(known, RISK, ERROR, 150, 50, seed=4)


class MadeUpTrials:
    """Full depth is always right, and a setting wrong with a chance: a point is a hundredth of the examples."""

    def __init__(self, **chances: float) -> None:
        num = 4000
        self.examples = list(range(num))
        self.full = self.trial(9.0, [True] * num)
        hardness = np.random.default_rng(0).random(num)
        self.known = [self.trial(float(depth[1:]), hardness >= chance) for depth, chance in chances.items()]
        self.run = SimpleNamespace(task=SimpleNamespace(compare=self.compare))

    def trial(self, mean_depth: float, right: Any) -> Any:
        return SimpleNamespace(mean_depth=mean_depth, outcome=SimpleNamespace(predictions=right))

    def leaves(self, trial: Any) -> bool:
        return bool(trial.mean_depth < 9)

    def compare(self, ours: list[bool], theirs: list[bool], examples: list[int]) -> Any:
        sides = ([100.0 * right for right in side] for side in (ours, theirs))
        return compare_means(*sides, num_resamples=200)


def test_budgets_are_exceeded_where_one_is_not_sure() -> None:
    trials = MadeUpTrials(d1=0.5, d2=0.02, d3=0.001)
    trusting, sure = promises.resampled_drops(trials, trials.known, 2.0, 400, 60, seed=1)
    assert (trusting.sure, sure.sure) == (False, True)
    assert sure.exceeded <= 6
    assert trusting.exceeded > 3 * max(sure.exceeded, 3)
    assert (trusting.nothing, sure.nothing) == (0, 0)
    assert trusting.mean_depth < sure.mean_depth <= 3
    assert sure.mean_lost < 1 < trusting.mean_lost
    nothing = promises.resampled_drops(trials, trials.known[:1], 2.0, 400, 5, seed=1)
    assert [(each.nothing, each.mean_lost) for each in nothing] == [(5, None)] * 2


# On a run


@pytest.fixture
def run(make_run: MakeRun, tmp_path: Path) -> Run:
    folder = make_run("leaving classes")
    lines = ["good\ta b", "bad\tb c c", "good\ta a c", "bad\tc"] * 15
    (tmp_path / "more.tsv").write_text("".join(f"{line}\n" for line in lines))
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(read_path(recipe), str(tmp_path / "more.tsv")))
    return load_run(folder, device="cpu")


def read_path(recipe: Path) -> str:
    """That of all three splits of a tiny run."""
    return next(line.split(": ")[1] for line in recipe.read_text().splitlines() if line.startswith("  valid:"))


def test_what_is_measured_is_what_calibrate_looks_at(run: Run) -> None:
    examples = read_examples(run.task, "valid")
    known = promises.measured(run, examples, ["policy.kind=confidence"], "quality")
    assert known.losses.shape == (25, 60)
    assert known.full_depth == 4
    assert run.model.policy is None
    found = calibrate(run, "valid", examples, Goal(risk=0.5, confidence=0.2, of="quality"))
    assert found.risk is not None
    place = furthest = promises.furthest_passing(known.losses.mean(1).tolist(), 60, 0.5, 0.2)
    assert furthest is not None
    assert known.names[place].endswith(f"threshold {found.options.threshold[0]:g}")  # type: ignore[union-attr]
    assert known.losses[place].mean() == pytest.approx(found.risk["mean_loss"])
    assert known.depths[place] == found.mean_depth


def test_the_command(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kept.json"
    sizes = ["--risk", "0.3", "0.6", "--confidence", "0.2", "--resamples", "20", "--examples", "40"]
    assert promises.main([str(run.folder), "policy.kind=confidence", *sizes, "--json", str(file)]) == 0
    output = capsys.readouterr().out
    assert "test and valid: 120 examples" in output
    assert "20 calibration sets of 40, each judged on 80 others" in output
    content = json.loads(file.read_text())
    assert [(kept["risk"], kept["bound"]) for kept in content["kept"]] == [
        (risk, bound) for risk in (0.3, 0.6) for bound in ("hoeffding", "bentkus", "no bound")
    ]
    assert len(content["sequence"]) == 25
    assert content["pool"] == 120


def test_the_command_for_budgets(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "drops.json"
    sizes = ["--quality-drop", "0", "100", "--resamples", "3", "--examples", "40"]
    assert promises.main([str(run.folder), "policy.kind=confidence", *sizes, "--json", str(file)]) == 0
    assert "3 calibration sets of 40, each judged on 80 others" in capsys.readouterr().out
    found = json.loads(file.read_text())["drops"]
    assert [(each["quality_drop"], each["sure"]) for each in found] == [
        *((0.0, False), (0.0, True), (100.0, False), (100.0, True))
    ]
    assert all(each["exceeded"] == 0 for each in found[2:])
    assert run.model.policy is None


def test_settings_on_test_data(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part of a goal is what an evaluation by that setting finds."""
    examples = read_examples(run.task, "valid")
    goals = {
        "fast": Goal(depth_budget=2.5),
        "good": Goal(quality_drop=100.0),
        "careful": Goal(risk=0.5, confidence=0.2),
    }
    for name, goal in goals.items():
        write_setting(run.folder, name, calibrate(run, "valid", examples, goal))
    other = tmp_path / "other.tsv"
    other.write_text("bad\tc c c b\nbad\ta\n" * 20)
    changes, file = [f"data.test={other}"], tmp_path / "settings.json"
    assert promises.main([str(run.folder), *changes, "--settings", "--json", str(file)]) == 0
    output = capsys.readouterr().out
    found = {each["setting"]: each for each in json.loads(file.read_text())["promises"]}
    assert set(found) == set(goals)
    tested = {
        name: evaluation_of(here, "test", read_examples(here.task, "test"))
        for name in (*goals, "full")
        for here in [load_run(run.folder, changes, device="cpu", depth=name)]
    }
    full = tested["full"]
    assert found["fast"]["found"] == tested["fast"].mean_depth
    assert found["good"]["found"] == pytest.approx((full.value or 0) - (tested["good"].value or 0))
    changed = np.mean(
        [ours != theirs for ours, theirs in zip(tested["careful"].predictions, full.predictions, strict=True)]
    )
    assert found["careful"]["found"] == pytest.approx(changed)
    assert found["careful"]["what"] == "risk of answers"
    for each in found.values():
        assert each["is_kept"] is (each["found"] <= each["at_most"] + 1e-9)
    assert output.count("yes") + output.count("NO") + output.count("nothing was") == 3


def test_a_promise_that_is_broken() -> None:
    part = {"setting": "a", "what": "mean depth", "calibrated": 2.0, "was_met": True}
    assert promises.Promise(at_most=2.5, found=2.5, **part).is_kept
    assert not promises.Promise(at_most=2.5, found=2.6, **part).is_kept


def test_mistakes(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run.folder)
    for arguments, message in {
        ("--settings",): "has no calibrated settings; make one: depthwise calibrate",
        ("--examples", "10"): "calibration sets of 10 examples cannot be drawn from 120; give --examples from 20 to 20",
        ("--examples", "110"): "sets of 110 examples cannot be drawn from 120",
        ("--risk", "0.01"): "60 examples are too few to promise a risk of 0.01",
        ("--risk", "2"): "the risk lies between 0 and 1",
        ("policy.threshold=0.5", "--risk", "0.5"): "leave policy.threshold out",
    }.items():
        assert promises.main([folder, *arguments]) == 1
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        promises.main([folder, "--resamples", "0"])


def test_settings_of_another_search(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrate(run, "valid", read_examples(run.task, "valid"), Goal(depth_budget=2.5), policy=ANY)
    write_setting(run.folder, "fast", found)
    path = run.folder / "calibration.json"
    assert read_settings(run.folder)["fast"].settings["precision"] == "fp32"
    path.write_text(path.read_text().replace('"precision": "fp32"', '"precision": "bf16"'))
    assert promises.main([str(run.folder), "--settings"]) == 1
    assert 'the setting "fast" was calibrated with another precision; give' in capsys.readouterr().err


ANY = ConfidenceConfig(threshold=(0.5,))
