"""A small network that says how deep a word runs where it stands: what exact depths are distilled into.

    h_t     = gelu(conv(E[x])_t)                        embeddings of pieces, one convolution over a few neighbours
    s_w     = mean of h_t over the pieces t of word w
    P(d>n)  = σ(u_n·s_w + b_n),  n = 1 … N−1            ordinal: one question for each block but the first
    d(w)    = 1 + |{n : P(d>n) > ½}|

Learned by cross-entropy of these N−1 answers; d is then the median of what it believes in, whose error is least in the
mean. It reads pieces alone, so that depths are known before the model runs and cost no pass through its blocks.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from depthwise.config import WordDepthsConfig, as_dict
from depthwise.errors import CheckpointError
from depthwise.shapes import Bool, Float, Int, Tensor

FILE = "word-depths.safetensors"
FORMAT = "1"
KERNEL = 5
"""Pieces that the convolution sees: two on either side."""
DROPOUT = 0.2


class WordPredictor(nn.Module):
    """From pieces, and the words that they are of, to a depth for every word."""

    def __init__(self, vocab_size: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.embedding = nn.Embedding(vocab_size, width)
        self.conv = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)
        self.out = nn.Linear(width, num_layers - 1)

    def forward(
        self, ids: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"], words: Int[Tensor, "P"], num_words: int
    ) -> Float[Tensor, "W n"]:
        """Scores of P(d > n) for the words of all texts; ``words`` is the word of each valid piece, or ``num_words``.

        Pieces of no word are read by their neighbours and count for nothing else.
        """
        embedded = F.dropout(self.embedding(ids) * valid.unsqueeze(-1), DROPOUT, self.training)
        hidden = F.gelu(self.conv(embedded.transpose(1, 2))).transpose(1, 2)
        pieces = hidden[valid]
        sums = pieces.new_zeros(num_words + 1, pieces.shape[1]).index_add(0, words, pieces)[:num_words]
        counts = torch.bincount(words, minlength=num_words + 1)[:num_words].clamp(min=1)
        return self.out(F.dropout(sums / counts.unsqueeze(1), DROPOUT, self.training))

    def depths(self, scores: Float[Tensor, "W n"]) -> Int[Tensor, "W"]:
        """How many blocks each word runs."""
        return 1 + (scores > 0).sum(1)

    def loss(self, scores: Float[Tensor, "W n"], depths: Int[Tensor, "W"]) -> Float[Tensor, ""]:
        """What is lost of the right answers, in the mean over words."""
        levels = torch.arange(1, self.num_layers, device=scores.device)
        answers = (depths.unsqueeze(1) > levels).to(scores.dtype)
        return F.binary_cross_entropy_with_logits(scores, answers, reduction="sum") / len(scores)


@dataclass(frozen=True)
class DistilledDepths:
    """A predictor, what it was made for, and how it did on words that it did not learn from.

    ``held_out`` has the share of words whose depth is the exact one (``agreement``), the ``mean_absolute_error``, both
    mean depths and the number of words.
    """

    predictor: WordPredictor
    options: WordDepthsConfig
    tokenizer: str
    held_out: dict[str, float]

    @property
    def num_layers(self) -> int:
        return self.predictor.num_layers

    @property
    def digest(self) -> str:
        """Tells whether two of them give all words the same depths."""
        made_for = [self.num_layers, self.tokenizer, self.options.words, self.options.special]
        digest = hashlib.sha256(json.dumps(made_for).encode())
        for name, weight in sorted(self.predictor.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def save_predictor(found: DistilledDepths, path: Path) -> None:
    """Write it into a file, of which others see nothing before it is whole."""
    about = {
        "num_layers": found.num_layers,
        "tokenizer": found.tokenizer,
        "options": as_dict(found.options),
        "held_out": found.held_out,
    }
    weights = {name: weight.detach().cpu().contiguous() for name, weight in found.predictor.state_dict().items()}
    beside = path.with_name(f".{path.name}.new")
    save_file(weights, beside, metadata={"format": FORMAT, "word_depths": json.dumps(about)})
    beside.replace(path)


def load_predictor(path: Path) -> DistilledDepths:
    """What a file holds, whatever it was made for."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}, by which its words run; copy or train the run again"
        ) from None
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} cannot be read: {reason}; copy or train the run again") from None
    try:
        return _parsed(metadata, weights)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        raise CheckpointError(f"{path} is damaged or of another version; copy or train the run again") from None


def predictor_of_run(folder: Path, *, tokenizer: str, num_layers: int) -> DistilledDepths:
    """The predictor of a run, if it was made for this tokenizer and number of layers."""
    path = folder / FILE
    found = load_predictor(path)
    if found.tokenizer != tokenizer:
        raise CheckpointError(f"{path} was made for another tokenizer; use the run's own, or train again")
    if found.num_layers != num_layers:
        raise CheckpointError(
            f"{path} was made for {found.num_layers} layers, but the model has {num_layers}; train again"
        )
    return found


def _parsed(metadata: dict[str, str], weights: dict[str, Any]) -> DistilledDepths:
    if metadata["format"] != FORMAT:
        raise ValueError(metadata["format"])
    about = json.loads(metadata["word_depths"])
    vocab_size, width = weights["embedding.weight"].shape
    predictor = WordPredictor(vocab_size, width, int(about["num_layers"]))
    predictor.load_state_dict(weights)
    if not all(bool(weight.isfinite().all()) for weight in weights.values()):
        raise ValueError("not finite")
    held_out = {str(name): float(value) for name, value in about["held_out"].items()}
    return DistilledDepths(predictor.eval(), WordDepthsConfig(**about["options"]), str(about["tokenizer"]), held_out)
