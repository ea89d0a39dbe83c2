"""Training encoders that say how many layers they need: pretrained, tuned further, with a price of layers or none."""

import json
import math
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from depthwise.config import StructureConfig
from depthwise.errors import CheckpointError, ConfigError
from depthwise.evaluation import evaluate_run, load_run
from depthwise.tasks import open_task
from depthwise.training.run import train
from depthwise.training.structure import information

from .conftest import WORDS, recipe_of
from .test_encoder_tasks import write_questions, write_tagged
from .test_resume import assert_same_run, interrupted_at

STACK = {
    **{"num_layers": 4, "num_heads": 2, "ffn_width": 32, "dropout": 0.1, "norm": "pre", "groups": 2},
    "relative": {"max_distance": 4},
}
WINDOWS = {"max_tokens": 32, "stride": 8, "max_question_tokens": 4}
PREDICTOR = "model.encoder.structure.out.weight"


def structured(options: dict[str, Any], **structure: Any) -> dict[str, Any]:
    model = {"width": 16, "encoder": STACK, "pooling": "first_tanh", "structure": {"num_static": 1, **structure}}
    return {**options, "model": model}


def lines_of(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "expected_depth" in line]


def test_the_loss_of_the_task_alone_teaches_the_predictor(classification: dict[str, Any], tmp_path: Path) -> None:
    options = structured(classification)
    train(recipe_of(options, max_updates=1, log_every=1), tmp_path / "one")
    train(recipe_of(options), tmp_path / "run")
    weights = [load_file(tmp_path / name / "model.safetensors")[PREDICTOR] for name in ("one", "run")]
    assert not torch.equal(*weights)
    line = lines_of(tmp_path / "run")[-1]
    assert 2 <= line["expected_depth"] <= 4
    assert line["expected_depth_deviation"] >= 0
    found = evaluate_run(load_run(tmp_path / "run", device="cpu", depth="policy"), "test")
    assert found.mean_depth is not None
    assert 2 <= found.mean_depth <= 4


def test_a_price_makes_it_shallow(classification: dict[str, Any], tmp_path: Path) -> None:
    length = {"max_updates": 40, "log_every": 40, "validate_every": 40}
    for name, cost in (("free", 0.0), ("dear", 3.0)):
        train(recipe_of(structured(classification), depth_cost=cost, **length), tmp_path / name)
    free, dear = (lines_of(tmp_path / name)[-1]["expected_depth"] for name in ("free", "dear"))
    assert dear < free - 0.1


def test_a_wanted_depth_is_reached_from_both_sides(classification: dict[str, Any], tmp_path: Path) -> None:
    length = {"max_updates": 40, "log_every": 40, "validate_every": 40}
    for name, target in (("shallow", 2.5), ("deep", 3.5)):
        options = recipe_of(structured(classification), depth_cost=3.0, depth_target=target, **length)
        train(options, tmp_path / name)
        assert lines_of(tmp_path / name)[-1]["expected_depth"] == pytest.approx(target, abs=0.25)


def test_information_makes_inputs_differ(classification: dict[str, Any], tmp_path: Path) -> None:
    length = {"max_updates": 60, "log_every": 1, "validate_every": 60}
    options = structured(classification, summary="mean")
    for name, weight in (("none", 0.0), ("some", 3.0)):
        train(recipe_of(options, depth_information=weight, **length), tmp_path / name)
    none, some = (lines_of(tmp_path / name)[-1]["expected_depth_deviation"] for name in ("none", "some"))
    assert some > none + 0.2


def test_information_is_what_the_row_tells_of_the_depth() -> None:
    same = torch.tensor([[0.3, 0.7], [0.3, 0.7]])
    torch.testing.assert_close(information(same), torch.tensor(0.0))
    apart = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(information(apart), torch.tensor(math.log(2)))
    apart.requires_grad_()
    information(apart).backward()
    assert apart.grad is not None
    assert not apart.grad.isnan().any()


def test_the_price_does_not_depend_on_how_an_update_is_parted(classification: dict[str, Any], tmp_path: Path) -> None:
    """Two batches of equally many rows are worth as much as one of them all."""
    stack = {**STACK, "dropout": 0.0}
    options = structured(classification)
    options["model"]["encoder"] = stack
    single = {"max_updates": 1, "log_every": 1, "depth_cost": 1.0, "batch_tokens": None}
    (tmp_path / "train.tsv").write_text("".join(f"{word}\t{word} old\n" for word in WORDS[:4]))
    train(recipe_of(options, batch_rows=4, **single), tmp_path / "one")
    train(recipe_of(options, batch_rows=2, accumulate=2, **single), tmp_path / "two")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, msg=name, rtol=1e-3, atol=1e-5)
    assert lines_of(tmp_path / "one")[-1]["loss"] == pytest.approx(lines_of(tmp_path / "two")[-1]["loss"], rel=1e-4)


def test_it_goes_on_bit_by_bit(classification: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(structured(classification), depth_cost=0.1, max_updates=12)
    train(recipe, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupted_at(patch, 7, signal.SIGTERM)
        train(recipe, tmp_path / "parts")
    train(recipe, tmp_path / "parts")
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_price_of_nothing_is_refused(classification: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.depth_cost.*has no effect on a model whose depth is not learned"):
        train(recipe_of(classification, depth_cost=0.1), tmp_path / "run")


@pytest.mark.parametrize(
    ("has_structure", "given", "message"),
    [
        (False, {"depth_target": 3}, "has no effect on a model whose depth is not learned"),
        (False, {"depth_information": 0.1}, "has no effect on a model whose depth is not learned"),
        (True, {"depth_target": 3}, "has no effect without training.depth_cost"),
        (True, {"depth_target": 1, "depth_cost": 0.1}, "1 is not between the 2 layers that always run and all 4"),
        (True, {"depth_target": 1.5, "depth_cost": 0.1}, "1.5 is not between the 2 layers"),
        (True, {"depth_target": 4.5, "depth_cost": 0.1}, "4.5 is not between the 2 layers"),
    ],
)
def test_a_depth_that_cannot_be_wanted_is_refused(
    classification: dict[str, Any], tmp_path: Path, has_structure: bool, given: dict[str, float], message: str
) -> None:
    options = structured(classification) if has_structure else classification
    with pytest.raises(ConfigError, match=rf"training.depth_\w+ +{message}"):
        train(recipe_of(options, **given), tmp_path / "run")


def test_pretrained_with_masks_and_order_then_tuned(tmp_path: Path) -> None:
    """Classes, pairs, numbers, tags and answers all begin with the same predictor and go on teaching it."""
    draw, cache = random.Random(0), str(tmp_path / "cache")
    document = "".join(" ".join(draw.choices(WORDS, k=6)) + ("\n\n" if line % 5 == 4 else "\n") for line in range(100))
    (tmp_path / "text.txt").write_text(document)
    training = {
        **{"optimizer": {"kind": "adam", "lr": 1e-2}, "schedule": {"kind": "constant"}, "batch_tokens": 256},
        **{"max_updates": 4, "log_every": 2, "validate_every": 4},
    }
    pretraining = {
        "task": "masked_language_modeling",
        "data": {**dict.fromkeys(("train", "valid", "test"), str(tmp_path / "text.txt")), "cache": cache},
        "tokenizer": {"vocab_size": 60, "first_token": True},
        "masking": {"units": "ngrams"},
        "training": training,
    }
    pretraining = structured(pretraining)
    pretraining["model"] |= {"sentence_order": True, "embedding_width": 8, "token_types": 2, "head_transform": "gelu"}
    train(recipe_of(pretraining), tmp_path / "pretrained")
    assert evaluate_run(load_run(tmp_path / "pretrained", device="cpu", depth="policy"), "test").metrics.keys() >= {
        "perplexity",
        "order_accuracy",
    }
    begins_with = load_file(tmp_path / "pretrained" / "model.safetensors")[PREDICTOR]

    write_tagged(tmp_path / "tags.txt", 40, 0)
    write_questions(tmp_path / "questions.json", 30, 0)
    (tmp_path / "pairs.tsv").write_text("".join(f"{n % 2}\t{WORDS[n % 7]} old\t{WORDS[n % 5]}\n" for n in range(30)))
    (tmp_path / "numbers.tsv").write_text("".join(f"{n % 5}.5\t{WORDS[n % 5]} old\n" for n in range(30)))
    tasks: dict[str, tuple[str, str, dict[str, Any]]] = {
        "pairs": ("text_classification", "pairs.tsv", {}),
        "numbers": ("text_classification", "numbers.tsv", {"labels": "number"}),
        "tags": ("tagging", "tags.txt", {}),
        "questions": ("question_answering", "questions.json", {**WINDOWS, "unanswerable": True}),
    }
    for name, (task, file, data) in tasks.items():
        files = dict.fromkeys(("train", "valid", "test"), str(tmp_path / file))
        options = {
            "task": task,
            "data": {**files, "cache": cache, **data},
            "model": {"from": str(tmp_path / "pretrained")},
            "training": {**training, "max_updates": 2, "validate_every": 2},
        }
        begun = open_task(recipe_of(options), tmp_path / f"new {name}").new_model().state_dict()
        assert torch.equal(begun[PREDICTOR], begins_with)
        train(recipe_of(options), tmp_path / name)
        assert not torch.equal(load_file(tmp_path / name / "model.safetensors")[PREDICTOR], begins_with)
        found = evaluate_run(load_run(tmp_path / name, device="cpu", depth="policy"), "test")
        assert found.mean_depth is not None
        assert 2 <= found.mean_depth <= 4


def test_options_beside_another_run_are_merged_with_its_structure(
    classification: dict[str, Any], tmp_path: Path
) -> None:
    train(recipe_of(structured(classification, summary="mean"), max_updates=1), tmp_path / "first")
    further = {**classification, "model": {"from": str(tmp_path / "first"), "structure": {"temperature": 3}}}
    train(recipe_of(further, max_updates=1), tmp_path / "second")
    model = load_run(tmp_path / "second", device="cpu").model
    assert model.config.options.structure == StructureConfig(num_static=1, summary="mean", temperature=3)
    for bias, is_refused in ((0, False), (0.0, False), (20, True)):
        again = recipe_of({**further, "model": {**further["model"], "structure": {"last_bias": bias}}})
        if is_refused:
            with pytest.raises(ConfigError, match=r"structure\.last_bias +has no effect on what .*first has learned"):
                open_task(again, tmp_path / "biased")
        else:
            open_task(again, tmp_path / "biased")
    train(recipe_of(classification, max_updates=1), tmp_path / "plain")
    without = {**further, "model": {"from": str(tmp_path / "plain"), "structure": {"temperature": 3}}}
    with pytest.raises(ConfigError, match=r"structure\.num_static +required but missing"):
        train(recipe_of(without, max_updates=1), tmp_path / "third")


def test_a_run_of_fixed_depth_gets_a_predictor(classification: dict[str, Any], tmp_path: Path) -> None:
    """One that is new as a whole and begins as its options say, above layers that are not."""
    plain = structured(classification)
    del plain["model"]["structure"]
    train(recipe_of(plain, max_updates=1), tmp_path / "first")
    added = {"from": str(tmp_path / "first"), "structure": {"num_static": 1, "last_bias": 7}}
    begins = open_task(recipe_of({**classification, "model": added}), tmp_path / "second").new_model().state_dict()
    for name, weight in load_file(tmp_path / "first" / "model.safetensors").items():
        assert torch.equal(begins[name], weight), name
    assert begins[PREDICTOR].std() > 0
    assert begins[PREDICTOR.replace("weight", "bias")].tolist() == [0, 0, 7]
    train(recipe_of({**classification, "model": added}, max_updates=2, log_every=1), tmp_path / "second")
    assert lines_of(tmp_path / "second")[0]["expected_depth"] > 3.9
    wider = {"from": str(tmp_path / "second"), "structure": {"hidden_width": 5}}
    with pytest.raises(CheckpointError, match=r"structure\.hidden\.\w+ is missing or has another shape"):
        open_task(recipe_of({**classification, "model": wider}), tmp_path / "third").new_model()
    normed = {"from": str(tmp_path / "second"), "structure": {"normalized": True}}
    with pytest.raises(CheckpointError, match=r"structure\.norm\.\w+ is missing or has another shape"):
        open_task(recipe_of({**classification, "model": normed}), tmp_path / "third").new_model()
