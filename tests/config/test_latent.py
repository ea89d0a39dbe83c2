"""Options of latent layers: what each may be, and what does not go together."""

import re
from typing import Any

import pytest

from depthwise.config import LatentConfig, LatentTrainingConfig, ModelConfig, StackConfig, as_dict, parse_model
from depthwise.config import parse_recipe as parse
from depthwise.config.latent import latent_problems
from depthwise.errors import ConfigError

STACK = StackConfig(num_layers=6, norm="pre")


def model(latent: LatentConfig | None = None, **changes: Any) -> ModelConfig:
    options = {"vocab_size": 10, "encoder": STACK, "decoder": STACK, "latent": latent or LatentConfig()}
    return ModelConfig(**{**options, **changes})


def problems_of(**options: Any) -> str:
    base = {"vocab_size": 10, "encoder": {"norm": "pre"}, "decoder": {"norm": "pre"}}
    with pytest.raises(ConfigError) as raised:
        parse_model({**base, **options})
    return str(raised.value)


def test_options_survive_a_round_trip() -> None:
    options = model(LatentConfig(sides=("encoder", "decoder"), per_language=True, target_languages=("de", "fr")))
    assert parse_model(as_dict(options)) == options


def test_languages_of_a_side() -> None:
    latent = LatentConfig(per_language=True, source_languages=("en",), target_languages=("de", "fr"))
    assert (latent.languages("encoder"), latent.languages("decoder")) == (("en",), ("de", "fr"))
    assert LatentConfig(target_languages=("de",)).languages("decoder") == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent": {"sides": []}}, "latent.sides.*names no side"),
        ({"latent": {"sides": ["middle"]}}, "latent.sides.*none of encoder, decoder"),
        ({"latent": {"temperature": 0}}, "latent.temperature.*above 0"),
        ({"latent": {"init": [-4, 5]}}, "latent.init 2 numbers for decoder; give one number for all gated sides"),
        ({"latent": {"init": [float("inf")]}}, "latent.init.*inf"),
        ({"latent": {"gates": "firm"}}, "latent.gates.*none of soft, hard, sampled"),
        ({"latent": {}, "decoder": {"norm": "post"}}, 'decoder.norm.*use "pre" or "none" with latent'),
        ({"latent": {}, "decoder": None}, "latent.sides.*there is no decoder"),
        ({"latent": {}, "exits": {}}, "latent.*does not go with exits"),
        ({"latent": {"sides": ["encoder"], "per_language": True}, "decoder": None}, "per_language.*translate"),
        ({"latent": {"target_languages": ["de"]}}, "target_languages.*has no effect without per_language"),
    ],
)
def test_structures_that_cannot_be(options: dict[str, Any], message: str) -> None:
    text = " ".join(problems_of(**options).split())
    assert re.search(message, text), text


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"target_depth": (7,)}, "target_depth", "7 is more than the 6 layers of the decoder"),
        ({"target_depth": (3, 3)}, "target_depth", "2 depths for decoder; give one number"),
        ({"depth_weight": 0.5}, "depth_weight", "has no effect without target_depth"),
        ({"depth_loss": "square"}, "depth_loss", "has no effect without target_depth"),
        ({"sharing": "fairseq"}, "sharing", "has no effect without sharing_weight; give one"),
        ({"utilisation": "samples"}, "utilisation", "has no effect without target_depth and sharing_weight"),
        ({"beta": 0.0, "kl": "fairseq"}, "kl", "has no effect with a beta of 0; raise it"),
        ({"beta": 0.0, "prior_counts": (1.0, 2.0)}, "prior_counts", "has no effect with a beta of 0"),
        ({"prior": "aggregated"}, "prior", "needs several languages"),
        ({"kl": "fairseq", "prior_counts": (1.0, 2.0)}, "prior_counts", "has no effect with kl fairseq"),
        ({"beta": 0.0, "anneal_from": 5}, "anneal_from", "has no effect with nothing that grows; raise beta"),
        ({"temperature_updates": 5}, "temperature_updates", "has no effect without final_temperature"),
    ],
)
def test_trainings_that_do_not_suit_the_model(options: dict[str, Any], option: str, message: str) -> None:
    (problem,) = latent_problems(LatentTrainingConfig(**options), model())
    assert problem.option == option
    assert message in problem.message


def test_a_prior_of_the_released_code_goes_with_its_divergence() -> None:
    latent = LatentConfig(per_language=True, target_languages=("de", "fr"))
    (problem,) = latent_problems(LatentTrainingConfig(prior="fairseq_aggregated"), model(latent))
    assert "with kl fairseq alone" in problem.message
    assert not list(latent_problems(LatentTrainingConfig(prior="fairseq_aggregated", kl="fairseq"), model(latent)))


def test_one_depth_for_each_side() -> None:
    latent = LatentConfig(sides=("encoder", "decoder"))
    assert not list(latent_problems(LatentTrainingConfig(target_depth=(3, 6)), model(latent)))
    (problem,) = latent_problems(LatentTrainingConfig(target_depth=(7, 6)), model(latent))
    assert "7 is more than the 6 layers of the encoder" in problem.message


def test_a_depth_for_one_side_alone() -> None:
    latent = LatentConfig(sides=("encoder", "decoder"))
    options = LatentTrainingConfig(target_depth=(None, 6))
    assert options.wanted(latent.sides) == {"decoder": 6}
    assert not list(latent_problems(options, model(latent)))
    assert LatentTrainingConfig(target_depth=(3,)).wanted(latent.sides) == {"encoder": 3, "decoder": 3}
    assert LatentTrainingConfig().wanted(latent.sides) == {}
    (problem,) = latent_problems(LatentTrainingConfig(target_depth=(None, 7)), model(latent))
    assert "7 is more than the 6 layers of the decoder" in problem.message


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"latent": {}}, "has no effect on a model without gates; set model.latent"),
        ({"latent": {"inner_updates": 0}}, "give 1 or more"),
        ({"latent": {"prior_counts": [1, 0]}}, "are not two numbers above 0"),
        ({"latent": {"target_depth": 0}}, "give a number of layers, 1 or more"),
        ({"latent": {"target_depth": [None, 0]}}, "give a number of layers, 1 or more"),
        ({"latent": {"target_depth": [None]}}, "names no depth; give a number of layers, or leave it out"),
        ({"latent": {"target_depth": ["x"]}}, "expected a list of whole numbers and nulls or null"),
        ({"latent": {"bta": 1}}, "did you mean training.latent.beta"),
    ],
)
def test_recipes(training: dict[str, Any], message: str) -> None:
    stack = {"norm": "pre"}
    latent = {} if training == {"latent": {}} else {"latent": {}}
    recipe = {
        "task": "translation",
        "data": {"train": "x.tsv"},
        "model": {"width": 8, "encoder": stack, "decoder": stack, **latent},
        "training": {"max_updates": 1, **training},
    }
    with pytest.raises(ConfigError) as raised:
        parse(recipe)
    assert message in str(raised.value)
