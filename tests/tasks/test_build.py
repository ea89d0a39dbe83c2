"""From a recipe, or a run, to a task."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from depthwise.config import parse_recipe, recipe_yaml
from depthwise.errors import CheckpointError, ConfigError
from depthwise.tasks import Task, TextClassification, Translation, load_task, open_task
from depthwise.tasks.build import run_recipe


def write_run(task: Task, folder: Path) -> None:
    folder.mkdir()
    task.save(folder)
    task.new_model().save_pretrained(folder)
    (folder / "recipe.yaml").write_text(recipe_yaml(task.resolved()))


def test_a_run_gives_its_task_back(classification: TextClassification, tmp_path: Path) -> None:
    write_run(classification, tmp_path / "done")
    task = load_task(tmp_path / "done")
    assert isinstance(task, TextClassification)
    assert task.label_names == ("bad", "good")
    assert task.recipe == classification.resolved()
    assert task.options == classification.options


def test_separate_tokenizers(translation: Translation, tmp_path: Path) -> None:
    model = {**translation.recipe.model, "tied_embeddings": "decoder"}
    recipe = replace(translation.recipe, tokenizer=replace(translation.recipe.tokenizer, joint=False), model=model)
    task = open_task(recipe, tmp_path / "other")
    assert isinstance(task, Translation)
    assert not task.tokenizers.joint
    write_run(task, tmp_path / "done")
    assert not load_task(tmp_path / "done").tokenizers.joint


def test_tokenizers_of_a_folder_and_of_codes(translation: Translation, tmp_path: Path) -> None:
    translation.tokenizers.save(tmp_path / "saved")
    named = replace(translation.recipe, tokenizer=replace(translation.recipe.tokenizer, path=str(tmp_path / "saved")))
    assert open_task(named, tmp_path / "x").tokenizers.source.get_vocab() == translation.tokenizers.source.get_vocab()
    (tmp_path / "codes").write_text("#version: 0.2\nb c</w>\na b</w>\n")
    (tmp_path / "train.tsv").write_text("ab c\tab\n")
    coded = replace(translation.recipe, tokenizer=replace(translation.recipe.tokenizer, codes=str(tmp_path / "codes")))
    tokenizer = open_task(coded, tmp_path / "y").tokenizers.source
    assert tokenizer.tokenize("ab c") == ["ab</w>", "c</w>"]
    assert "bc</w>" not in tokenizer.get_vocab()


def test_codes_of_a_run_that_another_one_goes_on_from(translation: Translation, tmp_path: Path) -> None:
    """Its tokenizer is taken instead, and the recipe that the new run keeps can be read again."""
    (tmp_path / "codes").write_text("#version: 0.2\na b</w>\n")
    coded = replace(translation.recipe, tokenizer=replace(translation.recipe.tokenizer, codes=str(tmp_path / "codes")))
    write_run(open_task(coded, tmp_path / "new"), tmp_path / "first")
    (tmp_path / "codes").unlink()
    task = open_task(replace(coded, model={"from": str(tmp_path / "first")}), tmp_path / "other")
    write_run(task, tmp_path / "second")
    first, second = (load_task(tmp_path / run) for run in ("first", "second"))
    assert second.tokenizers.source.get_vocab() == first.tokenizers.source.get_vocab()


def test_a_run_without_a_recipe_is_judged_by_its_model(translation: Translation, tmp_path: Path) -> None:
    write_run(translation, tmp_path / "done")
    (tmp_path / "done" / "recipe.yaml").unlink()
    assert run_recipe(tmp_path / "done").task == "translation"
    assert load_task(tmp_path / "done").options == translation.options


def test_a_run_of_another_task(translation: Translation, classification: TextClassification, tmp_path: Path) -> None:
    write_run(translation, tmp_path / "done")
    with pytest.raises(CheckpointError, match="holds a DepthwiseForSeq2SeqLM, which does no text_classification"):
        load_task(tmp_path / "done", classification.recipe)


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no folder; give the folder of a run"):
        load_task(tmp_path / "nowhere")
    (tmp_path / "begun" / "checkpoint-5").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="holds no trained model; run its depthwise train command again"):
        load_task(tmp_path / "begun")
    shutil.rmtree(tmp_path / "begun" / "checkpoint-5")
    with pytest.raises(CheckpointError, match="holds no trained model; give the folder of a run"):
        load_task(tmp_path / "begun")


@pytest.mark.parametrize(
    ("content", "reason"),
    [('{"mod', "not a valid JSON file"), ("{}", "Unrecognized model"), ('{"model_type": "x"}', "`x`")],
)
def test_a_damaged_configuration(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=f"the configuration in {tmp_path} cannot be read: .*{reason}") as raised:
        load_task(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_recipe_without_data(tmp_path: Path) -> None:
    recipe = parse_recipe({"task": "translation", "model": {"size": "tiny"}})
    with pytest.raises(ConfigError, match=r"data\.train +is missing; add data\.train=FILE"):
        open_task(recipe, tmp_path)


def test_the_cache(translation: Translation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DEPTHWISE_CACHE", "~/here")
    assert translation.cache == tmp_path / "here"
    monkeypatch.delenv("DEPTHWISE_CACHE")
    assert translation.cache == tmp_path / ".cache" / "depthwise"
    translation.recipe = replace(translation.recipe, data=replace(translation.recipe.data, cache="there"))
    assert translation.cache == Path("there")


def test_tokenizers_that_a_run_has_already_are_kept(translation: Translation, tmp_path: Path) -> None:
    translation.tokenizers.save(tmp_path / "run2")
    (tmp_path / "train.tsv").write_text("x y\tz\n")
    assert open_task(translation.recipe, tmp_path / "run2").tokenizers.source.get_vocab().keys() >= {"x", "z"}
    (tmp_path / "run2" / "recipe.yaml").write_text(recipe_yaml(translation.resolved()))
    task = open_task(translation.resolved(), tmp_path / "run2")
    assert task.tokenizers.source.get_vocab() == translation.tokenizers.source.get_vocab()
