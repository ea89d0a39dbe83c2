"""Settings that a calibration found, kept in the run under names: ``RUN/calibration.json``.

``depthwise evaluate``, ``predict`` and whoever else takes ``--depth`` finds them there. A setting is good for the
weights that it was found for, and for no others.
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from depthwise.config import PolicyConfig, parse_policy
from depthwise.errors import CheckpointError, ConfigError, InputError
from depthwise.evaluation.results import replace_file, strict_json, weights_digest

FILE = "calibration.json"
SCHEMA = 1
RESERVED = ("full", "policy", "trained")
"""What ``--depth`` understands already, beside numbers."""


@dataclass(frozen=True, kw_only=True)
class CalibratedSetting:
    """A policy with its options, what it was chosen for, and what was measured when it was."""

    policy: dict[str, Any]
    goal: dict[str, Any]
    """``quality_drop``, ``depth_budget``, ``risk`` and what belongs to it, as far as they were asked for."""
    budget_met: bool
    """Whether the goal was reached; if not, this is the setting that came closest."""
    metric: str
    quality: float | None
    full_quality: float | None
    mean_depth: float | None
    full_depth: int
    flops: int
    full_flops: int
    risk: dict[str, Any] | None
    """``mean_loss`` and ``p_value`` of a setting that a risk was promised of."""
    num_trials: int
    split: str
    examples: int
    examples_digest: str
    weights_digest: str | None
    settings: dict[str, Any]
    """What predictions depend on beside weights and examples."""
    depth_of: str | None = None
    """``encoder`` where depths are those of sources, read by an encoder below a decoder."""

    @property
    def options(self) -> PolicyConfig:
        return parse_policy(self.policy)


def read_settings(folder: Path) -> dict[str, CalibratedSetting]:
    """All settings of a run, by name; none where nothing was calibrated."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise CheckpointError(f"{path} has the schema {content['schema']}, not {SCHEMA}; calibrate the run again")
        known = {item.name for item in fields(CalibratedSetting)}
        return {
            name: CalibratedSetting(**{key: value for key, value in given.items() if key in known})
            for name, given in content["settings"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); delete it and calibrate the run again") from None


def write_setting(folder: Path, name: str, setting: CalibratedSetting) -> Path:
    """Keep a setting under a name beside the others of the run."""
    check_name(name)
    kept = {**read_settings(folder), name: setting}
    content = {"schema": SCHEMA, "settings": {each: asdict(kept[each]) for each in sorted(kept)}}
    replace_file(folder / FILE, strict_json(content) + "\n")
    return folder / FILE


def check_name(name: str) -> None:
    """Raises an error where ``--depth`` would take the name for something else."""
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name) or name in RESERVED:
        raise InputError(
            f'a setting cannot be called "{name}"; begin with a letter, go on with letters, digits, ".", "-" and "_", '
            f"and leave {' and '.join(RESERVED)} for what they mean already"
        )


def setting_named(folder: Path, name: str) -> PolicyConfig:
    """The policy of a calibrated setting, once it is clear that it was found for the weights that are there."""
    found = read_settings(folder)
    if name not in found:
        has = f"it has {', '.join(found)}" if found else f"make one: depthwise calibrate {folder} --quality-drop 0.5"
        raise InputError(f'{folder} has no calibrated setting "{name}"; {has}')
    if found[name].weights_digest != weights_digest(folder):
        raise CheckpointError(
            f'the setting "{name}" was calibrated for other weights than {folder} has now; calibrate the run again'
        )
    try:
        return found[name].options
    except ConfigError as error:
        raise CheckpointError(f'the setting "{name}" of {folder / FILE} is none: {error}; calibrate again') from None
