"""``/v1/completions``: language models for clients of OpenAI's API."""

import json
from typing import Any

import pytest

from depthwise.serving.completions import Told

from .conftest import LONG, Live, Start, until


def complete(live: Live, **body: Any) -> Any:
    response = live.post("/v1/completions", **{"model": "long", **body})
    assert response.status_code == 200, response.text
    return response.json()


def chunks(live: Live, **body: Any) -> list[Any]:
    text = live.post("/v1/completions", **{"model": "long", "stream": True, **body}).text
    *blocks, last, rest = text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_as_generate_says(live: Live) -> None:
    generated = live.post("/v1/generate", model="long", input="a b", max_new_tokens=9, depth=2).json()
    found = complete(live, prompt="a b", max_tokens=9, temperature=0, depth=2)
    (choice,) = found["choices"]
    assert (found["object"], found["model"], choice["index"]) == ("text_completion", "long", 0)
    assert choice["text"] == generated["output"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    assert choice["depthwise"]["depths"] == [2] * 9
    assert choice["depthwise"]["cost"]["full_token_layers"] == 36
    assert len(complete(live, prompt="a")["choices"][0]["depthwise"]["depths"]) == 16


def test_several_prompts_and_texts(live: Live) -> None:
    """Each draws numbers of its own, and the same again for the same seed."""
    body = {"prompt": ["a b", "c"], "n": 3, "max_tokens": 8, "seed": 7, "temperature": 3.0}
    first, again = complete(live, **body), complete(live, **body)
    texts = [choice["text"] for choice in first["choices"]]
    assert [choice["index"] for choice in first["choices"]] == list(range(6))
    assert texts == [choice["text"] for choice in again["choices"]]
    assert len(set(texts)) > 3
    assert first["usage"] == {"prompt_tokens": 5, "completion_tokens": 48, "total_tokens": 53}
    assert complete(live, prompt="c", max_tokens=8, seed=10, temperature=3.0)["choices"][0]["text"] == texts[3]
    refused = live.post("/v1/completions", model="long", prompt=["a"] * 6, n=3)
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        422,
        "18 texts are more than the 16 of a request",
    )


def test_streams(live: Live) -> None:
    body: dict[str, Any] = {"prompt": ["a b", "c"], "max_tokens": 8, "seed": 7, "temperature": 3.0}
    whole = complete(live, **body)
    found = chunks(live, **body, stream_options={"include_usage": True})
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == whole["usage"]
    texts = ["", ""]
    for chunk in found[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert sum(chunk["choices"][0]["finish_reason"] == "length" for chunk in found[:-1]) == 2
    assert len({chunk["id"] for chunk in found}) == 1
    assert "usage" not in chunks(live, **body)[-1]


def test_stops(live: Live) -> None:
    """The text ends before the first of them, however its tokens are cut, and so does the work."""
    body: dict[str, Any] = {"prompt": "a", "max_tokens": 200, "temperature": 3.0, "seed": 3}
    text = complete(live, **body)["choices"][0]["text"]
    for stop in (text[20:23], [text[30:35], text[12:14]]):
        found = complete(live, **body, stop=stop)
        (choice,) = found["choices"]
        places = [text.index(each) for each in ([stop] if isinstance(stop, str) else stop)]
        assert (choice["text"], choice["finish_reason"]) == (text[: min(places)], "stop")
        assert found["usage"]["completion_tokens"] < 60
        streamed = chunks(live, **body, stop=stop)
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == choice["text"]
    until(lambda: live.hub.models["long"].num_running == 0)


@pytest.mark.parametrize("stops", [["abc"], ["b", "abc"], ["cab", "bb"], []])
def test_no_part_of_a_stop_is_sent(stops: list[str]) -> None:
    for text in ("ababc", "aabbc", "cacab", "abab", "xbcab"):
        for size in (1, 2, 3):
            told, sent = Told(stops), ""
            for begin in range(0, len(text), size):
                told.add(text[begin : begin + size])
                sent += told.unsent()
                if told.is_stopped:
                    break
            sent += told.unsent(at_end=True)
            places = [place for stop in stops if (place := text.find(stop)) >= 0]
            assert sent == told.text == text[: min(places, default=len(text))]


def test_options_of_others(live: Live) -> None:
    neutral = {"best_of": 1, "echo": False, "frequency_penalty": 0, "presence_penalty": 0, "user": "me"}
    nothing = dict.fromkeys(("logit_bias", "logprobs", "suffix", "stop", "seed", "top_p"))
    body = {"prompt": "a", "temperature": 0, "max_tokens": 4}
    assert (
        complete(live, **body, **neutral, **nothing)["choices"][0]["text"]
        == complete(live, **body)["choices"][0]["text"]
    )
    for name, value in {"best_of": 2, "echo": True, "frequency_penalty": 1, "logprobs": 3, "tools": []}.items():
        refused = live.post("/v1/completions", model="long", **body, **{name: value})
        assert refused.status_code == 422
        assert refused.json()["error"]["message"].startswith(name)


def test_only_language_models_complete(start: Start, live: Live) -> None:
    refused = live.post("/v1/completions", model="translate", prompt="a")
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        422,
        "the model translate is for another endpoint",
    )
    several = live.post("/v1/completions", prompt="a")
    assert several.json()["error"]["remedy"] == "name one of text, long"


def test_a_queue_that_is_too_short_takes_none(start: Start) -> None:
    live = start("long", limits={"waiting": 2, "new_tokens": LONG}, max_rows=1)
    refused = live.post("/v1/completions", prompt=["a"] * 12, max_tokens=LONG)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "queue_full")
    served = live.hub.models["long"]
    until(lambda: served.num_running + served.num_waiting == 0)


def test_time_is_over(start: Start) -> None:
    live = start("long", limits={"seconds": 0.03, "new_tokens": LONG})
    body = {"prompt": "a", "max_tokens": LONG}
    assert live.post("/v1/completions", **body).status_code == 504
    *_, last, rest = live.post("/v1/completions", **body, stream=True).text.split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "timeout"
    assert rest == ""
    until(lambda: live.hub.models["long"].num_running == 0)


def test_a_client_that_leaves(live: Live) -> None:
    body = {"model": "long", "prompt": ["a", "b"], "max_tokens": LONG, "stream": True}
    with live.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        until(lambda: live.hub.models["long"].num_running == 2)
    until(lambda: live.hub.models["long"].num_running == 0)
