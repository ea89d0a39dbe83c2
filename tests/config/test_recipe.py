"""Recipes: what may be written, and that everything wrong with one is said at once."""

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest

from depthwise.config import Recipe, model_options, parse_model, parse_recipe, preset, recipe_dict, with_vocabulary
from depthwise.config.recipe import RULES, merged
from depthwise.errors import ConfigError

SMALL: dict[str, Any] = {
    "task": "translation",
    "data": {"train": "train", "valid": "valid", "source": "de", "target": "en"},
    "model": {"preset": "iwslt-lightconv"},
    "training": {"max_updates": 10},
}


def problems(options: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(options)
    return {problem.option: problem.message for problem in caught.value.problems}


def test_a_recipe_goes_through_plain_data_and_back() -> None:
    recipe = parse_recipe(SMALL)
    assert recipe.data.train == ("train",)
    assert recipe.training.max_updates == 10
    assert parse_recipe(recipe_dict(recipe)) == recipe


def test_all_problems_at_once_with_the_nearest_names() -> None:
    found = problems(
        {
            "task": "translatoin",
            "data": {"trian": "x", "source": "de"},
            "model": {"preset": "iwslt-lightcnov"},
            "training": {"max_update": 5, "batch_tokens": 0, "precision": "fp8", "clip_norm": "much"},
            "generation": {"num_beams": 0},
            "seeds": 3,
        }
    )
    assert found["task"].endswith("did you mean translation?")
    assert found["data.trian"] == "unknown option; did you mean data.train?"
    assert found["training.max_update"] == "unknown option; did you mean training.max_updates?"
    assert "0 is too small" in found["training.batch_tokens"]
    assert "is none of auto, fp32, bf16, fp16" in found["training.precision"]
    assert found["training.clip_norm"] == 'expected a number, got "much"'
    assert "0 is too small" in found["generation.num_beams"]
    assert found["seeds"] == "unknown option; did you mean seed?"
    assert "is no preset" in found["model.preset"]


def test_an_option_in_the_wrong_section_is_shown_its_place() -> None:
    assert problems({**SMALL, "num_beams": 4}) == {"num_beams": "unknown option; did you mean generation.num_beams?"}


def test_problems_of_the_model_come_with_the_others() -> None:
    found = problems({**SMALL, "model": {"preset": "iwslt-lightconv", "encoder": {"kernel_sizes": 4}, "widht": 3}})
    assert set(found) == {"model.encoder.kernel_sizes", "model.widht"}


def test_how_long_to_train_must_be_said_unless_a_size_decides() -> None:
    assert "say how long" in problems({**SMALL, "training": {}})["training.max_updates"]
    parse_recipe({**SMALL, "training": {}, "model": {"size": "auto"}})


@pytest.mark.parametrize("origin", [{"size": "auto"}, {"from": "runs/other"}])
@pytest.mark.parametrize("mixer", ["attention", "lightconv", "dynamicconv", "cnn", "average"])
def test_options_beside_a_size_or_another_run(origin: dict[str, Any], mixer: str) -> None:
    parse_recipe({**SMALL, "model": {**origin, "encoder": {"mixer": mixer}, "decoder": {"mixer": mixer}}})
    found = problems({**SMALL, "model": {**origin, "encoder": {"mixer": mixer, "dropout": 2}}})
    assert set(found) == {"model.encoder.dropout"}


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"training": {"max_updates": 1, "select": "best"}, "data": {"train": "a"}}, "training.select"),
        ({"data": {"train": "a", "source": "de"}}, "data.target"),
        ({"tokenizer": {"path": "x", "codes": "y"}}, "tokenizer.codes"),
        ({"model": {"size": "huge"}}, "model.size"),
        ({"model": {"size": "tiny", "preset": "iwslt-lightconv"}}, "model.size"),
        ({"training": {"max_updates": 1, "optimizer": {"lr": 1}}}, "training.optimizer"),
        ({"training": {"max_updates": 1, "report": ["paper"]}}, "training.report"),
        ({"data": {"train": ["a", "b", "c"]}}, "data.train"),
        ({"training": {"max_updates": 1, "max_epochs": 0}}, "training.max_epochs"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], option: str) -> None:
    assert set(problems({**SMALL, **changes})) == {option}


def test_changes_go_into_sections_and_another_kind_starts_afresh() -> None:
    base = {"training": {"optimizer": {"kind": "adam", "lr": 1.0, "betas": [0.9, 0.98]}, "seed": 1}}
    assert merged(base, {"training": {"optimizer": {"lr": 2.0}}})["training"] == {
        "optimizer": {"kind": "adam", "lr": 2.0, "betas": [0.9, 0.98]},
        "seed": 1,
    }
    other = merged(base, {"training": {"optimizer": {"kind": "lamb", "lr": 3.0}}})
    assert other["training"]["optimizer"] == {"kind": "lamb", "lr": 3.0}
    assert base["training"]["optimizer"]["lr"] == 1.0


def test_a_preset_with_changes() -> None:
    options = model_options({"preset": "iwslt-lightconv", "encoder": {"dropout": 0.5}})
    model = parse_model(options)
    assert model.encoder is not None
    assert (model.encoder.dropout, model.encoder.num_layers) == (0.5, 7)
    assert preset("iwslt-lightconv").encoder != model.encoder


def test_vocabularies_come_from_the_tokenizers() -> None:
    joint = with_vocabulary({"encoder": {}, "decoder": {}}, 100, 100)
    assert (joint.vocab_size, joint.source_vocab_size) == (100, None)
    separate = with_vocabulary({"encoder": {}, "decoder": {}, "tied_embeddings": "decoder"}, 90, 100)
    assert (separate.vocab_size, separate.source_vocab_size) == (100, 90)
    with pytest.raises(ConfigError, match="tied_embeddings"):
        with_vocabulary({"encoder": {}, "decoder": {}}, 90, 100)


def test_every_rule_is_about_an_option_that_exists() -> None:
    names = set()

    def collect(kind: type[Any]) -> None:
        for name, hint in get_type_hints(kind).items():
            names.add(name)
            if is_dataclass(hint) and isinstance(hint, type):
                collect(hint)

    collect(Recipe)
    assert set(RULES) <= names
    assert all(option.kw_only for option in fields(Recipe))


def test_sections_of_language_models() -> None:
    """A size stands for a decoder where the task is language modelling, so that bands can be chosen beside it."""
    parse_recipe({"task": "language_modeling", "model": {"size": "tiny", "adaptive": {"cutoffs": [500]}}})
    with pytest.raises(ConfigError) as caught:
        parse_recipe(
            {
                "task": "masked_language_modeling",
                "model": {"size": "tiny", "adaptive": {"cutoffs": [500]}},
                "data": {"form": "pages", "empty_lines": "drop"},
                "evaluation": {"context": 0},
                "masking": {"rate": 0.0, "units": "letters", "max_ngram": 0, "mask_share": 1.5, "random_share": -0.1},
            }
        )
    assert sorted(problem.option for problem in caught.value.problems) == [
        *("data.empty_lines", "data.form", "evaluation.context"),
        *("masking.mask_share", "masking.max_ngram", "masking.random_share", "masking.rate", "masking.units"),
        "model.adaptive",
    ]
