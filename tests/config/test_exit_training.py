"""The section ``training.exits``: what it says by itself, and what of a model it needs."""

from typing import Any

import pytest

from depthwise.config import ExitTrainingConfig, parse_model, parse_recipe, recipe_dict
from depthwise.config.exit_training import WEIGHTS, model_problems
from depthwise.depth.exit_weights import OMEGAS
from depthwise.errors import ConfigError

MODEL = {"width": 8, "decoder": {"num_layers": 3, "num_heads": 2, "norm": "post"}, "exits": {}}
RECIPE: dict[str, Any] = {"task": "language_modeling", "data": {"train": "a.txt"}}


def recipe_of(exits: Any, model: dict[str, Any] = MODEL) -> Any:
    return parse_recipe({**RECIPE, "model": model, "training": {"max_updates": 1, "exits": exits}})


def problems_of(exits: Any, model: dict[str, Any] = MODEL) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        recipe_of(exits, model)
    return [(problem.option, problem.message) for problem in caught.value.problems]


def test_it_may_be_left_out_or_given() -> None:
    assert recipe_of(None).training.exits is None
    assert recipe_of({}).training.exits == ExitTrainingConfig()
    given = {"weights": [1, 0.5, 2], "curriculum": "rotational", "curriculum_every": 3, "freeze": True}
    recipe = recipe_of(given)
    assert recipe.training.exits == ExitTrainingConfig(**{**given, "weights": (1, 0.5, 2)})
    assert parse_recipe(recipe_dict(recipe)) == recipe
    assert WEIGHTS == OMEGAS


@pytest.mark.parametrize("model", [{**MODEL, "exits": None}, {"size": "tiny"}])
def test_it_needs_exits(model: dict[str, Any]) -> None:
    assert problems_of({}, model) == [
        ("training.exits", "has no effect on a model without exits; set model.exits, or remove it")
    ]


def test_exits_of_another_run_are_not_known_yet() -> None:
    assert recipe_of({"freeze": True}, {"from": "runs/other"}).training.exits == ExitTrainingConfig(freeze=True)


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"objective": "mixt"}, "objective", "did you mean mixed?"),
        ({"weights": "cubic"}, "weights", "is none of equal, linear"),
        ({"weights": [0, 0, 0]}, "weights", "are no weights of exits"),
        ({"weights": [1, -1, 0]}, "weights", "are no weights of exits"),
        ({"weight_scale": 2.0}, "weight_scale", "has no effect without weights layerskip"),
        ({"curriculum": "steep"}, "curriculum", "is none of none, rotational, gradual"),
        ({"curriculum_every": 3}, "curriculum_every", "has no effect without curriculum rotational"),
        ({"curriculum_share": 0.3}, "curriculum_share", "has no effect without curriculum gradual"),
        ({"curriculum": "gradual", "curriculum_share": 0}, "curriculum_share", "0 is out of range"),
        ({"paths": 3}, "paths", "has no effect with objective aligned"),
        ({"objective": "mixed", "paths": 0}, "paths", "0 is too small"),
        ({"objective": "mixed", "weights": "linear"}, "weights", "has no effect with objective mixed"),
        ({"objective": "mixed", "distill": 1}, "distill", "has no effect with objective mixed"),
        ({"distill": 1.5}, "distill", "1.5 is out of range"),
        ({"distill": 0.5, "distill_divergence": "both"}, "distill_divergence", "is none of student, teacher"),
        ({"distill_divergence": "teacher"}, "distill_divergence", "has no effect without distill"),
        ({"objective": "mixed", "gradient_scale": 0.5}, "gradient_scale", "has no effect with objective mixed"),
        ({"gradient_scale": -0.5}, "gradient_scale", "-0.5 is too small"),
        ({"policy_weight": -1}, "policy_weight", "-1 is too small"),
        ({"layer_dropout": "all"}, "layer_dropout", "is none of none, layerdrop, layerskip"),
        ({"layer_dropout_chance": 0.1}, "layer_dropout_chance", "has no effect without layer_dropout"),
        ({"layer_dropout": "layerdrop", "layer_dropout_chance": 1}, "layer_dropout_chance", "is not a probability"),
        ({"layer_dropout": "layerdrop", "layer_dropout_grows": True}, "layer_dropout_grows", "with layer_dropout"),
        ({"weight": 1}, "weight", "did you mean training.exits.weights or training.teacher.weight?"),
    ],
)
def test_what_is_wrong_by_itself(options: dict[str, Any], option: str, message: str) -> None:
    ((found, said),) = problems_of(options)
    assert found == f"training.exits.{option}"
    assert message in said


@pytest.mark.parametrize(
    ("options", "model", "option", "message"),
    [
        ({"weights": (1, 2)}, {}, "weights", "2 weights for 3 exits; give one for each"),
        ({"objective": "mixed"}, {"policy": {"kind": "token"}}, "objective", "tokens that run the whole stack"),
        ({"policy_weight": 2}, {}, "policy_weight", "a model without a policy that learns"),
        ({"policy_weight": 2}, {"policy": {"kind": "patience", "patience": 1}}, "policy_weight", "has no effect"),
        ({"policy_weight": 2}, {"policy": {"kind": "uniform"}}, "policy_weight", "has no effect"),
        ({"freeze": True, "gradient_scale": 1}, {"exits": {"heads": "separate"}}, "gradient_scale", "are frozen"),
        ({"freeze": True}, {}, "freeze", "leaves nothing to train"),
    ],
)
def test_what_does_not_go_with_the_model(
    options: dict[str, Any], model: dict[str, Any], option: str, message: str
) -> None:
    ((found),) = model_problems(ExitTrainingConfig(**options), parse_model({"vocab_size": 9, **MODEL, **model}))
    assert found.option == option
    assert message in found.message


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ({"weights": (1, 2, 0)}, {}),
        ({"objective": "mixed", "paths": 3}, {"policy": {"kind": "confidence", "threshold": 0.5}}),
        ({"policy_weight": 2, "freeze": True}, {"policy": {"kind": "token"}}),
        ({"freeze": True}, {"exits": {"heads": "separate"}}),
        ({"freeze": True}, {"decoder": {**MODEL["decoder"], "norm": "pre"}}),
    ],
)
def test_what_does(options: dict[str, Any], model: dict[str, Any]) -> None:
    assert not list(model_problems(ExitTrainingConfig(**options), parse_model({"vocab_size": 9, **MODEL, **model})))
