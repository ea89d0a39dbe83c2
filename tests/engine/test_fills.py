"""Memories after each fill: those that copy agree wherever somebody reads, the one that recomputes has what is true."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from depthwise.depth import Context, Policy
from depthwise.engine.columns import Columns
from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.fills import CopyDeferred, CopyEager, Fill, Recompute
from depthwise.engine.prepared import Prepared
from depthwise.engine.stepping import Stepper
from depthwise.memory import DecodeState

LAYERS, ROWS, STEPS, WIDTH = 4, 3, 9, 8
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


class Told(Policy):
    """Depths from a table (rows, steps)."""

    plans = True

    def __init__(self, depths: Tensor) -> None:
        super().__init__()
        self.depths = depths

    def plan(self, context: Context) -> Tensor:
        return self.depths.gather(1, context.steps)


def stepped(model: Any, fill: Callable[[DecoderState], Fill], ids: Tensor, depths: Tensor) -> tuple[Fill, Tensor]:
    """A fill after some steps, and the scores of all of them."""
    prepared = Prepared(model, len(ids))
    like = torch.empty(len(ids), 1, WIDTH, dtype=torch.float64)
    filling = fill(DecoderState(prepared.blocks, like, source=None, keeps_states=True, slack=STEPS))
    stepper = Stepper(prepared, filling.state, filling, Told(depths))
    return filling, torch.stack([stepper.step(ids[:, step]).logits for step in range(ids.shape[1])], dim=1)


def remembered(state: DecoderState, layer: int) -> Tensor:
    """What a layer's next reader can see."""
    memory, reach = state.memories[layer], state.blocks[layer].mixer.reach
    if not isinstance(memory, Columns):
        return memory.total
    return memory.between(0 if reach is None else max(0, state.length - reach), state.length)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_deferred_is_eager(build: Model, draw_ids: Ids, mixer: str) -> None:
    """The same scores; and the same memories once the last token has run everywhere (I4)."""
    model, ids = build("causal_lm", mixer, stack={"num_layers": LAYERS}, exits={}), draw_ids(ROWS, STEPS)
    depths = torch.randint(1, LAYERS + 1, ids.shape)
    depths[:, -1] = LAYERS
    (eager, scores), (deferred, others) = (stepped(model, fill, ids, depths) for fill in (CopyEager, CopyDeferred))
    assert_close(others, scores)
    for layer in range(LAYERS):
        assert_close(remembered(deferred.state, layer), remembered(eager.state, layer))
    assert eager.num_run == deferred.num_run == int(depths.sum())
    assert eager.num_filled == ROWS * STEPS * LAYERS - eager.num_run >= deferred.num_filled


@torch.no_grad()
@pytest.mark.parametrize("max_pending", [1, 4, 100])
def test_recomputed_memory_is_that_of_the_whole_stack(
    build: Model, draw_ids: Ids, mixer: str, max_pending: int
) -> None:
    """After all that waits has run (I7)."""
    model, ids = build("causal_lm", mixer, stack={"num_layers": LAYERS}, exits={}), draw_ids(ROWS, STEPS)
    depths = torch.randint(1, LAYERS + 1, ids.shape)
    fill, scores = stepped(model, lambda state: Recompute(state, max_pending), ids, depths)
    assert isinstance(fill, Recompute)
    assert (fill.state.length - fill.state.written[-1] < max_pending).all()
    fill.flush(fill.state.everybody)
    assert (fill.state.written == STEPS).all()
    assert fill.num_run + fill.num_filled == ROWS * STEPS * LAYERS
    whole = model(ids, past_key_values=DecodeState(), output_hidden_states=True)
    true = DecoderState(fill.state.blocks, torch.empty(ROWS, 1, WIDTH, dtype=torch.float64), source=None)
    true.load([layer.past for layer in whole.past_key_values.memories], STEPS)
    for layer in range(LAYERS):
        assert_close(remembered(fill.state, layer), remembered(true, layer))
    hidden = torch.stack(whole.hidden_by_depth).gather(
        0, depths.expand(1, -1, -1).unsqueeze(-1).expand(1, -1, -1, WIDTH)
    )
    assert_close(scores, model.scores_each(model.model.decoder.stack.normalized_each(hidden[0], depths), depths))


@torch.no_grad()
@pytest.mark.parametrize("fill", [CopyEager, CopyDeferred, Recompute])
def test_rows_that_move_or_leave(build: Model, draw_ids: Ids, mixer: str, fill: Callable[[Any], Fill]) -> None:
    """Going on with other rows is what decoding those from the beginning gives (I6)."""
    model = build("causal_lm", mixer, stack={"num_layers": LAYERS}, exits={})
    ids, depths, rows = draw_ids(4, STEPS), torch.randint(1, LAYERS + 1, (4, STEPS)), [2, 0, 0, 3]
    filling, _ = stepped(model, fill, ids[:, :5], depths[:, :5])
    filling.state.reorder(np.array(rows))
    order = filling.state.drop(np.array([False, True, False, False]))
    kept = torch.tensor(rows)[torch.from_numpy(order)]
    assert sorted(order.tolist()) == [0, 2, 3]
    mixed = [torch.cat([table[kept, :5], table[:3, 5:]], dim=1) for table in (ids, depths)]
    stepper = Stepper(Prepared(model, 3), filling.state, filling, Told(mixed[1]))
    scores = [stepper.step(mixed[0][:, step]).logits for step in range(5, STEPS)]
    _, expected = stepped(model, fill, *mixed)
    assert_close(torch.stack(scores, dim=1), expected[:, 5:])
