"""What a server says of itself: health, models, metrics, its log, its schema and its page."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from depthwise.errors import InputError
from depthwise.serving.hub import Hub, named_runs
from depthwise.serving.options import Limits, ServingOptions

from .conftest import LONG, Live, Start, set_gates, until


def samples(live: Live) -> dict[tuple[str, tuple[str, ...]], float]:
    found = {}
    for family in text_string_to_metric_families(live.get("/metrics").text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.values()))] = sample.value
    return found


def test_before_models_are_loaded(start: Start) -> None:
    live = start("tags", loads=False)
    assert live.get("/health").json() == {"status": "ok"}
    assert live.get("/metrics").status_code == 200
    for response in (live.get("/ready"), live.get("/v1/models"), live.post("/v1/tag", input="a")):
        assert (response.status_code, response.json()["error"]["type"]) == (503, "loading")
        assert response.headers["retry-after"] == "1"
    live.hub.load()
    assert live.get("/ready").json() == {"status": "ready"}
    assert live.post("/v1/tag", input="a").status_code == 200


def test_while_it_shuts_down(start: Start) -> None:
    live = start("tags")
    live.hub.num_active += 1  # somebody whom it has still to answer
    live.hub.is_draining = True
    for response in (live.get("/ready"), live.get("/v1/models"), live.post("/v1/tag", input="a"), live.get("/")):
        assert (response.status_code, response.json()["error"]["type"]) == (503, "shutting_down")
        assert response.headers["retry-after"] == "1"
    assert live.get("/health").status_code == live.get("/metrics").status_code == 200
    live.hub.num_active -= 1


def test_models(live: Live) -> None:
    models = {model["name"]: model for model in live.get("/v1/models").json()["models"]}
    assert {name: model["kind"] for name, model in models.items()} == {
        **dict.fromkeys(("translate", "plain", "text", "long", "many", "latent", "apart", "pruned"), "generate"),
        "sources": "generate",
        **dict.fromkeys(("classes", "pairs", "numbers", "structure", "words"), "classify"),
        **{"tags": "tag", "answers": "answer"},
    }
    assert models["translate"]["depths"] == {
        **{"default": "full", "full": True, "fixed": [1, 2, 3, 4], "settings": [], "budgets": False}
    }
    assert models["many"]["languages"] == models["apart"]["languages"] == ["xx", "yy"]
    assert models["sources"]["languages"] == ["yy-en", "xx-en"]
    assert models["translate"]["languages"] is None
    assert models["classes"]["labels"] == ["bad", "good"]
    assert models["numbers"]["labels"] is None
    assert [name for name, model in models.items() if model["pair"]] == ["pairs"]
    assert [name for name, model in models.items() if model["completions"]] == ["text", "long"]
    assert models["text"]["limits"] == {
        **{"input_tokens": 23, "new_tokens": LONG, "body_bytes": 20_000, "waiting": 256, "seconds": 30.0}
    }
    assert models["translate"]["examples"] == []


def test_metrics(live: Live) -> None:
    before = samples(live)
    answer = live.post("/v1/generate", model="translate", input="a b c", depth=2).json()
    live.post("/v1/generate", model="translate", input="a", depth=9)
    live.post("/v1/generate", model="nobody", input="a")
    live.get("/some/user's/text")
    after = samples(live)

    def more(name: str, *labels: str) -> float:
        key = (name, tuple(sorted(labels)))
        return after[key] - before.get(key, 0.0)

    num = len(answer["tokens"])
    assert more("depthwise_requests_total", "/v1/generate", "translate", "ok") == 1
    assert more("depthwise_requests_total", "/v1/generate", "translate", "refused") == 1
    assert more("depthwise_requests_total", "/v1/generate", "", "refused") == 1
    assert more("depthwise_requests_total", "other", "", "refused") == 1
    assert more("depthwise_request_seconds_count", "/v1/generate", "translate") == 2
    assert more("depthwise_tokens_total", "translate", "read") == 4
    assert more("depthwise_tokens_total", "translate", "made") == num
    assert more("depthwise_token_layers_total", "translate", "run") == 2 * num
    assert more("depthwise_token_layers_total", "translate", "full") == 4 * num
    assert more("depthwise_token_depth_bucket", "translate", "1.0") == 0
    assert more("depthwise_token_depth_bucket", "translate", "2.0") == num
    assert more("depthwise_token_depth_sum", "translate") == 2 * num
    assert more("depthwise_queued_seconds_count", "translate") == 1
    assert after["depthwise_waiting", ("translate",)] == after["depthwise_running", ("translate",)] == 0
    assert after["process_resident_memory_bytes", ()] > 1e7


def test_how_busy_it_is(live: Live) -> None:
    body = {"model": "long", "input": "a", "max_new_tokens": LONG, "stream": True}
    with live.client() as client, client.stream("POST", "/v1/generate", json=body) as response:
        lines = response.iter_lines()  # who would leave if nobody kept it
        next(lines)
        assert samples(live)["depthwise_running", ("long",)] == 1
    until(lambda: samples(live)["depthwise_running", ("long",)] == 0)


@pytest.mark.parametrize("logs_text", [False, True])
def test_the_log_has_texts_only_where_that_is_wanted(
    start: Start, caplog: pytest.LogCaptureFixture, logs_text: bool
) -> None:
    live = start("text", "tags", logs_text=logs_text)
    with caplog.at_level(logging.INFO, "depthwise.serving"):
        live.post("/v1/generate", input="a secret", max_new_tokens=2)
        live.post("/v1/generate", input="a secret", max_new_tokens=2, stream=True)
        live.post("/v1/completions", prompt="a secret", max_tokens=2)
        live.post("/v1/completions", prompt="a secret", max_tokens=2, stream=True)
        live.post("/v1/tag", input="a secret")
        live.post("/v1/tag", input="a secret", depth="secret")
        live.get("/secret?text=secret")
        until(lambda: caplog.text.count("GET other 404") == 1)
    assert caplog.text.count("secret") == (5 if logs_text else 0)
    line = r"POST /v1/generate 200 ok \d+\.\d ms model=text read=3 made=\d depth=4\.00 queued=\d+\.\d ms"
    assert re.search(line, caplog.text)
    assert re.search(r"POST /v1/tag 422 refused \d+\.\d ms model=tags", caplog.text) is not None


def test_the_schema_names_everything(live: Live) -> None:
    schema = live.get("/openapi.json").json()
    posts = ("generate", "completions", "classify", "tag", "answer")
    paths = {"/health", "/ready", "/metrics", "/v1/models", *(f"/v1/{name}" for name in posts)}
    assert set(schema["paths"]) == paths
    for name in posts:
        responses = schema["paths"][f"/v1/{name}"]["post"]["responses"]
        assert set(responses) >= {"200", "400", "401", "404", "413", "415", "422", "503", "504"}
        for status, told in responses.items():
            if status != "200":
                assert told["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorAnswer"}
    assert "securitySchemes" not in schema["components"]
    assert set(schema["paths"]["/v1/generate"]["post"]["responses"]["200"]["content"]) == {
        *("application/json", "text/event-stream")
    }
    assert "HTTPValidationError" not in json.dumps(schema)


def test_the_page(live: Live) -> None:
    page = live.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    for address in re.findall(r'(?:src|href)="(/?assets/[^"]+)"', page.text):
        assert live.get(f"/{address.lstrip('/')}").status_code == 200


def test_names_of_runs(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    found = named_runs(["runs/demo", "x=runs/demo", str(tmp_path / "a=b"), "runs/other/"])
    assert found == {
        **{"demo": Path("runs/demo"), "x": Path("runs/demo"), "a=b": tmp_path / "a=b", "other": Path("runs/other")}
    }
    with pytest.raises(InputError, match='two runs would be called "demo"; tell them apart as NAME=FOLDER'):
        named_runs(["runs/demo", "other/demo"])
    with pytest.raises(InputError, match="gives a model no name"):
        named_runs(["=runs/demo"])


def test_runs_that_cannot_be_served(tmp_path: Path) -> None:
    from ..evaluation.conftest import build_run, write_corpora

    recipes = write_corpora(tmp_path)
    masked = build_run(tmp_path / "masked", recipes["masked text"], 1)
    with pytest.raises(InputError, match="masked does masked_language_modeling, for which there is no endpoint"):
        Hub({"masked": masked}, ServingOptions(device="cpu")).load()
    stack = {"num_layers": 2, "num_heads": 2, "ffn_width": 16, "norm": "pre", "connections": "dense"}
    dense: dict[str, Any] = {**recipes["text"], "model": {"width": 16, "decoder": stack}}
    folder = build_run(tmp_path / "dense", dense, 1)
    with pytest.raises(InputError, match="cannot be decoded step by step by the engine: its decoder has dense conn"):
        Hub({"dense": folder}, ServingOptions(device="cpu")).load()


@pytest.mark.parametrize(
    ("latent", "is_closed", "message"),
    [
        (
            {"gates": "sampled"},
            False,
            "gates of its decoder are drawn anew at every call; serve what depthwise prune m",
        ),
        (
            {"whole_layer": True},
            False,
            "soft gates of its decoder weigh whole layers; serve what depthwise prune makes",
        ),
        ({"gates": "hard"}, True, "hard gates of its decoder close all layers; serve what depthwise prune --keep K ma"),
    ],
)
def test_gates_that_cannot_be_served(tmp_path: Path, latent: dict[str, Any], is_closed: bool, message: str) -> None:
    from ..evaluation.conftest import STACK, build_run, write_corpora

    gated = {**STACK, "norm": "pre"}
    model = {"width": 16, "decoder": gated, "latent": latent}
    folder = build_run(tmp_path / "gated", {**write_corpora(tmp_path)["text"], "model": model}, 1)
    if is_closed:
        set_gates(folder, [()])
    with pytest.raises(InputError, match=f"gated cannot be decoded step by step by the engine: {message}"):
        Hub({"gated": folder}, ServingOptions(device="cpu")).load()


def test_a_generation_config_that_the_engine_does_not_know(tmp_path: Path) -> None:
    from ..evaluation.conftest import build_run, write_corpora

    folder = build_run(tmp_path / "text", write_corpora(tmp_path)["text"], 1)
    options = folder / "generation_config.json"
    options.write_text(json.dumps({**json.loads(options.read_text()), "repetition_penalty": 1.5}))
    message = "generation_config.json sets repetition_penalty, which the engine does not know; remove that"
    with pytest.raises(InputError, match=message):
        Hub({"text": folder}, ServingOptions(device="cpu")).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key": "  "}, "the API key is empty, which keeps nobody out"),
        ({"max_rows": 0}, "max_rows is 0, which lets nobody in"),
        ({"max_wait": -1.0}, "max_wait is -1.0; give a number of seconds"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ServingOptions(**options)


@pytest.mark.parametrize("limits", [{"body_bytes": 0}, {"waiting": -1}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_limits_that_cannot_be(limits: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="lets nothing"):
        Limits(**limits)


def test_a_key_is_not_shown() -> None:
    assert "hidden" not in repr(ServingOptions(api_key="hidden"))
