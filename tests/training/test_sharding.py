"""Two processes train a model in shards: it learns what a whole one learns, goes on bit by bit, and ends up whole.

They do so on CPUs, by the trainer and Accelerate as on GPUs.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from depthwise.config import recipe_yaml
from depthwise.evaluation.runs import load_run
from depthwise.evaluation.validation import validate, validation_metrics
from depthwise.training.checkpoints import checkpoints
from depthwise.training.optimizers import OPTIMIZERS
from depthwise.training.sharding import begin_states

from .conftest import PATIENCE, recipe_of
from .test_processes import LAUNCH, lines
from .test_resume import assert_same_run
from .test_sequence_to_sequence import multilingual

__all__ = ["multilingual"]

LOGITS = "model.decoder.latent.logits"
UPDATES, CLIP = 6, 0.5


def write_recipes(options: dict[str, Any], folder: Path, tied: str) -> None:
    """Gates of every language on both sides, with an update behind every second one of the weights, and hard ones to
    validate with."""
    stack = {**options["model"]["decoder"], "norm": "pre", "num_layers": 3}
    latent = {"sides": ["encoder", "decoder"], "per_language": True}
    model = {"width": 16, "encoder": stack, "decoder": stack, "latent": latent, "tied_embeddings": tied}
    data = {**options["data"], "temperature": 1.0, "rounds": True}
    options = {**options, "data": data, "model": model, "evaluation": {"gates": "hard"}}
    training: dict[str, Any] = {
        "optimizer": {"kind": "adam", "lr": 1e-2, "eps": 1e-3},  # no noise on what has no gradient
        "schedule": {"kind": "constant"},
        "latent": {"soft_updates": 2, "anneal_updates": 2, "lr": 0.05, "inner_updates": 2},
        **{"clip_norm": CLIP, "gradient_norms": True, "metric": "nll", "precision": "fp32", "device": "cpu"},
        **{"log_every": 1, "validate_every": 3, "max_updates": UPDATES, "shard": True},
    }
    short = {"precision": "bf16", "max_updates": 2}
    for name, changes in {"whole": {"shard": False}, "shards": {}, "half": short}.items():
        recipe = recipe_of(options, **{**training, **changes})
        (folder / f"{name}.yaml").write_text(recipe_yaml(recipe))


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_a_model_in_shards_learns_what_a_whole_one_learns(
    multilingual: dict[str, Any], tmp_path: Path, tied: str
) -> None:
    write_recipes(multilingual, tmp_path, tied)
    script = Path(__file__).with_name("sharded_processes.py")
    done = subprocess.run(
        [sys.executable, *LAUNCH, str(script), str(tmp_path)],
        capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "FSDP2" not in done.stderr  # of whose warnings none concerns anybody
    assert_same_passes(tmp_path)
    assert_alike(tmp_path / "shards", tmp_path / "whole")
    assert_same_run(tmp_path / "parts", tmp_path / "shards")
    assert_is_whole(tmp_path / "shards")


def assert_same_passes(folder: Path) -> None:
    """Both processes draw the same samples, by logits that are the same, as those of a whole model, and in float32;
    they see different languages, whose gates differ."""
    notes = {
        name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(2)]
        for name in ("whole", "shards", "half")
    }
    (first, second), (expected, _) = notes["shards"], notes["whole"]
    assert {kind for of_rank in notes["half"] for passed in of_rank for kind in passed["types"]} == {"torch.float32"}
    assert {passed["model"] for passed in first + second} == {"FSDPDepthwiseForSeq2SeqLM"}
    assert {passed["model"] for passed in expected} == {"DistributedDataParallel"}
    assert [passed["update"] for passed in first] == list(range(UPDATES))
    assert all(one["pair"] != other["pair"] for one, other in zip(first, second, strict=True))
    for what in ("samples", "logits"):
        assert [passed[what] for passed in first] == [passed[what] for passed in second], what
        for one, other in zip(first, expected, strict=True):
            for side in ("encoder", "decoder"):
                torch.testing.assert_close(torch.tensor(one[what][side]), torch.tensor(other[what][side]))
    logits = [passed["logits"] for passed in first]
    assert [one == other for one, other in itertools.pairwise(logits)] == [True, False, True, False, True]
    is_open = torch.tensor(logits[-1]["decoder"]) > 0
    assert bool((is_open[0] != is_open[1]).all())
    hard = {sample for passed in first[2:] for row in passed["samples"]["decoder"] for sample in row}
    assert hard == {0.0, 1.0}


def assert_alike(ours: Path, theirs: Path) -> None:
    """Losses, norms of gradients and validations, which are all that is in the log, and weights at the end."""
    for name in ("loss", "valid_nll"):
        one, other = lines(ours, name), lines(theirs, name)
        assert len(one) == len(other) > 0
        for line, expected in zip(one, other, strict=True):
            assert line.keys() == expected.keys()
            assert line == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert any(line["gradient_norm"] > CLIP for line in lines(ours, "loss"))
    weights, expected = (load_file(run / "model.safetensors") for run in (ours, theirs))
    assert weights.keys() == expected.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], expected[name], rtol=1e-3, atol=1e-4, msg=name)


def assert_is_whole(folder: Path) -> None:
    """The run loads as any other does, and the loss is that of the last validation."""
    run = load_run(folder, device="cpu")
    totals = validate(run.task, run.model, run.task.examples("valid"), batch_tokens=run.task.tokens_at_once)
    found, last = validation_metrics(run.task, [totals]), lines(folder, "valid_nll")[-1]
    assert found["nll"] == pytest.approx(last["valid_nll"], rel=1e-5)
    assert load_file(folder / "model.safetensors")[LOGITS].shape == (2, 3)
    assert [path.name for path in checkpoints(folder)] == [f"checkpoint-{UPDATES}"]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_of_zeros_is_none_at_all(kind: str) -> None:
    """A parameter that has had no gradient yet learns from its first one as if nobody had given it a state."""
    found = []
    for begins in (False, True):
        params = [nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([[3.0], [4.0]]))]
        frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        optimizer = OPTIMIZERS[kind]([*params, frozen], lr=0.1, weight_decay=0.1)
        begin_states(optimizer)
        assert not optimizer.state
        for update in range(4):
            params[0].grad = torch.tensor([0.3, 0.1 * update])
            params[1].grad = torch.tensor([[0.2], [-0.5]]) if update > 1 else None
            optimizer.step()
            if begins and update == 1:
                begin_states(optimizer)
                assert params[1] in optimizer.state
                assert frozen not in optimizer.state
        found.append(params)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
