"""``depthwise prune``: a run without the layers that its model has learned to leave out, or without some heads."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from depthwise.cli.run_arguments import Device, DeviceOption, Split, check_file_name, quieten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from depthwise.config import ModelConfig, Recipe
    from depthwise.evaluation.pruning import Measured
    from depthwise.models.pretrained import DepthwisePreTrainedModel
    from depthwise.models.pruning import Kept, Probabilities
    from depthwise.tasks import Task

RECIPE = "recipe.yaml"
GATES = "evaluation.gates"
NUM_EXAMPLES = 1000
OF_RUN = {f"{split}{gates}" for split in Split for gates in ("", "-soft", "-hard", "-sampled")}
"""Scores of the run itself at full depth: what they are called, whether they are there yet or not."""


@dataclass(frozen=True)
class Measuring:
    """How runs are measured before and after: on which split, with which changes, and what it is kept as."""

    split: str
    changes: tuple[str, ...]
    name: str | None
    device: str


def prune(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run; of one with latent layers, unless heads are pruned.", metavar="RUN")
    ],
    destination: Annotated[Path, typer.Argument(help="Folder of the run to write.", metavar="DST")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(help="Changes of what is measured, such as generation.num_beams=1.", metavar="[KEY=VALUE...]"),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option("--language", help="For this language alone, or this pair such as en-de.", metavar="LANGUAGE"),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(help="Keep so many of the likeliest layers of each gated side.", metavar="K")
    ] = None,
    heads: Annotated[
        float | None,
        typer.Option(
            help="Remove this share of the attention heads of the encoder, those that matter least, and no layers.",
            metavar="SHARE",
        ),
    ] = None,
    examples: Annotated[
        int, typer.Option(min=1, help="By how many training examples heads are judged.", metavar="N")
    ] = NUM_EXAMPLES,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in DST.")] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Evaluate the run (with soft and with hard gates) and what is left of it, and print a table.",
        ),
    ] = False,
    split: Annotated[Split, typer.Option(help="Which part of the data to measure on.")] = Split.test,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Keep all that was measured of layers as a result of RUN under this name.", metavar="NAME"
        ),
    ] = None,
    device: DeviceOption = Device.auto,
) -> None:
    """Remove the layers that a model has learned to leave out; what is left is a plain smaller run.

    Layers stay whose gates are more likely open than not, or the likeliest ones. Without a language these are the
    layers that any language uses; where languages differ, the run keeps gates that tell which of them each one runs.
    With --heads, attention heads of the encoder go instead: those to which the loss of training examples is least
    sensitive, compared within their block first (Michel et al. 2019). Layers that share a block lose the same heads.
    With --measure both runs are evaluated, and the table says what was lost in quality and won in speed.
    """
    if not measure and (changes or name is not None):
        raise typer.BadParameter("says how to measure; add --measure", param_hint="--name, KEY=VALUE")
    if any(change.partition("=")[0].strip() == GATES for change in changes or []):
        raise typer.BadParameter("is soft, hard and pruned with --measure; leave it out", param_hint=GATES)
    _check_name(name, split, run)
    if heads is not None:
        if language is not None or keep is not None:
            raise typer.BadParameter("is about layers, not about heads; leave it out", param_hint="--language, --keep")
        if name is not None or changes:
            raise typer.BadParameter("is about layers, not about heads; leave it out", param_hint="--name, KEY=VALUE")
        on = split.value if measure else None
        _prune_heads(run, destination, heads, examples, force=force, measure_on=on, device=device.value)
    else:
        measuring = Measuring(split.value, tuple(changes or ()), name, device.value) if measure else None
        _prune_layers(run, destination, language, keep, force=force, measuring=measuring)
    typer.echo(f"next: depthwise evaluate {destination}")


def _prune_layers(
    run: Path, destination: Path, language: str | None, keep: int | None, *, force: bool, measuring: Measuring | None
) -> None:
    """Write a run with the layers that stay, and say which they are and what that changed."""
    from depthwise.config import changed_recipe
    from depthwise.evaluation.pruning import compared, examples_to_measure, measured
    from depthwise.evaluation.results import write_evaluation
    from depthwise.evaluation.runs import load_model, open_run, pick_device
    from depthwise.interop.run_folder import check_destination
    from depthwise.models.pruning import layer_probabilities, layers_to_keep, pruned
    from depthwise.tasks import load_task

    quieten()
    task = open_run(run)
    model = load_model(task, run, pick_device("cpu"))
    probabilities = layer_probabilities(model)
    kept = layers_to_keep(probabilities, language, keep)
    pairs = _pairs(task.recipe, model, probabilities, language)
    smaller = pruned(model, kept)
    check_destination(destination, run, force=force, what="the run to be pruned", new="what is left")
    given = [] if pairs is None else [f"data.pairs=[{','.join(pairs)}]"]
    recipe = _recipe(task.recipe, smaller.config.options, pairs)
    if measuring is not None:
        changes = measuring.changes
        tasks = [open_run(run, [*given, *changes]), load_task(run, changed_recipe(recipe, changes))]
        measured_on = examples_to_measure(tasks, measuring.split, measuring.device)
    _write(task, smaller, run, destination, recipe)
    _report(_console(), destination, probabilities, kept, language)
    typer.echo(f"{model.num_parameters():,} parameters before, {smaller.num_parameters():,} now")
    if measuring is not None:
        num_open, split, device = _num_open(probabilities, language), measuring.split, measuring.device
        states = measured(run, destination, split, measured_on, num_open, given, changes, device)
        _report_measured(_console(), states)
        if measuring.name is not None:
            write_evaluation(run, compared(states, _by_language(probabilities, kept, language)), measuring.name)


def _check_name(name: str | None, split: Split, run: Path) -> None:
    """What was measured of the smaller run too takes the place of no result but an earlier one of its own kind."""
    check_file_name(name)
    if name is None:
        return
    if name in OF_RUN:
        remedy = f"choose another name such as {split.value}-pruned"
        raise typer.BadParameter(f"{name} stands for RUN's own scores; {remedy}", param_hint="--name")
    from depthwise.evaluation.pruning import is_taken

    if is_taken(run, name):
        raise typer.BadParameter(f"{name} is a result of RUN already; choose another name", param_hint="--name")


def _prune_heads(
    run: Path,
    destination: Path,
    share: float,
    num_examples: int,
    *,
    force: bool,
    measure_on: str | None,
    device: str,
) -> None:
    """Judge the heads of a run, write it without some of them, and say what that changed on a split."""
    from depthwise.evaluation.head_importance import head_importance
    from depthwise.evaluation.pruning import examples_to_measure, measured_heads
    from depthwise.evaluation.runs import load_model, open_run, pick_device
    from depthwise.interop.run_folder import check_destination
    from depthwise.models.head_pruning import attention_of, check_share, heads_to_keep, without_heads

    quieten()
    task = open_run(run)
    measured_on = [] if measure_on is None else examples_to_measure([task], measure_on, device)
    model = load_model(task, run, pick_device(device))
    check_share([each.num_heads for each in attention_of(model)], share)
    check_destination(destination, run, force=force, what="the run to be pruned", new="what is left")
    importance = head_importance(task, model, num_examples)
    kept = heads_to_keep(importance, share)
    smaller = without_heads(model, kept)
    _write(task, smaller, run, destination, replace(task.recipe, model=_options(smaller.config.options)))
    console, encoder = _console(), model.config.options.encoder
    assert encoder is not None
    console.print(f"{destination}: {sum(map(len, kept))} of {sum(map(len, importance))} heads stay")
    for block, of_block in enumerate(kept):
        name = "block" if encoder.has_shared_layers else "layer"
        console.print(f"  {name} {block} keeps {len(of_block)} of {len(importance[block])}: {_listed(of_block)}")
    typer.echo(f"{model.num_parameters():,} parameters before, {smaller.num_parameters():,} now")
    if measure_on is not None:
        _report_measured(console, measured_heads(run, destination, measure_on, measured_on, device))


def _write(
    task: "Task",
    smaller: "DepthwisePreTrainedModel",
    run: Path,
    destination: Path,
    recipe: "Recipe",
) -> None:
    """The run of the smaller model."""
    from depthwise.config import recipe_yaml
    from depthwise.interop.run_folder import written_at

    with written_at(destination) as folder:
        smaller.save_pretrained(folder)
        task.save(folder)
        if (run / RECIPE).is_file():
            (folder / RECIPE).write_text(recipe_yaml(recipe), encoding="utf-8")


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False, markup=False)


def _recipe(recipe: "Recipe", options: "ModelConfig", pairs: tuple[str, ...] | None) -> "Recipe":
    """The recipe of the smaller run, for these pairs alone where there are any; how gates were learned is over."""
    changed = replace(
        recipe,
        model=_options(options),
        training=replace(recipe.training, latent=None),
        evaluation=replace(recipe.evaluation, gates=None),
    )
    if pairs is None:
        return changed
    targets = tuple(sorted({pair.partition("-")[2] for pair in pairs}))
    search: dict[str, Any] = {"target": targets[0]} if len(targets) == 1 else {}
    told: dict[str, Any] = {} if recipe.tokenizer.language_token == "none" else {"languages": targets}
    return replace(
        changed,
        data=replace(recipe.data, pairs=pairs),
        tokenizer=replace(recipe.tokenizer, **told),
        generation=replace(recipe.generation, **search),
    )


def _options(options: "ModelConfig") -> dict[str, Any]:
    """The options of a model as a recipe has them."""
    from depthwise.config import as_dict

    return {name: value for name, value in as_dict(options).items() if not name.endswith("vocab_size")}


def _pairs(
    recipe: "Recipe", model: "DepthwisePreTrainedModel", probabilities: "Probabilities", language: str | None
) -> tuple[str, ...] | None:
    """The pairs of the recipe that are left for a language; none where none is named, or where there is no recipe."""
    from depthwise.models.pruning import imported_pairs, pairs_translated

    known = recipe.data.pairs or imported_pairs(model)
    if language is None or not known:
        return None
    left = pairs_translated(known, probabilities, language)
    return None if recipe.data.pairs is None else left


def _report_measured(console: Console, states: "Sequence[Measured]") -> None:
    """Quality and speed before and after."""
    first = states[0].evaluation
    table = Table("", *(Column(state.name, justify="right", no_wrap=True) for state in states))
    for part in states[0].parts:
        table.add_row(part, *(f"{state.parts[part]:g}" for state in states))
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
                console.print(f"  {name} runs {_listed(_likely(chances))}")


def _by_language(
    probabilities: "Probabilities", kept: "Kept", language: str | None
) -> dict[str, dict[str, tuple[int, ...]]]:
    """The layers of each gated side of the run that every language, or the one that is asked for, still runs."""
    from depthwise.models.pruning import languages_asked_for

    named = languages_asked_for(probabilities, language)
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for side, layers in kept.layers.items():
        found[side] = dict.fromkeys([named[side]] if side in named else probabilities[side], layers)
        if side in kept.gated:
            found[side] = {name: _likely(chances) for name, chances in probabilities[side].items()}
    return found


def _num_open(probabilities: "Probabilities", language: str | None) -> dict[str, float]:
    """How many layers of each side hard gates open: in the mean over languages, or in the one that is asked for."""
    from depthwise.models.pruning import languages_asked_for

    named, found = languages_asked_for(probabilities, language), {}
    for side, by_language in probabilities.items():
        numbers = [len(_likely(by_language[name])) for name in ([named[side]] if side in named else by_language)]
        found[side] = sum(numbers) / len(numbers)
    return found


def _likely(chances: Any) -> tuple[int, ...]:
    return tuple((chances > 0.5).nonzero().flatten().tolist())


def _listed(layers: Any) -> str:
    return ", ".join(map(str, layers))
