"""The demo: what it makes, what it prints, and that it goes on and repeats itself."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from depthwise.cli.main import app
from depthwise.config import read_recipe
from depthwise.data.number_words import LANGUAGES

Demo = Callable[..., Result]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """Runs the demo with few numbers and updates, in a folder that nothing else is in."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, updates: int = 3) -> Result:
        return CliRunner().invoke(app, ["demo", "--numbers", "200", "--updates", str(updates), *arguments])

    return run


def plain(result: Result) -> str:
    return re.sub(r"[\s│┃━─┏┓┡┩├┤└┘┬┴┼╇]+", " ", result.output)


def test_from_data_to_accuracy(demo: Demo) -> None:
    result = demo("--out", "here")
    assert result.exit_code == 0, result.output
    output = plain(result)
    assert "200 numbers in English and German for training: here/data" in output
    assert re.search(r"here: 0\.\d\dM parameters trained in \d:\d\d", output)
    assert "12 numbers that training never saw" in output
    assert re.search(r"English 12 \d+\.\d % German 12 \d+\.\d %", output)
    assert "depthwise predict here -" in output
    for name in ("config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "metrics.jsonl"):
        assert (Path("here") / name).is_file()
    assert json.loads(Path("here/training.json").read_text(encoding="utf-8"))["num_updates"] == 3


@pytest.mark.parametrize("name", ["a,b", "a: b", "a #b"])
def test_any_name_of_a_folder_will_do(demo: Demo, name: str) -> None:
    result = demo("--out", name, updates=1)
    assert result.exit_code == 0, result.output
    assert (Path(name) / "model.safetensors").is_file()


def test_what_is_shown_is_what_the_model_said(demo: Demo) -> None:
    """Three updates teach nothing, so wrong answers come with the right ones."""
    result = demo()
    shown = re.findall(r"^  (en|de)((?: \d)+) .*\(right: (.*)\)$", result.output, flags=re.MULTILINE)
    assert len(shown) == 4
    for language, digits, words in shown:
        assert LANGUAGES[language](int(digits.replace(" ", ""))) == words


def test_held_out_numbers_are_in_no_other_file(demo: Demo) -> None:
    demo()
    sources = {split: Path(f"runs/demo/data/{split}.digits").read_text().splitlines() for split in ("train", "test")}
    numbers = {split: {line.split(" ", 1)[1] for line in lines} for split, lines in sources.items()}
    assert len(numbers["train"]) == 200
    assert len(numbers["test"]) == 12
    assert not numbers["train"] & numbers["test"]


def test_a_second_call_uses_the_first_one(demo: Demo) -> None:
    first = demo()
    written = Path("runs/demo/model.safetensors").stat().st_mtime_ns
    second = demo()
    assert second.exit_code == 0, second.output
    assert "was trained before" in second.output
    assert Path("runs/demo/model.safetensors").stat().st_mtime_ns == written
    assert second.output.split("never saw")[1] == first.output.split("never saw")[1]


def test_an_interruption_and_another_call(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    from depthwise.training.trainer import DepthwiseTrainer

    usual = DepthwiseTrainer.compute_loss

    def interrupted(self: DepthwiseTrainer, *args: object, **kwargs: object) -> object:
        if self.state.global_step == 1:
            signal.raise_signal(signal.SIGINT)
        return usual(self, *args, **kwargs)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(DepthwiseTrainer, "compute_loss", interrupted)
        stopped = demo(updates=5)
    assert stopped.exit_code == 128 + signal.SIGINT
    assert "stopped after update 2; the same command goes on from there" in stopped.output
    assert not Path("runs/demo/model.safetensors").exists()
    finished = demo(updates=5)
    assert finished.exit_code == 0, finished.output
    lines = Path("runs/demo/training.json").read_text(encoding="utf-8")
    assert json.loads(lines)["num_updates"] == 5


def test_a_folder_that_holds_something_else(demo: Demo) -> None:
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("dear")
    result = demo("--out", "mine")
    assert "is not empty and holds no training" in str(result.exception)
    assert [path.name for path in Path("mine").iterdir()] == ["letter.txt"]


def test_the_recipe_has_layers_to_save() -> None:
    """Depth can only adapt where there is some."""
    recipe = read_recipe("demo/numbers")
    assert recipe.model["decoder"]["num_layers"] >= 4
