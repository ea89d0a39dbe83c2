"""``--lossless`` of ``depthwise predict`` and ``depthwise evaluate``: what full depth says, and no leaving early."""

import json
from pathlib import Path

import pytest

from depthwise.engine import Engine

from .conftest import Depthwise, MakeRun
from .test_predict import feed

GREEDY = "generation.num_beams=1"
LINES = b"a b c\n\nb a c a\nc\n"


@pytest.mark.parametrize("kind", ["leaving translation", "leaving text"])
@pytest.mark.parametrize("drafted", [[], ["--drafted", "2"]])
def test_predictions_are_those_of_full_depth(
    make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch, kind: str, drafted: list[str]
) -> None:
    folder, asked = make_run(kind), []
    generate = Engine.generate

    def recorded(engine: Engine, *arguments: object, **options: object) -> object:
        found = generate(engine, *arguments, **options)  # type: ignore[arg-type]
        asked.append((engine.drafting, found.drafts))
        return found

    monkeypatch.setattr(Engine, "generate", recorded)
    feed(monkeypatch, LINES)
    code, expected, _ = depthwise("predict", folder, "--depths", GREEDY)
    assert code == 0
    assert {"4"} == {depth for line in expected.splitlines() if line for depth in line.split("\t")[1].split()}
    assert asked.pop() == (None, None)
    feed(monkeypatch, LINES)
    code, output, errors = depthwise("predict", folder, "--depths", "--lossless", "2", *drafted, GREEDY)
    assert (code, output, errors) == (0, expected, "")
    drafting, drafts = asked.pop()
    assert (drafting.depth, drafting.num_drafted) == (2, 2 if drafted else 4)
    assert drafts.num_drafted > 0


def test_results_have_a_name_of_their_own(make_run: MakeRun, depthwise: Depthwise) -> None:
    """Text and depth are those of full depth; what was rejected counts as work."""
    folder = make_run("leaving translation")
    assert depthwise("evaluate", folder, GREEDY)[0] == 0
    code, output, errors = depthwise("evaluate", folder, "--lossless", "1", "--drafted", "3", GREEDY)
    assert (code, errors) == (0, "")
    results = folder / "results"
    full, found = (json.loads((results / f"{name}.json").read_text()) for name in ("test", "test-lossless-1"))
    texts = [(results / f"{name}.predictions.txt").read_text() for name in ("test", "test-lossless-1")]
    assert texts[0] == texts[1]
    assert found["metrics"] == full["metrics"]
    assert found["mean_depth"] == full["mean_depth"] == 4.0
    assert found["token_layers"] > full["token_layers"]
    assert (found["flops"], full["acceptance_rate"]) == (None, None)
    assert found["settings"]["lossless"] == {"depth": 1, "num_drafted": 3}
    assert "lossless" not in full["settings"]
    assert found["settings"]["policy"] is None
    assert 0 <= found["acceptance_rate"] < 1
    assert f"  lossless         drafts of 3 at depth 1, {found['acceptance_rate']:.0%} of the tokens kept\n" in output
    assert f"  operations       {found['token_layers']:,} token-layers\n" in output


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [
        ("translation", [], "has no exits to draft at; train a run with model.exits, or leave out --lossless"),
        ("leaving classes", [], "generates no text, so that there is nothing to draft; leave out --lossless"),
        (
            "leaving translation",
            [],
            "lossless decoding has no beams, but {} searches with 2; add generation.num_beams=1",
        ),
        ("leaving translation", ["--lossless", "4", GREEDY], "{} has no exit at depth 4 to draft at, below its last; "),
        ("leaving translation", ["--lossless", "9", GREEDY], "choose among 1, 2, 3"),
        ("leaving translation", ["--depth", "2"], "and --depth 2 something else; leave one of them out"),
        ("leaving translation", ["--depth", "drop-0.5"], "and --depth drop-0.5 something else; leave one of them out"),
        (
            "leaving translation",
            ["--depth", "policy", "policy.threshold=0.5"],
            "policy.threshold has no effect with --lossless, which lets nobody leave early; leave one of them out",
        ),
    ],
)
def test_runs_that_cannot_be_drafted(
    make_run: MakeRun, depthwise: Depthwise, tmp_path: Path, kind: str, arguments: list[str], sentence: str
) -> None:
    folder, lines = make_run(kind), tmp_path / "in.txt"
    lines.write_bytes(LINES)
    lossless = [] if "--lossless" in arguments else ["--lossless", "1"]
    for command in (["predict", folder, lines], ["evaluate", folder]):
        code, output, errors = depthwise(*command, *lossless, *arguments)
        assert (code, output) == (1, "")
        assert sentence.format(folder) in errors.replace("\n", "")
        assert "Traceback" not in errors


def test_full_depth_goes_with_it(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("leaving translation")
    assert depthwise("evaluate", folder, "--lossless", "1", "--depth", "full", GREEDY)[0] == 0


def test_likelihood_is_not_drafted(make_run: MakeRun, depthwise: Depthwise) -> None:
    code, _, errors = depthwise("evaluate", make_run("leaving text"), "--lossless", "1", GREEDY)
    assert code == 1
    assert "is judged by the likelihood of texts, for which nothing is drafted; leave out --lossless" in errors


def test_models_that_search_by_themselves(
    make_run: MakeRun, depthwise: Depthwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "can_generate", lambda *_: False)
    feed(monkeypatch, LINES)
    code, output, errors = depthwise("predict", make_run("leaving translation"), "--lossless", "1", GREEDY)
    assert (code, output) == (1, "")
    assert "searches by itself, without the engine, which drafts; leave out --lossless" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "RUN", "--drafted", "3"], "goes with --lossless; say at which exit to draft"),
        (["evaluate", "RUN", "--drafted", "3"], "goes with --lossless; say at which exit to draft"),
        (["predict", "RUN", "--lossless", "1", "--score"], "goes with predictions, not with --score"),
        (["evaluate", "RUN", "--lossless", "1", "--predictions", "FILE"], "predictions that are given are not drafted"),
        (["evaluate", "RUN", "--lossless", "0"], "Invalid value for '--lossless'"),
    ],
)
def test_wrong_usage(depthwise: Depthwise, arguments: list[str], message: str) -> None:
    code, output, errors = depthwise(*arguments)
    assert (code, output) == (2, "")
    assert message in " ".join(errors.replace("│", "").split())
