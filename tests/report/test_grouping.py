"""Runs of one recipe are one line with a band."""

import json
import statistics

import pytest

from depthwise.report import page_data, read_runs
from depthwise.report.grouping import grouped

from .conftest import MakeFolder, frontier, point


def test_seeds_of_a_recipe_are_one_group(make_folder: MakeFolder) -> None:
    folders = [make_folder(f"mine-seed{seed}", seed=seed) for seed in (1, 2, 3)]
    other = make_folder("wider", width=16)
    groups = grouped(read_runs([*folders, other]))
    assert [group.name for group in groups] == ["mine (3 seeds)", "wider"]
    assert [run.name for run in groups[0].runs] == ["mine-seed1", "mine-seed2", "mine-seed3"]


def test_runs_without_a_recipe_stay_alone(make_folder: MakeFolder) -> None:
    folders = [make_folder(name, **{"recipe.yaml": None}) for name in ("a", "b")]
    assert len(grouped(read_runs(folders))) == 2


def test_points_are_means_with_their_deviation(make_folder: MakeFolder) -> None:
    qualities = (90.0, 92.0, 97.0)
    folders = [
        make_folder(
            f"run{seed}",
            seed=seed,
            **{"results/frontier.json": json.dumps(frontier(point("fixed", quality, 4.0, 100 * seed, 1.0, depth=4)))},
        )
        for seed, quality in enumerate(qualities, start=1)
    ]
    (found,) = page_data(read_runs(folders))["frontiers"]
    (only,) = found["points"]
    assert only["quality"] == pytest.approx(statistics.fmean(qualities))
    assert only["quality_deviation"] == pytest.approx(statistics.stdev(qualities))
    assert only["flops"] == pytest.approx(200 / 100)  # of one input
    assert only["each"] == [[0, 90.0, 4.0, 1.0, 0.01], [1, 92.0, 4.0, 2.0, 0.01], [2, 97.0, 4.0, 3.0, 0.01]]
    assert found["runs"] == [0, 1, 2]


def test_a_quality_that_one_seed_lacks_has_no_mean(make_folder: MakeFolder) -> None:
    folders = [
        make_folder(
            f"run{seed}",
            seed=seed,
            **{"results/frontier.json": json.dumps(frontier(point("fixed", quality, 4.0, 1, 1.0, depth=4)))},
        )
        for seed, quality in enumerate((90.0, None))
    ]
    ((only,),) = (found["points"] for found in page_data(read_runs(folders))["frontiers"])
    assert only["quality"] is None
    assert "quality_deviation" not in only
    assert only["depth"] == 4.0


def test_curves_of_seeds_are_means(make_folder: MakeFolder) -> None:
    folders = [make_folder(f"run{seed}", seed=seed, scale=seed) for seed in (1, 2)]
    curves = page_data(read_runs(folders))["curves"]
    (nll,) = [curve for curve in curves if curve["name"] == "nll" and not curve["valid"]]
    assert [point[:2] for point in nll["points"]] == [[100, 6.0], [200, 3.0], [300, 2.0]]
    assert nll["points"][0][2] == pytest.approx(statistics.stdev([4.0, 8.0]), rel=1e-3)
