"""Masked language modelling: which tokens are to be guessed, and what stands in their place.

Of the tokens that may be masked, all but special ones, a share ``rate`` is chosen, in expectation exactly that; only
n-grams, which do not overlap, leave too little room for it from about 0.8 on. What is chosen together is a unit: a
token, a whole word, or an n-gram of whole words (Lan et al. 2020, section 4.1). Of the chosen tokens, each by itself,
80 % become the mask, 10 % a random token and 10 % stay as they are (Devlin et al. 2019, section 3.1).

Masking is drawn from seed and number of the example, and where it is dynamic (Liu et al. 2019, section 4.1) from the
epoch too. So it does not depend on batches, workers or processes. A masked row has two texts: what the model sees, and
what it has to guess.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from depthwise.config.masking import RULES, MaskingConfig, masking_problems
from depthwise.config.parsing import option_problems
from depthwise.data.collate import IGNORED, padded
from depthwise.data.lines import LineReport
from depthwise.data.rows import Texts
from depthwise.data.sentence_pairs import SentencePairs
from depthwise.data.store import Row
from depthwise.data.templates import fast_tokenizer
from depthwise.errors import ConfigError, DataError, Problem
from depthwise.shapes import Int, Tensor

Ids = npt.NDArray[np.int64]
PLACE_STEPS = 8
"""Into how many parts the number of places is divided that a batch is expected to need: what it may grow by."""


@dataclass(frozen=True, kw_only=True)
class MaskingOptions(MaskingConfig):
    """How much is masked, in which units, and what it becomes, drawn from a seed."""

    seed: int = 0

    def __post_init__(self) -> None:
        problems = [*option_problems(self, RULES), *masking_problems(self)]
        if self.seed < 0:
            problems.append(Problem("seed", f"{self.seed} is negative; give 0 or more"))
        if problems:
            raise ConfigError("masking", problems)


@dataclass(frozen=True)
class MaskVocabulary:
    """What masking has to know of a tokenizer: its mask, which ids are special and which begin a word."""

    mask_id: int
    special: npt.NDArray[np.bool_]
    begins_word: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, units: str = "tokens") -> "MaskVocabulary":
        """That of a tokenizer; beginnings of words only where units are made of them."""
        if tokenizer.mask_token_id is None:
            raise DataError("the tokenizer has no mask token; train one with mask_token=true")
        special = np.zeros(len(tokenizer), bool)
        special[tokenizer.all_special_ids] = True
        return cls(tokenizer.mask_token_id, special, None if units == "tokens" else beginnings_of_words(tokenizer))


class MaskedRows:
    """Rows of one text by number, masked; ``rows[~i]`` is row i to be ignored.

    The rows may be those of a store, of texts in memory or of ``SentencePairs``, whose epoch then follows this one's.
    """

    def __init__(self, rows: Texts | SentencePairs, vocabulary: MaskVocabulary, options: MaskingOptions) -> None:
        if options.units != "tokens" and vocabulary.begins_word is None:
            raise ConfigError("masking", [Problem("units", f"{options.units} needs to know where words begin")])
        self.rows, self.vocabulary, self.options = rows, vocabulary, options
        self._epoch = 0

    @property
    def report(self) -> LineReport:
        return self.rows.report

    def set_epoch(self, epoch: int) -> None:
        """Mask as in this epoch from now on, in this process."""
        self._epoch = epoch
        if isinstance(self.rows, SentencePairs):
            self.rows.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        row = self.rows[index]
        epoch = [self._epoch] if self.options.dynamic else []
        generator = np.random.default_rng([self.options.seed, row.index, *epoch])
        return replace(row, texts=mask_tokens(row.texts[0], self.vocabulary, self.options, generator))

    def lengths(self) -> npt.NDArray[np.int32]:
        """How many ids each row has, as one column."""
        return self.rows.lengths()[:, :1]


@dataclass(frozen=True)
class MaskedCollator:
    """``input_ids``, ``attention_mask`` and, for rows with a second text, ``labels`` and ``label_places``.

    Labels are -100 where nothing is to be guessed; ``label_places`` counts rows and steps through to the others, so
    that nobody has to look for them on a GPU. Rows with a label of their own, as ``SentencePairs`` gives them, add
    ``sentence_order_label``.
    """

    pad_id: int

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        ids, valid = padded([row.texts[0] for row in rows], self.pad_id)
        batch = {"input_ids": ids, "attention_mask": valid.long()}
        if any(len(row.texts) == 1 for row in rows):
            return batch
        ignored = torch.tensor([row.ignored for row in rows])
        labels, _ = padded([row.texts[1] for row in rows], IGNORED)
        batch["labels"] = labels.masked_fill(ignored[:, None], IGNORED)
        batch["label_places"] = (batch["labels"].flatten() != IGNORED).nonzero().squeeze(1)
        if all(row.label is not None for row in rows):
            order = torch.tensor([row.label for row in rows])
            batch["sentence_order_label"] = order.masked_fill(ignored, IGNORED)
        return batch


def filled_places(labels: Int[Tensor, "B T"], rate: float) -> Int[Tensor, "M"]:
    """``label_places`` of a batch, filled up with other places to a number that follows from its shape alone.

    The others have the label ``IGNORED`` and weigh nothing; no place comes twice. A batch with more labels than the
    number for its shape gets the next one, since all labels are kept.
    """
    has_label = labels.flatten() != IGNORED
    where, others = has_label.nonzero().squeeze(1), (~has_label).nonzero().squeeze(1)
    return torch.cat([where, others])[: num_filled_places(len(where), labels.numel(), rate)]


def num_filled_places(num_labels: int, num_tokens: int, rate: float) -> int:
    """⌈rate · tokens⌉, with padding counted as tokens, or more by as few eighths of that as hold all labels."""
    expected = math.ceil(rate * num_tokens)
    step = math.ceil(expected / PLACE_STEPS)
    more = max(0, math.ceil((num_labels - expected) / step))
    return min(num_tokens, expected + more * step)


def mask_tokens(
    ids: npt.NDArray[Any], vocabulary: MaskVocabulary, options: MaskingOptions, generator: np.random.Generator
) -> tuple[Ids, Ids]:
    """A text with tokens masked, and as labels the tokens that stood there."""
    inputs = ids.astype(np.int64)
    chosen = _chosen(inputs, vocabulary, options, generator)
    labels = np.full_like(inputs, IGNORED)
    labels[chosen] = inputs[chosen]
    fate = generator.random(len(chosen))
    ordinary = np.flatnonzero(~vocabulary.special)
    inputs[chosen[fate < options.mask_share]] = vocabulary.mask_id
    replaced = chosen[(fate >= options.mask_share) & (fate < options.mask_share + options.random_share)]
    inputs[replaced] = ordinary[generator.integers(len(ordinary), size=len(replaced))]
    return inputs, labels


def ngram_shares(max_ngram: int) -> npt.NDArray[np.float64]:
    """p(n) = (1/n) / Σₖ (1/k) for n = 1, …, max_ngram (Lan et al. 2020, section 4.1)."""
    inverse = 1 / np.arange(1, max_ngram + 1)
    return inverse / inverse.sum()


def _chosen(ids: Ids, vocabulary: MaskVocabulary, options: MaskingOptions, generator: np.random.Generator) -> Ids:
    """Places of the tokens to be guessed.

    Units are taken in random order while they fit into rate · n tokens. The first that does not fit is taken with the
    probability that gives the missing part on average, and is the last in any case.
    """
    places = np.flatnonzero(~vocabulary.special[ids])
    budget = options.rate * len(places)
    taken = np.zeros(len(ids), bool)
    for unit in _units(ids, places, vocabulary, options, generator):
        if taken[unit].any():
            continue
        if len(unit) > budget:
            taken[unit] = generator.random() < budget / len(unit)
            break
        taken[unit] = True
        budget -= len(unit)
    return np.flatnonzero(taken)


def _units(
    ids: Ids, places: Ids, vocabulary: MaskVocabulary, options: MaskingOptions, generator: np.random.Generator
) -> Iterator[Ids]:
    """What is chosen together, in random order."""
    words = list(places[:, None])
    if options.units != "tokens":
        assert vocabulary.begins_word is not None
        follows_special = np.diff(places, prepend=-2) > 1
        words = np.split(places, np.flatnonzero(vocabulary.begins_word[ids[places]] | follows_special)[1:])
    order = generator.permutation(len(words)) if len(places) else np.empty(0, int)
    if options.units != "ngrams":
        yield from (words[number] for number in order)
        return
    sizes = generator.choice(options.max_ngram, size=len(order), p=ngram_shares(options.max_ngram)) + 1
    for number, size in zip(order.tolist(), sizes.tolist(), strict=True):
        ngram = np.concatenate(words[number : number + size])
        yield ngram[ngram - np.arange(len(ngram)) == ngram[0]]  # up to the next special token


def beginnings_of_words(tokenizer: PreTrainedTokenizerBase) -> npt.NDArray[np.bool_]:
    """Which ids begin a word, as the tokenizer marks it: ``##`` on what goes on, or ``▁`` or ``Ġ`` on what begins.

    Punctuation without a mark of its own goes with the word before it.
    """
    content = json.loads(fast_tokenizer(tokenizer).backend_tokenizer.to_str())
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    parts = list(_parts(content["pre_tokenizer"])) + list(_parts(content["decoder"]))
    if content["model"]["type"] == "WordPiece":
        mark = content["model"]["continuing_subword_prefix"]
        return np.array([not name.startswith(mark) for name in names])
    for kind, default in (("Metaspace", "▁"), ("ByteLevel", "Ġ")):
        if found := [part for part in parts if part["type"] == kind]:
            mark = found[0].get("replacement", default)
            return np.array([name.startswith(mark) for name in names])
    if content["model"]["type"] == "WordLevel" and any(part["type"] == "WhitespaceSplit" for part in parts):
        return np.ones(len(names), bool)
    raise DataError("the tokenizer does not mark where words begin; mask single tokens, or use one of word pieces")


def _parts(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a pre-tokenizer or decoder, one by one."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step.get("pretokenizers", step.get("decoders", [])):
            yield from _parts(inner)
    else:
        yield step
