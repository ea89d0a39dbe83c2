"""How the exits of a model are trained, as plain data: the section ``training.exits`` of a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf

from depthwise.config.depth import (
    ConfidenceConfig,
    FixedDepthConfig,
    PatienceConfig,
    StructureExitConfig,
    UniformExitConfig,
)
from depthwise.config.depth_parsing import parse_policy
from depthwise.config.model import ModelConfig
from depthwise.config.parsing import Rules, at_least, choice, probability
from depthwise.config.validation import UNPARSED
from depthwise.errors import Problem

OBJECTIVES = ("aligned", "mixed")
WEIGHTS = ("equal", "linear", "sqrt", "inverse_sqrt", "inverse", "layerskip")
CURRICULA = ("none", "rotational", "gradual")
DISTILL_DIVERGENCES = ("student", "teacher")
LAYER_DROPOUTS = ("none", "layerdrop", "layerskip")
WITHOUT_PARAMETERS = (FixedDepthConfig, ConfidenceConfig, PatienceConfig, StructureExitConfig, UniformExitConfig)


@dataclass(frozen=True, kw_only=True)
class ExitTrainingConfig:
    """What the exits of a model learn, and with them its policy, where that has parameters."""

    objective: str = "aligned"
    """``aligned``: every token runs the whole stack and learns at every exit; ``mixed``: it learns at one exit, drawn
    at random, and its state there is what others see of it above (Elbayad et al. 2020)."""
    weights: str | tuple[float, ...] = "equal"
    """How much each exit counts: one of ``WEIGHTS``, which follow from its depth, or one number for each."""
    weight_scale: float = 1.0
    """The scale e of the weights ``layerskip``."""
    curriculum: str = "none"
    """Which exits count: all (``none``); one of every ``curriculum_every``, another with each update (``rotational``);
    or more and more, from the last to the first (``gradual``). The last always counts (LayerSkip)."""
    curriculum_every: int = 2
    curriculum_share: float = 0.5
    """The share of training after which all exits count (``gradual``)."""
    paths: int = 1
    """How often exits are drawn for every token (``mixed``)."""
    distill: float = 0.0
    """The share of what exits learn from what the last one says; the rest is from labels. With 1 only the last has
    labels (FastBERT), which is for models that are trained already: from scratch all exits agree on nothing."""
    distill_divergence: str = "student"
    """KL(exit ‖ last) as in FastBERT, ``student``, or KL(last ‖ exit), ``teacher``."""
    freeze: bool = False
    """Train exits and policy alone: heads and norms that an exit has for itself. All else stays as it is."""
    policy_weight: float = 1.0
    """Weight of what the policy learns, beside the exits."""
    gradient_scale: float | None = None
    """γ: what block n of N learns from its own exit counts γ·(N − n), beside what it learns from those above; the last
    counts 1. None means that all count the same (Elbayad et al. 2020)."""
    layer_dropout: str = "none"
    """Blocks that are left out at random: each with the same chance, for a whole batch (``layerdrop``), or later ones
    with a higher chance, for every sequence by itself (``layerskip``). It is the stack with the exits that has it."""
    layer_dropout_chance: float = 0.2
    """The chance of each block, or of the last one."""
    layer_dropout_grows: bool = False
    """Whether chances grow from 0 over all of training (``layerskip``, for models that are trained from scratch)."""


def _weights(value: str | tuple[float, ...]) -> str | None:
    if isinstance(value, str):
        return choice(WEIGHTS, value)
    if all(0 <= weight < inf for weight in value) and any(value):
        return None
    return f"{list(value)} are no weights of exits; give numbers from 0 on that are not all 0"


def _part(value: float) -> str | None:
    return None if 0 <= value <= 1 else f"{value} is out of range; give a number from 0 to 1"


def _share(value: float) -> str | None:
    return None if 0 < value <= 1 else f"{value} is out of range; give a number above 0, and at most 1"


RULES: Rules = {
    "objective": partial(choice, OBJECTIVES),
    "weights": _weights,
    "weight_scale": partial(at_least, 0),
    "curriculum": partial(choice, CURRICULA),
    "curriculum_every": partial(at_least, 1),
    "curriculum_share": _share,
    "paths": partial(at_least, 1),
    "distill": _part,
    "distill_divergence": partial(choice, DISTILL_DIVERGENCES),
    "policy_weight": partial(at_least, 0),
    "gradient_scale": partial(at_least, 0),
    "layer_dropout": partial(choice, LAYER_DROPOUTS),
    "layer_dropout_chance": probability,
}
"""What each option demands by itself; their names occur nowhere else in a recipe."""


def without_effect(options: ExitTrainingConfig) -> Iterator[Problem]:
    """Options that are given beside others which leave them nothing to do; each is right by itself."""
    defaults = ExitTrainingConfig()

    def idle(names: tuple[str, ...], because: str) -> Iterator[Problem]:
        for name in names:
            if getattr(options, name) != getattr(defaults, name):
                yield Problem(name, f"has no effect {because}; remove it")

    if options.objective == "mixed":
        yield from idle(("weights", "weight_scale", "curriculum", "distill", "gradient_scale"), "with objective mixed")
    else:
        yield from idle(("paths",), "with objective aligned")
        if options.weights != "layerskip":
            yield from idle(("weight_scale",), "without weights layerskip")
    if not options.distill:
        yield from idle(("distill_divergence",), "without distill")
    if options.curriculum != "rotational":
        yield from idle(("curriculum_every",), "without curriculum rotational")
    if options.curriculum != "gradual":
        yield from idle(("curriculum_share",), "without curriculum gradual")
    if options.layer_dropout == "none":
        yield from idle(("layer_dropout_chance", "layer_dropout_grows"), "without layer_dropout")
    elif options.layer_dropout == "layerdrop":
        yield from idle(("layer_dropout_grows",), "with layer_dropout layerdrop")


def model_problems(options: ExitTrainingConfig, model: ModelConfig) -> Iterator[Problem]:
    """What keeps exits of this model from being trained so; both are right by themselves, and there are exits."""
    num_exits, exits = len(model.exit_depths), model.exits
    assert exits is not None
    if not isinstance(options.weights, str) and len(options.weights) != num_exits:
        yield Problem("weights", f"{len(options.weights)} weights for {num_exits} exits; give one for each")
    learns = _has_learning_policy(model)
    if learns and options.objective == "mixed":
        message = "a policy learns from tokens that run the whole stack; use aligned, or train it after the exits"
        yield Problem("objective", message)
    if options.policy_weight != 1 and not learns:
        yield Problem("policy_weight", "has no effect on a model without a policy that learns; remove it")
    stack = model.decoder or model.encoder
    assert stack is not None
    has_own_norms = stack.has_final_norm and exits.norms == "separate"
    if options.freeze and options.gradient_scale is not None:
        yield Problem("gradient_scale", "has no effect on blocks that are frozen; remove it")
    if options.freeze and exits.heads == "tied" and not has_own_norms and not learns:
        message = "leaves nothing to train: exits have neither heads nor norms of their own, and no policy learns"
        yield Problem("freeze", f"{message}; set model.exits.heads=separate, or remove it")


def _has_learning_policy(model: ModelConfig) -> bool:
    if model.policy is None or model.policy["kind"] in UNPARSED:
        return False
    return not isinstance(parse_policy(model.policy), WITHOUT_PARAMETERS)
