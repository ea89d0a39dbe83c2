"""The choice of the most probable token within recorded work."""

import torch

from depthwise.engine.static_tables import Arena
from depthwise.shapes import Bool, Float, Int, Tensor


class Choice:
    """What rows have said (``made`` tokens so far: ``out`` with ``scores``), and what they may say.

    Behind these stands what rows go on to say after their end, until all have come to theirs. Options of the search
    are numbers in tables, so that recorded work serves all of them.
    """

    def __init__(self, arena: Arena, num_rows: int, capacity: int, vocabulary: int) -> None:
        def table(name: str, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return arena.table(name, *shape, dtype=dtype)

        rows = num_rows + 1
        self.out: Int[Tensor, "B L"] = table("out", rows, capacity)
        self.scores: Float[Tensor, "B L"] = table("scores", rows, capacity, dtype=torch.float32)
        self.made: Int[Tensor, "B"] = table("made", rows)
        self.ended: Bool[Tensor, "B"] = table("ended", rows, dtype=torch.bool)
        self.least: Int[Tensor, "B"] = table("least", rows)
        self.last: Int[Tensor, "B"] = table("last", rows)
        self.is_end: Bool[Tensor, "V"] = table("is end", vocabulary, dtype=torch.bool)
        self.is_suppressed: Bool[Tensor, "V"] = table("is suppressed", vocabulary, dtype=torch.bool)

    def by_row(self) -> tuple[Tensor, ...]:
        return self.out, self.scores, self.made, self.ended, self.least, self.last

    def choose(self, logits: Float[Tensor, "R V"], *, restricts: bool) -> Int[Tensor, "R"]:
        """The next token of the first rows; only of those that have not ended it counts as made."""
        count, scores = len(logits), logits.float()
        by_model = scores.log_softmax(-1)
        out, noted, made, ended = (table[:count] for table in (self.out, self.scores, self.made, self.ended))
        chosen = (scores.masked_fill(self.forbidden(made), -torch.inf) if restricts else scores).argmax(-1)
        out.scatter_(1, made.unsqueeze(1), chosen.unsqueeze(1))
        noted.scatter_(1, made.unsqueeze(1), by_model.gather(1, chosen.unsqueeze(1)))
        made.add_(~ended)
        ended.logical_or_(self.is_end.index_select(0, chosen))
        return chosen

    def forbidden(
        self, made: Int[Tensor, "R *slots"], out: Bool[Tensor, "R *slots V"] | None = None
    ) -> Bool[Tensor, "R *slots V"]:
        """What ``Restrictions`` forbid the first rows after so many tokens.

        Where a row must end, all else is; before its least length, its end.
        """
        shape = -1, *(1 for _ in made.shape[1:])
        least, last = (table[: len(made)].view(shape) for table in (self.least, self.last))
        is_early, must_end = (made < least).unsqueeze(-1), (made >= last).unsqueeze(-1)
        return torch.where(must_end, ~self.is_end, self.is_suppressed | (is_early & self.is_end), out=out)
