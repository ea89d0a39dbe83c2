"""One text that is asked for: what it begins from, how it is searched for, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from depthwise.depth import Policy
from depthwise.engine.prepared import Model
from depthwise.engine.restrictions import Restrictions
from depthwise.engine.search import Draws
from depthwise.engine.search_options import SearchOptions
from depthwise.errors import InputError
from depthwise.models.inputs import check_ids
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class Said:
    """One new token: how many blocks ran for it, and its log-probability by the model."""

    token: int
    depth: int
    score: float


@dataclass(frozen=True)
class Answer:
    """All that a request got: its new tokens, an end among them; ``has_ended`` says whether there is one.

    Of its ``seconds``, it waited ``waited`` before its first step.
    """

    tokens: tuple[int, ...]
    depths: tuple[int, ...]
    scores: tuple[float, ...]
    has_ended: bool
    waited: float
    seconds: float


@dataclass(eq=False)
class Request:
    """A text in the making. ``source`` are the tokens that are translated; ``prompt`` is what the text begins with."""

    source: Int[Tensor, "S"] | None
    prompt: Int[Tensor, "1 T"]
    options: SearchOptions
    policy: Policy | None
    num_steps: int
    restrict: Restrictions
    draws: Draws | None
    said: list[Said] = field(default_factory=list)
    error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        return bool(self.said) and self.said[-1].token in self.options.ends

    @property
    def is_done(self) -> bool:
        return self.error is not None or self.has_ended or len(self.said) == self.num_steps

    def random_number(self) -> Float[Tensor, "1"]:
        assert self.draws is not None
        return self.draws.next(np.zeros(1, dtype=np.int64))

    @cached_property
    def kind(self) -> str:
        """How it restricts scores, whatever it has said: the same words for requests that do so alike.

        Limits are left out, but for whether there is one. Whoever looks at what was said is alike to nobody.
        """
        if self.restrict.looks_back:
            return str(id(self))
        plain = replace(self.options, generators=None, limits=None, max_new_tokens=None, max_length=None)
        return f"{self.options.limits is None} {self.restrict.num_least} {plain}"

    @property
    def tokens(self) -> Int[Tensor, "1 M"]:
        """What it has said."""
        return torch.tensor([[each.token for each in self.said]], dtype=torch.long, device=self.prompt.device)


def request_of(model: Model, ids: Sequence[int] | Int[Tensor, "T"], policy: Policy | None, given: Any) -> Request:
    """A request, or ``InputError`` with what is wrong with it. ``given`` are options as for a batch of one row."""
    options = SearchOptions.of(model.generation_config, given)
    if options.num_beams > 1:
        raise InputError("a queue has no beams; leave out num_beams, or search with Engine.generate")
    for name in ("limits", "generators"):
        values = getattr(options, name)
        if values is not None and len(values) != 1:
            raise InputError(f"a request is one row, but {name} has {len(values)} values; give one")
    if policy is not None and model.config.exits is None:
        raise InputError("this model has no exits to leave at; train one with model.exits, or use the whole stack")
    row = ids if isinstance(ids, Tensor) else torch.tensor(list(ids), dtype=torch.long)
    if row.dim() != 1:
        raise InputError(f"a request is one row of ids, not {row.dim()} axes; submit rows one by one")
    is_translated = isinstance(model, DepthwiseForSeq2SeqLM)
    side = model.model.encoder if is_translated else model.model.decoder
    assert side is not None
    check_ids(row.cpu().unsqueeze(0), "input_ids", side.embedding.num_types, side.max_positions)
    row = row.to(model.device, torch.long)
    prompt = options.first_tokens(1, row.device) if is_translated else row.unsqueeze(0)
    return Request(
        source=row if is_translated else None,
        prompt=prompt,
        options=options,
        policy=policy,
        num_steps=options.num_steps(prompt.shape[1]),
        restrict=Restrictions(options, prompt),
        draws=Draws(options.generators, 1) if options.do_sample else None,
    )
