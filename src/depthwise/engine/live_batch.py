"""Decoding a batch whose rows come and go: rows that have ended leave, and others take their places."""

from collections.abc import Sequence
from dataclasses import dataclass

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
            for each in joining.requests:
                alike = next((other for other in self.requests if each.restricts_like(other)), each)
                each.restrict = alike.restrict
                self.requests.append(each)
        self._choose_policy()

    def step(self) -> list[tuple[Request, Said]]:
        """One token for every row. Those that are done are still there: ``drop`` them before the next step."""
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
        self._choose_policy()

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

    def _choose_policy(self) -> None:
        """The policy of all rows, or one that asks that of each."""
        different = _different([each.policy for each in self.requests])
        if len(different) < 2:
            self._stepper.policy = different[0] if different else None
            return
        numbers = {id(policy): number for number, policy in enumerate(different)}
        of_row = np.array([numbers[id(each.policy)] for each in self.requests])
        self._stepper.policy = PolicyByRow(different, of_row)

    # Choosing tokens

    def _restricted(self, scores: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """Scores by which each request chooses. A processor of scores that fails fails its own request alone."""
        groups: dict[int, list[int]] = {}
        for row, each in enumerate(self.requests):
            if each.restrict.is_needed(len(each.said)):
                groups.setdefault(id(each.restrict), []).append(row)
        for rows in groups.values():
            first = self.requests[rows[0]]
            whole = len(rows) == len(scores)
            index = torch.tensor(rows, device=scores.device)
            part = scores if whole else scores.index_select(0, index)
            if first.restrict.looks_back:
                try:
                    part = first.restrict(part, first.tokens, torch.zeros_like(index))
                except Exception as error:
                    first.error = error
                    continue
            else:
                num_made = torch.tensor([len(self.requests[row].said) for row in rows], device=scores.device)
                part = first.restrict.each(part, num_made, torch.zeros_like(index))
            scores = part if whole else scores.index_copy_(0, index, part)
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
