"""Whether a recipe can be trained with, as far as that is clear before its data is read."""

from typing import Any

from depthwise.config import Recipe, model_options
from depthwise.errors import ConfigError, Problem
from depthwise.training.builders import builder_problems
from depthwise.training.optimizers import OPTIMIZERS, parameter_groups
from depthwise.training.schedules import SCHEDULES

FROM_LENGTH = ("total", "period")
"""Options of schedules that follow from the length of training."""


def check_training(recipe: Recipe) -> None:
    """Raises ``ConfigError`` with all that is wrong with its optimiser, its schedule and how its passes are run.

    A model with a size decides the learning rate, and so an optimiser beside one may do without.
    """
    optimizer, schedule = dict(recipe.training.optimizer), _with_whole_warmup(recipe.training.schedule)
    later = () if recipe.model.get("size") is None else ("lr",)
    found = {
        "optimizer": builder_problems(
            optimizer.pop("kind", None), OPTIMIZERS, optimizer, parameter_groups, later=later
        ),
        "schedule": builder_problems(schedule.pop("kind", None), SCHEDULES, schedule, later=FROM_LENGTH),
    }
    problems = [
        Problem(f"training.{part}.{problem.option}", problem.message)
        for part, problems_of_part in found.items()
        for problem in problems_of_part
    ]
    if isinstance(warmup := schedule.get("warmup"), float) and warmup == 1:
        problems.append(
            Problem("training.schedule.warmup", "1.0 is no share of all updates below 1; give 1 for one update")
        )
    for other in ("compile", "shard"):
        if recipe.training.graphs and getattr(recipe.training, other):
            problems.append(Problem("training.graphs", f"is given beside training.{other}; give one of them"))
    if recipe.training.graphs and model_options(recipe.model).get("adaptive") is not None:
        problems.append(
            Problem("training.graphs", "needs work that is the same for every batch, which an adaptive softmax has not")
        )
    if recipe.training.exits is not None and recipe.training.exits.gradient_scale is not None:
        for other in ("graphs", "compile", "shard"):
            if getattr(recipe.training, other):
                message = f"asks every block twice for gradients, which training.{other} does not; give one of them"
                problems.append(Problem("training.exits.gradient_scale", message))
    if problems:
        raise ConfigError("recipe", problems)


def _with_whole_warmup(schedule: dict[str, Any]) -> dict[str, Any]:
    """The options with some number of updates in the place of a share of them, which the trainer turns into one."""
    warmup = schedule.get("warmup")
    is_share = isinstance(warmup, float) and 0 < warmup < 1
    return {**schedule, "warmup": 0} if is_share else dict(schedule)
