"""Decoding a batch whose rows come and go: rows that have ended leave, and others take their places."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from depthwise.depth import Policy
from depthwise.engine.fills import FILLS, Fill, Recompute
from depthwise.engine.live_state import Arrivals, LiveState
from depthwise.engine.policy_by_row import PolicyByRow
from depthwise.engine.prepared import Prepared
from depthwise.engine.prompts import prompt_memories
from depthwise.engine.requests import Request, Said
from depthwise.engine.restrictions import Restrictions
from depthwise.engine.rows import on_device
from depthwise.engine.search import drawn_from
from depthwise.engine.stepping import Stepper
from depthwise.errors import InputError
from depthwise.models.generation import left_padded
from depthwise.models.masked import Leaving
from depthwise.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Joining:
    """Requests, and what their rows begin from."""

    requests: list[Request]
    arrivals: Arrivals

    def those(self, wanted: list[int]) -> "Joining":
        """Some of them, by their places."""
        if len(wanted) == len(self.requests):
            return self
        device = self.requests[0].prompt.device
        return Joining([self.requests[place] for place in wanted], self.arrivals.those(np.array(wanted), device))


@dataclass(frozen=True)
class Group:
    """Rows that restrict scores alike; those that look at what they have said are alone."""

    rows: list[int]
    index: Int[Tensor, "R"]
    restrict: Restrictions

    def restricted(self, scores: Float[Tensor, "R V"], num_made: list[int], requests: list[Request]) -> Tensor:
        """Scores, changed in place, of rows that have said so many tokens."""
        if self.restrict.looks_back:
            return self.restrict(scores, requests[self.rows[0]].tokens, torch.zeros_like(self.index))
        of_limit = torch.arange(len(self.rows), device=scores.device)
        return self.restrict.each(scores, torch.tensor(num_made, device=scores.device), of_limit)


class LiveBatch:
    """Requests that are being answered, one row each. Each is answered as it would be by itself.

    ``num_run`` counts the tokens that ran a block, summed over blocks.
    """

    def __init__(self, prepared: Prepared, fill: str, max_pending: int) -> None:
        self.prepared, self.model, self._recomputes = prepared, prepared.model, fill == "recompute"
        like = next(prepared.decoder.stack.parameters()).new_empty(0, 1, self.model.config.width)
        self.state = LiveState(prepared.blocks, like, slack=max_pending if self._recomputes else 0)
        self._fill: Fill = Recompute(self.state, max_pending) if self._recomputes else FILLS[fill](self.state)
        self._stepper = Stepper(prepared, self.state, self._fill, None)
        self.requests: list[Request] = []
        self._groups: list[Group] = []
        self._has_changed = False
        self._fed = torch.zeros(0, dtype=torch.long, device=like.device)

    @property
    def num_run(self) -> int:
        return self._fill.num_run

    def __len__(self) -> int:
        return len(self.requests)

    def admit(self, arrivals: Sequence[Joining]) -> None:
        """Let requests join that are ready for it."""
        for joining in arrivals:
            self.state.add(joining.arrivals)
            self._fed = torch.cat([self._fed, *(each.prompt[0, -1:] for each in joining.requests)])
            self.requests += joining.requests
        self._has_changed = True

    def step(self) -> list[tuple[Request, Said]]:
        """One token for every row. Those that are done are still there: ``drop`` them before the next step."""
        if self._has_changed:
            self._groups, self._stepper.policy, self._has_changed = _groups(self.requests), self._policy(), False
        made = self._stepper.step(self._fed)
        scores = made.logits.float()
        by_model = scores.log_softmax(-1)
        scores = self._restricted(scores)
        self._fed = fed = self._chosen(scores)
        log_probs = by_model.gather(1, fed.unsqueeze(1)).squeeze(1)
        tokens, depths = fed.tolist(), made.depths.tolist()
        found = []
        for each, token, depth, score in zip(self.requests, tokens, depths, log_probs.tolist(), strict=True):
            if each.error is None:
                said = Said(token, depth, score)
                each.said.append(said)
                found.append((each, said))
        self._check_positions()
        return found

    def drop(self, leaving: Sequence[Request]) -> None:
        """These leave."""
        if not leaving:
            return
        gone = {id(each) for each in leaving}
        leaves = np.array([id(each) in gone for each in self.requests])
        order = self.state.drop(leaves)
        self.requests = [self.requests[row] for row in order.tolist()]
        self._fed = self._fed.index_select(0, on_device(order, self._fed.device))
        self._has_changed = True

    # Joining

    def arrivals(self, requests: Sequence[Request]) -> list[Joining]:
        """What has to be computed before requests can join; the batch stays as it is.

        Sources are encoded together; prompts run together with those of the same policy.
        """
        if self.model.model.encoder is not None:
            return [Joining(list(requests), self._encoded(requests))]
        return [
            Joining(some, self._prompted(some, policy))
            for policy in _different([each.policy for each in requests])
            if (some := [each for each in requests if each.policy is policy])
        ]

    def _encoded(self, requests: Sequence[Request]) -> Arrivals:
        assert self.model.model.encoder is not None
        ids, mask, lengths = self._padded([each.source for each in requests if each.source is not None])
        states = self.model.model.encoder(ids, mask.long())[0]
        return Arrivals(np.zeros_like(lengths), source=states, source_lengths=lengths)

    def _prompted(self, requests: Sequence[Request], policy: Policy | None) -> Arrivals:
        ids, mask, lengths = self._padded([each.prompt[0] for each in requests])
        ids, valid = left_padded(ids, mask)
        leaving = None
        if policy is not None and not self._recomputes:
            leaving = Leaving(policy=policy, exits=self.model.exit_depths, scores=self.model.scores_at)
        valid = None if (lengths == ids.shape[1]).all() else valid
        return Arrivals(lengths - 1, prompt_memories(self.prepared, ids, valid, leaving))

    def _padded(self, rows: list[Tensor]) -> tuple[Int[Tensor, "M L"], Bool[Tensor, "M L"], np.ndarray]:
        """Ids of rows, padded right, with what is real of them and their lengths."""
        lengths = np.array([len(row) for row in rows])
        ids = pad_sequence(rows, batch_first=True, padding_value=self.model.config.pad_token_id or 0)
        return ids, on_device(np.arange(ids.shape[1]) < lengths[:, None], ids.device), lengths

    def _policy(self) -> Policy | None:
        """The policy of all rows, or one that asks that of each."""
        different = _different([each.policy for each in self.requests])
        if len(different) == 1:
            return different[0]
        numbers = {id(policy): number for number, policy in enumerate(different)}
        return PolicyByRow(different, np.array([numbers[id(each.policy)] for each in self.requests]))

    # Choosing tokens

    def _restricted(self, scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Scores by which each request chooses. A processor of scores that fails fails its own request alone."""
        for group in self._groups:
            num_made = [len(self.requests[row].said) for row in group.rows]
            if not group.restrict.is_needed(min(num_made), max(num_made)):
                continue
            is_whole = len(group.rows) == len(scores)
            part = scores if is_whole else scores.index_select(0, group.index)
            try:
                part = group.restricted(part, num_made, self.requests)
            except Exception as error:
                if not group.restrict.looks_back:
                    raise
                self.requests[group.rows[0]].error = error
                continue
            scores = part if is_whole else scores.index_copy_(0, group.index, part)
        return scores

    def _chosen(self, scores: Float[Tensor, "B V"]) -> Int[Tensor, "B"]:
        fed = scores.argmax(-1)
        sampling = [row for row, each in enumerate(self.requests) if each.draws is not None]
        if not sampling:
            return fed
        drawn = torch.cat([self.requests[row].random_number() for row in sampling])
        if len(sampling) == len(fed):
            return drawn_from(scores, drawn)
        index = torch.tensor(sampling, device=scores.device)
        return fed.index_copy(0, index, drawn_from(scores.index_select(0, index), drawn))

    def _check_positions(self) -> None:
        """A text that would go on where the decoder has no more positions is an error of that request."""
        decoder = self.prepared.decoder
        if decoder.max_positions is None or self.state.length < decoder.max_positions:
            return
        for each, length in zip(self.requests, self.state.lengths.tolist(), strict=True):
            if not each.is_done and length >= decoder.max_positions:
                each.error = InputError(
                    f"{decoder.name} has {length + 1} steps but max_positions is {decoder.max_positions}; "
                    "ask for fewer tokens"
                )


def _different(policies: Sequence[Policy | None]) -> list[Policy | None]:
    """Each of these policies once."""
    return list({id(policy): policy for policy in policies}.values())


def _groups(requests: Sequence[Request]) -> list[Group]:
    """All rows, those together that restrict scores alike."""
    found: dict[str, list[int]] = {}
    for row, each in enumerate(requests):
        found.setdefault(each.kind, []).append(row)
    return [_group(rows, [requests[row] for row in rows]) for rows in found.values()]


def _group(rows: list[int], requests: Sequence[Request]) -> Group:
    first = requests[0]
    restrict, limits = first.restrict, [limit for each in requests for limit in each.options.limits or ()]
    if limits and len(rows) > 1:
        restrict = Restrictions(replace(first.options, limits=limits), first.prompt)
    return Group(rows, torch.tensor(rows, device=first.prompt.device), restrict)
