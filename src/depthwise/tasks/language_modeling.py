"""Language modelling: every token from those before it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from depthwise.config import Recipe
from depthwise.data import (
    BatchOptions,
    BlockOptions,
    Example,
    LanguageCollator,
    Row,
    StoreOptions,
    TextRows,
    Texts,
    TokenBatches,
    TokenBlocks,
    Tokenizers,
    TokenLines,
    stream_of,
)
from depthwise.data.collate import padded
from depthwise.data.language import ContextRow
from depthwise.errors import ConfigError, Problem
from depthwise.losses import IGNORED, label_smoothed_cross_entropy
from depthwise.metrics import Score, perplexity, perplexity_in_training
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.shapes import Tensor
from depthwise.tasks.encoding import encoded, least
from depthwise.tasks.likelihood import LikelihoodTask, depth_totals
from depthwise.tasks.searching import Search, found_text
from depthwise.tasks.values import Examples, Losses, Prediction

METRICS = ("perplexity", "word_perplexity", "bits_per_character", "unigram_perplexity")


class LanguageModeling(LikelihoodTask):
    """Maximum likelihood of running text, in blocks or line by line, by words, pieces of words or characters.

    Every line ends in the end of sequence, which is predicted like any other token, and begins behind one. In training,
    validation and evaluation every token is predicted exactly once.
    """

    kind = "language_modeling"
    model_class = DepthwiseForCausalLM
    lower_is_better = LikelihoodTask.lower_is_better | set(METRICS)

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers) -> None:
        super().__init__(recipe, tokenizers)
        if recipe.training.label_smoothing and self.options.adaptive is not None:
            message = "does not go with model.adaptive, which never scores all types; set 0"
            raise ConfigError(f"task {self.kind}", [Problem("training.label_smoothing", message)])
        self.protocol  # noqa: B018 (refuses a context that leaves nothing to predict)

    # Data

    @property
    def start_id(self) -> int:
        """What stands before the first token: the end of the sequence before it."""
        end: int = self.tokenizers.source.eos_token_id
        return end

    @property
    def unknown_id(self) -> int:
        """What a word that the tokenizer does not know becomes; no id where it knows all, as GPT-2's does."""
        found: int | None = self.tokenizers.source.unk_token_id
        return -1 if found is None or found == self.start_id else found

    @property
    def max_tokens(self) -> int | None:
        assert self.options.decoder is not None
        return self.options.decoder.max_positions

    def store_options(self, split: str) -> StoreOptions:
        return replace(super().store_options(split), max_tokens=None)

    @property
    def protocol(self) -> BlockOptions:
        """How much the model sees when it is judged."""
        return BlockOptions(self.row_tokens, self.recipe.evaluation.context)

    def prepared(self, texts: Texts, *, is_training: bool) -> Examples:
        options = BlockOptions(self.row_tokens) if is_training else self.protocol
        if self.recipe.data.form == "lines":
            return TokenLines(texts, self.start_id, options)
        return TokenBlocks.of_texts(texts, self.start_id, options)

    # Learning

    def collate(self, rows: Sequence[Any]) -> dict[str, Tensor]:
        pad_id = self.tokenizers.source.pad_token_id
        if isinstance(rows[0], ContextRow):
            return LanguageCollator(pad_id)(rows)
        ids, valid = padded([row.texts[0] for row in rows], pad_id)
        return {"input_ids": ids, "attention_mask": valid.long()}

    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        """Without smoothing the model's own loss, since an adaptive softmax never scores all types."""
        training, labels = self.recipe.training, batch["labels"]
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        taught = self.taught(model, {**inputs, "labels": labels}, num_items)
        unknown = (labels == self.unknown_id).sum().float()
        if taught is not None:
            return Losses(taught.loss, {**taught.totals, "unknown": unknown})
        if training.label_smoothing:
            output = model(**inputs)
            smoothed = label_smoothed_cross_entropy(
                output.logits[:, :-1],
                labels[:, 1:],
                training.label_smoothing,
                num_items,
                over_others=training.smoothing_over_others,
            )
            loss, nll = smoothed.loss, smoothed.nll_sum
        else:
            output = model(**inputs, labels=labels, num_items_in_batch=num_items)
            count = (labels != IGNORED).sum() if num_items is None else torch.as_tensor(num_items)
            loss, nll = output.loss, output.loss.detach() * count.clamp(min=1)
        return Losses(loss, {"nll": nll, "unknown": unknown, **depth_totals(output)})

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        nll = totals["nll"]
        return {
            "loss": totals["loss"] / num_items,
            "nll": nll / num_items,
            "perplexity": perplexity_in_training(nll, int(num_items)),
            **self.exit_metrics(totals, num_items),
        }

    # Predicting

    @property
    def num_new_tokens(self) -> int:
        """The most tokens that follow a prompt; half of all positions are the prompt's in any case."""
        wanted = max(1, self.recipe.generation.max_extra)
        return wanted if self.max_tokens is None else max(1, min(wanted, self.max_tokens // 2))

    @property
    def text_limits(self) -> tuple[int | None, ...]:
        return (None if self.max_tokens is None else max(1, self.max_tokens - self.num_new_tokens),)

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        """Prompts behind the start token, without the end of sequence."""
        bodies = encoded(self.tokenizers.source, [text for (text,) in texts])
        return [Row(index, (np.concatenate([[self.start_id], ids[:-1]]),), None) for index, ids in enumerate(bodies)]

    def cut(self, row: Row, most: int | None = None) -> Row:
        """The last tokens of a prompt, behind the start token. Texts to be scored are read in blocks, however long."""
        limit = least(most, self.text_limits[0])
        if len(row.texts) == 2 or limit is None or len(row.texts[0]) <= limit:
            return row
        ids = row.texts[0]
        return replace(row, texts=(np.concatenate([ids[:1], ids[len(ids) - limit + 1 :]]),))

    def predict(self, model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[Prediction]:
        """Prompts and what follows them, up to the end of the line."""
        prompt = batch["input_ids"]
        found = found_text(
            model,
            Search(
                input_ids=prompt,
                attention_mask=batch["attention_mask"],
                how=self.recipe.generation,
                end_id=self.start_id,
                max_length=prompt.shape[1] + self.num_new_tokens,
            ),
        )
        texts = self.tokenizers.source.batch_decode(found.sequences, skip_special_tokens=True)
        return [
            Prediction(text, None, tuple(filter(None, depths)))
            for text, depths in zip(texts, found.depths.tolist(), strict=True)
        ]

    num_conditions = 0

    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        """Lines with their ends, each behind a start token, which is a text of its own."""
        start = np.array([self.start_id])
        return [Row(index, (start, ids), None) for index, ids in enumerate(encoded(self.tokenizers.source, outputs))]

    @torch.no_grad()
    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        """Each line by itself; one that is longer than a block is read in several."""
        assert isinstance(model, DepthwiseForCausalLM)
        lines = TokenLines(TextRows([row.texts[1] for row in rows], range(len(rows))), self.start_id, self.protocol)
        sums = torch.zeros(len(rows), dtype=torch.float64)
        collate = LanguageCollator(self.tokenizers.source.pad_token_id)
        most = max(1, self.tokens_at_once // self.row_tokens)
        for places in TokenBatches(lines.lengths(), BatchOptions(max_rows=most, order="sorted")):
            batch = {name: value.to(model.device) for name, value in collate([lines[i] for i in places]).items()}
            hidden = model.model(batch["input_ids"], batch["attention_mask"]).last_hidden_state[:, :-1]
            labels = batch["labels"][:, 1:]
            counted = labels != IGNORED
            nll = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
            nll[counted] = model.head.nll(hidden[counted], labels[counted]).double()
            sums.index_add_(0, torch.tensor([lines.line_of(place) for place in places]), -nll.sum(1).cpu())
        found: list[float] = sums.tolist()
        return found

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        if self.recipe.tokenizer.kind in ("char", "byte"):
            return ("bits_per_character", "perplexity")
        return ("word_perplexity", "perplexity")

    def known_metrics(self) -> tuple[str, ...]:
        return METRICS

    def likelihood_scores(
        self, totals: Mapping[str, float], num_items: float, examples: Sequence[Example]
    ) -> dict[str, Score]:
        """Perplexity per word divides by what blanks separate and the end of each line, as WikiText counts them."""
        num_tokens, texts = int(num_items), [example.texts[0] for example in examples]
        num_words = sum(len(text.split()) + 1 for text in texts)
        num_characters = sum(len(text) + 1 for text in texts)
        form = "lines in " if self.recipe.data.form == "lines" else ""
        signature = f"{form}{self.protocol}|tokens:{num_tokens}|unknown:{totals['unknown'] / num_tokens:.2%}"
        scores = {}
        for name in self.metrics:
            if name == "perplexity":
                scores[name] = Score("perplexity per token", perplexity(totals["nll"], num_tokens), signature)
            elif name == "word_perplexity":
                value = perplexity(totals["nll"], num_words)
                scores[name] = Score("perplexity per word", value, f"{signature}|words:{num_words}")
            elif name == "bits_per_character":
                value = totals["nll"] / math.log(2) / num_characters
                scores[name] = Score("bits per character", value, f"{signature}|characters:{num_characters}")
            else:
                value = perplexity(self._unigram_nll(examples), num_tokens)
                scores[name] = Score("perplexity of a unigram model", value, f"add-one|tokens:{num_tokens}")
        return scores

    def _unigram_nll(self, examples: Sequence[Example]) -> float:
        return -float(self.unigram_log_probs()[stream_of(self.text_rows(examples))].sum())
