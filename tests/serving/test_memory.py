"""Nothing is left behind by requests, good or bad."""

import gc
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from .conftest import LONG, Live, until
from .test_refusals import BROKEN, POSTS

GOOD: list[tuple[str, dict[str, Any]]] = [
    *POSTS.items(),
    ("/v1/generate", {"model": "translate", "input": "a b", "depth": 2, "num_beams": 2}),
    ("/v1/generate", {"model": "latent", "input": "a", "to": "yy"}),
    ("/v1/generate", {"model": "text", "input": "a", "temperature": 1.0, "max_new_tokens": 5}),
    ("/v1/classify", {"model": "words", "input": "a c", "depth": 1}),
    ("/v1/classify", {"model": "pairs", "input": "a c", "pair": "b"}),
    ("/v1/completions", {"model": "text", "prompt": ["a", "b"], "stop": "c", "stream": True}),
]
BAD = [content for content, _ in BROKEN.values()]


def work(live: Live, rounds: int) -> None:
    """Good requests of all kinds, bad ones, and streams that nobody reads to their end."""

    def ask(place: int) -> None:
        path, body = GOOD[place % len(GOOD)]
        assert live.post(path, **body).status_code == 200
        bad = live.ask("POST", path, content=BAD[place % len(BAD)], headers={"content-type": "application/json"})
        assert 400 <= bad.status_code < 500
        if place % 10 == 0:
            given: dict[str, Any] = {"model": "long", "input": "a", "max_new_tokens": LONG, "stream": True}
            with live.client() as client, client.stream("POST", "/v1/generate", json=given) as response:
                next(response.iter_lines())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(rounds)))
    until(lambda: all(served.num_running + served.num_waiting == 0 for served in live.hub.models.values()))


def counted() -> tuple[int, int]:
    """Objects that there are, and tensors among them."""
    gc.collect()
    found = gc.get_objects()
    return len(found), sum(issubclass(type(each), torch.Tensor) for each in found)


def test_objects_do_not_grow(live: Live) -> None:
    """As many requests again leave no more than chance does: far less than one object for each."""
    work(live, 100)
    before = counted()
    work(live, 200)
    until(lambda: live.hub.num_active == 0)
    after = counted()
    assert after[1] - before[1] < 50
    assert after[0] - before[0] < 200, json.dumps([before, after])
