"""How text is searched for: the options of Transformers' ``generate`` that the engine knows."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import GenerationConfig

from depthwise.errors import InputError
from depthwise.shapes import Float, Int, Tensor

Processor = Callable[[Int[Tensor, "R L"], Float[Tensor, "R V"]], Float[Tensor, "R V"]]
"""From the tokens so far and scores of the next one to other scores, row by row (a ``LogitsProcessor``)."""
HARMLESS = frozenset(
    {"bos_token_id", "use_cache", "transformers_version", "output_scores", "output_logits", "return_dict_in_generate"}
    | {"_from_model_config", "trust_remote_code"}
)
"""Settings of a generation config that change no token here."""
MOST_SEEN = 16
"""Generation configs that are remembered."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Names, meanings and defaults are those of Transformers, but for ``limits`` and ``generators``."""

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int | None = None
    limits: Sequence[int] | None = None
    """The most new tokens of each row, of which the last must then be an end of sequence."""
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    generators: Sequence[torch.Generator] | None = None
    """Where the random numbers of each row come from, on the CPU; none: from seeds that torch's own generator gives."""
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_return_sequences: int = 1
    no_repeat_ngram_size: int = 0
    suppress_tokens: Sequence[int] | None = None
    logits_processor: Sequence[Processor] = ()
    """What else is done to scores. Rows leave while others go on: a processor may not count on their number."""
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | Sequence[int] | None = None

    @classmethod
    def of(cls, config: GenerationConfig, given: dict[str, Any]) -> "SearchOptions":
        """What was given, before what the generation config of a model says; ``InputError`` names what is unknown."""
        set_before = options_set_in(config)
        if unknown := unknown_options(set_before, given):
            raise InputError(
                f"the engine knows no {', '.join(unknown)}; leave it out, or search with the model's own generate"
            )
        known = {option.name for option in fields(cls)}
        has_default = {option.name for option in fields(cls) if option.default is not None}
        chosen = {name: value for name, value in set_before.items() if name in known}
        chosen |= {name: value for name, value in given.items() if value is not None or name not in has_default}
        options = cls(**chosen)
        options._check()
        return options

    def _check(self) -> None:
        for name in ("num_beams", "num_return_sequences", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; ask for at least one")
        if self.num_beams > 1 and self.do_sample:
            raise InputError("the engine samples without beams; leave out do_sample or num_beams")
        if self.num_beams == 1 and self.num_return_sequences > 1:
            raise InputError("several sequences of one input are those of a beam; set num_beams, or repeat the input")
        if self.num_return_sequences > self.num_beams:
            raise InputError(
                f"a beam of {self.num_beams} has no {self.num_return_sequences} sequences; ask for fewer, or widen it"
            )
        if self.temperature <= 0:
            raise InputError(f"the temperature is {self.temperature}, but must be above 0; use greedy search instead")
        if self.early_stopping not in (True, False, "never"):
            raise InputError(f"early_stopping is {self.early_stopping!r}, but may be True, False or 'never'")

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)

    def first_tokens(self, num_rows: int, device: torch.device) -> Int[Tensor, "B 1"]:
        """The tokens that targets begin from."""
        start = self.decoder_start_token_id
        if start is None:
            raise InputError("decoder_start_token_id is missing; say which token targets begin from")
        starts = [start] * num_rows if isinstance(start, int) else list(start)
        if len(starts) != num_rows:
            raise InputError(f"there are {len(starts)} start tokens for {num_rows} sources; give one for each")
        return torch.tensor(starts, device=device).unsqueeze(1)

    def num_steps(self, prompt_length: int) -> int:
        """How many tokens are made at most."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.limits is not None:
            return int(max(self.limits))
        if self.max_length is None:
            return 20
        if self.max_length <= prompt_length:
            raise InputError(f"max_length is {self.max_length}, but the prompt alone has {prompt_length}; raise it")
        return self.max_length - prompt_length

    def num_least(self, prompt_length: int) -> int:
        """How many tokens come before the end at least."""
        if self.min_new_tokens is not None:
            return self.min_new_tokens
        return 0 if self.min_length is None else max(0, self.min_length - prompt_length)


def unknown_options(set_before: Iterable[str], given: Iterable[str]) -> list[str]:
    """What the engine knows nothing about, among options that are given and those that a generation config sets."""
    known = {option.name for option in fields(SearchOptions)}
    return sorted(set(given) - known) + sorted(set(set_before) - known - HARMLESS)


def options_set_in(config: GenerationConfig) -> dict[str, Any]:
    """What a generation config says that is not the default."""
    seen = _seen.get(id(config))
    if seen is None or seen.config is not config or seen.settings != vars(config):
        settings, found = copy.deepcopy(vars(config)), config.to_diff_dict()
        seen = _Seen(config, settings, {k: v for k, v in found.items() if v is not None and v is not False})
        if len(_seen) >= MOST_SEEN:
            _seen.clear()
        _seen[id(config)] = seen
    return dict(seen.set_there)


@dataclass(frozen=True)
class _Seen:
    """A config with its settings when it was asked, which takes Transformers longer than some texts take to make."""

    config: GenerationConfig
    settings: dict[str, Any]
    set_there: dict[str, Any]


_seen: dict[int, _Seen] = {}
