"""What a predictor expected beside what was run, as files of results have it."""

import json
from typing import Any

import pytest

from depthwise.evaluation import load_run, read_examples
from depthwise.report import page_data, read_run, read_runs, sample
from depthwise.report.choosing import setting_of_run
from depthwise.report.sampling import depths_of
from depthwise.report.structures import THRESHOLDS, sound_structure

from .conftest import MakeFolder, MakeRun, depths, structured

KINDS = ("structured classes", "structured tags", "structured text")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_depths_of_sequences_are_those_of_their_tokens(make_run: MakeRun, kind: str, threshold: float) -> None:
    folder = make_run(kind)
    content = depths_of(folder, "test", 4, "policy", [f"policy.threshold={threshold}"])
    found = content["structure"]
    assert (found["num_static"], found["num_layers"], found["thresholds"]) == (1, 4, list(THRESHOLDS))
    by_tokens = [(len(sentence["depths"]), max(sentence["depths"])) for sentence in content["sentences"]]
    assert sorted((length, ran) for length, _, ran, *_ in found["sequences"]) == sorted(by_tokens)
    for _, expected, ran, *at in found["sequences"]:
        assert 2 <= expected <= 4
        assert at == sorted(at, reverse=True)
        assert threshold != 0.5 or ran == at[THRESHOLDS.index(0.5)]
        assert at[0] >= ran >= at[-1]
    assert json.loads((folder / "results" / "depths.json").read_text()) == content


def test_expected_depths_are_those_of_the_predictor(make_run: MakeRun) -> None:
    folder = make_run("structured classes")
    found = depths_of(folder, "test", 5, "policy")["structure"]["sequences"]
    run, wanted = load_run(folder), list[tuple[int, float]]()
    assert run.model.structure is not None
    for example in read_examples(run.task, "test"):
        batch = run.task.collate(run.task.rows([run.task.inputs_of(example)]))
        run.model(**{name: value for name, value in batch.items() if name != "labels"})
        assert run.model.structure.expected is not None
        wanted.append((int(batch["attention_mask"].sum()), run.model.structure.expected.item()))
    assert len({round(expected, 3) for _, expected in wanted}) > 1
    near = [[length, pytest.approx(expected, abs=1e-3)] for length, expected in sorted(wanted)]
    assert sorted(each[:2] for each in found) == near


def test_others_have_none(make_run: MakeRun) -> None:
    assert depths_of(make_run("leaving classes"), "test", 3, 2)["structure"] is None


def test_it_is_looked_at_by_its_own_threshold(make_run: MakeRun) -> None:
    assert setting_of_run(read_run(make_run("structured classes"), "run")) == ("policy", [])


def test_depths_without_a_structure_are_found_again(make_run: MakeRun) -> None:
    folder = make_run("structured classes")
    sample(read_run(folder, "run"), 3)
    path = folder / "results" / "depths.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in content.items() if name != "structure"}))
    (of_run,) = page_data(read_runs([folder]))["runs"]
    assert of_run["has_structure"]
    assert of_run["structure"] is None
    told = [sentence for sentence in of_run["missing"] if "expected" in sentence]
    assert told == [
        f"what its predictor expected is not known; run some again: depthwise report '{folder}' --samples 100"
    ]
    sample(read_run(folder, "run"), 3)
    (of_run,) = page_data(read_runs([folder]))["runs"]
    assert of_run["structure"]["sequences"] == content["structure"]["sequences"]
    assert not any("expected" in sentence for sentence in of_run["missing"])


def test_pages_of_other_runs(make_folder: MakeFolder) -> None:
    (of_run,) = page_data(read_runs([make_folder()]))["runs"]
    assert (of_run["has_structure"], of_run["structure"]) == (False, None)
    assert of_run["missing"] == []


@pytest.mark.parametrize(
    "odd",
    [[], [3, 2.5, 2], [3, 2.5, 2, 9, 2], [3, "x", 2, 2, 2], [-1, 2.5, 2, 2, 2], [3, 9.0, 2, 2, 2], {"length": 3}],
)
def test_damaged_sequences_are_left_out(odd: Any) -> None:
    found = depths(structure=structured())["structure"]
    whole = sound_structure(found)
    assert whole is not None
    assert sound_structure({**found, "sequences": [odd, *found["sequences"]]}) == whole
    assert sound_structure({**found, "sequences": [odd]}) is None
    assert sound_structure({**found, "sequences": odd}) is None
    assert sound_structure({**found, "num_layers": "x"}) is None
