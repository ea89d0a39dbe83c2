"""One model for many pairs of languages: how often each is drawn, and how the model is told which language to write.

The share of a pair among the examples drawn is p ∝ n^(1/T), with n examples and temperature T (Arivazhagan et al.
2019): 1 is as the data are, more favours small pairs, and infinity makes all equal.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from depthwise.data.batches import BatchOptions, Plan, TokenBatches
from depthwise.data.collate import Seq2SeqCollator, padded
from depthwise.data.lines import LineReport, merged_reports
from depthwise.data.store import Row, TokenStore
from depthwise.errors import ConfigError, DataError, Problem
from depthwise.shapes import Tensor

PLACEMENTS = ("source", "decoder", "none")
_LANGUAGE_TOKEN = re.compile("<2(.+)>")


@dataclass(frozen=True, slots=True)
class LanguagePair:
    """A direction of translation, spelled ``en-de``."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> "LanguagePair":
        """``en-de`` as source and target."""
        source, _, target = text.partition("-")
        if not source or not target or "-" in target:
            raise ConfigError("languages", [Problem(text, "is no pair of languages; write it as en-de")])
        return cls(source, target)

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def language_token(language: str) -> str:
    """What tells a model to write a language."""
    return f"<2{language}>"


def add_language_tokens(tokenizer: PreTrainedTokenizerBase, languages: Sequence[str]) -> dict[str, int]:
    """Give a tokenizer a special token for every language and tell their ids; one that it has keeps its id."""
    tokenizer.add_tokens([language_token(language) for language in languages], special_tokens=True)
    vocabulary = tokenizer.get_vocab()
    return {language: vocabulary[language_token(language)] for language in languages}


def language_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The languages that a tokenizer has a special token for, and its id."""
    found = ((_LANGUAGE_TOKEN.fullmatch(name), number) for name, number in tokenizer.get_added_vocab().items())
    return {match[1]: number for match, number in sorted(found, key=lambda item: item[1]) if match}


def temperature_shares(sizes: Sequence[int] | npt.NDArray[Any], temperature: float) -> npt.NDArray[np.float64]:
    """pₗ = nₗ^(1/T) / Σ nₖ^(1/T)."""
    if not temperature > 0:
        raise ConfigError("languages", [Problem("temperature", f"{temperature} is not above 0")])
    logs = np.log(np.asarray(sizes, np.float64)) / temperature
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


class LanguageBatches(TokenBatches):
    """A batch sampler over several pairs of languages, where every batch is of one pair.

    ``lengths`` has those of each pair; examples are numbered through, pair by pair, as in ``LanguageStores``. An epoch
    has as many batches as all pairs have together, and at least one of each. With temperature 1 these are all examples,
    each once. Otherwise a pair has its share of the epoch: a small one is gone through several times, each time in
    batches of its own, and of a large one every epoch takes the next part. An epoch depends on seed and number only,
    and is shared by processes and resumed like that of ``TokenBatches``. Where the order is not ``shuffled``, pairs
    come one after the other. In ``rounds`` all pairs have as many batches, and every round has one of each.
    """

    def __init__(
        self,
        lengths: Mapping[str, npt.NDArray[Any]],
        options: BatchOptions,
        temperature: float = 1.0,
        *,
        rounds: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not lengths:
            raise DataError("there are no languages to batch; give at least one pair")
        self.temperature, self.rounds = temperature, rounds
        self.names = tuple(lengths)
        tables = [table if table.ndim == 2 else table[:, None] for table in lengths.values()]
        self._begins = np.cumsum([0, *(len(table) for table in tables)])
        self._members = [_member(table, name, options) for name, table in zip(self.names, tables, strict=True)]
        self.batches_by_pair = dict(zip(self.names, self._apportioned(), strict=True))
        """How many batches of each pair an epoch has."""
        super().__init__(np.concatenate(tables), options, rank=rank, world_size=world_size)

    def _note_too_long(self) -> None:
        """The members have said so."""

    def _apportioned(self) -> list[int]:
        """Whole numbers of batches in proportion to the shares, by largest remainders, but at least one for each.

        A share counts examples; with as many batches per example as a pair has, it becomes a share of batches.
        """
        available = np.array([member.num_batches for member in self._members])
        if self.rounds:
            return [max(1, round(available.mean()))] * len(available)
        examples = np.array([len(member.examples) for member in self._members])
        weights = temperature_shares(examples, self.temperature) * available / examples
        exact = weights / weights.sum() * available.sum()
        whole = np.floor(exact + 1e-9).astype(int)
        missing = int(available.sum() - whole.sum())
        whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
        return np.maximum(whole, 1).tolist()

    def _digest(self) -> int:
        drawn = (self.names, self._begins.tolist(), self.temperature, *(("rounds",) if self.rounds else ()))
        return zlib.crc32(repr(drawn).encode(), super()._digest())

    def planned(self, epoch: int) -> Plan:
        """The batches that are next in each pair, and the order of all of them."""
        parts: list[npt.NDArray[np.int64]] = []
        for member, name, begin in zip(self._members, self.names, self._begins[:-1], strict=True):
            num = self.batches_by_pair[name]
            parts += [batch + begin for batch in _batches(member, epoch * num, num)]
        bounds = np.cumsum([0, *map(len, parts)])
        order = np.arange(len(parts))
        if self.options.order == "shuffled":
            draw = np.random.default_rng([self.options.seed, epoch])
            in_rounds = order.reshape(len(self.names), -1).T if self.rounds else order
            order = draw.permuted(in_rounds, axis=1).ravel() if self.rounds else draw.permutation(order)
        return Plan(np.concatenate(parts), bounds, order)


class MixedBatches(TokenBatches):
    """A batch sampler over several pairs of languages, whose batches hold examples of all of them.

    Examples are numbered as for ``LanguageBatches``, and batches are cut as if all were of one corpus. The temperature
    decides how many examples of a pair an epoch has: none has fewer than there are, and those of small pairs come
    several times, a random few of them once more than the others.
    """

    def __init__(
        self,
        lengths: Mapping[str, npt.NDArray[Any]],
        options: BatchOptions,
        temperature: float = 1.0,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not lengths:
            raise DataError("there are no languages to batch; give at least one pair")
        tables = [table if table.ndim == 2 else table[:, None] for table in lengths.values()]
        sizes = np.array([*map(len, tables)])
        by_size = temperature_shares(sizes, temperature) / sizes
        self.examples_by_pair = dict(zip(lengths, np.rint(sizes * by_size / by_size.min()).astype(int), strict=True))
        """How many examples of each pair an epoch has."""
        draw, parts = np.random.default_rng(options.seed), []
        for begin, size, wanted in zip(np.cumsum([0, *sizes]), sizes, self.examples_by_pair.values(), strict=False):
            once_more = draw.permutation(size)[: wanted % size]
            parts.append(begin + np.concatenate([np.tile(np.arange(size), wanted // size), once_more]))
        self._numbers = np.concatenate(parts)
        super().__init__(np.concatenate(tables)[self._numbers], options, rank=rank, world_size=world_size)

    def planned(self, epoch: int) -> Plan:
        """As if repeated examples were others."""
        plan = super().planned(epoch)
        return Plan(self._numbers[plan.examples], plan.bounds, plan.order)


def _member(table: npt.NDArray[Any], name: str, options: BatchOptions) -> TokenBatches:
    """The batches of one pair, shuffled in a way of its own."""
    try:
        return TokenBatches(table, replace(options, seed=zlib.crc32(f"{options.seed} {name}".encode())))
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _batches(member: TokenBatches, first: int, num: int) -> list[npt.NDArray[np.int64]]:
    """Batches ``first`` to ``first + num`` of a pair that is gone through again and again."""
    found: list[npt.NDArray[np.int64]] = []
    while num > 0:
        turn, place = divmod(first, member.num_batches)
        plan = member.planned(turn)
        taken = plan.order[place : place + num]
        found += [plan.examples[plan.bounds[which] : plan.bounds[which + 1]] for which in taken]
        first, num = first + len(taken), num - len(taken)
    return found


@dataclass(frozen=True, slots=True)
class LanguageRow(Row):
    """A row that knows the number of its pair or, where it is to be translated, its languages as far as told."""

    pair: int | None = None
    languages: tuple[str | None, str | None] = (None, None)


class LanguageStores:
    """The stores of several pairs as one data set, with the target language told as ``placement`` says.

    ``source`` puts its token before the source text, and rows serve ``Seq2SeqCollator``. ``decoder`` puts it in place
    of the decoder's start token: it is the label of a row, and rows serve ``DecoderLanguageCollator``. ``none`` says
    nothing, for a single target language.
    """

    def __init__(self, stores: Mapping[str, TokenStore], tokens: Mapping[str, int], placement: str = "source") -> None:
        pairs = {name: LanguagePair.parse(name) for name in stores}
        targets = sorted({pair.target for pair in pairs.values()})
        problems = []
        if placement not in PLACEMENTS:
            problems.append(Problem("placement", f'"{placement}" is none of {", ".join(PLACEMENTS)}'))
        if placement == "none" and len(targets) > 1:
            message = f'"none" does not tell {", ".join(targets)} apart; give source or decoder'
            problems.append(Problem("placement", message))
        if placement != "none" and (unknown := [target for target in targets if target not in tokens]):
            problems.append(Problem("tokens", f"there is none for {', '.join(unknown)}; add language tokens"))
        if problems:
            raise ConfigError("languages", problems)
        self.placement, self.names, self.stores = placement, tuple(stores), tuple(stores.values())
        self._tokens = [tokens.get(pair.target) for pair in pairs.values()]
        self._begins = np.cumsum([0, *map(len, self.stores)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    def pair(self, index: int) -> str:
        """The pair that an example is of."""
        return self.names[self._which(~index if index < 0 else index)]

    def __getitem__(self, index: int) -> LanguageRow:
        number = ~index if index < 0 else index
        if number >= len(self):
            raise IndexError(f"example {number} of {len(self)}")
        which = self._which(number)
        row, token = self.stores[which][number - int(self._begins[which])], self._tokens[which]
        texts, label = row.texts, None
        if self.placement == "source":
            texts = (np.concatenate([[token], texts[0]]).astype(np.int32), *texts[1:])
        elif self.placement == "decoder":
            label = token
        return LanguageRow(number, texts, label, index < 0, pair=which)

    @property
    def report(self) -> LineReport:
        """What was left out of all pairs together."""
        return merged_reports([store.report for store in self.stores])

    def lengths(self) -> dict[str, npt.NDArray[np.int32]]:
        """How many ids every text of every pair has, the token of the language included, for ``LanguageBatches``."""
        more = np.array([self.placement == "source", 0], np.int32)
        return {
            name: store.lengths() + more[: store.num_texts] for name, store in zip(self.names, self.stores, strict=True)
        }

    def _which(self, number: int) -> int:
        return int(np.searchsorted(self._begins, number, side="right")) - 1


@dataclass(frozen=True)
class DecoderLanguageCollator:
    """Like ``Seq2SeqCollator``, and ``decoder_input_ids`` that start with the token of the row's target language."""

    pad_id: int

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = Seq2SeqCollator(self.pad_id)(rows)
        starts = torch.tensor([[row.label] for row in rows], dtype=torch.int64)
        if "labels" not in batch:
            return {**batch, "decoder_input_ids": starts}
        targets, _ = padded([row.texts[1] for row in rows], self.pad_id)
        return {**batch, "decoder_input_ids": torch.cat([starts, targets[:, :-1]], dim=1)}
