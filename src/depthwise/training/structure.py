"""What the trainer does for encoders that say how many layers they need: a price of layers, and a line of the log."""

import math
from collections.abc import Mapping

from torch import nn

from depthwise.errors import ConfigError, Problem
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.tasks import Losses, Task

ROWS, SUM, SQUARES = "structure/rows", "structure/sum", "structure/squares"


class StructureSteps:
    """Nothing at all for other models."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        assert isinstance(model, DepthwisePreTrainedModel)
        self.cost, self.structure = float(task.recipe.training.depth_cost), model.structure
        if self.cost and self.structure is None:
            message = "has no effect on a model whose depth is not learned; set model.structure, or remove it"
            raise ConfigError("recipe", [Problem("training.depth_cost", message)])

    def added(self, losses: Losses, num_passes: int) -> Losses:
        """The losses of a pass with its share of the price, of so many passes in the update."""
        if self.structure is None:
            return losses
        expected = self.structure.expected
        assert expected is not None, "the pass has just been made"
        loss = losses.loss + self.cost * expected.mean() / num_passes if self.cost else losses.loss
        seen = expected.detach().float()
        counted = {ROWS: seen.new_full((), len(seen)), SUM: seen.sum(), SQUARES: (seen**2).sum()}
        return Losses(loss, {**losses.totals, **counted})


def expected_depths(totals: Mapping[str, float]) -> dict[str, float]:
    """How deep rows were expected to run, in the mean and how far apart they are, for the log."""
    if not totals.get(ROWS):
        return {}
    mean, squares = totals[SUM] / totals[ROWS], totals[SQUARES] / totals[ROWS]
    return {"expected_depth": mean, "expected_depth_deviation": math.sqrt(max(0.0, squares - mean**2))}
