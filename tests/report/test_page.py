"""One file that holds everything, asks for nothing, and shows the text of strangers as text."""

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from depthwise.report import page, page_data, read_runs
from depthwise.report.data import policy_changes
from depthwise.report.page import embedded, text

from .conftest import MakeFolder, depths, evaluation, frontier, point

HOSTILE = [
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "<!-- <script>",
    "]]>&lt;b&gt;&amp;",
    "\u202eevil\u2066 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "😀👩\u200d👩\u200d👧 \u2028\u2029 \x00\x07",
    "{{script}} {{data}} ${alert(1)}",
    "x" * 5000,
]


def hostile_sentence(value: str) -> dict[str, Any]:
    guesses = [[[value, 0.5], [value, 1.0]]]
    sides = {"source": value, "reference": f"{value}!", "output": value}
    return {**sides, "tokens": [f" {value}", value], "depths": [1, 4], "left_out": 0, "guesses": guesses}


def hostile_run(make_folder: MakeFolder) -> Path:
    """A run whose every text comes from somebody who means harm."""
    swept = frontier(
        point("fixed", 10.0, 4.0, 1, 1.0, depth=4),
        point(HOSTILE[0], 10.0, 1.0, 1, 1.0, measure=HOSTILE[1]),
        metric=HOSTILE[0],
        hardware=HOSTILE[1],
        task=HOSTILE[2],
    )
    shown = {**depths(*map(hostile_sentence, HOSTILE)), "setting": HOSTILE[0]}
    shown["histograms"]["tag"] = {"bins": HOSTILE, "counts": [[1, 0, 0, 1]] * len(HOSTILE)}
    return make_folder(
        "<b>&run",
        **{
            "recipe.yaml": f"task: {json.dumps(HOSTILE[1])}\nnote: {json.dumps(HOSTILE)}\n",
            "recipe.given.yaml": f"# depthwise train {HOSTILE[0]}\n",
            "results/frontier.json": json.dumps(swept),
            "results/depths.json": json.dumps(shown),
            "results/<i>.json": json.dumps(evaluation(1.0, 2.0, metrics={HOSTILE[0]: 1.0}, metric=HOSTILE[0])),
            "metrics.jsonl": json.dumps({"update": 1, HOSTILE[0]: 1.0}) + "\n",
            "layers.jsonl": json.dumps({"update": 1, HOSTILE[0]: {HOSTILE[1]: {"probabilities": [0.5]}}}) + "\n",
        },
    )


class Elements(html.parser.HTMLParser):
    """Names of all elements, their attributes, and the text of each script."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def test_the_data_comes_out_as_it_went_in(make_folder: MakeFolder) -> None:
    data = page_data(read_runs([make_folder()]))
    found = Elements(page(data))
    assert len(found.scripts) == 2
    assert json.loads(found.scripts[0]) == json.loads(json.dumps(data))


def test_nothing_is_asked_of_anybody(make_folder: MakeFolder) -> None:
    content = page(page_data(read_runs([make_folder()])))
    found = Elements(content)
    assert not {"link", "img", "iframe", "object", "form"} & set(found.names)
    links = [value for name, value in found.attributes if name in ("src", "href")]
    assert all(value is not None and value.startswith("#") for value in links)
    policy = next(value for name, value in found.attributes if name == "content" and "default-src" in str(value))
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(found.scripts[1].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}';")
    assert "http" not in content.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_hostile_text_is_text(make_folder: MakeFolder) -> None:
    plain = Elements(page(page_data(read_runs([make_folder()]))))
    content = page(page_data(read_runs([hostile_run(make_folder)])))
    found = Elements(content)
    assert set(found.names) == set(plain.names)
    assert len(found.scripts) == 2
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    shown = json.loads(found.scripts[0])
    assert [sentence["source"] for sentence in shown["runs"][0]["depths"]["sentences"]] == HOSTILE
    assert found.scripts[1] == plain.scripts[1]
    content.encode()  # has no half of a character
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069\x00]", content)


@pytest.mark.parametrize("value", HOSTILE)
def test_embedded_json_has_no_markup(value: str) -> None:
    told = embedded({value: [value, float("nan"), {"inner": float("inf")}]})
    assert not set("<>&") & set(told)
    assert told.isascii()
    assert json.loads(told) == {value: [value, None, {"inner": None}]}


def test_text_for_markup() -> None:
    assert text("<a href='x'>\"&\x00\ud800") == "&lt;a href=&#x27;x&#x27;&gt;&quot;&amp;\ufffd\ufffd"


def test_a_page_of_nothing_says_so(tmp_path: Path) -> None:
    content = page(page_data(read_runs([tmp_path])))
    assert "Nothing has been measured here yet" in content
    assert "1 thing is missing" in content
    assert "holds nothing of a run" in content


def test_recipe_commands_and_versions_are_there(make_folder: MakeFolder) -> None:
    folder = make_folder()
    content = page(page_data(read_runs([folder])))
    for told in (
        f"depthwise train start/translate seed=1 --out {folder}",
        f"depthwise sweep {folder} --split valid --batch-rows 1 --limit 100",
        f"depthwise evaluate {folder} --split test<",
        f"depthwise calibrate {folder} --quality-drop 0.5 --name drop-0.5 --split valid",
        "model: {width: 8}",
        "12,345",
        "300 updates in 12 s on abacus",
        "torch 2.",
    ):
        assert told in content


def test_a_policy_as_arguments() -> None:
    policy = {"kind": "confidence", "threshold": [0.5, 0.25], "decay": None, "measure": "margin", "temperature": []}
    assert policy_changes(policy) == ["policy.kind=confidence", "policy.threshold=[0.5,0.25]", "policy.measure=margin"]


def test_twenty_runs_of_a_hundred_settings_stay_below_five_megabytes(make_folder: MakeFolder) -> None:
    fixed = [point("fixed", 50.0 + n, float(n), 10**9 + n, 1.23456789, depth=n) for n in range(1, 5)]
    others = [
        point(
            "confidence", 87.654321 + n / 7, 1 + n / 37, 123456789 * n, 12.3456789, measure="margin", threshold=n / 97
        )
        for n in range(1, 97)
    ]
    sentence = {
        **{"source": "word " * 30, "reference": "word " * 30, "output": "ward " * 30, "left_out": 0},
        **{"tokens": [" word"] * 60, "depths": [2] * 60, "guesses": [[[" word", 0.123]] * 60] * 12},
    }
    metrics = [
        {
            "update": n,
            **{f"nll_at_{e}": 1.23456789 / n for e in range(12)},
            **{f"valid_nll_at_{e}": 1.0 for e in range(12)},
        }
        for n in range(1, 400)
    ]
    gates = [
        {"update": n, "decoder": {each: {"probabilities": [0.12345] * 24} for each in ("de", "es", "fr", "nl")}}
        for n in range(1, 300)
    ]
    files = {
        "results/frontier.json": json.dumps(frontier(*fixed, *others)),
        "results/depths.json": json.dumps(depths(*[sentence] * 24)),
        "metrics.jsonl": "\n".join(map(json.dumps, metrics)),
        "layers.jsonl": "\n".join(map(json.dumps, gates)),
    }
    folders = [make_folder(f"run{n}", width=n, **files) for n in range(20)]
    data = page_data(read_runs(folders))
    assert sum(len(each["points"]) for each in data["frontiers"]) >= 2000
    content = page(data)
    assert len(content.encode()) < 5_000_000
    assert all(run["depths"]["sentences"] for run in data["runs"])
