"""Multilingual translation: one model for several pairs of languages, which is told the language to write.

Every batch of training is of one pair, or mixes all; pairs are drawn by temperature. Scores are given for every pair,
and their mean is the one that is quoted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from depthwise.config import ModelConfig, Recipe
from depthwise.data import (
    BatchOptions,
    DecoderLanguageCollator,
    Example,
    LanguageBatches,
    LanguagePair,
    LanguageRow,
    LanguageStores,
    MixedBatches,
    PairCorpora,
    Row,
    StoreOptions,
    Tokenizers,
    add_language_tokens,
    build_store,
    language_tokens,
)
from depthwise.errors import ConfigError, InputError, LanguageError, Problem
from depthwise.losses import IGNORED
from depthwise.metrics import BLEU_VARIANTS, Comparison, Score, compare_means_of_groups
from depthwise.metrics.bleu_counts import bleu_of_counts
from depthwise.shapes import Tensor
from depthwise.tasks.encoding import encoded
from depthwise.tasks.latent_training import LANGUAGES
from depthwise.tasks.pair_sources import language_pairs, pair_corpora
from depthwise.tasks.translation import EXACT_MATCH, Translation, matches, score_texts
from depthwise.tasks.values import Examples, Losses

MEAN = "nll/mean"


class MultilingualTranslation(Translation):
    """One-to-many, many-to-one, many-to-many; inputs are texts, or texts behind the language to translate into."""

    kind = "multilingual_translation"
    metric = MEAN

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers, start_id: int | None = None) -> None:
        super().__init__(recipe, tokenizers, start_id)
        self.pairs: tuple[LanguagePair, ...] = language_pairs(recipe.data)
        self.placement = recipe.tokenizer.language_token
        targets = sorted({pair.target for pair in self.pairs})
        self.tokens: dict[str, int] = {}
        """The languages that the model can be told to write."""
        if self.placement != "none":
            tokenizer = tokenizers.source if self.placement == "source" else tokenizers.target
            is_new = start_id is None
            if is_new:
                add_language_tokens(tokenizer, targets)
            self.tokens = language_tokens(tokenizer)
            self.__dict__.pop("options", None)  # asked for before its vocabulary had these tokens
        self._check(targets)

    def _check(self, targets: Sequence[str]) -> None:
        problems = [*self._problems_of_gates()]
        if missing := [language for language in self.recipe.tokenizer.languages or () if language not in self.tokens]:
            message = (
                f"there is no token of {', '.join(missing)}; name some of {', '.join(self.tokens)}, or leave it out"
            )
            problems.append(Problem("tokenizer.languages", message))
        if self.placement == "none" and len(targets) > 1:
            message = f"none does not tell {', '.join(targets)} apart; give source or decoder"
            problems.append(Problem("tokenizer.language_token", message))
        known, wanted = self.languages, self.recipe.generation.target
        for language in targets:
            if language not in known:
                message = f"the model writes {', '.join(known)}, not {language}; name pairs into one of these"
                problems.append(Problem("data.pairs", message))
        if wanted is not None and not self._is_known(wanted):
            problems.append(Problem("generation.target", self._unlike(wanted)))
        elif wanted in known and len(known) > 1 and self._gated("encoder"):
            message = f"{wanted} has no effect where texts name pairs of languages; name a pair, or remove it"
            problems.append(Problem("generation.target", message))
        if problems:
            raise ConfigError(f"task {self.kind}", problems)

    @property
    def languages(self) -> tuple[str, ...]:
        """Those that the model writes."""
        left = self.recipe.tokenizer.languages
        told = tuple(language for language in self.tokens if left is None or language in left)
        return told or tuple(sorted({pair.target for pair in self.pairs}))

    @property
    def choices(self) -> tuple[str, ...]:
        """What can be asked of it for a text: a language to write or, where the encoder has to know that of the text
        too, a pair of its data."""
        return tuple(map(str, self.pairs)) if self._gated("encoder") else self.languages

    def _unlike(self, wanted: str) -> str:
        """What the model can be asked for, where it is not this."""
        does = f"writes {', '.join(self.languages)}"
        if self._gated("encoder"):
            does = f"translates {', '.join(self.choices)}"
        elif self._told(wanted)[0] is not None:
            does = f"translates {', '.join(self._sources)} into {', '.join(self.languages)}"
        return f"the model {does}, not {wanted}; name one of these"

    def _is_known(self, wanted: str) -> bool:
        """Whether it is a language to write, or one to translate and one to write."""
        source, target = self._told(wanted)
        return target in self.languages and (source is None or source in self._sources)

    @property
    def _sources(self) -> tuple[str, ...]:
        """The languages that it translates: those of its gates, or of its data."""
        return self._gated("encoder") or tuple(dict.fromkeys(pair.source for pair in self.pairs))

    @cached_property
    def options(self) -> ModelConfig:
        """Where gates differ between languages, those of the data, unless the model is older than this data."""
        options = super().options
        latent = options.latent
        if latent is None or not latent.per_language:
            return options
        sources, targets = self._languages_of_data()
        sources, targets = latent.source_languages or sources, latent.target_languages or targets
        return replace(options, latent=replace(latent, source_languages=sources, target_languages=targets))

    def _languages_of_data(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those that are translated, and those that are written."""
        pairs = language_pairs(self.recipe.data)
        return tuple(sorted({pair.source for pair in pairs})), tuple(sorted({pair.target for pair in pairs}))

    def _problems_of_gates(self) -> Iterator[Problem]:
        """Each language of the data has gates of its own on the sides where languages differ."""
        latent = self.options.latent
        if latent is None:
            return
        for (side, option), languages in zip(LANGUAGES.items(), self._languages_of_data(), strict=True):
            given = latent.languages(side)
            if side not in latent.sides or not given:
                continue
            if missing := [language for language in languages if language not in given]:
                message = f"{', '.join(given)} lacks {', '.join(missing)} of data.pairs; name all languages, or none"
                yield Problem(f"model.latent.{option}", message)
            if len(set(given)) < len(given):
                yield Problem(f"model.latent.{option}", f"{', '.join(given)} names one twice; name each once")

    def _gated(self, side: str) -> tuple[str, ...]:
        """The languages between which the gates of a side differ; none where they do not."""
        latent = self.options.latent
        if latent is None or side not in latent.sides:
            return ()
        languages = latent.languages(side)
        return languages if len(languages) > 1 else ()

    # Data

    def corpus(self, split: str) -> PairCorpora:
        return pair_corpora(self.recipe.data, self.check_split(split))

    def examples(self, split: str) -> LanguageStores:
        options = self.store_options(split)
        stores = {
            pair: build_store(corpus, self._tokenizers_of(corpus), options, self.cache)
            for pair, corpus in self.corpus(split).corpora.items()
        }
        return LanguageStores(stores, self.tokens, self.placement)

    def store_options(self, split: str) -> StoreOptions:
        """The token of the language is one of those that a source may have."""
        options = super().store_options(split)
        source, target = options.limits(2)
        if self.placement != "source" or source is None:
            return options
        return replace(options, max_tokens=(source - 1, target))

    def lengths(self, examples: LanguageStores) -> npt.NDArray[np.int32]:
        return np.concatenate(list(examples.lengths().values()))

    def batches_of(
        self, examples: Examples, options: BatchOptions, *, rank: int = 0, world_size: int = 1
    ) -> LanguageBatches | MixedBatches:
        """Batches of one pair each, or in training of all; only those of training are drawn by temperature."""
        assert isinstance(examples, LanguageStores)
        is_drawn = options.order == "shuffled"
        if is_drawn and self.recipe.data.mixed:
            lengths, temperature = examples.lengths(), self.recipe.data.temperature
            return MixedBatches(lengths, options, temperature, rank=rank, world_size=world_size)
        temperature, rounds = self.recipe.data.temperature if is_drawn else 1.0, is_drawn and self.recipe.data.rounds
        return LanguageBatches(
            examples.lengths(), options, temperature, rounds=rounds, rank=rank, world_size=world_size
        )

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        batch = DecoderLanguageCollator(self._pad_id)(rows) if self.placement == "decoder" else super().collate(rows)
        numbers = [row.pair for row in rows if isinstance(row, LanguageRow) and row.pair is not None]
        if numbers:
            batch["pair"] = torch.tensor(numbers)
        return {**batch, **self._languages_of(rows)}

    def _languages_of(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The numbers of the languages of all rows, as the gates count them."""
        found = {}
        for which, side in enumerate(("encoder", "decoder")):
            known = self._gated(side)
            if not known:
                continue
            numbers = []
            for row in rows:
                assert isinstance(row, LanguageRow)
                pair = None if row.pair is None else self.pairs[row.pair]
                language = row.languages[which] if pair is None else (pair.source, pair.target)[which]
                if language is None or language not in known:
                    unnamed = "the language of the text is not named" if side == "encoder" else "no language is named"
                    told = f"{language} is none of them" if language else unnamed
                    raise LanguageError(f"the {side} has layers for {', '.join(known)}; {told}", self._remedy)
                numbers.append(known.index(language))
            found[LANGUAGES[side]] = torch.tensor(numbers)
        return found

    # Learning

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        """Sums of every pair beside those of all, where batches are of one pair each: the batch counts for its own."""
        losses = super().losses(model, batch, num_items)
        if self.recipe.data.mixed and model.training:
            return losses
        totals, num_tokens = dict(losses.totals), (batch["labels"] != IGNORED).sum()
        for number, pair in enumerate(self.pairs):
            is_of_pair = batch["pair"][0] == number
            for name, total in (("nll", losses.totals["nll"]), ("tokens", num_tokens)):
                totals[f"{name}/{pair}"] = torch.where(is_of_pair, total, 0)
        return Losses(losses.loss, totals)

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        """Also for each pair that occurred by itself, and their mean."""
        found = super().validation_metrics(totals, num_items)
        seen = [str(pair) for pair in self.pairs if totals.get(f"tokens/{pair}")]
        by_pair = {f"nll/{pair}": totals[f"nll/{pair}"] / totals[f"tokens/{pair}"] for pair in seen}
        return {**found, MEAN: _mean(by_pair.values()), **by_pair} if seen else found

    def validation_names(self) -> tuple[str, ...]:
        """With those of all pairs, which the data of one language may lack."""
        return (*super().validation_names(), MEAN, *(f"nll/{pair}" for pair in self.pairs))

    @property
    def lower_is_better(self) -> frozenset[str]:  # type: ignore[override]
        return super().lower_is_better | {MEAN, *(f"nll/{pair}" for pair in self.pairs)}

    # Predicting

    @property
    def target(self) -> str | None:
        """The language that inputs are translated into unless they say it themselves, or a pair that has theirs too."""
        return self.recipe.generation.target or (self.languages[0] if len(self.languages) == 1 else None)

    @property
    def num_inputs(self) -> int:
        source, target = self._told(self.target)
        return 2 if target is None or (source is None and self._gated("encoder")) else 1

    @property
    def input_names(self) -> tuple[str, ...]:
        if self.num_inputs == 1:
            return ("text",)
        return ("pair of languages" if self._gated("encoder") else "language", "text")

    def inputs_of(self, example: Example) -> tuple[str, ...]:
        pair = _pair(example)
        return (str(pair) if self._gated("encoder") else pair.target, example.texts[0])

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        """Inputs are a text, or a language (or a pair of languages) and a text."""
        told = [self._told(self.target if len(of_row) == 1 else of_row[0].strip()) for of_row in texts]
        tokens = [self._token(target) for _, target in told]
        self._check_sources(told)
        sources = encoded(self.tokenizers.source, [of_row[-1] for of_row in texts])
        if self.placement == "source":
            begun = [np.concatenate([[token], ids]) for token, ids in zip(tokens, sources, strict=True)]
            return [LanguageRow(index, (ids,), None, languages=told[index]) for index, ids in enumerate(begun)]
        return [
            LanguageRow(index, (ids,), token, languages=told[index])
            for index, (ids, token) in enumerate(zip(sources, tokens, strict=True))
        ]

    def _told(self, languages: str | None) -> tuple[str | None, str | None]:
        """Source and target language of an input that names the target, or both as in ``en-de``."""
        if languages is None or "-" not in languages:
            return None, languages
        source, _, target = languages.partition("-")
        return source, target

    def _token(self, language: str | None) -> int | None:
        if language not in self.languages:
            problem = f"{language} is no language of this model" if language else "no language is named"
            raise LanguageError(problem, f"it writes {', '.join(self.languages)}; {self._remedy}")
        return self.tokens.get(language)

    def _check_sources(self, told: Sequence[tuple[str | None, str | None]]) -> None:
        if self._gated("encoder"):
            return  # which says itself what it has layers for
        for source, _ in told:
            if source is not None and source not in self._sources:
                known = ", ".join(self._sources)
                name = source or "an empty name"
                raise LanguageError(f"{name} is no language of its texts", f"it translates {known}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        """How the lines of a file name their languages."""
        what = f"both before each text, as in {self.pairs[0]}," if self._gated("encoder") else "one before each text,"
        return f"name {what} or generation.target for all"

    # Scoring

    def check_examples(self, examples: Sequence[Example]) -> None:
        wanted = self.recipe.generation.target
        if wanted is not None and any(
            wanted not in (_pair(example).target, str(_pair(example))) for example in examples
        ):
            raise InputError(
                f"generation.target={wanted} is not what all examples are, as their pairs say; set "
                "generation.target=null, and choose pairs with data.pairs=[...]"
            )

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        """For each metric the mean over pairs under its own name, and every pair under ``metric/pair``."""
        by_pair: dict[str, tuple[list[str], list[str]]] = {}
        for prediction, example in zip(predictions, examples, strict=True):
            ours, references = by_pair.setdefault(str(_pair(example)), ([], []))
            ours.append(prediction)
            references.append(example.texts[1])
        scores: dict[str, Score] = {}
        for name in self.metrics:
            found = {pair: score_texts(name, *texts) for pair, texts in by_pair.items()}
            first = next(iter(found.values()))
            mean = _mean([score.value for score in found.values()])
            scores[name] = Score(first.name, mean, f"mean:{len(found)} pairs|{first.signature}")
            scores |= {f"{name}/{pair}": score for pair, score in found.items()}
        return scores

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        """By the mean over pairs."""
        references = [example.texts[1] for example in examples]
        groups = [str(_pair(example)) for example in examples]
        if self.compared_by == EXACT_MATCH:
            here, there = ([(100.0 * right, 1.0) for right in matches(side, references)] for side in (ours, theirs))
            return compare_means_of_groups(here, there, groups, lambda sums: sums[..., 0] / sums[..., 1])
        bleu = BLEU_VARIANTS[self.compared_by]
        first, second = (bleu.counts(side, references) for side in (ours, theirs))
        return compare_means_of_groups(first, second, groups, lambda sums: bleu_of_counts(sums, bleu.smoothing))


def _pair(example: Example) -> LanguagePair:
    assert example.label is not None
    return LanguagePair.parse(example.label)


def _mean(values: Any) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
