"""By which policy the tokens of a run leave: its own, also with other options of deciding, or an untrained one."""

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from depthwise.config import (
    POLICIES,
    ConfidenceConfig,
    FixedDepthConfig,
    PatienceConfig,
    PolicyConfig,
    StructureExitConfig,
    UniformExitConfig,
    parse_policy,
    placement_problems,
    policy_dict,
)
from depthwise.config.recipes import with_changes
from depthwise.depth import Policy, build_policy
from depthwise.errors import ConfigError, InputError, Problem
from depthwise.models.exits import HasExits
from depthwise.models.pretrained import DepthwisePreTrainedModel

SECTION = "policy"
COMMAND_LINE = "command line"
BY_STRUCTURE = (FixedDepthConfig, StructureExitConfig)
"""Policies for models that say by themselves how many layers they need."""
UNTRAINED = (FixedDepthConfig, ConfidenceConfig, PatienceConfig, UniformExitConfig)
"""Policies without weights, which any model with exits can follow."""
DECIDING = (
    *("depth", "measure", "temperature", "decision", "threshold", "decay", "decay_rate", "max_length"),
    *("patience", "tolerance", "stops", "seed"),
)
"""Options that have a say when a policy decides; the others are about learning to."""
ALWAYS_SHOWN = ("depth", "measure", "threshold", "patience")
LONGEST_NAME = 120
EXAMPLES = "policy.kind=confidence policy.threshold=0.9 or policy.kind=patience policy.patience=2"


def parted(changes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Changes to the recipe, and those to the policy such as ``policy.threshold=0.8``."""
    of_policy = [change for change in changes if change.partition("=")[0].partition(".")[0] == SECTION]
    return [change for change in changes if change not in of_policy], of_policy


def own_policy(model: DepthwisePreTrainedModel) -> PolicyConfig | None:
    """The policy that a model was trained with, or that its configuration names; none where there is none."""
    trained = getattr(model, "trained_policy", None)
    if trained is not None:
        options: PolicyConfig = trained.options
        return options
    named = model.config.options.policy
    found = None if named is None else parse_policy(named)
    if decides_itself(model):
        return by_structure(model, StructureExitConfig() if found is None else found)
    return found if isinstance(found, UNTRAINED) else None


def by_structure(model: DepthwisePreTrainedModel, options: PolicyConfig) -> PolicyConfig:
    """A policy that says by what a structure stops, where that is left to the model: without sums (RevPC) no threshold
    has a say."""
    structure = model.config.options.structure
    if structure is None or not isinstance(options, StructureExitConfig) or options.stops is not None:
        return options
    return options if structure.cumulative else replace(options, stops="argmax")


def decides_itself(model: DepthwisePreTrainedModel) -> bool:
    """Whether policies are about an encoder that says how many layers it needs, and not about exits."""
    return model.config.structure is not None and model.config.exits is None


def is_of_sources(model: DepthwisePreTrainedModel, options: PolicyConfig | None) -> bool:
    """Whether what is decided is the depth of an encoder below a decoder, so that depths told are those of sources."""
    return _has_source(model) and (decides_itself(model) or isinstance(options, StructureExitConfig))


def check_of_one_side(model: DepthwisePreTrainedModel, name: str | Path, policies: Iterable[PolicyConfig]) -> None:
    """Raises an error where depths of encoder and decoder would be set against each other."""
    if not decides_itself(model) and any(isinstance(options, StructureExitConfig) for options in policies):
        raise InputError(
            f"{name} has exits in its decoder, whose depths are tried here; for its encoder use depthwise evaluate "
            "--depth policy policy.kind=structure policy.threshold=0.7 and the like"
        )


def chosen_policy(model: DepthwisePreTrainedModel, name: str | Path, changes: Sequence[str] = ()) -> PolicyConfig:
    """The run's own policy under changes to how it decides, or the untrained one that they name."""
    check_exits(model, name)
    given = with_changes({}, changes, COMMAND_LINE).get(SECTION, {})
    own = own_policy(model)
    if not isinstance(given, Mapping):
        raise ConfigError(
            COMMAND_LINE, [Problem(SECTION, "write its options one by one, such as policy.threshold=0.9")]
        )
    if own is None and "kind" not in given:
        raise InputError(f"{name} was trained with no policy; choose one that needs no training, such as {EXAMPLES}")
    kind = given.get("kind", None if own is None else own.kind)
    is_own = own is not None and kind == own.kind
    if decides_itself(model) and isinstance(kind, str) and kind in POLICIES:
        if not issubclass(POLICIES[kind], BY_STRUCTURE):
            raise InputError(f"{name} says by itself how many layers it needs; use the policy structure or fixed")
        is_own = is_own or kind == StructureExitConfig.kind
        own = own if own is not None and kind == own.kind else by_structure(model, StructureExitConfig())
    elif kind == StructureExitConfig.kind and model.config.structure is not None:
        is_own, own = True, by_structure(model, StructureExitConfig())
    if not is_own and isinstance(kind, str) and kind in POLICIES and not issubclass(POLICIES[kind], UNTRAINED):
        has = "no policy of its own" if own is None else f"the policy {own.kind}"
        raise InputError(
            f"{name} was not trained for the policy {kind}: it has {has}, and takes those that need no training, "
            f"such as {EXAMPLES}"
        )
    if not is_own:
        return _placed(model, _parsed(given))
    assert own is not None
    _check_decides(own, given)
    return _placed(model, _parsed({**policy_dict(own), **given}))


def check_exits(model: DepthwisePreTrainedModel, name: str | Path) -> None:
    """Raises an error where there is nowhere to leave."""
    if model.config.options.stopping_side is None:
        raise InputError(f"{name} has no exits to leave at; train a run with model.exits, or use --depth full")


def fixed_depth(model: DepthwisePreTrainedModel, name: str | Path, depth: int) -> FixedDepthConfig:
    """The policy by which all leave at one exit, or need so many layers."""
    exits = model.config.options.stopping_depths
    if depth not in exits:
        raise InputError(f"{name} has no exit at depth {depth}; choose among {', '.join(map(str, exits))}")
    return FixedDepthConfig(depth=depth)


def use_policy(model: DepthwisePreTrainedModel, options: PolicyConfig | None) -> None:
    """From now on, let tokens leave by this policy alone; what it learned stays as it is."""
    assert isinstance(model, HasExits)
    if model.structure is not None:
        model.structure.use(None)
    model.use_policy(None if options is None else _built(model, options))


def _built(model: DepthwisePreTrainedModel, options: PolicyConfig) -> Policy:
    trained: Any = getattr(model, "trained_policy", None)
    if trained is not None and type(trained.options) is type(options):
        policy: Any = copy.copy(trained)  # which shares its weights
        policy.options = options
        found: Policy = policy
        return found
    sizes = model.config.options
    return build_policy(options, width=sizes.width, exits=sizes.stopping_depths, has_source=_has_source(model))


def _has_source(model: DepthwisePreTrainedModel) -> bool:
    return model.config.encoder is not None and model.config.decoder is not None


def _parsed(options: Mapping[str, Any]) -> PolicyConfig:
    try:
        return parse_policy(options)
    except ConfigError as error:
        raise ConfigError(COMMAND_LINE, _of_section(error.problems)) from None


def _placed(model: DepthwisePreTrainedModel, options: PolicyConfig) -> PolicyConfig:
    exits = model.config.options.stopping_depths
    problems = list(placement_problems(options, exits, has_source=_has_source(model)))
    if problems:
        raise ConfigError(COMMAND_LINE, _of_section(problems))
    return options


def _of_section(problems: Sequence[Problem]) -> list[Problem]:
    return [Problem(f"{SECTION}.{problem.option}", problem.message) for problem in problems]


def _check_decides(own: PolicyConfig, given: Mapping[str, Any]) -> None:
    """What was learned stays as it is."""
    known = [option.name for option in fields(own)]
    free = [name for name in known if name in DECIDING]
    remedy = f"changes are to {', '.join(free)}" if free else f"{own.kind} decides by its weights alone"
    problems = [
        Problem(name, f"is fixed once a policy is trained; {remedy}")
        for name in given
        if name in known and name not in free
    ]
    if problems:
        raise ConfigError(COMMAND_LINE, _of_section(problems))


# In words


def setting_of(options: PolicyConfig) -> dict[str, Any]:
    """What of a policy's options decides: all that is always told, and the rest where it is not the default."""
    usual = {option.name: option.default for option in fields(options)}
    found = {}
    for name in DECIDING:
        value = getattr(options, name, None)
        if name not in usual or (name not in ALWAYS_SHOWN and value == usual[name]):
            continue
        is_idle = getattr(options, "decision", None) == "sample" or getattr(options, "stops", None) == "argmax"
        if name == "threshold" and is_idle:
            continue
        if isinstance(value, tuple):
            value = value[0] if len(value) == 1 else list(value)
        found[name] = value
    return found


def in_words(setting: Mapping[str, Any]) -> str:
    """A setting as people read it."""
    return ", ".join(f"{name} {_text(value, ' ')}" for name, value in setting.items())


def in_file_names(options: PolicyConfig) -> str:
    """A policy as a part of the name of a file, a name of its own for every setting."""
    if isinstance(options, FixedDepthConfig):
        return f"depth-{options.depth}"
    setting = setting_of(options)
    if setting.get("measure") == ConfidenceConfig.measure:
        del setting["measure"]
    name = "-".join([options.kind, *(_text(value, "-") for value in setting.values())])
    return name if len(name) <= LONGEST_NAME else f"{options.kind}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _text(value: Any, between: str) -> str:
    if isinstance(value, list):
        return between.join(_text(item, between) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
