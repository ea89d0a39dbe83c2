"""The recipes of Wu et al. (2019) against the settings that the paper and its released code give, cell by cell."""

from typing import Any

import pytest
import torch

from depthwise.config import Recipe, StackConfig, built_in, model_options, parse_model, read_recipe
from depthwise.models.configuration import DepthwiseConfig
from depthwise.tasks.build import TASKS

MODELS = ("transformer", "lightconv", "dynamicconv")
ENCODER, DECODER = (3, 7, 15, 31, 31, 31, 31), (3, 7, 15, 31, 31, 31)
WMT = {
    "optimizer": {"kind": "adam", "lr": 1e-3, "betas": [0.9, 0.98]},
    "schedule": {"kind": "cosine", "warmup": 10_000, "init_lr": 1e-7, "min_lr": 1e-7},
    "clip_norm": 0.0,
    "precision": "fp16",
    "label_smoothing": 0.1,
}
TRAINING: dict[str, dict[str, Any]] = {
    "translation/iwslt14": {
        "optimizer": {"kind": "adamw", "lr": 5e-4, "betas": [0.9, 0.98], "weight_decay": 1e-4},
        "schedule": {"kind": "inverse_sqrt", "warmup": 4000, "init_lr": 1e-7},
        "max_updates": 50_000,
        "batch": 4096,
        "accumulate": 1,
        "clip_norm": 0.0,
        "precision": "fp16",
        "label_smoothing": 0.1,
        "dropout": 0.3,
    },
    "translation/wmt16-en-de": {**WMT, "max_updates": 30_000, "batch": 458_752, "gpus": 8, "dropout": 0.3},
    "translation/wmt14-en-fr": {**WMT, "max_updates": 80_000, "batch": 655_360, "gpus": 8, "dropout": 0.1},
    "translation/wmt17-zh-en": {**WMT, "max_updates": 40_000, "batch": 458_752, "gpus": 8, "dropout": 0.25},
    "language_modeling/billion_word": {
        "optimizer": {"kind": "nesterov", "lr": 1.0, "momentum": 0.99},
        "schedule": {"kind": "cosine", "warmup": 16_000, "init_lr": 1e-7, "min_lr": 1e-7},
        "max_updates": 975_000,
        "batch": 65_536,
        "gpus": 8,
        "clip_norm": 0.1,
        "precision": "fp16",
        "label_smoothing": 0.0,
        "dropout": 0.1,
    },
    "summarization/cnndm": {
        "optimizer": {"kind": "adamw", "lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 1e-3},
        "schedule": {"kind": "cosine", "warmup": 10_000, "init_lr": 1e-7, "min_lr": 1e-7},
        "max_updates": 30_000,
        "clip_norm": 0.0,
        "label_smoothing": 0.1,
        "dropout": 0.3,
    },
}
"""How each benchmark is trained; ``batch`` is in tokens over all GPUs of the command."""
SEARCH = {
    "translation/iwslt14": {"num_beams": 4, "length_penalty": 1.0},
    "translation/wmt16-en-de": {"num_beams": 5, "length_penalty": 0.5},
    "translation/wmt14-en-fr": {"num_beams": 5, "length_penalty": 0.9},
    "translation/wmt17-zh-en": {"num_beams": 8},
    "summarization/cnndm": {"no_repeat_ngram": 3},
}
METRIC = {
    "translation/iwslt14": "bleu_lowercased",
    "translation/wmt16-en-de": "bleu_compounds",
    "translation/wmt14-en-fr": "bleu",
    "translation/wmt17-zh-en": "sacrebleu",
}
SHAPES = {
    "translation/iwslt14": (512, 1024, 4, {"lightconv": (False, False), "dynamicconv": (False, False)}),
    **dict.fromkeys(
        ("translation/wmt16-en-de", "translation/wmt14-en-fr", "translation/wmt17-zh-en"),
        (1024, 4096, 16, {"lightconv": (True, False), "dynamicconv": (True, True)}),
    ),
    "summarization/cnndm": (512, 2048, 8, {"lightconv": (False, False), "dynamicconv": (False, False)}),
}
"""Width, inner width, heads, and whether encoder and decoder have a GLU."""
RECIPES = [recipe.name for recipe in built_in() if recipe.name.rpartition("-")[0] in TRAINING]
ROWS = {
    "table3": (
        *("attention", "attention-windows", "cnn", "depthwise", "depthwise-kernels", "depthwise-dropconnect"),
        *("sharing", "lightconv", "dynamicconv", "dynamicconv-unnormalized", "average-decoder", "average-both"),
    ),
    "table6": ("none", "softmax", "sigmoid", "tanh", "l1", "l2", "square", "abs", "abs-l1", "abs-l2"),
    "table7": ("dynamicconv-1", "dynamicconv-3", "dynamicconv-6"),
}
ABLATIONS = [f"{table}-{row}" for table, rows in ROWS.items() for row in rows]


def stacks(recipe: Recipe) -> list[StackConfig]:
    model = parse_model({"vocab_size": 100, **model_options(recipe.model)})
    return [stack for stack in (model.encoder, model.decoder) if stack is not None]


def benchmark(name: str) -> str:
    return name.rpartition("-")[0]


def test_every_benchmark_has_its_models() -> None:
    names = {f"{name}-{model}" for name in TRAINING for model in MODELS} - {"language_modeling/billion_word-lightconv"}
    assert set(RECIPES) == names


@pytest.mark.parametrize("name", RECIPES)
def test_training(name: str) -> None:
    recipe, expected = read_recipe(name), TRAINING[benchmark(name)]
    training, num_gpus = recipe.training, expected.get("gpus", 1)
    if num_gpus > 1:
        command = next(known.facts["command"] for known in built_in() if known.name == name)
        assert f"--nproc-per-node {num_gpus} " in command
    if "batch" in expected:
        assert training.batch_tokens is not None
        assert training.batch_tokens * training.accumulate * num_gpus == expected["batch"]
    for option in ("optimizer", "schedule", "max_updates", "accumulate", "clip_norm", "precision", "label_smoothing"):
        if option in expected:
            assert getattr(training, option) == expected[option], option
    assert {stack.dropout for stack in stacks(recipe)} == {expected["dropout"]}


@pytest.mark.parametrize("name", [name for name in RECIPES if benchmark(name) in SEARCH])
def test_search_and_metric(name: str) -> None:
    recipe = read_recipe(name)
    for option, value in SEARCH[benchmark(name)].items():
        assert getattr(recipe.generation, option) == value
    if (metric := METRIC.get(benchmark(name))) is not None:
        assert recipe.evaluation.metrics is not None
        assert recipe.evaluation.metrics[0] == metric
    if recipe.task == "summarization":
        assert (recipe.data.max_source_tokens, recipe.data.too_long) == (400, "cut")


@pytest.mark.parametrize("name", [name for name in RECIPES if benchmark(name) in SHAPES])
def test_shapes(name: str) -> None:
    recipe, (width, ffn_width, num_heads, glu) = read_recipe(name), SHAPES[benchmark(name)]
    mixer = name.rpartition("-")[2]
    encoder, decoder = stacks(recipe)
    assert parse_model(model_options(recipe.model)).width == width
    for side in (encoder, decoder):
        assert (side.ffn_width, side.num_heads, side.norm) == (ffn_width, num_heads, "post")
        assert side.mixer == ("attention" if mixer == "transformer" else mixer)
    assert (encoder.num_layers, decoder.num_layers) == ((6, 6) if mixer == "transformer" else (7, 6))
    if mixer != "transformer":
        assert (encoder.kernel_sizes, decoder.kernel_sizes) == (ENCODER, DECODER)
        assert (encoder.glu, decoder.glu) == glu[mixer]


@pytest.mark.parametrize(("model", "num_layers"), [("transformer", 16), ("dynamicconv", 17)])
def test_language_models(model: str, num_layers: int) -> None:
    recipe = read_recipe(f"language_modeling/billion_word-{model}")
    config = parse_model(model_options(recipe.model))
    (decoder,) = stacks(recipe)
    assert (config.width, decoder.ffn_width, decoder.num_heads, decoder.num_layers) == (1024, 4096, 16, num_layers)
    assert (decoder.norm, decoder.has_final_norm) == ("pre", False)
    assert config.adaptive is not None
    assert (config.adaptive.cutoffs, config.adaptive.factor) == ((60_000, 160_000), 4)
    assert recipe.data.form == "lines"
    assert recipe.tokenizer.vocab_size == config.vocab_size == 793_471
    if model == "dynamicconv":
        assert decoder.kernel_sizes == (15,) * 2 + (31,) * 4 + (63,) * 11
        assert decoder.glu


@pytest.mark.parametrize("row", ABLATIONS)
def test_ablations_are_trained_like_the_big_model(row: str) -> None:
    recipe, big = read_recipe(f"translation/{row}"), read_recipe("translation/wmt16-en-de-transformer")
    assert recipe.training == big.training
    assert recipe.model == {"preset": row}
    assert not any(stack.glu for stack in stacks(recipe))
    table = row.partition("-")[0]
    assert recipe.data.test == ((f"data/wmt16_en_de/newstest{'2014' if table == 'table7' else '2013'}",))
    assert recipe.generation.num_beams == (1 if table == "table7" else 4)


@pytest.mark.parametrize("row", [row for row in ABLATIONS if not row.startswith("table7")])
def test_small_ablations_mirror_the_big_ones(row: str) -> None:
    """The same mixers and extras in two layers fewer on either side."""
    table, _, name = row.partition("-")
    if table == "table6":
        name = {"softmax": "dynamicconv", "none": "dynamicconv-unnormalized"}.get(name, f"dynamicconv-{name}")
    small = read_recipe("translation/multi30k" if name == "attention" else f"translation/multi30k-{name}")
    assert small.training == read_recipe("translation/multi30k").training
    for ours, theirs in zip(stacks(small), stacks(read_recipe(f"translation/{row}")), strict=True):
        assert ours.num_layers == theirs.num_layers - 2
        for option in ("mixer", "kernel_normalization", "dropconnect", "glu", "norm", "kernel_heads"):
            assert getattr(ours, option) == getattr(theirs, option), option
        if theirs.kernel_sizes is None or len(theirs.kernel_sizes) == 1:
            assert ours.kernel_sizes == theirs.kernel_sizes
        else:
            assert ours.kernel_sizes == theirs.kernel_sizes[: ours.num_layers]


@pytest.mark.parametrize("num_layers", [1, 3, 6])
def test_small_decoders(num_layers: int) -> None:
    _, small = stacks(read_recipe(f"translation/multi30k-dynamicconv-decoder-{num_layers}"))
    _, big = stacks(read_recipe(f"translation/table7-dynamicconv-{num_layers}"))
    assert (small.num_layers, small.kernel_sizes) == (num_layers, big.kernel_sizes)


@pytest.mark.parametrize("name", [*RECIPES, *(f"translation/{row}" for row in ABLATIONS)])
def test_models_build(name: str) -> None:
    recipe = read_recipe(name)
    with torch.device("meta"):
        TASKS[recipe.task].model_class(DepthwiseConfig.from_options(parse_model(model_options(recipe.model))))
