"""``depthwise prune``: a run without the layers that its model has learned to leave out."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from depthwise.cli.run_arguments import quieten

if TYPE_CHECKING:
    from depthwise.config import ModelConfig, Recipe
    from depthwise.models.pruning import Kept, Probabilities

RECIPE = "recipe.yaml"


def prune(
    run: Annotated[Path, typer.Argument(help="Folder of a run whose layers are latent.", metavar="RUN")],
    destination: Annotated[Path, typer.Argument(help="Folder of the run to write.", metavar="DST")],
    language: Annotated[
        str | None, typer.Option(help="For this language alone, or this pair such as en-de.", metavar="LANGUAGE")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(help="Keep so many of the likeliest layers of each gated side.", metavar="K")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace DST if it is not empty.")] = False,
) -> None:
    """Remove the layers that a model has learned to leave out; what is left is a plain smaller run.

    Layers stay whose gates are more likely open than not, or the likeliest ones. Without a language these are the
    layers that any language uses; where languages differ, the run keeps gates that tell which of them each one runs.
    """
    from depthwise.config import recipe_yaml
    from depthwise.evaluation.runs import load_model, open_run, pick_device
    from depthwise.interop.run_folder import check_destination, written_at
    from depthwise.models.pruning import layer_probabilities, layers_to_keep, pruned

    quieten()
    task = open_run(run)
    model = load_model(task, run, pick_device("cpu"))
    probabilities = layer_probabilities(model)
    kept = layers_to_keep(probabilities, language, keep)
    smaller = pruned(model, kept)
    check_destination(destination, run, force=force)
    with written_at(destination) as folder:
        smaller.save_pretrained(folder)
        task.save(folder)
        if (run / RECIPE).is_file():
            recipe = _recipe(task.recipe, smaller.config.options, language)
            (folder / RECIPE).write_text(recipe_yaml(recipe), encoding="utf-8")
    _report(Console(soft_wrap=True, highlight=False, markup=False), destination, probabilities, kept, language)
    typer.echo(f"{model.num_parameters():,} parameters before, {smaller.num_parameters():,} now")
    typer.echo(f"next: depthwise evaluate {destination}")


def _recipe(recipe: "Recipe", options: "ModelConfig", language: str | None) -> "Recipe":
    """The recipe of the smaller run, for the pairs of the language where there is one."""
    from depthwise.config import as_dict

    model = {name: value for name, value in as_dict(options).items() if not name.endswith("vocab_size")}
    training = recipe.training if options.latent is not None else replace(recipe.training, latent=None)
    changed = replace(recipe, model=model, training=training, evaluation=replace(recipe.evaluation, gates=None))
    if language is None or recipe.data.pairs is None:
        return changed
    pairs = tuple(pair for pair in recipe.data.pairs if language == pair or language in pair.split("-"))
    targets = {pair.partition("-")[2] for pair in pairs}
    search: dict[str, Any] = {"target": targets.pop()} if len(targets) == 1 else {}
    return replace(changed, data=replace(recipe.data, pairs=pairs), generation=replace(recipe.generation, **search))


def _report(console: Console, folder: Path, probabilities: "Probabilities", kept: "Kept", language: str | None) -> None:
    """The layers that stay, in general and, where languages differ, of each."""
    for side, layers in kept.layers.items():
        num_layers = len(next(iter(probabilities[side].values())))
        console.print(f"{folder}: {side} keeps {len(layers)} of {num_layers} layers: {_listed(layers)}")
        if side in kept.gated:
            for name, chances in probabilities[side].items():
                console.print(f"  {name} runs {_listed((chances > 0.5).nonzero().flatten().tolist())}")


def _listed(layers: Any) -> str:
    return ", ".join(map(str, layers))
