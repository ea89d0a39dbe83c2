"""Everything that a page shows, as plain data: what its scripts draw, and what can be downloaded from it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from platform import python_version
from typing import Any

from depthwise.config import ConfidenceConfig
from depthwise.report.checks import is_histogram, is_sentence
from depthwise.report.curves import curves_of, heat_maps_of
from depthwise.report.frontiers import frontiers_of, settings_of
from depthwise.report.grouping import Group, grouped
from depthwise.report.headline import headline
from depthwise.report.reading import RunFiles
from depthwise.report.sampling import SCHEMA as DEPTHS_SCHEMA
from depthwise.report.structures import sound_structure

SCHEMA = 1
PACKAGES = ("depthwise", "torch", "transformers", "tokenizers", "sacrebleu")
ROOM_FOR_SENTENCES = 1_500_000
"""Characters of sentences in a page, shared out among its runs."""
OF_EVALUATIONS = ("split", "metric", "metrics", "examples", "mean_depth", "flops", "seconds", "tokens_per_second")


def page_data(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """The data of a page for these runs."""
    groups = grouped(runs)
    numbers = {run.name: number for number, run in enumerate(runs)}
    places = {run.name: place for place, group in enumerate(groups) for run in group.runs}
    frontiers = frontiers_of(groups, numbers)
    return {
        "schema": SCHEMA,
        "versions": {"python": python_version(), **{name: version(name) for name in PACKAGES}},
        "groups": [{"name": group.name, "runs": [numbers[run.name] for run in group.runs]} for group in groups],
        "headlines": [_headline(place, group, frontiers) for place, group in enumerate(groups)],
        "runs": [_run(run, places[run.name], len(runs)) for run in runs],
        "frontiers": frontiers,
        "curves": curves_of(groups),
        "heat_maps": heat_maps_of(runs),
    }


def _headline(place: int, group: Group, frontiers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return headline(group, [frontier for frontier in frontiers if frontier["group"] == place])


def _run(run: RunFiles, group: int, num_runs: int) -> dict[str, Any]:
    settings = settings_of(run)
    depths = _depths(run, ROOM_FOR_SENTENCES // max(1, num_runs))
    if depths is None and not run.was_tried and run.recipe:
        run.missing.append(
            f"how deep single tokens go is not known; run some: depthwise report {shlex.quote(str(run.folder))} "
            "--samples 100"
        )
    structure = None if depths is None else depths.pop("structure")
    if run.has_structure and structure is None and depths is not None:
        run.missing.append(
            f"what its predictor expected is not known; run some again: depthwise report "
            f"{shlex.quote(str(run.folder))} --samples 100"
        )
    return {
        "name": run.name,
        "folder": str(run.folder),
        "group": group,
        "task": run.recipe.get("task"),
        "seed": run.recipe.get("seed"),
        "num_layers": run.num_layers,
        "training": run.training,
        "evaluations": [_evaluation(name, found) for name, found in run.evaluations.items()],
        "settings": settings,
        "depths": depths,
        "has_structure": run.has_structure,
        "structure": structure,
        "commands": commands(run),
        "recipe": run.recipe_text,
        "missing": list(run.missing),
    }


def _evaluation(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, **{key: found.get(key) for key in OF_EVALUATIONS}, "hardware": found.get("hardware")}


def _depths(run: RunFiles, room: int) -> dict[str, Any] | None:
    """Depths of tokens, with as many sentences as there is room for."""
    found = run.depths
    histograms, sentences, num_layers = (found.get(name) for name in ("histograms", "sentences", "num_layers"))
    if found.get("schema") != DEPTHS_SCHEMA or not isinstance(num_layers, int) or not isinstance(histograms, dict):
        return None
    kept: list[Any] = []
    size = 0
    for sentence in sentences if isinstance(sentences, list) else ():
        if not is_sentence(sentence, num_layers):
            continue
        size += len(json.dumps(sentence))
        if kept and size > room:
            break
        kept.append(sentence)
    sound = {name: of for name, of in histograms.items() if is_histogram(of, num_layers)}
    exits = found.get("exits")
    return {
        **{name: found.get(name) for name in ("setting", "split", "examples", "num_layers", "of_output")},
        "exits": exits if isinstance(exits, list) else [],
        "sentences": kept,
        "histograms": sound,
        "structure": sound_structure(found.get("structure")),
    }


# Commands


def commands(run: RunFiles) -> list[dict[str, str]]:
    """What the run was trained by, as far as it is known, and what measures it again."""
    folder = shlex.quote(str(run.folder))
    found = []
    if run.command is not None:
        found.append({"what": "trained by", "command": run.command})
    for name, frontier in run.frontiers.items():
        at_once = "" if frontier.get("batch_rows") is None else f" --batch-rows {frontier['batch_rows']}"
        limit = f"--limit {frontier['examples']}"
        found.append(
            {"what": name, "command": f"depthwise sweep {folder} --split {frontier['split']}{at_once} {limit}"}
        )
    for name, evaluation in run.evaluations.items():
        how = _depth_arguments(evaluation.get("settings") or {})
        found.append({"what": name, "command": f"depthwise evaluate {folder} --split {evaluation['split']}{how}"})
    for name, setting in run.settings.items():
        goal = " ".join(
            f"--{option.replace('_', '-')} {setting.goal[option]:g}"
            for option in ("quality_drop", "depth_budget", "risk", "confidence")
            if option in setting.goal
        )
        goal += " --sure" * bool(setting.goal.get("sure"))
        goal += f" --beside {setting.goal['beside']}" if "beside" in setting.goal else ""
        what = f"--name {name} --split {setting.split}"
        found.append({"what": f"setting {name}", "command": f"depthwise calibrate {folder} {goal} {what}"})
    return found


def _depth_arguments(settings: Mapping[str, Any]) -> str:
    policy = settings.get("policy")
    if isinstance(policy, Mapping):
        return f" --depth policy {shlex.join(policy_changes(policy))}"
    return "" if settings.get("depth") is None else f" --depth {settings['depth']}"


def policy_changes(policy: Mapping[str, Any]) -> list[str]:
    """A policy as it is given on the command line, without what goes without saying."""
    changes = []
    for name, value in policy.items():
        if value in (None, [], ConfidenceConfig.measure) or name in ("decay_rate", "max_length"):
            continue
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else f"[{','.join(map(str, value))}]"
        changes.append(f"policy.{name}={value}")
    return changes
