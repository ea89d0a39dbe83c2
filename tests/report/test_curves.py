"""Logs of training as pictures."""

import json

import pytest

from depthwise.report import page_data, read_runs
from depthwise.report.curves import MOST_CELLS, MOST_UPDATES, thinned

from .conftest import MakeFolder


@pytest.mark.parametrize(("count", "most"), [(1, 5), (5, 5), (6, 5), (1001, 10)])
def test_thinned_keeps_the_last(count: int, most: int) -> None:
    kept = thinned(range(count), most)
    assert len(kept) <= most
    assert kept[-1] == count - 1
    assert kept == sorted(kept)


def test_curves(make_folder: MakeFolder) -> None:
    curves = page_data(read_runs([make_folder()]))["curves"]
    assert [(curve["name"], curve["valid"]) for curve in curves] == [
        ("nll", False),
        ("nll_at_1", False),
        ("gradient_norm", False),
        ("nll", True),
    ]
    assert curves[0]["points"] == [[100, 4.0], [200, 2.0], [300, 1.333]]
    assert curves[3]["points"] == [[300, 1.5]]


def test_gates_gradients_and_samples(make_folder: MakeFolder) -> None:
    maps = page_data(read_runs([make_folder()]))["heat_maps"]
    assert [(each["kind"], each["side"], each["language"]) for each in maps] == [
        ("gates", "decoder", "a"),
        ("gates", "decoder", "b"),
        ("gradients", "decoder", ""),
        ("samples", "decoder", "a"),
        ("samples", "decoder", "b"),
    ]
    assert maps[0]["updates"] == [100, 200, 300]
    assert maps[0]["rows"] == [[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]]
    assert maps[2]["rows"] == [[0.1, 0.2, 0.3], [0.2, 0.4, 0.6]]
    assert maps[3]["rows"] == [[1, 1, 1], [0, 0, 0]]


def test_long_logs_stay_small(make_folder: MakeFolder) -> None:
    lines = [json.dumps({"update": n, "nll": 1 / n}) for n in range(1, 5000)]
    gates = [
        json.dumps({"update": n, "encoder": {each: {"probabilities": [0.5] * 100} for each in "abcdefgh"}})
        for n in range(1, 200)
    ]
    folder = make_folder(**{"metrics.jsonl": "\n".join(lines), "layers.jsonl": "\n".join(gates)})
    data = page_data(read_runs([folder]))
    (curve,) = data["curves"]
    assert len(curve["points"]) <= MOST_UPDATES
    assert curve["points"][-1][0] == 4999
    assert len(data["heat_maps"]) == 8
    assert sum(len(row) for each in data["heat_maps"] for row in each["rows"]) <= MOST_CELLS


def test_gates_that_change_their_number_are_left_out(make_folder: MakeFolder) -> None:
    lines = [{"update": n, "decoder": {"all": {"probabilities": [0.5] * n}}} for n in (2, 2, 3)]
    lines.append({"update": 4, "decoder": {"all": {"probabilities": ["x"]}, "odd": 3}})
    folder = make_folder(**{"layers.jsonl": "\n".join(map(json.dumps, lines))})
    gates = [each for each in page_data(read_runs([folder]))["heat_maps"] if each["kind"] == "gates"]
    assert [each["rows"] for each in gates] == [[[0.5, 0.5], [0.5, 0.5]]]
