"""A queue answers requests of many threads as if each were alone, whatever happens to the others."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.engine import Drafting, Engine, RequestQueue, Said
from depthwise.errors import InputError, QueueError

from .test_live_batch import alone, model_of, policy_of

LONG = {"max_new_tokens": 40, "eos_token_id": None}
SOON = 60.0
Queue = Callable[..., RequestQueue]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return model_of("causal_lm", "dynamicconv", stack={"num_layers": 4, "positions": "learned", "max_positions": 60})


@pytest.fixture
def open_queue(model: Any) -> Iterator[Queue]:
    """Queues that are closed in the end, whatever comes."""
    opened: list[RequestQueue] = []

    def make(**options: Any) -> RequestQueue:
        opened.append(Engine(model).queue(**{"max_rows": 4, "max_wait": 0.002, **options}))
        return opened[-1]

    yield make
    for queue in opened:
        queue.close(finish=False)


def prompt(length: int = 3) -> Tensor:
    return torch.randint(4, 17, (length,))


def assert_alone(model: Any, ids: Tensor, answer: Any, **options: Any) -> None:
    expected = alone(model, ids, None, **options)
    assert list(answer.tokens) == expected.tokens[0].tolist()
    assert list(answer.depths) == expected.depths[0].tolist()
    torch.testing.assert_close(torch.tensor(answer.scores), expected.scores[0])
    assert answer.has_ended == (answer.tokens[-1] in (options.get("eos_token_id") or [2]))
    assert 0 <= answer.waited <= answer.seconds


def until(claim: Callable[[], bool]) -> None:
    """Waits for something that has to happen."""
    end = time.monotonic() + SOON
    while not claim():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


@pytest.mark.parametrize("head", ["seq2seq", "causal_lm"])
def test_many_threads(head: str) -> None:
    """Each thread asks when it likes, and some call off what they asked for."""
    model, choose = model_of(head, "attention"), random.Random(1)
    asked = [(prompt(choose.randint(1, 9)), {"max_new_tokens": choose.randint(1, 12)}) for _ in range(40)]
    pauses = [choose.random() * 0.01 for _ in asked]

    def ask(number: int) -> Any:
        time.sleep(pauses[number])
        ticket = queue.submit(asked[number][0], **asked[number][1])
        if number % 7 == 3:
            return ticket.cancel() or ticket.result(SOON)
        return [said.token for said in ticket], ticket.result(SOON)

    with Engine(model).queue(max_rows=4) as queue, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(len(asked))))
    for number, (ids, options) in enumerate(asked):
        if number % 7 != 3:
            tokens, answer = found[number]
            assert tokens == list(answer.tokens)
            assert_alone(model, ids, answer, **options)
    assert (queue.num_running, queue.num_waiting) == (0, 0)


def test_options_of_single_requests(model: Any, open_queue: Queue) -> None:
    """Sampling with generators of their own, limits, and policies of their own in one batch."""
    queue, ids = open_queue(), prompt()
    seeded = {"do_sample": True, "temperature": 1.4, "top_k": 5, "max_new_tokens": 9}
    policy = policy_of(model, "confidence", "causal_lm")
    several: list[dict[str, Any]] = [
        {},
        {"limits": [3]},
        {"no_repeat_ngram_size": 1},
        {"eos_token_id": [4, 5, 6]},
        seeded,
    ]
    tickets = []
    for options in several:
        drawn = {"generators": [torch.Generator().manual_seed(7)]} if options is seeded else {}
        tickets.append(queue.submit(ids.tolist(), **options, **drawn))
    left = queue.submit(ids, policy=policy, **LONG)
    for ticket, options in zip(tickets, several, strict=True):
        drawn = {"generators": [torch.Generator().manual_seed(7)]} if options is seeded else {}
        assert_alone(model, ids, ticket.result(SOON), **options, **drawn)
    expected = alone(model, ids, policy, **LONG)
    answer = left.result(SOON)
    assert list(answer.tokens) == expected.tokens[0].tolist()
    assert list(answer.depths) == expected.depths[0].tolist()
    assert queue.token_layers > 0


def test_the_policy_of_the_model_is_the_usual_one(model: Any, open_queue: Queue) -> None:
    policy, ids = policy_of(model, "fixed", "causal_lm"), prompt()
    model.use_policy(policy)
    try:
        queue = open_queue()
        usual, full = queue.submit(ids), queue.submit(ids, policy=None)
        assert set(usual.result(SOON).depths) == {2}
        assert set(full.result(SOON).depths) == {4}
    finally:
        model.use_policy(None)


# Tokens as they come


def test_tokens_come_before_the_answer(model: Any, open_queue: Queue) -> None:
    """A callback sees each token when it is made; whoever iterates gets the same, at leisure."""
    queue, seen, may_go_on = open_queue(), [], threading.Event()

    def see(said: Said) -> None:
        seen.append(said)
        if len(seen) == 3:
            assert may_go_on.wait(SOON)

    ticket = queue.submit(prompt(), on_token=see, **LONG)
    until(lambda: len(seen) == 3)
    assert not ticket.future.done()
    may_go_on.set()
    answer = ticket.result(SOON)
    assert [said.token for said in seen] == list(answer.tokens)
    assert list(ticket) == seen
    assert list(ticket) == []


def test_a_slow_reader_keeps_nobody_waiting(model: Any, open_queue: Queue) -> None:
    queue, slow_ids, quick_ids = open_queue(max_rows=2), prompt(), prompt(5)
    slow = queue.submit(slow_ids, **LONG)
    reader = iter(slow)
    first = next(reader)
    for _ in range(3):
        assert_alone(model, quick_ids, queue.submit(quick_ids, **LONG).result(SOON), **LONG)
    answer = slow.result(SOON)
    assert [first, *reader] == [Said(*each) for each in zip(answer.tokens, answer.depths, answer.scores, strict=True)]
    assert_alone(model, slow_ids, answer, **LONG)


def test_asyncio(model: Any, open_queue: Queue) -> None:
    queue, ids = open_queue(), prompt()

    async def ask() -> tuple[list[int], Any]:
        loop, tokens = asyncio.get_running_loop(), []
        arrived: asyncio.Queue[int] = asyncio.Queue()
        ticket = queue.submit(
            ids, on_token=lambda said: loop.call_soon_threadsafe(arrived.put_nowait, said.token), **LONG
        )
        for _ in range(LONG["max_new_tokens"] or 0):
            tokens.append(await arrived.get())
        called_off = asyncio.wrap_future(queue.submit(ids, **LONG).future)
        called_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await called_off
        return tokens, await asyncio.wrap_future(ticket.future)

    tokens, answer = asyncio.run(ask())
    assert tokens == list(answer.tokens)
    assert_alone(model, ids, answer, **LONG)


# Waiting


def test_nobody_waits_longer_than_agreed(model: Any, open_queue: Queue) -> None:
    """A free row waits for others to join, but not for ever; as many as are worth it do not wait."""
    queue = open_queue(max_wait=0.1, join_at_once=3)
    assert queue.submit(prompt(), max_new_tokens=1).result(SOON).waited >= 0.1
    queue = open_queue(max_wait=10 * SOON, join_at_once=3)
    for ticket in [queue.submit(prompt(), max_new_tokens=1) for _ in range(3)]:
        assert ticket.result(SOON).waited < SOON
    assert open_queue(max_wait=0, join_at_once=3).submit(prompt(), max_new_tokens=1).result(SOON).waited < SOON
    idle = open_queue(max_rows=32, max_wait=10 * SOON)
    assert idle.submit(prompt(), max_new_tokens=1).result(SOON).waited < SOON, "there is nobody to join"


def test_a_full_queue(model: Any, open_queue: Queue) -> None:
    """One more is refused; who calls off makes room."""
    queue, may_go_on = open_queue(max_rows=1, max_waiting=2), threading.Event()
    running = queue.submit(prompt(), on_token=lambda _: may_go_on.wait(SOON), **LONG)
    until(lambda: queue.num_running == 1)
    waiting = [queue.submit(prompt(), max_new_tokens=2) for _ in range(2)]
    with pytest.raises(QueueError, match="2 requests are waiting, which is as many as may; ask again later"):
        queue.submit(prompt(), max_new_tokens=2)
    assert queue.num_waiting == 2
    waiting[0].cancel()
    late = queue.submit(prompt(), max_new_tokens=2)
    may_go_on.set()
    assert [len(ticket.result(SOON).tokens) for ticket in (running, waiting[1], late)] == [40, 2, 2]


# Calling off


def test_calling_off(model: Any, open_queue: Queue) -> None:
    """Waiting or running; the row is free for others at once, and whoever waits for it learns that."""
    queue, ids, may_go_on = open_queue(max_rows=1), prompt(), threading.Event()
    running = queue.submit(prompt(), on_token=lambda _: may_go_on.wait(SOON), **LONG)
    waiting, last = queue.submit(prompt(), **LONG), queue.submit(ids, **LONG)
    until(lambda: queue.num_running == 1)
    assert waiting.cancel()
    assert running.cancel()
    may_go_on.set()
    assert_alone(model, ids, last.result(SOON), **LONG)
    assert not last.cancel()
    assert wait([running.future, waiting.future], SOON).not_done == set()
    for ticket in (running, waiting):
        with pytest.raises(CancelledError):
            ticket.result(SOON)
        with pytest.raises(CancelledError):
            list(ticket)


# What goes wrong


@pytest.mark.parametrize(
    ("ids", "options", "sentence"),
    [
        (prompt(61), {}, "input_ids has 61 steps but max_positions is 60; shorten the input"),
        ([4, 99], {}, "holds id 99, outside the vocabulary of 17 types"),
        ([], {}, "has no steps; give every row at least one token"),
        (torch.ones(1, 2, dtype=torch.long), {}, "one row of ids, not 2 axes; submit rows one by one"),
        ([4], {"num_beams": 2}, "a queue has no beams; leave out num_beams"),
        ([4], {"lossless": 2}, "the engine knows no lossless"),
        ([4], {"max_new_tokens": 0}, "max_new_tokens is 0; ask for at least one"),
        ([4], {"limits": [3, 4]}, "a request is one row, but limits has 2 values; give one"),
        ([4], {"do_sample": True, "temperature": 0.0}, "the temperature is 0.0, but must be above 0"),
    ],
)
def test_bad_requests_are_refused(open_queue: Queue, ids: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        open_queue().submit(ids, **options)


def test_one_that_fails_disturbs_nobody(model: Any, open_queue: Queue) -> None:
    """Too long a text, a processor of scores or a callback that fails: each has its own error."""

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("for a test")

    queue, ids = open_queue(join_at_once=4, max_wait=1), prompt(30)
    too_long = queue.submit(ids, max_new_tokens=50, eos_token_id=None)
    processed = queue.submit(ids, logits_processor=[fails], **LONG)
    called_back = queue.submit(ids, on_token=fails, **LONG)
    good = queue.submit(prompt(4), max_new_tokens=50, eos_token_id=None)
    with pytest.raises(InputError, match="has 61 steps but max_positions is 60; ask for fewer tokens"):
        too_long.result(SOON)
    for ticket in (processed, called_back):
        with pytest.raises(ZeroDivisionError):
            list(ticket)
    assert len(good.result(SOON).tokens) == 50


def test_prompts_that_fail_together_are_tried_one_by_one(
    model: Any, open_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, good, bad = open_queue(join_at_once=3, max_wait=1), prompt(), torch.tensor([4, 5, 6])
    arrivals = queue._batch.arrivals

    def some_fail(requests: Any) -> Any:
        if any(each.prompt[0].equal(bad) for each in requests):
            raise MemoryError("for a test")
        return arrivals(requests)

    monkeypatch.setattr(queue._batch, "arrivals", some_fail)
    tickets = [queue.submit(ids, **LONG) for ids in (good, bad, good)]
    with pytest.raises(MemoryError):
        tickets[1].result(SOON)
    for ticket in (tickets[0], tickets[2]):
        assert_alone(model, good, ticket.result(SOON), **LONG)


def test_a_step_that_fails_fails_those_that_run(model: Any, open_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered from a new batch."""
    queue, ids = open_queue(max_rows=2, join_at_once=1), prompt()
    batch, step, are_there = queue._batch, queue._batch.step, threading.Event()

    def fails_with_two() -> Any:
        assert are_there.wait(SOON)
        if len(batch.requests) == 2:
            raise MemoryError("for a test")
        return step()

    monkeypatch.setattr(batch, "step", fails_with_two)
    tickets = [queue.submit(ids, **LONG) for _ in range(3)]
    are_there.set()
    for ticket in tickets[:2]:
        with pytest.raises(MemoryError):
            ticket.result(SOON)
    assert_alone(model, ids, tickets[2].result(SOON), **LONG)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_rows": 0}, "max_rows is 0, which lets nobody in; give at least 1"),
        ({"max_wait": -1.0}, "max_wait is -1.0; give a number of seconds"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"fill": "lazy"}, 'there is no fill "lazy"'),
    ],
)
def test_bad_options_of_a_queue(model: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Engine(model).queue(**options)


def test_models_without_a_queue(model: Any) -> None:
    with pytest.raises(InputError, match="generates nothing; call the engine itself"):
        Engine(model_of("token_classification", "attention", num_labels=2)).queue()
    with pytest.raises(InputError, match="a queue drafts nothing; open that of an engine without drafting"):
        Engine(model, drafting=Drafting(2)).queue()
    engine = Engine(model)
    model.train()
    try:
        with pytest.raises(InputError, match=r"call model.eval\(\) first"):
            engine.queue()
    finally:
        model.eval()


# The end


def test_closing_answers_what_was_taken(model: Any, open_queue: Queue) -> None:
    queue, rows = open_queue(max_rows=2, join_at_once=2, max_wait=30), [prompt() for _ in range(5)]
    tickets = [queue.submit(ids, **LONG) for ids in rows]
    queue.close()
    assert not queue._thread.is_alive()
    for ids, ticket in zip(rows, tickets, strict=True):
        assert_alone(model, ids, ticket.result(0), **LONG)
    with pytest.raises(QueueError, match="the queue is closed and takes no more requests; open another one"):
        queue.submit(prompt())
    queue.close()


def test_closing_at_once(open_queue: Queue) -> None:
    """Whatever is not done is called off: what runs, and what waits."""
    queue, has_begun = open_queue(max_rows=1), threading.Event()
    tickets = [queue.submit(prompt(), on_token=lambda _: has_begun.set() or time.sleep(0.01), **LONG) for _ in range(3)]
    assert has_begun.wait(SOON)
    queue.close(finish=False)
    assert not queue._thread.is_alive()
    assert [ticket.future.cancelled() for ticket in tickets] == [True] * 3
    assert wait([ticket.future for ticket in tickets], SOON).not_done == set()


def test_an_error_around_the_queue_calls_all_off(model: Any) -> None:
    tickets = []

    def fail() -> None:
        with Engine(model).queue(max_rows=1, join_at_once=1) as queue:
            tickets.extend(queue.submit(prompt(), on_token=lambda _: time.sleep(0.01), **LONG) for _ in range(2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tickets[1].future.cancelled()
