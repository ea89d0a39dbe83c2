"""Means of checkpoints: exact where they agree, right where they do not, and clear about what does not fit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from depthwise.errors import CheckpointError
from depthwise.training import average_weights, last_checkpoints, write_average

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def weights(seed: int) -> dict[str, Tensor]:
    """Tensors of all kinds that a checkpoint may hold."""
    generator = torch.Generator().manual_seed(seed)
    floats = {str(dtype): torch.randn(3, 5, generator=generator, dtype=torch.float64).to(dtype) for dtype in DTYPES}
    scalar = torch.randn((), generator=generator)
    return {**floats, "scalar": scalar, "steps": torch.tensor([seed]), "mask": torch.tensor([True, seed > 0])}


def save(folder: Path, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_shards(folder: Path, tensors: dict[str, Tensor], num_shards: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{number + 1:05}-of-{num_shards:05}.safetensors" for number in range(num_shards)]
    places = {name: names[index % num_shards] for index, name in enumerate(tensors)}
    for file in names:
        save_file({name: tensors[name] for name, place in places.items() if place == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def bits(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_the_mean_of_identical_checkpoints_is_that_checkpoint(tmp_path: Path, count: int) -> None:
    """Bit for bit, for numbers at the edges of their types too."""
    tensors = weights(1)
    for dtype in DTYPES:
        extremes = [0.0, -0.0, torch.inf, -torch.inf, torch.finfo(dtype).max, torch.finfo(dtype).tiny, 0.1, -1 / 3]
        tensors[f"extremes {dtype}"] = torch.tensor(extremes, dtype=dtype)
    paths = [save(tmp_path / str(number), tensors) for number in range(count)]
    mean = average_weights(paths)
    assert mean.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert mean[name].dtype == tensor.dtype
        assert mean[name].shape == tensor.shape
        assert bits(mean[name]) == bits(tensor), name


def test_the_mean_of_different_checkpoints(tmp_path: Path) -> None:
    every = [weights(seed) for seed in range(3)]
    mean = average_weights([save(tmp_path / str(number), tensors) for number, tensors in enumerate(every)])
    for name in (*map(str, DTYPES), "scalar"):
        exact = torch.stack([tensors[name].double() for tensors in every]).mean(0)
        assert torch.equal(mean[name], exact.to(every[0][name].dtype)), name
    assert mean["steps"].tolist() == [2]
    assert mean["mask"].tolist() == [True, True]


def test_sums_are_wider_than_the_weights(tmp_path: Path) -> None:
    """In half precision 60,000 twice is infinite, and small differences vanish beside large sums."""
    values = [torch.tensor([60_000.0, 1.0]), torch.tensor([60_000.0, 1.0]), torch.tensor([59_968.0, 1.0])]
    paths = [save(tmp_path / str(number), {"w": value.half()}) for number, value in enumerate(values)]
    assert average_weights(paths)["w"].tolist() == [60_000.0, 1.0]


def test_shards_and_single_files_mix(tmp_path: Path) -> None:
    first, second = weights(1), weights(2)
    expected = average_weights([save(tmp_path / "a", first), save(tmp_path / "b", second)])
    for paths in (
        [save_shards(tmp_path / "c", first), tmp_path / "b"],
        [tmp_path / "a", save_shards(tmp_path / "d", second, 3)],
        [tmp_path / "c", tmp_path / "d"],
        [tmp_path / "a" / "model.safetensors", str(tmp_path / "d")],
    ):
        mean = average_weights(paths)
        assert mean.keys() == expected.keys()
        assert all(torch.equal(mean[name], expected[name]) for name in expected)


def test_written_as_one_file(tmp_path: Path) -> None:
    paths = [save_shards(tmp_path / str(seed), weights(seed)) for seed in (1, 2)]
    written = write_average(paths, tmp_path / "deep" / "mean")
    assert written == tmp_path / "deep" / "mean" / "model.safetensors"
    assert [path.name for path in written.parent.iterdir()] == ["model.safetensors"]
    expected = average_weights(paths)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_file(written).items())
    with safe_open(written, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert written.stat().st_mode == (paths[0] / "model-00001-of-00002.safetensors").stat().st_mode


def test_a_checkpoint_may_be_replaced_by_the_mean(tmp_path: Path) -> None:
    paths = [save(tmp_path / str(seed), weights(seed)) for seed in (1, 2)]
    expected = average_weights(paths)
    write_average(paths, paths[1])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in average_weights([paths[1]]).items())


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(tmp_path / str(seed), weights(seed)) for seed in (1, 2)]
    before = (paths[0] / "model.safetensors").read_bytes()

    def disk_full(tensors: object, filename: Path, metadata: object) -> None:
        Path(filename).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("depthwise.training.averaging.save_file", disk_full)
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be written: .*No space left on device; make"):
        write_average(paths, paths[0])
    assert (paths[0] / "model.safetensors").read_bytes() == before
    assert [path.name for path in paths[0].iterdir()] == ["model.safetensors"]


def test_writing_where_a_file_is(tmp_path: Path) -> None:
    path = save(tmp_path / "a", weights(1))
    with pytest.raises(CheckpointError, match=r"model.safetensors/model.safetensors cannot be written"):
        write_average([path], path / "model.safetensors")


def test_shards_are_not_replaced(tmp_path: Path) -> None:
    path = save_shards(tmp_path / "a", weights(1))
    with pytest.raises(CheckpointError, match="a holds a model in shards, which the mean does not replace"):
        write_average([path], path)


def test_the_last_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-20", "checkpoint-x", "best", "old-checkpoint-500"):
        (tmp_path / name).mkdir()
    assert [path.name for path in last_checkpoints(tmp_path, 2)] == ["checkpoint-20", "checkpoint-100"]
    assert len(last_checkpoints(tmp_path, 3)) == 3
    with pytest.raises(CheckpointError, match=r"holds 3 checkpoints, not the 4 to be averaged; give fewer$"):
        last_checkpoints(tmp_path, 4)
    with pytest.raises(CheckpointError, match=r"^the mean of 0 checkpoints is not defined; give 1 or more$"):
        last_checkpoints(tmp_path, 0)


@pytest.mark.parametrize("swapped", [False, True])
def test_missing_names(tmp_path: Path, swapped: bool) -> None:
    paths = [
        save(tmp_path / "a", {"w": torch.ones(1), "extra": torch.ones(1)}),
        save(tmp_path / "b", {"w": torch.ones(1)}),
    ]
    with pytest.raises(CheckpointError, match=r"/b has no tensor extra, which .*/a/model.safetensors has$"):
        average_weights(paths[::-1] if swapped else paths)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (torch.ones(3, 2), r"^w has shape \[2, 3\] in .*/a/model.safetensors but shape \[3, 2\] in .*/b/model.saf"),
        (torch.ones(2, 3).half(), "^w has type F32 in .*/a/model.safetensors but type F16 in .*/b/model.safetensors$"),
    ],
)
def test_tensors_that_differ(tmp_path: Path, other: Tensor, message: str) -> None:
    paths = [save(tmp_path / "a", {"w": torch.ones(2, 3)}), save(tmp_path / "b", {"w": other})]
    with pytest.raises(CheckpointError, match=message):
        average_weights(paths)


def test_nothing_to_average(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^there are no checkpoints to average; name at least one$"):
        average_weights([])
    with pytest.raises(
        CheckpointError, match=r"holds neither model.safetensors nor model.safetensors.index.json; name the "
    ):
        average_weights([tmp_path])
    with pytest.raises(CheckpointError, match="nowhere cannot be read as safetensors"):
        average_weights([tmp_path / "nowhere"])


def test_damaged_files(tmp_path: Path) -> None:
    path = save(tmp_path / "a", weights(1)) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"/a/model.safetensors cannot be read as safetensors"):
        average_weights([tmp_path / "a"])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_damaged_indices(tmp_path: Path, text: str) -> None:
    folder = save_shards(tmp_path / "a", weights(1))
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index.json does not say which shard holds which tensor"):
        average_weights([folder])


def test_indices_that_lie(tmp_path: Path) -> None:
    folder = save_shards(tmp_path / "a", {"x": torch.ones(1), "y": torch.ones(1)})
    index, first = folder / "model.safetensors.index.json", "model-00001-of-00002.safetensors"
    index.write_text(json.dumps({"weight_map": {"x": first, "y": first}}))
    with pytest.raises(CheckpointError, match=f"{first} has no tensor y, which .*index.json says it has$"):
        average_weights([folder])
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone.safetensors cannot be read as safetensors"):
        average_weights([folder])
    index.write_text(json.dumps({"weight_map": {"x": f"../a/{first}"}}))
    with pytest.raises(CheckpointError, match=r"which is not a file of its own folder$"):
        average_weights([folder])
