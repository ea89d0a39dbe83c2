"""What every exit of a run says at each token, had all tokens run to the end.

The tokens are given, so that all exits speak of the same place in the same text. Tokens below may have left earlier
when the text was made; what is shown is what an exit knows of tokens that went as far as it is.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from depthwise.data import PieceRow, Row
from depthwise.depth import Policy
from depthwise.depth.policy import State, Visit
from depthwise.evaluation import Run, by_policy
from depthwise.models.exits import HasExits
from depthwise.report.labels import names_of
from depthwise.shapes import Bool, Float, Int, Tensor
from depthwise.tasks import LanguageModeling, SequenceToSequence
from depthwise.tasks.tagging import SentenceRow


@dataclass(frozen=True)
class Guess:
    """What is most likely, and how likely it is."""

    text: str
    probability: float


class _Listener(Policy):
    """Lets nobody leave and keeps the first guess of every exit but the last."""

    needs_training = False

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Float[Tensor, "B P"], Int[Tensor, "B P"]]] = []

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        self.heard.append(_first(visit.log_prob))
        return torch.zeros(visit.hidden.shape[:2], dtype=torch.bool, device=visit.hidden.device), state


def _first(log_prob: Float[Tensor, "B P V"]) -> tuple[Float[Tensor, "B P"], Int[Tensor, "B P"]]:
    best = log_prob.float().max(-1)
    return best.values.exp().cpu(), best.indices.cpu()


@torch.no_grad()
def guesses_of(run: Run, row: Row | None, ids: tuple[int, ...]) -> list[list[Guess]]:
    """For every exit its guesses at these tokens, or one for a whole text; none where exits have no classes to name."""
    model, names = run.model, names_of(run.task)
    if model.config.exits is None or names is None or not ids:
        return []
    assert isinstance(model, HasExits)
    found: list[list[Guess]] = []
    for inputs in _inputs(run, row, ids):
        listener = _Listener()
        model.use_policy(listener)
        try:
            logits = model(**inputs).logits
        finally:
            by_policy(run, run.policy)
        scores = logits.log_softmax(-1)
        heard = [*listener.heard, _first(scores.unsqueeze(1) if scores.dim() == 2 else scores)]
        for place, (chances, best) in enumerate(heard):
            if place == len(found):
                found.append([])
            guesses = zip(best[0].tolist(), chances[0].tolist(), strict=True)
            found[place] += [Guess(names(each), chance) for each, chance in guesses]
    return found


def _inputs(run: Run, row: Row | None, ids: tuple[int, ...]) -> list[dict[str, Tensor]]:
    """What the model is given to speak of these tokens: a sequence at a time."""
    task = run.task
    if isinstance(task, LanguageModeling):
        batches = [{"input_ids": torch.tensor([ids])}]
    elif isinstance(row, SentenceRow):
        batches = [task.collate([part]) for part in row.parts if isinstance(part, PieceRow)]  # type: ignore[list-item]
    else:
        assert row is not None
        if isinstance(task, SequenceToSequence):
            row = replace(row, texts=(*row.texts[:1], np.array(ids, np.int32)))
        batches = [task.collate([row])]
    return [{name: value.to(run.device) for name, value in batch.items()} for batch in batches]
