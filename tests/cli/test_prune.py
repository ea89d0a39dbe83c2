"""``depthwise prune``: a smaller run that says what the larger one says with hard gates, or with masked heads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import LatentTrainingConfig, load_recipe, parse_recipe, recipe_yaml
from depthwise.errors import InputError
from depthwise.evaluation import load_run, predict_all
from depthwise.evaluation.head_importance import head_importance
from depthwise.evaluation.results import read_evaluation
from depthwise.models.head_pruning import attention_of, heads_to_keep, without_heads
from depthwise.tasks import open_task

from ..tasks.conftest import multilingual_options
from .conftest import Depthwise

GATES = [[2.0, -1.0, 1.0], [-1.0, -2.0, 1.5]]
INPUTS = [("xx", "a b c"), ("yy", "a b"), ("xx", "b"), ("yy", "c a b")]


@pytest.fixture
def latent_run(tmp_path: Path) -> Path:
    """Of two languages: xx runs layers 0 and 2, yy layer 2."""
    options: dict[str, Any] = multilingual_options(tmp_path, language_token="decoder")
    stack = {**options["model"]["decoder"], "norm": "pre", "num_layers": 3}
    options["model"] |= {"encoder": stack, "decoder": stack, "latent": {"per_language": True}}
    options["evaluation"] = {"gates": "hard"}
    folder = tmp_path / "latent"
    torch.manual_seed(0)
    task = open_task(parse_recipe(options), folder)
    model = task.new_model()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
        model.latent_layers()["decoder"].logits.copy_(torch.tensor(GATES))
    model.save_pretrained(folder)
    task.save(folder)
    (folder / "recipe.yaml").write_text(recipe_yaml(task.resolved()))
    return folder


def said(folder: Path, inputs: list[tuple[str, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(found.text, found.depths) for found in predict_all(load_run(folder, device="cpu"), inputs)]


def test_for_all_languages(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, output, errors = depthwise("prune", latent_run, tmp_path / "smaller")
    assert code == 0, errors
    assert "decoder keeps 2 of 3 layers: 0, 2\n  xx runs 0, 2\n  yy runs 2\n" in output
    assert f"next: depthwise evaluate {tmp_path / 'smaller'}" in output
    assert said(tmp_path / "smaller", INPUTS) == said(latent_run, INPUTS)
    run = load_run(tmp_path / "smaller", device="cpu")
    assert run.model.config.decoder["num_layers"] == 2
    assert run.recipe.evaluation.gates is None
    assert depthwise("evaluate", tmp_path / "smaller", "--device", "cpu")[0] == 0


def test_what_is_left_does_not_want_the_depth_of_training(
    latent_run: Path, depthwise: Depthwise, tmp_path: Path
) -> None:
    """Two layers stay of three, where three were wanted: how gates were learned is no matter of what is left."""
    recipe = load_recipe(latent_run / "recipe.yaml")
    latent = LatentTrainingConfig(target_depth=(3,))
    (latent_run / "recipe.yaml").write_text(
        recipe_yaml(replace(recipe, training=replace(recipe.training, latent=latent)))
    )
    assert depthwise("prune", latent_run, tmp_path / "smaller")[0] == 0
    code, _, errors = depthwise("evaluate", tmp_path / "smaller", "--device", "cpu")
    assert code == 0, errors


def test_for_one_language(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, output, errors = depthwise("prune", latent_run, tmp_path / "yy", "--language", "yy")
    assert code == 0, errors
    assert "decoder keeps 1 of 3 layers: 2\n" in output
    recipe = load_recipe(tmp_path / "yy" / "recipe.yaml")
    assert (recipe.data.pairs, recipe.generation.target, recipe.training.latent) == (("en-yy",), "yy", None)
    assert recipe.model["latent"] is None
    of_language = [text for language, text in INPUTS if language == "yy"]
    wanted = said(latent_run, [("yy", text) for text in of_language])
    assert said(tmp_path / "yy", [(text,) for text in of_language]) == wanted
    assert depthwise("evaluate", tmp_path / "yy", "--device", "cpu")[0] == 0


def test_a_number_of_layers(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, output, errors = depthwise("prune", latent_run, tmp_path / "k", "--keep", 1)
    assert code == 0, errors
    assert "decoder keeps 1 of 3 layers: 2\n" in output
    assert depthwise("prune", latent_run, tmp_path / "k", "--keep", 2)[0] == 1
    assert depthwise("prune", latent_run, tmp_path / "k", "--keep", 2, "--force")[0] == 0
    assert load_run(tmp_path / "k", device="cpu").model.config.latent is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--language", "zz"], "zz is no language of these gates; the decoder has layers for xx, yy"),
        (["--language", ""], '"" is no language of these gates; the decoder has layers for xx, yy'),
        (["--language", "zz-yy"], "this run does not translate zz-yy; it knows en-xx, en-yy: name one of these pairs"),
        (["--language", "xx-yy", "--measure"], "this run does not translate xx-yy; it knows en-xx, en-yy"),
        (["--language", "-yy"], "this run does not translate -yy; it knows en-xx, en-yy"),
        (["--keep", "4"], "the decoder has 3 layers; keep 1 to 3 of them, not 4"),
    ],
)
def test_what_cannot_be_pruned(
    latent_run: Path, depthwise: Depthwise, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, errors = depthwise("prune", latent_run, tmp_path / "none", *arguments)
    assert (code, message in errors) == (1, True)
    assert not (tmp_path / "none").exists()


def test_a_language_whose_pair_is_gone(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    """Gates may know more languages than the recipe has pairs."""
    recipe = load_recipe(latent_run / "recipe.yaml")
    fewer = replace(recipe, data=replace(recipe.data, pairs=("en-xx",)))
    (latent_run / "recipe.yaml").write_text(recipe_yaml(fewer))
    code, _, errors = depthwise("prune", latent_run, tmp_path / "none", "--language", "yy")
    assert (code, "this run does not translate yy; it knows en-xx: name one of these pairs" in errors) == (1, True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("language", ["yy", "en-yy"])
def test_other_languages_are_gone(latent_run: Path, depthwise: Depthwise, tmp_path: Path, language: str) -> None:
    """Their tokens are still in the vocabulary, but layers that they need may be missing."""
    (tmp_path / "texts").write_text("a b c\n")
    run = tmp_path / "yy"
    assert depthwise("prune", latent_run, run, "--language", language)[0] == 0
    assert load_recipe(run / "recipe.yaml").tokenizer.languages == ("yy",)
    assert depthwise("predict", run, tmp_path / "texts", "--to", "yy", "--device", "cpu")[0] == 0
    code, output, errors = depthwise("predict", run, tmp_path / "texts", "--to", "xx", "--device", "cpu")
    assert (code, output) == (1, "")
    assert "the model writes yy, not xx" in errors
    code, _, errors = depthwise("evaluate", run, "data.pairs=[en-xx]", "--device", "cpu")
    assert (code, "the model writes yy, not xx" in errors) == (1, True)
    with pytest.raises(InputError, match="xx is no language of this model; it writes yy"):
        predict_all(load_run(run, device="cpu"), [("xx", "a b c")])


@pytest.mark.parametrize("told", [["--keep", "1"], ["--heads", "0.5", "--device", "cpu"]])
def test_a_run_is_not_pruned_into_itself(latent_run: Path, depthwise: Depthwise, told: list[str]) -> None:
    before = (latent_run / "recipe.yaml").read_text()
    code, _, errors = depthwise("prune", latent_run, latent_run, *told, "--force")
    message = f"{latent_run} holds the run to be pruned; give another folder for what is left"
    assert (code, message in errors) == (1, True)
    assert (latent_run / "recipe.yaml").read_text() == before


def test_a_run_without_gates(make_run: Any, depthwise: Depthwise, tmp_path: Path) -> None:
    code, _, errors = depthwise("prune", make_run("translation"), tmp_path / "none")
    assert (code, "this model has no gates that say which layers can go" in errors) == (1, True)


def test_gates_that_a_model_does_not_have(make_run: Any, depthwise: Depthwise) -> None:
    code, _, errors = depthwise("evaluate", make_run("translation"), "evaluation.gates=hard")
    assert (code, "this model has no gates on its layers" in errors) == (1, True)


@pytest.mark.parametrize("language", [None, "yy"])
def test_measuring(latent_run: Path, depthwise: Depthwise, tmp_path: Path, language: str | None) -> None:
    told = [] if language is None else ["--language", language]
    smaller = tmp_path / "smaller"
    code, output, errors = depthwise("prune", latent_run, smaller, "--measure", "--device", "cpu", *told)
    assert code == 0, errors
    rows = [line.split("│")[1:-1] for line in output.splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert cells["decoder layers"] == (["3", "1.5", "1.5"] if language is None else ["3", "1", "1"])
    num_before, num_hard, num_after = (int(cell.replace(",", "")) for cell in cells["parameters"])
    assert num_before == num_hard > num_after
    evaluations = [
        read_evaluation(latent_run / "results" / "test-soft.json"),
        read_evaluation(latent_run / "results" / "test-hard.json"),
        read_evaluation(smaller / "results" / "test.json"),
    ]
    soft, hard, pruned = evaluations
    assert hard.metrics == pruned.metrics
    assert hard.predictions == pruned.predictions != soft.predictions
    assert soft.examples == hard.examples == pruned.examples == (6 if language is None else 2)
    assert hard.settings["gates"] == "hard"
    assert cells[soft.metric] == [f"{found.value:.2f}" for found in evaluations]
    assert all(float(cell.replace(",", "")) > 0 for cell in cells["examples/s"])


@pytest.mark.parametrize("language", [None, "yy", "en-yy"])
def test_what_was_measured_becomes_a_result(
    latent_run: Path, depthwise: Depthwise, tmp_path: Path, language: str | None
) -> None:
    """Which it may be again."""
    told = ["generation.num_beams=2", "--measure", "--device", "cpu", "--name", "both", "--force"]
    told += [] if language is None else ["--language", language]
    assert [depthwise("prune", latent_run, tmp_path / "smaller", *told)[0] for _ in range(2)] == [0, 0]
    assert [path.name for path in (latent_run / "results").glob("*.json")] == ["both.json"]
    found = read_evaluation(latent_run / "results" / "both.json")
    assert found is not None
    layers = {"xx": [0, 2], "yy": [2]} if language is None else {"yy": [2]}
    assert found.settings["layers"] == {"decoder": layers}
    assert found.settings["generation"]["num_beams"] == 2
    assert found.metrics["decoder_layers"] == (1.5 if language is None else 1.0)
    assert (found.metrics["decoder_layers/yy"], found.metrics["decoder_layers_before"]) == (1.0, 3.0)
    assert found.metrics[f"hard_{found.metric}"] == found.value
    speed, before = found.examples_per_second, found.metrics["soft_examples_per_second"]
    assert speed is not None
    assert before is not None
    assert found.metrics["times_as_fast"] == pytest.approx(speed / before)
    assert set(found.signatures) == set(found.metrics)


@pytest.mark.parametrize("told", [["--name", "both"], ["generation.num_beams=2"]])
def test_names_and_changes_are_about_what_is_measured(
    latent_run: Path, depthwise: Depthwise, tmp_path: Path, told: list[str]
) -> None:
    code, _, errors = depthwise("prune", latent_run, tmp_path / "smaller", *told)
    assert (code, "add --measure" in errors) == (2, True)
    code, _, errors = depthwise("prune", latent_run, tmp_path / "smaller", *told, "--measure", "--heads", "0.5")
    assert (code, "layers, not about heads" in errors) == (2, True)
    assert not (tmp_path / "smaller").exists()


@pytest.mark.parametrize(
    ("told", "code", "message"),
    [
        (["evaluation.gates=sampled"], 2, "soft, hard and pruned with --measure"),
        (["generation.num_beams=0"], 1, "num_beams"),
        (["data.test=nowhere"], 1, "nowhere"),
        (["model.width=3"], 1, "model.width"),
        (["generation.target=yy"], 1, "generation.target=yy is not what all examples are"),
        (["--language", "yy", "data.pairs=[en-xx]"], 1, "the model writes yy, not xx"),
    ],
)
def test_nothing_is_written_where_it_cannot_be_measured(
    latent_run: Path, depthwise: Depthwise, tmp_path: Path, told: list[str], code: int, message: str
) -> None:
    found, _, errors = depthwise("prune", latent_run, tmp_path / "smaller", "--measure", "--device", "cpu", *told)
    assert (found, message in errors) == (code, True), errors
    assert not (tmp_path / "smaller").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../../evil", "../../evil is no name of a file"),
        ("a/b", "a/b is no name of a file"),
        ("test", "test stands for RUN's own scores; choose another name such as valid-pruned"),
        ("valid", "valid stands for RUN's own scores"),
        ("test-hard", "test-hard stands for RUN's own scores"),
        ("valid-soft", "valid-soft stands for RUN's own scores"),
        ("test-hard-depth-1", "test-hard-depth-1 is a result of RUN already; choose another name"),
        ("depths", "depths is a result of RUN already; choose another name"),
    ],
)
def test_names_of_what_was_measured(
    latent_run: Path, depthwise: Depthwise, tmp_path: Path, name: str, message: str
) -> None:
    """They stay in the run, and its own results stay what they are."""
    assert depthwise("evaluate", latent_run, "--name", "test-hard-depth-1", "--device", "cpu")[0] == 0
    (latent_run / "results" / "depths.json").write_text("{}")
    before = {path: path.read_text() for path in (latent_run / "results").iterdir()}
    told = ["--measure", "--split", "valid", "--device", "cpu", "--name", name]
    code, _, errors = depthwise("prune", latent_run, tmp_path / "smaller", *told)
    assert (code, message in " ".join(errors.replace("│", "").split())) == (2, True), errors
    assert not (tmp_path / "smaller").exists()
    assert {path: path.read_text() for path in (latent_run / "results").iterdir()} == before


def test_predicting_to_a_language(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    """Each language by its own layers, named for every line or once for all."""
    texts = ["a b c", "b"]
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "told").write_text("".join(f"yy\t{text}\n" for text in texts))
    code, output, errors = depthwise("predict", latent_run, tmp_path / "texts", "--to", "yy", "--device", "cpu")
    assert code == 0, errors
    assert output == depthwise("predict", latent_run, tmp_path / "told", "--device", "cpu")[1]
    assert output.splitlines() == [text for text, _ in said(latent_run, [("yy", text) for text in texts])]
    code, _, errors = depthwise("predict", latent_run, tmp_path / "texts", "--to", "zz", "--device", "cpu")
    assert code == 1
    assert "the model writes xx, yy, not zz" in errors


# Heads


def heads_of(folder: Path) -> list[int]:
    return [each.num_heads for each in attention_of(load_run(folder, device="cpu").model)]


def test_heads_of_an_encoder(make_run: Any, depthwise: Depthwise, tmp_path: Path) -> None:
    """What is written says what the run says with the same heads masked."""
    run, smaller = make_run("classes"), tmp_path / "smaller"
    assert heads_of(run) == [2, 2]
    code, output, errors = depthwise("prune", run, smaller, "--heads", 0.25, "--device", "cpu")
    assert code == 0, errors
    assert f"{smaller}: 3 of 4 heads stay\n" in output
    assert f"next: depthwise evaluate {smaller}" in output
    loaded = load_run(run, device="cpu")
    importance = head_importance(loaded.task, loaded.model, 1000)
    kept = heads_to_keep(importance, 0.25)
    assert heads_of(smaller) == [len(heads) for heads in kept]
    for layer, heads in enumerate(kept):
        assert f"  layer {layer} keeps {len(heads)} of 2: {', '.join(map(str, heads))}\n" in output
    expected = without_heads(loaded.model, kept).state_dict()
    found = load_run(smaller, device="cpu").model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert depthwise("evaluate", smaller, "--device", "cpu")[0] == 0
    recipe = load_recipe(smaller / "recipe.yaml")
    assert recipe.model["encoder"]["kept_heads"] == heads_of(smaller)
    again = depthwise("prune", smaller, tmp_path / "again", "--heads", 0.34, "--device", "cpu")
    assert again[0] == 0, again[2]
    assert heads_of(tmp_path / "again") == [1, 1]


@pytest.mark.parametrize("kind", ["translation", "structured tags", "masked text", "leaving numbers"])
def test_heads_of_every_kind_of_run(make_run: Any, depthwise: Depthwise, tmp_path: Path, kind: str) -> None:
    arguments = ["--heads", 0.5, "--examples", 2, "--measure", "--device", "cpu"]
    run, smaller = make_run(kind), tmp_path / "smaller"
    code, output, errors = depthwise("prune", run, smaller, *arguments)
    assert code == 0, errors
    total = sum(heads_of(run))
    assert sum(heads_of(smaller)) == total // 2
    rows = [line.split("│")[1:-1] for line in output.splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert cells["encoder heads"] == [str(total), str(total // 2)]
    before, after = (int(cell.replace(",", "")) for cell in cells["parameters"])
    assert before > after
    evaluations = [read_evaluation(folder / "results" / "test.json") for folder in (run, smaller)]
    assert cells[evaluations[0].metric] == [f"{found.value:.2f}" for found in evaluations]
    assert all(found.flops is not None for found in evaluations)
    assert evaluations[0].flops > evaluations[1].flops  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "share", "message"),
    [
        ("classes", 1.5, "1.5 is no share of heads to prune; give one above 0 and below 1"),
        ("classes", 0.1, "a share of 0.1 of 4 heads is less than one; give at least 0.25"),
        ("classes", 0.75, "without 3 of 4 heads nothing would be left in some of the 2 blocks; give at most 0.5"),
        ("text", 0.5, "this model has no encoder, and heads of decoders are not pruned"),
    ],
)
def test_heads_that_cannot_be_pruned(
    make_run: Any, depthwise: Depthwise, tmp_path: Path, kind: str, share: float, message: str
) -> None:
    code, _, errors = depthwise("prune", make_run(kind), tmp_path / "none", "--heads", share, "--device", "cpu")
    assert (code, message in errors) == (1, True)
    assert not (tmp_path / "none").exists()


def test_no_heads_are_pruned_where_that_cannot_be_measured(make_run: Any, depthwise: Depthwise, tmp_path: Path) -> None:
    run = make_run("classes")
    recipe = load_recipe(run / "recipe.yaml")
    without = replace(recipe, data=replace(recipe.data, test=None))
    (run / "recipe.yaml").write_text(recipe_yaml(without))
    told = ["--heads", "0.25", "--measure", "--device", "cpu"]
    code, _, errors = depthwise("prune", run, tmp_path / "none", *told)
    assert (code, "the recipe names no test data; add data.test=FILE" in errors) == (1, True)
    assert not (tmp_path / "none").exists()


def test_heads_and_layers_apart(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    code, _, errors = depthwise("prune", latent_run, tmp_path / "none", "--heads", 0.5, "--keep", 1)
    assert code == 2
    assert "is about layers, not about heads" in errors


def test_heads_of_a_latent_run(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    """Gates and what the recipe says of them stay."""
    code, _, errors = depthwise("prune", latent_run, tmp_path / "heads", "--heads", 0.5, "--device", "cpu")
    assert code == 0, errors
    assert load_recipe(tmp_path / "heads" / "recipe.yaml").evaluation.gates == "hard"
    assert depthwise("prune", tmp_path / "heads", tmp_path / "both", "--keep", 2)[0] == 0
    found = load_run(tmp_path / "both", device="cpu").model.config
    assert found.decoder["num_layers"] == 2
    assert found.encoder["kept_heads"] == load_run(tmp_path / "heads", device="cpu").model.config.encoder["kept_heads"]


def test_only_a_run_is_replaced(latent_run: Path, depthwise: Depthwise, tmp_path: Path) -> None:
    """The data that a recipe points to, for one, is not."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "en-xx.tsv").write_text("a\tb\n")
    code, _, errors = depthwise("prune", latent_run, data, "--force")
    sentence = f"{data} is not empty and holds no run to replace; give another folder"
    assert (code, errors) == (1, f"error: {sentence}\n")
    assert (data / "en-xx.tsv").read_text() == "a\tb\n"


def test_a_destination_is_looked_at_before_heads_are(make_run: Any, depthwise: Depthwise, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, _, errors = depthwise("prune", make_run("classes"), tmp_path / "full", "--heads", 0.25, "--device", "cpu")
    assert (code, "is not empty" in errors) == (1, True)
