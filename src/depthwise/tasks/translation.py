"""Translation: a text in, a text out."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from depthwise.config import Recipe
from depthwise.data import Corpus, Example, Row, Seq2SeqCollator, Tokenizers
from depthwise.losses import IGNORED, label_smoothed_cross_entropy
from depthwise.metrics import BLEU_VARIANTS, Comparison, Score, chrf, compare_bleu, compare_means, perplexity
from depthwise.models.generation import generated_depths
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Bool, Float, Int, Tensor
from depthwise.tasks.base import Losses, Prediction, Task
from depthwise.tasks.encoding import encoded
from depthwise.tasks.sources import pairs

EXACT_MATCH = "exact_match"


class Translation(Task):
    """Maximum likelihood of the target given the source, with smoothed labels; beam search; BLEU."""

    kind = "translation"
    model_class = DepthwiseForSeq2SeqLM
    metric = "nll"
    too_long = "skip"

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers, start_id: int | None = None) -> None:
        """``start_id`` is the token that targets begin from, if it is not the end of a sequence."""
        super().__init__(recipe, tokenizers)
        self.start_id: int = tokenizers.target.eos_token_id if start_id is None else start_id

    def corpus(self, split: str) -> Corpus:
        return pairs(self.recipe.data, self.check_split(split))

    def _tokenizers_of(self, corpus: Corpus) -> Sequence[PreTrainedTokenizerBase]:
        return [self.tokenizers.source, self.tokenizers.target]

    @property
    def max_tokens(self) -> int | None:
        assert self.options.encoder is not None
        assert self.options.decoder is not None
        limits = [side.max_positions for side in (self.options.encoder, self.options.decoder)]
        return min((limit for limit in limits if limit is not None), default=None)

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return Seq2SeqCollator(self._pad_id)(rows)

    @property
    def _pad_id(self) -> int:
        pad: int = self.tokenizers.source.pad_token_id
        return pad

    def num_items(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def losses(self, model: PreTrainedModel, batch: Mapping[str, Tensor], num_items: Tensor | int | None) -> Losses:
        labels = batch["labels"]
        training = self.recipe.training
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
        output = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=shifted(batch["labels"], self.start_id, self.tokenizers.target.pad_token_id),
        )
        logits: Tensor = output.logits
        return logits

    def validation_metrics(self, totals: Mapping[str, float], num_items: float) -> dict[str, float]:
        nll = totals["nll"] / num_items
        return {"loss": totals["loss"] / num_items, "nll": nll, "perplexity": perplexity(totals["nll"], int(num_items))}

    # Predicting

    num_inputs = 1

    def inputs_of(self, example: Example) -> tuple[str, ...]:
        return example.texts[:1]

    def whole_rows(self, texts: Sequence[tuple[str, ...]]) -> list[Row]:
        sources = encoded(self.tokenizers.source, [text for (text,) in texts])
        return [Row(index, (ids,), None) for index, ids in enumerate(sources)]

    @property
    def text_limits(self) -> tuple[int | None, ...]:
        assert self.options.encoder is not None
        assert self.options.decoder is not None
        return self.options.encoder.max_positions, self.options.decoder.max_positions

    def scored_rows(self, texts: Sequence[tuple[str, ...]], outputs: Sequence[str]) -> list[Row]:
        targets = encoded(self.tokenizers.target, outputs)
        return [
            Row(row.index, (*row.texts, target), None)
            for row, target in zip(self.whole_rows(texts), targets, strict=True)
        ]

    def target_limits(self, source_lengths: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The most target tokens of each source, the end of sequence included."""
        search, most = self.recipe.generation, self.text_limits[1]
        limits = ((source_lengths * search.max_factor).long() + search.max_extra).clamp(min=1)
        return limits if most is None else limits.clamp(max=most)

    @torch.no_grad()
    def predict(self, model: PreTrainedModel, batch: Mapping[str, Tensor]) -> list[Prediction]:
        search = self.recipe.generation
        limits = self.target_limits(batch["attention_mask"].sum(1))
        options: dict[str, Any] = {"num_beams": search.num_beams, "do_sample": False}
        if search.num_beams > 1:
            options |= {"length_penalty": search.length_penalty, "early_stopping": search.early_stopping}
        if search.no_repeat_ngram:
            options["no_repeat_ngram_size"] = search.no_repeat_ngram
        output = model.generate(  # type: ignore[operator]
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_length=int(limits.max()) + 1,  # with the start token
            logits_processor=LogitsProcessorList([EndAtLimit(limits, self.tokenizers.target.eos_token_id)]),
            return_dict_in_generate=True,
            **options,
        )
        texts = self.tokenizers.target.batch_decode(output.sequences, skip_special_tokens=True)
        depths = generated_depths(output)
        depths = depths * until_end(output.sequences[:, 1 : depths.shape[1] + 1], self.tokenizers.target.eos_token_id)
        num_steps = len(output.past_key_values.depths)
        return [
            Prediction(text, None, tuple(depth for depth in row if depth), num_steps)
            for text, row in zip(texts, depths.tolist(), strict=True)
        ]

    @torch.no_grad()
    def log_probabilities(self, model: PreTrainedModel, rows: Sequence[Row]) -> list[float]:
        batch = {name: value.to(model.device) for name, value in self.collate(rows).items()}
        log_probs = self._logits(model, batch).float().log_softmax(-1)
        labels = batch["labels"]
        of_labels = log_probs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        sums: list[float] = of_labels.masked_fill(labels == IGNORED, 0).double().sum(1).tolist()
        return sums

    # Scoring

    def default_metrics(self) -> tuple[str, ...]:
        return ("sacrebleu", "chrf")

    def known_metrics(self) -> tuple[str, ...]:
        return (*BLEU_VARIANTS, "chrf", EXACT_MATCH)

    def score(self, predictions: Sequence[str], examples: Sequence[Example]) -> dict[str, Score]:
        references = [example.texts[1] for example in examples]
        return {name: _score(name, predictions, references) for name in self.metrics}

    @property
    def compared_by(self) -> str:
        """The metric that is quoted; in the place of chrF the first definition of BLEU among the metrics."""
        possible = (*BLEU_VARIANTS, EXACT_MATCH)
        return next((name for name in self.metrics if name in possible), "sacrebleu")

    def compare(self, ours: Sequence[str], theirs: Sequence[str], examples: Sequence[Example]) -> Comparison:
        references = [example.texts[1] for example in examples]
        if self.compared_by == EXACT_MATCH:
            return compare_means(*([100.0 * right for right in _matches(side, references)] for side in (ours, theirs)))
        return compare_bleu(ours, theirs, references, bleu=BLEU_VARIANTS[self.compared_by])


def _score(name: str, predictions: Sequence[str], references: Sequence[str]) -> Score:
    if name == EXACT_MATCH:
        right = sum(_matches(predictions, references))
        return Score("exact match", 100 * right / len(references), "blanks:any")
    return chrf(predictions, references) if name == "chrf" else BLEU_VARIANTS[name].score(predictions, references)


def _matches(predictions: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Which predictions are right word for word, however blanks are set."""
    return [ours.split() == theirs.split() for ours, theirs in zip(predictions, references, strict=True)]


def until_end(tokens: Int[Tensor, "B M"], eos_id: int) -> Bool[Tensor, "B M"]:
    """Which tokens stand before the first end of sequence or are it; others only fill up a batch."""
    ends = (tokens == eos_id).long()
    return ends.cumsum(1) - ends == 0


def shifted(labels: Int[Tensor, "B T"], start: int, padding: int) -> Int[Tensor, "B T"]:
    """The target moved one step to the right behind the start token; ignored labels become padding."""
    first = labels.new_full((labels.shape[0], 1), start)
    return torch.cat([first, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, padding)], dim=1)


class EndAtLimit(LogitsProcessor):
    """Ends each row at its own limit, so that what a row becomes does not depend on the rows beside it."""

    def __init__(self, limits: Int[Tensor, "B"], eos_id: int) -> None:
        self.limits, self.eos_id = limits, eos_id

    def __call__(self, input_ids: Int[Tensor, "R T"], scores: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """``input_ids`` begin with the start token; rows of the same source stand together."""
        limits = self.limits.repeat_interleave(len(input_ids) // len(self.limits))
        must_end = (input_ids.shape[1] >= limits).unsqueeze(1)
        is_end = torch.arange(scores.shape[1], device=scores.device) == self.eos_id
        return scores.masked_fill(must_end & ~is_end, -torch.inf)
