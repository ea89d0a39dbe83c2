"""The site is built without a warning, and asks for nothing from elsewhere when it is viewed."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import depthwise
from depthwise import _WHERE
from depthwise.config import POLICIES

from .blocks import REPOSITORY

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "video": "src"}
"""What a browser fetches by itself, and the attribute that says from where."""


class Loads(HTMLParser):
    """The addresses that a page loads something from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and given.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(given.get(LOADED[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(REPOSITORY / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(REPOSITORY / "src")}
    return subprocess.run(command, cwd=config.parent, env=variables, capture_output=True, text=True, check=False)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        away = [address for address in Loads(page.read_text(encoding="utf-8")).found if "//" in address]
        assert away == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_what_would_be_loaded_is_seen() -> None:
    assert Loads('<script src="https://a/b.js"></script><a href="https://c">c</a>').found == ["https://a/b.js"]


def test_every_public_name_has_its_reference(site: Path) -> None:
    text = (site / "reference" / "index.html").read_text(encoding="utf-8")
    missing = [name for name in depthwise.__all__ if name in _WHERE and f'id="{_WHERE[name]}.{name}"' not in text]
    assert missing == []


def test_policies_say_when_to_choose_them(site: Path) -> None:
    text = (site / "reference" / "depth.html").read_text(encoding="utf-8")
    assert text.count("<strong>Choose it.</strong>") == len(POLICIES)


def test_commands_and_files_of_the_repository_are_there(site: Path) -> None:
    assert "depthwise calibrate" in (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "Unreleased" in (site / "changelog.html").read_text(encoding="utf-8")
    assert "House rules" in (site / "contributing.html").read_text(encoding="utf-8")


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {str(path.relative_to(REPOSITORY / "docs")) for path in (REPOSITORY / "docs").rglob("*.md")}
    assert pages <= set(listed)


def test_a_bad_page_is_refused(tmp_path: Path) -> None:
    """By the configuration of the real site, with one page."""
    wrong = {
        "nothing.md": "[there](nothing.md)",
        "#nothing": "[there](#nothing)",
        "nothing.png": "![picture](nothing.png)",
    }
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Page\n\n" + "\n\n".join(wrong.values()) + "\n", encoding="utf-8")
    options = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    options |= {"nav": [{"Page": "index.md"}], "hooks": [], "plugins": [], "exclude_docs": ""}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(options), encoding="utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("WARNING", "ERROR"))]
    for name in wrong:
        assert any(name in line for line in complaints), (name, complaints)
