"""Recorded passes: the padding that makes them possible, and that they give what plain ones do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.tasks import open_task
from depthwise.tasks.base import GRAPH_LENGTHS
from depthwise.training import graphs
from depthwise.training.meters import Meter
from depthwise.training.run import train
from depthwise.training.stream import BatchStream, EpochRows

from .conftest import recipe_of
from .recording import Recorder


def still(options: dict[str, Any]) -> dict[str, Any]:
    """The same without anything drawn at random in the model."""
    sides = {side: {**options["model"][side], "dropout": 0.0, "dropconnect": 0.0} for side in ("encoder", "decoder")}
    return {**options, "model": {**options["model"], **sides}}


def losses_of(run: Path) -> list[float]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in found if "loss" in line]


def test_lengths_are_multiples(translation: dict[str, Any], tmp_path: Path) -> None:
    task = open_task(recipe_of(translation, graphs=True), tmp_path)
    store = task.examples("train")
    stream, rows = iter(BatchStream(task.batches(store))), EpochRows(store, task)
    for _ in range(10):
        batch = rows.collate([rows[key] for key in next(stream)])
        for value in batch.values():
            assert value.shape[1] % GRAPH_LENGTHS == 0
            assert value.numel() <= 96


def test_padding_changes_no_loss(translation: dict[str, Any], tmp_path: Path) -> None:
    task = open_task(recipe_of(still(translation), graphs=True), tmp_path)
    store, model = task.examples("train"), task.new_model().eval()
    batch = task.collate([store[index] for index in range(5)])
    longer = task.padded(batch)
    assert longer["labels"].shape[1] > batch["labels"].shape[1]
    assert task.num_items(longer) == task.num_items(batch)
    with torch.no_grad():
        ours, theirs = (task.losses(model, some, 7) for some in (longer, batch))
    torch.testing.assert_close(ours.loss, theirs.loss)
    torch.testing.assert_close(ours.totals["nll"], theirs.totals["nll"])


class Square:
    """A pass over two parameters, the second of which some batches leave out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.params = [torch.nn.Parameter(torch.tensor(value)) for value in (2.0, 5.0)]
        self.num_runs, self.uses_both = 0, False
        self.recorder = Recorder(monkeypatch)
        self.passes = graphs.RecordedPasses(self.run, self.params)
        self.recorder.serve(self.passes)

    def run(self, batch: dict[str, torch.Tensor], num_items: torch.Tensor) -> graphs.Losses:
        self.num_runs += 1
        loss = (self.params[0] * batch["x"]).sum() / num_items
        if self.uses_both:
            loss = loss + self.params[1]
        loss.backward()
        return graphs.Losses(loss, {"sum": batch["x"].sum()})

    def __call__(self, values: list[float], num_items: int = 1) -> torch.Tensor:
        """The gradient after one more pass."""
        self.passes({"x": torch.tensor(values)}, torch.tensor(num_items))
        assert self.params[0].grad is not None
        return self.params[0].grad

    def update(self) -> None:
        for param in self.params:
            param.grad = None


def test_the_third_batch_of_a_shape_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    square = Square(monkeypatch)
    found = []
    for values, num_items in [([1.0], 1), ([2.0], 1), ([3.0, 1.0], 1), ([4.0], 1), ([5.0], 2), ([6.0], 3)]:
        found.append(float(square(values, num_items)))
        square.update()
    assert found == [1, 2, 4, 4, 2.5, 2]
    assert square.recorder.num_recorded == 1


def test_gradients_keep_their_place_and_add_up_within_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    square = Square(monkeypatch)
    place = square([1.0])
    assert float(square([2.0])) == 3
    assert float(square([4.0])) == 7
    assert float(square([8.0])) == 15  # the third that adds: recorded and repeated, once
    assert square.recorder.num_recorded == 1
    square.update()
    assert square([8.0]) is place
    assert float(square([16.0])) == 24
    square.update()
    assert float(square([32.0])) == 32  # the third that begins an update
    assert square.recorder.num_recorded == 2
    assert float(square([64.0])) == 96
    assert square([1.0]) is place
    square.update()
    assert float(square([1.0, 1.0])) == 2
    assert square.params[1].grad is None


def test_parameters_that_join_later_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    square = Square(monkeypatch)
    for _ in range(2):
        square([1.0])
        square.update()
    square.uses_both = True
    with pytest.raises(AssertionError, match="all batches"):
        square([1.0])


def test_sums_outlive_what_a_repetition_overwrites() -> None:
    meter, total = Meter(torch.device("cpu")), torch.tensor(2.0, dtype=torch.float64)
    meter.add({"sum": total}, 1)
    total.fill_(5.0)
    meter.add({"sum": total}, 1)
    assert meter.sums() == {"sum": 7.0}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_repeated_passes_are_plain_passes(
    translation: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, accumulate: int
) -> None:
    options = {"graphs": True, "precision": precision, "accumulate": accumulate, "max_updates": 40, "log_every": 1}
    recipe = recipe_of(still(translation), **options, clip_norm=1.0)
    num_recorded = 0
    original = graphs.RecordedPasses._record

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal num_recorded
        num_recorded += 1
        return original(*arguments, **options)

    monkeypatch.setattr(graphs.RecordedPasses, "_record", counted)
    train(recipe, tmp_path / "recorded")
    assert num_recorded > 1
    monkeypatch.setattr(graphs, "NUM_PLAIN", 10**9)
    train(recipe, tmp_path / "plain")
    assert losses_of(tmp_path / "recorded") == pytest.approx(
        losses_of(tmp_path / "plain"), rel=1e-3 if precision == "fp32" else 5e-2
    )


@pytest.mark.gpu
def test_every_repetition_draws_anew() -> None:
    """Dropout in a recorded pass is not the one that was drawn when it was recorded."""
    param = torch.nn.Parameter(torch.ones(1000, device="cuda"))

    def run(batch: dict[str, torch.Tensor], num_items: torch.Tensor) -> graphs.Losses:
        loss = torch.nn.functional.dropout(param * batch["x"], 0.5).sum() / num_items
        loss.backward()
        return graphs.Losses(loss, {})

    passes = graphs.RecordedPasses(run, [param])
    drawn = []
    for _ in range(6):
        param.grad = None
        passes({"x": torch.ones(1000, device="cuda")}, torch.tensor(1, device="cuda"))
        assert param.grad is not None
        drawn.append(param.grad.clone())
    assert all(not torch.equal(drawn[-1], other) for other in drawn[:-1])
    assert all(set(one.tolist()) == {0.0, 2.0} for one in drawn)
