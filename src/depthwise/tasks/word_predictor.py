"""Exact depths of training texts distilled into a small predictor, by which any text is marked without masking it."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from depthwise.config import WordDepthsConfig
from depthwise.data.building import tokenizer_identity
from depthwise.data.collate import padded
from depthwise.data.progress import shown
from depthwise.data.words import NO_WORD, Spans, TextMarks
from depthwise.depth.word_predictor import DistilledDepths, WordPredictor, load_predictor, save_predictor
from depthwise.errors import CheckpointError, DataError
from depthwise.shapes import Tensor
from depthwise.tasks.reconstruction import PiecedText, pieced

CACHE = "word-predictors"
HELD_OUT = 0.1
"""The share of texts that a predictor is judged by, and does not learn from."""
BATCH_TOKENS = (256, 8192)
"""Least and most pieces of a batch to learn from, padding included; between them an epoch has ``BATCHES``."""
BATCHES = 100
LEARNING_RATE = 2e-3
TOKENS_AT_ONCE = 1 << 15
TEXTS_AT_ONCE = 1024
MOST_TOKENS = 1 << 24
"""Pieces to learn from, those of the first texts."""
log = logging.getLogger(__name__)

Depths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PredictorMarks(TextMarks):
    """The depth of every word where it stands, as a distilled predictor says it."""

    found: DistilledDepths
    tokenizer: PreTrainedTokenizerBase

    @property
    def form(self) -> str:  # type: ignore[override]
        return self.found.options.words

    @property
    def identity(self) -> str:  # type: ignore[override]
        return self.found.digest

    def numbers(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[list[int]]:
        return [each.tolist() for each in predicted(self.found.predictor, pieced(self.tokenizer, texts, spans))]


@torch.inference_mode()
def predicted(predictor: WordPredictor, texts: Sequence[PiecedText]) -> list[Depths]:
    """The depth of every word of every text."""
    found: dict[int, Depths] = {}
    device = predictor.out.weight.device
    order = sorted(range(len(texts)), key=lambda number: len(texts[number].ids))
    for batch in _portions(texts, order, TOKENS_AT_ONCE):
        some = [texts[number] for number in batch]
        depths = predictor.depths(predictor(*_inputs(some, device))).cpu().numpy()
        ends = np.cumsum([text.num_words for text in some])[:-1]
        found.update(zip(batch, np.split(depths, ends), strict=True))
    return [found[number] for number in range(len(texts))]


def cached_predictor(cache: Path, content: Sequence[Any], make: Callable[[], DistilledDepths]) -> DistilledDepths:
    """What ``make`` gives, which is made once: another process, or another run, with the same ``content`` finds it.

    ``content`` names all that decides what comes of it. A file that cannot be trusted is said to be so, and made again.
    """
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path = cache / CACHE / f"{digest[:32]}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            try:
                return load_predictor(path)
            except CheckpointError as error:
                log.warning("%s; it is made again", str(error).partition(";")[0])
        found = make()
        save_predictor(found, path)
    return found


# Learning


def learned_depths(
    marked: Iterable[tuple[str, Spans, Sequence[int]]],
    tokenizer: PreTrainedTokenizerBase,
    options: WordDepthsConfig,
    *,
    num_layers: int,
    seed: int,
) -> DistilledDepths:
    """A predictor of the depths that the words of these texts have, judged by texts that it did not learn from."""
    texts, depths = _with_pieces(marked, tokenizer)
    mixed = np.random.default_rng(seed).permutation(len(texts)).tolist()
    num_held = min(max(1, round(HELD_OUT * len(texts))), len(texts) - 1)
    held, learned = mixed[:num_held] or mixed, mixed[num_held:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        predictor = WordPredictor(len(tokenizer), options.predictor_width, num_layers).to(device)
        judge = partial(_judged, predictor, [texts[n] for n in held], [depths[n] for n in held])
        best, weights = _fitted(predictor, texts, depths, learned, options.predictor_epochs, seed, judge)
    predictor.load_state_dict(weights)
    log.info("a predictor of depths, on %d words that it did not learn from: %s", best["words"], best)
    return DistilledDepths(predictor.cpu().eval(), options, tokenizer_identity(tokenizer), best)


def _with_pieces(
    marked: Iterable[tuple[str, Spans, Sequence[int]]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[PiecedText], list[Depths]]:
    """The first texts that have words with pieces."""
    texts, depths, size, stream = list[PiecedText](), list[Depths](), 0, iter(marked)
    while size < MOST_TOKENS and (portion := list(islice(stream, TEXTS_AT_ONCE))):
        found = pieced(tokenizer, [text for text, _, _ in portion], [spans for _, spans, _ in portion])
        for text, (_, _, numbers) in zip(found, portion, strict=True):
            if bool((text.owners != NO_WORD).any()):
                texts.append(text)
                depths.append(np.array(numbers, np.int64))
                size += len(text.ids)
    if not texts:
        raise DataError("there is no word to give a depth; give training data with text")
    return texts, depths


def _fitted(
    predictor: WordPredictor,
    texts: Sequence[PiecedText],
    depths: Sequence[Depths],
    learned: list[int],
    num_epochs: int,
    seed: int,
    judge: Callable[[], dict[str, float]],
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """What the best of all epochs is like, and its weights: that of the least error, the first among equals."""
    device, mixer = predictor.out.weight.device, np.random.default_rng(seed + 1)
    num_tokens = sum(len(texts[number].ids) for number in learned)
    budget = min(max(num_tokens // BATCHES, BATCH_TOKENS[0]), BATCH_TOKENS[1])
    num_updates = num_epochs * max(1, num_tokens // budget)
    optimizer = torch.optim.AdamW(predictor.parameters(), lr=LEARNING_RATE)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / num_updates))
    best: tuple[dict[str, float], dict[str, Tensor]] | None = None
    for _ in shown(range(num_epochs), "distilling depths", num_epochs):
        predictor.train()
        for batch in _portions(texts, mixer.permutation(learned).tolist(), budget):
            some = [texts[number] for number in batch]
            there = torch.from_numpy(_has_pieces(some)).to(device)
            wanted = torch.from_numpy(np.concatenate([depths[number] for number in batch])).to(device)
            loss = predictor.loss(predictor(*_inputs(some, device))[there], wanted[there])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
        now = judge()
        if best is None or now["mean_absolute_error"] < best[0]["mean_absolute_error"]:
            best = now, {name: weight.detach().cpu().clone() for name, weight in predictor.state_dict().items()}
    assert best is not None, "there is at least one epoch"
    return best


def _judged(predictor: WordPredictor, texts: Sequence[PiecedText], depths: Sequence[Depths]) -> dict[str, float]:
    predictor.eval()
    there = _has_pieces(texts)
    ours, exact = (np.concatenate(each)[there] for each in (predicted(predictor, texts), list(depths)))
    return {
        "words": float(len(exact)),
        "agreement": float((ours == exact).mean()),
        "mean_absolute_error": float(np.abs(ours - exact).mean()),
        "mean_depth": float(ours.mean()),
        "exact_mean_depth": float(exact.mean()),
    }


# Batches


def _portions(texts: Sequence[PiecedText], order: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Numbers of texts in this order, as many at a time as a budget of tokens holds, padding included."""
    portion, longest = list[int](), 0
    for number in order:
        widest = max(longest, len(texts[number].ids))
        if portion and widest * (len(portion) + 1) > budget:
            yield portion
            portion, widest = [], len(texts[number].ids)
        portion.append(number)
        longest = widest
    if portion:
        yield portion


def _inputs(texts: Sequence[PiecedText], device: torch.device) -> tuple[Tensor, Tensor, Tensor, int]:
    """What the predictor takes: ids, which of them are real, the word of each real one, and the number of words."""
    ids, valid = padded([text.ids for text in texts], 0)
    num_words = sum(text.num_words for text in texts)
    begins = np.cumsum([0, *(text.num_words for text in texts)])[:-1]
    owners = [
        np.where(text.owners == NO_WORD, num_words, text.owners + begin)
        for text, begin in zip(texts, begins, strict=True)
    ]
    words = torch.from_numpy(np.concatenate(owners).astype(np.int64))
    return ids.to(device), valid.to(device), words.to(device), num_words


def _has_pieces(texts: Sequence[PiecedText]) -> npt.NDArray[np.bool_]:
    """Which words leave a piece; a tokenizer may drop some."""
    return np.concatenate([np.isin(np.arange(text.num_words), text.owners) for text in texts])
