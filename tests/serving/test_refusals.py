"""Whatever comes in, what goes out is a reason: 4xx for bad requests, and the server answers the next one."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from .conftest import Live, Start, until

POSTS = {
    "/v1/generate": {"model": "translate", "input": "a"},
    "/v1/classify": {"model": "classes", "input": "a"},
    "/v1/tag": {"model": "tags", "input": "a"},
    "/v1/answer": {"model": "answers", "question": "who", "context": "red two"},
    "/v1/completions": {"model": "text", "prompt": "a", "max_tokens": 2},
}


def posted(live: Live, path: str, content: bytes, content_type: str = "application/json") -> httpx2.Response:
    return live.ask("POST", path, content=content, headers={"content-type": content_type})


def check_refused(response: httpx2.Response, status: int, kind: str | None = None) -> dict[str, str]:
    assert response.status_code == status, response.text
    error: dict[str, str] = response.json()["error"]
    assert set(error) <= {"type", "message", "remedy"}
    assert error["message"]
    if kind is not None:
        assert error["type"] == kind
    return error


BROKEN = {
    "nothing": (b"", 400),
    "half": (b'{"input": "a"', 400),
    "words": (b"input=a", 400),
    "invalid UTF-8": (b'{"input": "\xff\xfe"}', 400),
    "another encoding": ('{"input": "a"}'.encode("utf-16"), 400),
    "deep lists": (b'{"input": ' + b"[" * 9000 + b"]" * 9000 + b"}", 400),
    "deep objects": (b'{"a":' * 3000 + b"1" + b"}" * 3000, 400),
    "NaN": (b'{"input": "a", "temperature": NaN}', 400),
    "infinity": (b'{"input": "a", "temperature": -Infinity}', 400),
    "many digits": (b'{"input": "a", "seed": ' + b"9" * 5000 + b"}", 400),
    "control character": (b'{"input": "a\nb"}', 400),
    "a list": (b"[1, 2]", 422),
    "a word": (b'"a"', 422),
    "null": (b"null", 422),
    "a number": (b"1e999", 422),
    "huge number": (b'{"input": "a", "temperature": 1e999}', 422),
    "half a character": (b'{"input": "\\ud800"}', 422),
}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("name", BROKEN)
def test_bodies_that_are_none(live: Live, path: str, name: str) -> None:
    content, status = BROKEN[name]
    check_refused(posted(live, path, content), status)


@pytest.mark.parametrize("path", POSTS)
def test_half_a_character_wherever_text_is(live: Live, path: str) -> None:
    for name, value in POSTS[path].items():
        if isinstance(value, str):
            body = json.dumps({**POSTS[path], name: "a\ud800b"}).encode()
            response = posted(live, path, body)
            assert response.status_code in (404, 422)
            assert response.json()["error"]["message"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "depth", [0, -1, 2.0, 2.5, True, "", "nowhere", [], {}, {"compute": 0}, {"compute": 2}, 10**30]
)
def test_depths_that_are_none(live: Live, path: str, depth: Any) -> None:
    check_refused(live.post(path, **POSTS[path], depth=depth), 422)


@pytest.mark.parametrize(
    "depth", [{"quality_drop": -1}, {"quality_drop": "1"}, {"quality_drop": 1, "compute": 1}, {"x": 1}]
)
def test_budgets_that_are_none(live: Live, depth: Any) -> None:
    error = check_refused(live.post("/v1/generate", model="translate", input="a", depth=depth), 422, "invalid_value")
    assert error["message"].startswith('depth may be "full", a whole number')


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("input", value) for value in (None, 1, ["a"], {})),
        *(("max_new_tokens", value) for value in (0, -1, "5", 1.5, True, 10**12)),
        *(("temperature", value) for value in (-0.1, 11, "1", True)),
        *(("top_k", value) for value in (0, 1.5)),
        *(("top_p", value) for value in (0, 1.1)),
        *(("seed", value) for value in (-1, 2**63, "x")),
        *(("num_beams", value) for value in (0, 2.5)),
        *(("stream", value) for value in (1, "yes", None)),
        *(("to", value) for value in (1, "x" * 300)),
        ("model", 3),
        ("inputs", "a"),
    ],
)
def test_values_that_are_wrong(live: Live, name: str, value: Any) -> None:
    error = check_refused(live.post("/v1/generate", **{"model": "translate", "input": "a", name: value}), 422)
    assert error["message"].startswith(f"{name}: ")
    assert error["remedy"] == "see /openapi.json"


def test_what_is_wrong_is_said_at_once_but_not_repeated(live: Live) -> None:
    secret = "my secret text"
    response = live.post(
        "/v1/generate", input=[secret], top_k=secret, depth=[secret], **{f"x{i}": 1 for i in range(20)}
    )
    message = check_refused(response, 422)["message"]
    assert secret not in response.text
    assert all(f"{name}" in message for name in ("input", "top_k", "depth"))
    assert message.endswith("(and 15 more)")


def test_models_that_are_none(live: Live, start: Start) -> None:
    unknown = check_refused(live.post("/v1/classify", model="nobody", input="a"), 404, "model_not_found")
    assert unknown["remedy"] == "name one of classes, pairs, numbers, structure, words"
    missing = check_refused(live.post("/v1/classify", input="a"), 422, "model_missing")
    assert "classes" in missing["remedy"]
    other = check_refused(live.post("/v1/classify", model="tags", input="a"), 422)
    assert other["remedy"] == "see its kind, tag, in /v1/models"
    assert live.post("/v1/tag", input="a").status_code == 200  # there is but one
    alone = start("tags")
    check_refused(alone.post("/v1/generate", input="a"), 404, "model_not_found")


def test_addresses_and_methods(live: Live) -> None:
    check_refused(live.get("/v1/nothing"), 404, "not_found")
    check_refused(live.get("/assets/../app.py"), 404)
    check_refused(live.get("/assets/%2e%2e/app.py"), 404)
    refused = live.get("/v1/generate")
    check_refused(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"
    check_refused(live.ask("DELETE", "/v1/models"), 405)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/json; charset=latin-1"]
)
def test_bodies_that_are_not_called_json(live: Live, kind: str) -> None:
    check_refused(posted(live, "/v1/classify", b'{"model": "classes", "input": "a"}', kind), 415)


def test_json_with_its_encoding(live: Live) -> None:
    body = '{"model": "classes", "input": "a \u00e4 \U0001f600"}'.encode()
    response = posted(live, "/v1/classify", body, 'Application/JSON; charset="UTF-8"')
    assert response.status_code == 200


def test_large_bodies(live: Live) -> None:
    """Whether their length is told, told wrongly, or found out."""
    body = json.dumps({"model": "classes", "input": "a" * 30_000}).encode()
    error = check_refused(posted(live, "/v1/classify", body), 413, "body_too_large")
    assert error["message"] == "the body is larger than 20,000 bytes"

    def parts() -> Any:
        for _ in range(40):
            yield b"a" * 1000

    check_refused(live.ask("POST", "/v1/classify", content=parts(), headers={"content-type": "application/json"}), 413)
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    assert b" 413 " in live.raw(head + b"99999999999\r\n\r\n{").partition(b"\r\n")[0]
    assert b" 400 " in live.raw(head + b"-5\r\n\r\n{}").partition(b"\r\n")[0]


def test_a_body_that_does_not_come(start: Start) -> None:
    live = start("tags", limits={"seconds": 0.3})
    head = b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
    found = live.raw(head + b'{"in')
    assert b" 408 " in found.partition(b"\r\n")[0]
    assert b"did not arrive in time" in found
    until(lambda: live.post("/v1/tag", input="a").status_code == 200)


def test_no_http_at_all(live: Live) -> None:
    assert b" 400 " in live.raw(b"\x16\x03\x01\x02\x00nonsense\r\n\r\n").partition(b"\r\n")[0]
    with socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2]))) as connection:
        connection.sendall(b"POST /v1/tag HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Le")
    assert live.get("/health").status_code == 200


def test_a_mistake_of_our_own_is_no_secret(live: Live, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """It is a 500 that says nothing of the text, here and in the log; others are answered."""
    served: Any = live.hub.models["classes"]

    secret = "my secret text"

    def broken(rows: Any) -> Any:
        raise RuntimeError(secret)

    with monkeypatch.context() as patch:
        patch.setattr(served, "readings", broken)
        response = live.post("/v1/classify", model="classes", input=secret)
    error = check_refused(response, 500, "internal")
    assert error["message"] == "the server failed, not the request"
    assert "RuntimeError" in caplog.text
    assert "in broken" in caplog.text
    assert secret not in caplog.text + response.text
    assert live.post("/v1/classify", model="classes", input="a").status_code == 200


def test_a_mistake_in_mid_stream_ends_the_stream(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Any = live.hub.models["long"]
    monkeypatch.setattr(served, "finish_reason", lambda *_: 1 / 0)
    with pytest.raises(httpx2.HTTPError):
        live.post("/v1/generate", model="long", input="a", max_new_tokens=3, stream=True)
    until(lambda: served.num_running == 0)


@pytest.fixture(scope="module")
def locked(start: Start) -> Live:
    return start("tags", api_key="pass w\u00f6rd")


KEY = "pass w\u00f6rd".encode()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer pass"},
        {"authorization": b"Basic " + KEY},
        {"authorization": b"Bearer " + KEY + b"x"},
        {"x-api-key": "pass"},
    ],
)
def test_no_answer_without_the_key(locked: Live, headers: Any) -> None:
    for method, path in (("POST", "/v1/tag"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/v1/nothing")):
        refused = locked.ask(method, path, headers=headers)
        error = check_refused(refused, 401, "unauthorized")
        assert error["remedy"] == "send Authorization: Bearer KEY"
        assert refused.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ready", "/openapi.json", "/"):
        assert locked.get(path).status_code == 200


def test_answers_with_the_key(locked: Live) -> None:
    kinds: list[dict[str, Any]] = [{"authorization": b"bearer " + KEY}, {"x-api-key": KEY}]
    for headers in kinds:
        response = locked.ask("POST", "/v1/tag", json={"input": "a"}, headers=headers)
        assert response.status_code == 200
        assert locked.ask("GET", "/metrics", headers=headers).status_code == 200
    schemes = locked.get("/openapi.json").json()["components"]["securitySchemes"]
    assert schemes["key"]["scheme"] == "bearer"


def test_the_server_goes_on(live: Live) -> None:
    """After all of it, and among it."""
    bad = [content for content, _ in BROKEN.values()]

    def ask(place: int) -> int:
        if place % 2:
            return posted(live, "/v1/generate", bad[place // 2 % len(bad)]).status_code
        return live.post("/v1/generate", model="translate", input="a b").status_code

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(120)))
    assert found[::2] == [200] * 60
    assert set(found[1::2]) <= {400, 422}
