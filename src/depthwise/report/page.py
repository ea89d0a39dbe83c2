"""The page: one file of HTML that holds its data, its styles and its scripts, and asks nobody for anything.

What comes from runs is text of strangers. In the markup it is escaped; to the scripts it goes as JSON in which no tag
can end, and they set it as text, never as markup. A policy in the page's head allows its own script, by digest, and no
connections at all, so that even a mistake here would let nothing in or out.
"""

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

SCRIPTS = ("base.js", "chart.js", "frontier.js", "table.js", "depths.js", "structure.js", "training.js", "start.js")
_ASSETS = files("depthwise.report") / "assets"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Signs that HTML cannot hold, or that turn the direction of what stands behind them."""


def page(data: Mapping[str, Any]) -> str:
    """The page of what ``page_data`` found."""
    script = "".join(asset(name) for name in SCRIPTS)
    parts = {
        "policy": _policy(script),
        "style": asset("page.css"),
        "title": text(title(data)),
        "crowd": "several" if len(data["headlines"]) > 2 else "few",
        "headlines": _headlines(data["headlines"]),
        "missing": _missing(data["runs"]),
        "runs": _runs(data["runs"]),
        "versions": text(", ".join(f"{name} {version}" for name, version in data["versions"].items())),
        "data": embedded(data),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], asset("page.html"))


def asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def text(value: Any) -> str:
    """Something as text in HTML, whatever is in it."""
    return html.escape(_CONTROL.sub("\ufffd", str(value)))


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that can stand within a script element: it has no sign that HTML understands, and ASCII only."""
    told = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return told.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def finite(value: Any) -> Any:
    """The same without numbers that JSON cannot write, which become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(each) for name, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def title(data: Mapping[str, Any]) -> str:
    names = [group["name"] for group in data["groups"]]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"


def _headlines(headlines: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_headline(found, is_only=len(headlines) == 1) for found in headlines)


def _headline(found: Mapping[str, Any], *, is_only: bool) -> str:
    tiles = "".join(
        f'<li class="{"good" if tile["good"] else "bad"}"><b>{text(tile["value"])}</b> {text(tile["label"])}</li>'
        for tile in found["tiles"]
    )
    name = "" if is_only else f'<h2 dir="auto">{text(found["name"])}</h2>'
    first, *others = found["sentences"]
    said = f'<p class="lead">{text(first)}</p>' + "".join(f"<p>{text(sentence)}</p>" for sentence in others)
    measured = f'<p class="small">{text(found["measured"])}</p>' if found["measured"] else ""
    listed = f'<ul class="tiles">{tiles}</ul>' if tiles else ""
    return f'<article class="headline">{name}{listed}{said}{measured}</article>'


def _missing(runs: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f'<li><b dir="auto">{text(run["name"])}</b>: {text(sentence)}</li>'
        for run in runs
        for sentence in run["missing"]
    ]
    if not lines:
        return ""
    count = "1 thing is" if len(lines) == 1 else f"{len(lines)} things are"
    is_open = " open" if any(not run["evaluations"] and not run["recipe"] for run in runs) else ""
    return f'<details id="missing"{is_open}><summary>{count} missing</summary><ul>{"".join(lines)}</ul></details>'


def _runs(runs: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_run(run) for run in runs)


def _run(run: Mapping[str, Any]) -> str:
    lines = "".join(
        f'<dt>{text(each["what"])}</dt><dd><code dir="auto">{text(each["command"])}</code></dd>'
        for each in run["commands"]
    )
    facts = "".join(f"<dt>{text(name)}</dt><dd>{text(told)}</dd>" for name, told in _facts(run))
    recipe = f'<pre tabindex="0" aria-label="recipe">{text(run["recipe"])}</pre>' if run["recipe"] else ""
    return (
        f'<details class="run"><summary dir="auto">{text(run["name"])}</summary>'
        f"<dl>{facts}{lines}</dl>{recipe}</details>"
    )


def _facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    training = run["training"]
    found = [("folder", run["folder"]), ("task", run["task"]), ("seed", run["seed"])]
    if isinstance(training.get("num_parameters"), int):
        found.append(("parameters", f"{training['num_parameters']:,}"))
    if isinstance(training.get("seconds"), int | float):
        updates = (
            f"{training.get('num_updates', 0):,} updates in " if isinstance(training.get("num_updates"), int) else ""
        )
        found.append(("training", f"{updates}{training['seconds']:,.0f} s on {training.get('hardware')}"))
    return [(name, str(told)) for name, told in found if told is not None]
