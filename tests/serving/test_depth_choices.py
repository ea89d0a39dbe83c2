"""What a request may ask for: full depth, exits, calibrated settings and budgets; everything else is said kindly."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from depthwise.config import ConfidenceConfig, PolicyConfig, policy_dict
from depthwise.errors import InputError
from depthwise.evaluation import CalibratedSetting, load_run, write_setting
from depthwise.evaluation.results import weights_digest
from depthwise.serving.depth_choices import DepthChoices

from .conftest import Start


def setting_of(folder: Path, options: PolicyConfig, quality: float, flops: int, **changes: Any) -> CalibratedSetting:
    found = CalibratedSetting(
        policy=policy_dict(options),
        goal={"quality_drop": 0.5},
        budget_met=True,
        metric="accuracy",
        quality=quality,
        full_quality=90.0,
        mean_depth=2.0,
        full_depth=4,
        flops=flops,
        full_flops=1000,
        risk=None,
        num_trials=1,
        split="valid",
        examples=5,
        examples_digest="",
        weights_digest=weights_digest(folder),
        settings={},
    )
    return replace(found, **changes)


@pytest.fixture
def folder(runs: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs["classes"], tmp_path / "run"))


BOLD, STRICT = ConfidenceConfig(threshold=(0.6,)), ConfidenceConfig(threshold=(0.99,))


def write_frontier(folder: Path, points: list[dict[str, Any]], **changes: Any) -> None:
    (folder / "results").mkdir(exist_ok=True)
    content = {"points": points, "weights_digest": weights_digest(folder), "metric": "accuracy", **changes}
    (folder / "results" / "frontier.json").write_text(json.dumps(content))


def point(policy: str, quality: float | None, flops: int, **setting: Any) -> dict[str, Any]:
    return {"policy": policy, "setting": setting, "quality": quality, "flops": flops}


POINTS = [
    point("fixed", 60.0, 250, depth=1),
    point("fixed", 89.0, 500, depth=2),
    point("fixed", 88.0, 750, depth=3),
    point("fixed", 90.0, 1000, depth=4),
    point("confidence", 89.9, 400, measure="max_probability", threshold=0.8),
    point("confidence", None, 300, measure="max_probability", threshold=0.7),
    point("separate", 95.0, 100, run="other", depth=2),
]


def choices(folder: Path, default: Any = None) -> DepthChoices:
    return DepthChoices(load_run(folder, device="cpu"), default)


def test_depths_and_names(folder: Path) -> None:
    write_setting(folder, "bold", setting_of(folder, BOLD, 80.0, 400))
    write_setting(folder, "strict", setting_of(folder, STRICT, 89.8, 800))
    found = choices(folder)
    assert found.chosen(None) is found.chosen("full") is found.chosen(4)
    assert (found.full.told, found.full.policy, found.full.options) == ("full", None, None)
    assert found.chosen("bold").options == BOLD
    assert found.chosen("bold").told == "confidence, measure max_probability, threshold 0.6"
    assert found.chosen("bold") is found.chosen("bold")
    assert [found.chosen(depth).told for depth in (1, 2)] == ["fixed, depth 1", "fixed, depth 2"]
    assert found.run.model.policy is None
    for asked, message in (
        (5, "no token can leave at depth 5; ask for one of 1, 2, 3, 4"),
        ("timid", 'has no calibrated setting "timid"; ask for full, a number or one of bold, strict'),
    ):
        with pytest.raises(InputError, match=message):
            found.chosen(asked)


@pytest.mark.parametrize(
    ("names", "met", "default"),
    [
        ([], True, "full"),
        (["only"], True, "only"),
        (["only"], False, "full"),
        (["one", "two"], True, "full"),
        (["one", "default"], True, "default"),
    ],
)
def test_what_nobody_asked_for(folder: Path, names: list[str], met: bool, default: str) -> None:
    for name in names:
        write_setting(folder, name, setting_of(folder, BOLD, 80.0, 400, budget_met=met))
    assert choices(folder).default == default
    assert choices(folder, 2).default == 2
    with pytest.raises(InputError, match='no calibrated setting "none"'):
        choices(folder, "none")


def test_settings_for_other_weights_are_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_setting(folder, "old", setting_of(folder, BOLD, 80.0, 400, weights_digest="other"))
    write_frontier(folder, POINTS, weights_digest="other")
    found = choices(folder)
    assert (found.named, found.measured) == ({}, [])
    assert "for other weights" in caplog.text


def test_budgets(folder: Path) -> None:
    write_frontier(folder, POINTS)
    write_setting(folder, "strict", setting_of(folder, STRICT, 89.8, 450))
    found = choices(folder)

    def told(**budget: float) -> str:
        return found.chosen(budget).told

    assert told(quality_drop=0.0) == told(compute=1.0) == "full"
    assert told(quality_drop=0.1) == "confidence, measure max_probability, threshold 0.8"
    assert told(quality_drop=50) == "fixed, depth 1"
    assert told(compute=0.399) == "fixed, depth 1"
    assert told(compute=0.4) == told(compute=0.99) == "confidence, measure max_probability, threshold 0.8"
    with pytest.raises(InputError, match=r"on a share of 0\.1 of the operations; give at least 0\.2500"):
        told(compute=0.1)


def test_budgets_from_a_calibration_alone(folder: Path) -> None:
    write_setting(folder, "strict", setting_of(folder, STRICT, 89.8, 450))
    found = choices(folder)
    assert found.chosen({"quality_drop": 0.2}) is found.chosen({"compute": 0.45}) is found.named["strict"]
    assert found.chosen({"quality_drop": 0.1}) is found.full


def test_a_metric_of_which_less_is_better(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs["text"], tmp_path / "run"))
    points = [point("fixed", 9.0, 250, depth=1), point("fixed", 7.0, 500, depth=2), point("fixed", 6.5, 1000, depth=4)]
    write_frontier(folder, points, metric="word_perplexity")
    found = choices(folder)
    assert found.chosen({"quality_drop": 0.5}).told == "fixed, depth 2"
    assert found.chosen({"quality_drop": 0.4}).told == "full"
    assert found.chosen({"compute": 0.6}).told == "fixed, depth 2"


def test_nothing_was_measured(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    message = "nobody has measured this run at any depth, .*; run depthwise calibrate or depthwise sweep"
    with pytest.raises(InputError, match=message):
        choices(folder).chosen({"compute": 1.0})
    (folder / "results").mkdir()
    for content in ("no json", "[]", json.dumps({"points": [{}], "weights_digest": weights_digest(folder)})):
        (folder / "results" / "frontier.json").write_text(content)
        assert choices(folder).measured == []
    assert "is no frontier of this run" in caplog.text


def test_a_run_without_exits(runs: dict[str, Path]) -> None:
    found = choices(runs["plain"])
    assert list(found.fixed) == [2]
    assert found.chosen(2) is found.full
    with pytest.raises(InputError, match="no exits to leave at before depth 2; ask for full"):
        found.chosen(1)
    with pytest.raises(InputError, match="make one with depthwise calibrate"):
        found.chosen("bold")


def test_over_http(start: Start, runs: dict[str, Path], folder: Path) -> None:
    """A setting by its name, as a default and by budgets; the answer says what it was."""
    write_setting(folder, "bold", setting_of(folder, BOLD, 89.8, 450))
    before = dict(runs)
    runs["calibrated"] = folder
    live = start("calibrated", "classes", num_examples=2)
    runs.clear()
    runs.update(before)
    (described, plain) = live.get("/v1/models").json()["models"]
    depths = described["depths"]
    assert (depths["default"], depths["budgets"], plain["depths"]["budgets"]) == ("bold", True, False)
    (setting,) = depths["settings"]
    assert (setting["name"], setting["compute"], setting["goal"]) == ("bold", 0.45, {"quality_drop": 0.5})
    assert described["examples"] == ["a b", "b c c"]
    asked: list[Any] = [None, "bold", {"quality_drop": 0.2}, {"compute": 0.5}]
    answers = [live.post("/v1/classify", model="calibrated", input="a b", depth=each).json() for each in asked]
    assert {answer["depth"]["policy"] for answer in answers} == {"confidence, measure max_probability, threshold 0.6"}
    assert [answer["depth"]["asked"] for answer in answers] == ["bold", *asked[1:]]
    assert len({json.dumps(answer["tokens"]) for answer in answers}) == 1
    refused = live.post("/v1/classify", model="classes", input="a b", depth={"compute": 0.5})
    assert refused.status_code == 422
    assert "depthwise calibrate" in refused.json()["error"]["remedy"]
