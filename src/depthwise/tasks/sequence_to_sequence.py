"""A text in, a text out: what translation and summarisation share, from the loss to the search."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from depthwise.config import Recipe
from depthwise.data import Corpus, Example, Row, Seq2SeqCollator, StoreOptions, Tokenizers
from depthwise.losses import IGNORED, label_smoothed_cross_entropy
from depthwise.metrics import perplexity_in_training
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Float, Int, Tensor
from depthwise.tasks.base import Task
from depthwise.tasks.encoding import encoded, least
from depthwise.tasks.latent_training import LANGUAGES
from depthwise.tasks.searching import Search, found_text
from depthwise.tasks.values import Losses, Prediction


class SequenceToSequence(Task):
    """Maximum likelihood of the target given the source, with smoothed labels; beam search."""

    model_class = DepthwiseForSeq2SeqLM
    metric = "nll"
    max_lengths: ClassVar[tuple[tuple[float, int], ...]] = ((1.0, 5), (1.2, 10), (1.5, 20), (2.0, 50))
    """Limits of the length that are worth a trial: pairs of ``max_factor`` and ``max_extra``."""

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers, start_id: int | None = None) -> None:
        """``start_id`` is the token that targets of a trained model begin from; new ones take the end of a sequence."""
        super().__init__(recipe, tokenizers)
        self.start_id: int = tokenizers.target.eos_token_id if start_id is None else start_id

    # Data

    def _tokenizers_of(self, corpus: Corpus) -> Sequence[PreTrainedTokenizerBase]:
        return [self.tokenizers.source, self.tokenizers.target]

    @property
    def max_tokens(self) -> int | None:
        return least(*self._positions)

    @property
    def _positions(self) -> tuple[int | None, int | None]:
        """The most tokens of source and target that the model can take."""
        assert self.options.encoder is not None
        assert self.options.decoder is not None
        return self.options.encoder.max_positions, self.options.decoder.max_positions

    def store_options(self, split: str) -> StoreOptions:
        data, (source, target) = self.recipe.data, self._positions
        limits = (
            least(source, data.max_tokens, data.max_source_tokens),
            least(target, data.max_tokens, data.max_target_tokens),
        )
        return replace(super().store_options(split), max_tokens=limits)

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return Seq2SeqCollator(self._pad_id)(rows)

    @property
    def _pad_id(self) -> int:
        pad: int = self.tokenizers.source.pad_token_id
        return pad

    # Learning

    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        training, labels = self.recipe.training, batch["labels"]
        inputs = {**self._inputs(batch), "labels": labels}
        if (taught := self.taught(model, inputs, num_items)) is not None:
            return taught
        smoothed = label_smoothed_cross_entropy(
            self._logits(model, batch),
            labels,
            training.label_smoothing,
            num_items,
            over_others=training.smoothing_over_others,
        )
        return Losses(smoothed.loss, {"nll": smoothed.nll_sum})

    def _logits(self, model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Float[Tensor, "B T V"]:
        """Scores of every target token behind those before it."""
        logits: Tensor = model(**self._inputs(batch)).logits
        return logits

    def _inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        earlier = batch.get("decoder_input_ids")
        if earlier is None:
            earlier = shifted(batch["labels"], self.start_id, self.tokenizers.target.pad_token_id)
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return {**given, "decoder_input_ids": earlier, **_languages(batch)}

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        nll = totals["nll"] / num_items
        found = {"loss": totals["loss"] / num_items, "nll": nll}
        found["perplexity"] = perplexity_in_training(totals["nll"], int(num_items))
        return {**found, **self.exit_metrics(totals, num_items)}

    # Predicting

    @property
    def num_inputs(self) -> int:
        return 1

    def inputs_of(self, example: Example) -> tuple[str, ...]:
        return example.texts[:1]

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        sources = encoded(self.tokenizers.source, [text for (text,) in texts])
        return [Row(index, (ids,), None) for index, ids in enumerate(sources)]

    @property
    def text_limits(self) -> tuple[int | None, ...]:
        source, target = self._positions
        return least(source, self.recipe.data.max_source_tokens), target

    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        targets = encoded(self.tokenizers.target, outputs)
        return [
            replace(row, texts=(*row.texts, target))
            for row, target in zip(self.whole_rows(texts), targets, strict=True)
        ]

    def target_limits(self, source_lengths: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The most target tokens of each source, the end of sequence included."""
        search, most = self.recipe.generation, self.text_limits[1]
        limits = ((source_lengths * search.max_factor).long() + search.max_extra).clamp(min=1)
        return limits if most is None else limits.clamp(max=most)

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[Prediction]:
        limits, starts = self.target_limits(batch["attention_mask"].sum(1)), batch.get("decoder_input_ids")
        found = found_text(
            model,
            Search(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                how=self.recipe.generation,
                end_id=self.tokenizers.target.eos_token_id,
                max_length=int(limits.max()) + 1,  # with the start token
                limits=limits,
                starts=None if starts is None else starts[:, 0].tolist(),
                languages=_languages(batch),
            ),
        )
        texts = self.tokenizers.target.batch_decode(found.sequences, skip_special_tokens=True)
        return [
            Prediction(text, None, tuple(filter(None, depths)), found.num_steps, tuple(compress(tokens, depths)))
            for text, depths, tokens in zip(texts, found.depths.tolist(), found.tokens.tolist(), strict=True)
        ]

    @torch.no_grad()
    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        batch = {name: value.to(model.device) for name, value in self.collate(rows).items()}
        log_probs = self._logits(model, batch).float().log_softmax(-1)
        labels = batch["labels"]
        of_labels = log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        sums: list[float] = of_labels.masked_fill(labels == IGNORED, 0).double().sum(1).tolist()
        return sums


def _languages(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The languages of all rows, where the gates of latent layers ask for them."""
    return {name: batch[name] for name in LANGUAGES.values() if name in batch}


def shifted(labels: Int[Tensor, "B T"], start: int, padding: int) -> Int[Tensor, "B T"]:
    """The target moved one step to the right behind the start token; ignored labels become padding."""
    first = labels.new_full((labels.shape[0], 1), start)
    return torch.cat([first, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, padding)], dim=1)
