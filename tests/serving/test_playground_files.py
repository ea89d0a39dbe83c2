"""The files of the playground: what they may hold, and that they look like the report."""

import re
from pathlib import Path

import depthwise

PACKAGE = Path(depthwise.__file__).parent
PLAYGROUND, REPORT = PACKAGE / "serving" / "playground", PACKAGE / "report" / "assets"


def colours(css: str) -> dict[str, set[tuple[str, str]]]:
    """The colours of each theme: selector to names and values."""
    found = re.findall(r"(:root[^{]*)\{([^}]*)\}", css.split("@media print")[0])
    assert len(found) == 3
    return {selector.strip(): set(re.findall(r"(--\w+): (#\w+)", rules)) for selector, rules in found}


def test_colours_are_those_of_the_report() -> None:
    ours, theirs = (
        colours(path.read_text(encoding="utf-8")) for path in (PLAYGROUND / "playground.css", REPORT / "page.css")
    )
    assert ours.keys() == theirs.keys()
    for theme, found in ours.items():
        assert found
        assert found <= theirs[theme]


def test_depths_have_the_colours_of_the_report() -> None:
    ours, theirs = (
        re.search(r"const DEPTHS = (\[.*\]);", path.read_text(encoding="utf-8"))
        for path in (PLAYGROUND / "elements.js", REPORT / "base.js")
    )
    assert ours is not None
    assert theirs is not None
    assert ours[1] == theirs[1]


def test_nothing_comes_from_elsewhere_or_becomes_markup() -> None:
    for path in PLAYGROUND.iterdir():
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == [], path.name
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "<style",
            "style=",
        ):
            assert forbidden not in text, (path.name, forbidden)


def test_the_page_allows_only_its_own_files() -> None:
    page = (PLAYGROUND / "index.html").read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    for name in re.findall(r'(?:src|href)="assets/([^"]+)"', page):
        assert (PLAYGROUND / name).is_file()
    for script in PLAYGROUND.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', script.read_text(encoding="utf-8")):
            assert (PLAYGROUND / name).is_file()
