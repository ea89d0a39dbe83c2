"""``/v1/classify``, ``/v1/tag`` and ``/v1/answer``: every answer is that of its input alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import FixedDepthConfig
from depthwise.evaluation import predict_all
from depthwise.evaluation.policies import use_policy
from depthwise.evaluation.runs import Run, cut_to_depth
from depthwise.tasks.encoding import inputs_in

from .conftest import Live, precise_run

TEXTS = ["a", "a b c", "c c b a", "b a c a b c a b", "b b", "a a a b c c c b a b"]
CONTEXTS = ["red two", "red green blue one two three four five six seven eight nine", "nine eight", "six " * 40]


def at_depth(folder: Path, depth: Any) -> Run:
    run = precise_run(folder)
    if isinstance(depth, int) and run.model.config.options.leaves_early:
        use_policy(run.model, FixedDepthConfig(depth=depth))
    elif run.model.config.options.leaves_early:
        use_policy(run.model, None)
    return run


def asked(live: Live, path: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All at once."""
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda body: live.post(path, **body), bodies))
    assert [response.status_code for response in responses] == [200] * len(bodies), responses[0].text
    return [response.json() for response in responses]


@pytest.mark.parametrize("name", ["classes", "numbers", "structure"])
def test_classes(live: Live, runs: dict[str, Path], name: str) -> None:
    depths = [None, "full", 1, 2, 3]
    jobs = [(text, depth) for text in TEXTS for depth in depths]
    answers = asked(live, "/v1/classify", [{"model": name, "input": text, "depth": depth} for text, depth in jobs])
    by_depth = {depth: at_depth(runs[name], depth) for depth in depths}
    for (text, depth), answer in zip(jobs, answers, strict=True):
        run = by_depth[depth]
        batch = run.task.collate(run.task.whole_rows([(text,)]))
        expected = run.engine(**inputs_in(batch))
        assert [token["depth"] for token in answer["tokens"]] == expected.depths[0].tolist()
        assert "".join(token["text"] for token in answer["tokens"]) == text
        if name == "numbers":
            assert answer["value"] == pytest.approx(float(expected.logits[0, 0]), abs=1e-12)
            assert answer["label"] is answer["scores"] is None
        else:
            probabilities = expected.logits[0].softmax(-1).tolist()
            assert answer["scores"] == pytest.approx(dict(zip(["bad", "good"], probabilities, strict=True)), abs=1e-12)
            assert answer["label"] == max(answer["scores"], key=answer["scores"].__getitem__)
        assert answer["cost"]["token_layers"] == int(expected.depths.sum())
        assert answer["cost"]["full_token_layers"] == 4 * len(answer["tokens"])


def test_pairs(live: Live, runs: dict[str, Path]) -> None:
    run = precise_run(runs["pairs"])
    (answer,) = asked(live, "/v1/classify", [{"model": "pairs", "input": "a b", "pair": "c a"}])
    expected = run.engine(**inputs_in(run.task.collate(run.task.whole_rows([("a b", "c a")]))))
    assert list(answer["scores"].values()) == pytest.approx(expected.logits[0].softmax(-1).tolist(), abs=1e-12)
    alone = live.post("/v1/classify", model="pairs", input="a")
    second = live.post("/v1/classify", model="classes", input="a", pair="b")
    assert (alone.status_code, second.status_code) == (422, 422)
    assert alone.json()["error"]["remedy"] == "give pair too"
    assert second.json()["error"]["remedy"] == "leave pair out"


def test_words_with_depths_of_their_own(live: Live, runs: dict[str, Path]) -> None:
    bodies = [{"model": "words", "input": text, "depth": depth} for text in TEXTS for depth in (None, "full", 1, 2)]
    for body, answer in zip(bodies, asked(live, "/v1/classify", bodies), strict=True):
        run: Any = precise_run(runs["words"])
        if body["depth"] is not None:
            run.task.ignores_words = True
            cut_to_depth(run.model, 2 if body["depth"] == "full" else body["depth"])
        expected = run.engine(**inputs_in(run.task.collate(run.task.whole_rows([(body["input"],)]))))
        assert [token["depth"] for token in answer["tokens"]] == expected.depths[0].tolist()
        assert list(answer["scores"].values()) == pytest.approx(expected.logits[0].softmax(-1).tolist(), abs=1e-12)
    assert answer["depth"]["policy"] == "full"
    assert live.post("/v1/classify", model="words", input="a").json()["depth"]["asked"] == "words"


def test_tags(live: Live, runs: dict[str, Path]) -> None:
    """Also of a sentence that takes several parts of the model, and of words that are given one by one."""
    texts = [*TEXTS, "a b c " * 20]
    bodies: list[dict[str, Any]] = [
        {"model": "tags", "input": text, "depth": depth} for text in texts for depth in (None, 2)
    ]
    for body, answer in zip(bodies, asked(live, "/v1/tag", bodies), strict=True):
        run = at_depth(runs["tags"], body["depth"])
        (expected,) = predict_all(run, [(body["input"],)])
        assert [word["text"] for word in answer["words"]] == body["input"].split()
        assert [word["tag"] for word in answer["words"]] == expected.text.split()
        assert {word["depth"] for word in answer["words"]} == {body["depth"] or 4}
        assert answer["cost"]["token_layers"] == sum(expected.depths)
    assert len(answer["words"]) == 60
    as_list = live.post("/v1/tag", model="tags", input=["a", "b"]).json()
    as_text = live.post("/v1/tag", model="tags", input=" a  b").json()
    assert as_list["words"] == as_text["words"]
    blank = live.post("/v1/tag", model="tags", input=["a b"])
    assert (blank.status_code, blank.json()["error"]["message"]) == (422, "a word of input has a blank")


def test_a_word_that_the_tokenizer_makes_nothing_of_has_a_tag(live: Live) -> None:
    words = live.post("/v1/tag", model="tags", input="a \u200b b").json()["words"]
    assert [word["text"] for word in words] == ["a", "\u200b", "b"]


def test_answers(live: Live, runs: dict[str, Path]) -> None:
    bodies = [
        {"model": "answers", "question": question, "context": context, "depth": depth}
        for question in ("who", "what red")
        for context in CONTEXTS
        for depth in (None, 1, 3)
    ]
    for body, answer in zip(bodies, asked(live, "/v1/answer", bodies), strict=True):
        run: Any = at_depth(runs["answers"], body["depth"])
        (expected,) = predict_all(run, [(body["question"], body["context"])])
        assert answer["answer"] == expected.text
        assert answer["cost"]["token_layers"] == sum(expected.depths)
        assert answer["depth"]["mean"] == (body["depth"] or 4)
        if answer["answer"]:
            assert body["context"][answer["start"] : answer["end"]] == answer["answer"]
        else:
            assert answer["start"] is answer["end"] is None
            assert answer["null_score"] > answer["score"]


def test_an_answer_that_is_none(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the threshold of the run says."""
    served: Any = live.hub.models["answers"]
    body = {"model": "answers", "question": "who", "context": CONTEXTS[1]}
    assert live.post("/v1/answer", **body).json()["answer"]
    generation = served.task.recipe.generation
    monkeypatch.setitem(generation.__dict__, "null_threshold", -1000.0)
    silent = live.post("/v1/answer", **body).json()
    assert (silent["answer"], silent["start"], silent["end"]) == ("", None, None)
    assert silent["score"] is not None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("classify", {"model": "classes", "input": " "}),
        ("tag", {"model": "tags", "input": "  "}),
        ("answer", {"model": "answers", "question": "a", "context": "\n"}),
    ],
)
def test_nothing_to_read(live: Live, path: str, body: dict[str, Any]) -> None:
    refused = live.post(f"/v1/{path}", **body)
    assert (refused.status_code, refused.json()["error"]["message"]) == (422, "the text is empty")


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        ("classify", {"model": "classes", "input": "a " * 24}, 24),
        ("tag", {"model": "tags", "input": "a " * 1000}, 600),
        ("answer", {"model": "answers", "question": "a", "context": "six " * 1000}, 600),
    ],
)
def test_too_much_to_read(live: Live, path: str, body: dict[str, Any], most: int) -> None:
    refused = live.post(f"/v1/{path}", **body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (422, "input_too_long")
    assert refused.json()["error"]["message"].endswith(f"tokens, more than {most}")


def test_batches_are_made(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one depth together: fewer passes than inputs."""
    served: Any = live.hub.models["classes"]
    sizes: list[int] = []
    readings = served.readings

    def counted(rows: Any) -> Any:
        sizes.append(len(rows))
        return readings(rows)

    monkeypatch.setattr(served, "readings", counted)
    monkeypatch.setattr(served._batches, "_max_wait", 1.0)
    asked(live, "/v1/classify", [{"model": "classes", "input": "a b", "depth": depth} for depth in [1, 2] * 6])
    assert sum(sizes) == 12
    assert len(sizes) <= 6
    assert torch.is_grad_enabled()
