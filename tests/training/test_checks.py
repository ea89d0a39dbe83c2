"""What of a recipe's training can be refused before its data is read."""

from typing import Any

import pytest

from depthwise.config import Recipe, TrainingConfig, built_in, parse_recipe, read_recipe
from depthwise.errors import ConfigError
from depthwise.training.checks import check_training

SCHEDULE = {"kind": "linear"}
OPTIMIZER = {"kind": "adam", "lr": 0.1}


def recipe_of(optimizer: Any = None, schedule: Any = None, **options: Any) -> Recipe:
    training = TrainingConfig(optimizer=optimizer or OPTIMIZER, schedule=schedule or SCHEDULE)
    return Recipe(task="tagging", training=training, **{"model": {"encoder": {}}, **options})


def problems(recipe: Recipe) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        check_training(recipe)
    return {problem.option: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("name", [recipe.name for recipe in built_in()])
def test_built_in_recipes_pass(name: str) -> None:
    check_training(read_recipe(name, ["data.train=x", "data.valid=y"]))


def test_defaults_pass() -> None:
    check_training(parse_recipe({"task": "tagging"}))


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "polynomial", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 10, 0.1, 0.0, 1e2])
def test_the_length_of_training_decides_the_rest(kind: str, warmup: float) -> None:
    check_training(recipe_of(schedule={"kind": kind, "warmup": warmup}))


def test_all_problems_at_once() -> None:
    optimizer = {"kind": "lamb", "lr": "abc", "betas": 0.9, "trust_bounds": [1], "decay_biases_and_norms": "maybe"}
    schedule = {"kind": "polynomial", "warmup": 1.5, "power": "z", "warm_up": 3, 5: 6}
    assert problems(recipe_of(optimizer, schedule)) == {
        "training.optimizer.lr": 'expected a number, got "abc"',
        "training.optimizer.betas": "expected a list of 2 numbers, got 0.9",
        "training.optimizer.trust_bounds": "expected a list of 2 numbers or null, got [1]",
        "training.optimizer.decay_biases_and_norms": 'expected a boolean (true or false), got "maybe"',
        "training.schedule.warmup": "expected a whole number, got 1.5",
        "training.schedule.power": 'expected a number, got "z"',
        "training.schedule.warm_up": "unknown option; did you mean warmup?",
        "training.schedule.5": "unknown option; polynomial takes total, warmup, power, init_lr, end_lr",
    }


def test_a_warmup_that_could_mean_either() -> None:
    found = problems(recipe_of(schedule={"kind": "linear", "warmup": 1.0}))
    assert found == {"training.schedule.warmup": "1.0 is no share of all updates below 1; give 1 for one update"}
    check_training(recipe_of(schedule={"kind": "linear", "warmup": 1}))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ([1], "expected text, got [1]"),
        (None, "expected text, got null"),
        ("lambs", '"lambs" is none of adam, adamw, nesterov, lamb; did you mean lamb?'),
    ],
)
def test_unknown_kinds(kind: Any, message: str) -> None:
    assert problems(recipe_of({"kind": kind, "lr": 1})) == {"training.optimizer.kind": message}
    assert set(problems(recipe_of({"kind": kind}, {"kind": kind}))) == {
        "training.optimizer.kind",
        "training.schedule.kind",
    }


def test_a_size_decides_the_learning_rate() -> None:
    check_training(recipe_of({"kind": "adam"}, model={"size": "tiny"}))
    assert problems(recipe_of({"kind": "adam"})) == {"training.optimizer.lr": "missing; adam cannot do without it"}


def test_recorded_passes_have_their_limits() -> None:
    model = {"decoder": {}, "adaptive": {"cutoffs": [10]}}
    others = {"compile": True, "shard": True}
    options = {"max_updates": 1, "graphs": True, **others, "optimizer": {"kind": "adam", "lr": 0.1}}
    recipe = parse_recipe({"task": "language_modeling", "model": model, "training": options})
    with pytest.raises(ConfigError) as caught:
        check_training(recipe)
    assert [problem.option for problem in caught.value.problems] == ["training.graphs"] * 3


@pytest.mark.parametrize("task", ["masked_language_modeling", "text_classification", "tagging", "question_answering"])
def test_passes_of_encoders_are_recorded(task: str) -> None:
    options = {"max_updates": 1, "graphs": True, "half_states": True}
    check_training(parse_recipe({"task": task, "model": {"encoder": {}}, "training": options}))
    recipe = parse_recipe({"task": task, "model": {"encoder": {}}, "training": {**options, "compile": True}})
    assert problems(recipe) == {"training.graphs": "is given beside training.compile; give one of them"}
