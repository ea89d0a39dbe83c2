"""Every weight is set: in a new model, and where a checkpoint lacks some of them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from depthwise.mixers import CNN, Distances, KernelPredictor, LightConv, ScaledLinear
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.language_head import LanguageHead
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

Model = Callable[..., Any]
Config = Callable[..., DepthwiseConfig]
HEADS = ("causal_lm", "masked_lm", "sequence_classification", "token_classification", "question_answering")
VARIANTS: dict[str, dict[str, Any]] = {
    **{head: {"head": head} for head in HEADS},
    "learned positions": {"head": "causal_lm", "stack": {"positions": "learned", "max_positions": 9}},
    "relative positions": {"head": "masked_lm", "stack": {"relative": {"max_distance": 128}}},
    "adaptive": {"head": "causal_lm", "adaptive": {"cutoffs": [6, 11], "factor": 2}},
    "untied adaptive": {
        "head": "causal_lm",
        "adaptive": {"cutoffs": [6, 11], "factor": 2},
        "tied_embeddings": "none",
    },
    "untied": {"head": "seq2seq", "tied_embeddings": "none"},
    "first token": {"head": "sequence_classification", "pooling": "first"},
    "pooler": {"head": "sequence_classification", "pooling": "first_tanh", "token_types": 2},
    "transform": {"head": "masked_lm", "head_transform": "gelu", "embedding_norm": True, "tied_embeddings": "none"},
    "narrow embeddings": {"head": "masked_lm", "embedding_width": 16, "stack": {"shared_layers": [0]}},
}


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that Transformers takes for missing weights holds NaN until somebody writes to it."""
    empty_like = torch.empty_like

    def poison(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        fresh = empty_like(tensor, *args, **options)
        return fresh.fill_(float("nan")) if fresh.is_floating_point() and fresh.device.type != "meta" else fresh

    monkeypatch.setattr(torch, "empty_like", poison)


def assert_initialized(model: nn.Module, only: set[str] | None = None) -> None:
    """Each weight has the distribution of its kind; ``only`` names those to look at."""
    seen: set[int] = set()  # a weight that is tied has the distribution of the module that comes first
    for module_name, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) not in seen and (only is None or f"{module_name}.{name}".removeprefix(".") in only):
                _assert_distribution(module, name, weight.detach())
            seen.add(id(weight))


def _assert_distribution(module: nn.Module, name: str, weight: Tensor) -> None:
    assert weight.isfinite().all()
    if name in ("bias", "conv_bias"):
        assert not weight.any()
    elif isinstance(module, nn.LayerNorm):
        assert (weight == 1).all()
    elif isinstance(module, Distances):
        _assert_spread(weight, 1, 5)
    elif isinstance(module, nn.Embedding | LanguageHead):
        _assert_spread(weight, weight.shape[1] ** -0.5, 5 * weight.shape[1] ** -0.5)
    elif isinstance(module, KernelPredictor):
        _assert_spread(weight, module.in_features**-0.5 / math.sqrt(3), module.in_features**-0.5)
    elif isinstance(module, LightConv):
        heads, taps = weight.shape
        bound = math.sqrt(6 / (taps + heads * taps))
        _assert_spread(weight, bound / math.sqrt(3), bound)
    elif isinstance(module, nn.Linear | CNN):
        taps = weight[0, 0].numel()
        gain = module.gain if isinstance(module, ScaledLinear) else module.out_gain if isinstance(module, CNN) else 1
        bound = gain * math.sqrt(6 / (taps * sum(weight.shape[:2])))
        _assert_spread(weight, bound / math.sqrt(3), bound)
    else:
        pytest.fail(f"no rule for {name} of {type(module).__name__}")


def _assert_spread(weight: Tensor, deviation: float, bound: float) -> None:
    """Zero mean, the given standard deviation (as far as the number of samples tells), nothing beyond the bound."""
    assert weight.abs().max() <= bound
    slack = 4 / math.sqrt(weight.numel())
    assert abs(float(weight.double().mean())) < slack * deviation
    assert weight.double().square().mean().sqrt() == pytest.approx(deviation, rel=max(slack, 0.05))


# New models


def test_a_new_model(config_of: Config, mixer: str) -> None:
    assert_initialized(DepthwiseForSeq2SeqLM(config_of("seq2seq", mixer, width=64, vocab_size=200)))


def test_published_models_start_as_the_reference_does() -> None:
    """Xavier everywhere but in the feed-forward maps of its Transformer, which start as torch's own."""
    for name, bounds in (("transformer", (512**-0.5, 1024**-0.5)), ("dynamicconv", (math.sqrt(6 / 1536),) * 2)):
        config = DepthwiseConfig.from_preset(f"iwslt-{name}", vocab_size=50, source_vocab_size=50)
        model: Any = DepthwiseForSeq2SeqLM(config)
        block = model.model.decoder.stack.layers[0]
        for linear, bound in zip((block.feed_forward.hidden, block.feed_forward.out), bounds, strict=True):
            _assert_spread(linear.weight.detach(), bound / math.sqrt(3), bound)
        bound = math.sqrt(6 / 1024)
        _assert_spread(block.cross.projections.out.weight.detach(), bound / math.sqrt(3), bound)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_new_models_of_other_shapes(config_of: Config, build: Model, variant: dict[str, Any]) -> None:
    assert_initialized(type(build(**variant))(config_of(**variant)))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_nothing_depends_on_what_memory_held(build: Model, variant: dict[str, Any]) -> None:
    """Poisoned weights are all overwritten by the rules of initialisation."""
    model = build(**variant)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(float("nan"))
    model.apply(model._init_weights)
    assert all(weight.isfinite().all() for weight in model.parameters())


def test_padding_starts_at_zero(build: Model, config_of: Config) -> None:
    for variant in ({"head": "seq2seq", "tied_embeddings": "none"}, {"head": "masked_lm", "pad_token_id": 7}):
        config = config_of(**variant)
        model = type(build(**variant))(config)
        tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        assert tables
        assert not any(table.weight[config.pad_token_id].any() for table in tables)


def test_padding_of_an_adaptive_embedding_starts_at_zero(build: Model, config_of: Config) -> None:
    variant = {"head": "causal_lm", "adaptive": {"cutoffs": [6, 11], "factor": 2}, "pad_token_id": 7}
    model = type(build(**variant))(config_of(**variant))
    assert not model.model.decoder.embedding.tokens.tables[1].weight[1].any()


def test_no_buffers(build: Model, mixer: str) -> None:
    """Nothing but parameters: there is no state that a checkpoint could lack without a word."""
    model = build("seq2seq", mixer)
    assert not list(model.buffers())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters(remove_duplicate=False)}


# Checkpoints that lack something


def without(folder: Path, part: str) -> set[str]:
    """Takes the weights of a part out of a saved model; their names."""
    weights = load_file(folder / "model.safetensors")
    dropped = {name for name in weights if part in name}
    assert dropped
    kept = {name: weight for name, weight in weights.items() if name not in dropped}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return dropped


def assert_only_missing_are_new(model: Any, loaded: Any, dropped: set[str]) -> None:
    assert not any(weight.is_meta for weight in loaded.parameters())
    assert_initialized(loaded, dropped)
    weights = dict(model.named_parameters())
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, weights[name]) == (name not in dropped)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("part", ["layers.1.mixer.", "layers.0.mixer_residual", "final_norm"])
def test_a_missing_part_of_a_stack(build: Model, tmp_path: Path, mixer: str, part: str) -> None:
    model = build("token_classification", mixer, width=24).float()
    model.save_pretrained(tmp_path)
    dropped = without(tmp_path, part)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert set(report["missing_keys"]) == dropped
    assert_only_missing_are_new(model, loaded, dropped)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("part", "tied"),
    [
        ("encoder.embedding.tokens", "none"),
        ("decoder.embedding.tokens", "decoder"),
        ("head", "none"),
        ("layers.0.cross", "all"),
        ("layers.1.feed_forward.", "all"),
        ("model.decoder.stack", "all"),
        ("embedding.positions", "all"),
    ],
)
def test_a_missing_part_of_a_translation_model(build: Model, tmp_path: Path, part: str, tied: str) -> None:
    stack = {"positions": "learned", "max_positions": 32}
    model = build("seq2seq", "lightconv", width=24, tied_embeddings=tied, stack=stack).float()
    model.save_pretrained(tmp_path)
    dropped = without(tmp_path, part)
    loaded, _ = type(model).from_pretrained(tmp_path, output_loading_info=True)
    if tied == "decoder":
        assert loaded.head.weight is loaded.model.decoder.embedding.tokens.weight
    assert_only_missing_are_new(model, loaded, dropped)


@pytest.mark.usefixtures("poisoned")
def test_a_missing_matrix_that_is_tied(build: Model, tmp_path: Path) -> None:
    """The one matrix of all three places is new, and still one."""
    model = build("seq2seq", width=24).float()
    model.save_pretrained(tmp_path)
    dropped = without(tmp_path, "embedding.tokens")
    loaded = DepthwiseForSeq2SeqLM.from_pretrained(tmp_path)
    weight = loaded.model.encoder.embedding.tokens.weight
    assert weight is loaded.model.decoder.embedding.tokens.weight
    assert weight is loaded.head.weight
    assert not weight[1].any()
    assert_only_missing_are_new(model, loaded, {*dropped, "model.encoder.embedding.tokens.weight"})


@pytest.mark.usefixtures("poisoned")
def test_the_padding_row_of_a_checkpoint_is_kept(build: Model, tmp_path: Path) -> None:
    """Zero is where padding starts, not where a loaded row is put back to."""
    model = build("masked_lm").float()
    model.save_pretrained(tmp_path)
    without(tmp_path, "final_norm")
    tokens = type(model).from_pretrained(tmp_path).model.encoder.embedding.tokens
    assert tokens.weight[1].all()
    tokens.weight._is_hf_initialized = True  # the mark that Transformers puts on what it loaded
    model._init_weights(tokens)
    assert tokens.weight[1].all()


@pytest.mark.usefixtures("poisoned")
def test_an_empty_checkpoint(config_of: Config, tmp_path: Path, mixer: str) -> None:
    """With every weight missing nothing stays as memory held it."""
    config_of("seq2seq", mixer, width=64, vocab_size=200).save_pretrained(tmp_path)
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = DepthwiseForSeq2SeqLM.from_pretrained(tmp_path)
    assert not any(weight.is_meta for weight in loaded.parameters())
    assert_initialized(loaded)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_empty_checkpoints_of_other_shapes(
    config_of: Config, build: Model, tmp_path: Path, variant: dict[str, Any]
) -> None:
    config_of(**variant).save_pretrained(tmp_path)
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_initialized(type(build(**variant)).from_pretrained(tmp_path))
