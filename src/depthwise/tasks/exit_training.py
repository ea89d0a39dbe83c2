"""How the exits of a task's model learn: the objective of every pass, which may change as training goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from depthwise.config import ExitTrainingConfig, ModelConfig, Recipe, TrainingConfig
from depthwise.config.exit_training import model_problems
from depthwise.depth.exit_weights import exit_weights, rotated, unlocked
from depthwise.depth.layer_dropout import layerdrop, layerskip
from depthwise.errors import ConfigError, Problem
from depthwise.losses import ExitTargets
from depthwise.models.objective import ExitObjective
from depthwise.models.outputs import DepthwiseOutput
from depthwise.models.scaled_gradients import own_factors
from depthwise.shapes import Tensor
from depthwise.tasks.teaching import TEACHER, teacher_in
from depthwise.tasks.values import Losses

NLL = "nll_at_"
"""Beginning of the names of what each exit loses; its depth follows."""
ITEMS = "items_at_"
POLICY = "policy_loss"


class ExitTraining:
    """What exits learn at each update.

    Where passes are recorded, what changes lies in tensors on the device, which ``advance`` writes to. So do weights of
    which the last is 0: numbers would pass that exit over, by which models are measured.
    """

    def __init__(self, training: TrainingConfig, model: ModelConfig) -> None:
        self._training, self.options = training, training.exits or ExitTrainingConfig()
        self.depths, self._is_recorded = model.exit_depths, training.graphs
        given = self.options.weights
        named = given if isinstance(given, str) else [float(weight) for weight in given]
        self._base = exit_weights(named, self.depths, scale=float(self.options.weight_scale))
        self._weights, self._dropped = self._base, self._chances(0.0)
        gamma = self.options.gradient_scale
        self._factors = None if gamma is None else own_factors(float(gamma), self.depths[-1])
        self._on_device: dict[str, Tensor] = {}
        self._targets = ExitTargets(
            smoothing=training.label_smoothing,
            over_others=training.smoothing_over_others,
            from_last=float(self.options.distill),
            divergence=self.options.distill_divergence,
        )
        self.advance(0, 1)

    def advance(self, update: int, num_updates: int, device: torch.device | None = None) -> None:
        """Before the pass of an update, counted from 0."""
        options = self.options
        if options.curriculum == "rotational":
            self._weights = rotated(self._base, update, every=options.curriculum_every)
        elif options.curriculum == "gradual":
            self._weights = unlocked(self._base, update / num_updates, share=float(options.curriculum_share))
        if options.layer_dropout_grows:
            self._dropped = self._chances(min(1.0, update / max(1, num_updates - 1)))
        if device is None:
            return
        if self._is_recorded or not self._weights[-1]:
            self._write("weights", self._weights, device)
        if self._is_recorded and self._dropped is not None:
            self._write("dropped", self._dropped, device)

    def _write(self, name: str, values: Sequence[float], device: torch.device) -> None:
        fresh = torch.tensor(values)
        if name not in self._on_device or self._on_device[name].device != device:
            self._on_device[name] = fresh.to(device)
        else:
            self._on_device[name].copy_(fresh.pin_memory() if device.type == "cuda" else fresh, non_blocking=True)

    def _chances(self, progress: float) -> list[float] | None:
        options, num_layers = self.options, self.depths[-1]
        highest = float(options.layer_dropout_chance)
        if options.layer_dropout == "layerdrop":
            return layerdrop(num_layers, highest)
        if options.layer_dropout == "layerskip":
            return layerskip(num_layers, highest, progress if options.layer_dropout_grows else None)
        return None

    def objective(self, *, is_training: bool) -> ExitObjective:
        """What a pass is to minimise; validation is aligned, with all blocks, and measures all exits."""
        weight = float(self.options.policy_weight)
        if not is_training:
            return ExitObjective(weights=torch.tensor(self._base), targets=self._targets, policy_weight=weight)
        if self.options.objective == "mixed":
            weights: Sequence[float] | Tensor | None = None
        else:
            weights = self._on_device.get("weights", _counted(self._weights))
        return ExitObjective(
            weights=weights,
            paths=self.options.paths,
            targets=self._targets,
            policy_weight=weight,
            dropped=self._on_device.get("dropped", self._dropped),
            drops_by_row=self.options.layer_dropout == "layerskip",
            own_factors=self._factors,
        )

    def applies_to(self, model: PreTrainedModel) -> bool:
        """Whether exits learn, or are measured; not where tokens leave by a policy, which is then what is measured."""
        return model.training or getattr(model, "policy", None) is None

    def losses(self, model: PreTrainedModel, inputs: Mapping[str, Any], num_items: Tensor | int | None) -> Losses:
        """The loss of all exits, and sums over the items of a batch.

        Those are ``nll`` and, of small heads, ``correct`` as the last exit has them, the nll of every exit over the
        items that came there, and how deep tokens ran. Where only some came to the last exit, they stand for all.
        """
        objective = self.objective(is_training=model.training)
        if (teacher := teacher_in(inputs, self._training)) is not None:
            of_copies = objective.repeated(teacher.logits)
            assert of_copies is not None
            targets = replace(objective.targets, teacher=teacher._replace(logits=of_copies))
            objective = replace(objective, targets=targets)
        own = {name: value for name, value in inputs.items() if name != TEACHER}
        output: DepthwiseOutput = model(**own, num_items_in_batch=num_items, objective=objective)
        assert output.loss is not None
        assert output.exit_nll is not None
        assert output.exit_items is not None
        assert output.depths is not None
        sums, items = output.exit_nll, output.exit_items
        num_items_here = items.sum() / objective.paths if objective.is_mixed else items[-1]
        stands_for = num_items_here / items[-1].clamp(min=1)
        found = {"nll": sums[-1] * stands_for}
        if output.exit_correct is not None:
            found["correct"] = output.exit_correct[-1] * stands_for
        found |= {"depth": output.depths.sum().float(), "depth_tokens": (output.depths > 0).sum().float()}
        for depth, of_exit, count in zip(self.depths, sums.unbind(), items.unbind(), strict=True):
            found |= {f"{NLL}{depth}": of_exit, f"{ITEMS}{depth}": count.to(of_exit.dtype)}
        if output.policy_loss is not None:
            found[POLICY] = output.policy_loss
        return Losses(output.loss, found)

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that every validation has."""
        return tuple(f"{NLL}{depth}" for depth in self.depths)

    def metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        """Those of all exits that any item came to, and what the policy loses."""
        found = {
            f"{NLL}{depth}": totals[f"{NLL}{depth}"] / totals[f"{ITEMS}{depth}"]
            for depth in self.depths
            if totals.get(f"{ITEMS}{depth}")
        }
        return {**found, **({POLICY: totals[POLICY] / num_items} if POLICY in totals else {})}


def exit_training(recipe: Recipe, model: ModelConfig) -> ExitTraining | None:
    """How exits of a recipe's model learn; none where it has no exits. Raises ``ConfigError`` where they cannot so."""
    options = recipe.training.exits
    if model.exits is None:
        if options is not None:
            message = "has no effect on a model without exits; set model.exits, or remove it"
            raise ConfigError("recipe", [Problem("training.exits", message)])
        return None
    if problems := list(model_problems(options or ExitTrainingConfig(), model)):
        raise ConfigError(
            "recipe", [Problem(f"training.exits.{problem.option}", problem.message) for problem in problems]
        )
    return ExitTraining(recipe.training, model)


def _counted(weights: Sequence[float]) -> Sequence[float] | Tensor:
    """Numbers, by which exits without weight are passed over; a tensor where the last, which is measured, has none."""
    return weights if weights[-1] else torch.tensor(weights)
