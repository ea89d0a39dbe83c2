"""Questions with long contexts as rows: the question and a window of the context, as many windows as it takes.

Neighbouring windows overlap, so that an answer cut by the end of one is whole in the next. The labels are the first and
the last token of the first answer where the window holds all of it, and otherwise the window's null position, which
says that there is no answer here: the first special token of the row (``[CLS]`` of BERT, and of tokenizers that begin
with none the token that ends the question).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from depthwise.data.collate import IGNORED, padded, second_types
from depthwise.data.lines import Fault, LineReport
from depthwise.data.rows import IdRow
from depthwise.data.squad import Answer, Question
from depthwise.data.templates import Pieces, fast_tokenizer, pair_template, pieces_of
from depthwise.data.words import TextMarks
from depthwise.errors import ConfigError, DataError, Problem
from depthwise.shapes import Tensor


@dataclass(frozen=True)
class WindowOptions:
    """How contexts are cut."""

    max_tokens: int = 384
    """The most ids of a row: question, window and special tokens."""
    stride: int = 128
    """How many tokens of the context a window begins behind the one before, at most the width of a window."""
    max_question_tokens: int = 64
    """Longer questions lose their end."""

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{getattr(self, name)} leaves nothing; give at least 1")
            for name in ("max_tokens", "stride", "max_question_tokens")
            if getattr(self, name) < 1
        ]
        if self.max_question_tokens >= self.max_tokens:
            problem = f"{self.max_question_tokens} leaves no room for a context; give less than max_tokens"
            problems.append(Problem("max_question_tokens", problem))
        if problems:
            raise ConfigError("data", problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWindow(IdRow):
    """A row: which question it is of, where its context begins, and the characters each of its tokens is made from.

    ``label`` is the place of the first and of the last token of the answer, null where the window has none, and
    ``None`` where no answer is wanted.
    """

    question: int
    first: int
    null: int
    offsets: npt.NDArray[np.int32]
    label: tuple[int, int] | None = None


@dataclass(frozen=True)
class AnswerCollator:
    """``input_ids``, ``attention_mask`` and, for rows with labels, ``labels`` (B, 2), -100 for ignored rows.

    With ``token_types`` there are ``token_type_ids`` too, 1 from the beginning of the context on.
    """

    pad_id: int
    token_types: bool = False

    def __call__(self, rows: Sequence[AnswerWindow]) -> dict[str, Tensor]:
        ids, valid = padded([row.ids for row in rows], self.pad_id)
        batch = {"input_ids": ids, "attention_mask": valid.long()}
        if self.token_types:
            batch["token_type_ids"] = second_types([row.first for row in rows], batch["attention_mask"])
        labels = [row.label for row in rows if row.label is not None]
        if len(labels) == len(rows):
            ignored = torch.tensor([row.ignored for row in rows])
            batch["labels"] = torch.tensor(labels).masked_fill(ignored[:, None], IGNORED)
        return batch


def question_windows(
    questions: Iterable[Question],
    tokenizer: PreTrainedTokenizerBase,
    options: WindowOptions,
    report: LineReport,
    *,
    labelled: bool = True,
    marks: TextMarks | None = None,
) -> list[AnswerWindow]:
    """All windows of all questions, in order; ``AnswerWindow.question`` counts the questions as they come.

    With ``marks``, every id has the number of its word beside it.
    """
    fast, template = fast_tokenizer(tokenizer), pair_template(tokenizer)
    if not (template.before or template.between):
        raise DataError("the tokenizer puts no special token before or between two texts; use one that does")
    if options.max_question_tokens + template.num_special >= options.max_tokens:
        problem = f"{options.max_tokens} leaves no room for a context beside question and special tokens; give more"
        raise ConfigError("data", [Problem("max_tokens", problem)])
    rows: list[AnswerWindow] = []
    context, pieces = None, Pieces(np.empty(0, np.int32), np.empty((0, 2), np.int32))
    of_context = np.empty(0, np.uint16)
    for number, question in enumerate(questions):
        asking = pieces_of(question.question, fast)
        asked = asking.ids
        if question.context != context:  # questions about the same paragraph follow each other
            context, pieces = question.context, pieces_of(question.context, fast)
            of_context = of_context if marks is None else marks.of_pieces(context, pieces.offsets)
        answer = question.answers[0] if labelled and question.answers else None
        span = None if answer is None else token_span(answer, pieces)
        kept = {"question": len(asked), "context": len(pieces.ids), "answer": answer is None or span is not None}
        if not all(kept.values()):
            what = next(name for name, is_there in kept.items() if not is_there)
            fault = Fault("no_pieces", f"the tokenizer makes nothing of the {what}", question.question)
            report.left_out(question.file, question.line, fault)
            continue
        report.num_kept += 1
        report.num_cut += len(asked) > options.max_question_tokens
        asked = asked[: options.max_question_tokens]
        first = len(template.before) + len(asked) + len(template.between)
        null = 0 if template.before else len(asked)
        width = options.max_tokens - template.num_special - len(asked)
        for begin in _begins(len(pieces.ids), width, options.stride):
            window = slice(begin, begin + width)
            label = _label(span, first - begin, window, null) if labelled else None
            ids = template.joined(asked, pieces.ids[window])
            offsets, marked = pieces.offsets[window], None
            if marks is not None:
                of_question = marks.of_pieces(question.question, asking.offsets[: len(asked)])
                marked = template.marked(of_question, of_context[window])
            row = AnswerWindow(ids, question=number, first=first, null=null, offsets=offsets, label=label, marks=marked)
            rows.append(row)
    return rows


def token_span(answer: Answer, pieces: Pieces) -> tuple[int, int] | None:
    """The first and the last token that an answer has characters of, if the tokenizer kept any of them."""
    end = answer.start + len(answer.text)
    touched = np.flatnonzero((pieces.offsets[:, 1] > answer.start) & (pieces.offsets[:, 0] < end))
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


def _begins(num_tokens: int, width: int, stride: int) -> list[int]:
    """Where windows begin: they leave no token out, and none lies wholly inside the one before."""
    stride = min(stride, width)
    return [0, *range(stride, num_tokens - width + stride, stride)]


def _label(span: tuple[int, int] | None, shift: int, window: slice, null: int) -> tuple[int, int]:
    if span is None or span[0] < window.start or span[1] >= window.stop:
        return null, null
    return span[0] + shift, span[1] + shift
