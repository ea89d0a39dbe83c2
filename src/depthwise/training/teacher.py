"""What the trainer does for learning from another run: that run's scores of every batch, beside the batch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from depthwise.config.parsing import shown
from depthwise.data.building import tokenizer_identity
from depthwise.errors import CheckpointError
from depthwise.evaluation.runs import load_model
from depthwise.models.exits import HasExits
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Tensor
from depthwise.tasks import Tagging, Task, TextClassification, load_task
from depthwise.tasks.build import run_recipe
from depthwise.tasks.encoding import inputs_in, least
from depthwise.tasks.teaching import TEACHER
from depthwise.tasks.word_depths import WordDepthTask

OPTION = "training.teacher.run"


class TeacherSteps:
    """Nothing at all without a teacher, which is no part of the model that is trained, nor of its checkpoints.

    It runs as in evaluation, all blocks for all tokens, and draws nothing; in the precision of training: within
    ``autocast``, or in ``half`` precision throughout, as the passes beside it.
    """

    def __init__(
        self,
        model: PreTrainedModel | None,
        device: torch.device,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        half: torch.dtype | None = None,
    ) -> None:
        self._autocast = autocast if half is None else nullcontext
        self._model: nn.Module | None = None
        if model is not None:
            self._model = model.eval().requires_grad_(False).to(device=device, dtype=half)

    @torch.no_grad()
    def beside(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch with what the teacher says of it. Depths in it are those of the student's words."""
        if self._model is None:
            return batch
        inputs = {name: value for name, value in inputs_in(batch).items() if name != "depths"}
        with self._autocast():
            return {**batch, TEACHER: self._model(**inputs).logits}


def open_teacher(task: Task) -> DepthwisePreTrainedModel | None:
    """The model that a recipe names as its teacher, once it is clear that it can teach this task's batches."""
    options = task.recipe.training.teacher
    if options is None:
        return None
    folder = Path(options.run)
    kind = run_recipe(folder).task
    if kind != task.kind:
        raise CheckpointError(f"{folder} has learned {kind} and cannot teach {task.kind}; give {OPTION} a run of that")
    teacher = load_task(folder)
    _check(teacher, task, folder)
    model = load_model(teacher, folder, torch.device("cpu"))
    if isinstance(model, HasExits):
        model.exit_heads = nn.ModuleDict()  # nobody leaves, and to ask who did would wait for the device
    return model


def _check(teacher: Task, task: Task, folder: Path) -> None:
    """Refuse a teacher that would see other tokens, or speak of other labels."""
    if tokenizer_identity(teacher.tokenizers.source) != tokenizer_identity(task.tokenizers.source):
        raise CheckpointError(
            f"{folder} has another tokenizer than the model it is to teach; set tokenizer.path={folder}"
        )
    assert isinstance(teacher, TextClassification | Tagging)
    assert isinstance(task, TextClassification | Tagging)
    if teacher.label_names != task.label_names:
        theirs, ours = shown(teacher.label_names), shown(task.label_names)
        raise CheckpointError(
            f"{folder} has learned the labels {theirs}, but the training data has {ours}; give {OPTION} a run with the "
            "same labels in the same order"
        )
    if isinstance(teacher, WordDepthTask) and teacher.word_options is not None:
        raise CheckpointError(
            f"the words of {folder} have depths of their own, which these batches do not carry; give {OPTION} a run in "
            "which all words run all blocks"
        )
    if task.num_inputs == 2 and (teacher.options.token_types > 1) != (task.options.token_types > 1):
        raise CheckpointError(
            f"only one of {folder} and the model it is to teach tells the texts of a pair apart by token types; give "
            "both the same model.token_types"
        )
    multiple, cut = task.length_multiple, task.recipe.data.max_tokens
    longest = least(None if cut is None else -(cut // -multiple) * multiple, task.max_tokens)
    most = teacher.max_tokens
    if most is not None and (longest is None or longest > most):
        raise CheckpointError(
            f"{folder} can take {most} tokens of a text, and batches may have more; set "
            f"data.max_tokens={most // multiple * multiple}"
        )
