"""The engine on a GPU: the numbers of a CPU, and a host that waits only where it has to."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config.depth import ConfidenceConfig, StructureExitConfig
from depthwise.depth import ConfidenceThreshold, Plan, Policy, State, StructureExit, Visit
from depthwise.engine import CompactEncoder, Engine
from depthwise.engine.choosing import MaskedEncoder
from depthwise.engine.decoder_state import DecoderState
from depthwise.engine.decoding import Decoding
from depthwise.engine.fills import CopyDeferred, CopyEager, Fill, NoFill, Recompute
from depthwise.engine.prepared import Prepared
from depthwise.engine.stepping import Stepper
from depthwise.models.executing import executed_by
from depthwise.models.masked import run_masked

from ..models.conftest import decisive
from .test_encoder import POLICIES, policy_of, said
from .test_fills import Told

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]

DEVICE = torch.device("cuda")
PADDING, LAYERS, STEPS, WIDTH = 1, 4, 9, 8
DEEP = {"num_layers": LAYERS}
Model = Callable[..., Any]
Ids = Callable[..., Tensor]


class BySign(Policy):
    """Leaves by the sign of one number of the state."""

    def leaving(self, visit: Visit, state: State) -> tuple[Tensor, State]:
        return visit.hidden[..., 0] > 0.1, state


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected.cpu(), rtol=1e-9, atol=1e-11)


@contextmanager
def never_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def counting_waits() -> Iterator[list[Any]]:
    """How often the host waits for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.cuda.set_sync_debug_mode("default")


def twins(model: Any) -> tuple[Any, Any]:
    """The model on the CPU and on the GPU."""
    return model, copy.deepcopy(model).to(DEVICE)


# Encoders


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_any_plan(build: Model, mixer: str, norm: str, is_padded: bool) -> None:
    """Engine and masked executor on the GPU, and the masked executor on the CPU."""
    here, there = twins(build("token_classification", mixer, norm, stack=DEEP))
    x = torch.randn(5, 9, WIDTH, dtype=torch.float64)
    valid = torch.arange(9) < torch.tensor([9, 4, 1, 7, 9]).unsqueeze(1) if is_padded else None
    run = torch.rand(LAYERS, 5, 9) < torch.tensor([0.9, 0.5, 0.3, 0.1]).view(-1, 1, 1)
    weight = torch.rand(LAYERS, 5, 9, dtype=torch.float64) if norm == "pre" else None
    plan, steps = Plan(run, weight), torch.zeros(5, 9, dtype=torch.long, device=DEVICE)
    on_gpu = None if valid is None else valid.to(DEVICE)
    planned = Plan(run.to(DEVICE), None if weight is None else weight.to(DEVICE))
    executor = CompactEncoder()
    with torch.inference_mode():
        expected = run_masked(here.model.encoder.stack, x, plan, valid=valid)
        stack, moved = there.model.encoder.stack, x.to(DEVICE)
        masked = run_masked(stack, moved, planned, valid=on_gpu)
        found, depths = executor(stack, moved, valid=on_gpu, plan=plan, leaving=None, steps=steps)
    for output in (masked, found):
        assert_same(output.last, expected.last)
        assert_same(output.final, expected.final)
    assert executor.token_layers == int(depths.sum()) == int((run if valid is None else run & valid).sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_plans_known_in_advance_never_wait(build: Model, mixer: str, dtype: torch.dtype) -> None:
    """From the first block to the last, however sparse the plan is."""
    stack = build("token_classification", mixer, stack=DEEP).to(DEVICE, dtype).model.encoder.stack
    x, steps = torch.randn(5, 9, WIDTH, dtype=dtype, device=DEVICE), torch.zeros(5, 9, dtype=torch.long, device=DEVICE)
    plans = [Plan.of_depths(torch.randint(1, LAYERS + 1, (5, 9)), LAYERS) for _ in range(2)]
    plans.append(Plan(plans[0].run, torch.rand(LAYERS, 5, 9)))
    executor = CompactEncoder()

    @torch.inference_mode()
    def run_all() -> None:
        for plan in plans:
            executor(stack, x, valid=None, plan=plan, leaving=None, steps=steps)

    run_all()  # kernels are compiled and libraries loaded
    with never_waiting():
        run_all()


@pytest.mark.parametrize("head", ["sequence_classification", "token_classification", "question_answering"])
def test_depths_on_the_host_never_wait(build: Model, draw_ids: Ids, head: str) -> None:
    """From ids to scores, padding included: depths and mask stay where the batch was made."""
    here, there = twins(build(head, stack=DEEP))
    ids = draw_ids(3, STEPS, padding=[0, 4, 2])
    mask = (ids != PADDING).long()
    depths = torch.randint(1, LAYERS + 1, ids.shape) * mask
    engine, moved = Engine(there), ids.to(DEVICE)
    engine(input_ids=moved, attention_mask=mask, depths=depths)
    with never_waiting():
        found = engine(input_ids=moved, attention_mask=mask, depths=depths)
        executed = CompactEncoder()
        with torch.inference_mode(), executed_by(executed):
            compact = there(input_ids=moved, attention_mask=mask, depths=depths)
    expected = here(input_ids=ids, attention_mask=mask, depths=depths)
    for output in (found, compact, there(input_ids=moved, attention_mask=mask, depths=depths)):
        assert_same(output.logits, expected.logits)
        assert torch.equal(output.depths.cpu(), depths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["compact", "masked", "chosen"])
def test_static_layers_are_asked_once(build: Model, draw_ids: Ids, mixer: str, kind: str, dtype: torch.dtype) -> None:
    """From ids to scores: how deep each row goes, and where its padding is, come in one transfer."""
    model = build("token_classification", mixer, stack=DEEP, structure={"num_static": 1})
    here, there = twins(decisive(model))
    ids = draw_ids(24, STEPS, padding=[0, 4, 2, 0, 7, 1] * 4)
    moved, mask = ids.to(DEVICE), (ids != PADDING).to(DEVICE)
    for each in (here, there):
        each.use_policy(StructureExit(StructureExitConfig(threshold=0.5)))
    expected, real = here(input_ids=ids, attention_mask=mask.cpu()), mask.cpu()
    assert len(set(expected.depths[real].tolist())) > 1
    executors = {"compact": CompactEncoder, "masked": MaskedEncoder, "chosen": lambda: Engine(there).executor}

    def run(model: Any) -> Any:
        executor = executors[kind]()
        with torch.inference_mode(), executed_by(executor):
            return model(input_ids=moved, attention_mask=mask)

    found = run(there)
    assert torch.equal(found.depths.cpu(), expected.depths)
    assert_same(found.logits.cpu()[real], expected.logits[real])
    shorter = there.to(dtype)
    again = run(shorter)
    with counting_waits() as waits:
        again = run(shorter)
    assert len(waits) <= 1, [str(wait.message) for wait in waits]
    alike = {torch.float32: 1e-4, torch.bfloat16: 0.3}[dtype]
    same = (again.depths == found.depths).all(1).cpu()  # what is near a threshold may fall on its other side
    assert same.sum() >= 16
    rows = real & same.unsqueeze(1)
    torch.testing.assert_close(again.logits.double().cpu()[rows], expected.logits[rows], rtol=alike, atol=alike)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy(build: Model, draw_batch: Model, name: str) -> None:
    model = build("token_classification", "dynamicconv", stack=DEEP, exits={"heads": "separate"}, num_labels=3)
    model.use_policy(policy_of(model, name))
    here, there = twins(model)
    batch = draw_batch("token_classification", (6, 3, 5, 1, 4))
    expected = here(**batch)
    moved = {key: value.to(DEVICE) for key, value in batch.items()}
    found = Engine(there)(**moved)
    assert torch.equal(found.depths.cpu(), expected.depths)
    assert_same(said(found, moved, ...), said(expected, batch, ...))


# Decoders


def stepper_of(model: Any, fill: Callable[[DecoderState], Fill], num_rows: int, policy: Policy | None) -> Stepper:
    prepared = Prepared(model, num_rows)
    like = torch.empty(num_rows, 1, WIDTH, dtype=torch.float64, device=model.device)
    state = DecoderState(prepared.blocks, like, source=None, keeps_states=policy is not None, slack=STEPS)
    return Stepper(prepared, state, fill(state), policy)


@torch.no_grad()
@pytest.mark.parametrize("fill", [CopyEager, CopyDeferred, Recompute])
def test_steps(build: Model, draw_ids: Ids, mixer: str, fill: Callable[[DecoderState], Fill]) -> None:
    """Scores of every step, for random depths."""
    here, there = twins(build("causal_lm", mixer, stack=DEEP, exits={}))
    ids, depths = draw_ids(5, STEPS), torch.randint(1, LAYERS + 1, (5, STEPS))
    expected = stepper_of(here, fill, 5, Told(depths))
    found = stepper_of(there, fill, 5, Told(depths.to(DEVICE)))
    for step in range(STEPS):
        assert_same(found.step(ids[:, step].to(DEVICE)).logits, expected.step(ids[:, step]).logits)


@torch.no_grad()
def test_steps_wait_for_decisions_alone(build: Model, draw_ids: Ids, mixer: str) -> None:
    """Never at full depth, once per step for a plan, once per exit at most for a policy that looks at states."""
    model, ids = build("causal_lm", mixer, stack=DEEP, exits={}).to(DEVICE), draw_ids(5, STEPS).to(DEVICE)
    full = stepper_of(model, NoFill, 5, None)
    columns = [column.contiguous() for column in ids.unbind(1)]
    full.step(columns[0])
    with never_waiting():
        for column in columns[1:]:
            full.step(column)
    depths = torch.randint(1, LAYERS + 1, ids.shape, device=DEVICE)
    for policy, most in ((Told(depths), 1), (BySign(), LAYERS - 1)):
        stepper = stepper_of(model, CopyDeferred, 5, policy)
        stepper.step(columns[0])
        with counting_waits() as waits:
            for column in columns[1:]:
                stepper.step(column)
        assert 0 < len(waits) <= most * (STEPS - 1), [str(wait.message) for wait in waits]


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}])
def test_generate(build: Model, draw_ids: Ids, mixer: str, head: str, search: dict[str, int]) -> None:
    """Tokens, depths and scores, with padding on either side."""
    model = build(head, mixer, stack=DEEP, exits={}, tied_embeddings="none")
    model.use_policy(BySign())
    here, there = twins(model)
    ids = draw_ids(padding=[0, 2, -5, 4, -1])
    options = {"max_new_tokens": 6, "suppress_tokens": [PADDING], **search}
    expected = Decoding(here).generate(ids, ids != PADDING, **options)
    found = Decoding(there, graphs=False).generate(ids.to(DEVICE), (ids != PADDING).to(DEVICE), **options)
    assert torch.equal(found.tokens.cpu(), expected.tokens)
    assert torch.equal(found.depths.cpu(), expected.depths)
    torch.testing.assert_close(found.scores.cpu(), expected.scores, rtol=1e-4, atol=1e-5)
    assert found.num_token_layers == expected.num_token_layers


# Recorded steps


RECORDED: dict[str, Callable[[], Policy | None]] = {
    "whole stack": lambda: None,
    "asked by Python": BySign,
    "asked in graphs": lambda: ConfidenceThreshold(ConfidenceConfig(threshold=(0.2,))),
}


@pytest.mark.parametrize("policy", RECORDED)
def test_recorded_steps(build: Model, draw_ids: Ids, mixer: str, policy: str) -> None:
    """By hand, while they are recorded, and from graphs: always what steps are that Python runs."""
    head = ("seq2seq", "causal_lm")[len(mixer) % 2]
    model = build(head, mixer, stack=DEEP, exits={}, tied_embeddings="none").to(DEVICE)
    model.use_policy(RECORDED[policy]())
    recorded, plain = Decoding(model, graphs=True), Decoding(model, graphs=False)
    ids = draw_ids(padding=[0, 2, -5, 4, -1]).to(DEVICE)
    for search in ({}, {"num_beams": 3}, {"limits": [2, 6, 1, 1, 4]}):
        options = {"max_new_tokens": 6, "suppress_tokens": [PADDING], **search}
        expected = plain.generate(ids, ids != PADDING, **options)
        assert not expected.recorded
        for _ in range(3):
            found = recorded.generate(ids, ids != PADDING, **options)
            assert found.recorded
            assert torch.equal(found.tokens, expected.tokens)
            assert torch.equal(found.depths, expected.depths)
            torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-5)
            assert found.num_token_layers == expected.num_token_layers
            assert found.num_filled == expected.num_filled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_recorded_steps_in_any_precision(build: Model, draw_ids: Ids, mixer: str, dtype: torch.dtype) -> None:
    model = build("seq2seq", mixer, stack=DEEP, exits={}).to(DEVICE, dtype)
    recorded, plain = Decoding(model, graphs=True), Decoding(model, graphs=False)
    ids = draw_ids(padding=[0, 2, 4]).to(DEVICE)
    expected = plain.generate(ids, ids != PADDING, max_new_tokens=6, eos_token_id=[])
    for _ in range(3):
        found = recorded.generate(ids, ids != PADDING, max_new_tokens=6, eos_token_id=[])
        assert found.scores.isfinite().all()
        precision = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
        torch.testing.assert_close(found.scores[:, 0], expected.scores[:, 0], **precision)


def test_recorded_steps_never_wait(build: Model, draw_ids: Ids, mixer: str) -> None:
    """However many there are, the host waits as often as for a few."""
    model, ids = build("seq2seq", mixer).to(DEVICE), draw_ids().to(DEVICE)
    recorded = Decoding(model, graphs=True)

    def waits_for(num_steps: int) -> int:
        for _ in range(3):
            with counting_waits() as waits:
                recorded.generate(ids, max_new_tokens=num_steps, eos_token_id=[])
        return len(waits)

    assert waits_for(4) == waits_for(12)


def test_recorded_steps_take_no_more_memory(build: Model, draw_ids: Ids) -> None:
    """Once batches of all sizes have come."""
    model = build("seq2seq", stack=DEEP, exits={}).to(DEVICE)
    recorded, taken = Decoding(model, graphs=True), []
    model.use_policy(BySign())
    for _ in range(4):
        for rows in (3, 1, 8):
            recorded.generate(draw_ids(rows=rows).to(DEVICE), max_new_tokens=6, eos_token_id=[])
        taken.append(torch.cuda.memory_allocated())
    assert taken[-1] <= taken[-2] * 1.01


def test_recorded_steps_follow_changed_weights(build: Model, draw_ids: Ids) -> None:
    model, ids = build("seq2seq", tied_embeddings="none").to(DEVICE), draw_ids().to(DEVICE)
    recorded = Decoding(model, graphs=True)
    for _ in range(3):
        before = recorded.generate(ids, max_new_tokens=6)
    with torch.no_grad():
        model.head.weight.neg_()
    found = recorded.generate(ids, max_new_tokens=6)
    assert not torch.equal(found.tokens, before.tokens)
    assert torch.equal(found.tokens, Decoding(model, graphs=False).generate(ids, max_new_tokens=6).tokens)


# Recorded rounds of lossless decoding


@pytest.mark.parametrize("padding", [[0], [0, 2, -5, 4, -1]], ids=["one row", "several rows"])
def test_recorded_rounds(build: Model, draw_ids: Ids, mixer: str, padding: list[int]) -> None:
    """By hand, while they are recorded, and from graphs: the text of full depth, by the same drafts as without."""
    head = ("seq2seq", "causal_lm")[len(mixer) % 2]
    model = build(head, mixer, stack=DEEP, exits={}, tied_embeddings="none").to(DEVICE)
    recorded, plain = Decoding(model, graphs=True), Decoding(model, graphs=False)
    ids = draw_ids(padding=padding).to(DEVICE)
    for search in ({"eos_token_id": []}, {"limits": [2, 9, 1, 1, 4][: len(padding)], "min_new_tokens": 9}):
        options = {"max_new_tokens": 9, "suppress_tokens": [PADDING], **search}
        whole = plain.generate(ids, ids != PADDING, **options)
        for drafting in ({"lossless": 2, "num_drafted": 3}, {"lossless": 1, "num_drafted": 20}):
            expected = plain.generate(ids, ids != PADDING, **options, **drafting)
            for _ in range(3):
                found = recorded.generate(ids, ids != PADDING, **options, **drafting)
                assert found.recorded
                assert not expected.recorded
                assert torch.equal(found.tokens, whole.tokens)
                assert torch.equal(found.depths, whole.depths)
                torch.testing.assert_close(found.scores, whole.scores, rtol=1e-4, atol=1e-5)
                assert found.drafts == expected.drafts
                assert found.num_token_layers == expected.num_token_layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_recorded_rounds_in_any_precision(
    build: Model, draw_ids: Ids, mixer: str, dtype: torch.dtype, num_rows: int
) -> None:
    model = build("seq2seq", mixer, stack=DEEP, exits={}).to(DEVICE, dtype)
    recorded, plain = Decoding(model, graphs=True), Decoding(model, graphs=False)
    ids = draw_ids(padding=[0, 2, 4][:num_rows]).to(DEVICE)
    expected = plain.generate(ids, ids != PADDING, max_new_tokens=9, eos_token_id=[])
    for _ in range(3):
        found = recorded.generate(ids, ids != PADDING, max_new_tokens=9, eos_token_id=[], lossless=2)
        assert found.scores.isfinite().all()
        precision = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
        torch.testing.assert_close(found.scores[:, 0], expected.scores[:, 0], **precision)
        if dtype == torch.float32:
            assert torch.equal(found.tokens, expected.tokens)


def test_recorded_rounds_wait_for_reports_alone(build: Model, draw_ids: Ids, mixer: str) -> None:
    """However many there are, the host waits for the whole device as often as for a few."""
    model, ids = build("seq2seq", mixer, stack=DEEP, exits={}).to(DEVICE), draw_ids().to(DEVICE)
    recorded = Decoding(model, graphs=True)

    def waits_for(num_steps: int) -> int:
        for _ in range(3):
            with counting_waits() as waits:
                recorded.generate(ids, max_new_tokens=num_steps, eos_token_id=[], lossless=2, num_drafted=2)
        return len(waits)

    assert waits_for(4) == waits_for(20)


def test_recorded_rounds_take_no_more_memory(build: Model, draw_ids: Ids) -> None:
    """Once batches of all sizes have come, at full depth and from drafts."""
    model = build("seq2seq", stack=DEEP, exits={}).to(DEVICE)
    recorded, taken = Decoding(model, graphs=True), []
    for _ in range(4):
        for rows in (3, 1, 8):
            for drafting in ({}, {"lossless": 2}):
                recorded.generate(draw_ids(rows=rows).to(DEVICE), max_new_tokens=6, eos_token_id=[], **drafting)
        taken.append(torch.cuda.memory_allocated())
    assert taken[-1] <= taken[-2] * 1.01


def test_recorded_rounds_outgrow_their_tables(build: Model, draw_ids: Ids) -> None:
    """Rows go on in larger tables, from where they were."""
    model, ids = build("causal_lm", stack=DEEP, exits={}, tied_embeddings="none").to(DEVICE), draw_ids(3, 5).to(DEVICE)
    options = {"max_new_tokens": 150, "eos_token_id": []}
    expected = Decoding(model, graphs=False).generate(ids, **options)
    recorded = Decoding(model, graphs=True)
    for _ in range(3):
        assert torch.equal(recorded.generate(ids, lossless=2, **options).tokens, expected.tokens)


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_a_queue(build: Model, mixer: str, head: str) -> None:
    """Requests of many lengths, greedy and sampled, through a queue: each is what the CPU says of it alone."""
    model = build(head, mixer, stack=DEEP, exits={}, tied_embeddings="none")
    model.use_policy(BySign())
    here, there = twins(model)
    there.use_policy(BySign())
    rows = [torch.randint(4, 17, (1 + number % 7,)) for number in range(12)]
    several: list[dict[str, Any]] = [{"max_new_tokens": 2 + number % 9} for number in range(len(rows))]

    def options(number: int) -> dict[str, Any]:
        drawn = {"do_sample": True, "generators": [torch.Generator().manual_seed(number)]}
        return several[number] | (drawn if number % 3 == 0 else {})

    with Engine(there).queue(max_rows=4) as queue:
        tickets = [queue.submit(ids, **options(number)) for number, ids in enumerate(rows)]
    for number, (ids, ticket) in enumerate(zip(rows, tickets, strict=True)):
        expected = Decoding(here).generate(ids.unsqueeze(0), torch.ones(1, len(ids)), **options(number))
        assert list(ticket.result(0).tokens) == expected.tokens[0].tolist()
        assert list(ticket.result(0).depths) == expected.depths[0].tolist()
