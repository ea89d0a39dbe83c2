"""The corpora of several pairs of languages as one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from depthwise.data.corpora import Corpus
from depthwise.data.lines import Example, LineReport


class PairCorpora:
    """One pair after the other. The label of an example is the name of its pair, such as ``en-de``."""

    def __init__(self, corpora: Mapping[str, Corpus]) -> None:
        assert corpora
        self.corpora = dict(corpora)

    @property
    def name(self) -> str:
        return ", ".join(corpus.name for corpus in self.corpora.values())

    @property
    def num_texts(self) -> int:
        return 2

    def num_lines(self) -> int:
        return sum(corpus.num_lines() for corpus in self.corpora.values())

    def identity(self) -> dict[str, Any]:
        return {"kind": "pairs", "pairs": [[pair, corpus.identity()] for pair, corpus in self.corpora.items()]}

    def examples(self, report: LineReport) -> Iterator[Example]:
        for pair, corpus in self.corpora.items():
            for example in corpus.examples(report):
                yield replace(example, label=pair)
