"""Tokenise a corpus once, and find it again.

A store lies in the cache (``kept``) under a key made of the content of its files, the tokenizers and the options; where
the files lie does not matter. Its report names files as they were called when it was written.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from depthwise.data.corpora import Corpus
from depthwise.data.kept import kept
from depthwise.data.labels import LabelColumn
from depthwise.data.lines import Example, Fault, LineReport, LineRules
from depthwise.data.progress import shown
from depthwise.data.store import (
    FORMAT,
    LABELS,
    LINES,
    MARKS,
    OFFSETS,
    TokenStore,
    marks_file,
    offsets_file,
    token_type,
    tokens_file,
    write_meta,
)
from depthwise.data.tokenizers import encoded
from depthwise.data.words import TextMarks, encoded_with_marks
from depthwise.errors import ConfigError, DataError, Problem

TOO_LONG = ("skip", "cut")
CHUNK_LINES, CHUNK_CHARACTERS = 8192, 4_000_000
"""How much is tokenised at a time: enough to keep all cores busy, little enough to fit anywhere."""


@dataclass(frozen=True)
class StoreOptions:
    """What becomes of examples on their way into a store."""

    rules: LineRules = field(default_factory=LineRules)
    max_tokens: int | tuple[int | None, ...] | None = None
    """The most ids a text may have, its end of sequence included: one number for all texts, or one for each."""
    too_long: str = "skip"
    """Whether an example with a longer text is left out or the text is ``cut``, keeping its end of sequence."""
    label_kind: str | None = None
    """What labels are: names of a ``class``, a ``number``, or nothing to be kept."""
    label_names: tuple[str, ...] | None = None
    """The classes in their order, as training saw them; without them, those of this corpus, sorted."""

    def __post_init__(self) -> None:
        problems = []
        limits = self.max_tokens if isinstance(self.max_tokens, tuple) else (self.max_tokens,)
        for limit in limits:
            if limit is not None and limit < 2:
                problems.append(Problem("max_tokens", f"{limit} leaves nothing beside the end; give at least 2"))
        if self.too_long not in TOO_LONG:
            problems.append(Problem("too_long", f'"{self.too_long}" is none of {", ".join(TOO_LONG)}'))
        if self.label_kind not in (None, "class", "number"):
            problems.append(Problem("label_kind", f'"{self.label_kind}" is none of class, number'))
        if problems:
            raise ConfigError("data", problems)

    def limits(self, num_texts: int) -> tuple[int | None, ...]:
        """The most ids of each text of an example."""
        if not isinstance(self.max_tokens, tuple):
            return (self.max_tokens,) * num_texts
        assert len(self.max_tokens) == num_texts
        return self.max_tokens


def build_store(
    corpus: Corpus,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    options: StoreOptions,
    cache: Path,
    marks: TextMarks | None = None,
) -> TokenStore:
    """The tokenised corpus, from the cache if it is there and whole. Each text has its own tokenizer, in order.

    With ``marks``, every id has the number of its word beside it.
    """
    assert len(tokenizers) == corpus.num_texts
    place = kept(
        cache / store_key(corpus, tokenizers, options, marks),
        lambda folder: _write(folder, corpus, tokenizers, options, marks),
        what="the tokenised corpus",
        again=f"{corpus.name} is tokenised again",
    )
    return TokenStore(place)


def store_key(
    corpus: Corpus,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    options: StoreOptions,
    marks: TextMarks | None = None,
) -> str:
    """A name for all that decides the content of a store."""
    parts = {
        "format": FORMAT,
        "corpus": corpus.identity(),
        "tokenizers": [tokenizer_identity(tokenizer) for tokenizer in tokenizers],
        "options": asdict(options),
        **({} if marks is None else {"marks": marks.identity}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of how a tokenizer splits text. How it last padded or truncated a batch is no part of that."""
    digest = hashlib.sha256(f"{type(tokenizer).__name__} {tokenizer.split_special_tokens}".encode())
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content.update(padding=None, truncation=None)
        digest.update(json.dumps(content, sort_keys=True).encode())
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _write(
    folder: Path,
    corpus: Corpus,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    options: StoreOptions,
    marks: TextMarks | None,
) -> None:
    report = LineReport(options.rules)
    vocab_size = max(len(tokenizer) for tokenizer in tokenizers)
    labels = None if options.label_kind is None else LabelColumn(options.label_kind, options.label_names)
    examples = shown(corpus.examples(report), f"tokenising {corpus.name}", corpus.num_lines())
    with ExitStack() as stack:
        writer = _Writer(folder, stack, corpus.num_texts, vocab_size, labels, has_marks=marks is not None)
        for chunk in _chunks(examples):
            writer.add(chunk, _encoded(chunk, tokenizers, marks), options, report)
    if report.num_kept == 0:
        raise DataError(f"{corpus.name}: no line can be used; {report.summary()}")
    if labels is not None:
        labels.finish(folder / LABELS)
    meta = {
        "num_texts": corpus.num_texts,
        "vocab_size": vocab_size,
        "has_marks": marks is not None,
        "label_kind": options.label_kind,
        "label_names": None if labels is None else labels.names,
        "report": report.as_dict(),
    }
    write_meta(folder, meta, sorted(path.name for path in folder.iterdir()))


def _chunks(examples: Iterable[Example]) -> Iterator[list[Example]]:
    chunk: list[Example] = []
    num_characters = 0
    for example in examples:
        chunk.append(example)
        num_characters += sum(map(len, example.texts))
        if len(chunk) >= CHUNK_LINES or num_characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, num_characters = [], 0
    if chunk:
        yield chunk


Side = tuple[list[list[int]], list[list[int]] | None]
"""Ids of the first texts of examples, or of the second, and the marks of those ids."""


def _encoded(
    chunk: list[Example], tokenizers: Sequence[PreTrainedTokenizerBase], marks: TextMarks | None
) -> list[Side]:
    """Ids of all texts, side by side."""
    sides: list[Side] = []
    for text, tokenizer in enumerate(tokenizers):
        texts = [example.texts[text] for example in chunk]
        if marks is None:
            sides.append((encoded(tokenizer, texts), None))
        else:
            sides.append(encoded_with_marks(tokenizer, texts, marks))
    return sides


class _Writer:
    """Appends examples to the files of a store."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        num_texts: int,
        vocab_size: int,
        labels: LabelColumn | None,
        *,
        has_marks: bool,
    ) -> None:
        def created(name: str) -> IO[bytes]:
            return stack.enter_context((folder / name).open("wb"))

        self.dtype = token_type(vocab_size)
        self.tokens = [created(tokens_file(text)) for text in range(num_texts)]
        self.offsets = [created(offsets_file(text)) for text in range(num_texts)]
        self.marks = [created(marks_file(text)) for text in range(num_texts if has_marks else 0)]
        self.ends = [0] * num_texts
        for file in self.offsets:
            file.write(np.zeros(1, OFFSETS).tobytes())
        self.lines = created(LINES)
        self.labels = labels
        self.label_file = None if labels is None else created(LABELS)

    def add(self, chunk: list[Example], sides: list[Side], options: StoreOptions, report: LineReport) -> None:
        kept: list[int] = []
        values: list[int | float] = []
        for row, example in enumerate(chunk):
            value = None if self.labels is None else self.labels.value(example)
            if isinstance(value, Fault):
                report.bad(example.file, example.line, value)
                continue
            of_row = [(ids[row], None if marks is None else marks[row]) for ids, marks in sides]
            if not _fit(of_row, example, options, report):
                continue
            kept.append(row)
            if value is not None:
                values.append(value)
        report.num_kept += len(kept)
        for text, (ids, marks) in enumerate(sides):
            self._add_text(text, [ids[row] for row in kept])
            if marks is not None:
                self.marks[text].write(np.array([mark for row in kept for mark in marks[row]], MARKS).tobytes())
        self.lines.write(np.array([chunk[row].line for row in kept], OFFSETS).tobytes())
        if self.label_file is not None and self.labels is not None:
            self.label_file.write(np.array(values, self.labels.dtype).tobytes())

    def _add_text(self, text: int, rows: list[list[int]]) -> None:
        for ids in rows:
            self.tokens[text].write(np.array(ids, self.dtype).tobytes())
        ends = self.ends[text] + np.cumsum([len(ids) for ids in rows], dtype=OFFSETS)
        self.offsets[text].write(ends.tobytes())
        self.ends[text] = int(ends[-1]) if len(ends) else self.ends[text]


def _fit(
    texts: list[tuple[list[int], list[int] | None]], example: Example, options: StoreOptions, report: LineReport
) -> bool:
    """Whether the texts, cut in place if that is the rule, are short enough; takes note of those that were not."""
    pairs = zip(texts, options.limits(len(texts)), strict=True)
    over = [(ids, marks, limit) for (ids, marks), limit in pairs if limit is not None and len(ids) > limit]
    if not over:
        return True
    if options.too_long == "skip":
        longest, limit = max((len(ids), limit) for ids, _, limit in over)
        message = f"a text has {longest:,} tokens, more than max_tokens={limit:,}"
        report.left_out(example.file, example.line, Fault("too_many_tokens", message, example.texts[0]))
        return False
    for ids, marks, limit in over:
        for numbers in (ids, marks):
            if numbers is not None:
                numbers[limit - 1 : -1] = []
    report.num_cut += 1
    return True
