"""Greedy search and sampling: one sequence for each input; those that have ended leave the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from depthwise.engine.restrictions import Restrictions
from depthwise.engine.rows import on_device
from depthwise.engine.search_options import SearchOptions
from depthwise.engine.stepping import Steps
from depthwise.errors import InputError
from depthwise.memory import sent
from depthwise.shapes import Float, Int, Tensor

DRAWN_AT_ONCE = 32


@dataclass(frozen=True)
class Found:
    """What a search has found: tokens with padding behind their end, their depths (0 there), and scores.

    ``scores`` are log-probabilities of tokens by the model, or those of whole sequences that a beam compares.
    """

    tokens: Int[Tensor, "B M"]
    depths: Int[Tensor, "B M"]
    scores: Float[Tensor, "..."]


def search_one(
    stepper: Steps, first: Int[Tensor, "B"], restrict: Restrictions, options: SearchOptions, num_steps: int
) -> Found:
    """Take the most probable token, or a random one, until every sequence has ended."""
    num_rows, device = len(first), first.device
    tokens = torch.full((num_rows, num_steps), padding_of(options), device=device)
    log_probs = torch.zeros(num_rows, num_steps, device=device)
    depths = np.zeros((num_rows, num_steps), dtype=np.int64)
    draws = Draws(options.generators, num_rows) if options.do_sample else None
    numbers, of_row, fed, num_made = np.arange(num_rows), torch.arange(num_rows, device=device), first, 0
    for step in range(num_steps):
        made = stepper.step(fed)
        scores = made.logits.float()
        by_model = scores.log_softmax(-1)
        if restrict.is_needed(step):
            made_so_far = tokens[:, :step] if len(numbers) == num_rows else tokens[of_row, :step]
            scores = restrict(scores, made_so_far, of_row)
        fed = scores.argmax(-1) if draws is None else draws.choose(scores, numbers)
        depths[numbers, step], num_made = made.depths, step + 1
        tokens[of_row, step] = fed
        log_probs[of_row, step] = by_model.gather(1, fed.unsqueeze(1)).squeeze(1)
        if not options.ends:
            continue
        ended = torch.isin(fed, restrict.ends).cpu().numpy()
        if ended.all():
            break
        if ended.any() and step + 1 < num_steps:
            order = stepper.state.drop(ended)
            numbers, index = numbers[order], on_device(order, device)
            of_row, fed = of_row[index], fed[index]
    return Found(tokens[:, :num_made], torch.from_numpy(depths[:, :num_made]).to(device), log_probs[:, :num_made])


class Draws:
    """Random numbers for sampling, from one generator for each row: what is drawn for a row depends on it alone."""

    def __init__(self, generators: Sequence[torch.Generator] | None, num_rows: int) -> None:
        if generators is None:
            seeds = torch.randint(2**62, (num_rows,)).tolist()
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        if len(generators) != num_rows:
            raise InputError(f"there are {len(generators)} generators for {num_rows} rows; give one for each")
        self.generators = generators
        self._numbers = torch.empty(num_rows, 0, dtype=torch.float64)
        self._next = 0

    def choose(self, scores: Float[Tensor, "R V"], rows: np.ndarray) -> Int[Tensor, "R"]:
        """A token for each of these rows."""
        return drawn_from(scores, self.next(rows))

    def next(self, rows: np.ndarray) -> Float[Tensor, "R"]:
        """The next random number of each of these rows."""
        if self._next == self._numbers.shape[1]:
            self._numbers = torch.stack(
                [torch.rand(DRAWN_AT_ONCE, dtype=torch.float64, generator=each) for each in self.generators]
            )
            self._next = 0
        drawn = self._numbers[torch.from_numpy(rows), self._next]
        self._next += 1
        return drawn


def drawn_from(scores: Float[Tensor, "R V"], drawn: Float[Tensor, "R"]) -> Int[Tensor, "R"]:
    """The first token by which the probabilities sum up to a random number, for each row."""
    summed = scores.double().softmax(-1).cumsum(-1)
    wanted = sent(drawn, scores.device) * summed[:, -1]
    return torch.searchsorted(summed, wanted.unsqueeze(1), right=True).squeeze(1)


def padding_of(options: SearchOptions) -> int:
    if options.pad_token_id is not None:
        return options.pad_token_id
    return options.ends[0] if options.ends else 0
