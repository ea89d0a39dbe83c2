"""``depthwise tune``: what validation data can still decide about a trained model."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from depthwise.cli.run_arguments import (
    Device,
    DeviceOption,
    Precision,
    PrecisionOption,
    Split,
    paths_and_changes,
    quieten,
)
from depthwise.config import SearchConfig, recipe_yaml
from depthwise.errors import CheckpointError

if TYPE_CHECKING:
    from depthwise.data import Example
    from depthwise.evaluation import Run
    from depthwise.evaluation.tuning import Trial

NUMBERS_OF_CHECKPOINTS = (1, 2, 3, 5, 10)
RECIPE, GENERATION, WEIGHTS = "recipe.yaml", "generation_config.json", "model.safetensors"


def tune(
    arguments: Annotated[
        list[str],
        typer.Argument(help="A run folder, and changes such as data.valid=FILE.", metavar="RUN [KEY=VALUE...]"),
    ],
    split: Annotated[Split, typer.Option(help="Which part of the data decides.")] = Split.valid,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = Precision.fp32,
) -> None:
    """Choose the number of averaged checkpoints, the length penalty and the maximum length on validation data.

    First the means of the last checkpoints that RUN holds are compared with the model as it is, then, for the better
    one, every length penalty with every maximum length: beams are searched once per length penalty, and again only for
    sources that a limit had cut short. Where questions may have no answer, the threshold of giving none is chosen. A
    classifier has only its checkpoints to choose from. The choice goes into recipe.yaml, generation_config.json,
    model.safetensors and results/tune.json of RUN; what is as good as before stays as it is.
    """
    folders, changes = paths_and_changes(arguments)
    if len(folders) != 1:
        raise typer.BadParameter("name the folder of one run", param_hint="RUN")

    from depthwise.evaluation import load_model, load_run, read_examples
    from depthwise.evaluation.tuning import best_trial, tune_search, tune_threshold
    from depthwise.tasks import QuestionAnswering, SequenceToSequence

    quieten()
    run = load_run(folders[0], changes, device.value, precision.value)
    examples = read_examples(run.task, split.value)
    run.task.check_examples(examples)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    with _workshop(run.folder) as workshop:
        candidates = list(_candidates(run, examples, workshop))
        chosen = _best(run, candidates)
        console.print(_checkpoint_table(run, candidates, chosen))
        search, trials = run.recipe.generation, []
        task = run.task
        is_searched = isinstance(task, SequenceToSequence)
        if is_searched or (isinstance(task, QuestionAnswering) and task.unanswerable):
            model = run.model if chosen.count is None else load_model(task, chosen.folder, run.device, run.precision)
            if isinstance(task, SequenceToSequence):
                trials = tune_search(task, model, examples)
            elif isinstance(task, QuestionAnswering):
                trials = tune_threshold(task, model, examples)
            best = best_trial(task, trials)
            search = best.search
            console.print((_search_table if is_searched else _threshold_table)(run, trials, best))
        _write(run, split.value, len(examples), candidates, chosen, trials, search)
    after = best.value if trials else chosen.value
    console.print(
        f"{run.task.metrics[0]} on {split.value}: {candidates[0].value:.2f} before, {after:.2f} now; "
        f"the choice is in {run.folder}"
    )


@dataclass(frozen=True)
class Candidate:
    """A model to choose: the mean of so many checkpoints, in a folder of its own, or the run's as it is."""

    count: int | None
    folder: Path
    value: float


def _candidates(run: "Run", examples: "list[Example]", workshop: Path) -> Iterator[Candidate]:
    """The model as it is, then the means of its last checkpoints."""
    from depthwise.evaluation import load_model
    from depthwise.evaluation.tuning import score_model
    from depthwise.training.averaging import INDEX, last_checkpoints, write_average
    from depthwise.training.checkpoints import checkpoints

    yield Candidate(None, run.folder, score_model(run.task, run.model, examples))
    if (run.folder / INDEX).exists():  # weights in several files, which one mean would not replace
        return
    available = len(checkpoints(run.folder))
    for count in NUMBERS_OF_CHECKPOINTS:
        if count > available:
            return
        folder = workshop / str(count)
        write_average(last_checkpoints(run.folder, count), folder)
        shutil.copy(run.folder / "config.json", folder)
        model = load_model(run.task, folder, run.device, run.precision)
        yield Candidate(count, folder, score_model(run.task, model, examples))


def _best(run: "Run", candidates: list[Candidate]) -> Candidate:
    """The model as it is, unless another is truly better."""
    best = candidates[0]
    for candidate in candidates[1:]:
        if run.task.is_better(run.task.metrics[0], candidate.value, best.value):
            best = candidate
    return best


# On disk


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A place to write in the run that is gone afterwards."""
    try:
        with tempfile.TemporaryDirectory(prefix=".tune-", dir=folder) as name:
            yield Path(name)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to: {error.strerror}; make room and start again") from None


def _write(
    run: "Run",
    split: str,
    num_examples: int,
    candidates: list[Candidate],
    chosen: Candidate,
    trials: "list[Trial]",
    search: SearchConfig,
) -> None:
    """Every file holds either what it held before or the choice."""
    from depthwise.evaluation import replace_file, strict_json
    from depthwise.tasks.build import run_recipe

    if chosen.count is not None:
        os.replace(chosen.folder / WEIGHTS, run.folder / WEIGHTS)
    if trials and "decoder" in run.task.model_class.needs:
        replace_file(run.folder / GENERATION, _generation_config(run, search))
    if trials:
        recipe = run_recipe(run.folder)
        kept = replace(search, target=recipe.generation.target)  # which languages to tune on is no result
        replace_file(run.folder / RECIPE, recipe_yaml(replace(recipe, generation=kept)))
    content: dict[str, Any] = {
        "split": split,
        "examples": num_examples,
        "metric": run.task.metrics[0],
        "checkpoints": [{"count": candidate.count, "value": candidate.value} for candidate in candidates],
        "chosen_checkpoints": chosen.count,
        "search": [{**asdict(trial.search), "value": trial.value, "searched": trial.num_searched} for trial in trials],
        "chosen_search": asdict(search) if trials else None,
    }
    replace_file(run.folder / "results" / "tune.json", strict_json(content) + "\n")


def _generation_config(run: "Run", search: SearchConfig) -> str:
    """What Transformers' own ``generate`` does unless told otherwise; a limit that depends on the source it has not."""
    assert run.model.generation_config is not None
    config = json.loads(run.model.generation_config.to_json_string())
    config["num_beams"] = search.num_beams
    for name in ("length_penalty", "early_stopping", "no_repeat_ngram_size", "_from_model_config"):
        config.pop(name, None)
    if search.num_beams > 1:
        config |= {"length_penalty": search.length_penalty, "early_stopping": search.early_stopping}
    if search.no_repeat_ngram:
        config["no_repeat_ngram_size"] = search.no_repeat_ngram
    return json.dumps(config, indent=2) + "\n"


# On the screen


def _checkpoint_table(run: "Run", candidates: list[Candidate], chosen: Candidate) -> Table:
    table = Table("model", run.task.metrics[0], "", title="checkpoints")
    for candidate in candidates:
        name = "as it is" if candidate.count is None else f"mean of the last {candidate.count}"
        table.add_row(name, f"{candidate.value:.2f}", "chosen" if candidate is chosen else "")
    return table


def _threshold_table(run: "Run", trials: "list[Trial]", best: "Trial") -> Table:
    table = Table("threshold", run.task.metrics[0], "", title="score of no answer minus score of the best")
    for trial in trials:
        chosen = "chosen" if trial is best else ""
        table.add_row(f"{trial.search.null_threshold:.3f}", f"{trial.value:.2f}", chosen)
    return table


def _search_table(run: "Run", trials: "list[Trial]", best: "Trial") -> Table:
    """Length penalties below each other, maximum lengths side by side."""
    limits = sorted({(trial.search.max_factor, trial.search.max_extra) for trial in trials})
    values = {(trial.search.length_penalty, trial.search.max_factor, trial.search.max_extra): trial for trial in trials}
    title = f"{run.task.metrics[0]} by length penalty and maximum length ({run.recipe.generation.num_beams} beams)"
    table = Table("penalty", *(f"{factor:g} S + {extra}" for factor, extra in limits), title=title)
    for penalty in sorted({trial.search.length_penalty for trial in trials}):
        row = [values[penalty, factor, extra] for factor, extra in limits]
        table.add_row(f"{penalty:g}", *(f"{trial.value:.2f}{' *' if trial is best else ''}" for trial in row))
    table.caption = "* chosen; S is the number of source tokens"
    return table
