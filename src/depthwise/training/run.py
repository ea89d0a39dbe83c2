"""From a recipe to a run: prepare the data, train, choose the weights, write the folder.

recipe.given.yaml      the recipe and the command that asked for it, so that no other one goes on here by mistake
recipe.yaml            the same with every open option decided
tokenizer.json, …      as soon as they are trained
metrics.jsonl          while training
layers.jsonl           the same, where layers are latent
checkpoint-<update>/   while training, and for averaging afterwards
config.json, model.safetensors, generation_config.json, training.json    at the end
"""

import logging
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments, set_seed

from depthwise.config import Recipe, load_recipe
from depthwise.errors import BackendUnavailable, ConfigError, Problem
from depthwise.evaluation.timing import hardware
from depthwise.kernels.attention import for_changing_lengths
from depthwise.tasks import Task, open_task
from depthwise.tasks.build import RECIPE
from depthwise.tasks.sequence_to_sequence import SequenceToSequence
from depthwise.training.beginning import begun
from depthwise.training.checkpoints import newest_whole, progress_of, update_of
from depthwise.training.checks import check_training
from depthwise.training.display import Display
from depthwise.training.finishing import Trained, finished, write_model
from depthwise.training.freezing import freeze
from depthwise.training.interrupts import heeded
from depthwise.training.pace import Pace
from depthwise.training.processes import Team, team
from depthwise.training.stream import BatchStream
from depthwise.training.teacher import open_teacher
from depthwise.training.trainer import DepthwiseTrainer, Progress, chosen_updates

FULLY_SHARDED: dict[str, Any] = {
    "version": 2,
    "transformer_layer_cls_to_wrap": ["Block"],
    "state_dict_type": "FULL_STATE_DICT",
}
"""Every block is gathered when it runs; checkpoints hold whole weights."""
log = logging.getLogger(__name__)


def train(recipe: Recipe, folder: Path, command: str | None = None) -> Trained:
    """Train a recipe in a folder, or go on where the folder stopped; alone, or together with what torchrun started.

    ``command`` is what the folder remembers as its origin.
    """
    check_machine(recipe)
    check_training(recipe)
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    us = team(on_gpu=uses_gpu(recipe))
    if us.leads:
        task = begun(recipe, folder, command)
    us.wait()
    if not us.leads:
        task = open_task(load_recipe(folder / RECIPE), folder)
    return _train(task, folder, us)


def uses_gpu(recipe: Recipe) -> bool:
    return recipe.training.device != "cpu" and torch.cuda.is_available()


def check_machine(recipe: Recipe) -> None:
    """Refuse what this machine does not have before any work is done."""
    training = recipe.training
    if training.device == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable("there is no GPU here that torch can use; set training.device=cpu, or leave it out")
    if training.precision == "fp16" and not uses_gpu(recipe):
        raise BackendUnavailable("fp16 needs a GPU; set training.precision=fp32 or bf16")
    if training.shard and not uses_gpu(recipe):
        raise BackendUnavailable(
            "sharded training needs GPUs; leave training.shard out, or start it where there are some"
        )
    if training.shard and "WORLD_SIZE" not in os.environ:
        raise BackendUnavailable(
            "sharded training needs processes to share: torchrun --nproc-per-node N -m depthwise train ..."
        )
    if training.graphs and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BackendUnavailable("training.graphs works in a single process; leave it out, or start without torchrun")
    for name in training.report:
        if find_spec(name) is None:
            raise BackendUnavailable(f"{name} is not installed; pip install {name}, or leave it out of training.report")


def _train(task: Task, folder: Path, us: Team) -> Trained:
    store = task.examples("train")
    valid = task.examples("valid") if task.recipe.data.valid else None
    for name, of in (("train", store), ("valid", valid)):
        if us.leads and of is not None and (of.report.num_bad or of.report.num_cut):
            log.warning("%s: %s", name, of.report.summary())
    checkpoint = newest_whole(folder)
    progress = Progress(**progress_of(checkpoint)) if checkpoint is not None else Progress()
    batches = task.batches(store, rank=us.rank, world_size=us.world_size)
    if progress.data:
        batches.load_state_dict(progress.data)
    check_metric(task)
    max_updates = num_updates(task.recipe, len(batches))
    done = 0 if checkpoint is None else update_of(checkpoint)
    is_over = done >= max_updates or _lost_patience(task.recipe, progress)
    if is_over and (earlier := finished(folder, done, chosen_updates(task, progress.history))) is not None:
        return earlier
    teacher = None if is_over else open_teacher(task)
    set_seed(task.recipe.seed)
    model = task.new_model() if checkpoint is None else task.model_class(task.model_config())
    freeze(model, task.recipe)
    trainer = DepthwiseTrainer(
        task,
        model,
        arguments(task.recipe, folder, max_updates, us.rank),
        stream=BatchStream(batches),
        train=store,
        valid=valid,
        progress=progress,
        team=us,
        teacher=teacher,
    )
    display = Display(lambda: trainer.num_items_done, task.item)
    pace = Pace()
    for callback in (display, pace):
        trainer.add_callback(callback)
    trainer.go_on_from(done)
    if not is_over:
        try:
            with heeded() as trainer.interrupt, for_changing_lengths():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        finally:
            display.close()
    metric = task.recipe.training.metric or task.metric
    result = Trained(
        folder=folder,
        num_updates=trainer.state.global_step or done,
        seconds=trainer.seconds,
        best=progress.best,
        metric=metric,
        num_parameters=model.num_parameters(),
        hardware=hardware(trainer.args.device),
        updates_per_second=pace.updates_per_second,
        items_per_second=pace.items_per_second,
    )
    if trainer.stopped_by is not None and not _lost_patience(task.recipe, progress):
        return replace(result, interrupted=trainer.stopped_by)
    if us.leads:
        write_model(task, result, chosen_updates(task, progress.history))
    us.wait()
    return result


def check_metric(task: Task) -> None:
    """Refuse a metric that no validation will have before any work is done."""
    name = task.recipe.training.metric
    known = {*task.validation_names(), *task.known_metrics()}
    if name is not None and name not in known:
        message = f'"{name}" is none of {", ".join(sorted(known))}'
        raise ConfigError("recipe", [Problem("training.metric", message)])
    wanted = name or task.metric
    is_of_text = isinstance(task, SequenceToSequence) and wanted not in task.validation_names()
    if task.recipe.training.shard and task.recipe.data.valid and is_of_text:
        message = f"{wanted} is of text, which a model in shards does not write; set it to nll, and evaluate afterwards"
        raise ConfigError("recipe", [Problem("training.metric", message)])


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


def arguments(recipe: Recipe, folder: Path, max_updates: int, rank: int = 0) -> TrainingArguments:
    """What Transformers' Trainer needs to know; what it would do between updates is switched off.

    Every process drops out differently.
    """
    training = recipe.training
    on_gpu = uses_gpu(recipe)
    precision = training.precision
    if precision == "auto" and training.half_states and on_gpu:
        precision = "fp16"
    elif precision == "auto":
        precision = "bf16" if on_gpu and torch.cuda.is_bf16_supported() else "fp32"
    sharded: dict[str, Any] = {"fsdp": True, "fsdp_config": dict(FULLY_SHARDED)} if training.shard else {}
    made = TrainingArguments(
        output_dir=str(folder),
        seed=recipe.seed + rank,
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
        **sharded,
    )
    assert made.device is not None
    made._n_gpu = min(made._n_gpu, 1)  # several GPUs need a process each; Transformers would split every batch instead
    return made
