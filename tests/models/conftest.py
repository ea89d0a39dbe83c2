"""Tiny models for every mixer, placement of the norm and head, with the batches to feed them.

All weights are random, those of norms, biases and padding too: what starts as 0 or 1 would hide mistakes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from depthwise.config import NORMS, POSITIONS
from depthwise.models.auto import MODELS
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.question_answering import DepthwiseForQuestionAnswering
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.models.token_classification import DepthwiseForTokenClassification

NUM_LAYERS = 2
WIDTH = 8
VOCABULARY = 17
FIRST_ORDINARY_ID = 4
PADDING = 1
KERNELS = [3, 5, 3, 3]
MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"mixer": "attention"},
    "windowed attention": {"mixer": "attention", "kernel_sizes": [1, 3, 5, 3]},
    "lightconv": {"mixer": "lightconv", "kernel_sizes": KERNELS, "conv_bias": True},
    "dynamicconv": {"mixer": "dynamicconv", "kernel_sizes": KERNELS, "glu": True, "kernel_heads": 4, "conv_width": 12},
    "dynamicconv, renormalised": {
        "mixer": "dynamicconv",
        "kernel_sizes": KERNELS,
        "kernel_from": "layer_input",
        "renormalize_padding": True,
    },
    "cnn": {"mixer": "cnn", "kernel_sizes": KERNELS, "conv_bias": True},
    "depthwise": {"mixer": "depthwise", "kernel_sizes": [5], "conv_width": 4},
    "average": {"mixer": "average"},
}
HEADS: dict[str, type[PreTrainedModel]] = {
    "seq2seq": DepthwiseForSeq2SeqLM,
    "causal_lm": DepthwiseForCausalLM,
    "masked_lm": DepthwiseForMaskedLM,
    "sequence_classification": DepthwiseForSequenceClassification,
    "token_classification": DepthwiseForTokenClassification,
    "question_answering": DepthwiseForQuestionAnswering,
}
AUTO_CLASSES = {model_class: auto_class for auto_class, model_class in MODELS.items()}
Model = Callable[..., Any]


@pytest.fixture(params=MIXERS)
def mixer(request: pytest.FixtureRequest) -> str:
    """Every mixer, some with options that change what they remember."""
    return request.param


@pytest.fixture(params=NORMS)
def norm(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=POSITIONS)
def positions(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=HEADS)
def head(request: pytest.FixtureRequest) -> str:
    return request.param


def stack_options(mixer: str = "attention", norm: str = "pre", **changes: Any) -> dict[str, Any]:
    common = {"num_layers": NUM_LAYERS, "num_heads": 2, "ffn_width": 12, "norm": norm, "dropout": 0.0}
    options = {**common, **MIXERS[mixer], **changes}
    if len(options.get("kernel_sizes") or ()) > 1:
        options["kernel_sizes"] = options["kernel_sizes"][: options["num_layers"]]
    return options


def config_for(head: str, mixer: str = "attention", norm: str = "pre", **changes: Any) -> DepthwiseConfig:
    """The configuration of a head; ``stack`` changes options of its stacks, other keywords those of the model."""
    stack = stack_options(mixer, norm, **changes.pop("stack", {}))
    sides = {"seq2seq": ("encoder", "decoder"), "causal_lm": ("decoder",)}.get(head, ("encoder",))
    return DepthwiseConfig(**{"vocab_size": VOCABULARY, "width": WIDTH, **dict.fromkeys(sides, stack), **changes})


def randomized(model: nn.Module) -> nn.Module:
    """The model with every weight drawn at random; norms stay around 1 and kernels small enough not to explode."""
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                parameter.normal_(std=0.3)
                if isinstance(module, nn.LayerNorm) and name == "weight":
                    parameter.add_(1)
    return model


def decisive(model: Any) -> Any:
    """The model with a predictor that tells inputs apart: on average no number of layers is likelier than another."""
    structure, ids = model.structure, torch.randint(FIRST_ORDINARY_ID, VOCABULARY, (64, 6))
    with torch.no_grad():
        structure.out.weight.normal_(std=20)
        encoded = model.model.encoder(ids, output_hidden_states=True).hidden_by_depth[structure.num_static]
        features = nn.functional.gelu(structure.hidden(encoded[:, 0]))
        structure.out.bias.copy_(-(structure.out.weight @ features.mean(0)))
    return model


@pytest.fixture
def stack_for() -> Callable[..., dict[str, Any]]:
    """Options of a stack by mixer and norm."""
    return stack_options


@pytest.fixture
def config_of() -> Callable[..., DepthwiseConfig]:
    """Configuration by head, mixer and norm."""
    return config_for


@pytest.fixture
def build() -> Model:
    """A model by head, mixer and norm: float64, random weights, ready for inference."""

    def build_model(head: str, *arguments: Any, **changes: Any) -> Any:
        return randomized(HEADS[head](config_for(head, *arguments, **changes))).double().eval()

    return build_model


@pytest.fixture
def randomize() -> Callable[[nn.Module], nn.Module]:
    return randomized


@pytest.fixture
def auto_class_of() -> Callable[[PreTrainedModel], Any]:
    return lambda model: AUTO_CLASSES[type(model)]


@pytest.fixture
def draw_ids() -> Callable[..., Tensor]:
    """Ids of ordinary tokens; ``padding`` names for each row how many steps of padding it has, left where negative."""

    def draw(rows: int = 2, steps: int = 6, padding: Sequence[int] = ()) -> Tensor:
        ids = torch.randint(FIRST_ORDINARY_ID, VOCABULARY, (len(padding) or rows, steps))
        for row, count in enumerate(padding):
            ids[row, slice(steps - count, steps) if count > 0 else slice(0, -count)] = PADDING
        return ids

    return draw


@pytest.fixture
def draw_batch(draw_ids: Callable[..., Tensor]) -> Callable[..., dict[str, Tensor]]:
    """A batch with labels for a head; rows are padded on the right to 6 steps."""

    def draw(head: str, lengths: tuple[int, ...] = (6, 3, 5)) -> dict[str, Tensor]:
        ids = draw_ids(padding=[6 - length for length in lengths])
        mask = ids != PADDING
        batch = {"input_ids": ids, "attention_mask": mask.long()}
        if head == "seq2seq":
            labels = torch.randint(FIRST_ORDINARY_ID, VOCABULARY, (len(lengths), 4))
            labels[0, 2:] = -100
        elif head == "sequence_classification":
            labels = torch.randint(0, 2, (len(lengths),))
        elif head == "token_classification":
            labels = torch.randint(0, 2, ids.shape).masked_fill(~mask, -100)
        elif head == "question_answering":
            labels = torch.tensor([[0, length - 1] for length in lengths])
        else:
            labels = ids.masked_fill(~mask, -100)
        return {**batch, "labels": labels}

    return draw
