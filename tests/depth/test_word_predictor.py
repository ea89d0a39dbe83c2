"""A predictor of depths: its arithmetic, and its file, which is refused where it does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from depthwise.config import WordDepthsConfig
from depthwise.depth.word_predictor import (
    FILE,
    DistilledDepths,
    WordPredictor,
    load_predictor,
    predictor_of_run,
    save_predictor,
)
from depthwise.errors import CheckpointError

OPTIONS = WordDepthsConfig(estimator="reconstruction_predictor", run="runs/masked")


def made(num_layers: int = 4, **changes: Any) -> DistilledDepths:
    torch.manual_seed(1)
    predictor = WordPredictor(20, 6, num_layers).eval()
    about = {"options": OPTIONS, "tokenizer": "digest", "held_out": {"agreement": 0.5, "words": 12.0}, **changes}
    return DistilledDepths(predictor, **about)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Two texts of three and one word; the second piece of the first text is of no word."""
    ids = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 0, 0, 0]])
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    return ids, valid, torch.tensor([0, 4, 1, 1, 2, 3, 3]), 4


def test_words_are_means_of_their_pieces() -> None:
    predictor, (ids, valid, words, num_words) = made().predictor, batch()
    scores = predictor(ids, valid, words, num_words)
    first = torch.nn.functional.gelu(predictor.conv(predictor.embedding(ids[:1]).transpose(1, 2)))[0].t()
    wanted = predictor.out(torch.stack([first[0], (first[2] + first[3]) / 2, first[4]]))
    torch.testing.assert_close(scores[:3], wanted)
    alone = predictor(ids[1:, :2], valid[1:, :2], torch.tensor([0, 0]), 1)
    torch.testing.assert_close(scores[3:], alone)  # neither padding nor the other text has a part in it
    changed = ids.clone()
    changed[0, 0] = 11
    assert not torch.allclose(predictor(changed, valid, words, num_words)[1], scores[1])  # neighbours have


def test_depths_and_losses_are_ordinal() -> None:
    predictor = made().predictor
    scores = torch.tensor([[9.0, 9.0, 9.0], [9.0, -9.0, -9.0], [-9.0, -9.0, -9.0], [9.0, 9.0, -9.0]])
    assert predictor.depths(scores).tolist() == [4, 2, 1, 3]
    right = predictor.loss(scores, torch.tensor([4, 2, 1, 3]))
    near, far = (predictor.loss(scores[:1], torch.tensor([depth])) for depth in (3, 1))
    assert right < 0.01
    assert far == pytest.approx(3 * near.item(), rel=1e-3)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    distilled = made()
    save_predictor(distilled, tmp_path / FILE)
    found = predictor_of_run(tmp_path, tokenizer="digest", num_layers=4)
    assert (found.options, found.tokenizer, found.held_out) == (OPTIONS, "digest", distilled.held_out)
    assert found.digest == distilled.digest
    assert torch.equal(found.predictor(*batch()), distilled.predictor(*batch()))
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_digests_tell_predictors_apart() -> None:
    distilled, other = made(), made()
    assert distilled.digest == other.digest
    with torch.no_grad():
        other.predictor.out.bias[0] += 1
    assert distilled.digest != other.digest
    assert distilled.digest != made(tokenizer="another").digest


def test_for_something_else(tmp_path: Path) -> None:
    save_predictor(made(), tmp_path / FILE)
    with pytest.raises(CheckpointError, match=r"safetensors was made for another tokenizer; use the run's own"):
        predictor_of_run(tmp_path, tokenizer="other", num_layers=4)
    with pytest.raises(CheckpointError, match=r"was made for 4 layers, but the model has 6; train again"):
        predictor_of_run(tmp_path, tokenizer="digest", num_layers=6)
    with pytest.raises(
        CheckpointError, match=r"has no word-depths\.safetensors, by which its words run; copy or train"
    ):
        predictor_of_run(tmp_path / "nowhere", tokenizer="digest", num_layers=4)


@pytest.mark.parametrize("damage", ["cut", "format", "metadata", "layers", "weight", "shape", "nan", "options"])
def test_damaged_files(tmp_path: Path, damage: str) -> None:
    path = tmp_path / FILE
    save_predictor(made(), path)
    weights = load_file(path)
    about = {"num_layers": 4, "tokenizer": "digest", "options": {"estimator": "frequency"}, "held_out": {}}
    metadata: dict[str, str] | None = {"format": "1", "word_depths": json.dumps(about)}
    assert metadata is not None
    if damage == "format":
        metadata["format"] = "2"
    elif damage == "metadata":
        metadata = None
    elif damage == "layers":
        metadata["word_depths"] = json.dumps({**about, "num_layers": 5})
    elif damage == "options":
        metadata["word_depths"] = json.dumps({**about, "options": {"nothing": 1}})
    elif damage == "weight":
        del weights["out.bias"]
    elif damage == "shape":
        weights["conv.weight"] = weights["conv.weight"][:3].clone()
    elif damage == "nan":
        weights["out.bias"][0] = float("nan")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        save_file(weights, path, metadata=metadata)
    told = "cannot be read: " if damage == "cut" else "is damaged or of another version; copy or train the run again"
    with pytest.raises(CheckpointError, match=told):
        load_predictor(path)
