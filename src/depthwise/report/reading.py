"""What a run folder holds, as far as it is there and can be read; whatever is missing is said in words.

A page is made of files that others wrote, perhaps an interrupted run or a newer version: nothing in them may end it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from depthwise.errors import CheckpointError, InputError
from depthwise.evaluation import CalibratedSetting, read_settings
from depthwise.evaluation.frontier import SEPARATE
from depthwise.evaluation.results import RESULTS
from depthwise.report.checks import is_evaluation, is_number, wrong_with_frontier, wrong_with_setting

GIVEN, RECIPE, SUMMARY, CONFIG = "recipe.given.yaml", "recipe.yaml", "training.json", "config.json"
METRICS, LAYERS = "metrics.jsonl", "layers.jsonl"
NOT_EVALUATIONS = ("frontier", "depths", "tuning", "word-depths")
"""Beginnings of the names of result files that hold something else than an evaluation."""

Content = dict[str, Any]


@dataclass
class RunFiles:
    """All that is known of one run. ``missing`` has a sentence for everything that a page could show but for that."""

    folder: Path
    name: str
    frontiers: dict[str, Content] = field(default_factory=dict)
    """By the name of their files."""
    evaluations: dict[str, Content] = field(default_factory=dict)
    settings: dict[str, CalibratedSetting] = field(default_factory=dict)
    metrics: list[Content] = field(default_factory=list)
    layers: list[Content] = field(default_factory=list)
    recipe: Content = field(default_factory=dict)
    recipe_text: str = ""
    command: str | None = None
    """What the run was trained by, where it was begun from the command line."""
    training: Content = field(default_factory=dict)
    config: Content = field(default_factory=dict)
    depths: Content = field(default_factory=dict)
    """Tokens of some inputs with their depths (``sampling``)."""
    was_tried: bool = False
    """Whether running some failed, of which ``missing`` tells."""
    missing: list[str] = field(default_factory=list)

    @property
    def num_layers(self) -> int | None:
        """Blocks of the side whose tokens are counted: the decoder's where there is one."""
        return self.layers_of("decoder") or self.layers_of("encoder")

    @property
    def has_structure(self) -> bool:
        """Whether the model says by itself how many layers an input needs."""
        return isinstance(self.config.get("structure"), dict)

    def layers_of(self, side: str) -> int | None:
        options = self.config.get(side)
        found = options.get("num_layers") if isinstance(options, dict) else None
        return found if isinstance(found, int) else None


def read_runs(folders: Iterable[Path]) -> list[RunFiles]:
    """Every folder once, each under a name of its own."""
    unique = list({folder.resolve(): folder for folder in folders}.values())
    for folder in unique:
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder; name the folders of runs")
    return [read_run(folder, name) for folder, name in zip(unique, _names(unique), strict=True)]


def _names(folders: list[Path]) -> list[str]:
    """The last part of each path, and as many before it as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(of[-count:]) for of in parts]
        if len(set(names)) == len(names):
            break
    return names


def read_run(folder: Path, name: str) -> RunFiles:
    """All files of a run that a page is made of."""
    run = RunFiles(folder, name)
    if not any((folder / each).exists() for each in (CONFIG, RECIPE, GIVEN, METRICS, RESULTS)):
        run.missing.append(f"{folder} holds nothing of a run; train one there, or name another folder")
        return run
    run.config = _object(run, folder / CONFIG, "the sizes of the model are not known")
    run.training = _object(run, folder / SUMMARY, "the training has not ended, or was not done here")
    _read_recipe(run)
    run.metrics = _lines(run, folder / METRICS, "there are no learning curves")
    if (folder / LAYERS).exists():
        run.layers = _lines(run, folder / LAYERS, "there are no layers over time")
    _read_results(run)
    _read_settings(run)
    return run


def _read_settings(run: RunFiles) -> None:
    try:
        found = read_settings(run.folder)
    except CheckpointError as error:
        run.missing.append(str(error))
        return
    for name, setting in found.items():
        problem = wrong_with_setting(setting)
        if problem is None:
            run.settings[name] = setting
        else:
            run.missing.append(f'the calibrated setting "{name}" {problem}')


def _read_recipe(run: RunFiles) -> None:
    path = run.folder / RECIPE
    text = _text(run, path, "how it was trained is not known")
    if text is not None:
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            run.missing.append(f"{path} is no YAML: {' '.join(str(error).split())}")
        else:
            run.recipe, run.recipe_text = found if isinstance(found, dict) else {}, text
    given = run.folder / GIVEN
    first = (_text(run, given, "") or "" if given.exists() else "").partition("\n")[0]
    run.command = f"{first[2:]} --out {run.folder}" if first.startswith("# depthwise ") else None


def _read_results(run: RunFiles) -> None:
    for path in sorted((run.folder / RESULTS).glob("*.json"), key=lambda path: path.stem):
        if path.stem.startswith("frontier"):
            found = _object(run, path, "")
            if not found:
                continue
            problem = wrong_with_frontier(found)
            if problem is None:
                run.frontiers[path.stem] = found
            else:
                run.missing.append(f"{path} {problem}; sweep the run again")
        elif path.stem == "depths":
            run.depths = _object(run, path, "")
        elif not path.stem.startswith(NOT_EVALUATIONS):
            found = _object(run, path, "")
            if is_evaluation(found):
                run.evaluations[path.stem] = found
    if not run.frontiers:
        has_none = run.config and run.config.get("exits") is None and not run.has_structure
        why = "the model has no exits to leave at" if has_none else f"measure one: depthwise sweep {run.folder}"
        run.missing.append(f"there is no frontier; {why}")
    if not run.evaluations:
        run.missing.append(f"there are no evaluations; make one: depthwise evaluate {run.folder}")


def full_point(frontier: Mapping[str, Any]) -> Content | None:
    """The point of the full model, if it was measured."""
    for point in frontier["points"]:
        if point["policy"] == "fixed" and point["setting"].get("depth") == frontier["num_layers"]:
            found: Content = point
            return found
    return None


def is_separate(point: Mapping[str, Any]) -> bool:
    """Whether a point is of a model that was trained by itself."""
    return bool(point["policy"] == SEPARATE)


# Files


def _text(run: RunFiles, path: Path, otherwise: str) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        if otherwise:
            run.missing.append(f"{path.name} is not there: {otherwise}")
    except OSError as error:
        run.missing.append(f"{path} cannot be read: {error.strerror}")
    return None


def _object(run: RunFiles, path: Path, otherwise: str) -> Content:
    text = _text(run, path, otherwise)
    if text is None:
        return {}
    try:
        found = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        run.missing.append(f"{path} is no JSON, or only a part of it")
        return {}
    return found if isinstance(found, dict) else {}


def _lines(run: RunFiles, path: Path, otherwise: str) -> list[Content]:
    """The lines with an update; one that an interruption cut off is left out."""
    found, num_bad = [], 0
    for line in (_text(run, path, otherwise) or "").splitlines():
        try:
            content = json.loads(line, parse_constant=lambda _: None)
        except ValueError:
            content = None
        if isinstance(content, dict) and is_number(content.get("update")):
            found.append(content)
        else:
            num_bad += 1
    if num_bad:
        run.missing.append(f"{path}: {num_bad} of its lines cannot be read and were left out")
    return found
