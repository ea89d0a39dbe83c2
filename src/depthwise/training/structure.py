"""What the trainer does for encoders that say how many layers they need: terms of the loss, and a line of the log."""

import math
from collections.abc import Mapping

from torch import nn

from depthwise.errors import ConfigError, Problem
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Float, Tensor
from depthwise.tasks import Losses, Task

LEAST = 1e-9
"""Chances below this one have the same logarithm, since that of 0 has no gradient."""
ROWS, SUM, SQUARES = "structure/rows", "structure/sum", "structure/squares"


class StructureSteps:
    """Terms that are added to the loss of a task; nothing at all for other models.

        c·E[depth]             a price of layers, ``depth_cost``
        c·|E[depth] − K|       instead, where K layers are wanted in the mean, ``depth_target``
        −w·I(x; depth)         how much of an input its number of layers tells, ``depth_information``

    The optimum of a price lies at one of both ends, a wanted mean holds depth between them. Neither makes inputs differ
    where the task gains little by it. Information does: I = H(mean of q) − mean of H(q) over the inputs of a batch is
    large where each is certain of its depth and all depths occur; which input gets which is left to the task.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        assert isinstance(model, DepthwisePreTrainedModel)
        options = task.recipe.training
        self.cost, self.target = float(options.depth_cost), options.depth_target
        self.information, self.structure = float(options.depth_information), model.structure
        if problem := self._problem():
            raise ConfigError("recipe", [problem])

    def added(self, losses: Losses, num_passes: int) -> Losses:
        """The losses of a pass with its share of these terms, of so many passes in the update."""
        if self.structure is None:
            return losses
        expected, chances = self.structure.expected, self.structure.chances
        assert expected is not None, "the pass has just been made"
        assert chances is not None, "both come from the same pass"
        loss, depth = losses.loss, expected.mean()
        if self.cost:
            loss = loss + self.cost * (depth if self.target is None else (depth - self.target).abs()) / num_passes
        if self.information:
            loss = loss - self.information * information(chances) / num_passes
        seen = expected.detach().float()
        counted = {ROWS: seen.new_full((), len(seen)), SUM: seen.sum(), SQUARES: (seen**2).sum()}
        return Losses(loss, {**losses.totals, **counted})

    def _problem(self) -> Problem | None:
        """What is wrong with a price, with the depth that it pulls to, or with all of them."""
        if self.structure is None:
            given = {"depth_cost": self.cost, "depth_target": self.target, "depth_information": self.information}
            name = next((name for name, value in given.items() if value), None)
            message = "has no effect on a model whose depth is not learned; set model.structure, or remove it"
            return None if name is None else Problem(f"training.{name}", message)
        if self.target is None:
            return None
        least = self.structure.least
        most = self.structure.num_static + self.structure.num_adaptive
        if not self.cost:
            message = "has no effect without training.depth_cost, the price of a layer more or less; set it"
        elif least < self.target < most:
            return None
        else:
            message = f"{self.target:g} is not between the {least} layers that always run and all {most}; choose one"
        return Problem("training.depth_target", message)


def information(chances: Float[Tensor, "B n"]) -> Float[Tensor, ""]:
    """I(x; depth) of the rows of a batch, in nats: what is known of the depth once the row is."""
    return _entropy(chances.mean(0)) - _entropy(chances).mean()


def _entropy(chances: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    return -(chances * chances.clamp(min=LEAST).log()).sum(-1)


def expected_depths(totals: Mapping[str, float]) -> dict[str, float]:
    """How deep rows were expected to run, in the mean and how far apart they are, for the log."""
    if not totals.get(ROWS):
        return {}
    mean, squares = totals[SUM] / totals[ROWS], totals[SQUARES] / totals[ROWS]
    return {"expected_depth": mean, "expected_depth_deviation": math.sqrt(max(0.0, squares - mean**2))}
