"""Layers that a model learns to use or to leave out, as plain data: ``model.latent`` and ``training.latent``.

The first says where there are gates and what their samples are like, and stays with the model; the second how they are
learned (Li et al. 2020, "Deep Transformers with Latent Depth").
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from depthwise.config.parsing import Rules, at_least, choice, finite
from depthwise.errors import Problem

if TYPE_CHECKING:
    from depthwise.config.checks import View
    from depthwise.config.model import ModelConfig

GATED_SIDES = ("encoder", "decoder")
GATE_MODES = ("soft", "hard", "sampled")
KL_FORMS = ("exact", "fairseq")
PRIORS = ("beta", "aggregated", "fairseq_aggregated")
DEPTH_LOSSES = ("absolute", "square")
UTILISATIONS = ("probabilities", "samples")
SHARING_FORMS = ("exact", "fairseq")
RAMPS = ("clamped", "fairseq")


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """A gate z on the residual branches of every layer, open with probability σ(α) of a learned logit α."""

    sides: tuple[str, ...] = ("decoder",)
    """The stacks with gates: ``encoder``, ``decoder`` or both."""
    per_language: bool = False
    """Whether every language has logits of its own: the source language in an encoder, the target language in a
    decoder."""
    source_languages: tuple[str, ...] = ()
    """Names of the languages of the logits of an encoder, where each has its own; follow from the data."""
    target_languages: tuple[str, ...] = ()
    """The same for a decoder."""
    temperature: float = 5.0
    """τ of the samples σ((α + g₁ − g₂)/τ) that a new model is trained with."""
    whole_layer: bool = False
    """Whether the gate weighs what a whole layer adds, x + z·(layer(x) − x), or every branch in it; for gates of 0 and
    1 that is the same."""
    init: tuple[float, ...] = (0.0,)
    """α of a new model, one number for all sides or one for each; 0 is a probability of one half."""
    gates: str = "soft"
    """What stands for a gate outside training: its expected sample (``soft``), 1 where its probability exceeds ½ and
    else 0 (``hard``), or, for comparison with the released code alone, a new sample at every call (``sampled``)."""

    def languages(self, side: str) -> tuple[str, ...]:
        """Those with logits of their own on a side; none means that one set serves all."""
        if not self.per_language:
            return ()
        return self.source_languages if side == "encoder" else self.target_languages

    def first_logit(self, side: str) -> float:
        """α of a new model on a side."""
        return float(self.init[self.sides.index(side) if len(self.init) > 1 else 0])


@dataclass(frozen=True, kw_only=True)
class LatentTrainingConfig:
    """How gates are learned: E[−log p(y|x, z)] + β·KL(q(z)‖p(z)) + λ·|Σ u − K|, with one update of the logits behind
    every ``inner_updates`` of the weights."""

    beta: float = 0.05
    """β, the weight of the divergence from the prior, which is a sum over layers beside a loss by token; 0 leaves it
    out. The released code divides that sum by the number of layers: its weight is β times as many."""
    anneal_updates: int = 5000
    """Updates over which β grows from 0, from ``anneal_from`` on, and over which λ grows after that."""
    anneal_from: int | None = None
    """The update from which β grows. None means behind the soft ones, or from the first on where all are soft."""
    soft_updates: int | None = 500
    """Updates with soft samples; later ones are 0 or 1, with the gradient of soft ones (straight through). None means
    that they stay soft."""
    kl: str = "exact"
    """The divergence of two Bernoulli distributions, summed over layers (``exact``), or what the released code takes
    from a sample, Σ z·(log z − log ρ)/N (``fairseq``)."""
    prior: str = "beta"
    """Of a layer: a/(a + b) of ``prior_counts`` (``beta``); once β is grown, the mean probability over languages
    (``aggregated``); or, as in the released code, samples summed over languages and normalised over layers from the
    start (``fairseq_aggregated``). On a side with one language alone that mean is its own probability, so that
    ``aggregated`` ends the exact divergence there."""
    prior_counts: tuple[float, ...] = (1.0, 1.0)
    """a and b of the Beta prior."""
    target_depth: tuple[int | None, ...] | None = None
    """K, how many layers are wanted in the mean over languages: one number for all gated sides, or one for each. None
    means as many as turn out useful, on both sides or, among two depths, on that side."""
    depth_weight: float = 0.1
    """λ, the weight of the distance to K."""
    depth_loss: str = "absolute"
    """That distance itself (``absolute``), or its ``square``, whose pull ends at K, so that ``sharing_weight`` can make
    every gate decide there."""
    utilisation: str = "probabilities"
    """What u counts: ``probabilities`` of layers, or ``samples``."""
    sharing_weight: float = 0.0
    """Weight of −Σ u·log u, which wants layers to be used by all languages or none; grows as λ does."""
    sharing: str = "exact"
    """The gradient of that entropy (``exact``), or that of the released code, −log u, which draws layers towards being
    closed unless all languages use them (``fairseq``)."""
    ramps: str = "clamped"
    """How weights grow: from 0 to their value (``clamped``), or as in the released code, where β begins below 0 and
    λ is multiplied by itself until it is grown (``fairseq``)."""
    inner_updates: int = 1
    """I, updates of the weights for each one of the logits; 1 trains both together."""
    lr: float | None = None
    """Learning rate of the logits, which follows the same schedule; none means that of the weights."""
    final_temperature: float | None = None
    """τ at the end of ``temperature_updates``, to which it falls or rises in equal steps; none means that it stays."""
    temperature_updates: int = 10_000

    def wanted(self, sides: tuple[str, ...]) -> dict[str, int]:
        """K of each of these gated sides that has one."""
        depths = self.target_depth or (None,)
        each = zip(sides, depths * len(sides) if len(depths) == 1 else depths, strict=True)
        return {side: depth for side, depth in each if depth is not None}


def _sides(value: tuple[str, ...]) -> str | None:
    if not value or len(set(value)) < len(value):
        return "names no side, or one twice; give [encoder], [decoder] or [encoder, decoder]"
    return next((message for side in value if (message := choice(GATED_SIDES, side))), None)


def _above_zero(value: float) -> str | None:
    return finite(value) or (None if value > 0 else f"{value} is too small; give a number above 0")


def _finite_each(value: tuple[float, ...]) -> str | None:
    return next((message for each in value if (message := finite(each))), None)


def _counts(value: tuple[float, ...]) -> str | None:
    if len(value) == 2 and all(0 < count < float("inf") for count in value):
        return None
    return f"{list(value)} are not two numbers above 0; give a and b, such as [1, 1]"


def _depths(value: tuple[int | None, ...]) -> str | None:
    wanted = [depth for depth in value if depth is not None]
    if not wanted:
        return "names no depth; give a number of layers, or leave it out"
    return None if min(wanted) >= 1 else f"{wanted} is too small; give a number of layers, 1 or more"


MODEL_RULES: Rules = {
    "sides": _sides,
    "temperature": _above_zero,
    "init": _finite_each,
    "gates": partial(choice, GATE_MODES),
}
TRAINING_RULES: Rules = {
    "beta": partial(at_least, 0),
    "anneal_updates": partial(at_least, 0),
    "anneal_from": partial(at_least, 0),
    "soft_updates": partial(at_least, 0),
    "kl": partial(choice, KL_FORMS),
    "prior": partial(choice, PRIORS),
    "prior_counts": _counts,
    "target_depth": _depths,
    "depth_weight": partial(at_least, 0),
    "depth_loss": partial(choice, DEPTH_LOSSES),
    "utilisation": partial(choice, UTILISATIONS),
    "sharing_weight": partial(at_least, 0),
    "sharing": partial(choice, SHARING_FORMS),
    "ramps": partial(choice, RAMPS),
    "inner_updates": partial(at_least, 1),
    "lr": partial(at_least, 0),
    "final_temperature": _above_zero,
    "temperature_updates": partial(at_least, 1),
}
"""What each option demands by itself."""


def gates_fit_the_model(model: "View") -> Iterator[Problem]:
    """Gated sides exist, and leave a state as it was where they are closed."""
    if model.latent is None:
        return
    if len(model.latent.init) not in (1, len(model.latent.sides)):
        given = f"{len(model.latent.init)} numbers for {' and '.join(model.latent.sides)}"
        yield model.latent.problem("init", f"{given}; give one number for all gated sides, or one for each")
    for side in model.latent.sides:
        stack = getattr(model, side)
        if stack is None:
            yield model.latent.problem("sides", f"there is no {side} to put gates on; name the other side")
        elif stack.norm == "post":
            message = 'is "post", which changes a state even where a gate is closed; use "pre" or "none" with latent'
            yield stack.problem("norm", message)
        elif stack.layer_dropout:
            yield stack.problem("layer_dropout", "leaves out layers that latent gates draw already; remove one")
    if model.exits is not None:
        yield model.problem("latent", "does not go with exits, which cut the same stack another way; remove one")
    if model.latent.per_language and (model.encoder is None or model.decoder is None):
        yield model.latent.problem("per_language", "is for models that translate between languages; remove it")
    if not model.latent.per_language:
        for option in ("source_languages", "target_languages"):
            if getattr(model.latent, option):
                yield model.latent.problem(option, "has no effect without per_language; remove it")


def latent_problems(options: LatentTrainingConfig, model: "ModelConfig") -> Iterator[Problem]:
    """What keeps the gates of this model from being trained so; both are right by themselves, and there are gates."""
    assert model.latent is not None
    sides, targets = model.latent.sides, options.target_depth
    if targets is not None and len(targets) not in (1, len(sides)):
        given = f"{len(targets)} depths for {' and '.join(sides)}"
        yield Problem("target_depth", f"{given}; give one number for all gated sides, or one for each")
    else:
        for side, target in options.wanted(sides).items():
            num_layers = getattr(model, side).num_layers
            if target > num_layers:
                message = f"{target} is more than the {num_layers} layers of the {side}; lower it, or add layers"
                yield Problem("target_depth", message)
    if options.prior != "beta" and not any(len(model.latent.languages(side)) > 1 for side in sides):
        yield Problem("prior", f"{options.prior} needs several languages; set model.latent.per_language, or use beta")
    if options.prior == "fairseq_aggregated" and options.kl != "fairseq":
        yield Problem("prior", "fairseq_aggregated is no probability of a layer; use it with kl fairseq alone")
    if options.kl == "fairseq" and tuple(options.prior_counts) != (1, 1):
        yield Problem("prior_counts", "has no effect with kl fairseq, whose prior is one half; remove it")
    yield from _idle(options)


def _idle(options: LatentTrainingConfig) -> Iterator[Problem]:
    """Options that are not as they would be unless given, but change nothing beside the others."""
    plain = LatentTrainingConfig()
    has_target, has_sharing = options.target_depth is not None, options.sharing_weight > 0
    for names, is_of_use, needed in (
        (("depth_weight", "depth_loss"), has_target, "without target_depth; give one"),
        (("utilisation",), has_target or has_sharing, "without target_depth and sharing_weight; give one"),
        (("sharing",), has_sharing, "without sharing_weight; give one"),
        (("kl", "prior", "prior_counts"), options.beta > 0, "with a beta of 0; raise it"),
        (("anneal_from",), options.beta > 0 or has_target or has_sharing, "with nothing that grows; raise beta"),
        (("temperature_updates",), options.final_temperature is not None, "without final_temperature; give one"),
    ):
        for name in names:
            if not is_of_use and getattr(options, name) != getattr(plain, name):
                yield Problem(name, f"has no effect {needed}, or remove it")


def idle_latent(training: Any, model: Mapping[str, Any]) -> Iterator[Problem]:
    """A section ``training.latent`` beside the options of a model that has no gates."""
    if training.latent is not None and model.get("latent") is None:
        yield Problem("training.latent", "has no effect on a model without gates; set model.latent, or remove it")
