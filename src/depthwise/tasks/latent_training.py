"""How the gates of a task's model learn: samples, weights of the terms, and what is added to the loss of every pass."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from depthwise.config import LatentTrainingConfig, ModelConfig, Recipe, TrainingConfig
from depthwise.config.latent import latent_problems
from depthwise.depth import LatentLayers
from depthwise.errors import ConfigError, Problem
from depthwise.losses.latent import (
    aggregated_prior,
    bernoulli_kl,
    depth_distance,
    fairseq_aggregated,
    fairseq_kl,
    fairseq_sharing,
    sharing_entropy,
)
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Float, Tensor

LANGUAGES = {"encoder": "source_languages", "decoder": "target_languages"}
"""Under which name a batch says the languages that the gates of a side ask for."""


class LatentTraining:
    """What gates learn at each update.

    All that changes from pass to pass, the noise of samples included, lies in tensors on the device, which ``advance``
    writes to, so that passes can be recorded. Noise follows from seed, update and batch alone: it is the same in all
    processes, and after an interruption.
    """

    def __init__(self, training: TrainingConfig, model: ModelConfig, seed: int) -> None:
        assert model.latent is not None
        self.options, self.structure = training.latent or LatentTrainingConfig(), model.latent
        self._seed = seed
        self._layers: dict[str, LatentLayers] = {}
        self._numbers: Tensor | None = None
        self._pass = (-1, 0)

    def attach(self, model: DepthwisePreTrainedModel) -> None:
        """The model whose gates these are."""
        self._layers, self._numbers = model.latent_layers(), None

    # Schedules

    @property
    def _anneal_from(self) -> int:
        begin = self.options.anneal_from
        return (self.options.soft_updates or 0) if begin is None else begin

    def _growth(self, update: int) -> tuple[float, float]:
        """How far the weights of both terms have grown, from 0 to 1."""
        anneal = self.options.anneal_updates
        since = update - self._anneal_from

        def share(num: int) -> float:
            return min(1.0, num / anneal) if anneal else float(num >= 0)

        if self.options.ramps == "fairseq":
            second = share(since - anneal)
            return share(since), 0.0 if since <= anneal else second * (self.depth_weight if second < 1 else 1.0)
        return max(0.0, share(since)), max(0.0, share(since - anneal))

    @property
    def depth_weight(self) -> float:
        return float(self.options.depth_weight)

    def weights(self, update: int) -> tuple[float, float, float]:
        """Those of the divergence, of the distance to the wanted depth and of the entropy, at an update from 0 on."""
        first, second = self._growth(update)
        return float(self.options.beta) * first, self.depth_weight * second, float(self.options.sharing_weight) * second

    def temperature(self, update: int) -> float:
        first, last = float(self.structure.temperature), self.options.final_temperature
        if last is None:
            return first
        return first + (float(last) - first) * min(1.0, update / self.options.temperature_updates)

    def is_hard(self, update: int) -> bool:
        return self.options.soft_updates is not None and update >= self.options.soft_updates

    def holds_logits(self, update: int) -> bool:
        """Whether this update, counted from 0, is one of the weights alone."""
        return (update + 1) % self.options.inner_updates != 0

    def without_effect(self, num_updates: int) -> Iterator[str]:
        """Of options that change nothing in so few updates, why that is. It is no error: short trials of a recipe keep
        what it says of long ones.
        """
        options, begin = self.options, self._anneal_from
        first, second = self._growth(num_updates - 1)
        named = "soft_updates" if options.anneal_from is None else "anneal_from"
        at_first = (named, begin)
        grown = (f"{named} + anneal_updates", begin + options.anneal_updates)
        for name, is_idle, (after, update) in (
            ("beta", options.beta and options.ramps == "clamped" and not first, at_first),
            ("prior", options.beta and options.prior == "aggregated" and first < 1, grown),
            ("target_depth", options.target_depth and options.depth_weight and not second, grown),
            ("sharing_weight", options.sharing_weight and not second, grown),
        ):
            if is_idle:
                yield (
                    f"training.latent.{name} has no effect with training.max_updates = {num_updates:,}, since it "
                    f"counts after {after} = {update:,}; lower that"
                )
        if options.inner_updates > num_updates:
            yield (
                f"training.latent.inner_updates = {options.inner_updates:,} is more than training.max_updates = "
                f"{num_updates:,}, so that logits are never updated; lower it"
            )

    # Passes

    def advance(self, update: int, device: torch.device) -> None:
        """Before a pass of an update, counted from 0; every pass of an update has noise of its own."""
        self._pass = (update, self._pass[1] + 1 if self._pass[0] == update else 0)
        draw = np.random.default_rng([self._seed, *self._pass])
        is_grown = self._growth(update)[0] >= 1
        numbers = torch.tensor([*self.weights(update), float(is_grown)])
        self._numbers = _written(self._numbers, numbers, device)
        for layers in self._layers.values():
            noise = torch.from_numpy(draw.logistic(size=tuple(layers.logits.shape)).astype(np.float32))
            layers.noise = _written(layers.noise, noise, device)
            layers.temperature.fill_(self.temperature(update))
            layers.hardness.fill_(float(self.is_hard(update)))

    def penalty(self, batch: Mapping[str, Any]) -> Float[Tensor, ""]:
        """What is added to the loss of the pass that was just made over this batch."""
        assert self._numbers is not None
        beta, depth_weight, sharing_weight, is_grown = self._numbers.unbind()
        total, wanted = beta.new_zeros(()), self.options.wanted(self.structure.sides)
        for side, layers in self._layers.items():
            drawn = layers.drawn
            assert drawn is not None
            probabilities, samples = drawn.probabilities.float(), drawn.samples.float()
            divergence = self._divergence(drawn.logits, probabilities, samples, is_grown)
            languages = batch.get(LANGUAGES[side])
            total = total + beta * _of_languages(divergence, languages)
            used = (probabilities if self.options.utilisation == "probabilities" else samples).mean(0)
            if side in wanted:
                distance = depth_distance(used, float(wanted[side]), squared=self.options.depth_loss == "square")
                total = total + depth_weight * distance
            if self.options.sharing_weight:
                sharing = fairseq_sharing if self.options.sharing == "fairseq" else sharing_entropy
                total = total + sharing_weight * sharing(used)
        return total

    def _divergence(
        self, logits: Tensor, probabilities: Tensor, samples: Tensor, is_grown: Tensor
    ) -> Float[Tensor, "G"]:
        options = self.options
        if options.kl == "fairseq":
            if options.prior == "fairseq_aggregated":
                return fairseq_kl(samples, fairseq_aggregated(samples))
            if options.prior == "aggregated":
                half = torch.full_like(probabilities[0], 0.5)
                return fairseq_kl(samples, torch.where(is_grown > 0, aggregated_prior(probabilities), half))
            return fairseq_kl(samples)
        a, b = map(float, options.prior_counts)
        prior = torch.full_like(probabilities[0], a / (a + b))
        if options.prior == "aggregated":
            prior = torch.where(is_grown > 0, aggregated_prior(probabilities), prior)
        return bernoulli_kl(logits, prior)

    # What is written down

    def depths(self) -> dict[str, float]:
        """For each side the number of layers in the mean over languages: expected, and with a probability above ½."""
        found = {}
        for side, layers in self._layers.items():
            found[f"expected_depth/{side}"] = float(layers.probabilities.detach().sum(-1).mean())
            found[f"effective_depth/{side}"] = float(layers.is_open.sum(-1).float().mean())
        return found

    def record(self) -> dict[str, Any]:
        """Probabilities and the last samples of all layers, by side and language."""
        return {
            side: {
                name: {"probabilities": _rounded(probability), "samples": _rounded(sample)}
                for name, probability, sample in zip(
                    layers.languages or ("all",),
                    layers.probabilities.detach(),
                    layers.samples(layers.noise).detach(),
                    strict=True,
                )
            }
            for side, layers in self._layers.items()
            if layers.noise is not None
        }


def latent_training(recipe: Recipe, model: ModelConfig) -> LatentTraining | None:
    """How gates of a recipe's model learn; none where it has none. Raises ``ConfigError`` where they cannot so."""
    options = recipe.training.latent
    if model.latent is None:
        if options is not None:
            message = "has no effect on a model without gates; set model.latent, or remove it"
            raise ConfigError("recipe", [Problem("training.latent", message)])
        return None
    found = latent_problems(options or LatentTrainingConfig(), model)
    problems = [Problem(f"training.latent.{problem.option}", problem.message) for problem in found]
    if model.latent.per_language and not any(map(model.latent.languages, model.latent.sides)):
        message = f"{recipe.task} knows no languages; use the task multilingual_translation, or remove it"
        problems.append(Problem("model.latent.per_language", message))
    if problems:
        raise ConfigError("recipe", problems)
    return LatentTraining(recipe.training, model, recipe.seed)


def use_gates_of(recipe: Recipe, model: DepthwisePreTrainedModel) -> None:
    """Outside training: the gates that the recipe evaluates with, or else the model's own. Samples follow its seed."""
    own = model.config.options.latent
    mode = recipe.evaluation.gates or (None if own is None else own.gates)
    if mode is not None:
        model.use_gates(mode, recipe.seed)


def _of_languages(divergence: Float[Tensor, "G"], languages: Tensor | None) -> Float[Tensor, ""]:
    """The mean over the languages that occur in a batch, however many rows each has."""
    if len(divergence) == 1 or languages is None:
        return divergence[0]
    occurs = torch.zeros_like(divergence).index_fill(0, languages, 1)
    return (divergence * occurs).sum() / occurs.sum()


def _written(place: Tensor | None, fresh: Tensor, device: torch.device) -> Tensor:
    """Values in their place on a device, without waiting for it."""
    if place is None or place.device != device:
        return fresh.to(device)
    return place.copy_(fresh.pin_memory() if device.type == "cuda" else fresh, non_blocking=True)


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
