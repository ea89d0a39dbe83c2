"""Removing layers that a model has learned to leave out: what is left is a plain model with fewer layers.

Where a gate is closed, a block of a stack without post-norm leaves states as they are. Without the block they are the
same, and neither weights nor memory of it are needed.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from depthwise.config import LatentConfig, ModelConfig, StackConfig, as_dict
from depthwise.errors import InputError
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Float, Tensor

ALL = "all"
"""Stands for the languages where gates do not tell them apart."""
_LAYER = re.compile(r"((?:.*\.)?(encoder|decoder)\.stack\.layers\.)(\d+)(\..*)")
_GATES = re.compile(r"(?:.*\.)?(encoder|decoder)\.latent\.(logits|temperature|hardness)")

Model = TypeVar("Model", bound=DepthwisePreTrainedModel)
Probabilities = dict[str, dict[str, Float[Tensor, "N"]]]
"""Of the layers of each gated side, by language."""


@dataclass(frozen=True)
class Kept:
    """The layers of each gated side that stay, and those sides on which languages still differ in what they use."""

    layers: dict[str, tuple[int, ...]]
    gated: tuple[str, ...] = ()


def layer_probabilities(model: DepthwisePreTrainedModel) -> Probabilities:
    """How likely each layer is to be used: by learned gates, or by those of an imported model.

    They have the precision that tells a logit just above 0, which hard gates open, from one half.
    """
    if layers := model.latent_layers():
        return {
            side: dict(
                zip(of_side.languages or (ALL,), of_side.whole_logits().detach().double().sigmoid(), strict=True)
            )
            for side, of_side in layers.items()
        }
    policy = model.config.policy
    if policy is None or policy["kind"] != "latent":
        raise InputError(
            "this model has no gates that say which layers can go; train one with model.latent, or name a run that was "
            "and is not pruned yet"
        )
    found: Probabilities = {}
    for side, part in (("encoder", 0), ("decoder", 2)):
        if policy[f"{side}_logits"] is not None:
            languages = [pair.partition("-")[part] for pair in policy["language_pairs"]]
            rows = torch.tensor(policy[f"{side}_logits"], dtype=torch.float64).sigmoid()
            found[side] = dict(zip(languages, rows, strict=True))
    return found


def layers_to_keep(probabilities: Probabilities, language: str | None = None, keep: int | None = None) -> Kept:
    """Those with a probability above one half, or as many of the most likely ones as ``keep`` says.

    That is in one language, or in both of a pair such as ``en-de``; without one, what any language uses, or by the mean
    of their probabilities.
    """
    named = languages_asked_for(probabilities, language)
    layers, gated = {}, []
    for side, by_language in probabilities.items():
        languages = [named[side]] if side in named else list(by_language)
        wanted = [by_language[name] for name in languages]
        num_layers = len(wanted[0])
        if keep is not None:
            if not 1 <= keep <= num_layers:
                raise InputError(f"the {side} has {num_layers} layers; keep 1 to {num_layers} of them, not {keep}")
            mean = (sum(wanted) / len(wanted)).tolist()  # type: ignore[union-attr]
            layers[side] = tuple(sorted(sorted(range(num_layers), key=lambda layer: (-mean[layer], layer))[:keep]))
            continue
        used = [{layer for layer, chance in enumerate(row.tolist()) if chance > 0.5} for row in wanted]
        layers[side] = tuple(sorted(set().union(*used)))
        if without := [name for name, of_row in zip(languages, used, strict=True) if not of_row]:
            likely = max(float(by_language[name].max()) for name in without)
            whom = "" if without == [ALL] else ", ".join(without)
            raise InputError(
                f"no layer of the {side} is more likely used than not{whom and f' by {whom}'} (the likeliest has "
                f"{likely:.2f}), so that nothing would be left{whom and f' for {whom}'}; say how many are to stay with "
                "--keep"
            )
        if any(of_row != used[0] for of_row in used):
            gated.append(side)
    return Kept(layers, tuple(gated))


def languages_asked_for(probabilities: Probabilities, language: str | None) -> dict[str, str]:
    """The language that is meant on each side that has gates for it, where one, or a pair of them, is named."""
    if language is None:
        return {}
    source, dash, target = language.partition("-")
    asked = {"encoder": source, "decoder": target if dash else source}
    several = {side: names for side, by_language in probabilities.items() if ALL not in (names := [*by_language])}
    found = {side: asked[side] for side, names in several.items() if asked[side] in names}
    if not several:
        raise InputError("all languages share the layers of this model; leave --language out")
    if not found or (dash and set(found) != set(several)):
        known = "; ".join(f"the {side} has layers for {', '.join(names)}" for side, names in several.items())
        shown = language if language.strip() else f'"{language}"'
        raise InputError(f"{shown} is no language of these gates; {known}")
    return found


def pairs_translated(pairs: Sequence[str], probabilities: Probabilities, language: str) -> tuple[str, ...]:
    """Those of a run's pairs that the layers of a language are for, or the one that is named; there has to be one."""
    named = languages_asked_for(probabilities, language)
    parts = {pair: dict(zip(("encoder", "decoder"), pair.split("-"), strict=True)) for pair in pairs}
    of_language = tuple(pair for pair, sides in parts.items() if named.items() <= sides.items())
    found = tuple(pair for pair in of_language if pair == language) if "-" in language else of_language
    if not found:
        known = ", ".join(pairs)
        raise InputError(f"this run does not translate {language}; it knows {known}: name one of these pairs")
    return found


def imported_pairs(model: DepthwisePreTrainedModel) -> tuple[str, ...]:
    """The pairs of languages that an imported model has gates for; none where it has none."""
    policy = model.config.policy
    return () if policy is None or policy["kind"] != "latent" else tuple(policy["language_pairs"])


def pruned(model: Model, kept: Kept) -> Model:
    """The model without all other layers of its gated sides, and without gates where none is needed any more."""
    options = model.config.options
    stacks: dict[str, Any] = {side: _stack(options, side).of_layers(layers) for side, layers in kept.layers.items()}
    latent: LatentConfig | None = None
    if kept.gated:
        if options.latent is None:
            raise InputError(
                "languages differ in the layers that they use, which an imported model cannot tell apart; name one "
                "with --language, or say how many layers are to stay with --keep"
            )
        first = tuple(map(options.latent.first_logit, kept.gated))
        latent = replace(options.latent, sides=kept.gated, init=first, gates="hard")
    return rebuilt(model, replace(options, **stacks, latent=latent, policy=None), _weights(model, kept, options))


def rebuilt(model: Model, options: ModelConfig, weights: Mapping[str, Tensor]) -> Model:
    """A model of other options with these weights, and all else as it is."""
    config = copy.deepcopy(model.config)
    for name, value in as_dict(options).items():
        setattr(config, name, value)
    smaller = type(model)(config)
    smaller.to(device=model.device, dtype=model.dtype)  # type: ignore[call-arg]
    smaller.load_state_dict(weights)
    if getattr(model, "generation_config", None) is not None:  # classifiers have none
        smaller.generation_config = copy.deepcopy(model.generation_config)
    return smaller.train(model.training)


def _stack(options: ModelConfig, side: str) -> StackConfig:
    stack: StackConfig = getattr(options, side)
    if stack.norm == "post":
        raise InputError(
            f"the {side} is post-norm, where a layer changes states even if its gate is closed; only layers of "
            "pre-norm stacks, or of those without norms, can be removed"
        )
    return stack


def _new_numbers(stack: StackConfig, layers: tuple[int, ...]) -> dict[int, int]:
    """The number of each block that stays, in the order of its first use."""
    return {block: number for number, block in enumerate(dict.fromkeys(map(stack.block_of, layers)))}


def _weights(model: DepthwisePreTrainedModel, kept: Kept, options: ModelConfig) -> Mapping[str, Tensor]:
    numbers = {side: _new_numbers(getattr(options, side), layers) for side, layers in kept.layers.items()}
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if match := _LAYER.fullmatch(name):
            before, side, block, behind = match.groups()
            if side in numbers:
                if int(block) not in numbers[side]:
                    continue
                name = f"{before}{numbers[side][int(block)]}{behind}"
        elif match := _GATES.fullmatch(name):
            if match[1] not in kept.gated:
                continue
            if match[2] == "logits":
                tensor = tensor[:, list(kept.layers[match[1]])]
        found[name] = tensor
    return found
