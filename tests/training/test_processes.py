"""Several processes train the model that one would have trained."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from depthwise.config import Recipe, recipe_yaml
from depthwise.errors import BackendUnavailable
from depthwise.training.checkpoints import checkpoints
from depthwise.training.run import train

from .conftest import PATIENCE, await_checkpoint, recipe_of

LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(recipe: Recipe, folder: Path) -> subprocess.Popen[str]:
    path = folder.with_suffix(".yaml")
    path.write_text(recipe_yaml(recipe))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *LAUNCH, "-m", "depthwise", "train", str(path), "--out", str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, start_new_session=True
    )


def train_together(recipe: Recipe, folder: Path) -> str:
    process = start(recipe, folder)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return output


def lines(run: Path, name: str = "loss") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if name in line]


def still(options: dict[str, Any], **training: Any) -> Recipe:
    """Nothing drawn, so that runs can be compared."""
    encoder = {**options["model"]["encoder"], "dropout": 0.0, "dropconnect": 0.0}
    return recipe_of({**options, "model": {**options["model"], "encoder": encoder}}, **training)


def test_two_processes_are_one_with_twice_the_batches(classification: dict[str, Any], tmp_path: Path) -> None:
    """The same global batches give the same losses, and an epoch has every example once."""
    rows = {"batch_tokens": None, "batch_rows": 15, "log_every": 1, "max_updates": 8}  # an epoch is 8 batches
    output = train_together(still(classification, **rows, validate_every=4), tmp_path / "two")
    assert output.count("trained in") == 1  # one process speaks for both
    train(still(classification, **rows, validate_every=4, accumulate=2), tmp_path / "one")
    two, one = lines(tmp_path / "two"), lines(tmp_path / "one")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-4)
    assert [line["num_items"] for line in two] == [30] * 8
    ours, theirs = (load_file(tmp_path / run / "model.safetensors") for run in ("two", "one"))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)
    valid = [[line["valid_loss"] for line in lines(tmp_path / run, "valid_loss")] for run in ("two", "one")]
    assert valid[0] == pytest.approx(valid[1], rel=1e-3)


def test_an_uneven_epoch_and_a_resumption_alone(classification: dict[str, Any], tmp_path: Path) -> None:
    """Five batches for two processes: no example is lost or counted twice; then one process goes on."""
    rows = {"batch_tokens": None, "batch_rows": 25, "log_every": 1, "validate_every": 3}
    train_together(still(classification, **rows, max_updates=4), tmp_path / "run")
    assert sum(line["num_items"] for line in lines(tmp_path / "run")[:3]) == 120  # an epoch in three updates
    train(still(classification, **rows, max_updates=7), tmp_path / "run")
    found = lines(tmp_path / "run")
    assert [line["update"] for line in found] == list(range(1, 8))
    assert sum(line["num_items"] for line in found[3:]) == 120  # the second in one of two processes and three of one
    assert found[-1]["epoch"] == 2.0


def test_a_signal_stops_all_of_them_at_the_same_update(classification: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_of(classification, max_updates=100_000, validate_every=100_000, save_every=20)
    process = start(recipe, tmp_path / "run")
    await_checkpoint(process, tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert "the same command goes on from there" in output, errors
    last = checkpoints(tmp_path / "run")[-1]
    assert {path.name for path in last.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}


def test_sharding_without_gpus_is_refused(classification: dict[str, Any], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(BackendUnavailable, match="sharded training needs GPUs"):
        train(recipe_of(classification, shard=True), tmp_path / "run")


SHARDED = """
import os
from pathlib import Path
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from depthwise.config import ModelConfig, StackConfig
from depthwise.depth import Plan
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
side = StackConfig(num_layers=3, num_heads=2, ffn_width=16, mixer="dynamicconv", kernel_sizes=(3,), dropout=0.0)
options = ModelConfig(vocab_size=20, width=8, encoder=side, decoder=side)
torch.manual_seed(0)
plain = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(options))
torch.manual_seed(0)
model = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(options))
for stack in (model.model.encoder.stack, model.model.decoder.stack):
    for block in stack.layers:
        fully_shard(block)
fully_shard(model)
assert all(isinstance(param, DTensor) for param in model.parameters())
assert all(param.to_local().numel() < param.numel() for param in model.parameters() if param.shape[0] > 1)
source, target = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 1]]), torch.tensor([[4, 5, 2], [6, 2, -100]])
# Half of the processes skip layers that the other half runs: nobody may wait for the other.
depths = torch.full((2, 3), 1 if rank == 0 else 3)
for one in (plain, model):
    one(input_ids=source, labels=target, plan=Plan.of_depths(depths, num_layers=3)).loss.backward()
for (name, param), (_, whole) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
    grad = torch.zeros_like(whole) if whole.grad is None else whole.grad.clone()
    torch.distributed.all_reduce(grad)
    torch.testing.assert_close(param.grad.full_tensor(), grad / 2, msg=name)
Path(__file__).with_name(f"equal{rank}").touch()
torch.distributed.barrier()
os._exit(0)  # threads of gloo that are still there now and then abort a process that ends in the usual way
"""


def test_sharded_parameters_give_the_gradients_of_whole_ones(tmp_path: Path) -> None:
    (tmp_path / "sharded.py").write_text(SHARDED)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *LAUNCH, str(tmp_path / "sharded.py")],
        capture_output=True, text=True, timeout=PATIENCE, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.glob("equal*")} == {"equal0", "equal1"}
