"""Whether a pass can be recorded, found out without a GPU: what it asks of a device that holds no values."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from depthwise.config import Recipe
from depthwise.tasks import Losses, Task, open_task
from depthwise.training.latent import LatentSteps
from depthwise.training.stream import BatchStream, EpochRows
from depthwise.training.structure import StructureSteps
from depthwise.training.teacher import TeacherSteps, open_teacher
from depthwise.training.trainer import DepthwiseTrainer

META = torch.device("meta")
"""Whoever looks at values of its tensors fails."""
MAKERS = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
"""What copies a value of Python to the device, which has to wait for that."""

Work = list[tuple[str, tuple[torch.Size, ...]]]


class _NothingIsCopied(TorchFunctionMode):
    """Numbers and lists of Python stay there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in MAKERS and found.device == META:
            data = args[0] if func is not torch.Tensor.new_tensor else args[1]
            assert isinstance(data, torch.Tensor), f"{data} is copied to the device within a pass"
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else args[1:2]
            assert not any(isinstance(part, list) for part in index), f"{args[1]} is copied to the device within a pass"
        return found


class _Operators(TorchDispatchMode):
    """All that the device is told to do, with shapes; values of the host have no part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.work: Work = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.device == META for tensor in tensors):
            assert all(tensor.device == META for tensor in tensors), f"{func} reads from the host within a pass"
            self.work.append((str(func), tuple(tensor.shape for tensor in tensors)))
        return found


def work_of(run: Callable[[], Losses]) -> Work:
    """What a pass and the way back through it do on the device; an error where they wait for it."""
    with _NothingIsCopied(), _Operators() as seen:
        run().loss.backward()
    return seen.work


class Passes:
    """The passes of a recipe's training over its own batches, as the trainer makes them, on a device without values."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.task: Task = open_task(recipe, folder)
        with META:
            self.model = self.task.new_model().train()
        self.trainer = SimpleNamespace(
            task=self.task,
            latent=LatentSteps(self.task, self.model, folder),
            structure=StructureSteps(self.task, self.model),
            teacher=TeacherSteps(open_teacher(self.task), META),
            args=SimpleNamespace(gradient_accumulation_steps=1, world_size=1),
        )
        self._update = 0

    def batch(self) -> dict[str, torch.Tensor]:
        """The first one of training, on the host."""
        examples = self.task.examples("train")
        rows = EpochRows(examples, self.task)
        return rows.collate([rows[key] for key in next(iter(BatchStream(self.task.batches(examples))))])

    def __call__(self, batch: dict[str, torch.Tensor]) -> Losses:
        """The next pass."""
        return self._prepared(batch)()

    def work(self, batch: dict[str, torch.Tensor]) -> Work:
        """What the next pass does."""
        return work_of(self._prepared(batch))

    def _prepared(self, batch: dict[str, torch.Tensor]) -> Callable[[], Losses]:
        """A pass whose batch is where it is to be, as is all that changes from update to update."""
        self.task.advance(self._update, 10, META)
        self._update += 1
        self.model.zero_grad()
        there, num_items = {name: value.to(META) for name, value in batch.items()}, torch.tensor(7).to(META)
        losses: Callable[..., Losses] = DepthwiseTrainer._losses
        return lambda: losses(self.trainer, self.model, there, num_items)


def assert_recordable(recipe: Recipe, folder: Path) -> None:
    """Passes over the same batch do the same work and never wait: all but the first, which are never recorded."""
    passes = Passes(recipe, folder)
    batch = passes.batch()
    passes(batch)
    assert passes.work(batch) == passes.work(batch)
