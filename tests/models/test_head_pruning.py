"""Encoders without their least important heads: the same numbers as with those masked, from less."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from depthwise.config import ModelConfig, StackConfig
from depthwise.engine import Engine
from depthwise.errors import InputError
from depthwise.models.cost import ModelCost
from depthwise.models.head_pruning import (
    HeadImportance,
    attention_of,
    check_share,
    heads_to_keep,
    weighed_heads,
    without_heads,
)

Build = Callable[..., Any]
DEEP = {"num_layers": 4, "num_heads": 4}
RELATIVE = {"max_distance": 2}
STACKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "relative": {"relative": RELATIVE},
    "literal": {"relative": {**RELATIVE, "indexing": "literal", "scale_terms": True}},
    "windowed": {"kernel_sizes": [3]},
    "groups": {"groups": 2, "relative": RELATIVE},
    "shared": {"shared_layers": [0, 1, 1, 0]},
}


def only(model: Any, kept: Any) -> list[torch.Tensor]:
    """Masks of 1 for these heads and of 0 for others."""
    found = []
    for projections, heads in zip(attention_of(model), kept, strict=True):
        mask = torch.zeros(projections.num_heads, dtype=torch.float64)
        mask[list(heads)] = 1
        found.append(mask)
    return found


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_same_as_masked_heads(build: Build, draw_batch: Build, tmp_path: Any, name: str, norm: str) -> None:
    """By the model, by the engine, and after saving; for heads of several and of single numbers in a block."""
    model = build("sequence_classification", "attention", norm, stack={**DEEP, **STACKS[name]})
    num_blocks = len(attention_of(model))
    kept = tuple(((0, 2, 3), (1,), (0, 1, 2, 3), (3,))[block] for block in range(num_blocks))
    masks, batch = only(model, kept), draw_batch("sequence_classification")
    full = model(**batch).logits
    with weighed_heads(attention_of(model), lambda block, rows: masks[block]):
        wanted = model(**batch)
    smaller = without_heads(model, kept)
    found = smaller(**batch)
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-12, rtol=1e-12)
    assert not torch.allclose(found.logits, full)
    torch.testing.assert_close(model(**batch).logits, full)  # hooks are gone
    ours = Engine(smaller)(**{key: value for key, value in batch.items() if key != "labels"})
    torch.testing.assert_close(ours.logits, wanted.logits, atol=1e-9, rtol=1e-9)
    assert smaller.config.encoder["kept_heads"] == [len(heads) for heads in kept]
    assert smaller.num_parameters() < model.num_parameters()
    smaller.save_pretrained(tmp_path)
    again = type(smaller).from_pretrained(tmp_path).double().eval()
    torch.testing.assert_close(again(**batch).logits, wanted.logits, atol=1e-6, rtol=1e-6)


def test_encoders_below_decoders_and_structures(build: Build, draw_batch: Build) -> None:
    for head, more in (
        ("seq2seq", {}),
        ("token_classification", {"structure": {"num_static": 1}}),
        ("masked_lm", {"exits": {"heads": "tied"}}),
    ):
        model, batch = build(head, stack=DEEP, **more), draw_batch(head)
        kept = ((1, 2), (0,), (0, 1, 2, 3), (2, 3))
        masks = only(model, kept)
        with weighed_heads(attention_of(model), lambda block, rows, masks=masks: masks[block]):  # type: ignore[misc]
            wanted = model(**batch)
        found = without_heads(model, kept)(**batch)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(found.loss, wanted.loss)


def test_pruning_twice(build: Build, draw_batch: Build) -> None:
    model, batch = build("sequence_classification", stack=DEEP), draw_batch("sequence_classification")
    once = without_heads(model, ((0, 2, 3),) * 4)
    twice = without_heads(once, ((1, 2),) * 4)
    torch.testing.assert_close(twice(**batch).logits, without_heads(model, ((2, 3),) * 4)(**batch).logits)


def test_importance_is_the_gradient_of_a_mask_row_by_row(build: Build, draw_batch: Build) -> None:
    """Beside differences of the loss, of one example at a time; signs of examples do not cancel."""
    model = build("sequence_classification", stack={**DEEP, "groups": 2})
    batch, step = draw_batch("sequence_classification"), 1e-4
    found = HeadImportance(model)
    found.add(lambda: torch.nn.functional.cross_entropy(model(**batch).logits, batch["labels"], reduction="sum"))
    attention, ones = attention_of(model), torch.ones(4, dtype=torch.float64)
    for block in range(2):
        wanted = torch.zeros(4, dtype=torch.float64)
        for head in range(4):
            for row in range(3):
                losses = []
                for sign in (1, -1):
                    weights = [ones.clone(), ones.clone()]
                    weights[block][head] += sign * step
                    with torch.no_grad(), weighed_heads(attention, lambda at, rows, of=weights: of[at]):  # type: ignore[misc]
                        output = model(**{name: value[row : row + 1] for name, value in batch.items()})
                    losses.append(torch.nn.functional.cross_entropy(output.logits, batch["labels"][row : row + 1]))
                wanted[head] += ((losses[0] - losses[1]) / (2 * step)).abs()
        torch.testing.assert_close(found.normalized[block], wanted / wanted.norm(), atol=1e-5, rtol=1e-4)


def test_importance_of_several_batches_adds_up(build: Build, draw_batch: Build) -> None:
    model, batch = build("masked_lm", stack=DEEP), draw_batch("masked_lm")

    def loss(rows: slice) -> torch.Tensor:
        logits = model(**{name: value[rows] for name, value in batch.items()}).logits
        sums: torch.Tensor = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), batch["labels"][rows], reduction="sum"
        )
        return sums

    whole, parts = HeadImportance(model), HeadImportance(model)
    whole.add(lambda: loss(slice(None)))
    for rows in (slice(0, 1), slice(1, 3)):
        parts.add(lambda rows=rows: loss(rows))  # type: ignore[misc]
    for one, other in zip(whole.normalized, parts.normalized, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(one.norm(), torch.ones((), dtype=torch.float64))
    assert all(weight.grad is None for weight in model.parameters())


def test_the_least_important_go_and_every_block_keeps_one() -> None:
    importance = [torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.9, 0.15, 0.5, 0.25])]
    assert heads_to_keep(importance, 0.25) == ((1, 2, 3), (0, 2, 3))
    assert heads_to_keep(importance, 0.3) == ((1, 2, 3), (0, 2, 3))
    assert heads_to_keep(importance, 0.75) == ((3,), (0,))
    assert heads_to_keep([torch.tensor([0.1, 0.1]), torch.tensor([0.5, 0.1])], 0.25) == ((1,), (0, 1))


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.0, "0 is no share of heads to prune; give one above 0 and below 1"),
        (1.0, "1 is no share of heads to prune"),
        (-0.5, "-0.5 is no share"),
        (0.1, "a share of 0.1 of 8 heads is less than one; give at least 0.125"),
        (0.9, "without 7 of 8 heads nothing would be left in some of the 2 blocks; give at most 0.75"),
    ],
)
def test_shares_that_cannot_be(share: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_share([4, 4], share)


def test_none_to_spare() -> None:
    with pytest.raises(InputError, match=r"without 1 of 2 heads .* there is none to spare"):
        check_share([1, 1], 0.5)


def test_stacks_without_heads(build: Build) -> None:
    with pytest.raises(InputError, match="mixes by lightconv and has no heads of attention to prune"):
        attention_of(build("sequence_classification", "lightconv"))
    with pytest.raises(InputError, match="has no encoder, and heads of decoders are not pruned"):
        attention_of(build("causal_lm"))


def test_costs_of_what_is_left() -> None:
    """Half of the heads are half of the products of attention."""
    stack = StackConfig(num_layers=2, num_heads=4, ffn_width=48, kept_heads=(2, 4))
    whole = StackConfig(num_layers=2, num_heads=4, ffn_width=48)
    less, more = (ModelCost(ModelConfig(vocab_size=50, width=16, encoder=of)).encoder for of in (stack, whole))
    assert less is not None
    assert more is not None
    assert 2 * less.mixer(0, 9).flops == more.mixer(0, 9).flops
    assert less.mixer(1, 9) == more.mixer(1, 9)
    assert less.write(0).flops == 4 * 16 * 8


def test_layers_that_stay_keep_their_heads() -> None:
    stack = StackConfig(num_layers=4, num_heads=4, kept_heads=(1, 2, 3, 4))
    assert stack.of_layers([1, 3]).kept_heads == (2, 4)
    shared = StackConfig(num_layers=4, num_heads=4, shared_layers=(0, 1, 1, 2), kept_heads=(1, 2, 3))
    assert [shared.heads_of(layer) for layer in range(4)] == [1, 2, 2, 3]
    assert shared.of_layers([2, 3]).kept_heads == (2, 3)
    assert StackConfig(num_layers=4, kept_heads=(3,)).of_layers([0]).kept_heads == (3,)
