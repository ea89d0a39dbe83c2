"""From a recipe to a run: prepare the data, train, choose the weights, write the folder.

recipe.given.yaml      the recipe as it was asked for, so that another one cannot go on here by mistake
recipe.yaml            the same with every open option decided
tokenizer.json, …      as soon as they are trained
metrics.jsonl          while training
checkpoint-<update>/   while training, and for averaging afterwards
config.json, model.safetensors, generation_config.json, training.json    at the end
"""

import json
import logging
import shutil
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments, set_seed

from depthwise.config import Recipe, load_recipe, recipe_dict, recipe_yaml
from depthwise.errors import BackendUnavailable, CheckpointError, TrainingError
from depthwise.tasks import Task, open_task
from depthwise.training.averaging import average_weights
from depthwise.training.checkpoints import checkpoints, damage, newest_whole, progress_of, replace_text, update_of
from depthwise.training.display import Display
from depthwise.training.interrupts import Interrupt, heeded
from depthwise.training.stream import BatchStream
from depthwise.training.trainer import DepthwiseTrainer, Progress

GIVEN, RECIPE, SUMMARY = "recipe.given.yaml", "recipe.yaml", "training.json"
MAY_CHANGE = {
    *("max_updates", "max_epochs", "patience", "log_every", "validate_every", "save_every", "report"),
    *("select", "average", "workers", "threads", "device", "gradient_norms"),
}
"""Options of training that may differ when a run goes on."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trained:
    """How a training ended. ``interrupted`` is the number of the signal that stopped it, if one did."""

    folder: Path
    num_updates: int
    seconds: float
    best: float | None
    metric: str
    num_parameters: int
    interrupted: int | None = None
    was_finished: bool = False


def train(recipe: Recipe, folder: Path) -> Trained:
    """Train a recipe in a folder, or go on where the folder stopped."""
    check_machine(recipe)
    begin(folder, recipe)
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    task = open_task(decided(recipe, folder), folder)
    if not (folder / RECIPE).exists():
        task.save(folder)
    replace_text(folder / RECIPE, recipe_yaml(task.resolved()))
    with heeded() as interrupt:
        return _train(task, folder, interrupt)


def check_machine(recipe: Recipe) -> None:
    """Refuse what this machine does not have before any work is done."""
    training = recipe.training
    if training.device == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("there is no GPU here that torch can use; set training.device=cpu, or leave it out")
    on_gpu = training.device != "cpu" and torch.cuda.is_available()
    if training.precision == "fp16" and not on_gpu:
        raise BackendUnavailable("fp16 needs a GPU; set training.precision=fp32 or bf16")
    for name in training.report:
        if find_spec(name) is None:
            raise BackendUnavailable(f"{name} is not installed; pip install {name}, or leave it out of training.report")


def begin(folder: Path, recipe: Recipe) -> None:
    """Make the folder of a new run, or see that this recipe is the one that the folder was begun with."""
    given = folder / GIVEN
    try:
        if not given.is_file():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise TrainingError(f"{folder} is not empty and holds no training to go on with; give another --out")
            folder.mkdir(parents=True, exist_ok=True)
            replace_text(given, recipe_yaml(recipe))
            return
    except OSError as error:
        raise TrainingError(f"{folder} cannot be written: {error.strerror}; give another --out") from error
    earlier = load_recipe(given)
    differing = [name for name in _leaves_that_differ(recipe_dict(earlier), recipe_dict(recipe)) if _matters(name)]
    if differing:
        shown = "; ".join(f"{name} was {_leaf(earlier, name)}, not {_leaf(recipe, name)}" for name in differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise TrainingError(f"{folder} was begun with another recipe: {shown}{more}; give another --out")
    replace_text(given, recipe_yaml(recipe))


def decided(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with what was decided when the run began, on this machine or another."""
    if not (folder / RECIPE).is_file():
        return recipe
    earlier = load_recipe(folder / RECIPE)
    training = recipe.training
    if training.max_updates is None and training.max_epochs is None:
        training = replace(training, max_epochs=earlier.training.max_epochs, max_updates=earlier.training.max_updates)
    return replace(earlier, training=training)


def _matters(name: str) -> bool:
    section, _, option = name.partition(".")
    return section not in ("generation", "evaluation") and not (section == "training" and option in MAY_CHANGE)


def _leaves_that_differ(old: Any, new: Any, path: str = "") -> list[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [path] if old != new else []
    names = [*old, *(name for name in new if name not in old)]
    return [
        leaf
        for name in names
        for leaf in _leaves_that_differ(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    ]


def _leaf(recipe: Recipe, name: str) -> Any:
    value: Any = recipe_dict(recipe)
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _train(task: Task, folder: Path, interrupt: Interrupt) -> Trained:
    store = task.examples("train")
    valid = task.examples("valid") if task.recipe.data.valid else None
    for name, of in (("train", store), ("valid", valid)):
        if of is not None and (of.report.num_bad or of.report.num_cut):
            log.warning("%s: %s", name, of.report.summary())
    checkpoint = newest_whole(folder)
    progress = Progress(**progress_of(checkpoint)) if checkpoint is not None else Progress()
    batches = task.batches(store)
    if progress.data:
        batches.load_state_dict(progress.data)
    max_updates = num_updates(task.recipe, len(batches))
    set_seed(task.recipe.seed)
    model = task.new_model()
    done = 0 if checkpoint is None else update_of(checkpoint)
    stopped_early = _lost_patience(task.recipe, progress)
    if (folder / SUMMARY).is_file() and (done >= max_updates or stopped_early):
        return replace(_trained(folder), was_finished=True)
    trainer = DepthwiseTrainer(
        task,
        model,
        arguments(task.recipe, folder, max_updates),
        stream=BatchStream(batches),
        train=store,
        valid=valid,
        progress=progress,
        interrupt=interrupt,
    )
    display = Display(lambda: trainer.num_items_done, task.item)
    trainer.add_callback(display)
    trainer.go_on_from(done)
    if done < max_updates and not stopped_early:
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        finally:
            display.close()
    metric = task.recipe.training.metric or task.metric
    result = Trained(
        folder, trainer.state.global_step or done, trainer.seconds, progress.best, metric, model.num_parameters()
    )
    if interrupt and trainer.state.global_step < max_updates and not _lost_patience(task.recipe, progress):
        return replace(result, interrupted=interrupt.number)
    _write_model(task, model, trainer, result)
    return result


def num_updates(recipe: Recipe, num_batches: int) -> int:
    """How many updates training takes: as many as asked for, or as make up the epochs, whichever is less."""
    training = recipe.training
    limits = []
    if training.max_updates is not None:
        limits.append(training.max_updates)
    if training.max_epochs is not None:
        limits.append(max(1, round(training.max_epochs * num_batches / training.accumulate)))
    return min(limits)


def _lost_patience(recipe: Recipe, progress: Progress) -> bool:
    patience = recipe.training.patience
    return patience is not None and progress.num_without_better >= patience


def arguments(recipe: Recipe, folder: Path, max_updates: int) -> TrainingArguments:
    """What Transformers' Trainer needs to know; what it would do between updates is switched off."""
    training = recipe.training
    on_gpu = training.device != "cpu" and torch.cuda.is_available()
    precision = training.precision
    if precision == "auto":
        precision = "bf16" if on_gpu and torch.cuda.is_bf16_supported() else "fp32"
    made = TrainingArguments(
        output_dir=str(folder),
        seed=recipe.seed,
        max_steps=max_updates,
        gradient_accumulation_steps=training.accumulate,
        max_grad_norm=training.clip_norm,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=not on_gpu,
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        logging_nan_inf_filter=False,
        ignore_data_skip=True,
        report_to=list(training.report),
        disable_tqdm=True,
        use_cache=True,
        dataloader_pin_memory=on_gpu,
        remove_unused_columns=False,
    )
    assert made.device is not None
    made._n_gpu = min(made._n_gpu, 1)  # several GPUs need a process each; Transformers would split every batch instead
    return made


def _write_model(task: Task, model: PreTrainedModel, trainer: DepthwiseTrainer, result: Trained) -> None:
    """The mean of the chosen checkpoints as the model of the run."""
    folder = result.folder
    chosen = [path for path in checkpoints(folder) if update_of(path) in trainer.chosen_updates()]
    whole = [path for path in chosen if damage(path) is None]
    for path in chosen:
        if path not in whole:
            log.warning("%s is damaged and no part of the model", path)
    if not whole:
        raise CheckpointError(f"{folder} holds none of the checkpoints that were to become the model; train it again")
    weights = average_weights(whole)
    model.load_state_dict(weights, strict=False)
    workshop = folder / ".model.partial"
    try:
        model.cpu().save_pretrained(workshop)
        for path in sorted(workshop.iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(folder / path.name)
        summary = {
            "num_updates": result.num_updates,
            "seconds": result.seconds,
            "metric": result.metric,
            "best": result.best,
            "num_parameters": result.num_parameters,
            "averaged": [update_of(path) for path in whole],
        }
        replace_text(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be written: {error.strerror}; make room and give the same command again"
        ) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _trained(folder: Path) -> Trained:
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    names = ("num_updates", "seconds", "best", "metric", "num_parameters")
    return Trained(folder, **{name: summary[name] for name in names})
