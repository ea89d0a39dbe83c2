"""What pages show: fenced blocks, and what stands between backquotes in their text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

REPOSITORY = Path(__file__).resolve().parents[2]
LANGUAGES = ("python", "sh", "yaml", "json", "diff", "text")
"""What a block may be. Python, shell and data are run or read, differences are applied to a copy of the package; text
is shown: equations, trees, output."""
PROGRAMS = ("depthwise", "python", "pip", "make", "torchrun", "curl")
"""What may be called in a shell, besides what comes with it."""


class BadBlock(AssertionError):
    """A block that is not what its page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block. ``shows_output`` tells that it stands right behind a block of Python, whose output it is."""

    page: str
    line: int
    language: str
    text: str
    shows_output: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Span:
    """Code within a sentence or a table."""

    page: str
    line: int
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> tuple[str, ...]:
    """Every page of the site and those beside it, as paths from the root of the repository."""
    found = [*sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "benchmarks" / "README.md"]
    return ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(str(path.relative_to(REPOSITORY)) for path in found))


def read_page(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def blocks_of(page: str, text: str) -> list[Block]:
    """The blocks of a page in their order; an unknown kind of block is an error."""
    found: list[Block] = []
    was_python = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            block = Block(page, token.map[0] + 1, token.info.strip(), token.content, was_python)
            check_kind(block, is_fenced=token.type == "fence")
            found.append(block)
        was_python = token.type == "fence" and token.info.strip() == "python"
    return found


def check_kind(block: Block, *, is_fenced: bool = True) -> None:
    """A block is of one known kind, and commands do not hide in text."""
    if not is_fenced:
        raise BadBlock(f"{block.where}: an indented block; fence it and say what it is: {', '.join(LANGUAGES)}")
    if block.language not in LANGUAGES:
        raise BadBlock(f'{block.where}: a block of "{block.language}"; say which it is: {", ".join(LANGUAGES)}')
    if block.language == "text":
        for line in block.text.splitlines():
            if line.startswith(tuple(f"{program} " for program in PROGRAMS)):
                raise BadBlock(f'{block.where}: "{line}" is a command; make it a block of sh')


def spans_of(page: str, text: str) -> Iterator[Span]:
    """Code between backquotes."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "inline" and token.map is not None:
            for child in token.children or ():
                if child.type == "code_inline":
                    yield Span(page, token.map[0] + 1, " ".join(child.content.split()))
