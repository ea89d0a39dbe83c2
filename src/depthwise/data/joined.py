"""Several files as one corpus, one behind the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from depthwise.data.corpora import Corpus
from depthwise.data.lines import Example, LineReport

C = TypeVar("C", bound=Corpus)


@dataclass(frozen=True)
class JoinedCorpus(Generic[C]):
    """Corpora of one kind; an example names the file that it stands in."""

    parts: tuple[C, ...]

    @property
    def name(self) -> str:
        return ", ".join(part.name for part in self.parts)

    @property
    def num_texts(self) -> int:
        return self.parts[0].num_texts

    def num_lines(self) -> int:
        return sum(part.num_lines() for part in self.parts)

    def identity(self) -> dict[str, Any]:
        return {"kind": "joined", "parts": [part.identity() for part in self.parts]}

    def examples(self, report: LineReport) -> Iterator[Example]:
        for part in self.parts:
            yield from part.examples(report)
