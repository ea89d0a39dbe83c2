"""The page as a person uses it: in a real browser, by pointer and by keyboard, on a phone, in the dark and on paper.

Needs Chromium (``apt-get install chromium``, or ``CHROMIUM=/path/to/it``) and Playwright, which ``.[dev]`` installs.
"""

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from depthwise.report import page as html_of
from depthwise.report import page_data, read_runs

from .conftest import MakeFolder, depths, frontier, point, structured, structured_files
from .test_page import HOSTILE, hostile_run

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
WHY_NOT = (
    "Playwright is not installed; pip install playwright"
    if importlib.util.find_spec("playwright") is None
    else "Chromium is not installed; apt-get install chromium, or say where it is by CHROMIUM=..."
    if CHROMIUM is None
    else None
)
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
PHONE, DESK = {"width": 390, "height": 800}, {"width": 1200, "height": 900}

CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const style = getComputedStyle(element), isSvg = element instanceof SVGElement;
    const front = light(parse(isSvg ? style.fill : style.color)), back = light(behind(element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) found.push([element.tagName, element.className, element.textContent.slice(0, 30), ratio]);
  }
  return found;
}"""

NAMELESS = """() => [...document.querySelectorAll("button, select, input, a, [tabindex], [role=img], [role=group]")]
  .filter((element) => !element.closest("[hidden]"))
  .filter((element) => {
    const labels = element.labels ? [...element.labels].map((label) => label.textContent).join("") : "";
    const content = element.matches("button, a, select, input") ? element.textContent : "";
    return !(element.getAttribute("aria-label") || labels || content).trim();
  }).map((element) => element.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Screen:
    """Opens pages and remembers everything that they complain of."""

    def __init__(self, chromium: Any, folder: Path) -> None:
        self.chromium, self.folder, self.complaints = chromium, folder, list[str]()
        self.asked = list[str]()
        self.contexts: list[Any] = []

    def open(self, *folders: Path, size: dict[str, int] = DESK, scheme: str = "light") -> Any:
        file = self.folder / f"page{len(self.contexts)}.html"
        file.write_bytes(html_of(page_data(read_runs(folders))).encode())
        context = self.chromium.new_context(viewport=size, color_scheme=scheme)
        self.contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: self.complaints.append(message.text))
        opened.on("pageerror", lambda error: self.complaints.append(str(error)))
        opened.on("request", lambda request: self.asked.append(request.url))
        opened.goto(file.as_uri())
        return opened


@pytest.fixture
def screen(chromium: Any, tmp_path: Path) -> Iterator[Screen]:
    """No page may write to the console, or ask for anything but itself."""
    found = Screen(chromium, tmp_path)
    yield found
    for context in found.contexts:
        context.close()
    assert found.complaints == []
    assert [url for url in found.asked if not url.startswith(("file:", "blob:"))] == []


def chosen(page: Any, section: str, label: str, value: str) -> None:
    page.locator(f"#{section}-controls").get_by_label(label).select_option(value)


def test_the_chart_has_the_points_of_the_file(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder())
    swept = page.locator("#frontier-chart .point:not(.calibrated)")
    assert swept.count() == len(frontier()["points"])
    assert page.locator("#frontier-chart .point.calibrated").count() == 1
    assert page.locator("#frontier-chart .point.full .ring").count() == 1
    chosen(page, "frontier", "Cost", "seconds")
    assert page.locator("#frontier-chart .point").count() == len(
        frontier()["points"]
    )  # nobody timed the calibrated one
    assert "measured time per input (ms)" in page.locator("#frontier-chart svg").text_content()


def test_hovering_shows_values(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder())
    assert page.locator("#tip").is_hidden()
    page.get_by_role("img", name="run, confidence 0.9: exact_match 100.00 at 2.00 blocks").hover()
    told = page.locator("#tip").inner_text()
    for value in ("confidence 0.9", "100.00", "2.00 of 4, 50 %", "2.40 kFLOPs, 60 %", "30.0 ms, 75 %", "cheapest"):
        assert value in told
    page.locator("h1").hover()
    assert page.locator("#tip").is_hidden()


def test_the_keyboard_goes_through_all_points(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder())
    page.locator("#frontier-chart .point").first.focus()
    seen = [page.locator("#tip b").inner_text()]
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        seen.append(page.locator("#tip b").inner_text())
    assert seen[0] == "fixed depth 1"
    assert seen[-1] == "fixed depth 4"
    assert len(set(seen)) == 6
    assert page.locator('#frontier-chart .point[tabindex="0"]').count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_policies_and_runs_can_be_left_out(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder("a"), make_folder("b", width=9))
    points = page.locator("#frontier-chart .point")
    assert points.count() == 12
    page.get_by_role("button", name="fixed", exact=True).click()
    assert points.count() == 8
    page.locator("#frontier-controls").get_by_role("button", name="b", exact=True).click()
    assert points.count() == 4
    assert page.get_by_role("button", name="fixed", exact=True).get_attribute("aria-pressed") == "false"
    for name in ("confidence", "confidence margin", "calibrated"):
        page.get_by_role("button", name=name, exact=True).click()
    assert "Nothing to draw" in page.locator("#frontier-chart").inner_text()


def test_seeds_are_a_mean_with_a_band(screen: Screen, make_folder: MakeFolder) -> None:
    folders = [
        make_folder(
            f"run{seed}",
            seed=seed,
            **{
                "results/frontier.json": json.dumps(
                    frontier(*(point("fixed", 10.0 * n + seed, n, 100 * n, n, depth=n) for n in range(1, 5)))
                )
            },
        )
        for seed in (1, 2, 3)
    ]
    page = screen.open(*folders)
    assert page.locator("#frontier-chart .point").count() == 4
    assert page.locator("#frontier-chart .band").count() == 1
    assert "one standard deviation over seeds" in page.locator("#frontier-note").inner_text()
    page.locator("#frontier-chart .point").first.hover()
    assert "12.00 ± 1.00" in page.locator("#tip").inner_text()
    assert page.locator("#curves-chart .band").count() == 1


def test_data_of_different_kinds_is_not_mixed(screen: Screen, make_folder: MakeFolder) -> None:
    other = json.dumps(frontier(point("fixed", 3.0, 4.0, 4, 4.0, depth=4), metric="perplexity", higher_is_better=False))
    page = screen.open(make_folder("a"), make_folder("b", width=9, **{"results/frontier.json": other}))
    assert page.locator("#frontier-chart .point").count() == 6
    chosen(page, "frontier", "Data", "translation · valid · perplexity")
    assert page.locator("#frontier-chart .point").count() == 1
    assert "down is better" in page.locator("#frontier-note").inner_text()


def test_the_table_is_sorted_and_filtered(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder())
    rows = page.locator("#settings-table tbody tr")
    names = page.locator("#settings-table tbody td:first-child")
    assert rows.count() == 6
    assert "calibrated: drop-0.5" in rows.nth(5).inner_text()
    head = page.get_by_role("columnheader", name="mean depth").first
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names.first.inner_text().startswith("fixed depth 1")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert names.first.inner_text().startswith("fixed depth 4")
    page.locator("#settings-controls").get_by_label("Filter").fill("confidence 0.9")
    assert rows.count() == 1
    page.locator("#settings-controls").get_by_label("Filter").fill("")
    page.get_by_label("calibrated ones only").check()
    assert rows.count() == 1


def test_many_settings_are_shown_on_demand(screen: Screen, make_folder: MakeFolder) -> None:
    swept = frontier(*(point("patience", n / 2, 1 + n / 99, n, n / 9, patience=n) for n in range(1, 131)))
    page = screen.open(make_folder(**{"results/frontier.json": json.dumps(swept), "calibration.json": None}))
    assert page.locator("#settings-table tbody tr").count() == 100
    page.get_by_role("button", name="Show all 130").click()
    assert page.locator("#settings-table tbody tr").count() == 130


def test_tokens_show_what_every_exit_said(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder())
    token = page.get_by_role("button", name="two, depth 4")
    token.hover()
    told = page.locator("#tip").inner_text()
    for value in ("two", "left after 4 of 4 blocks", "exit 1 two", "90.0 %", "exit 4 ◀ too", "80.0 %"):
        assert value in " ".join(told.split())
    page.get_by_role("button", name="one, depth 1").focus()
    page.keyboard.press("ArrowRight")
    assert token.evaluate("(element) => element === document.activeElement")
    shades = {name: page.get_by_role("button", name=name).evaluate("(e) => getComputedStyle(e).backgroundColor")
              for name in ("one, depth 1", "two, depth 4", "tree, depth 4")}  # fmt: skip
    assert shades["two, depth 4"] == shades["tree, depth 4"] != shades["one, depth 1"]


def test_sentences_are_filtered(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder())
    sentences = page.locator(".sentence")
    assert sentences.count() == 2
    page.get_by_label("Sentences with").fill("TREE")
    assert sentences.count() == 1
    assert "right: three" in sentences.first.inner_text()
    page.get_by_label("Sentences with").fill("nowhere")
    assert page.locator("#tokens-count").inner_text() == "0 of 2 sentences"
    page.get_by_label("Sentences with").fill("")
    chosen(page, "tokens", "Show", "deepest")
    assert "3" in sentences.first.inner_text()
    chosen(page, "tokens", "Show", "wrong")
    assert sentences.count() == 1


def test_histograms_layers_and_curves(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder())
    bars = page.locator("#depths-chart .bar")
    assert bars.count() == 4
    bars.first.hover()
    assert "1 of 4 blocks: 1 of 2 tokens, 50 %" in page.locator("#tip").inner_text()
    chosen(page, "depths", "By", "all")
    assert bars.count() == 4
    assert page.locator("#depths-chart svg").get_attribute("aria-label") == "Depths by all tokens"
    assert page.locator("#layers-chart .cell").count() == 6
    page.locator("#layers-chart svg").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "chance that a layer is used 0.2" in page.locator("#layers-chart svg").get_attribute("aria-label")
    chosen(page, "layers", "Picture", "3")
    assert "last sample of a gate, a" in page.locator("#layers-chart svg").get_attribute("aria-label")
    assert page.locator("#layers-chart .cell").count() == 6
    chosen(page, "layers", "Picture", "5")
    assert "all languages at the last update" in page.locator("#layers-chart svg").get_attribute("aria-label")
    assert page.locator("#layers-chart .cell").count() == 4
    assert page.locator("#curves-chart .point").count() == 4
    chosen(page, "curves", "Number", "nll at every exit")
    assert page.locator("#curves-chart .point").count() == 3


def test_curves_within_a_power_of_ten_have_labels(screen: Screen, make_folder: MakeFolder) -> None:
    lines = ({"update": 100 * n, "loss": 9.4 - n / 5, "nll": 9.4 - n / 5} for n in range(1, 8))
    page = screen.open(make_folder(**{"metrics.jsonl": "".join(json.dumps(line) + "\n" for line in lines)}))
    shown = page.locator("#curves-chart text").all_text_contents()
    assert {"8", "8.5", "9"} <= set(shown)


def test_depths_say_what_tokens_left_by(screen: Screen, make_folder: MakeFolder) -> None:
    plain = json.dumps(depths(policy=None, setting="as trained, without a policy"))
    for content, told in {json.dumps(depths()): "by confidence", plain: "ran, as trained, without a policy:"}.items():
        page = screen.open(make_folder(f"told {len(told)}", **{"results/depths.json": content}))
        assert told in page.locator("#tokens-about").inner_text()


def test_downloads(screen: Screen, make_folder: MakeFolder) -> None:
    folder = make_folder()
    page = screen.open(folder)
    with page.expect_download() as begun:
        page.get_by_role("link", name="Settings as CSV").click()
    lines = Path(begun.value.path()).read_text().splitlines()
    assert begun.value.suggested_filename == "depthwise.csv"
    assert len(lines) == 7
    assert lines[4].startswith('run,translation,valid,exact_match,confidence,"{""measure""')
    with page.expect_download() as begun:
        page.get_by_role("link", name="Everything as JSON").click()
    assert json.loads(Path(begun.value.path()).read_text()) == json.loads(json.dumps(page_data(read_runs([folder]))))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_readable_and_named(screen: Screen, make_folder: MakeFolder, scheme: str, size: dict[str, int]) -> None:
    folders = make_folder("a"), make_folder("b", width=9, **structured_files(structured()))
    page = screen.open(*folders, size=size, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate(CONTRASTS) == []
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_theme_can_be_chosen(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder(), scheme="dark")
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert button.inner_text() == "Theme: light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(CONTRASTS) == []


def test_on_paper(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder(), scheme="dark")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#frontier-controls").is_hidden()
    assert page.locator("#frontier-chart svg").is_visible()
    assert page.evaluate(CONTRASTS) == []


def test_hostile_text_is_shown_as_text(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(hostile_run(make_folder), size=PHONE)
    assert page.title() != "taken"
    assert page.locator("img, script").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator(".sentence").count() == len(HOSTILE)
    assert HOSTILE[0] in page.locator(".sentence").first.inner_text()
    page.locator(".sentence").first.locator(".token").first.hover()
    assert HOSTILE[0][:30] in page.locator("#tip").inner_text()
    page.locator("#frontier-chart .point").first.hover()
    chosen(page, "depths", "By", "tag")
    assert page.locator("#depths-chart .bar").count() == 2 * len(HOSTILE)
    assert page.title() != "taken"


def test_an_empty_folder_says_what_is_missing(screen: Screen, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    page = screen.open(tmp_path / "empty")
    assert page.locator("#missing").get_attribute("open") is not None
    assert "holds nothing of a run" in page.locator("#missing").inner_text()
    for section in ("frontier", "settings", "tokens", "depths", "structure", "layers", "curves"):
        assert page.locator(f"#{section}").is_hidden()


def test_whatever_is_missing_nothing_breaks(screen: Screen, make_folder: MakeFolder) -> None:
    """The screen sees to it that no page complains."""
    files = ("config.json", "training.json", "metrics.jsonl", "layers.jsonl", "calibration.json", "recipe.yaml")
    results = ("results/frontier.json", "results/depths.json", "results/test.json")
    for number, file in enumerate((*files, *results)):
        page = screen.open(make_folder(f"run{number}", **{file: None}))
        assert page.locator("#runs details").count() == 1
    bare = json.dumps({**depths(), "sentences": [{"source": 3}], "histograms": {"all": {"bins": []}}})
    page = screen.open(make_folder("bare", **{"results/depths.json": bare}))
    assert page.locator("#tokens").is_hidden()
    assert page.locator("#depths").is_hidden()


def test_twenty_runs_open_quickly(screen: Screen, make_folder: MakeFolder) -> None:
    swept = json.dumps(
        frontier(
            *(point("fixed", 9.0 * n, n, n, n, depth=n) for n in range(1, 5)),
            *(point("patience", n / 2, 1 + n / 99, n, n / 9, patience=n) for n in range(1, 97)),
        )
    )
    folders = [make_folder(f"run{n}", width=n, **{"results/frontier.json": swept}) for n in range(20)]
    page = screen.open(*folders)
    assert page.locator("#frontier-chart .point").count() == 2020  # with what was calibrated
    timings = [page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")]
    while min(timings) >= 2000 and len(timings) < 3:  # others may keep the machine busy
        page.reload()
        timings.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert min(timings) < 2000, timings
