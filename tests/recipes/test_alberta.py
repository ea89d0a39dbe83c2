"""Recipes of ALBERTa: pretraining in all sizes, and every task of the poster's tables."""

import pytest
import torch

from depthwise.config import ModelConfig, built_in, model_options, parse_model, read_recipe
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM

NAMES = sorted(recipe.name for recipe in built_in() if "/alberta-" in recipe.name)
PRETRAINING = [name for name in NAMES if name.startswith("masked_language_modeling/")]
TUNING = [name for name in NAMES if name not in PRETRAINING]
GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")


def options(name: str, *changes: str) -> ModelConfig:
    return parse_model({**model_options(read_recipe(name, changes).model), "vocab_size": 8000})


def test_all_are_there() -> None:
    assert {name.rpartition("/")[2] for name in PRETRAINING} == {
        f"alberta-{size}" for size in ("small", "small-fixed", "small-mean", "base", "large", "xlarge", "xxlarge")
    }
    assert {f"classification/alberta-{task}" for task in GLUE} < set(TUNING)
    assert {"answering/alberta-squad2", "tagging/alberta-conll2003", "tagging/alberta-small-conll2003"} < set(TUNING)


@pytest.mark.parametrize("name", PRETRAINING)
def test_pretraining_masks_ngrams_and_learns_order(name: str) -> None:
    recipe, model = read_recipe(name), options(name)
    assert recipe.masking.units == "ngrams"
    assert recipe.tokenizer.first_token
    assert model.sentence_order
    assert model.encoder is not None
    assert model.encoder.norm == "pre"
    assert model.encoder.relative is not None
    assert (model.structure is None) == name.endswith("-fixed")


@pytest.mark.parametrize("name", PRETRAINING)
def test_what_one_gpu_trains_is_recorded(name: str) -> None:
    """The others are for several processes, which record nothing."""
    assert read_recipe(name).training.graphs == ("-small" in name)


def test_the_small_one_is_small_and_its_fixed_counterpart_as_wide_and_deep() -> None:
    small, fixed = (options(f"masked_language_modeling/alberta-{name}") for name in ("small", "small-fixed"))
    assert small.encoder == fixed.encoder
    assert small.structure is not None
    assert (small.structure.num_static, small.exit_depths[-1]) == (2, 12)
    with torch.device("meta"):
        model = DepthwiseForMaskedLM(DepthwiseConfig.from_options(small))
    assert 9e6 < sum({id(weight): weight.numel() for weight in model.parameters()}.values()) < 11e6


@pytest.mark.parametrize(
    "change", ["model.structure.cumulative=false", "model.encoder.positions=none", "model.encoder.relative=null"]
)
def test_ablations_are_changes(change: str) -> None:
    name = "masked_language_modeling/alberta-small"
    assert options(name, change) != options(name)


@pytest.mark.parametrize("name", TUNING)
def test_tuning_begins_with_a_pretrained_encoder(name: str) -> None:
    begins = read_recipe(name).model["from"]
    assert begins == ("runs/alberta-small" if "-small-" in name else "runs/alberta-base")
    assert f"masked_language_modeling/{begins.removeprefix('runs/')}" in PRETRAINING
