"""From plain dictionaries to a ``ModelConfig``, with every mistake reported at once.

Three questions are asked in turn: are the names known and complete, is each value possible by itself (``parsing``), and
do the values agree with each other (``checks``). An option that fails one question is left out of the later ones.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from depthwise.config.checks import BrokenOption, View, relation_problems
from depthwise.config.depth import FixedDepthConfig, StructureExitConfig, policy_dict
from depthwise.config.depth_parsing import parse_policy, placement_problems
from depthwise.config.heads import kept_heads_rule
from depthwise.config.latent import MODEL_RULES as LATENT_RULES
from depthwise.config.model import (
    ACTIVATIONS,
    CONNECTIONS,
    EXIT_HEADS,
    EXIT_NORMS,
    FFN_INITS,
    KERNEL_NORMALIZATIONS,
    KERNEL_SOURCES,
    MIXERS,
    NORMS,
    POOLINGS,
    POSITIONS,
    TIED_EMBEDDINGS,
    ModelConfig,
)
from depthwise.config.parsing import Findings, Rules, at_least, build, choice, option_problems, probability, shown
from depthwise.config.relative import RULES as RELATIVE_RULES
from depthwise.config.structure import RULES as STRUCTURE_RULES
from depthwise.config.word_depths import RULES as WORD_RULES
from depthwise.errors import ConfigError, Problem

UNPARSED = ("latent",)
"""Kinds of policies that a model carries along without running them: gates of imported models."""


def parse_model(
    options: Mapping[str, Any],
    source: str = "model",
    undecided: Collection[str] = frozenset(),
    *,
    is_partial: bool = False,
) -> ModelConfig:
    """Builds a model's options from nested dictionaries, as YAML or JSON gives them.

    Stacks and adaptive bands may be dictionaries or built already; lists become tuples, and a single number serves
    where a list is meant. A policy gets all options of its kind. Raises ``ConfigError`` with all problems, under the
    name ``source``. Options that are ``undecided`` (dotted paths) have no value yet: no other has to agree with what
    stands there for now. Where the options are ``partial``, what is missing stands elsewhere, and is undecided too.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(source, [Problem(source, f"expected a mapping of model options, got {shown(options)}")])
    findings = Findings(is_partial=is_partial)
    config: ModelConfig = build(ModelConfig, options, findings)
    problems = [*findings.problems, *_value_problems(config, findings.unreliable, undecided)]
    if problems:
        raise ConfigError(source, problems)
    if config.policy is None or config.policy["kind"] in UNPARSED:
        return config
    return replace(config, policy=policy_dict(parse_policy(config.policy)))


def check_model(config: ModelConfig) -> list[Problem]:
    """Everything that is wrong with a built configuration; never raises."""
    return list(_value_problems(config, frozenset()))


def _value_problems(
    config: ModelConfig, broken: Collection[str], undecided: Collection[str] = frozenset()
) -> Iterator[Problem]:
    single = [problem for problem in option_problems(config, RULES) if problem.option not in broken]
    yield from single
    unknown = {*broken, *undecided, *(problem.option for problem in single)}
    relations = list(relation_problems(config, unknown))
    yield from relations
    if config.policy is not None and "policy" not in unknown:
        unknown |= {problem.option for problem in relations}
        yield from _policy_problems(config, config.policy, unknown)


def _policy_problems(config: ModelConfig, options: dict[str, Any], broken: Collection[str]) -> Iterator[Problem]:
    """What is wrong with a policy by itself, then with these exits."""
    if options.get("kind") in UNPARSED:
        return
    try:
        policy = parse_policy(options)
    except ConfigError as error:
        yield from (Problem(f"policy.{problem.option}", problem.message) for problem in error.problems)
        return
    model = View(config, "", broken)
    try:
        stack = model.encoder if model.decoder is None else model.decoder
        if stack is None:
            return
        if isinstance(policy, StructureExitConfig):
            if model.structure is None:
                yield model.problem("policy", "structure needs layers that ask for others; add structure, or remove it")
            elif model.exits is not None:
                remedy = "choose another kind, and policy.kind=structure with --depth policy once it is trained"
                yield model.problem("policy", f"is about the exits of the decoder where there are any; {remedy}")
            elif policy.stops is None and not model.structure.cumulative and policy != StructureExitConfig():
                because = "the likeliest number decides without cumulative; remove it, or set policy.stops to threshold"
                yield Problem("policy.threshold", f"has no effect: {because}")
            return
        if model.structure is not None and model.exits is None:
            if not isinstance(policy, FixedDepthConfig):
                yield model.problem("policy", f"{policy.kind} does not go with structure; use structure or fixed")
                return
            _ = model.structure.num_static
            stack = model.encoder
        elif model.exits is None:
            yield model.problem("policy", "decides where tokens leave, but there are no exits; add exits, or remove it")
            return
        _ = stack and stack.num_layers, model.exits and model.exits.depths  # without which the exits are not known
    except BrokenOption:
        return
    has_source = config.encoder is not None and config.decoder is not None
    for problem in placement_problems(policy, config.stopping_depths, has_source=has_source):
        yield Problem(f"policy.{problem.option}", problem.message)


def _kernel_sizes(sizes: tuple[int, ...]) -> str | None:
    small = [f"{size} in layer {layer}" for layer, size in enumerate(sizes) if size < 1]
    return f"{', '.join(small)} is too small; kernel sizes are 1 or more" if small else None


def _shared_layers(blocks: tuple[int, ...]) -> str | None:
    """Blocks are counted from 0 in the order in which layers first run them, so that there is one way to write it."""
    for position, block in enumerate(blocks):
        seen = set(blocks[:position])
        if block not in seen and block != len(seen):
            remedy = "count blocks from 0 in the order of their first use, such as [0, 0, 1, 1]"
            return f"block {block} in layer {position} should be at most {len(seen)}; {remedy}"
    return None


def _gain(value: float) -> str | None:
    return None if value > 0 else f"{value} leaves a branch nothing to start from; give a positive number such as 0.25"


def _epsilon(value: float) -> str | None:
    return None if 0 < value < 1 else f"{value} is no small positive number; give one such as 1e-5"


def _exit_depths(depths: tuple[int, ...]) -> str | None:
    if depths and all(low < high for low, high in zip((0, *depths), depths, strict=False)):
        return None
    return f"{list(depths)} are no depths of exits; give numbers of blocks from low to high, such as [1, 2, 4]"


def _cutoffs(cutoffs: tuple[int, ...]) -> str | None:
    if not cutoffs:
        return "an adaptive softmax needs at least one cutoff; give one or remove adaptive"
    if all(low < high for low, high in zip((0, *cutoffs), cutoffs, strict=False)):
        return None
    return f"{shown(cutoffs)} does not increase from above 0; give the ends of the bands in rising order"


_CHOICES = {
    "mixer": MIXERS,
    "kernel_normalization": KERNEL_NORMALIZATIONS,
    "norm": NORMS,
    "connections": CONNECTIONS,
    "ffn_init": FFN_INITS,
    "activation": ACTIVATIONS,
    "positions": POSITIONS,
    "kernel_from": KERNEL_SOURCES,
    "tied_embeddings": TIED_EMBEDDINGS,
    "pooling": POOLINGS,
    "head_transform": ACTIVATIONS,
    "heads": EXIT_HEADS,
    "norms": EXIT_NORMS,
}
_COUNTS = (
    *("vocab_size", "source_vocab_size", "width", "embedding_width"),
    *("num_layers", "num_heads", "ffn_width", "kernel_heads", "conv_width", "max_positions", "groups"),
)
_PROBABILITIES = (
    *("dropout", "attention_dropout", "activation_dropout", "input_dropout", "dropconnect", "layer_dropout"),
    "classifier_dropout",
)

RULES: Rules = {
    **{name: partial(choice, names) for name, names in _CHOICES.items()},
    **dict.fromkeys(_COUNTS, partial(at_least, 1)),
    **dict.fromkeys(_PROBABILITIES, probability),
    "kernel_sizes": _kernel_sizes,
    "shared_layers": _shared_layers,
    "kept_heads": kept_heads_rule,
    "norm_epsilon": _epsilon,
    "out_gain": _gain,
    "position_offset": partial(at_least, 0),
    "token_types": partial(at_least, 0),
    "factor": partial(at_least, 2),
    "cutoffs": _cutoffs,
    "depths": _exit_depths,
    **WORD_RULES,
    **LATENT_RULES,
    **RELATIVE_RULES,
    **STRUCTURE_RULES,
}
