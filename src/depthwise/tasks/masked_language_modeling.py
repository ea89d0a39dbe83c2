"""Masked language modelling: tokens from what stands around them, and, on request, the order of two segments."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from depthwise.config import Recipe
from depthwise.data import (
    Example,
    MaskedCollator,
    MaskedRows,
    MaskingOptions,
    MaskVocabulary,
    PairOptions,
    Row,
    SentencePairs,
    StoreOptions,
    TextRows,
    Texts,
    Tokenizers,
)
from depthwise.data.masking import filled_places
from depthwise.data.templates import Template, text_template
from depthwise.data.tokenizers import MASK
from depthwise.errors import ConfigError, InputError, Problem
from depthwise.losses import IGNORED, token_cross_entropy
from depthwise.metrics import Score, perplexity, perplexity_in_training
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.shapes import Int, Tensor
from depthwise.tasks.encoding import encoded, shortened
from depthwise.tasks.likelihood import LikelihoodTask, depth_totals
from depthwise.tasks.values import Losses, Prediction

EVALUATION_SEED = 0
"""Masks of validation and evaluation are the same for all runs of the same data and tokenizer."""
BASELINES = ("unigram_perplexity", "unigram_accuracy")


class MaskedLanguageModeling(LikelihoodTask):
    """Cross-entropy of masked tokens of a line, or, with ``model.sentence_order``, of two segments of following lines.

    The order of the segments is then learned too, and an empty line parts documents.
    """

    kind = "masked_language_modeling"
    model_class = DepthwiseForMaskedLM
    empty_lines = "skip"
    lower_is_better = LikelihoodTask.lower_is_better | {"unigram_perplexity"}

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers) -> None:
        super().__init__(recipe, tokenizers)
        if recipe.training.label_smoothing:
            problem = Problem("training.label_smoothing", "has no part in masked language modelling; leave it out")
            raise ConfigError(f"task {self.kind}", [problem])
        self.vocabulary = MaskVocabulary.of(tokenizers.source, recipe.masking.units)
        self._masking(is_training=True)  # refuses what does not go together

    # Data

    @property
    def learns_order(self) -> bool:
        return self.options.sentence_order

    @property
    def max_tokens(self) -> int | None:
        assert self.options.encoder is not None
        return self.options.encoder.max_positions

    def store_options(self, split: str) -> StoreOptions:
        """Segments are cut where they are put together, lines as they are read."""
        return replace(super().store_options(split), max_tokens=None if self.learns_order else self.row_tokens)

    def text_rows(self, examples: Sequence[Example]) -> TextRows:
        """Examples as ids, those that the store would leave out for their length cut in any case."""
        rows = super().text_rows(examples)
        limit = None if self.learns_order else self.row_tokens
        return TextRows([shortened(ids, limit) for ids in rows.texts], rows.lines)

    def prepared(self, texts: Texts, *, is_training: bool) -> MaskedRows:
        options = self._masking(is_training=is_training)
        if not self.learns_order:
            return MaskedRows(texts, self.vocabulary, options)
        segments = PairOptions(self.row_tokens, dynamic=options.dynamic, seed=options.seed)
        return MaskedRows(SentencePairs(texts, self.tokenizers.source, segments), self.vocabulary, options)

    def _masking(self, *, is_training: bool) -> MaskingOptions:
        given = MaskingOptions(**asdict(self.recipe.masking), seed=self.recipe.seed)
        return given if is_training else replace(given, dynamic=False, seed=EVALUATION_SEED)

    def set_epoch(self, examples: MaskedRows, epoch: int) -> None:  # type: ignore[override]
        examples.set_epoch(epoch)

    # Learning

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return MaskedCollator(self.tokenizers.source.pad_token_id)(rows)

    def padded(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Longer rows count their places anew, and there are as many places as the shape of the batch says."""
        longer = super().padded(batch)
        if self.length_multiple == 1:
            return longer
        return {**longer, "label_places": filled_places(longer["labels"], self.recipe.masking.rate)}

    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        if (taught := self.taught(model, batch, num_items)) is not None:
            return taught
        output = model(**batch, num_items_in_batch=num_items)
        labels = batch["labels"].flatten()[batch["label_places"]]
        scores = output.logits.detach()
        totals = {
            "nll": token_cross_entropy(scores, labels, labels.new_ones(())),
            "correct": (scores.argmax(-1) == labels).sum().float(),
            **depth_totals(output),
        }
        if self.learns_order:
            order = batch["sentence_order_label"]
            totals["ordered"] = (output.sentence_order_logits.detach().argmax(-1) == order).sum().float()
            totals["pairs"] = (order != IGNORED).sum().float()
        return Losses(output.loss, totals)

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        num_masked = max(1, int(num_items))
        found = {
            "loss": totals["loss"] / num_masked,
            "nll": totals["nll"] / num_masked,
            "perplexity": perplexity_in_training(totals["nll"], num_masked),
        }
        with suppress(KeyError):  # what exits guess right is counted in validation alone
            found["accuracy"] = 100 * totals["correct"] / num_masked
        if self.learns_order:
            found["order_accuracy"] = 100 * totals["ordered"] / max(1.0, totals["pairs"])
        return {**found, **self.exit_metrics(totals, num_items)}

    # Predicting

    @property
    def text_limits(self) -> tuple[int | None, ...]:
        return self.max_tokens, self.max_tokens

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        """Lines in which ``<mask>``, or what the tokenizer calls it, stands for a token to be guessed."""
        return [Row(index, (self._with_masks(text),), None) for index, (text,) in enumerate(texts)]

    def _with_masks(self, text: str) -> npt.NDArray[np.int64]:
        tokenizer = self.tokenizers.source
        parts = text.replace(str(tokenizer.mask_token), MASK).split(MASK)
        if len(parts) == 1:
            raise InputError(f"there is nothing to guess; write {MASK} in the place of a token")
        if tokenizer.added_tokens_decoder[self.vocabulary.mask_id].lstrip:  # RoBERTa's mask has the blank before it
            parts[:-1] = [part.rstrip() for part in parts[:-1]]
        pieces = tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"]
        for part, ids in zip(parts[1:], pieces[1:], strict=True):
            if ids and not part[0].isspace() and not str(tokenizer.decode(ids[:1])).strip():
                del ids[0]  # the blank that some tokenizers put before any text
        ids = [piece for part in pieces for piece in (*part, self.vocabulary.mask_id)][:-1]
        return self._template.joined(np.array(ids, np.int32)).astype(np.int64)

    @cached_property
    def _template(self) -> Template:
        return text_template(self.tokenizers.source)

    @torch.no_grad()
    def predict(self, model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[Prediction]:
        """Lines with the likeliest token in the place of each mask, each by itself."""
        ids, valid, places = batch["input_ids"], batch["attention_mask"].bool(), self._masks(batch["input_ids"])
        output = model(input_ids=ids, attention_mask=batch["attention_mask"], label_places=places)
        log_probs = output.logits.float().log_softmax(-1)
        special = torch.from_numpy(self.vocabulary.special).to(ids.device)
        best = log_probs.masked_fill(special, -torch.inf).max(-1)
        filled = ids.flatten().index_copy(0, places, best.indices).view_as(ids)
        sums = _sums_by_row(best.values, places, ids)
        found = []
        for row, log_prob in enumerate(sums):
            text = self.tokenizers.source.decode(filled[row][valid[row]].tolist(), skip_special_tokens=True)
            depths = tuple(depth for depth in output.depths[row].tolist() if depth)
            found.append(Prediction(str(text), log_prob, depths))
        return found

    def _masks(self, ids: Int[Tensor, "B T"]) -> Int[Tensor, "M"]:
        return (ids.flatten() == self.vocabulary.mask_id).nonzero().squeeze(1)

    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        """The output says what stands in the places of the masks, in their order: a token for each."""
        rows = []
        fillings = encoded(self.tokenizers.source, outputs)
        template = self._template
        for row, filling in zip(self.whole_rows(texts), fillings, strict=True):
            tokens = filling[len(template.before) : len(filling) - len(template.behind)]
            masks = np.flatnonzero(row.texts[0] == self.vocabulary.mask_id)
            if len(tokens) != len(masks):
                raise InputError(
                    f"there are {len(masks)} masks, but what is to fill them has {len(tokens)} tokens; give as many"
                )
            labels = np.full_like(row.texts[0], IGNORED)
            labels[masks] = tokens
            rows.append(replace(row, texts=(row.texts[0], labels)))
        return rows

    @torch.no_grad()
    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        batch = {name: value.to(model.device) for name, value in self.collate(rows).items()}
        places = batch["label_places"]
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "label_places")}
        log_probs = model(**inputs).logits.float().log_softmax(-1)
        of_labels = log_probs.gather(-1, batch["labels"].flatten()[places].unsqueeze(-1)).squeeze(-1)
        return _sums_by_row(of_labels, places, batch["input_ids"])

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        return ("perplexity", "accuracy", *(("order_accuracy",) if self.learns_order else ()))

    def known_metrics(self) -> tuple[str, ...]:
        return (*self.default_metrics(), *BASELINES)

    def likelihood_scores(
        self, totals: Mapping[str, float], num_items: float, examples: Sequence[Example]
    ) -> dict[str, Score]:
        options, num_masked = self._masking(is_training=False), int(num_items)
        rows = "segments" if self.learns_order else "lines"
        ngrams = f" of up to {options.max_ngram} words" if options.units == "ngrams" else ""
        signature = (
            f"{rows} of up to {self.row_tokens} tokens|rate:{options.rate:g} of {options.units}{ngrams}|"
            f"mask:{options.mask_share:g}|random:{options.random_share:g}|seed:{options.seed}|masked:{num_masked}"
        )
        values = self.validation_metrics({"loss": 0.0, **totals}, num_items)
        if any(name in BASELINES for name in self.metrics):
            values |= self._baselines(examples)
        names = {"perplexity": "perplexity of masked tokens", "accuracy": "accuracy of masked tokens"}
        pairs = f"segments of up to {self.row_tokens} tokens|pairs:{totals.get('pairs', 0):.0f}"
        return {
            name: Score(names.get(name, name), values[name], pairs if name == "order_accuracy" else signature)
            for name in self.metrics
        }

    def _baselines(self, examples: Sequence[Example]) -> dict[str, float]:
        """What knowing nothing but how often tokens occur in the training data gives, for the same masks."""
        rows, log_probs = self.prepared(self.text_rows(examples), is_training=False), self.unigram_log_probs()
        labels = np.concatenate([rows[number].texts[1] for number in range(len(rows))])
        labels = labels[labels != IGNORED]
        commonest = int(np.where(self.vocabulary.special, -np.inf, log_probs).argmax())
        return {
            "unigram_perplexity": perplexity(-float(log_probs[labels].sum()), max(1, len(labels))),
            "unigram_accuracy": 100 * float((labels == commonest).sum()) / max(1, len(labels)),
        }


def _sums_by_row(values: Tensor, places: Int[Tensor, "M"], ids: Int[Tensor, "B T"]) -> list[float]:
    """Values at places, counted through rows and steps, summed for each row."""
    sums = torch.zeros(len(ids), dtype=torch.float64, device=values.device)
    found: list[float] = sums.index_add(0, places // ids.shape[1], values.double()).tolist()
    return found
