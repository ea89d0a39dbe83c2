"""From memory to a folder and back through the Auto classes: the same scores, tied weights tied, nothing lost."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from depthwise.models.backbone import DepthwiseModel
from depthwise.models.configuration import DepthwiseConfig

Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Path]:
    """Saves a model and gives its folder."""

    def save(model: Any) -> Path:
        model.save_pretrained(tmp_path / "run")
        return tmp_path / "run"

    return save


def load(auto_class: Any, folder: Path, **options: Any) -> Any:
    """The model from a folder; every weight was found and none was left over.

    Weights that are mapped from a file may lie at odd addresses, where matrix products round otherwise than in fresh
    memory. A copy has its own memory, so that the same weights must give the same bits.
    """
    model, report = auto_class.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(report.values()), report
    return copy.deepcopy(model)


def test_the_same_scores(
    build: Model, draw_batch: Batch, auto_class_of: Callable[[Any], Any], saved: Any, head: str, mixer: str
) -> None:
    model, batch = build(head, mixer), draw_batch(head)
    loaded = load(auto_class_of(model), saved(model))
    assert type(loaded) is type(model)
    assert loaded.config.options == model.config.options
    assert loaded.dtype == torch.float64
    assert not loaded.training
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert torch.equal(loaded(**batch).loss, model(**batch).loss)
    weights = dict(model.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.named_parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {"stack": {"positions": "learned", "max_positions": 9}, "position_offset": 2},
        {"norm": "post", "stack": {"final_norm": True, "activation": "gelu"}},
        {"tied_embeddings": "none", "source_vocab_size": 20},
        {"tied_embeddings": "decoder", "source_vocab_size": 20},
        {"scale_embedding": False, "pad_token_id": 3},
        {"embedding_width": 5, "embedding_norm": True, "head_transform": "gelu_new"},
        {"embedding_width": 5, "tied_embeddings": "none"},
        {"stack": {"shared_layers": [0, 0], "norm_epsilon": 1e-3, "activation": "gelu_new"}},
    ],
    ids=str,
)
def test_options_survive(build: Model, draw_batch: Batch, auto_class_of: Any, saved: Any, changes: Any) -> None:
    model, batch = build("seq2seq", **changes), draw_batch("seq2seq")
    loaded = load(auto_class_of(model), saved(model))
    assert loaded.config.options == model.config.options
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)


def test_only_safetensors(build: Model, saved: Any, head: str) -> None:
    files = {path.name for path in saved(build(head)).iterdir()}
    assert (
        {"config.json", "model.safetensors"} <= files <= {"config.json", "generation_config.json", "model.safetensors"}
    )


# Tied weights


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_tied_weights_stay_tied(build: Model, auto_class_of: Any, saved: Any, tied: str) -> None:
    model = build("seq2seq", tied_embeddings=tied)
    folder = saved(model)
    for one in (model, load(auto_class_of(model), folder)):
        encoder, decoder = one.model.encoder.embedding.tokens.weight, one.model.decoder.embedding.tokens.weight
        assert (encoder is decoder) == (tied == "all")
        assert (one.head.weight is decoder) == (tied != "none")
    matrices = [name for name, weight in load_file(folder / "model.safetensors").items() if weight.shape == (17, 8)]
    assert len(matrices) == {"all": 1, "decoder": 2, "none": 3}[tied]


@pytest.mark.parametrize("head", ["masked_lm", "causal_lm"])
@pytest.mark.parametrize("tied", ["all", "none"])
def test_tied_weights_of_one_stack(build: Model, auto_class_of: Any, saved: Any, head: str, tied: str) -> None:
    model = build(head, tied_embeddings=tied)
    for one in (model, load(auto_class_of(model), saved(model))):
        assert (one.head.weight is one.model.get_input_embeddings().weight) == (tied == "all")


def test_an_adaptive_language_model(build: Model, draw_batch: Batch, saved: Any) -> None:
    model = build("causal_lm", adaptive={"cutoffs": [6, 11], "factor": 2})
    folder, batch = saved(model), draw_batch("causal_lm")
    loaded = load(AutoModelForCausalLM, folder)
    assert torch.equal(loaded(**batch).loss, model(**batch).loss)
    tokens = loaded.model.decoder.embedding.tokens
    for band in range(3):
        assert loaded.head.tables[band].weight is tokens.tables[band].weight
    for band in (1, 2):
        assert loaded.head.projections[band - 1].weight is tokens.projections[band].weight
    assert sum("tables" in name for name in load_file(folder / "model.safetensors")) == 3


def test_training_moves_tied_weights_together(build: Model, draw_batch: Batch, auto_class_of: Any, saved: Any) -> None:
    model = load(auto_class_of(build("seq2seq")), saved(build("seq2seq")))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(**draw_batch("seq2seq")).loss.backward()
    optimizer.step()
    assert torch.equal(model.head.weight, model.model.decoder.embedding.tokens.weight)


# The backbone alone


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm", "token_classification"])
def test_the_backbone_of_a_saved_model(build: Model, saved: Any, head: str) -> None:
    model = build(head)
    backbone = AutoModel.from_pretrained(saved(model))
    weights = dict(model.model.named_parameters())
    assert {name for name, _ in backbone.named_parameters()} == set(weights)
    assert all(torch.equal(weight, weights[name]) for name, weight in backbone.named_parameters())


def test_a_head_on_a_saved_backbone(build: Model, saved: Any) -> None:
    """As in fine-tuning: the backbone comes from the folder, the classifier is new."""
    model = build("masked_lm")
    tuned, report = AutoModelForSequenceClassification.from_pretrained(
        saved(model), num_labels=3, output_loading_info=True
    )
    assert set(report["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert tuned.classifier.weight.shape == (3, 16)
    assert tuned.classifier.weight.isfinite().all()
    weights = dict(model.model.named_parameters())
    assert all(torch.equal(weight, weights[name]) for name, weight in tuned.model.named_parameters())


ENCODER = {"token_types": 2, "embedding_norm": True, "pooling": "first_tanh", "head_transform": "gelu"}


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification", "token_classification", "question_answering"])
def test_a_head_on_a_bare_encoder(
    config_of: Any, randomize: Any, build: Model, draw_batch: Batch, auto_class_of: Any, saved: Any, head: str
) -> None:
    """A saved encoder brings its pooler; the classifier takes it over, the others have no use for it."""
    bare, batch = randomize(DepthwiseModel(config_of(head, **ENCODER))).eval(), draw_batch(head)
    kinds = torch.randint(0, 2, batch["input_ids"].shape)
    auto_class, folder = auto_class_of(build(head)), saved(bare)
    tuned, report = auto_class.from_pretrained(folder, num_labels=3, output_loading_info=True)
    assert all(not key.startswith("model.") for key in report["missing_keys"])
    assert not report["unexpected_keys"]
    weights = dict(bare.named_parameters())
    found = dict(tuned.model.named_parameters())
    assert set(weights) - set(found) == (
        set() if head == "sequence_classification" else {"pooler.weight", "pooler.bias"}
    )
    assert all(torch.equal(weight, weights[name]) for name, weight in found.items())
    assert tuned(**batch, token_type_ids=kinds).loss.isfinite()
    tuned.save_pretrained(folder)
    again = load(auto_class, folder)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "token_type_ids": kinds}
    assert torch.equal(again(**inputs).logits, copy.deepcopy(tuned)(**inputs).logits)


# Configuration


def test_the_configuration_is_written_in_full(build: Model, saved: Any) -> None:
    """Every option of every stack stands in the file, defaults included."""
    folder = saved(build("seq2seq", "lightconv"))
    written = json.loads((folder / "config.json").read_text())
    assert written["model_type"] == "depthwise"
    assert written["architectures"] == ["DepthwiseForSeq2SeqLM"]
    expected = {
        **{"num_layers": 2, "mixer": "lightconv", "num_heads": 2, "ffn_width": 12, "kernel_sizes": [3, 5]},
        **{"kernel_heads": None, "conv_width": None, "glu": False, "kernel_normalization": "softmax"},
        **{"dropconnect": 0.0, "dropconnect_shared": False, "renormalize_padding": False, "conv_bias": True},
        **{"kernel_from": "conv_input", "norm": "pre", "final_norm": None, "activation": "relu"},
        **{"positions": "sinusoidal", "max_positions": 1024, "dropout": 0.0, "attention_dropout": 0.0},
        **{"activation_dropout": 0.0, "input_dropout": 0.0, "shared_layers": None, "norm_epsilon": 1e-05},
        **{"connections": "residual", "layer_dropout": 0.0, "groups": None, "relative": None, "kept_heads": None},
        "out_gain": None,
        "ffn_init": "xavier",
    }
    assert written["encoder"] == written["decoder"] == expected
    for option in ("vocab_size", "width", "tied_embeddings", "scale_embedding", "position_offset", "pooling"):
        assert option in written


def test_the_configuration_comes_back(build: Model, saved: Any, head: str) -> None:
    exits = {} if head == "masked_lm" else {"exits": {}, "policy": {"kind": "fixed", "depth": 2}}
    model = build(head, "dynamicconv", num_labels=5, **exits)
    config = AutoConfig.from_pretrained(saved(model))
    assert isinstance(config, DepthwiseConfig)
    assert config.options == model.config.options
    loaded, original = config.to_dict(), model.config.to_dict()
    assert loaded.pop("_name_or_path") != original.pop("_name_or_path")
    assert loaded == original


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_another_precision(build: Model, draw_batch: Batch, auto_class_of: Any, saved: Any, dtype: Any) -> None:
    for head, mixer in (("seq2seq", "dynamicconv"), ("causal_lm", "average"), ("question_answering", "cnn")):
        model, batch = build(head, mixer).float(), draw_batch(head)
        loaded = load(auto_class_of(model), saved(model), dtype=dtype)
        assert {weight.dtype for weight in loaded.parameters()} == {dtype}
        output = loaded(**batch)
        assert output.logits.dtype == dtype
        assert output.logits.isfinite().all()
        assert output.loss.isfinite()
        torch.testing.assert_close(output.loss, model(**batch).loss, rtol=0.1, atol=0.1)
