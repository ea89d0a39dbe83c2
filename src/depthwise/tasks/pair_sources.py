"""From the names in a recipe to the corpora of several pairs of languages.

``{pair}``, ``{source}`` and ``{target}`` in a name stand for the pair and its languages:

    train.{pair}           train.en-de.en, train.en-de.de
    {pair}/train           en-de/train.en, en-de/train.de
    train                  train.en, train.de, train.fr: texts that are parallel in all languages
    {source}/{target}.tsv  en/de.tsv
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from depthwise.config import DataConfig
from depthwise.data import Corpus, LanguagePair, PairCorpora, TabbedPairs
from depthwise.errors import ConfigError, DataError, Problem
from depthwise.tasks.sources import pairs

PLACEHOLDERS = ("pair", "source", "target")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def language_pairs(data: DataConfig) -> tuple[LanguagePair, ...]:
    """The directions that a recipe names."""
    if not data.pairs:
        message = "is missing; name the directions, as in data.pairs=[en-de,en-fr]"
        raise ConfigError("recipe", [Problem("data.pairs", message)])
    return tuple(LanguagePair.parse(text) for text in data.pairs)


def pair_corpora(data: DataConfig, files: tuple[str, ...]) -> PairCorpora:
    """The corpus of every pair."""
    found: dict[str, Corpus] = {}
    for pair in language_pairs(data):
        corpus = _corpus(data, files, pair)
        for name, other in found.items():
            if other == corpus:
                raise DataError(f"{', '.join(files)} is the same for {name} and {pair}; put {{pair}} where they differ")
        found[str(pair)] = corpus
    return PairCorpora(found)


def _corpus(data: DataConfig, files: tuple[str, ...], pair: LanguagePair) -> Corpus:
    """That of the pair by its name or, if only that exists and languages can be told apart, of its reverse."""
    candidates = [_named(data, files, pair, name) for name in _names(data, files, pair)]
    for corpus in candidates[1:]:
        if not _exists(candidates[0]) and _exists(corpus):
            return corpus
    return candidates[0]


def _names(data: DataConfig, files: tuple[str, ...], pair: LanguagePair) -> Iterator[str]:
    yield str(pair)
    if len(files) == 1 and "," not in files[0] and data.hub is None:
        yield f"{pair.target}-{pair.source}"


def _named(data: DataConfig, files: tuple[str, ...], pair: LanguagePair, name: str) -> Corpus:
    values = {"pair": name, "source": pair.source, "target": pair.target}

    def filled(text: str) -> str:
        for match in _PLACEHOLDER.finditer(text):
            if match[1] not in values:
                known = ", ".join(f"{{{value}}}" for value in PLACEHOLDERS)
                raise DataError(f"{text}: {match[0]} stands for nothing; write {known}")
        return _PLACEHOLDER.sub(lambda match: values[match[1]], text)

    of_pair = replace(
        data,
        source=filled(data.source or "{source}"),
        target=filled(data.target or "{target}"),
        hub=None if data.hub is None else filled(data.hub),
        hub_config=None if data.hub_config is None else filled(data.hub_config),
    )
    return pairs(of_pair, tuple(filled(file) for file in files))


def _exists(corpus: Corpus) -> bool:
    """Whether the files of a corpus are there, and say which text is in which language."""
    if isinstance(corpus, TabbedPairs):
        return False
    paths = [value for value in vars(corpus).values() if isinstance(value, Path)]
    return all(path.exists() for path in paths)
