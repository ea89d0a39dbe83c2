"""What the trainer does for latent layers beside its updates: the objective, two levels of updates, and a record."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from depthwise.depth import LatentLayers
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.tasks import Losses, Task
from depthwise.tasks.latent_training import LatentTraining, use_gates_of
from depthwise.training.metrics_file import MetricsFile

RECORD = "layers.jsonl"
"""Probabilities and samples of all layers, at every line of ``metrics.jsonl`` about training."""
log = logging.getLogger(__name__)


class LatentSteps:
    """Nothing at all for models without gates."""

    def __init__(self, task: Task, model: nn.Module, folder: Path) -> None:
        self.latent: LatentTraining | None = task.latent
        self._max_updates = task.recipe.training.max_updates
        self._layers = [module for module in model.modules() if isinstance(module, LatentLayers)]
        self._record = MetricsFile(folder / RECORD)
        assert isinstance(model, DepthwisePreTrainedModel)
        use_gates_of(task.recipe, model)
        if self.latent is not None:
            self.latent.attach(model)

    @property
    def lr(self) -> float | None:
        """The learning rate of the logits, where it is one of their own."""
        lr = None if self.latent is None else self.latent.options.lr
        return None if lr is None else float(lr)

    def begin(self, num_updates: int) -> None:
        """Behind so many updates. At the very beginning it is said which options will have no effect."""
        if self.latent is None:
            return
        self._record.begin(num_updates)
        if self._max_updates is not None and not num_updates:
            for sentence in self.latent.without_effect(self._max_updates):
                log.warning("%s", sentence)

    def added(self, losses: Losses, batch: Mapping[str, Any], num_passes: int) -> Losses:
        """The losses of a pass with its share of the objective of the gates, of so many passes in the update."""
        if self.latent is None:
            return losses
        return Losses(losses.loss + self.latent.penalty(batch) / num_passes, losses.totals)

    def hold(self, update: int) -> None:
        """Forget the gradients of the logits in updates of the weights alone: nothing of them counts or is kept."""
        if self.latent is not None and self.latent.holds_logits(update):
            for layers in self._layers:
                layers.logits.grad = None

    def note(self, update: int, *, leads: bool) -> dict[str, float]:
        """How many layers are used, for the log; all of them one by one go to ``layers.jsonl``."""
        if self.latent is None:
            return {}
        record = self.latent.record()  # for which sharded processes have to meet
        if leads:
            self._record.add({"update": update, **record})
        return self.latent.depths()
