"""Policies with parameters are parts of the model: built with it, saved and loaded with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.depth import LearnedConfidence, PoissonBinomial, SequenceExit, TokenExit
from depthwise.errors import ConfigError

Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]
HEADS_WITH_EXITS = ("seq2seq", "causal_lm", "sequence_classification", "token_classification", "question_answering")
DEEP = {"num_layers": 4}
KINDS: dict[str, type[Any]] = {
    "sequence": SequenceExit,
    "token": TokenExit,
    "poisson_binomial": PoissonBinomial,
    "learned_confidence": LearnedConfidence,
}


@pytest.mark.parametrize("head", HEADS_WITH_EXITS)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_policies_decide_alike(
    build: Model, draw_batch: Batch, auto_class_of: Any, tmp_path: Path, head: str, kind: str
) -> None:
    if kind == "sequence" and head != "seq2seq":
        pytest.skip("there is no source")
    torch.manual_seed(5)
    model = build(head, stack=DEEP, exits={}, policy={"kind": kind})
    assert isinstance(model.trained_policy, KINDS[kind])
    for param in model.trained_policy.parameters():
        param.data *= 50 if param.dim() == 2 else 0  # so that decisions follow from states
    model.save_pretrained(tmp_path)
    loaded = auto_class_of(model).from_pretrained(tmp_path).double()
    batch, found = draw_batch(head, (6, 3, 5, 4, 2)), []
    for one in (model, loaded):
        one.use_policy(one.trained_policy)
        found.append(one(**batch))
    assert kind == "sequence" or found[0].depths.unique().numel() > 1, "there is something to decide"
    for ours, theirs in zip(loaded.trained_policy.parameters(), model.trained_policy.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].depths, found[0].depths)
    torch.testing.assert_close(found[1].logits, found[0].logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "policy", [None, {"kind": "confidence", "threshold": 0.5}, {"kind": "patience", "patience": 1}]
)
def test_policies_without_parameters_are_no_part_of_the_model(build: Model, policy: dict[str, Any] | None) -> None:
    model = build("causal_lm", exits={}, policy=policy)
    assert model.trained_policy is None
    assert not [name for name in model.state_dict() if "policy" in name]


@pytest.mark.parametrize(
    ("policy", "remedy"),
    [
        ({"kind": "token"}, "choose the oracle likelihood"),
        ({"kind": "learned_confidence"}, "choose another kind"),
    ],
)
def test_numbers_have_no_first_guess(build: Model, policy: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"an estimated number is never just right; {remedy}"):
        build("sequence_classification", stack=DEEP, exits={}, policy=policy, num_labels=1)
    build(
        "sequence_classification", stack=DEEP, exits={}, policy={"kind": "token", "oracle": "likelihood"}, num_labels=1
    )
    expected = {"kind": "poisson_binomial", "objective": "expected_loss"}
    build("sequence_classification", stack=DEEP, exits={}, policy=expected, num_labels=1)
