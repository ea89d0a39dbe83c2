"""Points, their lines and their marks."""

import json
from typing import Any

from depthwise.report import page_data, read_runs
from depthwise.report.frontiers import line_of, name_of

from .conftest import MakeFolder, frontier, point, setting


def points_of(make_folder: MakeFolder, **files: Any) -> list[dict[str, Any]]:
    (found,) = page_data(read_runs([make_folder(**files)]))["frontiers"]
    points: list[dict[str, Any]] = found["points"]
    return points


def test_lines_and_names() -> None:
    usual = {"policy": "confidence", "setting": {"measure": "max_probability", "threshold": 0.9}}
    margin = {"policy": "confidence", "setting": {"measure": "margin", "threshold": [0.5, 0.25]}}
    fixed = {"policy": "fixed", "setting": {"depth": 3}}
    alone = {"policy": "separate", "setting": {"run": "runs/two", "depth": 2}}
    assert name_of(alone) == "two, trained by itself with 2 blocks"
    assert [line_of(each) for each in (usual, margin, fixed)] == ["confidence", "confidence margin", "fixed"]
    assert [name_of(each) for each in (usual, margin, fixed)] == [
        "confidence 0.9",
        "confidence margin 0.5 0.25",
        "fixed depth 3",
    ]


def test_every_point_of_the_file_is_there(make_folder: MakeFolder) -> None:
    points = points_of(make_folder)
    content = frontier()["points"]
    swept = [each for each in points if each["line"] != "calibrated"]
    assert [(each["policy"], each["setting"], each["quality"], each["depth"]) for each in swept] == [
        (each["policy"], each["setting"], each["quality"], each["mean_depth"]) for each in content
    ]
    assert [each["flops"] for each in swept] == [each["flops"] / 100 for each in content]
    assert [each["seconds"] for each in swept] == [each["seconds"] / 100 for each in content]


def test_the_full_model_and_the_cheapest_of_its_quality(make_folder: MakeFolder) -> None:
    points = points_of(make_folder)
    assert [each["name"] for each in points if each.get("full")] == ["fixed depth 4"]
    assert [each["name"] for each in points if each.get("cheapest")] == ["confidence 0.9"]


def test_the_cheapest_is_by_operations_since_deciding_costs_some(make_folder: MakeFolder) -> None:
    swept = frontier(
        point("fixed", 50.0, 4.0, 400, 1.0, depth=4),
        point("fixed", 50.0, 3.0, 300, 1.0, depth=3),
        point("patience", 51.0, 1.0, 500, 1.0, patience=1),
        point("separate", 60.0, 1.0, 10, 1.0, run="shallow", depth=1),
        point("fixed", None, 1.0, 1, 1.0, depth=1),
    )
    points = points_of(make_folder, **{"results/frontier.json": json.dumps(swept)})
    assert [each["name"] for each in points if each.get("cheapest")] == ["fixed depth 3"]


def test_where_less_is_better(make_folder: MakeFolder) -> None:
    swept = frontier(
        point("fixed", 20.0, 4.0, 400, 1.0, depth=4),
        point("fixed", 30.0, 3.0, 300, 1.0, depth=3),
        point("patience", 19.0, 3.5, 390, 1.0, patience=1),
        metric="perplexity",
        higher_is_better=False,
    )
    points = points_of(make_folder, **{"results/frontier.json": json.dumps(swept)})
    assert [each["name"] for each in points if each.get("cheapest")] == ["patience 1"]


def test_a_calibrated_setting_that_was_not_swept_is_a_point(make_folder: MakeFolder) -> None:
    (found,) = [each for each in points_of(make_folder) if each["line"] == "calibrated"]
    assert (found["quality"], found["depth"], found["flops"], found["seconds"]) == (99.6, 1.7, 2100.0, None)
    assert found["calibrated"] == [{"name": "drop-0.5", "met": True, "goal": "lose at most 0.5 exact_match"}]


def test_a_calibrated_setting_that_was_swept_marks_its_point(make_folder: MakeFolder) -> None:
    chosen = setting({"kind": "confidence", "threshold": [0.9]}, budget_met=False)
    text = json.dumps({"schema": 1, "settings": {"mine": chosen}})
    points = points_of(make_folder, **{"calibration.json": text})
    assert len(points) == 5
    (marked,) = [each for each in points if each.get("calibrated")]
    assert marked["name"] == "confidence 0.9"
    assert marked["calibrated"][0]["met"] is False


def test_a_setting_of_other_weights_or_data_is_no_point(make_folder: MakeFolder) -> None:
    policy = {"kind": "confidence", "threshold": [0.8]}
    settings = {"a": setting(policy, weights_digest="x"), "b": setting(policy, examples_digest="x")}
    folder = make_folder(**{"calibration.json": json.dumps({"schema": 1, "settings": settings})})
    data = page_data(read_runs([folder]))
    assert not any(each.get("calibrated") for each in data["frontiers"][0]["points"])
    assert [each["name"] for each in data["runs"][0]["settings"]] == ["a", "b"]  # they are still told of


def test_a_setting_of_an_unknown_policy_is_missing(make_folder: MakeFolder) -> None:
    text = json.dumps({"schema": 1, "settings": {"odd": setting({"kind": "oracle of delphi"})}})
    data = page_data(read_runs([make_folder(**{"calibration.json": text})]))
    assert any('"odd" is of a policy that this version does not know' in each for each in data["runs"][0]["missing"])


def test_two_sweeps_of_one_run(make_folder: MakeFolder) -> None:
    folder = make_folder(**{"results/frontier-greedy.json": json.dumps(frontier())})
    names = [each["name"] for each in page_data(read_runs([folder]))["frontiers"]]
    assert names == ["run, frontier", "run, frontier-greedy"]
