"""The folder of a run before training: which recipe it was begun with, and what was decided then.

Nothing counts as decided before ``recipe.yaml`` is there, which is written last. A run that never came to its first
checkpoint is begun anew, so that a mistake in its recipe or its data can be mended in place.
"""

import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from depthwise.config import Recipe, load_recipe, recipe_dict, recipe_yaml
from depthwise.errors import DepthwiseError, TrainingError
from depthwise.evaluation.results import replace_file
from depthwise.tasks import Task, open_task
from depthwise.tasks.build import RECIPE
from depthwise.training.checkpoints import checkpoints

GIVEN, SUMMARY = "recipe.given.yaml", "training.json"
MAY_CHANGE = {
    *("max_updates", "max_epochs", "patience", "log_every", "validate_every", "save_every", "report"),
    *("select", "average", "workers", "threads", "device", "gradient_norms"),
}
"""Options of training that may differ when a run goes on; so may all of generation and evaluation."""
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model")


def begun(recipe: Recipe, folder: Path, command: str | None = None) -> Task:
    """The task of a recipe, once its folder holds all that is known before training."""
    given = begin(folder, recipe, command)
    if (folder / RECIPE).is_file():
        task = open_task(changed(load_recipe(folder / RECIPE), given, recipe), folder)
    else:
        task = open_task(recipe, folder)
        try:
            task.save(folder)
        except DepthwiseError:  # which says by itself what is wrong with the data
            raise
        except Exception as error:  # the tokenizers library has no kinds of errors
            raise TrainingError(f"{folder} cannot be written: {error}; make room, or give another --out") from error
    replace_file(folder / RECIPE, recipe_yaml(task.resolved()))
    return task


def begin(folder: Path, recipe: Recipe, command: str | None = None) -> Recipe:
    """Make the folder of a new run, or see that this recipe may go on there; gives the one asked for before."""
    given = folder / GIVEN
    text = ("" if command is None else f"# {command}\n") + recipe_yaml(recipe)
    try:
        if not given.is_file():
            others = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
            if others or (folder.exists() and not folder.is_dir()):
                raise TrainingError(f"{folder} is not empty and holds no training to go on with; give another --out")
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(given, text)
            return recipe
    except OSError as error:
        raise TrainingError(f"{folder} cannot be written: {error.strerror}; give another --out") from error
    earlier = load_recipe(given)
    if not checkpoints(folder) and not (folder / SUMMARY).exists():
        _forget(folder)
    elif differing := [
        name for name in _leaves_that_differ(recipe_dict(earlier), recipe_dict(recipe)) if _matters(name)
    ]:
        shown = "; ".join(f"{name} was {_leaf(earlier, name)}, not {_leaf(recipe, name)}" for name in differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise TrainingError(f"{folder} was begun with another recipe: {shown}{more}; give another --out")
    replace_file(given, text)
    return earlier


def changed(decided: Recipe, before: Recipe, now: Recipe) -> Recipe:
    """What was decided when the run began, with the options that are asked for differently now.

    Other options stay, also those that the data, the machine or ``depthwise tune`` decided.
    """
    allowed = {"training": MAY_CHANGE, "generation": None, "evaluation": None}
    for section, names in allowed.items():
        old, new = getattr(before, section), getattr(now, section)
        changes = {
            option.name: getattr(new, option.name)
            for option in fields(new)
            if (names is None or option.name in names) and getattr(new, option.name) != getattr(old, option.name)
        }
        decided = replace(decided, **{section: replace(getattr(decided, section), **changes)})
    return decided


def _forget(folder: Path) -> None:
    """What was decided for a run that never came to its first checkpoint."""
    (folder / RECIPE).unlink(missing_ok=True)
    for path in {path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)}:
        path.unlink()
    shutil.rmtree(folder / "target", ignore_errors=True)


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
