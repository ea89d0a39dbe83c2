"""The Trainer of Transformers, for tasks, streams of batches and checkpoints of this library.

Transformers' loop sees one endless epoch; where epochs end is known to the stream alone. What happens between updates
(logs, validations, checkpoints, stopping) is decided in one place, ``Steering``. Nothing in an update waits for the
device: batches are pinned and copied while it works, sums for the log stay there until a line is due.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors import SafetensorError
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, Trainer, TrainingArguments

from depthwise.errors import CheckpointError, TrainingError
from depthwise.evaluation.results import replace_file
from depthwise.evaluation.validation import score_split, validate, validation_metrics
from depthwise.shapes import Tensor
from depthwise.tasks import Examples, Losses, Task
from depthwise.training.beginning import SUMMARY
from depthwise.training.checkpoints import PROGRESS, clear_away, remove_unfinished, written
from depthwise.training.gradients import gradient_norms
from depthwise.training.graphs import RecordedPasses
from depthwise.training.half_states import HalfStates, half_precision
from depthwise.training.interrupts import Interrupt, leave_signals_to_the_trainer
from depthwise.training.latent import LatentSteps
from depthwise.training.meters import Meter
from depthwise.training.metrics_file import MetricsFile
from depthwise.training.optimizers import build_optimizer
from depthwise.training.processes import Team
from depthwise.training.schedules import build_schedule, schedule_options, set_rates
from depthwise.training.sharding import begin_states, grouped_by_blocks
from depthwise.training.steering import Steering
from depthwise.training.stream import BatchStream, EpochRows
from depthwise.training.structure import StructureSteps, expected_depths
from depthwise.training.teacher import TeacherSteps


@dataclass
class Progress:
    """What a run must remember beside weights, optimiser and generators to go on as if nothing had happened."""

    history: list[dict[str, Any]] = field(default_factory=list)
    """Update and metric of every validation, which came with a checkpoint each."""
    best: float | None = None
    num_without_better: int = 0
    seconds: float = 0.0
    data: dict[str, int] = field(default_factory=dict)
    meter: dict[str, float] = field(default_factory=lambda: {"num_items": 0})


class DepthwiseTrainer(Trainer):
    """Trains the model of a task until its recipe says stop, an interruption does, or nothing gets better."""

    def __init__(
        self,
        task: Task,
        model: PreTrainedModel,
        arguments: TrainingArguments,
        *,
        stream: BatchStream,
        train: Examples,
        valid: Examples | None,
        progress: Progress,
        team: Team,
        teacher: PreTrainedModel | None = None,
    ) -> None:
        self.task, self.stream = task, stream
        self.train_store, self.valid_store = train, valid
        self.progress, self.team = progress, team
        self.interrupt = Interrupt()
        self.stopped_by: int | None = None
        self.run = Path(arguments.output_dir or ".")
        self.metrics_file = MetricsFile(self.run / "metrics.jsonl")
        super().__init__(model=model, args=arguments, callbacks=[Steering(self)])
        for usual in (PrinterCallback, ProgressCallback):
            self.remove_callback(usual)
        self.latent, self.structure = LatentSteps(task, model, self.run), StructureSteps(task, model)
        self._half = half_precision(task.recipe.training, arguments)
        self.teacher = TeacherSteps(teacher, arguments.device, self.accelerator.autocast, self._half)
        self.meter = Meter(arguments.device)
        if team.leads:  # which has the sums of all
            self.meter.load_state_dict(progress.meter)
        self._first_update = 0
        self._started = time.monotonic()
        self._seconds_before = progress.seconds
        self._norms: dict[str, Tensor] = {}
        self._rate = 0.0
        self._compiled: nn.Module | None = None
        self._passes: RecordedPasses | None = None
        self._writing_to: Path | None = None
        self.num_items_done = 0

    @property
    def trained_model(self) -> PreTrainedModel:
        """The model without what Accelerate may have put around it."""
        assert isinstance(self.model, PreTrainedModel)
        return self.model

    # Data

    def get_train_dataloader(self) -> DataLoader[Any]:
        training, on_gpu = self.task.recipe.training, self.args.device.type != "cpu"
        workers = (2 if on_gpu else 0) if training.workers is None else training.workers
        rows = EpochRows(self.train_store, self.task)
        return DataLoader(
            rows,
            batch_sampler=self.stream,
            collate_fn=rows.collate,
            num_workers=workers,
            prefetch_factor=8 if workers else None,
            worker_init_fn=leave_signals_to_the_trainer,
            pin_memory=on_gpu,
            generator=torch.Generator(),  # so that the global one, which dropout draws from, is left alone
        )

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor:
        """How many items one update has, over all its batches and all processes."""
        self._num_items_of = [self.task.num_items(batch) for batch in batch_samples]
        total = torch.tensor(sum(self._num_items_of))
        if self.args.device.type != "cpu":
            total = total.pin_memory().to(device, non_blocking=True)
        if self.args.world_size > 1:
            total = self.accelerator.reduce(total, "sum")
        return total

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: value.to(self.args.device, non_blocking=True) for name, value in inputs.items()}

    # One update

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch, divided by the items of the whole update; DDP's mean over processes is undone."""
        assert not return_outputs
        assert num_items_in_batch is not None
        losses = self._losses(self._run_as(model), inputs, num_items_in_batch)
        self._count(losses, num_items_in_batch)
        return losses.loss * self.args.world_size

    def _losses(self, model: nn.Module, batch: dict[str, Any], num_items: Tensor | int) -> Losses:
        losses = self.task.losses(model, self.teacher.beside(batch), num_items)  # type: ignore[arg-type]
        num_passes = self.args.gradient_accumulation_steps * self.args.world_size
        return self.structure.added(self.latent.added(losses, batch, num_passes), num_passes)

    def _count(self, losses: Losses, num_items: Tensor | int) -> None:
        num_here = self._num_items_of.pop(0)
        self.num_items_done += num_here
        self.meter.add({"loss": losses.loss.detach() * num_items, **losses.totals}, num_here)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Forward and backward: as Transformers does it, or repeated from a record."""
        self.task.advance(self.state.global_step, self.state.max_steps, self.args.device)
        if not (self.task.recipe.training.graphs and self.args.device.type == "cuda"):
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
            return loss
        assert isinstance(num_items_in_batch, Tensor)
        if self._passes is None:
            half = None if self._half is None else HalfStates(model, self._half)
            self._passes = RecordedPasses(lambda *batch: self._pass(model, *batch), list(model.parameters()), half)
        if not model.training:
            model.train()
        losses = self._passes(self._prepare_inputs(inputs), num_items_in_batch)
        self._count(losses, num_items_in_batch)
        return losses.loss.detach()

    def _pass(self, model: nn.Module, batch: dict[str, Tensor], num_items: Tensor) -> Losses:
        losses = self._losses(model, batch, num_items)
        self.accelerator.backward(losses.loss)
        return losses

    def _run_as(self, model: nn.Module) -> nn.Module:
        """The model itself, or compiled for lengths that change from batch to batch."""
        if not self.task.recipe.training.compile:
            return model
        if self._compiled is None:
            self._compiled = torch.compile(model, dynamic=True)  # type: ignore[assignment]
        assert self._compiled is not None
        return self._compiled

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: it would walk through all parameters at every update."""
        return 0

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        self.latent.hold(self.state.global_step)
        self._keep_norms_of_parts(model)
        norm: Tensor = super()._clip_grad_norm(model)
        return norm

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> None:
        """Keep the norm of all gradients, before clipping, for the update that writes a line, and no other."""
        if not self.logs_at(self.state.global_step + 1):
            return
        if grad_norm is None:
            self._keep_norms_of_parts(model)
            grad_norm = self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
        self._norms = {"gradient_norm": grad_norm, **self._norms}
        self._rate = self._get_learning_rate()

    def _keep_norms_of_parts(self, model: nn.Module) -> None:
        if self.task.recipe.training.gradient_norms and self.logs_at(self.state.global_step + 1):
            scaler = self.accelerator.scaler  # of float16, by whose scale gradients are still too large
            scale = 1.0 if scaler is None else scaler.get_scale()
            norms = gradient_norms(self.accelerator.unwrap_model(model))
            self._norms = {name: norm / scale for name, norm in norms.items()}

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        with grouped_by_blocks(self.trained_model) if self.is_fsdp_enabled else nullcontext():
            return super()._prepare_for_training(*args, **kwargs)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if self.optimizer is None:
            options = dict(self.task.recipe.training.optimizer)
            kind = options.pop("kind")
            model = self.trained_model if model is None else model
            self.optimizer = build_optimizer(kind, model, logits_lr=self.latent.lr, **options)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            assert optimizer is not None
            options = schedule_options(self.task.recipe.training.schedule, num_training_steps)
            kind = options.pop("kind")
            self.lr_scheduler = build_schedule(kind, optimizer, **options)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Also where training has another length than before, on which the schedule depends."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            assert isinstance(self.lr_scheduler, LambdaLR)
            set_rates(self.lr_scheduler)

    # Between updates

    def logs_at(self, update: int) -> bool:
        return update % self.task.recipe.training.log_every == 0

    def go_on_from(self, num_updates: int) -> None:
        """Updates that were made before this process began."""
        self._first_update = num_updates
        if self.team.leads:
            self.metrics_file.begin(num_updates)
            self.latent.begin(num_updates)
            remove_unfinished(self.run, num_updates)
            (self.run / SUMMARY).unlink(missing_ok=True)
        self.team.wait()

    @property
    def num_steps(self) -> int:
        """Batches of this process since its stream began."""
        return (self.state.global_step - self._first_update) * self.args.gradient_accumulation_steps

    def write_line(self) -> dict[str, float]:
        """The line of the log that is due, for everyone who listens."""
        sums, num_items = self._over_processes()
        values = self.task.validation_metrics(sums, num_items)
        values |= {name: float(norm) for name, norm in self._norms.items()}
        values |= self.latent.note(self.state.global_step, leads=self.is_world_process_zero())
        values |= expected_depths(sums)
        self._note({**values, "learning_rate": self._rate, "num_items": num_items})
        self._norms = {}
        self.meter.reset()
        self.check_finite(values["loss"])
        return values

    def check_finite(self, loss: float) -> None:
        """End a training that has diverged."""
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is no number any more at update {self.state.global_step}; lower the learning rate, warm up "
                "longer, or clip gradients (training.clip_norm)"
            )

    def _over_processes(self) -> tuple[dict[str, float], int]:
        mine = [(self.meter.sums(), self.meter.num_items)]
        all_of_them = gather_object(mine) if self.args.world_size > 1 else mine
        sums = {name: sum(part[name] for part, _ in all_of_them) for name in all_of_them[0][0]}
        return sums, sum(num_items for _, num_items in all_of_them)

    def _note(self, values: dict[str, float]) -> None:
        """To ``metrics.jsonl`` without times, to all others as they like it."""
        if self.is_world_process_zero():
            self.metrics_file.add({"update": self.state.global_step, "epoch": self.state.epoch, **values})
        self.log(dict(values))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Validate, and take note of whether it got better."""
        if self.valid_store is None:
            metrics: dict[str, float] = {}
            if not math.isfinite(self._over_processes()[0].get("loss", 0.0)):
                self.write_line()  # before its time, and the last one
        else:
            metrics = self._validated()
            self._note({f"valid_{name}": value for name, value in metrics.items()})
            self.check_finite(metrics.get("loss", 0.0))
        progress, name = self.progress, self.task.recipe.training.metric or self.task.metric
        value = metrics.get(name)
        progress.history.append({"update": self.state.global_step, "value": value})
        if value is not None:
            if progress.best is None or self.task.is_better(name, value, progress.best):
                progress.best, progress.num_without_better = value, 0
            else:
                progress.num_without_better += 1
            patience = self.task.recipe.training.patience
            if patience is not None and progress.num_without_better >= patience:
                self.control.should_training_stop = True
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _validated(self) -> dict[str, float]:
        assert self.valid_store is not None
        rank, world_size = self.args.process_index, self.args.world_size
        options = {"batch_tokens": self.task.tokens_at_once, "rank": rank, "world_size": world_size}
        with self.accelerator.autocast():
            mine = [validate(self.task, self.trained_model, self.valid_store, **options)]
        metrics = validation_metrics(self.task, gather_object(mine) if world_size > 1 else mine)
        wanted = self.task.recipe.training.metric or self.task.metric
        if wanted not in metrics and math.isfinite(metrics["loss"]):
            metrics[wanted] = score_split(self.task, self.trained_model, "valid", wanted)
        return metrics

    # Checkpoints

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._writing_to or self.run)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """As Transformers writes it, with our progress, but to a folder that takes its place when all is there."""
        place = self.run / f"checkpoint-{self.state.global_step}"
        leads = self.is_world_process_zero()
        progress = self._progress_now()
        if self.is_fsdp_enabled:
            assert self.optimizer is not None
            begin_states(self.optimizer)
        try:
            with written(place, leads=leads) as workshop:
                self._writing_to = workshop
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                if leads:
                    replace_file(workshop / place.name / PROGRESS, json.dumps(progress, indent=1) + "\n")
        except (OSError, SafetensorError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "writ" not in str(error):  # torch's words for a full disk
                raise
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CheckpointError(
                f"{place} cannot be written: {reason}; make room, and the same command goes on from the last checkpoint"
            ) from error
        finally:
            self._writing_to = None
        if leads:
            clear_away(self.run, needed=chosen_updates(self.task, self.progress.history))

    def _progress_now(self) -> dict[str, Any]:
        self.progress.data = self.stream.state_dict(self.num_steps)
        sums, num_items = self._over_processes()
        self.progress.meter = {"num_items": num_items, **sums}
        self.progress.seconds = self.seconds
        return asdict(self.progress)

    @property
    def seconds(self) -> float:
        """Time spent on training, before and after interruptions."""
        return self._seconds_before + time.monotonic() - self._started


def chosen_updates(task: Task, history: Sequence[Mapping[str, Any]]) -> list[int]:
    """The updates whose checkpoints make up the model, by what validations found until now."""
    training = task.recipe.training
    if training.select == "best":
        name = training.metric or task.metric
        sign = 1 if task.is_better(name, 0.0, than=1.0) else -1
        history = sorted(history, key=lambda entry: (sign * entry["value"], entry["update"]))
        return [entry["update"] for entry in history[: training.average]]
    return [entry["update"] for entry in history[-training.average :]]
