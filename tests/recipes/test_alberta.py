"""Recipes of ALBERTa: pretraining in all sizes, and every task of the poster's tables."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from depthwise.config import (
    ModelConfig,
    StructureExitConfig,
    built_in,
    model_options,
    parse_model,
    preset,
    read_recipe,
)
from depthwise.config.alberta import SIZES
from depthwise.depth import StructureExit
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.tasks.build import TASKS, _with_pretrained

NAMES = sorted(recipe.name for recipe in built_in() if "/alberta-" in recipe.name)
PRETRAINING = [name for name in NAMES if name.startswith("masked_language_modeling/")]
TUNING = [name for name in NAMES if name not in PRETRAINING]
GLUE = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")


def options(name: str, *changes: str) -> ModelConfig:
    return parse_model({**model_options(read_recipe(name, changes).model), "vocab_size": 8000})


def test_all_are_there() -> None:
    assert {name.rpartition("/")[2] for name in PRETRAINING} == {
        *(f"alberta-small{kind}" for kind in ("", "-fixed", "-mean", "-wanted", "-wanted-fixed")),
        *(f"alberta-{size}" for size in ("base", "large", "xlarge", "xxlarge")),
    }
    assert {f"classification/alberta-{task}" for task in GLUE} < set(TUNING)
    assert {"answering/alberta-squad2", "tagging/alberta-conll2003", "tagging/alberta-small-conll2003"} < set(TUNING)


@pytest.mark.parametrize("name", PRETRAINING)
def test_pretraining_masks_ngrams_and_learns_order(name: str) -> None:
    """The small ones learn no order, and have embeddings that are soon learned."""
    recipe, model = read_recipe(name), options(name)
    assert recipe.masking.units == "ngrams"
    assert recipe.tokenizer.first_token
    assert model.sentence_order == ("-small" not in name)
    assert model.scale_embedding == ("-small" in name)
    assert model.encoder is not None
    assert model.encoder.norm == "pre"
    assert model.encoder.relative is not None
    assert (model.structure is None) == name.endswith("-fixed")


@pytest.mark.parametrize("name", PRETRAINING)
def test_what_one_gpu_trains_is_recorded(name: str) -> None:
    """The others are for several processes, which record nothing."""
    assert read_recipe(name).training.graphs == ("-small" in name)


@pytest.mark.parametrize("kind", ["", "-wanted"])
def test_the_small_one_is_small_and_its_fixed_counterpart_as_wide_and_deep(kind: str) -> None:
    small, fixed = (options(f"masked_language_modeling/alberta-small{kind}{end}") for end in ("", "-fixed"))
    assert small.encoder == fixed.encoder
    assert small.structure is not None
    assert (small.structure.num_static, small.exit_depths[-1]) == (2, 12)
    with torch.device("meta"):
        model = DepthwiseForMaskedLM(DepthwiseConfig.from_options(small))
    assert 9e6 < sum({id(weight): weight.numel() for weight in model.parameters()}.values()) < 11e6


def test_as_many_layers_as_are_wanted_run_all_blocks() -> None:
    name = "masked_language_modeling/alberta-small-wanted"
    recipe, encoder = read_recipe(name), options(name).encoder
    assert encoder is not None
    blocks = [encoder.block_of(layer) for layer in range(12)]
    assert recipe.training.depth_target == 6
    assert set(blocks[:6]) == set(blocks) == set(range(6))


@pytest.mark.parametrize(
    "change", ["model.structure.cumulative=false", "model.encoder.positions=none", "model.encoder.relative=null"]
)
def test_ablations_are_changes(change: str) -> None:
    """Each is another model, of which a tiny one learns, stops and says the same whoever is beside."""
    name = "masked_language_modeling/alberta-small"
    changed = options(name, change)
    assert changed != options(name)
    torch.manual_seed(1)
    model = DepthwiseForMaskedLM(DepthwiseConfig.from_options(tiny(changed))).double()
    parts = {name.split(".")[3] for name, _ in model.model.encoder.stack.named_parameters(prefix="model.encoder.stack")}
    assert ("distances" in parts) == ("relative" not in change)
    assert (model.model.encoder.embedding.positions is None) == ("positions" in change)
    ids, labels = torch.randint(4, 50, (3, 7)), torch.randint(4, 50, (3, 7))
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    unused = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    assert all(name.startswith(("model.pooler.", "sentence_order.")) for name in unused), unused
    model.eval().use_policy(StructureExit(StructureExitConfig(threshold=0.6)))
    together = model(input_ids=ids)
    for row in range(3):
        alone = model(input_ids=ids[[row]])
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-9, atol=1e-11)
        assert torch.equal(alone.depths[0], together.depths[row])


def tiny(model: ModelConfig) -> ModelConfig:
    """The same model, but for its sizes."""
    assert model.encoder is not None
    assert model.structure is not None
    sizes = {"num_layers": 4, "num_heads": 2, "ffn_width": 16, "dropout": 0.0, "attention_dropout": 0.0}
    return replace(
        model,
        vocab_size=50,
        width=8,
        embedding_width=4,
        encoder=replace(model.encoder, groups=None, **sizes),
        structure=replace(model.structure, num_static=1, hidden_width=None),
    )


@pytest.mark.parametrize("name", TUNING)
def test_tuning_begins_with_a_pretrained_encoder(name: str) -> None:
    begins, kind = read_recipe(name).model["from"], re.search("-small(-wanted(-fixed)?)?(?=-)", name)
    assert begins == ("runs/alberta-base" if kind is None else f"runs/alberta{kind[0]}")
    assert f"masked_language_modeling/{begins.removeprefix('runs/')}" in PRETRAINING


@pytest.mark.parametrize(
    "task",
    [
        name.replace("alberta-small-wanted", "{}")
        for name in TUNING
        if "-small-wanted-" in name and "-fixed" not in name
    ],
)
def test_fixed_depth_is_tuned_like_what_is_compared_with_it(task: str) -> None:
    ours, fixed = (read_recipe(task.format(f"alberta-small-wanted{kind}")) for kind in ("", "-fixed"))
    assert (ours.training.depth_cost, ours.training.depth_target) == (0.1, 6)
    assert replace(ours.training, depth_cost=0.0, depth_target=None) == fixed.training
    assert (ours.data, ours.tokenizer, ours.evaluation) == (fixed.data, fixed.tokenizer, fixed.evaluation)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name in TUNING if "-small-" not in name])
def test_tuning_in_all_four_sizes(name: str, size: str, tmp_path: Path) -> None:
    """``model.from`` names the run, of which the encoder is built whole on no device in particular."""
    folder = tmp_path / f"alberta-{size}"
    pretrained = replace(preset(f"alberta-{size}"), vocab_size=30_000)
    DepthwiseConfig.from_options(pretrained).save_pretrained(folder)
    recipe = _with_pretrained(read_recipe(name, [f"model.from={folder}"]))
    found = parse_model(model_options(recipe.model))
    assert (found.width, found.encoder, found.structure) == (pretrained.width, pretrained.encoder, pretrained.structure)
    assert recipe.tokenizer.path == str(folder)
    config = DepthwiseConfig.from_options(found)
    with torch.device("meta"):
        model = TASKS[recipe.task].model_class(config)
    assert model.structure is not None
    assert model.model.encoder.stack.num_layers == 43
