"""What the site has beside the pages of docs/: two files of the repository, and the help of every command."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository that are pages of the site, by the name they have there."""
COMMANDS = "<!-- commands -->"
"""Where the help of the command line goes."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files of the repository as pages."""
    root = Path(config.config_file_path).parent
    for name, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=from_root((root / name).read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files outside docs/ lead to their pages here; help stands where a page asks for it."""
    for name, target in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name}", f"]({target}")
    return markdown.replace(COMMANDS, commands()) if COMMANDS in markdown else markdown


def from_root(text: str) -> str:
    """The text of a file that links from the root of the repository, with links from docs/; others become words."""
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)(?![\w-]+\.md)[^)]+\)", r"\1", text)


def commands() -> str:
    """The help of all commands as Markdown, one heading below that of the page."""
    import typer
    from typer.cli import get_docs_for_click

    from depthwise.cli.main import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="depthwise")
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)
