"""What holds for any depths, padding, order of a batch and moves of rows, for every mixer, policy and fill.

Everything is float64, where only the order of sums may differ.
"""

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from depthwise.depth import Plan
from depthwise.engine import Engine
from depthwise.engine.columns import Columns
from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.decoding import Decoding
from depthwise.engine.fills import CopyDeferred, CopyEager, Fill, Recompute
from depthwise.engine.prepared import Prepared
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.stepping import Stepper
from depthwise.memory import DecodeState, places
from depthwise.mixers import attention
from depthwise.models.cost import StackCost

from ..models.conftest import HEADS, MIXERS, config_for, randomized
from .test_encoder import POLICIES, policy_of, said
from .test_fills import Told, remembered

PADDING, LAYERS, STEPS, MOST = 1, 4, 7, 12
COPIES = {"eager": CopyEager, "deferred": CopyDeferred}
SEED = st.integers(0, 2**31)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)


def model_of(head: str, mixer: str, norm: str = "pre", **options: Any) -> Any:
    changes = {"stack": {"num_layers": LAYERS}, "exits": {"heads": "separate"}, "tied_embeddings": "none", **options}
    return randomized(HEADS[head](config_for(head, mixer, norm, **changes))).double().eval()


def padded(lengths: list[int], sides: list[bool]) -> Tensor:
    """Random ids in rows of these lengths; padding stands on the left where a side is true."""
    ids = torch.full((len(lengths), max(lengths)), PADDING)
    for row, (length, on_left) in enumerate(zip(lengths, sides, strict=True)):
        start = ids.shape[1] - length if on_left else 0
        ids[row, start : start + length] = torch.randint(4, 17, (length,))
    return ids


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[bool], list[int]]:
    """Lengths of rows, sides of their padding, and another order of the rows."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=2, max_size=5))
    sides = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    return lengths, sides, draw(st.permutations(range(len(lengths))))


# Encoders


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=2)
@given(seed=SEED, batch=batches(), cut=st.integers(1, 4))
def test_rows_do_not_depend_on_others(
    name: str, mixer: str, seed: int, batch: tuple[list[int], list[bool], list[int]], cut: int
) -> None:
    """Masked, compact, compact in another order, and in two batches: the same scores and depths (I3)."""
    torch.manual_seed(seed)
    lengths, sides, order = batch
    head = ("token_classification", "sequence_classification")[seed % 2]
    model = model_of(head, mixer, ("pre", "post")[seed // 2 % 2], num_labels=3)
    model.use_policy(policy_of(model, name))
    ids = padded(lengths, sides)
    asked = {"input_ids": ids, "attention_mask": (ids != PADDING).long()}
    engine = Engine(model)
    expected, found = model(**asked), engine(**asked)
    assert torch.equal(found.depths, expected.depths)
    assert engine.token_layers == int(expected.depths.sum())
    assert_same(said(found, asked, ...), said(expected, asked, ...))
    for rows in (order, order[:cut], order[cut:]):
        if rows:
            chosen = {key: value[rows] for key, value in asked.items()}
            again = Engine(model)(**chosen)
            assert torch.equal(again.depths, found.depths[rows])
            for row, number in enumerate(rows):
                assert_same(said(again, chosen, row), said(found, asked, number))


@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=4)
@given(seed=SEED, lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_operations_are_those_of_the_formula(mixer: str, seed: int, lengths: list[int]) -> None:
    """Linear maps as torch counts them in the engine; sums over taps and scores of pairs are no linear maps (I9).

    The formula has all tokens of a sequence written while any of them runs. What the engine spares of that, keys and
    values that few read and inputs that nobody sees, makes it less.
    """
    torch.manual_seed(seed)
    model = model_of("token_classification", mixer, exits=None)
    engine, ids, options = Engine(model), padded(lengths, [False] * len(lengths)), model.config.options
    cost = StackCost(options.encoder, options.width)
    depths = torch.randint(1, LAYERS + 1, ids.shape) * (ids != PADDING)
    expected = 2 * ids.numel() * model.classifier.in_features * model.classifier.out_features
    of_pairs = 0
    for row, length in zip(depths.tolist(), lengths, strict=True):
        expected += cost.plan(row[:length]).products
        of_pairs += 4 * length * options.width * sum(row) if "attention" in mixer else 0

    def counted(*operators: object) -> int:
        with FlopCounterMode(display=False) as counter:
            engine(ids, plan=Plan.of_depths(depths, LAYERS))
        by_operator = counter.get_flop_counts()["Global"]
        return sum(by_operator.get(operator, 0) for operator in operators)

    maps = (torch.ops.aten.addmm, torch.ops.aten.mm)
    if mixer == "cnn":  # whose sums over taps are linear maps: rows that lie as they came leave these to torch
        maps = (*maps, torch.ops.aten.convolution)
    with patch.object(attention, "WORTH_FOLDING", math.inf), patch.object(places, "SEEN_OFTEN", 0):
        assert counted(*maps) == expected - of_pairs
    folded = (torch.ops.aten.bmm,) if "attention" in mixer else ()
    assert counted(*maps, *folded) <= expected
    assert engine.token_layers == 2 * int(depths.sum())


# Decoders


class Texts:
    """A language model with prompts, the text that follows them, and how deep each token runs."""

    def __init__(self, mixer: str, seed: int, lengths: list[int], sides: list[bool]) -> None:
        torch.manual_seed(seed)
        self.model = model_of("causal_lm", mixer)
        self.prompts, self.new = padded(lengths, sides), torch.randint(4, 17, (len(lengths), STEPS))
        self.lengths = torch.tensor(lengths)
        self.table = torch.randint(1, LAYERS + 1, (len(lengths), MOST + STEPS))

    def rows(self, order: list[int]) -> "Texts":
        """Some of them, or the same one several times."""
        other = object.__new__(Texts)
        other.model = self.model
        for name in ("prompts", "new", "lengths", "table"):
            setattr(other, name, getattr(self, name)[order])
        return other

    def begin(self, fill: type[Fill], max_pending: int = 8) -> Stepper:
        """A decoding that has read all of each prompt but its last token, which is the first to be fed."""
        self.model.use_policy(Told(self.table))
        decoding, name = Decoding(self.model), "recompute" if fill is Recompute else "eager"
        start = decoding._start(self.prompts, self.prompts != PADDING, None, SearchOptions())
        prepared = decoding._ready(len(self.prompts))
        with torch.no_grad():
            earlier = decoding._earlier(prepared, start, name)
            state = decoding._state(prepared, start, 1, earlier, max_pending)
        filling = Recompute(state, max_pending) if fill is Recompute else fill(state)
        return Stepper(prepared, state, filling, self.model.policy)

    def fed(self) -> Tensor:
        """What is fed: the last token of each prompt, then the text but for its last."""
        last = torch.stack([row[row != PADDING][-1] for row in self.prompts])
        return torch.cat([last.unsqueeze(1), self.new[:, :-1]], dim=1)

    def decoded(self, fill: type[Fill], max_pending: int = 8) -> tuple[Stepper, Tensor]:
        stepper = self.begin(fill, max_pending)
        with torch.no_grad():
            scores = [stepper.step(column).logits for column in self.fed().unbind(1)]
        return stepper, torch.stack(scores, dim=1)

    def forced(self) -> tuple[Tensor, Tensor]:
        """All tokens of each text at once, as a padded batch, and the depth of each (0 for padding)."""
        rows = [torch.cat([row[row != PADDING], new[:-1]]) for row, new in zip(self.prompts, self.new, strict=True)]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
        return ids, self.table[:, : ids.shape[1]] * (ids != PADDING)


TEXTS: dict[str, Any] = {"seed": SEED, "batch": batches()}


@pytest.mark.parametrize("fill", COPIES)
@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=4)
@given(**TEXTS)
def test_steps_are_one_masked_pass(
    mixer: str, fill: str, seed: int, batch: tuple[list[int], list[bool], list[int]]
) -> None:
    """Scores of a text, step by step and all at once under the same depths, in any order of rows (I5)."""
    lengths, sides, order = batch
    texts = Texts(mixer, seed, lengths, sides)
    stepper, scores = texts.decoded(COPIES[fill])
    texts.model.use_policy(None)
    ids, depths = texts.forced()
    with torch.no_grad():
        expected = texts.model(ids, ids != PADDING, plan=Plan.of_depths(depths, LAYERS)).logits
    for row, length in enumerate(lengths):
        assert_same(scores[row], expected[row, length - 1 : length - 1 + STEPS])
    _, other = texts.rows(order).decoded(COPIES[fill])
    assert_same(other, scores[order])
    assert stepper.fill.num_run == sum(
        int(depths[row, length - 1 : length - 1 + STEPS].sum()) for row, length in enumerate(lengths)
    )


@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=4)
@given(**TEXTS)
def test_whoever_reads_finds_the_same(mixer: str, seed: int, batch: tuple[list[int], list[bool], list[int]]) -> None:
    """Memories of rows that run a block, when they run it: deferred and eager fills (I4). Deferred ones write less."""
    texts = Texts(mixer, seed, *batch[:2])
    seen: dict[str, list[Tensor]] = {}
    written: dict[str, int] = {}
    for name, fill in COPIES.items():
        stepper, found = texts.begin(fill), seen.setdefault(name, [])
        stepper.fill.run = recording(stepper.fill, found)  # type: ignore[method-assign]
        with torch.no_grad():
            for column in texts.fed().unbind(1):
                stepper.step(column)
        written[name] = stepper.fill.num_filled
    assert len(seen["eager"]) == len(seen["deferred"]) > 0
    for eager, deferred in zip(seen["eager"], seen["deferred"], strict=True):
        assert_same(deferred, eager)
    assert written["deferred"] <= written["eager"]


def recording(fill: Fill, found: list[Tensor]) -> Callable[..., Tensor]:
    """Runs blocks, and keeps what rows could see of their layer when they ran it."""
    run = fill.run

    def run_and_look(layer: int, x: Tensor, rows: Any) -> Tensor:
        after = run(layer, x, rows)
        memory, reach, end = fill.state.memories[layer], fill.state.blocks[layer].mixer.reach, fill.state.length + 1
        table = (
            memory.between(0 if reach is None else max(0, end - 1 - reach), end)
            if isinstance(memory, Columns)
            else memory.total
        )
        found.append(rows.of(table).clone())
        return after

    return run_and_look


@pytest.mark.parametrize("fill", [CopyEager, CopyDeferred, Recompute])
@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=4)
@given(**TEXTS, data=st.data())
def test_rows_that_move_and_leave(
    mixer: str, fill: type[Fill], seed: int, batch: tuple[list[int], list[bool], list[int]], data: st.DataObject
) -> None:
    """Hypotheses copied over others and inputs that end, at any step, give what starting afresh gives (I6)."""
    texts = Texts(mixer, seed, *batch[:2])
    stepper, numbers = texts.begin(fill), list(range(len(batch[0])))
    history, table = texts.new.clone(), texts.table.clone()
    scores: list[Tensor] = []
    with torch.no_grad():
        for step in range(STEPS):
            current = texts.rows(numbers)
            current.new, current.table = history, table
            stepper.policy = Told(table)
            scores.append(stepper.step(current.fed()[:, step]).logits)
            moved = data.draw(st.lists(st.integers(0, len(numbers) - 1), min_size=len(numbers), max_size=len(numbers)))
            stepper.state.reorder(np.array(moved))
            numbers = [numbers[row] for row in moved]
            if stepper.state.padding is not None:
                expected = [texts.prompts.shape[1] - batch[0][row] for row in numbers]
                assert stepper.state.padding.tolist() == expected
            history, table = with_new_ends(history[moved], step), table[moved]
            leaves = data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))
            if any(leaves) and not all(leaves):
                order = stepper.state.drop(np.array(leaves))
                numbers, history, table = [numbers[row] for row in order], history[order], table[order]
    current = texts.rows(numbers)
    current.new, current.table = history, table
    stepper.policy = Told(table)
    with torch.no_grad():
        last = stepper.step(history[:, -1]).logits
    _, expected_scores = extended(current).decoded(fill)
    assert_same(last, expected_scores[:, -1])


def with_new_ends(rows: Tensor, step: int) -> Tensor:
    """Copies of a row go on in different ways: later tokens are drawn anew."""
    later = torch.randint(4, 17, rows[:, step + 1 :].shape)
    return torch.cat([rows[:, : step + 1], later], dim=1)


def extended(texts: Texts) -> Texts:
    """With one more token at the end, so that the last one is fed too."""
    texts.new = torch.cat([texts.new, texts.new[:, :1]], dim=1)
    return texts


@pytest.mark.parametrize("mixer", MIXERS)
@settings(max_examples=4)
@given(**TEXTS, max_pending=st.integers(1, STEPS + 1))
def test_recomputed_memory_is_that_of_the_whole_stack(
    mixer: str, seed: int, batch: tuple[list[int], list[bool], list[int]], max_pending: int
) -> None:
    """After all that waits has run; and whatever waits changes no score (I7)."""
    texts = Texts(mixer, seed, *batch[:2])
    stepper, scores = texts.decoded(Recompute, max_pending)
    fill = stepper.fill
    assert isinstance(fill, Recompute)
    with torch.no_grad():
        fill.flush(fill.state.everybody)
    assert (fill.state.written == fill.state.length).all()
    assert fill.num_run + fill.num_filled == len(batch[0]) * STEPS * LAYERS
    deep = texts.rows(list(range(len(batch[0]))))
    deep.table = torch.full_like(texts.table, LAYERS)
    whole, _ = deep.decoded(CopyEager)
    for layer in range(LAYERS):
        real = fill.state.padding
        found, expected = remembered(fill.state, layer), remembered(whole.state, layer)
        if real is not None and isinstance(fill.state.memories[layer], Columns):
            first = fill.state.length - found.shape[1]
            seen = (torch.arange(first, fill.state.length) >= real.unsqueeze(1)).unsqueeze(-1)
            found, expected = found.masked_fill(~seen, 0), expected.masked_fill(~seen, 0)
        assert_same(found, expected)
    _, at_once = texts.decoded(Recompute, 1)
    assert_same(scores, at_once)


def test_the_whole_stack_is_that_of_the_model() -> None:
    """What the test above compares with is what the model itself remembers."""
    texts = Texts("attention", 0, [3, 3], [False, False])
    texts.table = torch.full_like(texts.table, LAYERS)
    whole, _ = texts.decoded(CopyEager)
    texts.model.use_policy(None)
    output = texts.model(texts.forced()[0], past_key_values=DecodeState())
    like = torch.empty(2, 1, 8, dtype=torch.float64)
    true = DecoderState(Prepared(texts.model, 2).blocks, like, source=None)
    true.load([layer.past for layer in output.past_key_values.memories], whole.state.length)
    for layer in range(LAYERS):
        assert_same(remembered(whole.state, layer), remembered(true, layer))
