"""``depthwise evaluate``: what it prints and writes, and its mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

MakeRun = Callable[..., Path]
Depthwise = Callable[..., tuple[int, str, str]]
GOLD = "good\nbad\ngood\nbad\ngood\n"


def test_text(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("translation")
    code, output, errors = depthwise("evaluate", folder)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0] == f"{folder}, test: 5 examples"
    assert lines[1].split()[0] == "sacrebleu"
    assert "(nrefs:1|case:mixed" in lines[1]
    assert lines[3].split() == ["mean", "depth", "2.00"]
    assert "tokens/s" in lines[4]
    assert len((folder / "results" / "test.predictions.txt").read_text().splitlines()) == 5


def test_json(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("classes")
    code, output, errors = depthwise("evaluate", folder, "--split", "valid", "--json", "--depth", "1")
    assert (code, errors) == (0, "")
    content = json.loads(output)
    assert (content["mean_depth"], content["examples"], content["split"]) == (1.0, 5, "valid")
    assert 0 <= content["metrics"]["accuracy"] <= 100
    assert content["seconds"] > 0
    written = json.loads((folder / "results" / "valid-depth-1.json").read_text())
    assert written.items() >= content.items()


def test_a_policy(make_run: MakeRun, depthwise: Depthwise) -> None:
    """It is named, and its results stand beside those of full depth."""
    folder = make_run("leaving classes")
    assert depthwise("evaluate", folder)[0] == 0
    changes = ["policy.kind=confidence", "policy.threshold=0.7"]
    code, output, errors = depthwise("evaluate", folder, "--depth", "policy", *changes)
    assert (code, errors) == (0, "")
    assert "  policy           confidence, measure max_probability, threshold 0.7\n" in output
    found = json.loads((folder / "results" / "test-confidence-0.7.json").read_text())
    assert found["settings"]["policy"]["threshold"] == [0.7]
    assert 1 <= found["mean_depth"] < 4
    assert f"GFLOPs, {found['token_layers']:,} token-layers" in output
    full = json.loads((folder / "results" / "test.json").read_text())
    assert (full["mean_depth"], full["settings"]["policy"]) == (4.0, None)
    assert found["flops"] < full["flops"]


def test_a_policy_by_another_name(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("leaving classes")
    changes = ["policy.kind=patience", "policy.patience=1", "--name", "test"]
    assert depthwise("evaluate", folder, "--depth", "policy", *changes)[0] == 0
    assert {path.name for path in (folder / "results").iterdir()} == {"test.json", "test.predictions.txt"}
    assert json.loads((folder / "results" / "test.json").read_text())["settings"]["policy"]["kind"] == "patience"


@pytest.mark.parametrize("kind", ["leaving classes", "leaving translation"])
def test_depths_drawn_by_lot(make_run: MakeRun, depthwise: Depthwise, kind: str) -> None:
    folder = make_run(kind)
    for changes, name in (([], "test-uniform"), (["policy.seed=5"], "test-uniform-5")):
        code, output, errors = depthwise("evaluate", folder, "--depth", "policy", "policy.kind=uniform", *changes)
        assert (code, errors) == (0, "")
        assert "  policy           uniform" in output
        found = json.loads((folder / "results" / f"{name}.json").read_text())
        assert found["settings"]["policy"] == {"kind": "uniform", "seed": 5 if changes else 1}
        assert 1 < found["mean_depth"] < 4


def test_a_policy_against_the_full_model(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("leaving classes")
    changes = ["policy.kind=confidence", "policy.threshold=2"]
    code, output, _ = depthwise("evaluate", folder, "--depth", "policy", *changes, "--against", folder, "--json")
    assert (code, json.loads(output)["comparison"]["difference"]) == (0, 0.0)


def test_policies_that_cannot_be(make_run: MakeRun, depthwise: Depthwise) -> None:
    plain, leaving = make_run("classes"), make_run("leaving classes")
    for arguments, message in {
        (plain, "--depth", "policy"): "has no exits to leave at; train a run with model.exits, or use --depth full",
        (leaving, "--depth", "policy"): "was trained with no policy; choose one that needs no training",
        (leaving, "--depth", "policy", "policy.kind=token"): "was not trained for the policy token: it has no policy",
        (leaving, "--depth", "5"): "has no exit at depth 5; choose among 1, 2, 3, 4",
        (leaving, "policy.threshold=0.5"): "policy.threshold has no effect where no policy decides; add --depth policy",
        (leaving, "--depth", "policy", "policy.kind=confidence", "policy.threshold=-1"): "-1 is out of range of max_p",
        (
            leaving,
            "--depth",
            "policy",
            "policy.kind=confidence",
            "policy.threshold=[1,1]",
        ): "2 thresholds for the 3 exits",
    }.items():
        code, output, errors = depthwise("evaluate", *arguments)
        assert (code, output) == (1, ""), arguments
        assert message in errors
        assert "Traceback" not in errors


def test_another_name(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("classes")
    code, _, _ = depthwise("evaluate", folder, "--name", "quick_2017", "--depth", "1")
    assert code == 0
    assert {path.name for path in (folder / "results").iterdir()} == {"quick_2017.json", "quick_2017.predictions.txt"}


def test_changes(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    data = tmp_path / "other.tsv"
    data.write_text("a\tb\n")
    arguments = [f"data.test={data}", "generation.num_beams=1", "evaluation.metrics=[exact_match]"]
    code, output, _ = depthwise("evaluate", *arguments[:1], make_run("translation"), *arguments[1:], "--json")
    content = json.loads(output)
    assert (code, content["examples"], list(content["metrics"])) == (0, 1, ["exact_match"])
    assert content["settings"]["generation"]["num_beams"] == 1


def test_given_predictions_need_no_weights(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    folder = make_run("classes")
    (folder / "model.safetensors").unlink()
    (tmp_path / "gold.txt").write_text(GOLD)
    code, output, _ = depthwise("evaluate", folder, "--predictions", tmp_path / "gold.txt", "--json")
    content = json.loads(output)
    assert (code, content["metrics"]["accuracy"], content["mean_depth"]) == (0, 100.0, None)
    assert not (folder / "results").exists()
    assert depthwise("evaluate", folder, "--predictions", tmp_path / "gold.txt", "--name", "given")[0] == 0
    assert json.loads((folder / "results" / "given.json").read_text())["metrics"]["accuracy"] == 100.0
    (tmp_path / "gold.txt").write_text("good\n")
    code, output, errors = depthwise("evaluate", folder, "--predictions", tmp_path / "gold.txt")
    assert (code, output) == (1, "")
    assert "there are 1 predictions for 5 examples of" in errors


def test_against(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path) -> None:
    folder, other = make_run("classes", 1), make_run("classes", 2)
    code, output, _ = depthwise("evaluate", folder, "--against", other, "--json")
    comparison = json.loads(output)["comparison"]
    assert code == 0
    assert comparison["difference"] == pytest.approx(comparison["ours"] - comparison["theirs"])
    assert comparison["low"] <= comparison["difference"] <= comparison["high"]
    gold, wrong = tmp_path / "gold.txt", tmp_path / "wrong.txt"
    gold.write_text(GOLD)
    wrong.write_text("x\n" * 5)
    _, output, _ = depthwise("evaluate", folder, "--predictions", gold, "--against", wrong)
    assert f"accuracy: 100.00 of {gold}, 0.00 of {wrong}" in output
    assert "difference +100.00, 95% interval [+100.00, +100.00], p = 0.0" in output


def test_seeds(make_run: MakeRun, depthwise: Depthwise) -> None:
    folders = [make_run("classes", seed) for seed in (1, 2)]
    depthwise("evaluate", *folders, "--split", "valid")
    code, output, _ = depthwise("evaluate", *folders, "--json")
    content = json.loads(output)
    values = [run["metrics"]["accuracy"] for run in content["runs"].values()]
    assert code == 0
    assert content["metrics"]["accuracy"] == pytest.approx(sum(values) / 2)
    assert content["deviations"]["accuracy"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert content["best_on_valid"] == str(folders[values.index(max(values))])
    assert {"mean_depth", "seconds", "examples"} <= content.keys()
    _, output, _ = depthwise("evaluate", *folders)
    assert "2 runs" in output
    assert f"best on validation data: {content['best_on_valid']}, accuracy {max(values):.2f} here" in output


def test_mistakes(make_run: MakeRun, depthwise: Depthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder, other = make_run("classes"), make_run("translation")
    (tmp_path / "unseen.tsv").write_text("ugly\ta\n")
    for arguments, message in {
        (folder, "--device", "cuda"): "there is no GPU here that torch can use",
        (folder, f"data.test={tmp_path / 'none.tsv'}"): "none.tsv does not exist",
        (folder, f"data.test={tmp_path / 'unseen.tsv'}"): 'label "ugly" was never seen in training',
        (folder, "--against", other): "is a run of translation, not of text_classification",
        (folder, "--against", tmp_path / "none.txt"): "none.txt does not exist",
        (folder, "--depth", "3"): "the encoder has 2 blocks; give a depth from 1 to 2",
        (folder, "generaton.num_beams=1"): "generaton  unknown option; did you mean generation?",
        (tmp_path / "none",): "none is no folder; give the folder of a run",
        (tmp_path,): "holds no trained model; give the folder of a run",
    }.items():
        code, output, errors = depthwise("evaluate", *arguments)
        assert (code, output) == (1, ""), arguments
        assert message in errors
        assert "Traceback" not in errors
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.test=x"], "name the folder of a run"),
        (["a", "b", "--against", "c"], "take one run at a time"),
        (["a", "--depth", "-3x"], "-3x is neither trained, full, policy, a number of blocks nor the name of a setting"),
        (["a", "--split", "dev"], "Invalid value for '--split'"),
        (["a", "--name", "../b"], "../b is no name of a file"),
        (["a", "--name", "valid"], "valid is another split; evaluate it with --split valid"),
        (["a", "--predictions", "b", "--depth", "1"], "predictions that are given have no depth"),
    ],
)
def test_wrong_usage(depthwise: Depthwise, arguments: list[str], message: str) -> None:
    code, _, errors = depthwise("evaluate", *arguments)
    assert code == 2
    assert message in " ".join(errors.replace("│", " ").split())


def test_what_was_found_is_shown_before_it_is_written(make_run: MakeRun, depthwise: Depthwise) -> None:
    folder = make_run("classes")
    (folder / "results").write_text("in the way")
    code, output, errors = depthwise("evaluate", folder)
    assert code == 1
    assert "accuracy" in output
    assert "cannot be written" in errors
    assert (folder / "results").read_text() == "in the way"


def test_an_imported_run(depthwise: Depthwise, tmp_path: Path) -> None:
    """One that has no recipe: the data is named on the command line."""
    golden = Path(__file__).resolve().parents[1] / "golden" / "fairseq_checkpoint"
    folder, data = tmp_path / "run", tmp_path / "test.tsv"
    assert depthwise("convert", "fairseq", golden, folder)[0] == 0
    code, _, errors = depthwise("evaluate", folder)
    assert (code, "the recipe names no test data; add data.test=FILE" in errors) == (1, True)
    data.write_text("w0 w1 w2\tw3\nw4\tw5 w6\n")
    code, output, errors = depthwise("evaluate", folder, f"data.test={data}", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(output)["examples"] == 2
    code, output, errors = depthwise("predict", folder, data, "--score")
    assert (code, errors) == (0, "")
    assert all(float(line) < 0 for line in output.splitlines())
