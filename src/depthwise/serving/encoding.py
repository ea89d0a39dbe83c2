"""Runs that say something about a text: its class, the tags of its words, the answer to a question."""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from depthwise.data import Row
from depthwise.errors import InputError
from depthwise.evaluation.depths import recorded_depths
from depthwise.evaluation.runs import Run
from depthwise.models.executing import executed_by
from depthwise.serving.depth_choices import Setting
from depthwise.serving.gathering import Gathering, Timed
from depthwise.serving.generating import use_policy_of
from depthwise.serving.options import ServingOptions
from depthwise.serving.pieces import check_text, pieces_of
from depthwise.serving.refusals import Refused
from depthwise.serving.served import Served
from depthwise.shapes import Tensor
from depthwise.tasks.encoding import inputs_in, placed
from depthwise.tasks.question_answering import QuestionAnswering, QuestionRow
from depthwise.tasks.tagging import SentenceRow, Tagging
from depthwise.tasks.text_classification import TextClassification


@dataclass(frozen=True)
class Reading:
    """What was found about one row, in the words of its kind, and how deep its tokens ran."""

    value: Any
    depths: tuple[int, ...]


class EncoderServed(Served):
    """A run whose model reads each input once. Inputs that are asked for at the same setting are read together."""

    def __init__(self, name: str, run: Run, options: ServingOptions) -> None:
        super().__init__(name, run, options)
        self._batches: Gathering[Row, Reading] = Gathering(
            self._read,
            max_rows=options.max_rows,
            max_wait=options.max_wait,
            max_waiting=options.limits.waiting,
            max_size=self.task.recipe.evaluation.batch_tokens,
        )

    def prepared(self, *texts: str) -> Row:
        """An input as ids."""
        for text in texts:
            try:
                check_text(text, "the text")
            except ValueError as error:
                raise Refused(422, *str(error).split("; ")) from None
            if not text.strip():
                raise Refused(422, "the text is empty", "give one")
        try:
            (row,) = self.task.whole_rows([texts])
        except InputError as error:
            raise Refused.because(error) from None
        self.check_length(self.num_tokens(row))
        return row

    def num_tokens(self, row: Row) -> int:
        """What its length is measured by."""
        return int(self.task.row_lengths([row])[0].sum())

    def submit(self, row: Row, setting: Setting) -> "Future[Timed[Reading]]":
        return self._batches.submit(setting, row, self.num_tokens(row))

    def _read(self, setting: Hashable, rows: list[Row]) -> list[Reading]:
        assert isinstance(setting, Setting)
        model = self.run.model
        use_policy_of(model, setting)
        hook = model.register_forward_pre_hook(_depth_of_words(setting), with_kwargs=True)
        try:
            with torch.inference_mode(), executed_by(self.run.engine.executor):
                return self.readings(rows)
        finally:
            hook.remove()

    @abstractmethod
    def readings(self, rows: Sequence[Row]) -> list[Reading]:
        """What the model says about rows, which one batch can hold."""

    @property
    def num_waiting(self) -> int:
        return self._batches.num_waiting

    @property
    def num_running(self) -> int:
        return self._batches.num_running

    def warm_up(self) -> None:
        row = self.prepared(*["a"] * self.task.num_inputs)
        self.submit(row, self.setting(None)).result()

    def close(self) -> None:
        super().close()
        self._batches.close()


def _depth_of_words(setting: Setting) -> Any:
    """Where words have depths of their own and another one is asked for, all tokens have that."""

    def change(_: Any, arguments: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        depths: Tensor | None = given.get("depths")
        if depths is None or setting.word_depth is None:
            return arguments, given
        return arguments, {**given, "depths": torch.where(depths > 0, setting.word_depth, 0)}

    return change


class ClassesServed(EncoderServed):
    """Classes, or numbers."""

    kind = "classify"

    def readings(self, rows: Sequence[Row]) -> list[Reading]:
        task = self.task
        assert isinstance(task, TextClassification)
        batch = placed(task.collate(rows), self.run.device)
        output = self.run.model(**inputs_in(batch))
        ids, lengths = batch["input_ids"].tolist(), batch["attention_mask"].sum(1).tolist()
        logits = output.logits.double()
        values = (logits[:, 0] if task.is_regression else logits.softmax(-1)).tolist()
        return [
            Reading((value, pieces_of(task.tokenizers.source, row[:length])), tuple(depths[:length]))
            for value, row, length, depths in zip(values, ids, lengths, output.depths.tolist(), strict=True)
        ]

    @property
    def input_tokens(self) -> int:
        most = self.task.max_tokens
        return self.options.limits.input_tokens if most is None else min(self.options.limits.input_tokens, most)

    @property
    def labels(self) -> list[str] | None:
        assert isinstance(self.task, TextClassification)
        return None if self.task.is_regression else list(self.task.label_names)

    @property
    def takes_pairs(self) -> bool:
        return self.task.num_inputs == 2


class TagsServed(EncoderServed):
    """Tags of words."""

    kind = "tag"

    def prepared(self, *texts: str) -> Row:
        row = super().prepared(*texts)
        assert isinstance(row, SentenceRow)
        return row

    def num_tokens(self, row: Row) -> int:
        return max(1, len(row.texts[0]))

    def readings(self, rows: Sequence[Row]) -> list[Reading]:
        found = []
        for row, said in zip(rows, self.task.predictions(self.run.model, rows), strict=True):
            assert isinstance(row, SentenceRow)
            depths = iter(said.depths)
            of_words = [0] * row.num_words
            for part in row.parts:
                ran = [next(depths) for _ in part.ids]
                for place, word in zip(*(each.tolist() for each in part.firsts()), strict=True):
                    of_words[word] = ran[place]
            tags = [tag for tag in said.text.split(" ") if tag]
            found.append(Reading(list(zip(tags, of_words, strict=True)), said.depths))
        return found

    @property
    def labels(self) -> list[str] | None:
        assert isinstance(self.task, Tagging)
        return list(self.task.label_names)

    @property
    def input_tokens(self) -> int:
        return self.options.limits.input_tokens  # long sentences are read in parts


class AnswersServed(EncoderServed):
    """Answers to questions."""

    kind = "answer"

    def num_tokens(self, row: Row) -> int:
        assert isinstance(row, QuestionRow)
        return sum(len(window.ids) for window in row.windows)

    def readings(self, rows: Sequence[Row]) -> list[Reading]:
        task = self.task
        assert isinstance(task, QuestionAnswering)
        with recorded_depths(self.run.model) as depths:
            answers = task.answers(self.run.model, rows)
        ran, found = iter(depths()), []
        for row, answer in zip(rows, answers, strict=True):
            assert isinstance(row, QuestionRow)
            of_row = tuple(depth for _ in row.windows for depth in next(ran))
            found.append(Reading((answer, task.answer_options.null_threshold), of_row))
        return found

    @property
    def input_tokens(self) -> int:
        return self.options.limits.input_tokens  # long contexts are read in windows
