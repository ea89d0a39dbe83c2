"""Policies by which whole rows leave, tried without running the model again for each.

Until a row leaves it goes the way of one that stays. So what the model would answer there is what the head of that exit
says of the row on its way through all blocks, and one pass with everybody in it knows what becomes of every policy.
Tokens that leave by themselves are another matter: others see what they leave behind.
"""

from collections.abc import Sequence
from itertools import chain

import torch

from depthwise.data import Row
from depthwise.data.progress import shown
from depthwise.depth import Context, Policy, Visit
from depthwise.depth.policy import State
from depthwise.evaluation.predicting import prediction_batches, run_by, within_memory
from depthwise.evaluation.runs import Run
from depthwise.kernels.attention import for_changing_lengths
from depthwise.models.exits import HasExits
from depthwise.shapes import Bool, Float, Int, Tensor
from depthwise.tasks import Prediction, TextClassification
from depthwise.tasks.encoding import inputs_in, placed

MOST_NUMBERS = 2**28
"""States and scores of exits that are kept for all rows together, at most: a gigabyte."""


class Listener(Policy):
    """Lets nobody leave, and keeps what a policy would have seen at every exit but the last: states and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Tensor, Tensor]] = []

    def leaving(self, visit: Visit, state: State) -> tuple[Bool[Tensor, "B T"], State]:
        self.heard.append((visit.hidden.clone(), visit.log_prob))
        return torch.zeros(visit.hidden.shape[:2], dtype=torch.bool, device=visit.hidden.device), state


class Replay:
    """What all exits say of rows, and what becomes of these by the policy that the model has at the time.

    ``states[e]`` (N, 1, E) and ``scores[e]`` (N, 1, V) are those of exit e, of which the last has scores alone.
    """

    def __init__(self, run: Run, rows: Sequence[Row]) -> None:
        task, model = run.task, run.model
        assert isinstance(task, TextClassification)
        assert isinstance(model, HasExits)
        self.rows, self._task, self._model = rows, task, model
        listener, policy = Listener(), model.policy
        batches = prediction_batches(task, run.model, rows)
        said, lengths = [], []
        model.use_policy(listener)
        try:
            with torch.inference_mode(), run_by(run.engine), for_changing_lengths(), within_memory(task):
                for batch in shown(batches, "listening at all exits", len(batches)):
                    inputs = placed(task.collate([rows[index] for index in batch]), run.device)
                    output = run.model(**inputs_in(inputs))
                    said.append(output.logits.unsqueeze(1))
                    lengths.append((output.depths > 0).sum(1))
        finally:
            model.use_policy(policy)
        order = torch.tensor(list(chain.from_iterable(batches))).argsort().to(run.device)
        num_exits = len(model.exit_depths) - 1
        by_exit = [listener.heard[exit::num_exits] for exit in range(num_exits)]
        self.states = [torch.cat([states for states, _ in heard])[order] for heard in by_exit]
        self.scores = [torch.cat([scores for _, scores in heard])[order] for heard in by_exit]
        self.scores.append(torch.cat(said)[order].to(self.scores[0].dtype))
        self.lengths = torch.cat(lengths)[order]

    @staticmethod
    def serves(run: Run, num_rows: int) -> bool:
        """Whether whole rows leave this model, and what its exits say of so many is not too much to keep."""
        model, options = run.model, run.model.config.options
        if not (isinstance(run.task, TextClassification) and isinstance(model, HasExits) and options.exits is not None):
            return False
        numbers = num_rows * len(options.exit_depths) * (2 * options.width + model.config.num_labels)
        return model.structure is None and len(options.exit_depths) > 1 and 0 < numbers <= MOST_NUMBERS

    def predictions(self) -> list[Prediction] | None:
        """What the model would predict; none where its policy lets single tokens leave."""
        policy = self._model.policy
        if policy is not None and policy.each_token:
            return None
        exits = self._model.exit_depths
        with torch.inference_mode():
            depths = self.depths(policy)
            places = torch.searchsorted(torch.tensor(exits, device=depths.device), depths)
            every = torch.cat(self.scores, dim=1)
            logits = every[torch.arange(len(every), device=every.device), places]
        by_row = zip(depths.tolist(), self.lengths.tolist(), strict=True)
        return self._task.answers(logits, [(depth,) * length for depth, length in by_row])

    def depths(self, policy: Policy | None) -> Int[Tensor, "N"]:
        """Where rows leave by a policy: at the last exit without one."""
        exits, lengths = self._model.exit_depths, self.lengths
        depths = torch.full_like(lengths, exits[-1])
        if policy is None:
            return depths
        steps = torch.zeros_like(lengths).unsqueeze(1)
        context = Context(shape=(len(lengths), 1), exits=exits, steps=steps, lengths=lengths)
        if policy.plans:
            return policy.plan(context).expand(len(lengths), 1)[:, 0]
        memory: State = {}
        before: Float[Tensor, "N 1 _e"] | None = None
        for depth, states, scores in zip(exits[:-1], self.states, self.scores[:-1], strict=True):
            leaves, memory = policy.leaving(_visit(depth, states, before, scores, context), memory)
            depths = torch.where(leaves[:, 0] & (depths == exits[-1]), depth, depths)
            before = states
        return depths


def _visit(depth: int, states: Tensor, before: Tensor | None, scores: Tensor, context: Context) -> Visit:
    return Visit(depth=depth, hidden=states, before=before, context=context, scoring=lambda: scores)
