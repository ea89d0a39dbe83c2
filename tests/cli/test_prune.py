"""``depthwise prune``: a smaller run that says what the larger one says with hard gates."""

from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import load_recipe, parse_recipe, recipe_yaml
from depthwise.evaluation import load_run, predict_all
from depthwise.evaluation.results import read_evaluation
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
        (["--keep", "4"], "the decoder has 3 layers; keep 1 to 3 of them, not 4"),
    ],
)
def test_what_cannot_be_pruned(
    latent_run: Path, depthwise: Depthwise, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, _, errors = depthwise("prune", latent_run, tmp_path / "none", *arguments)
    assert (code, message in errors) == (1, True)
    assert not (tmp_path / "none").exists()


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
    assert cells["decoder layers"] == (["3", "1.5", "1.5"] if language is None else ["3", "1.5", "1"])
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
