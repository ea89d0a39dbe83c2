"""The demo: what it makes, what it prints, and that it goes on and repeats itself."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from depthwise.cli import demo_results
from depthwise.cli.main import app
from depthwise.config import read_recipe
from depthwise.data.number_words import LANGUAGES
from depthwise.data.tokenizers import SPECIALS
from depthwise.evaluation import Frontier, Point, load_run, predict_all, read_examples

from ..evaluation.conftest import MakeRun

Demo = Callable[..., Result]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """Runs the demo with few numbers and updates, in a folder that nothing else is in."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, updates: int = 3) -> Result:
        few = ["--numbers", "200", "--updates", str(updates), "--swept", "2"]
        return CliRunner().invoke(app, ["demo", *few, *arguments])

    return run


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in result.output.splitlines()]


def test_from_data_to_the_frontier(demo: Demo) -> None:
    result = demo("--out", "here")
    assert result.exit_code == 0, result.output
    assert "200 numbers in English and German for training: here/data" in result.output
    assert re.search(r"here: 0\.\d\dM parameters trained in \d:\d\d", result.output)
    assert re.search(r"2 other numbers in both languages, one at a time on .+ thread", result.output)
    assert "12 numbers that training never saw" in result.output
    for name in ("config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "metrics.jsonl"):
        assert (Path("here") / name).is_file()
    assert json.loads(Path("here/training.json").read_text(encoding="utf-8"))["num_updates"] == 3
    for name in ("frontier.json", "frontier.png"):
        assert f"here/results/{name}" in result.output
        assert (Path("here/results") / name).is_file()
    assert "here/report.html" in result.output.split("Where things are:")[1]
    assert result.output.rstrip().endswith("depthwise serve here --examples 3")
    assert '"num_layers":12' in Path("here/report.html").read_text(encoding="utf-8")
    assert json.loads(Path("here/results/depths.json").read_text(encoding="utf-8"))["examples"] == 24


def test_the_table_is_what_the_file_says(demo: Demo) -> None:
    result = demo()
    content = json.loads(Path("runs/demo/results/frontier.json").read_text(encoding="utf-8"))
    assert (content["split"], content["examples"], content["batch_rows"]) == ("valid", 4, 1)
    num_layers, shown = content["num_layers"], rows(result)
    begin = shown.index(["policy", "right", "mean", "depth", "of", "full", "seconds"]) + 1
    table = shown[begin : begin + len(content["points"])]
    assert {point["policy"] for point in content["points"]} == {"fixed", "confidence"}
    for point in content["points"]:
        value = point["setting"].get("depth", point["setting"].get("threshold"))
        is_full = point["policy"] == "fixed" and value == num_layers
        depth, share = f"{point['mean_depth']:.2f}", f"{100 * point['mean_depth'] / num_layers:.0f}"
        name = [point["policy"], f"{value:g}", *(["(full", "model)"] if is_full else [])]
        cells = f"{point['quality']:.1f}", "%", depth, share, "%", f"{point['seconds']:.2f}"
        assert [*name, *cells] in table
    depths = [float(row[-4]) for row in table]
    assert depths == sorted(depths)
    assert sum("(full" in row for row in table) == 1


def test_held_out_numbers_at_full_depth_and_at_the_chosen_one(demo: Demo) -> None:
    """What was learned is next to nothing, so that the first exit is as good as the last."""
    result = demo()
    shown = rows(result)
    full, early = (
        json.loads(Path(f"runs/demo/results/{name}.json").read_text(encoding="utf-8"))
        for name in ("test", "test-depth-1")
    )
    assert ["full", "model", "fixed", "1"] in shown
    assert ["mean", "depth", f"{full['mean_depth']:.2f}", f"{early['mean_depth']:.2f}"] in shown
    assert {"English,", "German,"} <= {row[0] for row in shown if row[1:2] == ["right"]}
    assert (full["settings"]["policy"], full["examples"], early["settings"]["policy"]["kind"]) == (None, 24, "fixed")


def frontier_of(qualities: dict[str, float], depths: dict[str, float], seconds: dict[str, float]) -> Frontier:
    """One of four fixed depths and of thresholds, by their names in the table."""

    def point(name: str) -> Point:
        kind, value = name.split()
        setting = (
            {"depth": int(value)} if kind == "fixed" else {"measure": "max_probability", "threshold": float(value)}
        )
        measured = {"quality": qualities[name], "mean_depth": depths[name], "seconds": seconds.get(name, 1.0)}
        return Point(policy=kind, setting=setting, token_layers=1, flops=1, **measured)

    facts = {
        "task": "translation",
        "split": "valid",
        "metric": "exact_match",
        "higher_is_better": True,
        "num_layers": 4,
    }
    more = {"exits": (1, 2, 3, 4), "examples": 8, "batch_rows": 1, "settings": {}, "hardware": "abacus"}
    points = tuple(point(name) for name in qualities)
    return Frontier(**facts, **more, examples_digest="e", weights_digest="w", points=points)


def test_the_verdict() -> None:
    qualities = {"fixed 1": 10.0, "fixed 3": 90.0, "fixed 4": 100.0, "confidence 0.5": 70.0, "confidence 0.9": 100.0}
    depths = {"fixed 1": 1.0, "fixed 3": 3.0, "fixed 4": 4.0, "confidence 0.5": 1.5, "confidence 0.9": 1.8}
    seconds = {"fixed 4": 8.0, "confidence 0.9": 6.0}
    found = frontier_of(qualities, depths, seconds)
    chosen = demo_results.chosen_point(found)
    assert demo_results.name_of(chosen) == "confidence 0.9"
    verdict = demo_results.verdict(found, chosen)
    assert "confidence 0.9 has the lowest mean depth of all that are as accurate as the full model" in verdict
    assert "1.80 blocks instead of 4: 55 % fewer" in verdict
    assert "6.00 seconds instead of 8.00: 25 % less" in verdict
    assert "Time falls less than depth" in verdict
    fast = frontier_of(qualities, depths, {**seconds, "confidence 0.9": 2.0})
    assert "Time falls" not in demo_results.verdict(fast, demo_results.chosen_point(fast))
    slow = frontier_of(qualities, depths, {**seconds, "confidence 0.9": 10.0})
    assert "10.00 seconds instead of 8.00: 25 % more" in demo_results.verdict(slow, demo_results.chosen_point(slow))
    worse = frontier_of({**qualities, "confidence 0.9": 98.0}, depths, seconds)
    verdict = demo_results.verdict(worse, demo_results.chosen_point(worse))
    assert "Nothing below full depth is as accurate as the full model here; confidence 0.9 comes closest" in verdict


def test_samples_have_a_depth_below_every_token(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is not trained says much and leaves everywhere."""
    changes = ["policy.kind=confidence", "policy.threshold=0.3"]
    run = load_run(
        make_run("leaving translation"), ["generation.num_beams=1"], "cpu", depth="policy", policy_changes=changes
    )
    examples = read_examples(run.task, "test")
    found = predict_all(run, [run.task.inputs_of(example) for example in examples])
    console = Console(record=True, soft_wrap=True, highlight=False, markup=False, quiet=False)
    monkeypatch.setattr(demo_results, "NUM_SAMPLES", 2 * len(examples))
    demo_results.show_samples(run, examples, console)
    lines = console.export_text().splitlines()
    assert len(lines) == 3 * len(examples)
    seen = set()
    for example, said, title, pieces, depths in zip(examples, found, lines[::3], lines[1::3], lines[2::3], strict=True):
        assert title.split() == [
            *example.texts[0].split(),
            *said.text.split(),
            "(right:",
            *f"{example.texts[1]})".split(),
        ]
        *tokens, end = pieces.split()
        assert end == "(end)"
        assert [token for token in tokens if token not in SPECIALS] == said.text.split()
        assert depths.split() == [str(depth) for depth in said.depths]
        assert [match.end() for match in re.finditer(r"\S+", pieces)] == [
            match.end() for match in re.finditer(r"\S+", depths)
        ]
        seen |= set(said.depths)
    assert seen <= {1, 2, 3, 4}
    assert len(seen) > 1


@pytest.mark.parametrize("name", ["a,b", "a: b", "a #b"])
def test_any_name_of_a_folder_will_do(demo: Demo, name: str) -> None:
    result = demo("--out", name, updates=1)
    assert result.exit_code == 0, result.output
    assert (Path(name) / "model.safetensors").is_file()


def test_what_is_shown_is_what_the_model_said(demo: Demo) -> None:
    """Three updates teach nothing, so wrong answers come with the right ones."""
    result = demo()
    shown = re.findall(r"^  (en|de)((?: \d)+) .*\(right: (.*)\)$", result.output, flags=re.MULTILINE)
    assert len(shown) == 2
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
    num_layers, exits = recipe.model["decoder"]["num_layers"], recipe.model["exits"]["depths"]
    assert num_layers >= 4
    assert (exits[0], exits[-1]) == (1, num_layers)
    assert len(exits) >= 4
