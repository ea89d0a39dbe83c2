"""From text to batches: corpora, tokenizers, tokenised corpora on disk, batches by token budget, padded tensors.

corpus → tokenizer → store → batches → tensors
corpora, hub   tokenizers, tokenizer_cache, codes   building, kept, store, labels   batches   collate

What single tasks need besides:

language   running text in blocks or lines
masking, sentence_pairs   masked language models, order of sentences
conll, tags, word_pieces   tagging
squad, answer_windows, answers   extractive question answering
languages, pair_corpora   translation between many languages
references   summaries with several references
"""

from depthwise.data.answer_windows import AnswerCollator, AnswerWindow, WindowOptions, question_windows
from depthwise.data.answers import AnswerOptions, Prediction, merged_answers
from depthwise.data.batches import BatchOptions, TokenBatches
from depthwise.data.building import StoreOptions, build_store
from depthwise.data.codes import tokenizer_from_codes, with_joiners
from depthwise.data.collate import ClassificationCollator, Seq2SeqCollator
from depthwise.data.conll import ConllColumns, TaggedSentence, tag_names
from depthwise.data.corpora import Corpus, JsonLines, LabelledText, ParallelText, TabbedPairs, num_texts_in
from depthwise.data.hub import HubDataset
from depthwise.data.joined import JoinedCorpus
from depthwise.data.language import (
    BlockOptions,
    LanguageCollator,
    PlainText,
    TokenBlocks,
    TokenLines,
    num_words,
    stream_of,
)
from depthwise.data.languages import (
    DecoderLanguageCollator,
    LanguageBatches,
    LanguagePair,
    LanguageRow,
    LanguageStores,
    MixedBatches,
    add_language_tokens,
    language_tokens,
    temperature_shares,
)
from depthwise.data.lines import BadLine, Example, LineReport, LineRules
from depthwise.data.masking import MaskedCollator, MaskedRows, MaskingOptions, MaskVocabulary
from depthwise.data.pair_corpora import PairCorpora
from depthwise.data.references import JsonReferences
from depthwise.data.rows import Rows, TextRows, Texts
from depthwise.data.sentence_pairs import PairOptions, SentencePairs
from depthwise.data.squad import Answer, Question, SquadJson
from depthwise.data.store import Row, TokenStore
from depthwise.data.templates import PairForm, pair_form
from depthwise.data.tokenizer_cache import trained_tokenizers
from depthwise.data.tokenizers import (
    TokenizerOptions,
    Tokenizers,
    load_tokenizer,
    load_tokenizers,
    train_tokenizer,
    train_tokenizers,
)
from depthwise.data.word_pieces import (
    PieceRow,
    TaggingCollator,
    WordAligner,
    WordPieceOptions,
    tagged_rows,
    tags_of_words,
)

__all__ = [
    "Answer",
    "AnswerCollator",
    "AnswerOptions",
    "AnswerWindow",
    "BadLine",
    "BatchOptions",
    "BlockOptions",
    "ClassificationCollator",
    "ConllColumns",
    "Corpus",
    "DecoderLanguageCollator",
    "Example",
    "HubDataset",
    "JoinedCorpus",
    "JsonLines",
    "JsonReferences",
    "LabelledText",
    "LanguageBatches",
    "LanguageCollator",
    "LanguagePair",
    "LanguageRow",
    "LanguageStores",
    "LineReport",
    "LineRules",
    "MaskVocabulary",
    "MaskedCollator",
    "MaskedRows",
    "MaskingOptions",
    "MixedBatches",
    "PairCorpora",
    "PairForm",
    "PairOptions",
    "ParallelText",
    "PieceRow",
    "PlainText",
    "Prediction",
    "Question",
    "Row",
    "Rows",
    "SentencePairs",
    "Seq2SeqCollator",
    "SquadJson",
    "StoreOptions",
    "TabbedPairs",
    "TaggedSentence",
    "TaggingCollator",
    "TextRows",
    "Texts",
    "TokenBatches",
    "TokenBlocks",
    "TokenLines",
    "TokenStore",
    "TokenizerOptions",
    "Tokenizers",
    "WindowOptions",
    "WordAligner",
    "WordPieceOptions",
    "add_language_tokens",
    "build_store",
    "language_tokens",
    "load_tokenizer",
    "load_tokenizers",
    "merged_answers",
    "num_texts_in",
    "num_words",
    "pair_form",
    "question_windows",
    "stream_of",
    "tag_names",
    "tagged_rows",
    "tags_of_words",
    "temperature_shares",
    "tokenizer_from_codes",
    "train_tokenizer",
    "train_tokenizers",
    "trained_tokenizers",
    "with_joiners",
]
