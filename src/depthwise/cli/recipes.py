"""``depthwise recipes``: what can be trained."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depthwise.config import built_in, recipe_text

FIRST = "start/"
"""Recipes for a user's own text come before all others."""


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe instead.", metavar="NAME")] = None,
) -> None:
    """List the built-in recipes with the scores they reached, or print one of them to start from."""
    if name is not None:
        typer.echo(recipe_text(name), nl=False)
        return
    table = Table("recipe", "what it trains", box=None, padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    for recipe in sorted(built_in(), key=lambda recipe: not recipe.name.startswith(FIRST)):
        known = [f"{fact}: {recipe.facts[fact]}" for fact in ("time", "score") if fact in recipe.facts]
        table.add_row(recipe.name, "\n".join([recipe.title, *known]))
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print("depthwise recipes NAME prints one, with its data and its command; depthwise train NAME trains it.")
