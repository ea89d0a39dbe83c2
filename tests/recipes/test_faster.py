"""The recipes of Liu et al. (2021), "Faster Depth-Adaptive Transformers": what each changes of the ordinary one."""

from dataclasses import replace

import pytest

from depthwise.config import built_in, merged, parse_model, read_recipe

SETS = ("agnews", "amazon16", "imdb", "mr", "sst2", "trec")
ALONE = ("dbpedia", "subj", "yelp_f", "yelp_p")
"""Sets that have no other recipe."""
RECIPES = {known.name: known for known in built_in() if known.name.startswith("classification/faster-")}
MINILM = {"vocab_size": 100, "width": 8, "pooling": "first_tanh", "encoder": {"num_layers": 6, "num_heads": 2}}
"""What is asked of the encoder that recipes start from."""


def name_of(data: str) -> str:
    return f"classification/faster-{data}-mi"


def test_every_set_has_a_recipe() -> None:
    assert sorted(RECIPES) == sorted(name_of(data) for data in (*SETS, *ALONE))


@pytest.mark.parametrize("data", ALONE)
def test_sets_without_another_recipe(data: str) -> None:
    recipe, plain = read_recipe(name_of(data)), read_recipe("classification/finetune")
    assert recipe.data.train == (f"data/{data}/train.tsv",)
    assert recipe.model == {**plain.model, "pooling": "max_mean", "word_depths": {"estimator": "mutual_information"}}
    changed = replace(recipe.training, clip_norm=plain.training.clip_norm, max_epochs=plain.training.max_epochs)
    assert changed == plain.training
    assert RECIPES[name_of(data)].facts["command"] == f"depthwise train {name_of(data)} --out runs/faster-{data}-mi"


def test_the_masked_model_guesses_after_every_block() -> None:
    recipe = read_recipe("masked_language_modeling/anytime", ["data.train=a.tsv", "data.valid=b.tsv"])
    options = parse_model(merged(MINILM, {name: value for name, value in recipe.model.items() if name != "from"}))
    assert options.exit_depths == (1, 2, 3, 4, 5, 6)
    assert options.exits is not None
    assert options.exits.heads == "tied"
    assert recipe.masking.units == "words"
    assert recipe.training.graphs


@pytest.mark.parametrize("data", SETS)
def test_what_changes(data: str) -> None:
    recipe, plain = read_recipe(name_of(data)), read_recipe(f"classification/{data}")
    assert replace(recipe, model=plain.model, training=plain.training) == plain
    assert replace(recipe.training, clip_norm=plain.training.clip_norm) == plain.training
    assert recipe.training.clip_norm == 5.0
    assert recipe.model["from"] == plain.model["from"]
    options = parse_model(merged(MINILM, {name: value for name, value in recipe.model.items() if name != "from"}))
    assert options.pooling == "max_mean"
    assert options.word_depths is not None
    assert options.word_depths.estimator == "mutual_information"


@pytest.mark.parametrize("data", SETS)
def test_headers(data: str) -> None:
    known = RECIPES[name_of(data)]
    run = f"runs/faster-{data}-mi"
    assert known.facts["command"] == f"depthwise train {known.name} --out {run}"
    assert known.facts["then"] == f"depthwise evaluate {run}"
    assert known.facts["data"] == f"as for classification/{data}"


@pytest.mark.parametrize("estimator", ["random", "frequency"])
def test_controls_are_changes(estimator: str) -> None:
    recipe = read_recipe(name_of("trec"), [f"model.word_depths.estimator={estimator}"])
    assert recipe.model["word_depths"] == {"estimator": estimator}
    assert read_recipe(name_of("trec"), ["model.word_depths=null"]).model["word_depths"] is None
    fixed = read_recipe(name_of("trec"), ["model.word_depths={estimator: fixed, depth: 3}"])
    assert fixed.model["word_depths"] == {"estimator": "fixed", "depth": 3}
