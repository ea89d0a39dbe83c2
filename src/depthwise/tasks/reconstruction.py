"""How well a masked language model guesses every word of a text after each of its blocks.

Each word is masked by itself, all its pieces at once, so that a text of W words becomes W masked copies (or fewer, with
several words in each, where ``copies`` allows no more). Copies of many texts are sorted by length and run together.
What comes of a text is kept in a cache, under its ids and words, in a file of this very model; texts that stand there
twice, or were there before, cost nothing. Longer texts than the model takes are looked at in windows.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from depthwise.config import as_dict
from depthwise.data import load_tokenizers
from depthwise.data.building import tokenizer_identity
from depthwise.data.collate import padded
from depthwise.data.number_cache import NumberCache
from depthwise.data.templates import fast_tokenizer, text_template
from depthwise.data.words import NO_WORD, Spans, TextMarks, owners_of
from depthwise.depth.reconstruction import Losses, best_depths
from depthwise.errors import CheckpointError
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.language_head import LanguageHead
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.shapes import Float, Int, Tensor
from depthwise.tasks.run_folder import run_config

TOKENS_AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 17}
"""Tokens of a batch, with their padding."""
SCORES_AT_ONCE = 1 << 26
TOKENS_KEPT = 1 << 21
"""Tokens of masked copies after which what was found is written down."""
CACHE = "reconstruction"


class PiecedText(NamedTuple):
    """A text as pieces, without special tokens, and the word that each is of."""

    ids: npt.NDArray[np.int32]
    owners: npt.NDArray[np.int32]
    num_words: int

    @property
    def key(self) -> bytes:
        parts = (np.array([len(self.ids), self.num_words]), self.ids, self.owners)
        return hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts)).digest()


class _Copy(NamedTuple):
    """Places of a window that are masked, in one of the texts at hand."""

    text: int
    window: slice
    places: npt.NDArray[np.int64]
    """Counted from the beginning of the text."""


class Reconstruction:
    """What a masked language model with exits loses of each word. ``folder`` is its run, ``cache`` lies on disk."""

    def __init__(self, folder: Path, cache: Path, copies: int | None = None) -> None:
        self.folder, self.copies = folder, copies
        self.options = _config_of(folder).options
        self.tokenizer = load_tokenizers(folder).source
        self.cache = NumberCache(cache / CACHE / f"{self.digest[:32]}.sqlite", self.digest, len(self.depths))

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths at which words are guessed."""
        return self.options.exit_depths

    @property
    def num_layers(self) -> int:
        return self.depths[-1]

    @cached_property
    def digest(self) -> str:
        """Tells apart what gives different losses: weights, options, tokenizer, and how words are masked."""
        digest = hashlib.sha256(json.dumps([as_dict(self.options), self.copies], sort_keys=True).encode())
        digest.update(tokenizer_identity(self.tokenizer).encode())
        for path in weight_files(self.folder):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def losses(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[Losses]:
        """What is lost of each word (row) at each depth (column), for all texts; 0 of words that leave no piece."""
        found = pieced(self.tokenizer, texts, spans)
        keys = [text.key for text in found]
        distinct = dict(zip(keys, found, strict=True))
        kept = self.cache.known(list(distinct))
        known = {key: rows for key, rows in kept.items() if len(rows) == distinct[key].num_words}
        missing = {key: text for key, text in distinct.items() if key not in known}
        for portion in self._portions(missing):
            computed = dict(zip(portion, self._computed([missing[key] for key in portion]), strict=True))
            self.cache.add(computed)
            known |= computed
        return [known[key] for key in keys]

    def _portions(self, texts: dict[bytes, PiecedText]) -> Iterator[list[bytes]]:
        """As many texts as are written down together."""
        portion: list[bytes] = []
        size = 0
        for key, text in texts.items():
            portion.append(key)
            size += len(text.ids) * min(text.num_words, self.copies or text.num_words)
            if size >= TOKENS_KEPT:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion

    # Running the model

    @cached_property
    def model(self) -> DepthwiseForMaskedLM:
        """On a GPU where there is one."""
        try:
            found: Any = DepthwiseForMaskedLM.from_pretrained(self.folder, dtype=torch.float32, local_files_only=True)
        except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise CheckpointError(
                f"the weights in {self.folder} cannot be loaded: {reason}; copy or train the run again"
            ) from error
        placed: DepthwiseForMaskedLM = found.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        return placed

    def __getstate__(self) -> dict[str, Any]:
        """Another process loads the model by itself."""
        return {name: value for name, value in self.__dict__.items() if name != "model"}

    def _computed(self, texts: Sequence[PiecedText]) -> list[Losses]:
        sums = [np.zeros((text.num_words, len(self.depths)), np.float64) for text in texts]
        copies = sorted(
            (copy for number, text in enumerate(texts) for copy in self._copies(number, text)),
            key=lambda copy: copy.window.stop - copy.window.start,
        )
        for batch in self._batches(copies):
            nll = self._nll(texts, batch)
            owners = [texts[copy.text].owners[copy.places] for copy in batch]
            ends = np.cumsum([len(of_copy) for of_copy in owners])[:-1]
            for copy, of_copy, lost in zip(batch, owners, np.split(nll, ends), strict=True):
                np.add.at(sums[copy.text], of_copy, lost)
        found = []
        for text, total in zip(texts, sums, strict=True):
            pieces = np.bincount(text.owners[text.owners != NO_WORD], minlength=text.num_words)
            found.append((total / np.maximum(pieces, 1)[:, None]).astype(np.float32))
        return found

    def _copies(self, number: int, text: PiecedText) -> Iterator[_Copy]:
        limit = self.options.encoder.max_positions if self.options.encoder is not None else None
        width = len(text.ids) if limit is None else limit - self._template.num_special
        for begin in range(0, len(text.ids), max(1, width)):
            window = slice(begin, min(begin + width, len(text.ids)))
            places = begin + np.flatnonzero(text.owners[window] != NO_WORD)
            words, ranks = np.unique(text.owners[places], return_inverse=True)
            num_copies = min(len(words), self.copies or len(words))
            for first in range(num_copies):
                yield _Copy(number, window, places[ranks % num_copies == first])

    @cached_property
    def _template(self) -> Any:
        return text_template(self.tokenizer)

    def _batches(self, copies: Sequence[_Copy]) -> Iterator[Sequence[_Copy]]:
        """Copies in their order, which is that of their lengths, as many as fit at a time."""
        budget = TOKENS_AT_ONCE.get(self.model.device.type, TOKENS_AT_ONCE["cuda"])
        begin = 0
        for place, copy in enumerate(copies):
            length = copy.window.stop - copy.window.start + self._template.num_special
            if place > begin and length * (place + 1 - begin) > budget:
                yield copies[begin:place]
                begin = place
        if copies:
            yield copies[begin:]

    @torch.inference_mode()
    def _nll(self, texts: Sequence[PiecedText], batch: Sequence[_Copy]) -> npt.NDArray[np.float32]:
        """What is lost of every masked piece (row) at every depth (column)."""
        rows, places, before = [], [], len(self._template.before)
        for copy in batch:
            masked = texts[copy.text].ids.copy()
            masked[copy.places] = self.tokenizer.mask_token_id
            rows.append(self._template.joined(masked[copy.window]))
            places.append(copy.places - copy.window.start + before)
        model = self.model
        ids, valid = padded(rows, self.tokenizer.pad_token_id)
        flat = np.concatenate([of_row + row * ids.shape[1] for row, of_row in enumerate(places)])
        labels = np.concatenate([texts[copy.text].ids[copy.places] for copy in batch]).astype(np.int64)
        there = torch.from_numpy(flat).to(model.device)
        output = model.encode(ids.to(model.device), valid.long().to(model.device), None, True)
        encoder = model.model.encoder
        assert encoder is not None
        states = model.states_at_exits(encoder.stack, output, is_mixed=False)
        wanted = torch.from_numpy(labels).to(model.device)
        columns = [
            _nll_of(model.head_at(depth), state.flatten(0, 1)[there], wanted)
            for depth, state in zip(self.depths, states, strict=True)
        ]
        return torch.stack(columns, dim=1).cpu().numpy()


def pieced(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], spans: Sequence[Spans]) -> list[PiecedText]:
    """Texts, whose words are the characters of these spans, as pieces."""
    if not texts:
        return []
    encoding = fast_tokenizer(tokenizer)(
        list(texts),
        add_special_tokens=False,
        padding=False,
        truncation=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    found = []
    for ids, offsets, of_text in zip(encoding["input_ids"], encoding["offset_mapping"], spans, strict=True):
        owners = owners_of(of_text, np.array(offsets, np.int64).reshape(-1, 2))
        found.append(PiecedText(np.array(ids, np.int32), owners.astype(np.int32), len(of_text)))
    return found


def _nll_of(head: Any, states: Float[Tensor, "M D"], labels: Int[Tensor, "M"]) -> Float[Tensor, "M"]:
    assert isinstance(head, LanguageHead)
    at_once = max(1, SCORES_AT_ONCE // head.out_features)
    parts = zip(states.split(at_once), labels.split(at_once), strict=True)
    return torch.cat([head.nll(of_part, wanted) for of_part, wanted in parts])


@dataclass(frozen=True)
class ReconstructionMarks(TextMarks):
    """The depth of every word where it stands: argmin over depths of what is lost, plus ``penalty`` for each block."""

    estimator: Reconstruction
    penalty: float
    form: str

    @property
    def identity(self) -> str:  # type: ignore[override]
        content = [CACHE, self.estimator.digest, self.penalty, self.form]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def numbers(self, texts: Sequence[str], spans: Sequence[Spans]) -> list[list[int]]:
        depths = self.estimator.depths
        return [best_depths(losses, depths, self.penalty).tolist() for losses in self.estimator.losses(texts, spans)]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a run."""
    return sorted(folder.glob("*.safetensors"))


def _config_of(folder: Path) -> DepthwiseConfig:
    """The configuration of a run that can estimate depths."""
    config = run_config(folder)
    if config.architectures and config.architectures[0] != DepthwiseForMaskedLM.__name__:
        raise CheckpointError(
            f"{folder} holds a {config.architectures[0]}, which fills no masks; give a run of masked_language_modeling"
        )
    if config.exits is None:
        raise CheckpointError(
            f"{folder} fills masks at the end alone, so that nothing is known of fewer blocks; train it with "
            "model.exits={}"
        )
    if not weight_files(folder):
        raise CheckpointError(f"{folder} holds no weights; copy or train the run again")
    return config
