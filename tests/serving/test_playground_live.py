"""The playground in a browser, on the real server: every kind of model is asked and shows where its tokens left."""

from collections.abc import Iterator
from typing import Any

import pytest

from ..report.test_browser import WHY_NOT, chromium
from .conftest import Live
from .test_playground import Visit, move, text_of

__all__ = ["chromium"]

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
ANSWERED = "answer with|answer, |full depth"


@pytest.fixture
def page(chromium: Any, live: Live) -> Iterator[Any]:
    visit = Visit(chromium, live.url)
    yield visit.open()
    visit.close()


def choose(page: Any, name: str) -> None:
    page.get_by_role("combobox", name="Model", exact=True).select_option(name)


def ask(page: Any, text: str, field: str = "Text") -> None:
    page.get_by_label(field, exact=True).fill(text)


def depths_of(page: Any, panel: str) -> list[int]:
    return [int(each) for each in page.locator(f"#{panel} .token sub").all_inner_texts()]


def answered(page: Any) -> None:
    page.locator("#full:not(.waiting) .costs").wait_for()
    page.locator("#summary", has_text="nswer").or_(page.locator("#summary", has_text="full depth")).first.wait_for()


@pytest.mark.parametrize("name", ["translate", "text"])
def test_text_at_two_depths(page: Any, live: Live, name: str) -> None:
    choose(page, name)
    ask(page, "a b")
    page.locator("#options summary").click()
    page.get_by_label("Tokens at most").fill("5")
    move(page, "depth 1")
    page.locator("#summary", has_text="fewer layers").wait_for()
    expected = {
        depth: live.post("/v1/generate", model=name, input="a b", depth=depth, max_new_tokens=5).json()
        for depth in (1, "full")
    }
    for panel, depth in (("chosen", 1), ("full", "full")):
        assert text_of(page, panel).strip() == expected[depth]["output"].strip()
        assert depths_of(page, panel) == [token["depth"] for token in expected[depth]["tokens"]]
    assert set(depths_of(page, "chosen")) == {1}


def test_classes_tags_and_answers(page: Any) -> None:
    choose(page, "classes")
    ask(page, "a b c")
    answered(page)
    assert page.locator("#chosen .scores li").count() >= 2
    assert depths_of(page, "chosen")
    choose(page, "pairs")
    ask(page, "a b")
    ask(page, "c", "Second text")
    answered(page)
    choose(page, "numbers")
    ask(page, "a b")
    answered(page)
    assert float(text_of(page, "chosen"))
    choose(page, "tags")
    ask(page, "a b c")
    answered(page)
    assert page.locator("#chosen .token i").count() == 3
    choose(page, "answers")
    ask(page, "who ?", "Question")
    ask(page, "a b c d", "Text that holds the answer")
    answered(page)
    assert text_of(page, "full")


def test_a_language_is_chosen(page: Any) -> None:
    choose(page, "many")
    assert page.get_by_label("Translate to").locator("option").all_inner_texts() == ["xx", "yy"]
    ask(page, "a b")
    answered(page)


def test_a_pair_of_languages_is_chosen(page: Any, live: Live) -> None:
    choose(page, "sources")
    chooser = page.get_by_label("Translate to")
    assert chooser.locator("option").all_inner_texts() == ["yy-en", "xx-en"]
    for to in ("xx-en", "yy-en"):
        chooser.select_option(to)
        ask(page, "a b c")
        answered(page)
        expected = live.post("/v1/generate", model="sources", input="a b c", to=to).json()["output"]
        page.wait_for_function("wanted => document.querySelector('#command').textContent.includes(wanted)", arg=to)
        answered(page)
        assert text_of(page, "full").strip() == expected.strip()
        assert page.get_by_role("alert").is_hidden()


def test_what_is_too_long_is_said(page: Any) -> None:
    choose(page, "translate")
    ask(page, "a " * 5000)
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "tokens" in alert.inner_text()
    ask(page, "a")
    answered(page)
    assert alert.is_hidden()
