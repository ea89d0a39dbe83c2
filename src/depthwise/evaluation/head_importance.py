"""How much the heads of a run matter to what it has learned: by its training data."""

from collections.abc import Iterable, Iterator

from torch.utils.data import DataLoader

from depthwise.data.progress import shown
from depthwise.models.head_pruning import HeadImportance, Importance
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Tensor
from depthwise.tasks import Task

TRAINING = "train"


def head_importance(task: Task, model: DepthwisePreTrainedModel, num_examples: int) -> Importance:
    """The importance of every head for the loss of so many training examples, those that an epoch begins with."""
    found, store = HeadImportance(model), task.examples(TRAINING)
    task.set_epoch(store, 0)
    batches = list(_first(task.batches(store), num_examples))
    model.eval()
    loader: Iterable[dict[str, Tensor]] = DataLoader(store, batch_sampler=batches, collate_fn=task.collate)  # type: ignore[arg-type]
    for batch in shown(loader, "judging heads", len(batches)):
        on_device = {name: value.to(model.device) for name, value in batch.items()}
        found.add(lambda inputs=on_device: task.losses(model, inputs, 1).loss)  # type: ignore[misc]
    return found.normalized


def _first(batches: Iterable[list[int]], num_examples: int) -> Iterator[list[int]]:
    """Batches until there are so many examples, the last of them cut."""
    left = num_examples
    for batch in batches:
        if left <= 0:
            return
        yield batch[:left]
        left -= len(batch)
