"""``depthwise recipes``: what can be trained."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depthwise.config import built_in, recipe_text


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe instead.", metavar="NAME")] = None,
) -> None:
    """List the built-in recipes with what is known about them, or print one of them to start from."""
    if name is not None:
        typer.echo(recipe_text(name), nl=False)
        return
    table = Table(show_lines=True)
    table.add_column("recipe", no_wrap=True)
    table.add_column("what it trains")
    for recipe in built_in():
        table.add_row(recipe.name, "\n".join([recipe.title, *(f"{fact}: {of}" for fact, of in recipe.facts.items())]))
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print("depthwise recipes NAME prints one; depthwise train NAME trains it.")
