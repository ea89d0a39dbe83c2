"""The recipes of Li et al. (2020), "Deep Transformers with Latent Depth": the paper's settings, and what rows change.

Names are ``latent-DATA-ROW``, where a row is the layers of both sides behind those that are latent: ``decoder-12-24``.
"""

import pytest
import torch

from depthwise.config import ModelConfig, Recipe, built_in, model_options, parse_model, read_recipe
from depthwise.config.latent import latent_problems
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.tasks.multilingual import language_pairs

NAMES = sorted(recipe.name for recipe in built_in() if "/latent-" in recipe.name)
WEIGHTS = {"no-kl": 0.0, "neither": 0.0, "beta-10": 10.0}
"""Of the divergence, as the released code counts it, where it is not 1, or 0.1 in small trials."""
SIDES = {"encoder": ("encoder",), "decoder": ("decoder",), "both": ("encoder", "decoder")}


def options(recipe: Recipe, vocab_size: int = 1000) -> ModelConfig:
    return parse_model({**model_options(recipe.model), "vocab_size": vocab_size})


def test_every_table_has_its_rows() -> None:
    assert len(NAMES) == 81
    assert {"multilingual/latent-ted8-diverse-o2m-decoder-12-100", "multilingual/latent-tatoeba-12-12"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_names_say_what_models_are(name: str) -> None:
    recipe = read_recipe(name)
    model, parts = options(recipe), name.split("/")[1].split("-")
    sides = next((SIDES[part] for part in parts if part in SIDES), ())
    if recipe.task != "masked_language_modeling":
        numbers = [int(part) for part in parts if part.isdigit()][:2]
        assert [model.encoder.num_layers, model.decoder.num_layers] == numbers
        assert (() if model.latent is None else model.latent.sides) == sides
    if model.latent is None:
        return
    assert recipe.training.latent is not None
    if "aggregated" not in parts:
        assert not list(latent_problems(recipe.training.latent, model))
    num_layers = getattr(model, (sides or ("encoder",))[-1]).num_layers
    weight = next((given for part, given in WEIGHTS.items() if f"-{part}-" in f"{name}-"), 1.0)
    if parts[1] in ("tatoeba", "multi30k", "wikitext2") and "beta" not in parts:
        weight *= 0.1
    assert recipe.training.latent.beta == pytest.approx(weight / num_layers, rel=0.02)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("masked_language_modeling/")])
def test_many_small_layers_are_recorded(name: str) -> None:
    """The published sizes are for several processes, which record nothing."""
    assert read_recipe(name).training.graphs == ("wikitext2" in name)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("multilingual/")])
def test_every_update_has_all_pairs(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.data.rounds != recipe.data.mixed
    assert recipe.training.accumulate == (len(language_pairs(recipe.data)) if recipe.data.rounds else 1)


@pytest.mark.parametrize(
    ("row", "millions"),
    [("decoder-12-24", 135), ("decoder-12-48", 211), ("both-36-36", 224), ("both-48-48", 287), ("both-64-64", 371)],
)
def test_sizes_of_table_1(row: str, millions: int) -> None:
    model = options(read_recipe(f"translation/latent-wmt16-en-de-{row}"), 34_000)
    with torch.device("meta"):
        made = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(model))
    assert sum(param.numel() for param in made.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(("num_layers", "millions"), [(24, 202), (48, 372), (96, 712)])
def test_sizes_of_table_2(num_layers: int, millions: int) -> None:
    model = options(read_recipe(f"masked_language_modeling/latent-wiki25-static-{num_layers}"), 40_000)
    with torch.device("meta"):
        made = DepthwiseForMaskedLM(DepthwiseConfig.from_options(model))
    assert sum(param.numel() for param in made.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


def test_ablations_change_one_thing() -> None:
    """The entropy goes with the wanted depth, as in the released code: by itself it would open every layer.

    Where the prior does not pull gates away from 1, it has half of its weight: it would hold them there else."""
    base = read_recipe("multilingual/latent-tatoeba-decoder-12-24").training.latent
    assert base is not None
    found = {}
    for name in NAMES:
        row = name.removeprefix("multilingual/latent-tatoeba-decoder-12-24-")
        if row != name:
            latent = read_recipe(name).training.latent
            assert latent is not None
            found[row] = {key for key in vars(base) if getattr(latent, key) != getattr(base, key)}
    assert found == {
        "no-kl": {"beta", "sharing_weight"},
        "no-target": {"target_depth", "sharing_weight"},
        "neither": {"beta", "target_depth", "sharing_weight"},
        "beta-1": {"beta"},
        "beta-10": {"beta"},
        "aggregated": {"prior", "sharing_weight"},
        "inner-1": {"inner_updates"},
        "inner-5": {"inner_updates"},
        "inner-10": {"inner_updates"},
    }
