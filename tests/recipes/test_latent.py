"""The recipes of Li et al. (2020), "Deep Transformers with Latent Depth": the paper's settings, and what rows change.

Names are ``latent-DATA-ROW``, where a row is the layers of both sides behind those that are latent: ``decoder-12-24``.
"""

import re

import pytest
import torch

from depthwise.config import ModelConfig, Recipe, built_in, model_options, parse_model, read_recipe
from depthwise.config.latent import latent_problems
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.tasks.multilingual import language_pairs

NAMES = sorted(recipe.name for recipe in built_in() if "/latent-" in recipe.name)
TED = {"o2m": "6-6 wide-6-6 12-12 12-24 24-24 24-24-layerdrop decoder-12-24 decoder-24-24"}
TED["m2o"] = "6-6 12-12 24-12 24-24 24-24-layerdrop encoder-36-12 decoder-12-24 decoder-12-36 decoder-24-24 both-24-24"
ABLATIONS = "no-kl no-target neither beta-1 beta-10 aggregated inner-1 inner-5 inner-10"
ROWS = {
    "Table 1": ("translation/latent-wmt16-en-de", "big-6-6 36-36-dense 48-48-dense decoder-12-24 decoder-12-48"),
    "Table 1, latent on both sides": ("translation/latent-wmt16-en-de", "both-36-36 both-48-48 both-64-64"),
    "Table 2": ("masked_language_modeling/latent-wiki25", "static-24 24 static-48 48 static-96 layerdrop-96 96"),
    "Table 3": ("multilingual/latent-ted8-related-o2m", TED["o2m"]),
    "Table 4": ("multilingual/latent-ted8-diverse-o2m", f"{TED['o2m']} decoder-12-100"),
    "Table 5": ("multilingual/latent-ted8-diverse-m2o", TED["m2o"]),
    "Table 5, related languages": ("multilingual/latent-ted8-related-m2o", TED["m2o"]),
    "Table 6": ("multilingual/latent-ted8-diverse-m2o-decoder-24-24", "beta-0 beta-10"),
    "Table 7": ("multilingual/latent-ted8-diverse-o2m-decoder-24-24", "no-target no-kl neither"),
    "Table 8": ("multilingual/latent-ted8-diverse-m2o", "24-15"),
    "Table 9": ("multilingual/latent-ted8-diverse-m2o-decoder-24-24", "inner-1 inner-5 inner-10"),
    "Table 12": ("translation/latent-wmt16-en-de", "12-12 both-24-24"),
    "Figure 4": ("multilingual/latent-ted8-diverse-o2m-decoder-24-24", "aggregated"),
    "Figure 8": ("multilingual/latent-ted8-related-o2m-decoder-24-24", "aggregated"),
    "small, of Table 2": (
        "masked_language_modeling/latent-wikitext2",
        "static-24 layerdrop-24 24 static-48 layerdrop-48 48",
    ),
    "small, one to many": (
        "multilingual/latent-tatoeba",
        "6-6 12-12 12-24 12-24-layerdrop decoder-12-24 6-12 6-12-no-norm 6-100 6-100-no-norm decoder-6-100 "
        "decoder-6-100-no-norm decoder-6-100-target",
    ),
    "small, ablations": ("multilingual/latent-tatoeba-decoder-12-24", ABLATIONS),
    "small, many to one": (
        "multilingual/latent-tatoeba-m2o",
        "6-6 wide-6-6 12-12 24-12 24-24 24-24-layerdrop 24-24-rezero 24-24-dense encoder-24-12 decoder-12-24 "
        "both-24-24",
    ),
    "small, from pictures": ("multilingual/latent-multi30k", "6-6 12-12 12-24 12-24-layerdrop decoder-12-24"),
    "small, from pictures into one": (
        "multilingual/latent-multi30k-m2o",
        "wide-6-6 12-12 24-24 24-24-layerdrop 24-24-rezero 24-24-dense encoder-24-12 decoder-12-24 both-24-24",
    ),
}
"""The names of all rows, behind what they have in common. Where a table has the row of another one, it has its recipe:
β = 1 of Table 6, all terms of Table 7 and I = 2 of Table 9 are in Tables 4 and 5."""
WEIGHTS = {"no-kl": 0.0, "neither": 0.0, "beta-0": 0.0, "beta-10": 10.0, "tatoeba-m2o-decoder-12-24": 0.0}
"""Of the divergence, as the released code counts it, where it is not 1, or 0.1 in small trials."""
SIDES = {"encoder": ("encoder",), "decoder": ("decoder",), "both": ("encoder", "decoder")}


MILLIONS = {"6-6": 63.6, "wide-6-6": 190, "12-12": 95.1, "12-24": 133, "24-24": 158}
"""Parameters of models of Table 3, by their layers."""


def _size(name: str) -> str:
    """The layers of both sides, and whether they are wide."""
    found = re.search(r"(?:wide-)?\d+-\d+", name)
    assert found is not None
    return found[0]


def options(recipe: Recipe, vocab_size: int = 1000) -> ModelConfig:
    return parse_model({**model_options(recipe.model), "vocab_size": vocab_size})


def test_every_table_has_its_rows() -> None:
    names = {table: {f"{common}-{row}" for row in rows.split()} for table, (common, rows) in ROWS.items()}
    assert set().union(*names.values()) == set(NAMES)
    titles = {recipe.name: recipe.title for recipe in built_in()}
    for table, of_table in names.items():
        for name in of_table:
            if not table.startswith("small"):
                assert re.search(rf"{table.split(',')[0]} of Li et al. \(2020\)", titles[name]), name


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
    [
        *(("big-6-6", 246), ("36-36-dense", 224), ("48-48-dense", 287), ("decoder-12-24", 135), ("decoder-12-48", 211)),
        *(("both-36-36", 224), ("both-48-48", 287), ("both-64-64", 371)),
    ],
)
def test_sizes_of_table_1(row: str, millions: int) -> None:
    """The 224 million that are printed for 48 and 48 dense layers are those of 36 and 36."""
    model = options(read_recipe(f"translation/latent-wmt16-en-de-{row}"), 34_000)
    with torch.device("meta"):
        made = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(model))
    assert sum(param.numel() for param in made.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", [name for name in NAMES if "/latent-ted8-" in name and _size(name) in MILLIONS])
def test_sizes_of_table_3(name: str) -> None:
    """With two tables of 31,300 types; models of Tables 4 and 5 are of the same sizes."""
    millions = MILLIONS[_size(name)]
    with torch.device("meta"):
        made = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(options(read_recipe(name), 31_300)))
    assert sum(param.numel() for param in made.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(("num_layers", "millions"), [(24, 202), (48, 372), (96, 712)])
def test_sizes_of_table_2(num_layers: int, millions: int) -> None:
    model = options(read_recipe(f"masked_language_modeling/latent-wiki25-static-{num_layers}"), 40_000)
    with torch.device("meta"):
        made = DepthwiseForMaskedLM(DepthwiseConfig.from_options(model))
    assert sum(param.numel() for param in made.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("diverse-m2o", {"beta-0": {"beta"}, "beta-10": {"beta"}}),
        ("diverse-m2o", {f"inner-{number}": {"inner_updates"} for number in (1, 5, 10)}),
        ("diverse-o2m", {"no-target": {"target_depth"}, "no-kl": {"beta"}, "neither": {"beta", "target_depth"}}),
        ("diverse-o2m", {"aggregated": {"prior"}}),
        ("related-o2m", {"aggregated": {"prior"}}),
    ],
)
def test_published_ablations_change_one_thing(base: str, changes: dict[str, set[str]]) -> None:
    """I = 2 is what rows of other tables have."""
    whole = read_recipe(f"multilingual/latent-ted8-{base}-decoder-24-24")
    assert whole.training.latent is not None
    assert whole.training.latent.inner_updates == 2
    for row, options_of_row in changes.items():
        recipe = read_recipe(f"multilingual/latent-ted8-{base}-decoder-24-24-{row}")
        assert recipe.model == whole.model
        found = {
            key for key, value in vars(whole.training.latent).items() if vars(recipe.training.latent)[key] != value
        }
        assert found == options_of_row
        if "inner" in row:
            assert recipe.training.latent.inner_updates == int(row.split("-")[1])


def test_dropped_layers_are_half_of_both_sides() -> None:
    for name in (name for name in NAMES if "ted8" in name and name.endswith("layerdrop")):
        model = options(read_recipe(name))
        assert (model.encoder.layer_dropout, model.decoder.layer_dropout) == (0.5, 0.5)


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
