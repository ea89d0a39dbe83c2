"""The recipes of Elbayad et al. (2020), "Depth-Adaptive Transformer": the paper's settings, and what each row changes.

Names are ``dat-DATA-ROW``: ``decoder-N`` is a model trained by itself, ``aligned...`` and ``mixed-M`` have exits,
``KIND-ORACLE`` follows the aligned model as a second phase, in which all of it learns on or, ``-frozen``, only the
policy does.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from depthwise.config import (
    ExitTrainingConfig,
    ModelConfig,
    Recipe,
    StackConfig,
    TrainingConfig,
    built_in,
    merged,
    model_options,
    parse_model,
    parse_policy,
    read_recipe,
)
from depthwise.models.configuration import DepthwiseConfig
from depthwise.tasks.build import TASKS

NUM_LAYERS = 6
SETS = {
    "iwslt14": ("translation/iwslt14-transformer", 512, 1024, 4, 1),
    "wmt14-en-fr": ("translation/wmt14-en-fr-transformer", 1024, 4096, 16, 8),
    "iwslt14_part": ("translation/iwslt14_part-transformer", 512, 1024, 4, 1),
    "multi30k": ("translation/dat-multi30k-decoder-6", 128, 256, 4, 1),
}
"""The ordinary model of each set, its width, inner width, heads, and the GPUs of its command."""
AT_HAND = ("iwslt14_part", "multi30k")
KINDS = {"sequence": "sequence", "token": "token", "poisson": "poisson_binomial"}
POLICIES = [f"{kind}-{oracle}" for kind in KINDS for oracle in ("likelihood", "correctness")]
BEST = "poisson-correctness"
WEIGHTS = {"linear": "linear", "sqrt": "sqrt", "inverse-sqrt": "inverse_sqrt", "inverse": "inverse"}
WEIGHED = [f"aligned-{row}" for row in WEIGHTS]
ABLATIONS = [*WEIGHED, *(f"aligned-{row}" for row in ("gradients", "separate", "subset"))]
DISTILLED = "aligned-distilled"
SKIPPING = "aligned-layerskip"
MIXERS = ("lightconv", "dynamicconv")
MIXED = ("mixed-1", "mixed-3", "mixed-6")
SMALL = (*MIXED, *(f"{row}-frozen" for row in POLICIES), BEST, "confidence-frozen", DISTILLED)
ROWS = {
    "iwslt14": (*ABLATIONS, *MIXED, *POLICIES, f"{BEST}-frozen", f"{BEST}-joint"),
    "wmt14-en-fr": tuple(POLICIES),
    "iwslt14_part": (*SMALL, *WEIGHED, SKIPPING, *(f"aligned-{mixer}" for mixer in MIXERS)),
    "multi30k": SMALL,
}
"""Those beside ``aligned`` and the shallow models, which every set has."""
RECIPES = {known.name: known for known in built_in() if known.name.startswith("translation/dat-")}
CASES = [
    (data, name.removeprefix(f"translation/dat-{data}-"))
    for name in RECIPES
    for data in SETS
    if name.startswith(f"translation/dat-{data}-")
]
SHALLOW = [case for case in CASES if case[1].startswith("decoder-")]
WITH_EXITS = [case for case in CASES if case not in SHALLOW]
SECOND = [(data, row) for data, row in WITH_EXITS if not row.startswith(("aligned", "mixed")) and "joint" not in row]


@cache
def read(name: str) -> Recipe:
    return read_recipe(name)


def recipe_of(data: str, row: str) -> Recipe:
    return read(f"translation/dat-{data}-{row}")


def trained_in(folder: str) -> Recipe:
    """The recipe whose command leaves its run there."""
    (name,) = (name for name, known in RECIPES.items() if known.facts["command"].endswith(f"--out {folder}"))
    return read(name)


def ordinary_of(data: str, row: str) -> Recipe:
    """What a model with exits is compared with: the one without, of the same mixer."""
    mixer = row.removeprefix("aligned-")
    return read(f"translation/{data}-{mixer}" if mixer in MIXERS else SETS[data][0])


def options_of(recipe: Recipe) -> ModelConfig:
    """The options of a model, those of the run that it goes on from included."""
    given = dict(recipe.model)
    first = given.pop("from", None)
    options = model_options(given)
    if first is not None:
        options = merged(model_options(trained_in(first).model), options)
    return parse_model({"vocab_size": 10_000, **options})


def sides(model: ModelConfig) -> tuple[StackConfig, StackConfig]:
    assert model.encoder is not None
    assert model.decoder is not None
    return model.encoder, model.decoder


def exits_of(recipe: Recipe) -> ExitTrainingConfig:
    assert recipe.training.exits is not None
    return recipe.training.exits


def like(training: TrainingConfig, **changes: Any) -> TrainingConfig:
    return replace(training, exits=None, **changes)


def test_every_row_has_a_recipe() -> None:
    for data, rows in ROWS.items():
        shallow = [f"decoder-{num_layers}" for num_layers in range(1, 7 if data == "multi30k" else NUM_LAYERS)]
        assert sorted(row for known, row in CASES if known == data) == sorted(["aligned", *shallow, *rows]), data
    assert len(CASES) == len(RECIPES)


@pytest.mark.parametrize(("data", "row"), CASES)
def test_headers(data: str, row: str) -> None:
    """Who has the data of the ordinary model has these; runs are named after recipes, and phases follow each other."""
    recipe, known = recipe_of(data, row), RECIPES[f"translation/dat-{data}-{row}"]
    ordinary, *_, num_gpus = SETS[data]
    assert recipe.data == read(ordinary).data
    start = f"torchrun --nproc-per-node {num_gpus} -m " if num_gpus > 1 else ""
    run = f"runs/dat-{data}-{row}"
    assert known.facts["command"] == f"{start}depthwise train {known.name} --out {run}"
    first = f"dat-{data}-aligned"
    assert recipe.model.get("from") == (f"runs/{first}" if (data, row) in SECOND else None)
    expected = f"{start}depthwise train translation/{first} --out runs/{first}" if (data, row) in SECOND else None
    assert known.facts.get("first") == expected
    if (data, row) in WITH_EXITS:
        assert known.facts["then"].startswith(f"depthwise sweep {run}")
    beside = [part.split()[0] for part in known.facts.get("then", "").split("--beside ")[1:]]
    shallow = [f"runs/dat-{data}-decoder-{num_layers}" for num_layers in range(1, NUM_LAYERS)]
    assert beside == (shallow if row == "aligned" else [])


@pytest.mark.parametrize("data", SETS)
def test_shapes(data: str) -> None:
    """Section 4 of the paper: six post-norm blocks on either side; Multi30k has a small model of the same depth."""
    ordinary, width, ffn_width, num_heads, _ = SETS[data]
    plain, aligned = options_of(read(ordinary)), options_of(recipe_of(data, "aligned"))
    assert plain.exits is None
    assert replace(aligned, exits=None) == plain
    assert aligned.width == width
    for side in sides(aligned):
        assert (side.num_layers, side.ffn_width, side.num_heads) == (NUM_LAYERS, ffn_width, num_heads)
        assert (side.mixer, side.norm) == ("attention", "post")
    assert aligned.exit_depths == (1, 2, 3, 4, 5, 6)
    assert aligned.exits is not None
    assert aligned.exits.heads == "tied"


@pytest.mark.parametrize(("data", "row"), SHALLOW)
def test_shallow_models(data: str, row: str) -> None:
    ordinary, recipe = read(SETS[data][0]), recipe_of(data, row)
    plain = options_of(ordinary)
    _, decoder = sides(plain)
    num_layers = int(row.removeprefix("decoder-"))
    assert options_of(recipe) == replace(plain, decoder=replace(decoder, num_layers=num_layers))
    assert recipe.training == ordinary.training


@pytest.mark.parametrize(("data", "row"), [case for case in WITH_EXITS if case not in SECOND])
def test_exits_are_trained_like_the_ordinary_model(data: str, row: str) -> None:
    ordinary, recipe = ordinary_of(data, row), recipe_of(data, row)
    goes_one_by_one = {"graphs": False, "half_states": False} if row == "aligned-gradients" else {}
    assert like(recipe.training) == like(ordinary.training, **goes_one_by_one)
    assert (recipe.generation, recipe.evaluation) == (ordinary.generation, ordinary.evaluation)


@pytest.mark.parametrize("data", SETS)
def test_aligned(data: str) -> None:
    assert exits_of(recipe_of(data, "aligned")) == ExitTrainingConfig(objective="aligned", weights="equal")


@pytest.mark.parametrize("data", AT_HAND)
def test_distilled(data: str) -> None:
    recipe = recipe_of(data, DISTILLED)
    assert exits_of(recipe) == ExitTrainingConfig(distill=0.5, distill_divergence="teacher")
    assert options_of(recipe) == options_of(recipe_of(data, "aligned"))


def test_blocks_left_out_at_random() -> None:
    recipe = recipe_of("iwslt14_part", SKIPPING)
    expected = ExitTrainingConfig(weights="inverse", layer_dropout="layerskip", layer_dropout_chance=0.2)
    assert exits_of(recipe) == expected
    assert options_of(recipe) == options_of(recipe_of("iwslt14_part", "aligned"))


@pytest.mark.parametrize("mixer", MIXERS)
def test_other_mixers(mixer: str) -> None:
    recipe = recipe_of("iwslt14_part", f"aligned-{mixer}")
    assert exits_of(recipe) == ExitTrainingConfig(objective="aligned", weights="equal")
    model = options_of(recipe)
    assert replace(model, exits=None) == options_of(read(f"translation/iwslt14_part-{mixer}"))
    assert model.exit_depths == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("data", ["iwslt14", "iwslt14_part"])
@pytest.mark.parametrize(("row", "weights"), WEIGHTS.items())
def test_weights(data: str, row: str, weights: str) -> None:
    recipe = recipe_of(data, f"aligned-{row}")
    assert exits_of(recipe) == ExitTrainingConfig(weights=weights)
    assert options_of(recipe) == options_of(recipe_of(data, "aligned"))


@pytest.mark.parametrize(("data", "row"), [case for case in CASES if case[1] in MIXED])
def test_mixed(data: str, row: str) -> None:
    recipe = recipe_of(data, row)
    assert exits_of(recipe) == ExitTrainingConfig(objective="mixed", paths=int(row.removeprefix("mixed-")))
    assert options_of(recipe) == options_of(recipe_of(data, "aligned"))


def test_gradients_heads_and_subsets() -> None:
    recipe = recipe_of("iwslt14", "aligned-gradients")
    assert exits_of(recipe) == ExitTrainingConfig(gradient_scale=0.5)
    notes = RECIPES["translation/dat-iwslt14-aligned-gradients"].facts["notes"]
    assert all(str(gamma) in notes for gamma in (0.3, 0.5, 0.7, 0.9, 1.1))
    separate, subset = (options_of(recipe_of("iwslt14", f"aligned-{row}")) for row in ("separate", "subset"))
    assert separate.exits is not None
    assert (separate.exits.heads, separate.exit_depths) == ("separate", (1, 2, 3, 4, 5, 6))
    assert subset.exit_depths == (2, 4, 6)


@pytest.mark.parametrize(("data", "row"), [*SECOND, ("iwslt14", f"{BEST}-joint")])
def test_policies(data: str, row: str) -> None:
    recipe = recipe_of(data, row)
    model = options_of(recipe)
    assert model.policy is not None
    policy: Any = parse_policy(model.policy)
    kind, _, oracle = row.removesuffix("-frozen").removesuffix("-joint").partition("-")
    if kind == "confidence":
        assert policy.kind == "learned_confidence"
    else:
        assert (policy.kind, policy.oracle) == (KINDS[kind], oracle)
        assert (policy.never_correct, policy.detach_features) == ("first", False)
        assert (policy.penalty > 0) == (oracle == "likelihood" or kind == "sequence")
        assert getattr(policy, "smoothing", 0) == 0
    if kind == "poisson":
        assert (policy.shared, policy.decision, policy.threshold) == (False, "step", 0.5)
    is_frozen = row.endswith("-frozen")
    assert exits_of(recipe) == ExitTrainingConfig(freeze=is_frozen)  # α is 1, as everywhere


@pytest.mark.parametrize(("data", "row"), SECOND)
def test_the_second_phase(data: str, row: str) -> None:
    """It begins where the rates of the first have come to, and what is frozen has no dropout."""
    recipe, first = recipe_of(data, row), recipe_of(data, "aligned")
    model, before = options_of(recipe), options_of(first)
    is_frozen = row.endswith("-frozen")
    for side, earlier in zip(sides(model), sides(before), strict=True):
        quiet = {"dropout": 0.0, "attention_dropout": 0.0} if is_frozen else {}
        assert side == replace(earlier, **quiet)
    training, then = first.training, recipe.training
    assert training.max_updates is not None
    assert then.max_updates is not None
    assert then.max_updates <= training.max_updates / 4
    named = {"optimizer": training.optimizer, "schedule": training.schedule}
    rest = {"max_updates": training.max_updates, "average": training.average, "exits": training.exits}
    assert replace(then, **named, **rest) == training
    assert {**then.optimizer, "lr": training.optimizer["lr"]} == training.optimizer
    assert {**then.schedule, "warmup": training.schedule["warmup"]} == training.schedule
    if not is_frozen:
        assert then.optimizer["lr"] <= training.optimizer["lr"] / 3


def built(model: ModelConfig) -> nn.Module:
    with torch.device("meta"):
        return TASKS["translation"].model_class(DepthwiseConfig.from_options(model))


@cache
def num_ordinary(data: str, row: str) -> int:
    return num_parameters(options_of(ordinary_of(data, row)))


def num_parameters(model: ModelConfig) -> int:
    return sum(param.numel() for param in built(model).parameters())


@pytest.mark.parametrize(("data", "row"), WITH_EXITS)
def test_parameters(data: str, row: str) -> None:
    """Exits cost nothing where heads are tied, a matrix each where they are not, and a policy a few rows."""
    model = options_of(recipe_of(data, row))
    extra = num_parameters(model) - num_ordinary(data, row)
    policy = None if model.policy is None else model.policy["kind"]
    width, num_exits = model.width, len(model.exit_depths)
    assert (
        extra
        == {
            None: (num_exits - 1) * model.vocab_size * width if row == "aligned-separate" else 0,
            "sequence": (width + 1) * num_exits,
            "token": (width + 1) * num_exits,
            "poisson_binomial": (width + 1) * (num_exits - 1),
            "learned_confidence": width + 1,
        }[policy]
    )


@pytest.mark.parametrize(("data", "row"), SHALLOW)
def test_shallow_models_build(data: str, row: str) -> None:
    model: Any = built(options_of(recipe_of(data, row)))
    assert len(model.model.decoder.stack.layers) == int(row.removeprefix("decoder-"))
