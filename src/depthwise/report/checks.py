"""What is wrong with a file of results, as the end of a sentence; none where a page can be made of it.

Files come from other machines and other versions, so that nothing in them is taken for granted.
"""

import math
from collections.abc import Mapping
from typing import Any

from depthwise.config import parse_policy
from depthwise.errors import ConfigError
from depthwise.evaluation import CalibratedSetting
from depthwise.evaluation.frontier import SCHEMA

OF_POINTS = ("quality", "mean_depth", "flops", "seconds", "token_layers")
OF_EVALUATIONS = ("mean_depth", "flops", "seconds", "tokens_per_second")
OF_SETTINGS = ("quality", "full_quality", "mean_depth")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_measured(value: Any) -> bool:
    """Whether something is a number that can be drawn, or none because nobody measured it."""
    return value is None or (is_number(value) and math.isfinite(value))


def wrong_with_frontier(found: Mapping[str, Any]) -> str | None:
    if found.get("schema") != SCHEMA or not is_number(found["schema"]):
        return f"has the schema {found.get('schema')}, not {SCHEMA}"
    wanted = {"task": str, "split": str, "metric": str, "points": list, "higher_is_better": bool}
    bad = [name for name, kind in wanted.items() if not isinstance(found.get(name), kind)]
    bad += [name for name in ("num_layers", "examples") if not is_count(found.get(name))]
    if bad:
        return f"says nothing of {bad[0]}"
    for number, point in enumerate(found["points"], start=1):
        if not isinstance(point, dict) or not isinstance(point.get("setting"), dict) or not point.get("policy"):
            return f"has a point without a policy and its setting, number {number}"
        odd = [name for name in OF_POINTS if not is_measured(point.get(name))]
        if odd:
            return f"has a point whose {odd[0]} is no number, number {number}"
    return None


def is_evaluation(found: Mapping[str, Any]) -> bool:
    """Whether a file of results holds an evaluation that can be shown."""
    metrics, settings = found.get("metrics"), found.get("settings")
    return (
        isinstance(metrics, dict)
        and all(map(is_measured, metrics.values()))
        and isinstance(found.get("metric"), str)
        and isinstance(found.get("split"), str)
        and is_count(found.get("examples"))
        and (settings is None or isinstance(settings, dict))
        and all(is_measured(found.get(name)) for name in OF_EVALUATIONS)
    )


def wrong_with_setting(setting: CalibratedSetting) -> str | None:
    """What is wrong with a calibrated setting."""
    counts = (setting.examples, setting.full_depth, setting.flops, setting.full_flops)
    is_sound = (
        isinstance(setting.policy, dict)
        and isinstance(setting.goal, dict)
        and all(is_number(value) or isinstance(value, str | bool) for value in setting.goal.values())
        and all(is_number(setting.goal[name]) for name in _GOALS if name in setting.goal)
        and all(map(is_count, counts))
        and all(is_measured(getattr(setting, name)) for name in OF_SETTINGS)
    )
    if not is_sound:
        return "is damaged"
    try:
        parse_policy(setting.policy)
    except ConfigError:
        return "is of a policy that this version does not know"
    return None


_GOALS = ("quality_drop", "depth_budget", "risk", "confidence")


def is_sentence(found: Any, num_layers: int) -> bool:
    """Whether the tokens of a sentence can be shown."""
    if not isinstance(found, dict):
        return False
    tokens, depths, guesses = found.get("tokens"), found.get("depths"), found.get("guesses")
    return (
        all(found.get(name) is None or isinstance(found[name], str) for name in ("source", "output", "reference"))
        and is_count(found.get("left_out"))
        and isinstance(tokens, list)
        and all(isinstance(token, str) for token in tokens)
        and isinstance(depths, list)
        and len(depths) == len(tokens)
        and all(is_count(depth) and 1 <= depth <= num_layers for depth in depths)
        and isinstance(guesses, list)
        and all(isinstance(of_exit, list) and all(map(_is_guess, of_exit)) for of_exit in guesses)
    )


def _is_guess(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 2 and isinstance(found[0], str) and is_number(found[1])


def is_histogram(found: Any, num_layers: int) -> bool:
    """Whether bins and counts belong together."""
    if not isinstance(found, dict):
        return False
    bins, counts = found.get("bins"), found.get("counts")
    return (
        isinstance(bins, list)
        and all(isinstance(name, str) for name in bins)
        and isinstance(counts, list)
        and len(counts) == len(bins)
        and all(
            isinstance(row, list) and len(row) == num_layers and all(map(is_count, row)) and any(row) for row in counts
        )
        and is_count(found.get("training_examples", 0))
    )
