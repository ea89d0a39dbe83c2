"""Sizes for unseen data: what is decided, what stands, and that work stays within its budget."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from depthwise.config import PRETRAINED, Recipe, built_in, model_options, read_recipe, with_vocabulary
from depthwise.models.configuration import DepthwiseConfig
from depthwise.tasks import TASKS
from depthwise.tasks.sizing import HABITS, MOST_PASSES, Facts, Machine, passes, sized

TWO_CORES = Machine(has_gpu=False, num_threads=2)
SHORT, LONG = 50, 1300
NUMBERS = (10, 100, 1_000, 5_000, 30_000, 200_000, 5_000_000)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, whatever the tests run on."""
    monkeypatch.setattr(Machine, "found", lambda device: TWO_CORES)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "found", lambda device: Machine(has_gpu=device != "cpu", num_threads=16))


def starter(task: str, *changes: str) -> Recipe:
    splits = ["data.train=a", "data.valid=b"]
    sides = ["data.source=en", "data.target=de"] if task == "translate" else []
    return read_recipe(f"start/{task}", [*splits, *sides, *changes])


def model_of(recipe: Recipe) -> torch.nn.Module:
    """The recipe's model without memory for its weights."""
    size = recipe.tokenizer.vocab_size
    assert size is not None
    options = with_vocabulary(model_options(recipe.model), size, size)
    with torch.device("meta"):
        return TASKS[recipe.task].model_class(DepthwiseConfig.from_options(options))


@pytest.mark.parametrize("name", [recipe.name for recipe in built_in()])
@pytest.mark.parametrize("gpu", [False, True])
def test_every_built_in_recipe_builds(monkeypatch: pytest.MonkeyPatch, name: str, gpu: bool) -> None:
    if gpu:
        on_a_gpu(monkeypatch)
    given = read_recipe(name, ["data.train=a", "data.valid=b", "tokenizer.vocab_size=800000"])
    if PRETRAINED in given.model:
        assert isinstance(given.model[PRETRAINED], str)  # whose options are those of that run
        return
    recipe = sized(given, Facts(5000, SHORT))
    model_of(recipe)
    assert recipe.training.max_epochs or recipe.training.max_updates
    assert recipe.training.optimizer["lr"] > 0


@pytest.mark.parametrize("name", [recipe.name for recipe in built_in()])
def test_every_built_in_recipe_says_what_to_expect(name: str) -> None:
    (recipe,) = (recipe for recipe in built_in() if recipe.name == name)
    assert recipe.title
    expected = {"command", "data", "time", "score"} if name.startswith(("start/", "demo/")) else {"command", "data"}
    assert expected <= set(recipe.facts)


@pytest.mark.parametrize("task", ["classify", "translate"])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("size", ["auto", "tiny", "small", "base"])
@pytest.mark.parametrize("num_examples", NUMBERS)
def test_every_size_builds(monkeypatch: pytest.MonkeyPatch, task: str, gpu: bool, size: str, num_examples: int) -> None:
    if gpu:
        on_a_gpu(monkeypatch)
    recipe = sized(starter(task, f"model.size={size}"), Facts(num_examples, SHORT))
    model_of(recipe)
    assert "size" not in recipe.model
    training = recipe.training
    assert training.max_epochs is not None
    assert training.max_epochs > 0


@pytest.mark.parametrize("task", ["text_classification", "translation"])
def test_work_is_bounded_and_grows_with_the_data(task: str) -> None:
    habits = HABITS[task]
    tokens = [number * 20.0 for number in NUMBERS]
    found = [passes(number, max(1, number / 1000), habits, TWO_CORES) for number in tokens]
    assert found == sorted(found, reverse=True)
    assert found[0] == MOST_PASSES
    assert habits.most_passes in found
    work = [number * count for number, count in zip(tokens, found, strict=True)]
    assert all(few <= many * 1.1 for few, many in pairwise(work))
    assert max(work) < 3.2 * habits.budget


def test_a_faster_machine_does_more() -> None:
    habits = HABITS["translation"]
    few, more, most = (
        passes(5e6, 5000, habits, machine)
        for machine in (TWO_CORES, Machine(has_gpu=False, num_threads=8), Machine(has_gpu=True, num_threads=2))
    )
    assert few < more < most


def test_small_sets_have_small_batches_and_vocabularies() -> None:
    few, many = (sized(starter("classify"), Facts(number, SHORT)) for number in (100, 10_000))
    assert few.training.batch_rows < many.training.batch_rows
    assert few.tokenizer.vocab_size < many.tokenizer.vocab_size
    few, many = (sized(starter("translate"), Facts(number, SHORT)) for number in (1_000, 100_000))
    assert few.training.batch_tokens < many.training.batch_tokens
    assert few.tokenizer.vocab_size < many.tokenizer.vocab_size


def test_the_fewer_passes_the_less_dropout_and_the_more_validations_in_each() -> None:
    often, seldom = (sized(starter("classify"), Facts(number, LONG)) for number in (500, 50_000))
    assert often.model["encoder"]["dropout"] > seldom.model["encoder"]["dropout"]
    assert often.training.validate_every is None
    per_pass = 50_000 / seldom.training.batch_rows
    assert seldom.training.validate_every == pytest.approx(seldom.training.max_epochs * per_pass / 10, abs=1)


def test_a_set_of_a_few_lines_is_not_validated_all_the_time() -> None:
    training = sized(starter("classify"), Facts(40, SHORT)).training
    assert training.max_epochs == 100
    assert training.validate_every == pytest.approx(100 * 40 / 8 / 30, abs=1)


def test_a_gpu_gives_room_for_a_larger_model(monkeypatch: pytest.MonkeyPatch) -> None:
    small = sized(starter("translate"), Facts(30_000, SHORT))
    on_a_gpu(monkeypatch)
    large = sized(starter("translate"), Facts(30_000, SHORT))
    assert large.model["width"] > small.model["width"]
    again = sized(starter("translate", "training.device=cpu"), Facts(30_000, SHORT))
    assert again.model == small.model


@pytest.mark.parametrize(
    ("change", "place", "value"),
    [
        ("model.width=64", ("model", "width"), 64),
        ("model.encoder.dropout=0.05", ("model", "encoder", "dropout"), 0.05),
        ("tokenizer.vocab_size=777", ("tokenizer", "vocab_size"), 777),
        ("training.max_epochs=7", ("training", "max_epochs"), 7),
        ("training.batch_rows=5", ("training", "batch_rows"), 5),
        ("training.validate_every=11", ("training", "validate_every"), 11),
        ("training.optimizer.lr=0.5", ("training", "optimizer", "lr"), 0.5),
    ],
)
def test_what_is_said_stands(change: str, place: tuple[str, ...], value: Any) -> None:
    found: Any = sized(starter("classify", change), Facts(5000, LONG))
    for name in place:
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


def test_a_given_number_of_updates_is_the_only_limit() -> None:
    assert sized(starter("classify", "training.max_updates=7"), Facts(5000, LONG)).training.max_epochs is None


@pytest.mark.parametrize("task", ["classify", "translate"])
@pytest.mark.parametrize("num_layers", [1, 6])
def test_kernels_fit_the_layers_that_are_asked_for(task: str, num_layers: int) -> None:
    recipe = sized(starter(task, f"model.encoder.num_layers={num_layers}"), Facts(5000, SHORT))
    assert len(recipe.model["encoder"]["kernel_sizes"]) == num_layers
    model_of(recipe)


def test_attention_that_is_asked_for_has_no_window() -> None:
    recipe = sized(starter("classify", "model.encoder.mixer=attention"), Facts(5000, SHORT))
    assert "kernel_sizes" not in recipe.model["encoder"]
    model_of(recipe)


def test_a_recipe_without_a_size_is_left_alone() -> None:
    recipe = read_recipe("demo/numbers", ["data.train=a"])
    assert sized(recipe, Facts(5000, SHORT)) == recipe


@pytest.mark.parametrize(("task", "num_sides"), [("lm", 1), ("mlm", 1), ("translate", 2)])
def test_a_short_training_is_validated_ten_times(task: str, num_sides: int) -> None:
    """A batch holds so many tokens of each side."""
    facts = Facts(200_000, SHORT)
    training = sized(starter(task), facts).training
    assert training.max_epochs < 5
    num_updates = facts.num_examples * facts.tokens_of_a_text(1) / num_sides / training.batch_tokens
    assert training.validate_every == pytest.approx(training.max_epochs * num_updates / 10, abs=1)
