"""By whom text is searched for: the model's own ``generate``, unless somebody says otherwise for a while."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from depthwise.config import SearchConfig
from depthwise.models.generation import generated_depths
from depthwise.shapes import Int, Tensor
from depthwise.tasks.search import EndAtLimit, repeats_blocked, search_options, until_end


@dataclass(frozen=True, kw_only=True)
class Search:
    """Text that is asked for: targets of sources, or what follows prompts.

    ``max_length`` is the most tokens of any row, the prompt or the start token included; ``limits`` are the most new
    ones of each row, the last of which then is ``end_id``. ``starts`` are what targets begin from, if not as usual.
    ``languages`` are those that the gates of latent layers ask for, by the names of ``forward``.
    """

    input_ids: Int[Tensor, "B T"]
    attention_mask: Int[Tensor, "B T"]
    how: SearchConfig
    end_id: int
    max_length: int
    limits: Int[Tensor, "B"] | None = None
    starts: Sequence[int] | None = None
    languages: Mapping[str, Int[Tensor, "B"]] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """What Transformers' ``generate`` is told, but for inputs and the limits of single rows."""
        found = {"max_length": self.max_length, **search_options(self.how)}
        found["logits_processor"] = repeats_blocked(self.how, self.end_id)
        return found if self.starts is None else {**found, "decoder_start_token_id": list(self.starts)}


class Found(NamedTuple):
    """Whole ``sequences``; the new ``tokens`` among them, and how deep each ran (0 behind the end of its row).

    ``num_steps`` says after how many steps the search of all rows had ended.
    """

    sequences: Int[Tensor, "B L"]
    tokens: Int[Tensor, "B M"]
    depths: Int[Tensor, "B M"]
    num_steps: int


class Searcher(Protocol):
    """Finds the text that is asked of a model."""

    def __call__(self, model: PreTrainedModel, search: Search) -> Found: ...


@torch.no_grad()
def search_by_model(model: PreTrainedModel, search: Search) -> Found:
    """The search of Transformers."""
    options = search.options
    processors = options.pop("logits_processor")
    if search.limits is not None:
        processors = [*processors, EndAtLimit(search.limits, search.end_id)]
    output = model.generate(  # type: ignore[operator]
        input_ids=search.input_ids,
        attention_mask=search.attention_mask,
        logits_processor=LogitsProcessorList(processors),
        return_dict_in_generate=True,
        **options,
        **search.languages,
    )
    num_first = 1 if model.config.is_encoder_decoder else search.input_ids.shape[1]
    depths = generated_depths(output)
    tokens = output.sequences[:, num_first : num_first + depths.shape[1]]
    depths = depths[:, : tokens.shape[1]] * until_end(tokens, search.end_id)
    return Found(output.sequences, tokens, depths, len(output.past_key_values.depths))


_current: ContextVar[Searcher] = ContextVar("searcher", default=search_by_model)


@contextmanager
def searched_by(searcher: Searcher) -> Iterator[None]:
    """Within it, tasks of this thread (or task of asyncio) have text found by this searcher."""
    token = _current.set(searcher)
    try:
        yield
    finally:
        _current.reset(token)


def found_text(model: PreTrainedModel, search: Search) -> Found:
    """What the present searcher finds."""
    return _current.get()(model, search)
