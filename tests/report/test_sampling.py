"""Depths of tokens that were really run, with what exits say of them."""

import json
from pathlib import Path

import pytest

from depthwise.evaluation import load_run, predict_all, read_examples
from depthwise.report import read_run, sample
from depthwise.report.choosing import setting_of_run, split_of
from depthwise.report.guessing import guesses_of
from depthwise.report.sampling import depths_of, readable, samples_of

from .conftest import MakeFolder, MakeRun, frontier, point

LEAVING = ["policy.kind=confidence", "policy.threshold=0.3"]


def test_depths_are_those_of_predictions(make_run: MakeRun) -> None:
    folder = make_run("leaving translation")
    content = depths_of(folder, "test", 4, "policy", LEAVING)
    run = load_run(folder, depth="policy", policy_changes=LEAVING)
    examples = read_examples(run.task, "test")[:4]
    found = predict_all(run, [run.task.inputs_of(example) for example in examples])
    assert [sentence["depths"] for sentence in content["sentences"]] == [list(each.depths) for each in found]
    assert [sentence["output"] for sentence in content["sentences"]] == [each.text for each in found]
    assert [sentence["source"] for sentence in content["sentences"]] == [example.texts[0] for example in examples]
    assert [sentence["reference"] for sentence in content["sentences"]] == [example.texts[1] for example in examples]
    assert len({depth for each in found for depth in each.depths}) > 1
    (counts,) = content["histograms"]["all"]["counts"]
    assert sum(counts) == sum(len(each.depths) for each in found)
    assert (content["setting"], content["num_layers"], content["exits"]) == ("confidence 0.3", 4, [1, 2, 3, 4])
    assert "frequency" in content["histograms"]
    assert json.loads((folder / "results" / "depths.json").read_text()) == content


def test_the_last_exit_says_what_the_full_model_said(make_run: MakeRun) -> None:
    """At full depth and greedily, the guesses of the last exit are the text; those of others need not be."""
    run = load_run(make_run("leaving translation"), ["generation.num_beams=1"], depth=4)
    samples = samples_of(run, read_examples(run.task, "test"))
    tokenizer, others = run.task.tokenizers.target, 0
    for each in samples:
        guesses = guesses_of(run, each.row, each.ids)
        assert len(guesses) == 4
        names = ["(end)" if name == tokenizer.eos_token else name for name in tokenizer.convert_ids_to_tokens(each.ids)]
        assert [guess.text for guess in guesses[-1][:-1]] == names[:-1]  # the limit of the length may have ended it
        assert all(0 < guess.probability <= 1 for of_exit in guesses for guess in of_exit)
        others += [guess.text for guess in guesses[0]] != names
    assert others
    assert run.model.policy is not None  # the one that was there before


@pytest.mark.parametrize(("kind", "num_guesses"), [("leaving classes", 1), ("leaving tags", None)])
def test_tags_and_labels(make_run: MakeRun, kind: str, num_guesses: int | None) -> None:
    content = depths_of(make_run(kind), "valid", 5, "policy", ["policy.kind=confidence", "policy.threshold=0.6"])
    labels = {"good", "bad"} if kind == "leaving classes" else {"X", "O"}
    assert set(content["histograms"]["tag"]["bins"]) == labels
    for sentence in content["sentences"]:
        assert len(sentence["tokens"]) == len(sentence["depths"])
        assert len(sentence["guesses"]) == 4
        for of_exit in sentence["guesses"]:
            assert len(of_exit) == (num_guesses or len(sentence["tokens"]))
            assert {text for text, _ in of_exit} <= labels
    assert not content["of_output"]


def test_running_text(make_run: MakeRun) -> None:
    content = depths_of(make_run("leaving text"), "test", 3, "policy", LEAVING)
    assert content["sentences"]
    for sentence in content["sentences"]:
        assert sentence["output"] is None
        assert len(sentence["tokens"]) == len(sentence["depths"]) == len(sentence["guesses"][0])


@pytest.mark.parametrize("kind", ["leaving numbers", "masked text", "translation"])
def test_no_guesses_where_there_is_nothing_to_name(make_run: MakeRun, kind: str) -> None:
    content = depths_of(make_run(kind), "test", 3, None)
    assert content["sentences"]
    assert all(sentence["guesses"] == [] for sentence in content["sentences"])
    assert content["setting"] == "as trained, without a policy"


def test_long_texts_are_shown_in_part_and_counted_whole(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthwise.report.sampling.MOST_TOKENS", 2)
    monkeypatch.setattr("depthwise.report.sampling.NUM_SHOWN", 1)
    content = depths_of(make_run("leaving classes"), "test", 5, 2)
    (only,) = content["sentences"]
    assert (len(only["tokens"]), len(only["depths"])) == (2, 2)
    run = load_run(make_run("classes", name="other"))
    whole = sum(len(each.ids) for each in samples_of(run, read_examples(run.task, "test")))
    assert sum(content["histograms"]["all"]["counts"][0]) == whole
    assert only["left_out"] >= 0
    assert content["setting"] == "fixed depth 2"


def test_readable_tokens() -> None:
    assert [readable(name) for name in ("▁drei", "▁", "Ġthe", "zig", "<b>")] == [" drei", " ▁", " the", "zig", "<b>"]


# Which setting is looked at


def test_the_setting_of_the_headline(make_folder: MakeFolder) -> None:
    run = read_run(make_folder(), "run")
    assert setting_of_run(run) == ("policy", ["policy.kind=confidence", "policy.threshold=0.9"])
    assert split_of(run) == "test"
    fixed = frontier(point("fixed", 9.0, 4.0, 400, 4.0, depth=4), point("fixed", 9.0, 3.0, 300, 3.0, depth=3))
    files = {"results/frontier.json": json.dumps(fixed), "calibration.json": None}
    assert setting_of_run(read_run(make_folder("b", **files), "b")) == (3, [])
    fixed["points"].append(point("patience", 8.0, 2.0, 450, 3.0, patience=2))  # tokens differ by it
    files["results/frontier.json"] = json.dumps(fixed)
    found = setting_of_run(read_run(make_folder("f", **files), "f"))
    assert found == ("policy", ["policy.kind=patience", "policy.patience=2"])
    worse = frontier(point("fixed", 9.0, 4.0, 400, 4.0, depth=4), point("fixed", 8.0, 3.0, 300, 3.0, depth=3))
    folder = make_folder("c", **{"results/frontier.json": json.dumps(worse)})
    assert setting_of_run(read_run(folder, "c")) == ("drop-0.5", [])
    assert setting_of_run(read_run(make_folder("d", **{"results/frontier.json": None}), "d")) == ("drop-0.5", [])
    bare = make_folder("e", **{"results/frontier.json": None, "calibration.json": None})
    assert setting_of_run(read_run(bare, "e")) == (None, [])


def test_what_was_run_before_will_do(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run("leaving translation")
    sample(read_run(folder, "run"), 3, (2, []))
    calls = []
    monkeypatch.setattr("depthwise.report.choosing.depths_of", lambda *arguments: calls.append(arguments) or {})
    sample(read_run(folder, "run"), 3, (2, []))
    assert calls == []
    sample(read_run(folder, "run"), 4, (2, []))  # more of them
    sample(read_run(folder, "run"), 3, (1, []))  # elsewhere
    assert [each[2:] for each in calls] == [(4, 2, []), (3, 1, [])]
    (folder / "model.safetensors").unlink()  # there is nothing left to run
    sample(read_run(folder, "run"), 50, (1, []))
    assert len(calls) == 2


def test_what_cannot_be_run_is_told(make_folder: MakeFolder, make_run: MakeRun) -> None:
    run = read_run(make_folder(**{"results/depths.json": None}), "run")
    sample(run, 3)
    assert run.missing[0].startswith("its tokens could not be run: ")
    assert run.was_tried
    bare = read_run(make_folder("bare", **{"recipe.yaml": "task: translation\n", "results/depths.json": None}), "bare")
    sample(bare, 3)
    assert bare.missing == ["the recipe names neither test nor validation data, so that there is nothing to run"]
    folder = make_run("translation")
    recipe = Path(folder / "recipe.yaml")
    recipe.write_text(recipe.read_text().replace("pairs.tsv", "gone.tsv"))
    gone = read_run(folder, "gone")
    sample(gone, 3)
    assert "gone.tsv" in gone.missing[-1]
