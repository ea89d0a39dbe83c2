"""What the engine finds on behalf of tasks is what the model's own ``generate`` finds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.config import ConfidenceConfig, FixedDepthConfig, PatienceConfig, PolicyConfig, UniformExitConfig
from depthwise.engine import Engine
from depthwise.evaluation import Run, load_run
from depthwise.evaluation.predicting import run_by
from depthwise.evaluation.runs import by_policy
from depthwise.evaluation.searching import EngineSearch
from depthwise.tasks import Prediction, searching
from depthwise.tasks.searching import Found, Search, found_text, search_by_model, searched_by

MakeRun = Callable[..., Path]
INPUTS = [("a b c",), ("b",), ("c c a b a",), ("a a b a b b c c",), ("a",), ("b b",)]
POLICIES: dict[str, PolicyConfig | None] = {
    "full": None,
    "fixed": FixedDepthConfig(depth=2),
    "confidence": ConfidenceConfig(threshold=(0.6,)),
    "saturation": ConfidenceConfig(measure="saturation", threshold=(0.8,)),
    "patience": PatienceConfig(patience=1),
    "uniform": UniformExitConfig(),
}


def loaded(make_run: MakeRun, kind: str, **search: Any) -> Run:
    """A run in float64 that searches in a certain way, and that does not say the same token again and again."""
    run = load_run(make_run(kind), [f"generation.{name}={value}" for name, value in search.items()], device="cpu")
    torch.manual_seed(5)
    for head in run.model.heads_of_exits():  # type: ignore[operator]
        head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
    run.model.double()
    return run


def both(run: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Prediction], list[Prediction]]:
    """What all inputs in one batch become by the engine, which never calls ``generate``, and by the model."""
    rows = run.task.rows(INPUTS)
    with run_by(run.engine), monkeypatch.context() as patch:
        patch.setattr(run.model, "generate", lambda **_: pytest.fail("the model was asked itself"))
        by_engine = run.task.predictions(run.model, rows)
    return by_engine, run.task.predictions(run.model, rows)


def assert_same(ours: list[Prediction], theirs: list[Prediction]) -> None:
    """All but the steps of a search, of which the engine may need fewer."""
    assert [replace(one, num_steps=None) for one in ours] == [replace(one, num_steps=None) for one in theirs]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["leaving translation", "leaving text"])
def test_every_policy(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, kind: str, num_beams: int, policy: str
) -> None:
    run = by_policy(loaded(make_run, kind, num_beams=num_beams, max_extra=8), POLICIES[policy])
    ours, theirs = both(run, monkeypatch)
    assert_same(ours, theirs)
    depths = {depth for one in ours for depth in one.depths}
    assert len(depths) > 1 if policy not in ("full", "fixed") else len(depths) == 1


@pytest.mark.parametrize(
    "search",
    [
        {"num_beams": 1, "no_repeat_ngram": 2},
        {"num_beams": 4, "no_repeat_ngram": 1, "length_penalty": 0.0},
        {"num_beams": 2, "early_stopping": True, "length_penalty": 2.0},
    ],
)
@pytest.mark.parametrize("kind", ["translation", "text"])
def test_every_way_to_search(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, kind: str, search: dict[str, Any]
) -> None:
    assert_same(*both(loaded(make_run, kind, max_extra=12, **search), monkeypatch))


@pytest.mark.parametrize(
    "option", [{"min_length": 6}, {"min_new_tokens": 5}, {"min_length": 4, "suppress_tokens": [5]}]
)
@pytest.mark.parametrize("num_beams", [1, 2])
def test_what_the_generation_config_says_counts(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, num_beams: int, option: dict[str, Any]
) -> None:
    run = loaded(make_run, "translation", num_beams=num_beams, max_extra=8)
    without, _ = both(run, monkeypatch)
    run.model.generation_config.update(**option)  # type: ignore[union-attr]
    ours, theirs = both(run, monkeypatch)
    assert_same(ours, theirs)
    assert [one.text for one in ours] != [one.text for one in without]


def test_a_cut_model(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(make_run("translation"), device="cpu", depth=1)
    run.model.double()
    ours, theirs = both(run, monkeypatch)
    assert_same(ours, theirs)
    assert {depth for one in ours for depth in one.depths} == {1}


def test_an_option_that_the_engine_does_not_know_is_left_to_the_model(make_run: MakeRun) -> None:
    run = loaded(make_run, "translation", num_beams=1, max_extra=8)
    assert run.engine.can_generate({"max_length", "num_beams", "limits"})
    assert not run.engine.can_generate({"penalty_alpha"})
    rows = run.task.rows(INPUTS)
    run.model.generation_config.repetition_penalty = 5.0  # type: ignore[union-attr]
    assert not run.engine.can_generate()
    theirs = run.task.predictions(run.model, rows)
    with run_by(run.engine):
        assert run.task.predictions(run.model, rows) == theirs
    run.model.generation_config.repetition_penalty = None  # type: ignore[union-attr]
    assert [one.text for one in run.task.predictions(run.model, rows)] != [one.text for one in theirs]


def test_a_sharded_model_and_one_without_a_decoder_are_not_for_the_engine(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not load_run(make_run("classes"), device="cpu").engine.can_generate()
    model = load_run(make_run("translation"), device="cpu").model
    assert Engine(model).can_generate()
    monkeypatch.setattr("depthwise.engine.engine.FSDPModule", type(model.model))
    assert not Engine(model).can_generate()


def test_steps_are_those_of_the_search_and_not_of_what_it_found(make_run: MakeRun) -> None:
    """A beam looks on behind the end of what turns out to be best."""
    run = loaded(make_run, "translation", num_beams=3, max_extra=8, length_penalty=0.0)
    steps, longest = 0, 0
    with run_by(run.engine):
        for row in run.task.rows(INPUTS):
            (found,) = run.task.predictions(run.model, [row])
            (expected,) = _by_model(run, row)
            assert found.num_steps == expected.num_steps
            assert found.num_steps is not None
            assert found.num_steps >= len(found.depths)
            steps, longest = steps + found.num_steps, longest + len(found.depths)
    assert steps > longest


def _by_model(run: Run, row: Any) -> list[Prediction]:
    with searched_by(search_by_model):
        return run.task.predictions(run.model, [row])


def test_a_searcher_holds_for_a_while(make_run: MakeRun) -> None:
    seen: list[Search] = []

    def searcher(model: Any, search: Search) -> Found:
        seen.append(search)
        return search_by_model(model, search)

    run = loaded(make_run, "translation")
    rows = run.task.rows(INPUTS[:2])
    with searched_by(searcher):
        assert searching._current.get() is searcher
        run.task.predictions(run.model, rows)
    run.task.predictions(run.model, rows)
    (search,) = seen
    assert search.limits is not None
    assert search.max_length == int(search.limits.max()) + 1
    found = found_text(run.model, search)
    assert torch.equal(found.sequences[:, 1:], found.tokens)
    with pytest.raises(AssertionError, match="its own model"):
        EngineSearch(run.engine)(loaded(make_run, "text").model, search)
