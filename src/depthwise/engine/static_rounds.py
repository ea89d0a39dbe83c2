"""All tables that recorded rounds of lossless decoding work on, and the parts of a round (see ``lossless``)."""

from collections.abc import Iterator
from functools import partial

import torch

from depthwise.engine.prepared import Prepared
from depthwise.engine.static_layout import Size, Tables
from depthwise.engine.static_round_mixers import round_mixers
from depthwise.engine.static_tables import Arena
from depthwise.engine.step_block import Mixed
from depthwise.shapes import Bool, Float, Int, Tensor

ENDED = 2**40
"""What a report adds for rows that have ended: more than any text has tokens."""


class Rounds(Tables):
    """Tables of one size. What is done on them is the same in every round, so that it can be recorded.

    All slots of all rows are computed, also behind the end of a draft or of a text; ``_accept`` sees who had any.
    ``fed`` are the tokens in the slots: the newest one and what is drafted. ``said`` begins with the newest one, too,
    and goes on with what the whole stack says behind it and behind each of the draft. ``x`` is the state in which slot
    0 leaves the layers that draft, and ``forbidden`` what may not be said behind the slots, where anything is.
    ``most`` are the tokens that a text may have, and as many of them as there are positions. ``report`` says of each
    row how many it has and, by ``ENDED``, whether it has ended, ``tallies`` of all together how many were drafted,
    kept of them, and drafted as the end of a text.
    """

    def __init__(self, prepared: Prepared, arena: Arena, size: Size) -> None:
        assert size.num_drafted is not None
        assert size.rows_each == 1, "lossless decoding has no beams"
        rows, self.num_slots = size.num_rows, size.num_drafted + 1
        self.mixers, self.slots = round_mixers([block.mixer for block in prepared.blocks], arena, size)
        super().__init__(prepared, arena, size, self.mixers, self.slots)

        def table(name: str, *shape: int, dtype: torch.dtype | None = torch.long) -> Tensor:
            return arena.table(f"rounds: {name}", *shape, dtype=dtype)

        self.talk: Int[Tensor, "B 2 M+1"] = table("talk", rows + 1, 2, self.num_slots + 1)
        self.fed, self.said = self.talk[:, 0, :-1], self.talk[:, 1]
        vocabulary = self.logits.shape[1]
        self.forbidden: Bool[Tensor, "B M V"] = table(
            "forbidden", rows + 1, self.num_slots, vocabulary, dtype=torch.bool
        )
        self.report: Int[Tensor, "B"] = table("report", rows + 1)
        self.most: Int[Tensor, "2"] = table("most", 2)
        self.tallies: Int[Tensor, "3"] = table("tallies", 3)
        self._of_steps: Float[Tensor, "B M _e"] | None = None
        if self.positions is not None:
            self._of_steps = table("positions", rows + 1, self.num_slots, self.positions.shape[1], dtype=None)

    def begin_text(self, count: int, num_steps: int, room: int | None) -> None:
        """Texts of the first rows, which have their first tokens, may have so many, and positions for ``room``."""
        self.talk[:count, :, 0] = self.tokens[:count].unsqueeze(1)
        self.most[0] = num_steps
        self.most[1] = num_steps if room is None else min(num_steps, room)
        self.tallies.zero_()

    def by_row(self) -> Iterator[tuple[Tensor, float]]:
        yield from super().by_row()
        yield self.talk, 0

    def begin(self, count: int, depth: int, *, restricts: bool) -> None:
        """Look where the columns of the first rows go, and draft what follows the newest ones."""
        self.slots.begin(count)
        if restricts:
            self.choice.forbidden(self._places(count), out=self.forbidden[:count])
        if self.positions is not None and self._of_steps is not None:
            steps, num_known = self.slots.step_grid[:count].view(-1), len(self.positions)
            steps = steps if num_known == self.size.capacity else steps.clamp(max=num_known - 1)
            torch.index_select(self.positions, 0, steps, out=self._of_steps[:count].view(-1, self.positions.shape[1]))
        self.x[:count] = self._draft(count, 0, depth, restricts=restricts)

    def end(self, count: int, depth: int, *, restricts: bool) -> None:
        """Draft the rest, run the layers above for all slots, and keep what the whole stack says too."""
        drafted = [self._draft(count, slot, depth, restricts=restricts) for slot in range(1, self.num_slots)]
        x = torch.stack([self.x[:count], *drafted], dim=1).flatten(0, 1)
        for layer in range(depth, len(self.blocks)):
            x = self._through(layer, x, partial(self.mixers[layer].chunk, self.slots), self.num_slots)
        scores = self.scores(x, len(self.blocks)).float().view(count, self.num_slots, -1)
        places, said = self._places(count), self.said[:count, 1:]
        torch.argmax(scores.masked_fill(self.forbidden[:count], -torch.inf) if restricts else scores, -1, out=said)
        noted = scores.log_softmax(-1).gather(2, said.unsqueeze(2)).squeeze(2)
        self.choice.out[:count].scatter_(1, places, said)
        self.choice.scores[:count].scatter_(1, places, noted)
        self._accept(count, places)

    def _draft(self, count: int, slot: int, depth: int, *, restricts: bool) -> Float[Tensor, "R D"]:
        """Run one slot as deep as drafts go, and choose what stands in the next; returns the states there."""
        positions = None if self._of_steps is None else self._of_steps[:count, slot]
        x = self.prepared.embedding.at(self.fed[:count, slot], positions)
        for layer in range(depth):
            x = self._through(layer, x, partial(self.mixers[layer].step, self.slots, slot=slot), 1)
        if slot + 1 < self.num_slots:
            scores = self.scores(x, depth).float()
            if restricts:
                scores = scores.masked_fill(self.forbidden[:count, slot], -torch.inf)
            torch.argmax(scores, -1, out=self.fed[:count, slot + 1])
        return x

    def _places(self, count: int) -> Int[Tensor, "R M"]:
        """Where tokens behind the slots stand in their texts."""
        return self.choice.made[:count].unsqueeze(1) + self.slots.ahead[:-1]

    def _through(self, layer: int, x: Float[Tensor, "_m D"], mixed: Mixed, each: int) -> Float[Tensor, "_m D"]:
        """States after a block, so many of each row."""
        crossed = partial(self.crossed, layer, rows_each=each)
        return self.blocks[layer].through(x, mixed, crossed, is_recorded=True)

    def _accept(self, count: int, places: Int[Tensor, "R M"]) -> None:
        """Keep what was drafted as long as the whole stack said it, and one token of its own behind it.

        A draft ends with a text, and before the most tokens are there: of these, the last is that of the verification.
        Of rows that have ended nothing is drafted and nothing kept, as if their newest token were that end.
        """
        made, ended = self.choice.made[:count], self.choice.ended[:count]
        talk, fed, said = self.talk[:count], self.fed[:count], self.said[:count]
        are_ends = self.choice.is_end.index_select(0, talk.view(-1)).view(talk.shape)
        are_ends[:, :, 0] = ended.unsqueeze(1)
        is_within = are_ends.cumsum(2) <= are_ends  # no end stands before it
        is_drafted = is_within[:, 0, :-1] & (places < self.most[1])
        agrees = ((fed == said[:, :-1]) & is_drafted).cumprod(1)
        is_kept = agrees.logical_and(is_within[:, 1, 1:])
        counted = torch.stack([is_drafted[:, 1:], agrees[:, 1:], (is_drafted & are_ends[:, 0, :-1])[:, 1:]])
        self.tallies.add_(counted.sum((1, 2)))

        num_kept = is_kept.sum(1)
        newest = said.gather(1, num_kept.unsqueeze(1))
        talk[:, :, 0] = newest
        self.slots.advance(num_kept)
        made.add_(num_kept)
        ended.logical_or_(self.choice.is_end.index_select(0, newest.view(-1))).logical_or_(made >= self.most[0])
        torch.add(made, ended, alpha=ENDED, out=self.report[:count])
