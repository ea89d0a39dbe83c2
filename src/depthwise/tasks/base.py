"""What a task is: the seam between a recipe, its data, a model and its scores.

Training takes batches from a task's stores and its losses. Evaluation and prediction take text, which the task turns
into rows, and get predictions back, which the task scores. A new task is a new file beside this one and a line in
``build``.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from depthwise.config import PRETRAINED, ModelConfig, Recipe, as_dict, model_options, with_vocabulary
from depthwise.data import (
    BatchOptions,
    Corpus,
    Example,
    LineRules,
    Row,
    StoreOptions,
    TokenBatches,
    Tokenizers,
    TokenStore,
    build_store,
)
from depthwise.data.collate import IGNORED, lengthened
from depthwise.errors import ConfigError, DataError, Problem
from depthwise.metrics import Comparison, Score
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.pretrained import DepthwisePreTrainedModel
from depthwise.shapes import Tensor
from depthwise.tasks.encoding import least, placed, shortened
from depthwise.tasks.exit_training import NLL, ExitTraining, exit_training
from depthwise.tasks.latent_training import LatentTraining, latent_training
from depthwise.tasks.pretrained import pretrained_model
from depthwise.tasks.run_folder import cache_folder
from depthwise.tasks.sources import SPLITS
from depthwise.tasks.values import Examples, Losses, Prediction

DEFAULT_BATCH_TOKENS = 4096
GRAPH_LENGTHS = 4
"""Lengths are multiples of this where the GPU repeats recorded passes, so that there are few shapes to record."""
SCORES_AT_ONCE = 1 << 27
"""Bounds memory: scores of the vocabulary that exist at the same time, at most."""


class Task(ABC):
    """One kind of learning, for the data and the options of one recipe."""

    kind: ClassVar[str]
    """Its name in recipes."""
    item: ClassVar[str] = "tokens"
    """What its losses are counted by."""
    model_class: ClassVar[type[DepthwisePreTrainedModel]]
    metric: ClassVar[str]
    """What decides which checkpoint is best, unless the recipe says otherwise."""
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"loss", "nll", "perplexity", "squared_error"})
    scored_by: ClassVar[str] = "predictions"
    """What is judged: its ``predictions``, or the ``likelihood`` that it gives the text (``likelihood``)."""
    too_long: ClassVar[str]
    """What becomes of training examples that the model cannot take whole: ``skip``, ``cut`` or ``split``."""
    has_lines: ClassVar[bool] = True
    """Whether every example stands on a line of its own."""

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers) -> None:
        self.recipe, self.tokenizers = recipe, tokenizers
        for name in _LEARNED:
            if getattr(recipe.training, name) is not None or recipe.model.get(name) is not None:
                getattr(self, name)  # refuses what this model cannot learn
        unknown = [name for name in self.metrics if name not in self.known_metrics()]
        if unknown:
            known = ", ".join(self.known_metrics())
            problems = [Problem("evaluation.metrics", f'"{name}" is none of {known}') for name in unknown]
            raise ConfigError(f"task {self.kind}", problems)

    # Data

    @abstractmethod
    def corpus(self, split: str) -> Corpus:
        """The examples of a split as they were written."""

    @property
    def rules(self) -> LineRules:
        return LineRules(self.recipe.data.on_bad_line, self.recipe.data.max_chars)

    @property
    def cache(self) -> Path:
        """Where tokenised corpora are kept."""
        return cache_folder(self.recipe.data.cache)

    def examples(self, split: str) -> Examples:
        """What training and validation go through."""
        return self.store(split)

    def store(self, split: str) -> TokenStore:
        """The tokenised examples of a split, from the cache if they were tokenised before."""
        corpus = self.corpus(split)
        return build_store(corpus, self._tokenizers_of(corpus), self.store_options(split), self.cache)

    def store_options(self, split: str) -> StoreOptions:
        data = self.recipe.data
        limit = least(data.max_tokens, self.max_tokens)
        return StoreOptions(rules=self.rules, max_tokens=limit, too_long=data.too_long or self.too_long)

    @abstractmethod
    def _tokenizers_of(self, corpus: Corpus) -> Sequence[PreTrainedTokenizerBase]:
        """The tokenizer of each text of an example."""

    def lengths(self, examples: Any) -> npt.NDArray[np.int32]:
        """What batches are measured by: the length of each text that the model sees by itself."""
        found: npt.NDArray[np.int32] = examples.lengths()
        return found

    def batches(self, examples: Examples, *, rank: int = 0, world_size: int = 1) -> TokenBatches:
        """The batches of training, those of this process if there are several."""
        training = self.recipe.training
        tokens = training.batch_tokens
        if tokens is None and training.batch_rows is None:
            tokens = DEFAULT_BATCH_TOKENS
        options = BatchOptions(
            max_tokens=tokens,
            max_rows=training.batch_rows,
            seed=self.recipe.seed,
            pad_to_multiple=self.length_multiple,
        )
        return self.batches_of(examples, options, rank=rank, world_size=world_size)

    def batches_of(
        self, examples: Examples, options: BatchOptions, *, rank: int = 0, world_size: int = 1
    ) -> TokenBatches:
        """The batches of training or, ``sorted``, of validation."""
        return TokenBatches(self.lengths(examples), options, rank=rank, world_size=world_size)

    def set_epoch(self, examples: Examples, epoch: int) -> None:  # noqa: B027 (most tasks have nothing to draw)
        """What is drawn anew for every epoch, such as masks, follows from its number."""

    @property
    @abstractmethod
    def max_tokens(self) -> int | None:
        """The most tokens of a text that the model can take; none means that there is no limit."""

    # Model

    @cached_property
    def options(self) -> ModelConfig:
        """The options of the recipe's model for these tokenizers."""
        given = model_options(self.recipe.model)
        source, target = len(self.tokenizers.source), len(self.tokenizers.target)
        if PRETRAINED in self.recipe.model:  # whose embeddings may have spare types
            target = max(target, given.get("vocab_size") or 0)
            source = max(source, given.get("source_vocab_size") or given.get("vocab_size") or 0)
        return with_vocabulary(given, source, target)

    @cached_property
    def exits(self) -> ExitTraining | None:
        """How the exits of the model learn, where it has any."""
        return exit_training(self.recipe, self.options)

    @cached_property
    def latent(self) -> LatentTraining | None:
        """How the gates of the model learn, where its layers are latent."""
        return latent_training(self.recipe, self.options)

    def model_config(self) -> DepthwiseConfig:
        """The configuration of a new model, with the special tokens of these tokenizers."""
        target = self.tokenizers.target
        bos = target.bos_token_id if target.bos_token_id is not None else target.eos_token_id
        return DepthwiseConfig.from_options(
            self.options,
            bos_token_id=bos,
            pad_token_id=target.pad_token_id,
            eos_token_id=target.eos_token_id,
            decoder_start_token_id=target.eos_token_id,
            **self.config_options(),
        )

    def config_options(self) -> dict[str, Any]:
        """What the head of this task needs to know beside the options of the model."""
        return {}

    def new_model(self) -> DepthwisePreTrainedModel:
        """A model to be trained: with fresh weights, or with those of another run as far as they go."""
        config = self.model_config()
        if PRETRAINED not in self.recipe.model:
            return self.model_class(config)
        return pretrained_model(self.model_class, config, self.recipe.model[PRETRAINED])

    def resolved(self) -> Recipe:
        """The recipe with everything written out that the data decided."""
        model = {name: value for name, value in as_dict(self.options).items() if name not in _FROM_TOKENIZERS}
        if PRETRAINED in self.recipe.model:
            model[PRETRAINED] = self.recipe.model[PRETRAINED]
        decided: dict[str, Any] = {name: of.options for name in _LEARNED if (of := getattr(self, name)) is not None}
        return replace(self.recipe, model=model, training=replace(self.recipe.training, **decided))

    # Learning

    @abstractmethod
    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Rows as padded tensors, under the names that the model takes them by."""

    @property
    def length_multiple(self) -> int:
        """Batches of training are padded to multiples of this."""
        return GRAPH_LENGTHS if self.recipe.training.graphs else 1

    def padded(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """A batch with the lengths that training asks for, as far as the model can take them."""
        multiple = self.length_multiple
        return batch if multiple == 1 else lengthened(batch, self.fillers, multiple, self.max_tokens)

    @property
    def fillers(self) -> dict[str, int]:
        """What stands for no token in each tensor of a batch that has one entry per token."""
        source, target = self.tokenizers.source.pad_token_id, self.tokenizers.target.pad_token_id
        masks = {"attention_mask": 0, "token_type_ids": 0}
        return {"input_ids": source, **masks, "decoder_input_ids": target, "labels": IGNORED}

    @abstractmethod
    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        """How many items of a batch carry a loss. The batch lies on the CPU."""

    @abstractmethod
    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        """The loss of a batch, divided by ``num_items``, and the sums that metrics are made of."""

    def advance(self, update: int, num_updates: int, device: Any) -> None:
        """What is said before every update, counted from 0: what is learned may change with it."""
        if self.exits is not None:
            self.exits.advance(update, num_updates, device)
        if self.latent is not None:
            self.latent.advance(update, device)

    def taught(
        self, model: PreTrainedModel, inputs: Mapping[str, Tensor], num_items: Tensor | int | None
    ) -> Losses | None:
        """The losses of all exits from inputs with labels; none without exits."""
        if self.exits is None or not self.exits.applies_to(model):
            return None
        return self.exits.losses(model, inputs, num_items)

    def exit_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        """The metrics of single exits, where there are any."""
        return {} if self.exits is None else self.exits.metrics(totals, num_items)

    @abstractmethod
    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        """Metrics of validation data from the totals of all its batches."""

    def validation_names(self) -> tuple[str, ...]:
        """The metrics that ``validation_metrics`` gives, whatever the totals are."""
        of_exits = () if self.exits is None else self.exits.names
        return (*self.validation_metrics(defaultdict(lambda: 1.0), 1.0), *of_exits)

    def is_better(self, metric: str, value: float, than: float) -> bool:
        is_low = metric in self.lower_is_better or metric.startswith(NLL)
        return value < than if is_low else value > than

    # Predicting

    @abstractmethod
    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        """Inputs as ids, however long."""

    def rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        """Inputs as ids, cut to what the model can take."""
        return [self.cut(row) for row in self.whole_rows(texts)]

    def cut(self, row: Row, most: int | None = None) -> Row:
        """A row whose texts the model can take, none with more than ``most`` ids; the same row if it is one already."""
        limits = [least(most, own) for own in self.text_limits]
        if all(limit is None or len(ids) <= limit for ids, limit in zip(row.texts, limits, strict=False)):
            return row
        return replace(row, texts=tuple(shortened(ids, limit) for ids, limit in zip(row.texts, limits, strict=False)))

    @property
    @abstractmethod
    def text_limits(self) -> tuple[int | None, ...]:
        """The most ids of each text of a row that the model can take; none means that there is no limit."""

    def row_lengths(self, rows: Sequence[Row]) -> npt.NDArray[np.int32]:
        """What batches of rows are measured by, as ``lengths`` says it of a store."""
        return np.array([[len(ids) for ids in row.texts] for row in rows], np.int32)

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[Prediction]:
        """What the model says about each row of a batch, which lies on its device.

        A task whose inputs may take several rows of the model has ``predictions`` of its own instead.
        """
        raise AssertionError(f"{type(self).__name__} answers by predictions")

    def predictions(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[Prediction]:
        """What the model says about each of some rows that one batch can hold."""
        return self.predict(model, placed(self.collate(rows), model.device))

    @property
    def searches(self) -> bool:
        """Whether the section ``generation`` of the recipe has a say in predictions."""
        return "decoder" in self.model_class.needs

    @abstractmethod
    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        """log p(output | input) of rows that have both, as ``scored_rows`` makes them."""

    @abstractmethod
    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        """Inputs with the output whose probability is asked for, however long."""

    @property
    def num_conditions(self) -> int:
        """How many texts stand before the output whose probability is asked for; a language model needs none."""
        return self.num_inputs

    @property
    def tokens_at_once(self) -> int:
        """``evaluation.batch_tokens``, or fewer where the scores of the vocabulary for all of them would not fit."""
        budget = self.recipe.evaluation.batch_tokens
        if "decoder" not in self.model_class.needs:
            return budget
        return max(1, min(budget, SCORES_AT_ONCE // self.options.vocab_size))

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs have a probability; numbers that are estimated have none."""
        return True

    why_no_probability: ClassVar[str] = "a number that is estimated has no probability"

    @property
    @abstractmethod
    def num_inputs(self) -> int:
        """How many columns make one input; on a line they are separated by tabs."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """What these columns are called."""
        return ("text",) * self.num_inputs

    # Scoring

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that judge this model, the one that is quoted first."""
        return self.recipe.evaluation.metrics or self.default_metrics()

    @abstractmethod
    def default_metrics(self) -> tuple[str, ...]: ...

    @abstractmethod
    def known_metrics(self) -> tuple[str, ...]: ...

    def inputs_of(self, example: Example) -> tuple[str, ...]:
        """The texts of an example that the model gets to see."""
        return example.texts

    def check_examples(self, examples: Sequence[Example]) -> None:  # noqa: B027 (most tasks have nothing to check)
        """Raises what ``score`` would raise because of the examples, before predictions are made for nothing."""

    def check_predictable(self) -> None:  # noqa: B027 (most tasks have predictions)
        """Raises an error where there are no predictions to be scored or compared."""

    @abstractmethod
    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        """Every metric of the predictions for these examples, by name."""

    @abstractmethod
    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        """Paired bootstrap of two systems on the same examples; ``compared_by`` names the metric."""

    @property
    @abstractmethod
    def compared_by(self) -> str:
        """The metric that two systems are compared by: the one that is quoted, where that can be drawn anew."""

    # On disk

    def save(self, folder: Path) -> None:
        """What this task needs beside the model to work again: its tokenizers."""
        self.tokenizers.save(folder)

    def check_split(self, split: str) -> tuple[str, ...]:
        """The files of a split, once it is clear that the recipe names some."""
        assert split in SPLITS
        files: tuple[str, ...] | None = getattr(self.recipe.data, split)
        if not files:
            raise DataError(f"the recipe names no {split} data; add data.{split}=FILE")
        return files


_LEARNED = ("exits", "latent")
_FROM_TOKENIZERS = ("vocab_size", "source_vocab_size")
"""What a recipe does not say about a model, because its tokenizers do."""
