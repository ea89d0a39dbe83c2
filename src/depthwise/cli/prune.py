"""``depthwise prune``: a run without the layers that its model has learned to leave out."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from depthwise.cli.run_arguments import Device, DeviceOption, Split, quieten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depthwise.config import ModelConfig, Recipe
    from depthwise.evaluation.pruning import Measured
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
    measure: Annotated[
        bool, typer.Option("--measure", help="Evaluate soft gates, hard gates and what is left, and print a table.")
    ] = False,
    split: Annotated[Split, typer.Option(help="Which part of the data to measure on.")] = Split.test,
    device: DeviceOption = Device.auto,
) -> None:
    """Remove the layers that a model has learned to leave out; what is left is a plain smaller run.

    Layers stay whose gates are more likely open than not, or the likeliest ones. Without a language these are the
    layers that any language uses; where languages differ, the run keeps gates that tell which of them each one runs.
    With --measure both runs are evaluated, and the table says what was lost in quality and won in speed.
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
    if measure:
        from depthwise.evaluation.pruning import measured

        pairs = _pairs(task.recipe, language)
        changes = [] if pairs is None or language is None else [f"data.pairs=[{','.join(pairs)}]"]
        states = measured(run, destination, split.value, list(kept.layers), changes, device.value)
        _report_measured(Console(soft_wrap=True, highlight=False, markup=False), states)
    typer.echo(f"next: depthwise evaluate {destination}")


def _recipe(recipe: "Recipe", options: "ModelConfig", language: str | None) -> "Recipe":
    """The recipe of the smaller run, for the pairs of the language where there is one."""
    from depthwise.config import as_dict

    model = {name: value for name, value in as_dict(options).items() if not name.endswith("vocab_size")}
    training = recipe.training if options.latent is not None else replace(recipe.training, latent=None)
    changed = replace(recipe, model=model, training=training, evaluation=replace(recipe.evaluation, gates=None))
    pairs = _pairs(recipe, language)
    if language is None or pairs is None:
        return changed
    targets = {pair.partition("-")[2] for pair in pairs}
    search: dict[str, Any] = {"target": targets.pop()} if len(targets) == 1 else {}
    return replace(changed, data=replace(recipe.data, pairs=pairs), generation=replace(recipe.generation, **search))


def _pairs(recipe: "Recipe", language: str | None) -> tuple[str, ...] | None:
    """The pairs of a language, or all where none is named; none where there are no pairs."""
    pairs = recipe.data.pairs
    if language is None or pairs is None:
        return pairs
    return tuple(pair for pair in pairs if language == pair or language in pair.split("-"))


def _report_measured(console: Console, states: "Sequence[Measured]") -> None:
    """Quality and speed before and after."""
    first = states[0].evaluation
    table = Table("", *(Column(state.name, justify="right", no_wrap=True) for state in states))
    for side in states[0].layers:
        table.add_row(f"{side} layers", *(f"{state.layers[side]:g}" for state in states))
    table.add_row("parameters", *(f"{state.num_parameters:,}" for state in states))
    for metric in first.metrics:
        values = [state.evaluation.metrics[metric] for state in states]
        table.add_row(metric, *("not finite" if value is None else f"{value:.2f}" for value in values))
    for name in ("examples_per_second", "tokens_per_second"):
        rates = [getattr(state.evaluation, name) for state in states]
        table.add_row(name.replace("_per_second", "/s"), *("" if rate is None else f"{rate:,.1f}" for rate in rates))
    console.print(table)


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
