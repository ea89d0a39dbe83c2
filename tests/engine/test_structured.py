"""Rows that need no more layers leave the batch, and nothing changes by it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import StructureExitConfig
from depthwise.depth import StructureExit
from depthwise.engine import ChosenEncoder, CompactEncoder, Engine, choosing, encoder
from depthwise.engine.choosing import Constants, MaskedEncoder
from depthwise.models.executing import executed_by

from ..models.conftest import HEADS, MIXERS, config_for, decisive, randomized

STRUCTURE = {"num_static": 1}
LENGTHS = (6, 3, 5, 4, 6, 1)


def structured(head: str, mixer: str, *, allow_zero: bool = False, **stack: Any) -> Any:
    torch.manual_seed(3)
    structure = {**STRUCTURE, "allow_zero": allow_zero}
    config = config_for(head, mixer, stack={"num_layers": 4, **stack}, structure=structure)
    return decisive(randomized(HEADS[head](config)).double().eval())


WAITS = ("cpu", "item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "masked_select")


class There(Tensor):
    """A tensor as if it were on a device, with all that is made of it: whoever looks into it waits for that."""

    waits = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        if getattr(func, "__name__", "") not in WAITS:
            return found
        There.waits += 1
        return found.as_subclass(Tensor) if isinstance(found, Tensor) else found


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host does not know of padding without asking."""
    for module in (encoder, choosing):
        monkeypatch.setattr(module, "knows_padding", lambda device: False)


EXECUTORS: dict[str, Callable[[], Any]] = {"compact": CompactEncoder, "masked": MaskedEncoder, "chosen": ChosenEncoder}


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.5, 1.0])
@pytest.mark.parametrize("worth", [0.0, 1e12], ids=["packs", "does not pack"])
def test_a_device_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, executor: str, is_padded: bool, threshold: float | None, worth: float
) -> None:
    monkeypatch.setattr(choosing, "KINDS", dict.fromkeys(choosing.KINDS, Constants(worth)))
    model = structured("token_classification", "attention")
    if threshold is not None:
        model.use_policy(StructureExit(StructureExitConfig(threshold=threshold)))
    side, x = model.model.encoder, torch.randn(6, 5, 8, dtype=torch.float64)
    valid = torch.arange(5) < torch.tensor([5, 3, 1, 4, 2, 5]).unsqueeze(1) if is_padded else None
    given = {"plan": None, "leaving": None, "steps": torch.zeros(6, 5, dtype=torch.long), "structure": side.structure}
    with torch.inference_mode():
        expected, _ = MaskedEncoder()(side.stack, x, valid=valid, **given)
        there = None if valid is None else valid.clone().as_subclass(There)
        There.waits = 0
        found, _ = EXECUTORS[executor]()(side.stack, x.clone().as_subclass(There), valid=there, **given)
        waits = There.waits
    asks_nothing = threshold is None and (executor == "masked" or not is_padded)
    assert waits == (0 if asks_nothing else 1)
    real = slice(None) if valid is None else valid
    torch.testing.assert_close(found.last.as_subclass(Tensor)[real], expected.last[real], rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("worth", [0.0, 1e12], ids=["packs", "does not pack"])
def test_what_is_chosen_behind_static_layers_agrees_with_the_model_itself(
    draw_batch: Any, monkeypatch: pytest.MonkeyPatch, mixer: str, threshold: float | None, worth: float
) -> None:
    monkeypatch.setattr(choosing, "KINDS", dict.fromkeys(choosing.KINDS, Constants(worth)))
    model, batch = structured("token_classification", mixer), draw_batch("token_classification", LENGTHS)
    if threshold is not None:
        model.use_policy(StructureExit(StructureExitConfig(threshold=threshold)))
    expected, real = model(**batch), batch["attention_mask"].bool()
    executor = ChosenEncoder()
    with torch.inference_mode(), executed_by(executor):
        found = model(**batch)
    torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=1e-9, atol=1e-11)
    assert torch.equal(found.depths, expected.depths)
    assert executor.token_layers == int(expected.depths.sum())
    assert bool(executor.compact.token_layers) == (worth == 0)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("mixer", MIXERS)
def test_both_ways_agree_with_the_model_itself(draw_batch: Any, mixer: str, threshold: float | None) -> None:
    model, batch = structured("token_classification", mixer), draw_batch("token_classification", LENGTHS)
    if threshold is not None:
        model.use_policy(StructureExit(StructureExitConfig(threshold=threshold)))
    expected, real = model(**batch), batch["attention_mask"].bool()
    assert threshold != 0.5 or len(set(expected.depths[real].tolist())) > 1
    for executor in (CompactEncoder(), MaskedEncoder()):
        with torch.inference_mode(), executed_by(executor):
            found = model(**batch)
        torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=1e-9, atol=1e-11)
        assert torch.equal(found.depths, expected.depths)
        assert executor.token_layers == int(expected.depths.sum())


@pytest.mark.parametrize("head", ["sequence_classification", "question_answering", "masked_lm"])
def test_the_engine_with_distances_and_shared_blocks(draw_batch: Any, head: str) -> None:
    model, batch = structured(head, "attention", relative={"max_distance": 2}, groups=2), draw_batch(head, LENGTHS)
    model.use_policy(StructureExit(StructureExitConfig(threshold=0.5)))
    found, expected = Engine(model)(**batch), model(**batch)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-9, atol=1e-11)
    assert torch.equal(found.depths, expected.depths)


@pytest.mark.parametrize("executor", [CompactEncoder, MaskedEncoder])
def test_where_no_row_needs_a_layer_none_runs(draw_batch: Any, executor: Callable[[], Any]) -> None:
    model = structured("token_classification", "attention", allow_zero=True)
    batch = draw_batch("token_classification", LENGTHS)
    with torch.no_grad():
        model.structure.out.bias[0] += 1e3
    model.use_policy(StructureExit(StructureExitConfig(threshold=0.5)))
    expected, real = model(**batch), batch["attention_mask"].bool()
    with torch.inference_mode(), executed_by(executor()):
        found = model(**batch)
    assert set(found.depths[real].tolist()) == {1}
    assert torch.equal(found.depths, expected.depths)
    torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=1e-9, atol=1e-11)


def test_without_padding_and_with_padding_on_the_left() -> None:
    model = structured("token_classification", "attention")
    model.use_policy(StructureExit(StructureExitConfig(threshold=0.5)))
    ids = torch.randint(4, 17, (6, 5))
    left = ids.clone()
    for row, count in enumerate((0, 2, 4, 1, 3, 0)):
        left[row, :count] = 1
    for given in (ids, left):
        expected = model(given)
        for executor in (CompactEncoder(), MaskedEncoder()):
            with torch.inference_mode(), executed_by(executor):
                found = model(given)
            torch.testing.assert_close(found.logits[given != 1], expected.logits[given != 1], rtol=1e-9, atol=1e-11)
            assert torch.equal(found.depths, expected.depths)


def test_only_rows_that_need_a_layer_are_in_it(draw_batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = structured("token_classification", "attention"), draw_batch("token_classification", LENGTHS)
    model.use_policy(StructureExit(StructureExitConfig(threshold=0.5)))
    depths = model(**batch).depths.amax(1)
    stack, seen = model.model.encoder.stack, list[int]()
    run_layer = stack.run_layer

    def watched(layer: int, x: torch.Tensor, **options: Any) -> Any:
        seen.append(len(x))
        return run_layer(layer, x, **options)

    monkeypatch.setattr(stack, "run_layer", watched)
    with torch.inference_mode(), executed_by(MaskedEncoder()):
        model(**batch)
    assert seen == [int((depths > layer).sum()) for layer in range(int(depths.max()))]
