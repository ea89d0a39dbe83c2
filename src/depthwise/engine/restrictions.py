"""What a search may not say: scores of forbidden tokens become -inf, in the order in which Transformers does so."""

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from depthwise.engine.search_options import Processor, SearchOptions
from depthwise.shapes import Float, Int, Tensor


class Restrictions:
    """Restricts the scores of the next token, given how many there are and, where somebody asks, which."""

    def __init__(self, options: SearchOptions, prompt: Int[Tensor, "B T"]) -> None:
        self.options, self.prompt = options, prompt
        self.num_least = options.num_least(prompt.shape[1])
        self.ends = torch.tensor(options.ends, dtype=torch.long, device=prompt.device)
        suppressed = list(options.suppress_tokens or ())
        self.suppressed = torch.tensor(suppressed, device=prompt.device) if suppressed else None
        self.limits = None if options.limits is None else torch.tensor(list(options.limits), device=prompt.device)
        self._first_limit = None if options.limits is None else min(options.limits)
        self.sampling = sampling_processors(options)

    def __call__(
        self,
        scores: Float[Tensor, "R V"],
        made: Int[Tensor, "R M"],
        of_prompt: Int[Tensor, "R"],
    ) -> Float[Tensor, "R V"]:
        """Scores, changed in place, after ``made`` tokens; ``of_prompt`` says which prompt each row belongs to."""
        ids = self.ids(made, of_prompt) if self.looks_back else made
        return self._restricted(scores, ids, made.shape[1], of_prompt)

    def each(
        self, scores: Float[Tensor, "R V"], num_made: Int[Tensor, "R"], of_prompt: Int[Tensor, "R"]
    ) -> Float[Tensor, "R V"]:
        """The same for rows that have made numbers of tokens of their own, unless somebody asks which."""
        assert not self.looks_back, "whoever looks back has to see the tokens"
        return self._restricted(scores, of_prompt.unsqueeze(1), num_made, of_prompt)

    def _restricted(
        self,
        scores: Float[Tensor, "R V"],
        ids: Int[Tensor, "R _l"],
        num_made: int | Int[Tensor, "R"],
        of_prompt: Int[Tensor, "R"],
    ) -> Float[Tensor, "R V"]:
        options = self.options
        of_ends = scores.index_select(1, self.ends)
        if options.no_repeat_ngram_size:
            block_repeats(scores, ids, options.no_repeat_ngram_size)
        if self.num_least and len(self.ends):
            if isinstance(num_made, int):
                if num_made < self.num_least:
                    scores.index_fill_(1, self.ends, -torch.inf)
            else:
                is_early = (num_made < self.num_least).unsqueeze(1)
                scores.index_copy_(1, self.ends, of_ends.masked_fill(is_early, -torch.inf))
        if self.suppressed is not None:
            scores.index_fill_(1, self.suppressed, -torch.inf)
        for process in options.logits_processor:
            scores = process(ids, scores)
        if self.limits is not None:
            must_end = (self.limits.index_select(0, of_prompt) <= num_made + 1).unsqueeze(1)
            scores = scores.masked_fill(must_end, -torch.inf)
            kept = torch.where(must_end, of_ends, scores.index_select(1, self.ends))
            scores.index_copy_(1, self.ends, kept)
        for process in self.sampling:
            scores = process(ids, scores)
        return scores

    def is_needed(self, fewest: int, most: int | None = None) -> bool:
        """Whether scores may change after so many tokens, or where rows have made from ``fewest`` to ``most``."""
        is_early = fewest < self.num_least and len(self.ends) > 0
        is_late = self._first_limit is not None and (fewest if most is None else most) + 1 >= self._first_limit
        others = (self.suppressed is not None, bool(self.sampling), self.looks_back)
        return is_early or is_late or any(others)

    @property
    def looks_back(self) -> bool:
        """Whether somebody asks which tokens were made."""
        return bool(self.options.no_repeat_ngram_size or self.options.logits_processor)

    def ids(self, made: Int[Tensor, "R M"], of_prompt: Int[Tensor, "R"]) -> Int[Tensor, "R L"]:
        """All tokens of each row, the prompt first."""
        return torch.cat([self.prompt.index_select(0, of_prompt), made], dim=1)


def block_repeats(scores: Float[Tensor, "R V"], ids: Int[Tensor, "R L"], size: int) -> None:
    """Forbid every token that would complete an n-gram of this size which the row has already."""
    length = ids.shape[1]
    if length < size:
        return
    ngrams = ids.unfold(1, size, 1)
    begun = (ngrams[..., :-1] == ids[:, None, length - size + 1 :]).all(-1)
    counts = torch.zeros_like(scores, dtype=torch.int).scatter_add_(1, ngrams[..., -1], begun.int())
    scores.masked_fill_(counts > 0, -torch.inf)


def sampling_processors(options: SearchOptions) -> list[Processor]:
    """Temperature and truncation, where a search samples."""
    if not options.do_sample:
        return []
    found: list[Processor] = []
    if options.temperature != 1:
        found.append(TemperatureLogitsWarper(options.temperature))
    if options.top_k:
        found.append(TopKLogitsWarper(options.top_k))
    if options.top_p < 1:
        found.append(TopPLogitsWarper(options.top_p))
    return found
