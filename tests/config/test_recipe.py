"""Recipes: what may be written, and that everything wrong with one is said at once."""

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from depthwise.config import Recipe, model_options, parse_model, parse_recipe, preset, recipe_dict, with_vocabulary
from depthwise.config.recipe_parsing import RULES, merged
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
    assert found["model.preset"].endswith("did you mean iwslt-lightconv?")


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
        ({"training": {"max_updates": 1, "half_states": True, "precision": "bf16"}}, "training.half_states"),
        (
            {"training": {"max_updates": 1, "half_states": True, "graphs": True, "precision": "fp32"}},
            "training.half_states",
        ),
        ({"training": {"max_updates": 1, "half_states": 16}}, "training.half_states"),
        ({"data": {"train": ["a", "b", "c"]}}, "data.train"),
        ({"data": {"train": 123}}, "data.train"),
        ({"training": {"max_updates": 1, "max_epochs": 0}}, "training.max_epochs"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**31}, "seed"),
        ({"model": {"preset": ["iwslt-lightconv"]}}, "model.preset"),
        ({"model": {"size": 3}}, "model.size"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], option: str) -> None:
    assert set(problems({**SMALL, **changes})) == {option}


def test_what_half_states_need() -> None:
    training = {"max_updates": 1, "half_states": True}
    assert "set training.graphs=true" in problems({**SMALL, "training": {**training, "precision": "fp16"}}).popitem()[1]
    found = problems({**SMALL, "training": {**training, "graphs": True, "precision": "fp32"}})
    assert "set training.precision=fp16 or bf16" in found["training.half_states"]
    for precision in ("auto", "bf16", "fp16"):
        recipe = parse_recipe({**SMALL, "training": {**training, "graphs": True, "precision": precision}})
        assert recipe.training.half_states


@pytest.mark.parametrize("value", [5, None, "adam", ["adam"]])
@pytest.mark.parametrize("name", ["optimizer", "schedule"])
def test_optimisers_and_schedules_are_mappings(name: str, value: Any) -> None:
    found = problems({**SMALL, "training": {"max_updates": 1, name: value}})
    assert set(found) == {f"training.{name}"}
    assert found[f"training.{name}"].startswith("expected a mapping, got ")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize(
    "option",
    [
        *("training.max_epochs", "training.clip_norm", "training.label_smoothing"),
        *("generation.max_factor", "generation.length_penalty", "generation.null_threshold"),
    ],
)
def test_numbers_are_finite(option: str, value: float) -> None:
    section, name = option.split(".")
    assert set(problems({**SMALL, section: {**SMALL.get(section, {}), name: value}})) == {option}


def test_the_largest_seed() -> None:
    assert parse_recipe({**SMALL, "seed": 2**31 - 1}).seed == 2**31 - 1


STACK = {"mixer": "attention", "num_layers": 1}


@pytest.mark.parametrize(
    ("task", "model", "messages"),
    [
        ("translation", {"preset": "iwslt-transformer", "decoder": None}, {"decoder": "is missing, but the model of"}),
        ("summarization", {"encoder": STACK}, {"decoder": "has an encoder and a decoder; add one"}),
        ("multilingual_translation", {"size": "tiny", "decoder": None}, {"decoder": "is missing"}),
        ("translation", {"from": "runs/other", "encoder": None}, {"encoder": "is missing"}),
        ("text_classification", {"preset": "iwslt-lightconv"}, {"decoder": "is given, but the model of text_class"}),
        ("tagging", {"encoder": STACK, "decoder": STACK}, {"decoder": "has an encoder alone; set it to null"}),
        ("question_answering", {"size": "tiny", "decoder": {"dropout": 0.1}}, {"decoder": "is given"}),
        ("language_modeling", {"encoder": STACK}, {"encoder": "has a decoder alone", "decoder": "is missing"}),
        ("masked_language_modeling", {}, {"encoder": "is missing"}),
    ],
)
def test_the_sides_that_a_task_needs(task: str, model: dict[str, Any], messages: dict[str, str]) -> None:
    found = problems({"task": task, "model": model, "training": {"max_updates": 1}})
    assert set(found) == {f"model.{side}" for side in messages}
    for side, message in messages.items():
        assert message in found[f"model.{side}"]


@pytest.mark.parametrize("task", ["translation", "tagging", "language_modeling"])
@pytest.mark.parametrize("origin", [{"size": "auto"}, {"from": "runs/other"}])
def test_sides_that_another_decides(task: str, origin: dict[str, Any]) -> None:
    parse_recipe({"task": task, "model": origin, "training": {"max_updates": 1}})


@pytest.mark.parametrize("origin", ["preset", "size", "from"])
def test_an_origin_of_null_is_none(origin: str) -> None:
    model = {"encoder": STACK, "decoder": STACK}
    assert parse_recipe({**SMALL, "model": {**model, origin: None}}).model == model
    other = parse_recipe({**SMALL, "model": {"preset": "iwslt-lightconv", "size": None}}).model
    assert other == {"preset": "iwslt-lightconv"}


@pytest.mark.parametrize("origin", [{"size": "auto"}, {"from": "runs/other"}])
@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"encoder": {"num_heads": 3}}, set()),
        ({"encoder": {"num_heads": 3, "mixer": "attention"}, "width": 64}, {"model.encoder.num_heads"}),
        ({"encoder": {"kernel_sizes": [3, 5, 7]}}, set()),
        ({"encoder": {"kernel_sizes": [3, 5], "num_layers": 3, "mixer": "cnn"}}, {"model.encoder.kernel_sizes"}),
        ({"decoder": {"shared_layers": [0, 0, 1]}}, set()),
        ({"decoder": {"glu": True}}, set()),
        ({"decoder": {"glu": True, "mixer": "attention"}}, {"model.decoder.glu"}),
        ({"vocab_size": "many", "encoder": {"positions": "learned"}}, {"model.vocab_size"}),
    ],
)
def test_only_what_is_decided_must_agree(origin: dict[str, Any], options: dict[str, Any], wrong: set[str]) -> None:
    recipe = {**SMALL, "model": {**origin, **options}}
    assert (set(problems(recipe)) if wrong else parse_recipe(recipe) and set()) == wrong


def test_sections_beside_another_run_are_parts_of_its_own() -> None:
    """A size knows nothing of them, so that they have to be whole there."""
    model = {"from": "runs/other", "structure": {"temperature": 3}, "encoder": {"relative": {"max_distance": 4}}}
    assert parse_recipe({**SMALL, "model": model}).model == model
    assert set(problems({**SMALL, "model": {**model, "structure": {"temperature": 0}}})) == {
        "model.structure.temperature"
    }
    sized = {"size": "auto", "structure": {"temperature": 3}}
    assert "required but missing" in problems({**SMALL, "model": sized})["model.structure.num_static"]


@pytest.mark.parametrize("cutoffs", [500, [500, 900]])
def test_cutoffs_are_judged_when_the_vocabulary_is_known(cutoffs: Any) -> None:
    model = {"decoder": STACK, "adaptive": {"cutoffs": cutoffs}}
    parse_recipe({"task": "language_modeling", "model": model, "training": {"max_updates": 1}})
    found = problems({"task": "language_modeling", "model": {"size": "tiny", "adaptive": {"cutoffs": "all"}}})
    assert set(found) == {"model.adaptive.cutoffs"}


def test_tags_and_questions_may_come_from_many_files() -> None:
    for task in ("tagging", "question_answering"):
        recipe = parse_recipe({"task": task, "data": {"train": ["a", "b", "c"]}})
        assert recipe.data.train == ("a", "b", "c")
    assert set(problems({"task": "tagging", "data": {"train": "a", "tag_scheme": "iob3"}})) == {"data.tag_scheme"}
    found = problems({"task": "question_answering", "data": {"train": "a", "stride": 0}})
    assert set(found) == {"data.stride"}


def test_changes_go_into_sections_and_another_kind_starts_afresh() -> None:
    base = {"training": {"optimizer": {"kind": "adam", "lr": 1.0, "betas": [0.9, 0.98]}, "seed": 1}}
    assert merged(base, {"training": {"optimizer": {"lr": 2.0}}})["training"] == {
        "optimizer": {"kind": "adam", "lr": 2.0, "betas": [0.9, 0.98]},
        "seed": 1,
    }
    other = merged(base, {"training": {"optimizer": {"kind": "lamb", "lr": 3.0}}})
    assert other["training"]["optimizer"] == {"kind": "lamb", "lr": 3.0}
    assert base["training"]["optimizer"]["lr"] == 1.0


def test_a_kind_of_tokenizer_leaves_its_other_options() -> None:
    base = {"tokenizer": {"kind": "word", "lowercase": True}}
    assert merged(base, {"tokenizer": {"kind": "bpe"}}) == {"tokenizer": {"kind": "bpe", "lowercase": True}}


def test_another_origin_of_a_model_takes_the_place_of_the_first() -> None:
    base = {"model": {"size": "auto", "width": 8}}
    assert merged(base, {"model": {"from": "runs/a"}})["model"] == {"from": "runs/a", "width": 8}
    assert merged(base, {"model": {"from": None}})["model"] == {"size": "auto", "width": 8, "from": None}


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
            for inner in (hint, *get_args(hint)):
                if is_dataclass(inner) and isinstance(inner, type):
                    collect(inner)

    collect(Recipe)
    assert set(RULES) <= names
    assert all(option.kw_only for option in fields(Recipe))


@pytest.mark.parametrize(
    ("changes", "option", "message"),
    [
        ({"data": {"train": "a", "pairs": ["en-de"]}}, "data.pairs", "has no effect on translation"),
        ({"generation": {"target": "de"}}, "generation.target", "only on multilingual_translation; leave it out"),
        (
            {"task": "tagging", "model": {"size": "tiny"}, "data": {"train": "a", "max_source_tokens": 9}},
            "data.max_source_tokens",
            "has no effect on tagging",
        ),
        ({"data": {"train": "a", "temperature": 5.0}}, "data.temperature", "only on multilingual_translation"),
        ({"evaluation": {"lead_sentences": 2}}, "evaluation.lead_sentences", "only on summarization"),
        ({"task": "summarization", "data": {"train": "a", "source": "text"}}, "data.target", "is missing"),
        ({"data": {"train": "a", "max_target_tokens": 1}}, "data.max_target_tokens", "1 is too small"),
        ({"evaluation": {"several_references": "worst"}}, "evaluation.several_references", "is none of best, mean"),
        ({"evaluation": {"lead_sentences": 0}}, "evaluation.lead_sentences", "0 is too small"),
        ({"tokenizer": {"language_token": "target"}}, "tokenizer.language_token", "is none of source, decoder, none"),
    ],
)
def test_options_of_single_tasks(changes: dict[str, Any], option: str, message: str) -> None:
    found = problems({**SMALL, **changes})
    assert set(found) == {option}
    assert message in found[option]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["en_de"], '"en_de" is no pair of languages; write it as en-de'),
        (["en-de-fr"], "is no pair of languages"),
        (["-de"], "is no pair of languages"),
        (["en-de", "en-de"], "names no pair, or one twice"),
        ([], "names no pair, or one twice"),
    ],
)
def test_pairs_of_languages(pairs: list[str], message: str) -> None:
    found = problems({**SMALL, "task": "multilingual_translation", "data": {"train": "a", "pairs": pairs}})
    assert message in found["data.pairs"]


def test_a_temperature_may_be_infinite() -> None:
    data = {"train": "a", "pairs": ["en-de"], "temperature": float("inf")}
    assert parse_recipe({**SMALL, "task": "multilingual_translation", "data": data}).data.temperature == float("inf")
    assert "data.temperature" in problems({**SMALL, "data": {"train": "a", "temperature": 0.0}})


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
