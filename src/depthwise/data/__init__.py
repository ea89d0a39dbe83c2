"""From text to batches: corpora, tokenizers, tokenised corpora on disk, batches by token budget, padded tensors.

corpus → tokenizer → store → batches → tensors
corpora, hub   tokenizers, codes   building, store, labels   batches   collate
"""

from depthwise.data.batches import BatchOptions, TokenBatches
from depthwise.data.building import StoreOptions, build_store
from depthwise.data.codes import tokenizer_from_codes, with_joiners
from depthwise.data.collate import ClassificationCollator, Seq2SeqCollator
from depthwise.data.corpora import Corpus, JsonLines, LabelledText, ParallelText, TabbedPairs, num_texts_in
from depthwise.data.hub import HubDataset
from depthwise.data.lines import BadLine, Example, LineReport, LineRules
from depthwise.data.store import Row, TokenStore
from depthwise.data.tokenizers import (
    TokenizerOptions,
    Tokenizers,
    load_tokenizer,
    load_tokenizers,
    train_tokenizer,
    train_tokenizers,
)

__all__ = [
    "BadLine",
    "BatchOptions",
    "ClassificationCollator",
    "Corpus",
    "Example",
    "HubDataset",
    "JsonLines",
    "LabelledText",
    "LineReport",
    "LineRules",
    "ParallelText",
    "Row",
    "Seq2SeqCollator",
    "StoreOptions",
    "TabbedPairs",
    "TokenBatches",
    "TokenStore",
    "TokenizerOptions",
    "Tokenizers",
    "build_store",
    "load_tokenizer",
    "load_tokenizers",
    "num_texts_in",
    "tokenizer_from_codes",
    "train_tokenizer",
    "train_tokenizers",
    "with_joiners",
]
