"""Encoders from recorded blocks: what the masked executor says, whatever was walked before."""

from collections.abc import Callable, Hashable
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depthwise.config import parse_policy
from depthwise.depth import Plan, build_policy
from depthwise.engine import CompactEncoder, Engine, recorded_walk
from depthwise.engine.recorded_walk import RecordedStack, RecordedWalks, Rooms, room_for, rows_for
from depthwise.engine.recorder import GraphRecorder, Rehearsal, Work
from depthwise.kernels import use_backend
from depthwise.memory import Places, Sequences
from depthwise.mixers import projected
from depthwise.models.masked import run_masked
from depthwise.models.stack import Stack

from ..models.conftest import HEADS, config_for, randomized
from .test_gpu import DEVICE, WIDTH, never_waiting

LAYERS = 4
Model = Callable[..., Any]
Batch = Callable[..., dict[str, Tensor]]


class Counting(Rehearsal):
    """Also knows what it was asked for, and what of that came for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[Hashable] = []

    def __call__(self, key: Hashable, work: Work) -> None:
        self.keys.append(key)
        super().__call__(key, work)


@pytest.fixture(autouse=True)
def _small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_walk, "LEAST", 4)
    monkeypatch.setattr(recorded_walk, "FEWEST_FULL_ROWS", 3)
    monkeypatch.setattr(recorded_walk, "MOST_TOKENS", 48)


def stack_of(mixer: str, norm: str = "pre", dtype: torch.dtype = torch.float64, **changes: Any) -> Stack:
    config = config_for("token_classification", mixer, norm, stack={"num_layers": LAYERS, **changes})
    model = randomized(HEADS["token_classification"](config))
    stack: Stack = model.to(dtype).eval().model.encoder.stack
    return stack


def walked(executor: CompactEncoder, stack: Stack, x: Tensor, valid: Tensor, plan: Plan) -> tuple[Any, Tensor]:
    with torch.inference_mode():
        return executor(
            stack, x, valid=valid, plan=plan, leaving=None, steps=torch.zeros(x.shape[:2], dtype=torch.long)
        )


def drawn(seed: int, lengths: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Plan]:
    torch.manual_seed(seed)
    x = torch.randn(len(lengths), max(lengths), 8, dtype=dtype)
    valid = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return x, valid, Plan(torch.rand(LAYERS, *x.shape[:2]) < torch.rand(LAYERS, 1, 1))


Lengths = st.lists(st.integers(1, 9), min_size=1, max_size=5) | st.builds(
    lambda length, rows: [length] * rows, st.integers(1, 9), st.integers(1, 5)
)


@pytest.mark.parametrize("norm", ["pre", "post"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), batches=st.lists(Lengths, min_size=2, max_size=4))
def test_any_plan(norm: str, seed: int, batches: list[list[int]]) -> None:
    """One executor for batches of all sizes: tables grow, and hold what others left."""
    stack, recorder = stack_of("attention", norm), Counting()
    executor = CompactEncoder(RecordedWalks(lambda _: recorder, "cpu"))
    for number, lengths in enumerate([*batches, batches[0]]):
        x, valid, plan = drawn(seed + number, lengths, torch.float64)
        before = x.clone()
        found, depths = walked(executor, stack, x, valid, plan)
        assert torch.equal(x, before), "the states that come in stay as they are"
        expected = run_masked(stack, x, plan, valid=valid)
        torch.testing.assert_close(found.last, expected.last, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found.final, expected.final, rtol=1e-10, atol=1e-12)
        assert torch.equal(depths, (plan.run & valid).sum(0))


def test_rows_of_one_length_lie_as_in_the_grid() -> None:
    """Nothing is spread, and there is no mask."""
    rooms = Rooms.of(Sequences.of(np.repeat(np.arange(3), 8), torch.device("cpu")), has_grid=True)
    assert rooms == Rooms(32, 4, 8, are_full=True)
    layout = RecordedStack(stack_of("attention"), torch.empty(1, 24, 8), Counting()).layout(rooms)
    x, places = torch.randn(1, 32, 8), Places.tabled(layout.sequences, None)
    assert (layout.slots, layout.valid) == (None, None)
    for grid in (places.grid(x), places.reader_grid(x)):
        assert grid.data_ptr() == x.data_ptr()
        assert torch.equal(places.from_reader_grid(grid), x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize("mixer", ["lightconv", "dynamicconv"])
@pytest.mark.parametrize("is_forced", [False, True])
def test_convolutions(mixer: str, is_forced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few readers without the kernels, which Triton's interpreter runs where there is no GPU, unless asked for them."""
    pytest.importorskip("triton")
    monkeypatch.setattr(projected, "WORTH_FOLDING_RECORDED", 0.0)
    if not is_forced:
        monkeypatch.setattr(projected, "is_forced", lambda name: False)  # as on a GPU, whose kernels need no asking
    stack, recorder = stack_of(mixer, "post", torch.float32, glu=False), Counting()
    executor = CompactEncoder(RecordedWalks(lambda _: recorder, "cpu"))
    for number, lengths in enumerate([[3, 1, 5], [2], [3, 1, 5]]):
        x, valid, plan = drawn(number, lengths, torch.float32)
        with use_backend("triton"):
            found, _ = walked(executor, stack, x, valid, plan)
        expected = run_masked(stack, x, plan, valid=valid)
        torch.testing.assert_close(found.final[valid], expected.final[valid], rtol=1e-4, atol=1e-5)
    assert recorder.keys
    assert any(key[0] == "windows" for key in recorder.keys if isinstance(key, tuple)) != is_forced


@pytest.mark.parametrize("threshold", [0.34, 0.4, 0.5])
def test_a_policy_on_the_way(build: Model, draw_batch: Batch, threshold: float) -> None:
    model = build("token_classification", "attention", stack={"num_layers": LAYERS}, exits={})
    options = parse_policy({"kind": "confidence", "threshold": threshold})
    exits = model.config.options.exit_depths
    model.use_policy(build_policy(options, width=model.config.options.width, exits=exits, has_source=False))
    recorder = Counting()
    engine = Engine(model)
    engine.executor.compact = CompactEncoder(RecordedWalks(lambda _: recorder, "cpu"))
    for lengths in ((6, 3, 5, 1, 4), (2, 2), (6, 3, 5, 1, 4)):
        batch = draw_batch("token_classification", lengths)
        found, expected = engine(**batch), model(**batch)
        assert torch.equal(found.depths, expected.depths)
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=1e-10, atol=1e-12)
    assert recorder.keys


def test_engines_record_unless_they_are_told_not_to(build: Model) -> None:
    model = build("token_classification", "attention")
    for graphs in ("auto", True):
        assert Engine(model, graphs=graphs).executor.compact._recorded is not None
    assert Engine(model, graphs=False).executor.compact._recorded is None


def test_the_same_sizes_are_recorded_once() -> None:
    stack, recorder = stack_of("attention"), Counting()
    executor = CompactEncoder(RecordedWalks(lambda _: recorder, "cpu"))
    x, valid, _ = drawn(0, [9, 9, 9], torch.float64)
    plans = [Plan.of_depths(torch.tensor([[1, 2, 3, 4, *[2] * 5]] * 3).roll(shift, 1), LAYERS) for shift in range(5)]
    for plan in plans:
        walked(executor, stack, x, valid, plan)
    num_walked = LAYERS - 1  # all tokens run the first block, as they lie
    assert len(set(recorder.keys)) == num_walked
    assert len(recorder.keys) == num_walked * len(plans)


def test_answers_stay_as_they_are() -> None:
    """What is walked next does not change what was given."""
    stack, executor = stack_of("attention"), CompactEncoder(RecordedWalks(lambda _: Rehearsal(), "cpu"))
    x, valid, plan = drawn(1, [5, 3], torch.float64)
    found, _ = walked(executor, stack, x, valid, plan)
    given_before, given_input = found.last.clone(), x.clone()
    walked(executor, stack, x.flip(0), valid.flip(0), Plan(plan.run.flip(1)))
    assert torch.equal(found.last, given_before)
    assert torch.equal(x, given_input)


def test_changed_weights_are_recorded_again() -> None:
    stack, made = stack_of("attention"), []

    def recorder(_: torch.device) -> Rehearsal:
        made.append(Counting())
        return made[-1]

    executor = CompactEncoder(RecordedWalks(recorder, "cpu"))
    x, valid, plan = drawn(2, [5, 3], torch.float64)
    walked(executor, stack, x, valid, plan)
    walked(executor, stack, x, valid, plan)
    assert len(made) == 1
    with torch.no_grad():
        stack.block(0).feed_forward.out.weight.mul_(0.5)
    found, _ = walked(executor, stack, x, valid, plan)
    assert len(made) == 2
    expected = run_masked(stack, x, plan, valid=valid)
    torch.testing.assert_close(found.last, expected.last, rtol=1e-10, atol=1e-12)


def test_whom_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    walks, x = RecordedWalks(lambda _: Rehearsal(), "cpu"), torch.zeros(1, 6, 8, dtype=torch.float64)
    stack = stack_of("attention")
    assert walks.serve(stack, x)
    assert not walks.serve(stack, x[:, :0]), "nobody walks"
    assert not walks.serve(stack_of("cnn"), x), "its rows need room between them"
    assert not walks.serve(stack_of("dynamicconv"), x), "the reference takes one sequence after the other"
    with torch.autocast("cpu"):
        assert not walks.serve(stack, x)
    assert not walks.serve(stack.train(), x), "dropout is drawn by those who train"
    assert not RecordedWalks(lambda _: Rehearsal()).serve(stack.eval(), x), "there are no graphs on a CPU"
    monkeypatch.setattr(recorded_walk, "MOST_TOKENS", 5)
    assert not walks.serve(stack, x), "many tokens are not worth a recording"


def test_weights_of_gates_and_others_meanwhile_go_by_hand() -> None:
    stack, recorder = stack_of("attention"), Counting()
    executor = CompactEncoder(RecordedWalks(lambda _: recorder, "cpu"))
    x, valid, plan = drawn(3, [5, 3], torch.float64)
    weighed = Plan(plan.run, torch.rand(plan.run.shape, dtype=torch.float64))
    found, _ = walked(executor, stack, x, valid, weighed)
    expected = run_masked(stack, x, weighed, valid=valid)
    torch.testing.assert_close(found.last, expected.last, rtol=1e-10, atol=1e-12)
    assert executor._recorded is not None
    with executor._recorded.one_at_a_time:
        walked(executor, stack, x, valid, plan)
    assert not recorder.keys
    walked(executor, stack, x, valid, plan)
    assert recorder.keys


@pytest.mark.parametrize("mixer", ["attention", "lightconv", "dynamicconv"])
@pytest.mark.parametrize(("dtype", "worth"), [(torch.float32, 0.0), (torch.float32, inf), (torch.bfloat16, 0.0)])
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_graphs(build: Model, mixer: str, dtype: torch.dtype, worth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of several sizes from the same tables: by hand, recorded and repeated; nobody waits while they repeat."""
    monkeypatch.setattr(projected, "WORTH_FOLDING_RECORDED", worth)
    monkeypatch.setattr(recorded_walk, "MOST_TOKENS", 512)
    glu = {} if mixer == "attention" else {"glu": worth == inf}  # with which nothing is folded
    model = build("token_classification", mixer, "post", stack={"num_layers": LAYERS, **glu})
    stack = model.to(DEVICE, dtype).model.encoder.stack
    recorded, plain = CompactEncoder(RecordedWalks(GraphRecorder)), CompactEncoder()
    batches = []
    for num_rows, longest in ((5, 9), (2, 33), (40, 12)):
        x = torch.randn(num_rows, longest, WIDTH, dtype=dtype, device=DEVICE)
        steps = torch.zeros(num_rows, longest, dtype=torch.long, device=DEVICE)
        batches.append((x, steps, Plan.of_depths(torch.randint(1, LAYERS + 1, (num_rows, longest)), LAYERS)))

    @torch.inference_mode()
    def run_all(executor: CompactEncoder) -> list[Tensor]:
        found = [executor(stack, x, valid=None, plan=plan, leaving=None, steps=steps) for x, steps, plan in batches]
        return [output.final for output, _ in found]

    expected = run_all(plain)
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for _ in range(4):
        for found, wanted in zip(run_all(recorded), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    with never_waiting():
        run_all(recorded)


@pytest.mark.parametrize("mixer", ["attention", "lightconv", "dynamicconv"])
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_walks_in_a_queue(build: Model, mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy device is asked for twenty walks by plans of their own: none reads what was sent for another."""
    monkeypatch.setattr(recorded_walk, "MOST_TOKENS", 512)
    model = build("token_classification", mixer, "post", stack={"num_layers": LAYERS})
    stack = model.to(DEVICE, torch.float32).model.encoder.stack
    recorded, plain = CompactEncoder(RecordedWalks(GraphRecorder)), CompactEncoder()
    x, steps = torch.randn(12, 20, WIDTH, device=DEVICE), torch.zeros(12, 20, dtype=torch.long, device=DEVICE)
    plans = [Plan.of_depths(torch.randint(1, LAYERS + 1, (12, 20)), LAYERS) for _ in range(20)]

    @torch.inference_mode()
    def run_all(executor: CompactEncoder) -> list[Tensor]:
        found = [executor(stack, x, valid=None, plan=plan, leaving=None, steps=steps) for plan in plans]
        return [output.final for output, _ in found]

    expected = run_all(plain)
    for _ in range(3):  # by hand, recorded and repeated
        run_all(recorded)
    with never_waiting():
        torch.cuda._sleep(200_000_000)  # a tenth of a second, longer than the host takes for all of them
        queued = run_all(recorded)
    for found, wanted in zip(queued, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@given(count=st.integers(1, 100_000))
def test_rooms(count: int) -> None:
    """Hardly more than is needed, and few different ones."""
    room, rows = room_for(count), rows_for(count)
    assert count <= room < count + max(recorded_walk.LEAST, min(count / 4, recorded_walk.HARDLY_FELT), count / 16)
    assert count <= rows < count + max(1, count / 8)
    assert len({room_for(other) for other in range(1024, 2048)}) <= 17


def test_texts_one_by_one_need_few_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their lengths; tables stay where they are meanwhile."""
    monkeypatch.undo()
    device, stack, recorder = torch.device("cpu"), stack_of("attention"), Counting()
    recorded = RecordedStack(stack, torch.empty(1, 1, 8), recorder)
    rooms = {
        Rooms.of(Sequences.of(np.zeros(length, dtype=np.int64), device), has_grid=True) for length in range(1, 513)
    }
    assert len(rooms) <= 2 * 17
    for each in rooms:
        recorded.layout(each)
    assert recorded.arena.num_moves == 0
