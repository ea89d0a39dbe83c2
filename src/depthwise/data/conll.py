"""Tagged words in columns, as the CoNLL tasks publish them: a word per line, sentences apart by empty lines.

Columns are apart by blanks or tabs. Every line has as many as the first one, so that a missing column cannot pass for
another. A wrong line spoils its sentence: under the rule ``skip`` the whole sentence is left out and counts once.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from depthwise.data.corpora import file_identity
from depthwise.data.lines import Example, Fault, LineReport, LineRules, read_lines
from depthwise.data.tags import OUTSIDE, SCHEMES, contradictions, detect_scheme, to_iob2
from depthwise.errors import ConfigError, Problem

DOCUMENT_START = "-DOCSTART-"
READ_AS = ("auto", *SCHEMES, "plain")
BLANKS = re.compile(r"[ \t]+")


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words, a tag for each, and the line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    file: str
    line: int


@dataclass(frozen=True)
class ConllColumns:
    """A file of tagged words as a corpus. As examples, words are joined by blanks, and tags, the label, likewise."""

    path: Path
    word_column: int = 0
    tag_column: int = -1
    """Columns are counted from 0, or from the end with -1 for the last."""
    scheme: str = "auto"
    """How tags are written: ``iob1``, ``iob2``, ``bioes``, what ``auto`` makes of them, or ``plain``, which takes tags
    as they are, for those that mark no entities. All but ``plain`` give IOB2."""

    def __post_init__(self) -> None:
        problems = []
        if self.scheme not in READ_AS:
            problems.append(Problem("scheme", f'"{self.scheme}" is none of {", ".join(READ_AS)}'))
        if self.word_column == self.tag_column:
            problems.append(Problem("tag_column", f"{self.tag_column} is the column of the words; give another"))
        if problems:
            raise ConfigError("data", problems)

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def num_texts(self) -> int:
        return 1

    def num_lines(self) -> int:
        """How many sentences there are, good or bad."""
        count, inside = 0, False
        for line in read_lines(self.path, LineRules().max_chars):
            columns = [] if isinstance(line, Fault) else BLANKS.split(line.strip(" \t"))
            ends = _ends_sentence(line, columns)
            count, inside = count + (not ends and not inside), not ends
        return count

    def identity(self) -> dict[str, Any]:
        columns = [self.word_column, self.tag_column]
        return {"kind": "conll", "columns": columns, "scheme": self.scheme, "files": [file_identity(self.path)]}

    def examples(self, report: LineReport) -> Iterator[Example]:
        for sentence in self.sentences(report):
            yield Example((" ".join(sentence.words),), " ".join(sentence.tags), sentence.file, sentence.line)

    def sentences(self, report: LineReport) -> Iterator[TaggedSentence]:
        """The good sentences in order, with tags in IOB2."""
        scheme = self.detected_scheme(report.rules) if self.scheme == "auto" else self.scheme
        for sentence in self._as_written(report):
            if scheme == "plain":
                yield sentence
                continue
            wrong = next(contradictions(sentence.tags, scheme), None)
            if wrong is None:
                yield replace(sentence, tags=tuple(to_iob2(sentence.tags, scheme)))
            else:
                place, message = wrong
                report.bad(self.path, sentence.line + place, Fault("bad_tag", message, sentence.words[place]))

    def detected_scheme(self, rules: LineRules) -> str:
        """What ``auto`` takes the file for: see ``tags.detect_scheme``."""
        patient = LineReport(replace(rules, on_bad_line="skip"))
        return detect_scheme(sentence.tags for sentence in self._as_written(patient))

    def _as_written(self, report: LineReport) -> Iterator[TaggedSentence]:
        """Sentences with the tags of the file."""
        words: list[tuple[str, str]] = []
        begin, num_columns, spoilt = 1, None, False
        for number, line in enumerate(read_lines(self.path, report.rules.max_chars), start=1):
            columns = [] if isinstance(line, Fault) else BLANKS.split(line.strip(" \t"))
            if _ends_sentence(line, columns):
                if words and not spoilt:
                    yield self._sentence(words, begin)
                words, begin, spoilt = [], number + 1, False
                continue
            num_columns = num_columns or len(columns) or None
            fault = line if isinstance(line, Fault) else self._fault(columns, num_columns)
            if fault is None:
                words.append((columns[self.word_column], columns[self.tag_column]))
            elif not spoilt:
                report.bad(self.path, number, fault)
                spoilt = True
        if words and not spoilt:
            yield self._sentence(words, begin)

    def _fault(self, columns: list[str], num_columns: int | None) -> Fault | None:
        line = " ".join(columns)
        if len(columns) != num_columns:
            kind = "missing_column" if len(columns) < (num_columns or 0) else "extra_column"
            return Fault(kind, f"the line has {len(columns)} columns but the first one has {num_columns}", line)
        places = [column if column >= 0 else column + len(columns) for column in (self.word_column, self.tag_column)]
        for name, column, place in zip(("word", "tag"), (self.word_column, self.tag_column), places, strict=True):
            if not 0 <= place < len(columns):
                message = f"there is no {name}_column {column}, because the line has {len(columns)} columns"
                return Fault("missing_column", message, line)
        if places[0] == places[1]:
            return Fault("missing_column", "word_column and tag_column are the same column of the line", line)
        return None

    def _sentence(self, words: list[tuple[str, str]], line: int) -> TaggedSentence:
        return TaggedSentence(tuple(word for word, _ in words), tuple(tag for _, tag in words), str(self.path), line)


def tag_names(sentences: Iterable[TaggedSentence]) -> tuple[str, ...]:
    """All tags that occur, ``O`` first and the others by type; of each type that has ``B-`` or ``I-``, both."""
    found = {tag for sentence in sentences for tag in sentence.tags}
    begun = {f"{prefix}-{tag[2:]}" for tag in found if tag[:2] in ("B-", "I-") for prefix in "BI"}
    every = found | begun | ({OUTSIDE} if begun else set())
    return tuple(sorted(every, key=lambda tag: (tag != OUTSIDE, tag.partition("-")[2], tag)))


def _ends_sentence(line: str | Fault, columns: list[str]) -> bool:
    return line.kind == "empty" if isinstance(line, Fault) else DOCUMENT_START in columns
