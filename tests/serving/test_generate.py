"""``/v1/generate``: every text is that of its request alone, and nobody works for clients that have left."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from depthwise.evaluation import load_run, predict_all
from depthwise.evaluation.policies import use_policy
from depthwise.evaluation.runs import Run
from depthwise.serving.generating import TextServed

from .conftest import LAYERS, LONG, Live, Start, precise_run, pruned, until

TEXTS = ["a", "a b c", "c c b a", "b a c a b c a b", "b b", "c a", "a a a b c c c b a b"]
DEPTHS: list[Any] = [None, "full", 1, 2, 3]


def alone(run: Run, ids: list[int], depth: Any, **options: Any) -> Any:
    """What the engine says of one row by itself."""
    from depthwise.config import FixedDepthConfig

    use_policy(run.model, FixedDepthConfig(depth=depth) if isinstance(depth, int) else None)
    return run.engine.generate(torch.tensor([ids]), **options)


def expected_pairs(found: Any) -> tuple[list[int], list[int]]:
    """Tokens and depths of the only row."""
    return found.tokens[0].tolist(), found.depths[0].tolist()


def events_of(response: httpx2.Response) -> list[tuple[str, Any]]:
    found = []
    for block in response.read().decode().split("\n\n"):
        if block:
            name, data = block.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.parametrize("name", ["translate", "text"])
def test_many_at_once_are_as_each_alone(live: Live, runs: dict[str, Path], name: str) -> None:
    """Also where some are streamed, and depths differ within a batch."""
    run, jobs = precise_run(runs[name]), [(text, depth) for text in TEXTS for depth in DEPTHS]

    def ask(job: tuple[str, Any]) -> dict[str, Any]:
        text, depth = job
        body: dict[str, Any] = {"model": name, "input": text, "depth": depth, "max_new_tokens": 7}
        if len(text) % 2:
            (*tokens, (last, answer)) = events_of(live.post("/v1/generate", **body, stream=True))
            assert last == "done"
            assert [token for _, token in tokens] == answer["tokens"]
        else:
            response = live.post("/v1/generate", **body)
            assert response.status_code == 200, response.text
            answer = response.json()
        found: dict[str, Any] = answer
        return found

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, jobs))
    for (text, depth), answer in zip(jobs, answers, strict=True):
        (row,) = run.task.whole_rows([(text,)])
        ids = row.texts[0].tolist()
        limit = {} if name == "text" else {"limits": [int(run.task.target_limits(torch.tensor([len(ids)]))[0])]}
        expected = alone(run, ids, depth, max_new_tokens=7, **limit)
        tokens = [token for token, ran in zip(*expected_pairs(expected), strict=True) if ran]
        assert [token["id"] for token in answer["tokens"]] == tokens
        assert [token["depth"] for token in answer["tokens"]] == [ran for ran in expected.depths[0].tolist() if ran]
        scores = [token["score"] for token in answer["tokens"]]
        torch.testing.assert_close(torch.tensor(scores), expected.scores[0, : len(scores)].float())
        assert "".join(token["text"] for token in answer["tokens"]) == answer["output"]
        assert answer["depth"]["mean"] == pytest.approx(sum(expected.depths[0].tolist()) / len(tokens))
        assert answer["depth"]["asked"] == (depth or "full")
        assert answer["cost"]["token_layers"] == int(expected.depths.sum())
        assert answer["cost"]["full_token_layers"] == 4 * len(tokens)
        assert 0 <= answer["cost"]["queued_seconds"] <= answer["cost"]["seconds"]
        has_ended = tokens[-1] == 2 and (name == "text" or len(tokens) < limit["limits"][0])
        assert answer["finish_reason"] == ("stop" if has_ended else "length")


def test_a_text_follows_its_prompt(live: Live) -> None:
    answer = live.post("/v1/generate", model="text", input="a b", max_new_tokens=3).json()
    assert len(answer["tokens"]) <= 3
    assert answer["output"] == "" or answer["output"].startswith(" ")


def test_nothing_to_continue_is_a_prompt_too(live: Live) -> None:
    assert live.post("/v1/generate", model="text", input="", max_new_tokens=2).status_code == 200
    for text in ("", "  \n"):
        refused = live.post("/v1/generate", model="translate", input=text)
        assert (refused.status_code, refused.json()["error"]["message"]) == (422, "input is empty")


@pytest.mark.parametrize("name", ["translate", "text", "plain"])
def test_beams(live: Live, runs: dict[str, Path], name: str) -> None:
    """Texts of different lengths and depths, gathered into batches."""
    run = precise_run(runs[name])
    jobs = [(text, depth) for text in TEXTS[:4] for depth in ((None,) if name == "plain" else (None, 2))]

    def ask(job: tuple[str, Any]) -> Any:
        return live.post("/v1/generate", model=name, input=job[0], depth=job[1], num_beams=3, max_new_tokens=5).json()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, jobs))
    for (text, depth), answer in zip(jobs, answers, strict=True):
        (row,) = run.task.whole_rows([(text,)])
        ids = row.texts[0].tolist()
        options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 5}
        options |= {"length_penalty": run.recipe.generation.length_penalty}
        if name != "text":
            options |= {"limits": [min(5, int(run.task.target_limits(torch.tensor([len(ids)]))[0]))]}
        expected = alone(run, ids, depth, **options)
        pairs = zip(expected.tokens[0].tolist(), expected.depths[0].tolist(), strict=True)
        assert [token["id"] for token in answer["tokens"]] == [token for token, ran in pairs if ran]
        assert all(token["score"] is None for token in answer["tokens"])


def test_beams_neither_stream_nor_sample(live: Live) -> None:
    streams = live.post("/v1/generate", model="translate", input="a", num_beams=2, stream=True)
    samples = live.post("/v1/generate", model="translate", input="a", num_beams=2, temperature=1.0)
    many = live.post("/v1/generate", model="translate", input="a", num_beams=9)
    assert [response.status_code for response in (streams, samples, many)] == [422] * 3
    assert "leave out stream or num_beams" in streams.json()["error"]["remedy"]
    assert "beams are not sampled" in samples.json()["error"]["message"]
    assert "num_beams is 9, above 8" in many.json()["error"]["message"]


def test_sampling(live: Live, runs: dict[str, Path]) -> None:
    """A seed gives the same text, alone and among others; a temperature of nearly 0 is greedy."""
    body = {"model": "long", "input": "a b", "max_new_tokens": 12, "temperature": 2.0, "top_k": 6, "top_p": 0.9}
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda seed: live.post("/v1/generate", **body, seed=seed).json(), [1, 2, 3, 1, 2, 3]))
    ids = [[token["id"] for token in answer["tokens"]] for answer in found]
    assert ids[:3] == ids[3:]
    assert ids[0] != ids[1]
    run = precise_run(runs["long"])
    (row,) = run.task.whole_rows([("a b",)])
    options = {"do_sample": True, "temperature": 2.0, "top_k": 6, "top_p": 0.9, "max_new_tokens": 12}
    generators = [torch.Generator().manual_seed(2)]
    assert alone(run, row.texts[0].tolist(), None, generators=generators, **options).tokens[0].tolist() == ids[1]
    unseeded = [live.post("/v1/generate", **body).json()["output"] for _ in range(4)]
    assert len(set(unseeded)) > 1
    greedy = live.post("/v1/generate", model="long", input="a b", max_new_tokens=12).json()
    cold = live.post("/v1/generate", model="long", input="a b", max_new_tokens=12, temperature=0.001, seed=3).json()
    assert greedy["tokens"] == cold["tokens"]
    drawn = live.post("/v1/generate", model="long", input="a b", max_new_tokens=12, top_k=1).json()
    assert drawn["output"] == greedy["output"]


@pytest.mark.parametrize("name", ["many", "latent"])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_languages(live: Live, runs: dict[str, Path], name: str, num_beams: int) -> None:
    """Each language by its own sub-network, where gates differ between them; side by side, and by beams."""
    run, jobs = precise_run(runs[name]), [(text, to) for text in TEXTS[:4] for to in ("xx", "yy")]

    def ask(job: tuple[str, str]) -> Any:
        return live.post("/v1/generate", model=name, input=job[0], to=job[1], num_beams=num_beams).json()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, jobs))
    for (text, to), answer in zip(jobs, answers, strict=True):
        batch = run.task.collate(run.task.whole_rows([(to, text)]))
        limits = run.task.target_limits(batch["attention_mask"].sum(1)).tolist()
        given = {key: batch[key] for key in ("source_languages", "target_languages") if key in batch}
        expected = run.engine.generate(batch["input_ids"], num_beams=num_beams, limits=limits, max_length=100, **given)
        tokens = [token for token, ran in zip(*expected_pairs(expected), strict=True) if ran]
        assert [token["id"] for token in answer["tokens"]] == tokens


@pytest.fixture(scope="module")
def of_one_language(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """What ``depthwise prune --language`` leaves of a run: plain models of different layers."""
    root = tmp_path_factory.mktemp("languages")
    return {to: precise_run(pruned(runs["apart"], root / to, to)) for to in LAYERS}


@pytest.mark.parametrize("name", ["apart", "pruned"])
@pytest.mark.parametrize("num_beams", [1, 2])
def test_languages_run_layers_of_their_own(
    live: Live, of_one_language: dict[str, Run], name: str, num_beams: int
) -> None:
    """As plain models that are pruned for them, also where one that is pruned for all of them serves them together."""
    served = live.hub.models[name].run.model
    assert (served.config.decoder["num_layers"], "decoder" in served.latent_layers()) == (5 - (name == "pruned"), True)
    jobs = [(text, to) for text in TEXTS for to in LAYERS]

    def ask(job: tuple[str, str]) -> Any:
        return live.post("/v1/generate", model=name, input=job[0], to=job[1], num_beams=num_beams).json()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, jobs))
    for (text, to), answer in zip(jobs, answers, strict=True):
        run = of_one_language[to]
        assert run.model.latent_layers() == {}
        batch = run.task.collate(run.task.whole_rows([(text,)]))
        limits = run.task.target_limits(batch["attention_mask"].sum(1)).tolist()
        found = run.engine.generate(batch["input_ids"], num_beams=num_beams, limits=limits, max_length=100)
        expected = [pair for pair in zip(*expected_pairs(found), strict=True) if pair[1]]
        assert [(token["id"], token["depth"]) for token in answer["tokens"]] == expected
        assert {depth for _, depth in expected} == {len(LAYERS[to])}


def test_a_pair_says_the_language_of_the_text(live: Live, runs: dict[str, Path]) -> None:
    """As ``generation.target`` says it of all texts of a run, and ``depthwise predict --to`` with it."""
    (listed,) = [model for model in live.get("/v1/models").json()["models"] if model["name"] == "sources"]
    assert listed["languages"] == ["yy-en", "xx-en"]
    scores = []
    for to in listed["languages"]:
        run = load_run(runs["sources"], [f"generation.target={to}", "generation.num_beams=1"], device="cpu")
        expected = [found.text for found in predict_all(run, [(text,) for text in TEXTS])]
        answers = [live.post("/v1/generate", model="sources", input=text, to=to).json() for text in TEXTS]
        assert [answer["output"] for answer in answers] == expected
        scores.append([answer["tokens"][0]["score"] for answer in answers])
    assert all(first != second for first, second in zip(*scores, strict=True))


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (None, "the encoder has layers for xx, yy; the language of the text is not named"),
        ("en", "the encoder has layers for xx, yy; the language of the text is not named"),
        ("zz-en", "the encoder has layers for xx, yy; zz is none of them"),
        ("xx-zz", "zz is no language of this model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_pairs_that_are_none(live: Live, to: str | None, message: str, stream: bool) -> None:
    response = live.post("/v1/generate", model="sources", input="a", to=to, stream=stream)
    assert response.status_code == 422
    error = {"type": "invalid_value", "message": message, "remedy": 'give "to", one of yy-en, xx-en'}
    assert response.json() == {"error": error}


def test_languages_that_are_none(live: Live) -> None:
    missing = live.post("/v1/generate", model="many", input="a")
    wrong = live.post("/v1/generate", model="many", input="a", to="zz")
    empty = live.post("/v1/generate", model="many", input="a", to="")
    assert empty.json() == missing.json()
    assert {each.json()["error"]["remedy"] for each in (missing, wrong)} == {'give "to", one of xx, yy'}
    one = live.post("/v1/generate", model="translate", input="a", to="xx")
    assert [response.status_code for response in (missing, wrong, one)] == [422] * 3
    assert missing.json()["error"]["message"] == "no language is named"
    assert wrong.json()["error"]["message"] == "zz is no language of this model"
    assert one.json()["error"]["remedy"] == "leave to out"


def running(live: Live) -> int:
    served = live.hub.models["long"]
    return served.num_running + served.num_waiting


def test_tokens_come_while_others_are_made(live: Live) -> None:
    body = {"model": "long", "input": "a", "max_new_tokens": LONG, "stream": True}
    with live.client() as client, client.stream("POST", "/v1/generate", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        assert next(lines) == "event: token"
        assert running(live) == 1
        num = sum(line == "event: token" for line in lines)
    assert num == LONG - 1


def test_a_client_that_leaves_in_mid_stream_cancels_its_request(live: Live) -> None:
    served = live.hub.models["long"]
    assert isinstance(served, TextServed)
    (queue,) = served._queues.values()
    body = {"model": "long", "input": "a", "max_new_tokens": LONG, "stream": True}
    before = queue.token_layers
    with live.client() as client, client.stream("POST", "/v1/generate", json=body) as response:
        next(response.iter_lines())
    until(lambda: running(live) == 0)
    assert queue.token_layers - before < 4 * LONG / 2
    until(lambda: 'endpoint="/v1/generate",model="long",outcome="gone"' in live.get("/metrics").text)


def test_a_client_that_does_not_wait_cancels_its_request(live: Live) -> None:
    body = json.dumps({"model": "long", "input": "a", "max_new_tokens": LONG}).encode()
    head = f"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    address = ("127.0.0.1", int(live.url.rpartition(":")[2]))
    with socket.create_connection(address) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        until(lambda: running(live) == 1)
    began = time.monotonic()
    until(lambda: running(live) == 0)
    assert time.monotonic() - began < 5


def test_time_is_limited(start: Start) -> None:
    live = start("long", limits={"seconds": 0.03, "new_tokens": LONG})
    body = {"input": "a", "max_new_tokens": LONG}
    over = live.post("/v1/generate", **body)
    assert (over.status_code, over.json()["error"]["type"]) == (504, "timeout")
    assert over.json()["error"]["message"] == "there was no answer within 0.03 seconds"
    *tokens, (last, content) = events_of(live.post("/v1/generate", **body, stream=True))
    assert {name for name, _ in tokens} <= {"token"}
    assert (last, content["error"]["type"]) == ("error", "timeout")
    until(lambda: running(live) == 0)
    until(lambda: live.post("/v1/generate", input="a", max_new_tokens=1).status_code == 200)


def test_a_full_queue_is_said_at_once(start: Start) -> None:
    live = start("long", limits={"waiting": 2}, max_rows=1)
    body = {"input": "a", "max_new_tokens": 200}
    with ThreadPoolExecutor(11) as pool:
        first = pool.submit(live.post, "/v1/generate", **body)
        until(lambda: live.hub.models["long"].num_running == 1 or first.done())
        found = list(pool.map(lambda _: live.post("/v1/generate", **body), range(10)))
    refused = [response for response in found if response.status_code == 503]
    assert first.result().status_code == 200
    assert {response.status_code for response in found} == {200, 503}
    assert 2 <= 10 - len(refused) < 10
    for response in refused:
        assert response.json()["error"]["type"] == "queue_full"
        assert response.headers["retry-after"] == "1"


def test_lengths(live: Live) -> None:
    long = live.post("/v1/generate", model="translate", input="a " * 60)
    assert (long.status_code, long.json()["error"]["type"]) == (422, "input_too_long")
    assert long.json()["error"]["message"] == "the input has 61 tokens, more than 24"
    prompt = live.post("/v1/generate", model="text", input="a " * 10, max_new_tokens=14)
    assert prompt.json()["error"]["message"].startswith("14 tokens behind 11 of the prompt are more than the 24")
    fits = live.post("/v1/generate", model="text", input="a " * 10, max_new_tokens=13)
    assert fits.status_code == 200
    assert live.post("/v1/generate", model="text", input="a " * 22).status_code == 200
    many = live.post("/v1/generate", model="long", input="a", max_new_tokens=LONG + 1)
    assert many.json()["error"]["message"] == f"max_new_tokens is {LONG + 1:,}, above {LONG:,}"
    short = live.post("/v1/generate", model="translate", input="a b c", max_new_tokens=2).json()
    assert (len(short["tokens"]), short["finish_reason"]) == (2, "length")
