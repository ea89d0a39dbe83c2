"""One temperature for each exit, so that it is as sure as it is right (Guo et al. 2017).

Exits are sure of themselves to different degrees: at the same probability the first may be right less often than the
fifth. With T_n that minimises the negative log-likelihood of softmax(z_n / T_n) on validation data, one threshold means
about the same at all of them.
"""

import math
from typing import Any

import torch

from depthwise.data import BatchOptions
from depthwise.data.collate import IGNORED
from depthwise.depth import Policy
from depthwise.depth.policy import State, Visit
from depthwise.errors import InputError
from depthwise.evaluation.runs import Run, by_policy
from depthwise.models.exits import HasExits
from depthwise.shapes import Bool, Float, Int, Tensor
from depthwise.tasks import LanguageModeling, MaskedLanguageModeling, QuestionAnswering, TextClassification

TEMPERATURES = tuple(math.exp(math.log(4) * step / 16) for step in range(-16, 17))
"""From a quarter to four, each a twelfth above the one before."""
MOST_LABELS = 4096
"""Labels that temperatures are fitted on; each costs a softmax for every temperature and exit."""


class _Listener(Policy):
    """Lets nobody leave and sums up, at every exit but the last, what each temperature would have cost."""

    needs_training = False

    def __init__(self, num_exits: int) -> None:
        super().__init__()
        self.sums = torch.zeros(num_exits, len(TEMPERATURES), dtype=torch.float64)
        self.labels: Int[Tensor, "B T"] | None = None

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        assert self.labels is not None
        counted = self.labels != IGNORED
        scores, labels = visit.log_prob[counted].float(), self.labels[counted].unsqueeze(-1)
        for place, temperature in enumerate(TEMPERATURES):
            self.sums[visit.index, place] += float(_nll(scores / temperature, labels))
        return torch.zeros(visit.hidden.shape[:2], dtype=torch.bool, device=visit.hidden.device), state


def _nll(scores: Float[Tensor, "N V"], labels: Int[Tensor, "N 1"]) -> Float[Tensor, ""]:
    return (scores.logsumexp(-1) - scores.gather(-1, labels).squeeze(-1)).double().sum()


@torch.no_grad()
def fitted_temperatures(run: Run, split: str = "valid") -> tuple[float, ...]:
    """The temperature of every exit but the last, on a split of the run's data; its own policy stays as it is."""
    task, model = run.task, run.model
    exits = model.config.options.exit_depths
    if model.config.exits is None:
        raise InputError(f"{run.folder} has no exits to leave at; train a run with model.exits")
    is_number = isinstance(task, TextClassification) and task.is_regression
    if is_number or isinstance(task, QuestionAnswering | MaskedLanguageModeling):
        raise InputError(f"exits of {task.kind} give no probabilities of one label; leave --temperatures out")
    store, listener = task.examples(split), _Listener(len(exits) - 1)
    assert isinstance(model, HasExits)
    model.use_policy(listener)
    num_labels = 0
    try:
        for batch in task.batches_of(store, BatchOptions(max_tokens=task.tokens_at_once)):
            inputs = {name: value.to(model.device) for name, value in task.collate([store[i] for i in batch]).items()}
            listener.labels = _aligned(task, inputs["labels"])
            model(**inputs)
            num_labels += int((listener.labels != IGNORED).sum())
            if num_labels >= MOST_LABELS:
                break
    finally:
        by_policy(run, run.policy)
    if not num_labels:
        raise InputError(f"the {split} data has no labels to fit temperatures on; leave --temperatures out")
    return tuple(round(TEMPERATURES[int(place)], 4) for place in listener.sums.argmin(-1))


def _aligned(task: Any, labels: Tensor) -> Int[Tensor, "B T"]:
    """Labels where the states are that predict them."""
    if labels.dim() == 1:  # one for each row
        return labels.unsqueeze(1)
    if isinstance(task, LanguageModeling):
        return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], dim=1)
    return labels
