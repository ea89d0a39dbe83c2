"""Predicted and executed depth on the page, in a real browser."""

from pathlib import Path

from .conftest import MakeFolder, structured, structured_files
from .test_browser import NAMELESS, Screen, chosen, chromium, pytestmark, screen

__all__ = ["chromium", "pytestmark", "screen"]


def test_predicted_against_executed_depth(screen: Screen, make_folder: MakeFolder) -> None:
    page = screen.open(make_folder("a", **structured_files(structured())), make_folder("b", width=9))
    points = page.locator("#structure-chart .point")
    assert points.count() == len(structured()["sequences"])
    page.get_by_role("img", name="a, 8 tokens: expected 3.40, ran 3 of 4 layers").hover()
    told = page.locator("#tip").inner_text()
    for value in ("8 tokens", "3.40", "3 of 4"):
        assert value in told
    chart = page.locator("#structure-chart svg")
    assert chart.get_attribute("aria-label") == "Executed depth against expected depth (layers), structure 0.5"
    assert chart.locator(".level").count() == 1
    note = page.locator("#structure-note").inner_text()
    assert "4 test inputs: expected depth 3.00 ± 0.70, executed depth 3.00 ± 0.71" in note
    assert "Correlation with length: expected 0.97, executed 0.94." in note
    chosen(page, "structure", "Stops by", "2")
    assert page.get_by_role("img", name="a, 5 tokens: expected 2.60, ran 2 of 4 layers").count() == 1
    chosen(page, "structure", "Against", "length")
    assert chart.get_attribute("aria-label") == "Executed depth against length (tokens), γ = 0.9"
    assert chart.locator(".level").count() == 0
    points.first.focus()
    page.keyboard.press("ArrowRight")
    assert "5 tokens" in page.locator("#tip").inner_text()
    with page.expect_download() as begun:
        page.get_by_role("link", name="These depths as CSV").click()
    lines = Path(begun.value.path()).read_text().splitlines()
    assert lines[0] == "run,split,length,expected_depth,executed_by,executed_depth"
    assert lines[1:4] == [
        "a,test,3,2.1,structure 0.5,2",
        "a,test,3,2.1,threshold 0.1,3",
        "a,test,3,2.1,threshold 0.9,2",
    ]
    assert len(lines) == 13


def test_a_predictor_that_looks_at_nothing_and_one_of_which_nothing_is_known(
    screen: Screen, make_folder: MakeFolder
) -> None:
    same = {**structured(), "sequences": [[3, 2.5, 2, 3, 2], [8, 2.5, 2, 3, 2]]}
    page = screen.open(make_folder("a", **structured_files(same)), make_folder("b", width=9, **structured_files(None)))
    assert "All inputs are the same to this predictor." in page.locator("#structure-note").inner_text()
    assert "executed none, as one of them does not vary" in page.locator("#structure-note").inner_text()
    chosen(page, "structure", "Run", "1")
    assert "Nothing is known of what this model expected" in page.locator("#structure-chart").inner_text()
    assert page.locator("#structure-note").inner_text() == ""
    assert "b: what its predictor expected is not known" in page.locator("#missing").text_content()
    assert page.evaluate(NAMELESS) == []
