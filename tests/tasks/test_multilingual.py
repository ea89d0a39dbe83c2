"""Multilingual translation: what the model is told, batches and sums by pair, scores by pair and their mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depthwise.config import parse_recipe, recipe_yaml
from depthwise.data import BatchOptions, Example, LineReport
from depthwise.errors import ConfigError, DataError, InputError
from depthwise.evaluation.evaluating import aligned, read_examples
from depthwise.evaluation.validation import validate
from depthwise.metrics import SacreBleu
from depthwise.tasks import MultilingualTranslation, load_task, open_task

from .conftest import PAIRS, multilingual_of, multilingual_options, with_generation


@pytest.fixture(params=["source", "decoder"])
def task(tmp_path: Path, request: pytest.FixtureRequest) -> MultilingualTranslation:
    return multilingual_of(tmp_path, language_token=request.param)


@pytest.fixture
def many_to_one(tmp_path: Path) -> MultilingualTranslation:
    options = multilingual_options(tmp_path, language_token="none")
    options["data"]["pairs"] = ["xx-en", "yy-en"]
    task = open_task(parse_recipe(options), tmp_path / "run")
    assert isinstance(task, MultilingualTranslation)
    return task


@pytest.fixture
def of_sources(tmp_path: Path) -> MultilingualTranslation:
    """Many to one, with gates of its own in the encoder for each language that is translated."""
    options = multilingual_options(tmp_path, language_token="none")
    options["data"]["pairs"] = ["yy-en", "xx-en"]
    stack = {**options["model"]["encoder"], "norm": "pre"}
    options["model"] |= {"encoder": stack, "decoder": stack, "latent": {"per_language": True, "sides": ["encoder"]}}
    task = open_task(parse_recipe(options), tmp_path / "run")
    assert isinstance(task, MultilingualTranslation)
    return task


def targeted(task: MultilingualTranslation, target: str) -> MultilingualTranslation:
    """The same task made anew, as a run is with ``generation.target``."""
    generation = replace(task.recipe.generation, target=target)
    return MultilingualTranslation(replace(task.recipe, generation=generation), task.tokenizers)


def ids(task: MultilingualTranslation, text: str) -> list[int]:
    found: list[int] = task.tokenizers.source(text)["input_ids"]
    return found


def test_rows_of_training_and_of_prediction_tell_the_language_alike(task: MultilingualTranslation) -> None:
    stores, plain = task.examples("train"), ids(task, "a b")
    index = [stores.pair(number) for number in range(len(stores))].index("en-yy")
    learned = task.collate([stores[index]])
    (row,) = task.rows([("yy", "a b")])
    asked = task.collate([row])
    token = task.tokens["yy"]
    assert learned["input_ids"].tolist() == asked["input_ids"].tolist()
    if task.placement == "source":
        assert asked["input_ids"].tolist() == [[token, *plain]]
        assert "decoder_input_ids" not in learned
    else:
        assert asked["input_ids"].tolist() == [plain]
        assert asked["decoder_input_ids"].tolist() == [[token]]
        assert learned["decoder_input_ids"][0, 0] == token
    assert len(task.tokenizers.source) == task.options.vocab_size


def test_the_told_language_decides_what_is_written(task: MultilingualTranslation) -> None:
    model = task.new_model().eval()
    started: list[Any] = []
    generate = model.generate
    model.generate = lambda **options: started.append(generate(**options)) or started[-1]  # type: ignore[method-assign]
    batch = task.collate(task.rows([("xx", "a b"), ("yy", "a b")]))
    task.predict(model, batch)
    start = task.tokenizers.target.eos_token_id
    wanted = [task.tokens["xx"], task.tokens["yy"]] if task.placement == "decoder" else [start, start]
    assert started[0].sequences[:, 0].tolist() == wanted
    rows = task.scored_rows([("xx", "a b"), ("yy", "a b")], ["B A", "B A"])
    first, second = task.log_probabilities(model, rows)
    assert first != second
    together = task.predict(model, batch)
    alone = [task.predict(model, task.collate([row]))[0] for row in task.rows([("xx", "a b"), ("yy", "a b")])]
    assert [found.text for found in together] == [found.text for found in alone]


def test_lines_name_their_language_unless_it_is_named_for_all(task: MultilingualTranslation) -> None:
    assert (task.num_inputs, task.input_names) == (2, ("language", "text"))
    named = with_generation(task, target="yy")
    assert (named.num_inputs, named.input_names) == (1, ("text",))
    assert task.collate(task.rows([("yy", "a")])).keys() == named.collate(named.rows([("a",)])).keys()
    for name, value in task.collate(task.rows([("yy", "a")])).items():
        assert value.tolist() == named.collate(named.rows([("a",)]))[name].tolist()
    with pytest.raises(InputError, match="zz is no language of this model; it writes xx, yy"):
        task.rows([("zz", "a")])
    with pytest.raises(InputError, match="no language is named; it writes xx, yy"):
        task.rows([("a",)])


def test_batches_of_training_are_of_one_pair_and_drawn_by_temperature(task: MultilingualTranslation) -> None:
    stores = task.examples("train")
    options = BatchOptions(max_rows=1)
    assert task.batches_of(stores, options).batches_by_pair == {"en-xx": 4, "en-yy": 2}
    task.recipe = replace(task.recipe, data=replace(task.recipe.data, temperature=float("inf")))
    assert task.batches_of(stores, options).batches_by_pair == {"en-xx": 3, "en-yy": 3}
    valid = task.batches_of(stores, replace(options, order="sorted"))
    assert sorted(index for batch in valid for index in batch) == list(range(6))
    for batch in task.batches(stores):
        assert len({stores.pair(index) for index in batch}) == 1


def test_batches_that_mix_pairs_count_for_none(task: MultilingualTranslation) -> None:
    task.recipe = replace(task.recipe, data=replace(task.recipe.data, mixed=True))
    model, stores = task.new_model(), task.examples("train")
    (numbers,) = task.batches_of(stores, BatchOptions(max_rows=6))
    batch = task.collate([stores[number] for number in numbers])
    assert sorted(batch["pair"].tolist()) == [0, 0, 0, 0, 1, 1]
    losses, num_items = task.losses(model.train(), batch, None), task.num_items(batch)
    metrics = task.validation_metrics({"loss": 1.0, **losses.totals}, num_items)
    assert not any("/" in name for name in metrics)
    valid = task.batches_of(stores, BatchOptions(max_rows=6, order="sorted"))
    assert [len({stores.pair(number) for number in part}) for part in valid] == [1, 1]
    assert "nll/en-yy" in task.losses(model.eval(), batch, None).totals


def test_validation_counts_every_pair_for_itself(task: MultilingualTranslation) -> None:
    model, stores = task.new_model().eval(), task.examples("valid")
    totals, num_items = validate(task, model, stores, batch_tokens=20)
    metrics = task.validation_metrics(totals, num_items)
    by_hand = {}
    for pair, sentences in PAIRS.items():
        inputs = [(pair[3:], source) for source, _ in sentences]
        rows = task.scored_rows(inputs, [target for _, target in sentences])
        num_tokens = sum(len(row.texts[1]) for row in rows)
        by_hand[pair] = -sum(task.log_probabilities(model, rows)) / num_tokens
        assert totals[f"tokens/{pair}"] == num_tokens
        assert metrics[f"nll/{pair}"] == pytest.approx(by_hand[pair], rel=1e-5)
    assert metrics["nll/mean"] == pytest.approx(sum(by_hand.values()) / 2, rel=1e-5)
    assert metrics["nll"] == pytest.approx((totals["nll/en-xx"] + totals["nll/en-yy"]) / num_items, rel=1e-6)
    assert task.is_better(task.metric, 1.0, than=2.0)
    assert task.is_better("nll/en-yy", 1.0, than=2.0)
    assert task.is_better("sacrebleu/en-yy", 2.0, than=1.0)


def test_the_token_of_the_language_takes_a_position(tmp_path: Path) -> None:
    task = multilingual_of(tmp_path, language_token="source")
    (tmp_path / "t.en-xx.en").write_text("".join(f"{' '.join('a' * num)}\n" for num in (9, 10, 11, 12)))
    lengths = task.lengths(task.examples("train"))
    assert lengths[:, 0].max() == 12  # of which one is the language and one the end
    assert len(lengths) == 4
    (row,) = task.rows([("xx", " ".join("a" * 40))])
    assert (len(row.texts[0]), row.texts[0][0]) == (12, task.tokens["xx"])
    limits = replace(task.recipe.data, max_source_tokens=6, too_long="cut")
    short = MultilingualTranslation(replace(task.recipe, data=limits), task.tokenizers)
    stores, (row,) = short.examples("train"), short.rows([("xx", " ".join("a" * 9))])
    assert stores[0].texts[0].tolist() == row.texts[0].tolist()
    assert len(row.texts[0]) == 6


def test_scores_of_every_pair_and_their_mean(task: MultilingualTranslation) -> None:
    examples = list(task.corpus("test").examples(LineReport()))
    assert [task.inputs_of(example)[0] for example in examples] == ["xx"] * 4 + ["yy"] * 2
    predictions = [example.texts[1] for example in examples[:4]] + ["a a b c", "c"]
    scores = task.score(predictions, examples)
    expected = {
        pair: SacreBleu().score(predictions[part], [example.texts[1] for example in examples[part]]).value
        for pair, part in (("en-xx", slice(0, 4)), ("en-yy", slice(4, 6)))
    }
    assert list(scores)[:3] == ["sacrebleu", "sacrebleu/en-xx", "sacrebleu/en-yy"]
    assert {pair: scores[f"sacrebleu/{pair}"].value for pair in PAIRS} == pytest.approx(expected)
    assert scores["sacrebleu"].value == pytest.approx(np.mean(list(expected.values())))
    assert scores["sacrebleu"].signature.startswith("mean:2 pairs|nrefs:1")
    compared = task.compare(predictions, ["x"] * 6, examples)
    assert compared.ours == pytest.approx(scores["sacrebleu"].value)
    assert compared.difference > 0
    exact = replace(task.recipe, evaluation=replace(task.recipe.evaluation, metrics=("exact_match",)))
    judged = MultilingualTranslation(exact, task.tokenizers)
    assert judged.score(predictions, examples)["exact_match"].value == 50.0
    assert judged.compare(predictions, ["x"] * 6, examples).ours == 50.0


def test_the_languages_of_examples_are_those_of_their_pairs(task: MultilingualTranslation) -> None:
    examples = [Example(("a", "B"), "en-xx", "f", 1), Example(("a", "B"), "en-yy", "f", 1)]
    task.check_examples(examples)
    with pytest.raises(InputError, match=r"generation\.target=yy is not what all examples are"):
        with_generation(task, target="yy").check_examples(examples)
    with_generation(task, target="en-xx").check_examples(examples[:1])
    with pytest.raises(InputError, match=r"generation\.target=de-xx is not what all examples are"):
        with_generation(task, target="de-xx").check_examples(examples[:1])


def test_a_run_knows_its_languages(task: MultilingualTranslation, tmp_path: Path) -> None:
    folder = tmp_path / "done"
    task.save(folder)
    task.new_model().save_pretrained(folder)
    (folder / "recipe.yaml").write_text(recipe_yaml(task.resolved()))
    loaded = load_task(folder)
    assert isinstance(loaded, MultilingualTranslation)
    assert loaded.tokens == task.tokens
    resolved = task.resolved()
    other = replace(resolved, data=replace(resolved.data, pairs=("yy-xx",)))
    unseen = load_task(folder, other)  # a direction that it was not trained for, between languages that it knows
    assert isinstance(unseen, MultilingualTranslation)
    assert unseen.num_inputs == 2
    with pytest.raises(
        ConfigError, match=r"data\.pairs +the model writes xx, yy, not zz; name pairs into one of these"
    ):
        load_task(folder, replace(resolved, data=replace(resolved.data, pairs=("en-zz",))))
    with pytest.raises(ConfigError, match=r"generation\.target +the model writes xx, yy, not zz; name one of these"):
        load_task(folder, replace(resolved, generation=replace(resolved.generation, target="zz")))


def test_many_to_one_needs_no_token(many_to_one: MultilingualTranslation) -> None:
    stores = many_to_one.examples("train")
    assert [stores.pair(index) for index in range(len(stores))] == ["xx-en"] * 4 + ["yy-en"] * 2
    assert stores[0].texts[0].tolist() == ids(many_to_one, "C B A")
    assert many_to_one.tokens == {}
    assert (many_to_one.languages, many_to_one.num_inputs) == (("en",), 1)
    (row,) = many_to_one.rows([("C B A",)])
    assert row.texts[0].tolist() == stores[0].texts[0].tolist()
    model = many_to_one.new_model().eval()
    losses = many_to_one.losses(model, many_to_one.collate([stores[4], stores[5]]), 1)
    assert float(losses.totals["nll/xx-en"]) == 0
    torch.testing.assert_close(losses.totals["nll/yy-en"], losses.totals["nll"])


def test_a_pair_for_all_says_what_encoders_ask_for(of_sources: MultilingualTranslation) -> None:
    told = targeted(of_sources, "xx-en")
    assert (told.num_inputs, told.input_names) == (1, ("text",))
    batch, expected = told.collate(told.rows([("B A",)])), of_sources.collate(of_sources.rows([("xx-en", "B A")]))
    assert batch["source_languages"].tolist() == expected["source_languages"].tolist() == [0]
    assert batch["input_ids"].tolist() == expected["input_ids"].tolist()
    scored = told.scored_rows([("B A",)], ["a b"])
    assert told.collate(scored)["source_languages"].tolist() == [0]


def test_a_language_for_all_leaves_that_of_the_text_to_each(of_sources: MultilingualTranslation) -> None:
    told = targeted(of_sources, "en")
    assert (told.num_inputs, told.input_names) == (2, ("pair of languages", "text"))
    assert told.collate(told.rows([("xx-en", "B A")]))["source_languages"].tolist() == [0]


@pytest.mark.parametrize("target", ["zz", "zz-en", "xx-zz", "-en", "xx-", "xx-en-en", "en-en"])
def test_what_is_no_pair_of_the_model_is_refused(of_sources: MultilingualTranslation, target: str) -> None:
    message = rf"generation\.target +the model translates yy-en, xx-en, not {target}; name one of these"
    with pytest.raises(ConfigError, match=message):
        targeted(of_sources, target)


def test_pairs_are_known_where_sources_do_not_matter(
    task: MultilingualTranslation, many_to_one: MultilingualTranslation
) -> None:
    for plain, pair in ((task, "en-yy"), (many_to_one, "yy-en")):
        told = targeted(plain, pair)
        (row,), (expected,) = told.rows([("a b",)]), targeted(plain, pair[3:]).rows([("a b",)])
        assert (row.texts[0].tolist(), row.label) == (expected.texts[0].tolist(), expected.label)
    for pair in ("zz-yy", "en-zz"):
        with pytest.raises(ConfigError, match=f"the model translates en into xx, yy, not {pair}; name one of these"):
            targeted(task, pair)
    with pytest.raises(ConfigError, match="the model writes xx, yy, not zz; name one of these"):
        targeted(task, "zz")


def test_a_language_without_effect_is_refused(tmp_path: Path) -> None:
    """Where texts name pairs and the model writes several languages."""
    options = multilingual_options(tmp_path)
    options["data"]["pairs"] = ["en-xx", "en-yy", "xx-en"]
    stack = {**options["model"]["encoder"], "norm": "pre"}
    options["model"] |= {"encoder": stack, "decoder": stack, "latent": {"per_language": True, "sides": ["encoder"]}}
    several = open_task(parse_recipe(options), tmp_path / "run")
    assert isinstance(several, MultilingualTranslation)
    assert targeted(several, "en-yy").num_inputs == 1
    with pytest.raises(ConfigError, match="yy has no effect where texts name pairs of languages; name a pair"):
        targeted(several, "yy")


def test_choices_are_what_may_be_asked_for(
    task: MultilingualTranslation, many_to_one: MultilingualTranslation, of_sources: MultilingualTranslation
) -> None:
    assert (task.choices, many_to_one.choices) == (("xx", "yy"), ("en",))
    assert of_sources.choices == ("yy-en", "xx-en")
    for each in (task, many_to_one, of_sources):
        for choice in each.choices:
            assert targeted(each, choice).num_inputs == 1


def test_inputs_that_do_not_say_their_languages(of_sources: MultilingualTranslation) -> None:
    remedy = "name both before each text, as in yy-en, or generation.target for all"
    for told, message in (
        ("en", f"the encoder has layers for xx, yy; the language of the text is not named; {remedy}"),
        ("-en", f"the encoder has layers for xx, yy; the language of the text is not named; {remedy}"),
        ("zz-en", f"the encoder has layers for xx, yy; zz is none of them; {remedy}"),
        ("xx-zz", f"zz is no language of this model; it writes en; {remedy}"),
    ):
        with pytest.raises(InputError) as caught:
            of_sources.collate(of_sources.rows([(told, "a")]))
        assert str(caught.value) == message


def test_several_languages_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none does not tell xx, yy apart; give source or decoder"):
        multilingual_of(tmp_path, language_token="none")


def test_languages_may_be_fewer_than_tokens(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no token of zz; name some of xx, yy, or leave it out"):
        multilingual_of(tmp_path, languages=["xx", "yy", "zz"])
    with pytest.raises(ConfigError, match=r"data\.pairs +the model writes xx, not yy"):
        multilingual_of(tmp_path, languages=["xx"])


def test_pairs_must_be_named(tmp_path: Path) -> None:
    options = multilingual_options(tmp_path)
    del options["data"]["pairs"]
    with pytest.raises(ConfigError, match=r"data\.pairs +is missing"):
        open_task(parse_recipe(options), tmp_path / "run")


def test_what_is_left_out_of_any_pair_is_reported(tmp_path: Path) -> None:
    task = multilingual_of(tmp_path)
    (tmp_path / "t.en-yy.yy").write_text("\nc c\n")
    task.recipe = replace(task.recipe, data=replace(task.recipe.data, on_bad_line="skip"))
    report = task.examples("train").report
    assert (report.num_kept, report.counts) == (5, {"empty": 1})
    assert str(report.first[0]).endswith("t.en-yy.yy:1: the line is empty")


def test_predictions_of_bad_lines_cannot_be_told_over_several_files(tmp_path: Path) -> None:
    """In one file the line of an example says which prediction is its own; in several it does not."""
    task = multilingual_of(tmp_path)
    task.recipe = replace(task.recipe, data=replace(task.recipe.data, on_bad_line="skip"))
    (tmp_path / "t.en-xx.xx").write_text("\nB\nA B A C C\nA\n")
    examples = read_examples(task, "test")
    assert aligned(task, "test", list("vwxyz"), examples) == tuple("vwxyz")
    with pytest.raises(DataError, match="6 predictions for 5 examples"):
        aligned(task, "test", list("uvwxyz"), examples)
    task.recipe = replace(task.recipe, data=replace(task.recipe.data, pairs=("en-xx",)))
    assert aligned(task, "test", list("wxyz"), read_examples(task, "test")) == tuple("xyz")
