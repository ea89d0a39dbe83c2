"""BERT, RoBERTa and ALBERT give the numbers that Transformers gives, with every head, padding and pairs of texts.

All weights are random, those of norms and biases too: what starts as 0 or 1 would hide mistakes.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
)

from depthwise.depth import Plan
from depthwise.interop import hf
from depthwise.interop.hf import convert_hf
from depthwise.models.auto import MODELS
from depthwise.models.configuration import DepthwiseConfig

TOLERANCE, EXACT = 1e-5, 1e-10
SMALL = {
    **{"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3},
    **{"intermediate_size": 40, "max_position_embeddings": 20},
}
CONFIGS: dict[str, Callable[..., PreTrainedConfig]] = {
    "Bert": BertConfig,
    "Roberta": RobertaConfig,
    "Albert": AlbertConfig,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("Bert", {}),
    "BERT, other options": (
        "Bert",
        {"hidden_act": "silu", "layer_norm_eps": 1e-3, "type_vocab_size": 3, "pad_token_id": 7},
    ),
    "RoBERTa": ("Roberta", {"type_vocab_size": 1}),
    "RoBERTa, other options": ("Roberta", {"hidden_act": "relu", "pad_token_id": 4, "type_vocab_size": 2}),
    "ALBERT": ("Albert", {"embedding_size": 10}),
    "ALBERT of one width": ("Albert", {"embedding_size": 24, "hidden_act": "gelu"}),
    "ALBERT in groups": (
        "Albert",
        {"embedding_size": 10, "num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
}
HEADS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "Model": (AutoModel, ("last_hidden_state", "pooler_output")),
    "ForMaskedLM": (AutoModelForMaskedLM, ("logits",)),
    "ForSequenceClassification": (AutoModelForSequenceClassification, ("logits",)),
    "ForTokenClassification": (AutoModelForTokenClassification, ("logits",)),
    "ForQuestionAnswering": (AutoModelForQuestionAnswering, ("start_logits", "end_logits")),
}
Inputs = dict[str, Tensor]


def built(family: str, head: str, **changes: Any) -> PreTrainedModel:
    """A model of Transformers in which every weight is drawn at random."""
    start, options = FAMILIES[family]
    labels = {} if head == "ForQuestionAnswering" else {"num_labels": 3}
    model = getattr(transformers, start + head)(CONFIGS[start](**{**SMALL, **labels, **options, **changes}))
    with torch.no_grad():
        for module in model.modules():
            for name, weight in module.named_parameters(recurse=False):
                weight.normal_(std=0.3)
                if isinstance(module, torch.nn.LayerNorm) and name == "weight":
                    weight.add_(1)
    return model.eval()


def drawn(config: PreTrainedConfig) -> Inputs:
    """Rows of different lengths, padded on the right, the second half of each of the last type."""
    lengths, steps = torch.tensor([9, 4, 7]), torch.arange(9)
    mask = steps < lengths[:, None]
    ids = torch.randint(8, config.vocab_size, mask.shape).masked_fill(~mask, config.pad_token_id)
    kinds = torch.where(2 * steps > lengths[:, None], config.type_vocab_size - 1, 0)
    return {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": kinds}


def imported(model: PreTrainedModel, folder: Path, auto_class: Any, **options: Any) -> Any:
    """The model through our command's function and through Transformers' loader; nothing is missing or left over."""
    model.save_pretrained(folder / "theirs")
    convert_hf(folder / "theirs", folder / "run", **options)
    ours, report = auto_class.from_pretrained(folder / "run", output_loading_info=True)
    assert not any(report.values()), report
    return ours


def furthest(theirs: Any, ours: Any, name: str, mask: Tensor) -> float:
    """The largest difference between two outputs, on real tokens where there is something for each token."""
    one, other = theirs[name], ours[name]
    assert one.shape == other.shape
    if one.shape[:2] == mask.shape:
        one, other = one[mask.bool()], other[mask.bool()]
    assert one.abs().max() > 0.1
    return float((one - other).abs().max())


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_numbers_of_transformers(family: str, head: str, tmp_path: Path) -> None:
    theirs, (auto_class, outputs) = built(family, head), HEADS[head]
    ours = imported(theirs, tmp_path, auto_class)
    assert type(ours) is MODELS[auto_class]
    inputs = drawn(theirs.config)
    theirs, ours = theirs.double(), ours.double()  # in float32, rounding differs from one processor to the next
    for given in (inputs, {**inputs, "token_type_ids": None}):
        one, other = theirs(**given), ours(**given)
        assert all(furthest(one, other, name, inputs["attention_mask"]) < EXACT for name in outputs)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_every_hidden_state(family: str, tmp_path: Path) -> None:
    """Layer for layer, so that exits see the states that the pretrained model has there."""
    theirs = built(family, "Model")
    ours, inputs = imported(theirs, tmp_path, AutoModel), drawn(theirs.config)
    one = theirs(**inputs, output_hidden_states=True).hidden_states
    other = ours(**inputs, output_hidden_states=True).hidden_by_depth
    if FAMILIES[family][0] == "Albert":
        one = one[-len(other) :]
    assert len(one) == len(other) == ours.config.num_hidden_layers + 1
    real = inputs["attention_mask"].bool()
    assert all((a - b)[real].abs().max() < TOLERANCE for a, b in zip(one, other, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_sequence(family: str, tmp_path: Path) -> None:
    """Every position has its own vector, up to the last one that the model knows."""
    theirs = built(family, "Model")
    ours = imported(theirs, tmp_path, AutoModel)
    longest = ours.config.encoder["max_positions"]
    assert longest == 20 - (theirs.config.pad_token_id + 1 if FAMILIES[family][0] == "Roberta" else 0)
    ids = torch.randint(8, 50, (1, longest))
    everything = torch.ones_like(ids)
    assert furthest(theirs(ids, everything), ours(ids, everything), "last_hidden_state", everything) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("family", ["BERT", "RoBERTa", "ALBERT"])
def test_separate_output_embeddings(family: str, tmp_path: Path) -> None:
    theirs = built(family, "ForMaskedLM", tie_word_embeddings=False)
    ours, inputs = imported(theirs, tmp_path, AutoModelForMaskedLM), drawn(theirs.config)
    assert ours.head.weight is not ours.model.get_input_embeddings().weight
    assert furthest(theirs(**inputs), ours(**inputs), "logits", inputs["attention_mask"]) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("family", ["BERT", "ALBERT"])
def test_pretraining_is_masked_language_modelling(family: str, tmp_path: Path) -> None:
    theirs = built(family, "ForPreTraining", num_labels=2)
    ours, inputs = imported(theirs, tmp_path, AutoModelForMaskedLM), drawn(theirs.config)
    real = inputs["attention_mask"].bool()
    assert (theirs(**inputs).prediction_logits - ours(**inputs).logits)[real].abs().max() < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForQuestionAnswering"])
def test_the_encoder_of_a_model_with_a_head(head: str, tmp_path: Path) -> None:
    theirs = built("BERT", head, **({"num_labels": 2} if head == "ForPreTraining" else {}))
    has_pooler = theirs.bert.pooler is not None
    theirs.save_pretrained(tmp_path / "theirs")
    done = convert_hf(tmp_path / "theirs", tmp_path / "run", bare=True)
    assert done.model == "DepthwiseModel"
    assert any("no pooler" in remark for remark in done.remarks) != has_pooler
    ours, report = AutoModel.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert set(report["missing_keys"]) == (set() if has_pooler else {"pooler.weight", "pooler.bias"})
    inputs = drawn(theirs.config)
    one, other = theirs.bert(**inputs), ours(**inputs)
    for name in ("last_hidden_state", *(["pooler_output"] if has_pooler else [])):
        assert furthest(one, other, name, inputs["attention_mask"]) < TOLERANCE


@torch.no_grad()
def test_step_by_step(tmp_path: Path) -> None:
    """The steps that the module's own text lists make the same model."""
    theirs = built("BERT, other options", "ForSequenceClassification")
    ours, inputs = imported(theirs, tmp_path, AutoModelForSequenceClassification), drawn(theirs.config)
    names = {"folder": tmp_path / "theirs", "DepthwiseConfig": DepthwiseConfig, **vars(hf)}
    assert hf.__doc__ is not None
    exec(textwrap.dedent(hf.__doc__.partition("one by one:\n")[2]), names)
    model = names["model"].eval()
    assert model.config.pad_token_id == theirs.config.pad_token_id
    logits = ours(inputs["input_ids"]).logits
    torch.testing.assert_close(model(inputs["input_ids"]).logits, logits, rtol=0, atol=TOLERANCE)


# What our own models add


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_left_changes_nothing(family: str, tmp_path: Path) -> None:
    """Positions count real tokens, whatever the family."""
    ours = imported(built(family, "ForSequenceClassification"), tmp_path, AutoModelForSequenceClassification)
    ids = torch.randint(8, 50, (1, 6))
    padded = torch.cat([torch.full((1, 3), ours.config.pad_token_id), ids], dim=1)
    torch.testing.assert_close(ours(padded).logits, ours(ids).logits, rtol=0, atol=TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_depth_under_a_plan(family: str, tmp_path: Path) -> None:
    """An imported encoder stops where it is told, also inside of shared layers."""
    ours = imported(built(family, "Model"), tmp_path, AutoModel)
    ids = torch.randint(8, 50, (2, 5))
    states = ours(ids, output_hidden_states=True).hidden_by_depth
    depths = torch.full_like(ids, 2)
    output = ours(ids, plan=Plan.of_depths(depths, ours.config.num_hidden_layers))
    assert torch.equal(output.last_hidden_state, states[2])
    assert torch.equal(output.depths, depths)


@pytest.mark.parametrize("family", ["BERT", "RoBERTa", "ALBERT"])
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"])
def test_fine_tuning_starts_from_a_bare_encoder(family: str, head: str, tmp_path: Path) -> None:
    """The encoder with its pooler is there, the rest is new; training moves it, saving and loading keep it."""
    theirs, auto_class = built(family, "Model"), HEADS[head][0]
    theirs.save_pretrained(tmp_path / "theirs")
    convert_hf(tmp_path / "theirs", tmp_path / "run")
    model, report = auto_class.from_pretrained(tmp_path / "run", num_labels=4, output_loading_info=True)
    new = {"ForMaskedLM": "head."}.get(head, "classifier.")
    assert {key.partition(".")[0] + "." for key in report["missing_keys"]} == {new}
    inputs = drawn(theirs.config)
    with torch.no_grad():
        distance = furthest(theirs(**inputs), model.model(**inputs), "last_hidden_state", inputs["attention_mask"])
    assert distance < TOLERANCE
    rows = inputs["input_ids"].shape
    labels = torch.randint(0, 4, rows[:1] if head == "ForSequenceClassification" else rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    model.save_pretrained(tmp_path / "tuned")
    again, report = auto_class.from_pretrained(tmp_path / "tuned", output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, model.eval()(**inputs).logits, rtol=0, atol=TOLERANCE)
