"""The playground as a person uses it, in a real browser. What the server says is made up; see ``fake_server``."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..report.test_browser import CONTRASTS, DESK, NAMELESS, PHONE, WHY_NOT, chromium
from .fake_server import SETTING, FakeServer, Refusal, model

__all__ = ["chromium"]

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
REFUSED = "Failed to load resource"
"""How the browser itself remarks on an answer that is no 200; no script can keep it from doing so."""
HOSTILE = '<img src=x onerror="document.title=\'taken\'"><script>document.title="taken"</script>'


class Visit:
    """Opens the playground and remembers everything that it complains of and asks for."""

    def __init__(self, chromium: Any, address: str) -> None:
        self.chromium, self.address = chromium, address
        self.complaints, self.addresses = list[str](), list[str]()
        self.contexts: list[Any] = []

    def open(self, *, size: dict[str, int] = DESK, scheme: str = "light") -> Any:
        context = self.chromium.new_context(viewport=size, color_scheme=scheme)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5000)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.addresses.append(request.url))
        page.goto(self.address)
        return page

    def close(self) -> None:
        """Nothing may have been written to the console, and nobody but the server asked for anything."""
        for context in self.contexts:
            context.close()
        assert [each for each in self.complaints if REFUSED not in each] == []
        assert [url for url in self.addresses if not url.startswith(self.address)] == []


@pytest.fixture
def server() -> Iterator[FakeServer]:
    found = FakeServer()
    yield found
    found.close()


@pytest.fixture
def visit(chromium: Any, server: FakeServer) -> Iterator[Visit]:
    found = Visit(chromium, server.address)
    yield found
    found.close()


def text_of(page: Any, panel: str) -> str:
    return page.locator(f"#{panel} .output").inner_text()


def wait_for_summary(page: Any, words: str) -> None:
    page.locator("#summary", has_text=words).wait_for()


def wait_until(page: Any, holds: Callable[[], bool]) -> None:
    """Waits for what the page itself does not show, such as what the server has been asked."""
    for _ in range(100):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("that did not happen within five seconds")


def move(page: Any, title: str) -> None:
    """Goes along the slider, as with the arrow keys, until it has this name."""
    slider = page.get_by_role("slider", name="Depth")
    slider.press("Home")
    for _ in range(20):
        if slider.get_attribute("aria-valuetext") == title:
            return
        slider.press("ArrowRight")
    raise AssertionError(f"no stop of the slider is called {title}")


def test_typing_gives_an_answer(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    assert visit.complaints == []
    page.get_by_label("Text", exact=True).fill("seven eight nine")
    page.locator("#full .output", has_text="seven eight nine").wait_for()
    wait_for_summary(page, "The same answer with 58 % fewer layers, 2.4 times as fast.")
    assert text_of(page, "chosen") == "seven eight nine"
    told = " ".join(page.locator("#chosen").inner_text().split())
    for value in ("Setting drop-0.5", "5 of 12, 42 %", "1.67 of 4", "50.0 ms"):
        assert value in told
    assert "12 of 12, 100 %" in " ".join(page.locator("#full").inner_text().split())
    last = [body for body in server.asked if body["input"] == "seven eight nine"]
    assert [(body["depth"], body["stream"], body["model"]) for body in last] == [
        (SETTING, True, "numbers"),
        ("full", True, "numbers"),
    ]


def test_the_slider_changes_the_answer_and_the_depth(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    slider = page.get_by_role("slider", name="Depth")
    assert slider.get_attribute("aria-valuetext") == f"setting {SETTING}"
    assert page.locator("#stops").inner_text().split() == ["1", SETTING, "2", "3", "full"]  # by what they cost
    slider.press("ArrowLeft")
    wait_for_summary(page, "Another answer with 75 % fewer layers, 4.0 times as fast.")
    assert text_of(page, "chosen") == "1 2 wrong"
    assert text_of(page, "full") == "1 2 3"
    assert page.locator("#chosen").get_by_role("button", name="wrong, depth 1 of 4, unlike full depth").count() == 1
    assert page.locator("#chosen .token.other").count() == 1
    page.locator("#stops").get_by_text("2", exact=True).click()
    wait_for_summary(page, "The same answer with 50 % fewer layers")
    assert slider.get_attribute("aria-valuetext") == "depth 2"
    assert [body["depth"] for body in server.asked] == [SETTING, "full", 1, 2]  # full depth is known by then
    move(page, "full depth")
    wait_for_summary(page, "This is full depth")
    assert page.locator("#chosen .token.other").count() == 0


def test_times_are_the_shortest_so_far(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "2.4 times as fast")  # 5 of 12 layers, at 10 ms each
    server.slowness = 3.0
    page.get_by_role("button", name="Answer").click()
    wait_until(page, lambda: len(server.asked) == 4)
    wait_for_summary(page, "2.4 times as fast")
    server.slowness = 0.5
    page.get_by_role("button", name="Answer").click()
    page.locator("#full", has_text="60.0 ms").wait_for()
    assert "25.0 ms" in page.locator("#chosen").inner_text()
    assert [body["depth"] for body in server.asked] == 3 * [SETTING, "full"]


def test_tokens_are_coloured_by_their_depth(visit: Visit) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")

    def shade(name: str, panel: str = "chosen") -> str:
        token = page.locator(f"#{panel}").get_by_role("button", name=name, exact=True)
        return str(token.evaluate("(element) => getComputedStyle(element).backgroundColor"))

    deep, shallow, other = shade("1, depth 3 of 4"), shade("2, depth 1 of 4"), shade("3, depth 1 of 4")
    assert len({deep, shallow, shade("1, depth 4 of 4", "full")}) == 3
    assert shallow == other
    swatches = page.locator("#legend .swatch:not(.other)")
    assert swatches.all_inner_texts() == ["1", "2", "3", "4"]
    assert swatches.nth(2).evaluate("(element) => getComputedStyle(element).backgroundColor") == deep
    token = page.locator("#chosen").get_by_role("button", name="1, depth 3 of 4")
    token.hover()
    assert page.locator("#tip").inner_text().splitlines() == ["1", "left after 3 of 4 blocks", "probability 90.5 %"]
    token.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "2, depth 1 of 4"
    assert page.locator("#tip b").inner_text() == "2"
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_an_answer_is_seen_while_it_is_made(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    server.pause = 0.15
    page.get_by_label("Text", exact=True).fill(" ".join(map(str, range(40))))
    page.locator("#chosen .token").nth(4).wait_for()
    assert page.locator("#chosen .token").count() < 40
    assert page.locator("#chosen").get_attribute("aria-busy") == "true"
    page.get_by_role("button", name="Stop").click()
    assert page.locator("#summary").inner_text() == "Stopped."
    assert page.locator("#chosen").get_attribute("aria-busy") is None
    assert "no answer" in page.locator("#chosen").inner_text()
    assert page.locator("#problem").is_hidden()


def test_only_the_last_question_is_answered(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    server.pause = 0.1
    page.get_by_label("Text", exact=True).fill(" ".join(["old"] * 30))
    page.locator("#chosen .token", has_text="old").first.wait_for()
    server.pause = 0.0
    page.get_by_label("Text", exact=True).fill("new")
    page.locator("#full .output", has_text="new").wait_for()
    page.wait_for_timeout(300)
    assert text_of(page, "chosen") == text_of(page, "full") == "new"
    assert page.locator("#chosen .token").count() == 1


def test_without_live_answers_a_key_asks(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    page.get_by_label("answer while I type").uncheck()
    asked = len(server.asked)
    page.get_by_label("Text", exact=True).fill("4 5")
    page.wait_for_timeout(600)
    assert len(server.asked) == asked
    page.get_by_label("Text", exact=True).press("Control+Enter")
    page.locator("#full .output", has_text="4 5").wait_for()
    page.get_by_label("Text", exact=True).fill("  ")
    page.get_by_role("button", name="Answer").click()
    page.locator("#answers").wait_for(state="hidden")


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        focused = "document.activeElement"
        seen.append(page.evaluate(f"{focused}.id || {focused}.getAttribute('aria-label') || {focused}.textContent"))
    for wanted in ("theme", "model", "text", "Example: 1 2 3", "depth", "ask", "live"):
        assert wanted in seen
    assert "1, depth 3 of 4" in seen
    assert "1, depth 4 of 4" in seen


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal(422, "the text has 5,000 tokens, 4,096 are allowed", "shorten it"), ["5,000 tokens", "shorten it"]),
        (Refusal(503, "too many requests wait", headers={"Retry-After": "2"}), ["too many", "Try again in 2 s."]),
        (Refusal(500, ""), ["The server answered with status 500."]),
    ],
)
def test_errors_are_shown_kindly(visit: Visit, server: FakeServer, refusal: Refusal, words: list[str]) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    server.refusal = refusal
    page.get_by_label("Text", exact=True).fill("more")
    alert = page.get_by_role("alert")
    alert.wait_for()
    for each in words:
        assert each in alert.inner_text()
    assert page.locator("#summary").inner_text() == "No answer."
    assert "API key" not in alert.inner_text()
    server.refusal = None
    page.get_by_role("button", name="Try again").click()
    wait_for_summary(page, "The same answer")
    assert alert.is_hidden()


def test_a_server_that_is_gone(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    server.close()
    page.get_by_label("Text", exact=True).fill("anyone there")
    page.get_by_role("alert").wait_for()
    assert "depthwise serve" in page.get_by_role("alert").inner_text()


@pytest.mark.parametrize("how", ["cut_after", "error_after"])
def test_an_answer_that_ends_too_soon(visit: Visit, server: FakeServer, how: str) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    setattr(server, how, 2)
    page.get_by_label("Text", exact=True).fill("one two three")
    page.get_by_role("alert").wait_for()
    told = page.get_by_role("alert").inner_text()
    assert ("was cut off" if how == "cut_after" else "the time of this request is over") in told
    assert text_of(page, "chosen") == "one two"
    assert "no answer" in page.locator("#chosen").inner_text()


def test_a_key_is_asked_for(visit: Visit, server: FakeServer) -> None:
    server.key = "secret"
    page = visit.open()
    page.get_by_role("alert").wait_for()
    assert "wants an API key" in page.get_by_role("alert").inner_text()
    assert page.locator("#question").is_hidden()
    page.get_by_label("API key").fill("secret")
    page.get_by_label("API key").press("Enter")
    wait_for_summary(page, "The same answer")
    assert page.get_by_role("alert").count() == 0
    assert "secret" not in page.content()
    page.locator("#by-hand summary").click()
    assert "Authorization: Bearer $KEY" in page.locator("#command").inner_text()


def test_budgets(visit: Visit, server: FakeServer) -> None:
    page = visit.open()
    wait_for_summary(page, "The same answer")
    page.locator("#options summary").click()
    page.get_by_label("Depth chosen by").select_option("compute")
    page.get_by_label("At most, from 0 to 1").fill("0.4")
    page.locator("#chosen-name", has_text="At most 0.4 of the compute").wait_for()
    wait_for_summary(page, "The same answer")
    assert server.asked[-1]["depth"] == {"compute": 0.4}
    assert page.get_by_role("slider").is_disabled()
    page.locator("#stops").get_by_text("3", exact=True).click()
    wait_for_summary(page, "The same answer with 25 % fewer layers")
    assert page.get_by_role("slider").is_enabled()


def test_options_and_languages_are_sent(visit: Visit, server: FakeServer) -> None:
    server.models = [model(languages=["de", "fr"])]
    page = visit.open()
    wait_for_summary(page, "The same answer")
    assert server.asked[0]["to"] == "de"
    page.get_by_label("Translate to").select_option("fr")
    page.locator("#options summary").click()
    page.get_by_label("Tokens at most").fill("7")
    page.get_by_label("Seed").fill("3")
    wait_until(page, lambda: {"to": "fr", "max_new_tokens": 7, "seed": 3}.items() <= server.asked[-1].items())
    wait_for_summary(page, "The same answer")
    assert "temperature" not in server.asked[-1]


def test_every_kind_of_model(visit: Visit, server: FakeServer) -> None:
    pair = {"question": "Which colour?", "context": "The sky is blue today."}
    server.models = [
        model(),
        model("mood", "classify", examples=["so good"]),
        model("words", "tag", examples=["a cat"]),
        model("quiz", "answer", examples=[pair]),
    ]
    page = visit.open()
    wait_for_summary(page, "The same answer")
    page.get_by_role("combobox", name="Model", exact=True).select_option("mood")
    page.locator("#full .output", has_text="good").wait_for()
    assert "90.0 %" in page.locator("#chosen .scores").inner_text()
    assert page.locator("#chosen").get_by_role("button", name="so, depth 3 of 4").count() == 1
    page.get_by_role("combobox", name="Model", exact=True).select_option("words")
    page.locator("#full").get_by_role("button", name="cat, NOUN, depth 4 of 4").wait_for()
    page.get_by_role("combobox", name="Model", exact=True).select_option("quiz")
    page.locator("#full mark", has_text="blue").wait_for()
    assert page.get_by_label("Question").input_value() == "Which colour?"
    assert text_of(page, "chosen") == "The sky is blue today."
    page.get_by_label("Text that holds the answer").fill("")
    page.locator("#answers").wait_for(state="hidden")


def test_hostile_text_is_shown_as_text(visit: Visit, server: FakeServer) -> None:
    server.prefix = HOSTILE.replace(" ", "\u00a0")
    server.models = [model(HOSTILE, examples=[HOSTILE])]
    page = visit.open(size=PHONE)
    wait_for_summary(page, "The same answer")
    page.wait_for_timeout(100)
    assert page.title() == "Depthwise playground"
    assert page.locator("img, body script").count() == 0
    assert server.prefix in text_of(page, "chosen")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.locator("#chosen .token").first.hover()
    assert "<img" in page.locator("#tip").inner_text()
    server.refusal = Refusal(422, HOSTILE, HOSTILE)
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("alert").wait_for()
    assert HOSTILE in page.get_by_role("alert").inner_text()
    assert page.title() == "Depthwise playground"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_readable_and_named(visit: Visit, server: FakeServer, scheme: str, size: dict[str, int]) -> None:
    depths = {**model()["depths"], "fixed": list(range(1, 25))}
    server.models = [model(languages=["de"]), model("many", layers=24, depths=depths)]
    page = visit.open(size=size, scheme=scheme)
    wait_for_summary(page, "The same answer")
    move(page, "depth 1")
    wait_for_summary(page, "Another answer")
    server.refusal = Refusal(401, "a key", "send it")
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("alert").wait_for()
    server.refusal = None
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    for name in ("numbers", "many"):
        page.get_by_role("combobox", name="Model", exact=True).select_option(name)
        wait_for_summary(page, "The same answer")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate(CONTRASTS) == []
        assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_the_theme_can_be_chosen(visit: Visit) -> None:
    page = visit.open(scheme="dark")
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert button.inner_text() == "Theme: light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_command_is_the_request(visit: Visit, server: FakeServer) -> None:
    server.models = [model(examples=["it's 1"])]
    page = visit.open()
    wait_for_summary(page, "The same answer")
    page.locator("#by-hand summary").click()
    command = page.locator("#command").inner_text()
    assert command.startswith(f"curl {server.address}v1/generate -H 'Content-Type: application/json' -d '")
    assert r"it'\''s 1" in command
    assert f'"depth":"{SETTING}"' in command
