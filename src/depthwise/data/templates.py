"""Where a tokenizer puts its special tokens, so that a row can be put together from pieces.

``[CLS] question [SEP] context [SEP]`` of BERT, ``question </s> context </s>`` of ours: what stands before, between and
behind is read off an encoded text, so that any tokenizer serves that knows what its pieces were made from.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from depthwise.errors import DataError


@dataclass(frozen=True)
class Template:
    """Ids before the first text, between two texts and behind the last; for a single text nothing stands between."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    behind: tuple[int, ...]

    @property
    def num_special(self) -> int:
        return len(self.before) + len(self.between) + len(self.behind)

    def joined(self, *texts: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """One text, or two, with the special tokens around them."""
        parts: list[npt.ArrayLike] = [self.before, texts[0]]
        if len(texts) == 2:
            parts += [self.between, texts[1]]
        return np.concatenate([np.asarray(part, np.int32) for part in [*parts, self.behind]])

    def marked(self, *texts: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        """Numbers of ids in the places of ``joined``, with 0 for special tokens."""
        blank = replace(self, **{name: (0,) * len(getattr(self, name)) for name in ("before", "between", "behind")})
        return blank.joined(*(text.astype(np.int32) for text in texts)).astype(np.uint16)


@dataclass(frozen=True)
class PairForm:
    """How a tokenizer puts two texts together that stand alone at first, each with its special tokens around it.

    ``[CLS] a [SEP]`` and ``[CLS] b [SEP]`` become ``[CLS] a [SEP] b [SEP]``, and RoBERTa's ``<s> a </s></s> b </s>``.
    """

    single: Template
    pair: Template

    @property
    def num_more(self) -> int:
        """How many ids a pair has more than both texts alone, mostly none or fewer."""
        return self.pair.num_special - 2 * self.single.num_special

    def joined(self, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Both texts, which have their special tokens around them, as the tokenizer itself encodes them."""
        return self.pair.joined(self._inner(first), self._inner(second))

    def marked(self, first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
        """Numbers of their ids in the places of ``joined``."""
        return self.pair.marked(self._inner(first), self._inner(second))

    def second_from(self, first: npt.NDArray[Any]) -> int:
        """Where the second text begins behind this first one."""
        return len(first) - self.single.num_special + len(self.pair.before) + len(self.pair.between)

    def room(self, max_tokens: int) -> int:
        """The most ids of each text, its special tokens included, so that any two fit together."""
        return (max_tokens - self.pair.num_special) // 2 + self.single.num_special

    def _inner(self, text: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return text[len(self.single.before) : len(text) - len(self.single.behind)]


@dataclass(frozen=True)
class Pieces:
    """A text as ids without special tokens, and the characters that each was made from: ``text[start:end]``."""

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int32]


def fast_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """The tokenizer itself, if it knows where its pieces come from."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise DataError(
            f"{type(tokenizer).__name__} does not say where in the text its pieces stand; use a fast tokenizer"
        )
    return tokenizer


def text_template(tokenizer: PreTrainedTokenizerBase) -> Template:
    """What a single text has before and behind it."""
    encoding = fast_tokenizer(tokenizer)("a", verbose=False)
    before, _, behind = _around(encoding["input_ids"], encoding.sequence_ids(0), 1)
    return Template(before, (), behind)


def pair_template(tokenizer: PreTrainedTokenizerBase) -> Template:
    """What two texts have before, between and behind them."""
    encoding = fast_tokenizer(tokenizer)("a", "a", verbose=False)
    return Template(*_around(encoding["input_ids"], encoding.sequence_ids(0), 2))


def pair_form(tokenizer: PreTrainedTokenizerBase) -> PairForm:
    """What becomes of the special tokens of two single texts when they are put together."""
    return PairForm(text_template(tokenizer), pair_template(tokenizer))


def pieces_of(text: str, tokenizer: PreTrainedTokenizerFast) -> Pieces:
    """A text of any length."""
    encoding = tokenizer(
        text, add_special_tokens=False, truncation=False, padding=False, return_offsets_mapping=True, verbose=False
    )
    offsets = np.array(encoding["offset_mapping"], np.int32).reshape(-1, 2)
    return Pieces(np.array(encoding["input_ids"], np.int32), offsets)


def _around(ids: list[int], owners: list[int | None], num_texts: int) -> tuple[tuple[int, ...], ...]:
    """Special ids by place: before, between, behind. ``owners`` says which text an id is of, None for special ones."""
    last = num_texts - 1
    if not {0, last} <= set(owners):
        raise DataError("the tokenizer knows neither the letter a nor unknown ones; use one that has an unknown token")
    firsts = [owners.index(text) for text in (0, last)]
    ends = [len(owners) - owners[::-1].index(text) for text in (0, last)]
    between = ids[ends[0] : firsts[1]] if num_texts == 2 else []
    return tuple(ids[: firsts[0]]), tuple(between), tuple(ids[ends[1] :])
