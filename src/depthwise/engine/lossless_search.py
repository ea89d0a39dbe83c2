"""The search of lossless decoding: rounds of drafting and verifying until every sequence has ended."""

import numpy as np
import torch

from depthwise.engine.lossless import Agreement, Drafts, RatioTest, Speculation
from depthwise.engine.restrictions import Restrictions
from depthwise.engine.rows import on_device
from depthwise.engine.search import Draws, Found, padding_of
from depthwise.engine.search_options import SearchOptions
from depthwise.shapes import Float, Int, Tensor


def search_lossless(
    speculation: Speculation,
    first: Int[Tensor, "B"],
    restrict: Restrictions,
    options: SearchOptions,
    num_steps: int,
    num_drafted: int,
) -> tuple[Found, Drafts]:
    """What ``search_one`` finds at full depth: the same tokens or, sampled, tokens of the same distribution."""
    rounds = _Rounds(speculation, first, restrict, options, num_steps, num_drafted)
    while len(rounds.numbers):
        rounds.run()
    return rounds.found(), Drafts(rounds.num_drafted, rounds.num_accepted, rounds.num_verifications)


class _Rounds:
    """All rows with what was made of them; ``numbers`` are those that go on, in the order of the decoder's state."""

    def __init__(
        self,
        speculation: Speculation,
        first: Tensor,
        restrict: Restrictions,
        options: SearchOptions,
        num_steps: int,
        most_drafted: int,
    ) -> None:
        num_rows, self.device = len(first), first.device
        self.speculation, self.restrict, self.options = speculation, restrict, options
        self.num_steps, self.most_drafted = num_steps, most_drafted
        self.tokens = torch.full((num_rows, num_steps), padding_of(options), device=self.device)
        self.log_probs = torch.zeros(num_rows, num_steps, device=self.device)
        self.num_made = np.zeros(num_rows, dtype=np.int64)
        self.numbers, self.fed = np.arange(num_rows), first
        self.num_drafted = self.num_accepted = self.num_verifications = 0
        self.choice = Agreement()
        if options.do_sample:
            self.choice = RatioTest(list(Draws(options.generators, num_rows).generators), most_drafted)

    def run(self) -> None:
        """Draft, verify, keep what agrees; rows that have ended leave."""
        before, made = self.speculation.lengths, self.num_made[self.numbers]
        self.choice.begin_round(self.numbers)
        drafted = self._draft()
        logits = self.speculation.verify()
        counts = self.speculation.state.written[-1] - before
        starts = counts.cumsum() - counts
        of_row = np.repeat(np.arange(len(counts)), counts)
        slots = np.arange(len(of_row)) - starts[of_row]
        scores = logits.float()
        by_model = scores.log_softmax(-1)
        scores, numbers, places = self._restricted(scores, self.numbers[of_row], made[of_row] + slots)

        on_rows, on_slots = on_device(of_row, self.device), on_device(slots, self.device)
        agrees = self.choice.agrees(scores, self.tokens[numbers, places], on_rows, on_slots).cpu().numpy()
        in_grid = np.zeros((len(counts), int(counts.max())), dtype=bool)
        in_grid[of_row, slots] = agrees & (slots < drafted[of_row])
        accepted = in_grid.cumprod(1).sum(1)
        num_new = np.minimum(accepted + 1, counts)

        # A row whose draft ended the text, and rightly so, has nothing behind it
        own, last = accepted < counts, starts + num_new - 1
        instead = self.choice.instead(
            scores.index_select(0, on_device(last, self.device)), on_device(num_new - 1, self.device)
        )
        final_numbers, final_places = (on_device(host, self.device) for host in (self.numbers, made + num_new - 1))
        self.fed = torch.where(on_device(own, self.device), instead, self.tokens[final_numbers, final_places])
        self.tokens[final_numbers, final_places] = self.fed
        kept = on_device(np.flatnonzero(slots < num_new[of_row]), self.device)
        numbers, places = numbers[kept], places[kept]
        chosen = self.tokens[numbers, places].unsqueeze(1)
        self.log_probs[numbers, places] = by_model.index_select(0, kept).gather(1, chosen).squeeze(1)

        self.num_made[self.numbers] += num_new
        self.num_drafted += int(drafted.sum())
        self.num_accepted += int(accepted.sum())
        self.num_verifications += 1
        self.speculation.rewind(before + num_new)
        self._drop()

    def _draft(self) -> np.ndarray:
        """Feed every row its last token and a draft behind it; returns how many tokens each row drafted.

        A draft ends with a text, and before the most tokens are there: of these, the last is that of the verification.
        """
        speculation, made = self.speculation, self.num_made[self.numbers]
        room = np.minimum(np.minimum(self.most_drafted, self.num_steps - 1 - made), speculation.room())
        rows, fed = speculation.state.everybody, self.fed
        drafted = np.zeros(len(rows), dtype=np.int64)
        for slot in range(self.most_drafted + 1):
            x = speculation.begin(fed, rows)
            goes_on = room[rows.numbers] > slot
            if not goes_on.any():
                break
            if not goes_on.all():
                rows, x = rows.those(goes_on), x[on_device(goes_on, self.device)]
            places = made[rows.numbers] + slot
            scores = speculation.scores(x, speculation.depth).float()
            scores, numbers, at = self._restricted(scores, self.numbers[rows.numbers], places)
            fed = self.choice.draft(scores, rows, slot)
            self.tokens[numbers, at] = fed
            drafted[rows.numbers] += 1
            if self.options.ends:
                goes_on = ~torch.isin(fed, self.restrict.ends).cpu().numpy()
                if not goes_on.any():
                    break
                if not goes_on.all():
                    rows, fed = rows.those(goes_on), fed[on_device(goes_on, self.device)]
        return drafted

    def _restricted(
        self, scores: Float[Tensor, "M V"], numbers: np.ndarray, num_made: np.ndarray
    ) -> tuple[Float[Tensor, "M V"], Int[Tensor, "M"], Int[Tensor, "M"]]:
        """Scores, changed in place, of the tokens that follow so many of these rows; then both numbers."""
        restrict, of_row, places = self.restrict, on_device(numbers, self.device), on_device(num_made, self.device)
        if not restrict.is_needed(int(num_made.min()), int(num_made.max())):
            return scores, of_row, places
        if not restrict.looks_back:
            return restrict.each(scores, places, of_row), of_row, places
        for count in np.unique(num_made).tolist():
            here = on_device(np.flatnonzero(num_made == count), self.device)
            rows = of_row[here]
            scores[here] = restrict(scores[here], self.tokens[rows, :count], rows)
        return scores, of_row, places

    def _drop(self) -> None:
        """Rows that have ended, or are as long as may be, leave."""
        ended = self.num_made[self.numbers] == self.num_steps
        if self.options.ends:
            ended |= torch.isin(self.fed, self.restrict.ends).cpu().numpy()
        if ended.all():
            self.numbers = self.numbers[:0]
        elif ended.any():
            order = self.speculation.state.drop(ended)
            self.numbers, self.fed = self.numbers[order], self.fed[on_device(order, self.device)]

    def found(self) -> Found:
        """Without what was drafted behind the ends."""
        length = int(self.num_made.max())
        is_there = torch.arange(length, device=self.device) < on_device(self.num_made, self.device).unsqueeze(1)
        tokens = self.tokens[:, :length].masked_fill(~is_there, padding_of(self.options))
        return Found(tokens, is_there * self.speculation.stack.num_layers, self.log_probs[:, :length])
