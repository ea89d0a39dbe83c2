"""At which setting the tokens of a run are looked at, unless somebody says so: the one that its page tells of first."""

from collections.abc import Callable, Mapping
from typing import Any

from depthwise.errors import DepthwiseError
from depthwise.evaluation.results import weights_digest
from depthwise.report.data import policy_changes
from depthwise.report.frontiers import frontiers_of
from depthwise.report.grouping import Group
from depthwise.report.headline import chosen_point
from depthwise.report.reading import RunFiles
from depthwise.report.sampling import SCHEMA, depths_of

Setting = tuple[int | str | None, list[str]]
"""The depth and the changes to the policy that ``load_run`` takes."""
SPLITS = ("test", "valid")


def setting_of_run(run: RunFiles) -> Setting:
    """That of its headline, as long as tokens differ by it; else a calibrated one, or as the run was trained.

    Where the headline is of a fixed depth, it is the one that the headline would tell of without fixed depths.
    """
    for frontier in frontiers_of([Group(run.name, (run,))], {run.name: 0}):
        early = [point for point in frontier["points"] if point["policy"] != "fixed" or point.get("full")]
        point = chosen_point({**frontier, "points": early}) or chosen_point(frontier)
        if point is not None:
            return _setting(point)
    met = [name for name, setting in run.settings.items() if setting.budget_met]
    if met:
        return met[0], []
    if run.has_structure and run.layers_of("decoder") is None:
        return "policy", []
    return ("policy", []) if run.config.get("policy") and run.config.get("exits") else (None, [])


def _setting(point: Mapping[str, Any]) -> Setting:
    if point.get("line") == "calibrated":
        return str(point["calibrated"][0]["name"]), []
    if point["policy"] == "fixed":
        return int(point["setting"]["depth"]), []
    return "policy", policy_changes({"kind": point["policy"], **point["setting"]})


def split_of(run: RunFiles) -> str | None:
    """The test data where the recipe names some, else validation data."""
    data = run.recipe.get("data")
    return next((split for split in SPLITS if isinstance(data, Mapping) and data.get(split)), None)


def sample(
    run: RunFiles,
    num_examples: int,
    setting: Setting | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Run some inputs and keep the depths of their tokens, unless the run has them; what goes wrong is told.

    Without a setting one is chosen. Depths that were found before, for the same weights and setting, will do.
    """
    asked = setting_of_run(run) if setting is None else setting
    if _is_there(run, num_examples, asked):
        return
    split = split_of(run)
    if not run.recipe:
        return  # which is told already
    if split is None:
        run.was_tried = True
        run.missing.append("the recipe names neither test nor validation data, so that there is nothing to run")
        return
    say(f"running the first {num_examples} {split} inputs of {run.folder}")
    try:
        run.depths = depths_of(run.folder, split, num_examples, *asked)
    except DepthwiseError as error:
        run.was_tried = True
        told = " ".join(str(error).split())
        run.missing.append(f"its tokens could not be run: {told}")


def _is_there(run: RunFiles, num_examples: int, asked: Setting) -> bool:
    """Without weights there is nothing to run, so that whatever was found is taken."""
    if run.depths.get("schema") != SCHEMA:
        return False
    digest = weights_digest(run.folder)
    if digest is None:
        return True
    has_enough = isinstance(run.depths.get("examples"), int) and run.depths["examples"] >= num_examples
    has_enough = has_enough and (not run.has_structure or "structure" in run.depths)
    return has_enough and run.depths.get("weights_digest") == digest and run.depths.get("asked") == list(asked)
