"""A progress bar for work that may take minutes. It is drawn on a terminal and nowhere else."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")


def shown(items: Iterable[Item], description: str, total: int | None) -> Iterator[Item]:
    """The same items, counted on a bar as they are taken."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, total=total, description=description)
