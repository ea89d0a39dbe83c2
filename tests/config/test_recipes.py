"""Finding and reading recipes."""

from pathlib import Path

import pytest

from depthwise.config import built_in, load_recipe, read_recipe, recipe_text, recipe_yaml
from depthwise.errors import ConfigError

RECIPE = """\
# A title
# command: depthwise train this
# score: 12.3 BLEU
#   on two lines
task: text_classification
model: {size: tiny}
training:
  optimizer: {kind: adam, lr: 5e-4}
  schedule: {kind: linear, warmup: 1e2}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return path


def test_numbers_are_read_as_everyone_writes_them(path: Path) -> None:
    training = read_recipe(str(path)).training
    assert training.optimizer["lr"] == 0.0005
    assert training.schedule["warmup"] == 100.0
    changes = ["training.max_updates=1e4", "model.width=64.0", "model.encoder.kernel_sizes=[3.0]", "seed=2.0"]
    recipe = read_recipe(str(path), changes)
    numbers = [recipe.training.max_updates, recipe.seed]
    assert ([10_000, 2], [int, int]) == (numbers, [type(number) for number in numbers])
    with pytest.raises(ConfigError, match=r"training\.max_updates +expected a whole number or null, got 0\.5"):
        read_recipe(str(path), ["training.max_updates=0.5"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("no", "No", "on", "off", "yes", "y", "n", "2021-02-30", "2021-02-03", "1:30")),
        *((word, word) for word in ("1:30.5", "2021-02-03 04:05:06", "true-ish")),
        *(("true", True), ("True", True), ("FALSE", False), ("null", None), ("~", None), ("", None)),
        *(("12", 12), ("-1_000", -1000), ("0", 0), ("0x1F", 31), ("0b11", 3), ("1.5", 1.5), ("5e-4", 5e-4)),
        *(("-.5", -0.5), ("1.e3", 1000.0), ("+2E6", 2e6), (".inf", float("inf")), ("-.INF", float("-inf"))),
    ],
)
def test_values_without_quotes(path: Path, text: str, value: object) -> None:
    """A schedule takes any value as long as nothing is built of it."""
    assert read_recipe(str(path), [f"training.schedule.power={text}"]).training.schedule["power"] == value
    path.write_text(RECIPE.replace("warmup: 1e2", f"warmup: {text}"))
    read = read_recipe(str(path))
    assert read.training.schedule["warmup"] == value
    path.write_text(recipe_yaml(read))
    assert load_recipe(path) == read


def test_text_that_looks_like_something_else(path: Path) -> None:
    data = read_recipe(str(path), ["data.target=no", "data.hub_revision=2021-02-30"]).data
    assert (data.target, data.hub_revision) == ("no", "2021-02-30")
    with pytest.raises(ConfigError, match=r'training\.compile +expected a boolean \(true or false\), got "on"'):
        read_recipe(str(path), ["training.compile=on"])


@pytest.mark.parametrize("text", ["9" * 5000, "0b_", "0x_", "!!int x"])
def test_values_that_cannot_be_read(path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"seed +.* cannot be read: .*; put text into quotes"):
        read_recipe(str(path), [f"seed={text}"])
    path.write_text(f"{RECIPE}seed: {text}\n")
    with pytest.raises(ConfigError, match=r"recipe +is no YAML: "):
        read_recipe(str(path))


def test_changes_from_the_command_line(path: Path) -> None:
    changes = ["training.optimizer.lr=1e-3", "data.train=a.tsv", "seed=7", "training.report=[tensorboard]", "data.hub="]
    recipe = read_recipe(str(path), changes)
    assert recipe.training.optimizer == {"kind": "adam", "lr": 0.001}
    assert (recipe.data.train, recipe.seed, recipe.training.report) == (("a.tsv",), 7, ("tensorboard",))
    assert recipe.data.hub is None


def test_options_may_come_before_the_kind_that_they_belong_to(path: Path) -> None:
    changes = ["training.optimizer.lr=0.3", "training.optimizer.kind=lamb"]
    for given in (changes, changes[::-1]):
        assert read_recipe(str(path), given).training.optimizer == {"kind": "lamb", "lr": 0.3}
    recipe = read_recipe("start/classify", ["tokenizer.vocab_size=99", "tokenizer.kind=bpe"])
    assert (recipe.tokenizer.vocab_size, recipe.tokenizer.lowercase) == (99, True)


@pytest.mark.parametrize("change", ["seed", "=3", "data..train=x", ".seed=1"])
def test_a_change_that_is_none(path: Path, change: str) -> None:
    with pytest.raises(ConfigError, match=r"is no change; write section\.option=value"):
        read_recipe(str(path), [change])


def test_unknown_keys_on_the_command_line(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.trian +unknown option; did you mean data\.train\?"):
        read_recipe(str(path), ["data.trian=x"])


def test_a_recipe_over_another(tmp_path: Path, path: Path) -> None:
    (tmp_path / "other.yaml").write_text("base: mine.yaml\nseed: 5\ntraining: {optimizer: {lr: 1}}\n")
    recipe = read_recipe(str(tmp_path / "other.yaml"))
    assert (recipe.seed, recipe.training.optimizer) == (5, {"kind": "adam", "lr": 1})
    (tmp_path / "built.yaml").write_text("base: start/classify\nseed: 6\n")
    assert read_recipe(str(tmp_path / "built.yaml")).seed == 6


def test_bases_without_end(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"base: {tmp_path / 'b.yaml'}\n")
    (tmp_path / "b.yaml").write_text(f"base: {tmp_path / 'a.yaml'}\n")
    (tmp_path / "c.yaml").write_text(f"base: ../{tmp_path.name}/c.yaml\n")
    for name in "ac":
        with pytest.raises(ConfigError, match="has no end"):
            read_recipe(str(tmp_path / f"{name}.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: [", "is no YAML"),
        ("just text", "expected sections"),
        ("task: translation\ntask: translation\n", "task is given twice"),
        ("base: 3", "expected the name of a recipe"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_recipe(str(tmp_path / "bad.yaml"))


def test_values_are_shown_as_they_were_written(path: Path) -> None:
    with pytest.raises(ConfigError, match='got "größer"'):
        read_recipe(str(path), ["seed=größer"])


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"task: \xff\xfe")
    for reader in (read_recipe, recipe_text):
        with pytest.raises(ConfigError, match="is no text in UTF-8: invalid start byte"):
            reader(str(tmp_path / "bad.yaml"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("start/clasify", "did you mean start/classify"), ("nowhere/mine.yaml", "no such file"), ("xyzzy", "neither")],
)
def test_names_that_nobody_has(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(name)


def test_what_is_built_in() -> None:
    found = {recipe.name: recipe for recipe in built_in()}
    assert {"start/classify", "start/translate"} <= set(found)
    for name, recipe in found.items():
        assert recipe.title, name
        command = recipe.facts["command"].removeprefix("torchrun --nproc-per-node 8 -m ")
        assert command.startswith(f"depthwise {'demo' if name.startswith('demo') else f'train {name}'}")
        read_recipe(name, ["data.train=x", "data.valid=y"])


def test_a_resolved_recipe_is_read_back(tmp_path: Path, path: Path) -> None:
    recipe = read_recipe(str(path))
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize("text", ["12e45", "1e3", "-2E+1", "no", "1:30", "2021-02-03", "0o17", "1_0", "~", "x #y"])
def test_text_stays_text_in_a_resolved_recipe(tmp_path: Path, path: Path, text: str) -> None:
    recipe = read_recipe(str(path), [f"data.train='{text}'"])
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    assert load_recipe(tmp_path / "recipe.yaml").data.train == (text,)
