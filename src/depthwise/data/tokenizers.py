"""Tokenizers: trained on a corpus or loaded from a folder, always as Transformers saves and loads them.

| kind | pieces | what it never saw |
|---|---|---|
| ``bpe`` | pieces of words, merged by how often they meet | ``<unk>``, or its bytes with ``byte_fallback`` |
| ``unigram`` | pieces of words, chosen by their likelihood | the same |
| ``word`` | words and punctuation; what stands between blanks if the text is ``pretokenized`` | ``<unk>`` |
| ``char`` | characters | ``<unk>`` |
| ``byte`` | the 256 bytes of UTF-8 | nothing |

Ids 0 to 3 are ``<s>``, ``<pad>``, ``</s>`` and ``<unk>``; ``<mask>``, where wanted, has the last id. Every sequence
ends in ``</s>``, and begins with ``<s>`` where that is wanted. Names of special tokens inside of text are ordinary text
and never become those tokens, with one exception: in ``pretokenized`` text the word ``<unk>`` stands for a word that
somebody else left out, as WikiText writes it, and is the unknown token, as published perplexities count it; words that
are called like the other special tokens are unknown too. Training twice on the same text gives the same tokenizer.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from depthwise.data.corpora import Corpus
from depthwise.data.lines import LineReport, LineRules
from depthwise.data.progress import shown
from depthwise.errors import ConfigError, DataError, Problem

SPECIALS = BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"
MASK = "<mask>"
SPECIAL_TOKENS = {"bos_token": BOS, "pad_token": PAD, "eos_token": EOS, "unk_token": UNK}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
"""How the pieces of single bytes are called."""
BLANK = "▁"
"""How a blank is written in pieces of words."""
KINDS = ("bpe", "unigram", "word", "char", "byte")
NORMALIZATIONS: dict[str, list[Any]] = {"none": [], "nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()]}
NO_TEXT = "there is no text to train a tokenizer on; give a corpus with at least one good line"
TARGET = "target"
"""The subfolder for the target's tokenizer, where it is not the source's too."""


@dataclass(frozen=True)
class TokenizerOptions:
    """How a tokenizer is trained."""

    kind: str = "bpe"
    vocab_size: int = 8000
    """The most types, special ones included. A small corpus gives fewer; ``byte`` always has its 260."""
    byte_fallback: bool = False
    """``bpe`` and ``unigram`` spell unknown characters as bytes, at the cost of 256 types."""
    pretokenized: bool = False
    """The text is tokenised already: ``word`` splits at blanks only."""
    lowercase: bool = False
    normalization: str = "nfc"
    """Unicode form that text is brought into: ``none``, ``nfc`` or ``nfkc``."""
    mask_token: bool = False
    """Whether there is a ``<mask>``, for models that fill in blanks."""
    first_token: bool = False
    """Whether every sequence begins with ``<s>``, for encoders that sum up a text in its first token."""

    def __post_init__(self) -> None:
        problems = []
        if self.kind not in KINDS:
            problems.append(Problem("kind", f'"{self.kind}" is none of {", ".join(KINDS)}'))
        if self.normalization not in NORMALIZATIONS:
            allowed = ", ".join(NORMALIZATIONS)
            problems.append(Problem("normalization", f'"{self.normalization}" is none of {allowed}'))
        if self.byte_fallback and self.kind not in ("bpe", "unigram"):
            problems.append(Problem("byte_fallback", f"serves bpe and unigram, not {self.kind}"))
        if self.kind != "byte" and self.vocab_size <= self.num_reserved:
            problems.append(Problem("vocab_size", f"{self.vocab_size} leaves no room; give over {self.num_reserved}"))
        if problems:
            raise ConfigError("tokenizer", problems)

    @property
    def num_reserved(self) -> int:
        """Types that are not learned."""
        return len(SPECIALS) + self.mask_token + len(BYTES) * self.byte_fallback


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of each side of a corpus; one and the same where they are joint."""

    source: PreTrainedTokenizerBase
    target: PreTrainedTokenizerBase

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def save(self, folder: Path) -> None:
        """The source's files in the folder, the target's, if it has its own, in its subfolder ``target``."""
        self.source.save_pretrained(folder)
        if not self.joint:
            self.target.save_pretrained(folder / TARGET)


def train_tokenizers(corpus: Corpus, options: TokenizerOptions, rules: LineRules, *, joint: bool) -> Tokenizers:
    """Train on the good lines of a corpus: one tokenizer on all texts (joint) or one for each of two texts."""
    if joint or corpus.num_texts == 1:
        both = train_tokenizer(_Texts(corpus, rules, slice(None)), options)
        return Tokenizers(both, both)
    sides = (_Texts(corpus, rules, slice(side, side + 1)) for side in (0, 1))
    return Tokenizers(*(train_tokenizer(texts, options) for texts in sides))


@dataclass(frozen=True)
class _Texts:
    """The texts of some sides of a corpus, as often as they are gone through."""

    corpus: Corpus
    rules: LineRules
    sides: slice

    def __iter__(self) -> Iterator[str]:
        report, example = LineReport(self.rules), None
        examples = self.corpus.examples(report)
        for example in shown(examples, "reading for the tokenizer", self.corpus.num_lines()):
            yield from example.texts[self.sides]
        if example is None:
            raise DataError(f"{NO_TEXT}: {report.summary()}")


def train_tokenizer(texts: Iterable[str], options: TokenizerOptions) -> PreTrainedTokenizerFast:
    """Train on texts, which may have to be gone through more than once."""
    train = {"bpe": _bpe, "unigram": _unigram, "word": _word, "char": _char, "byte": _byte}[options.kind]
    tokenizer = train(texts, options)
    assert [tokenizer.token_to_id(name) for name in SPECIALS] == [0, 1, 2, 3]
    return as_pretrained(tokenizer, mask_token=options.mask_token, first_token=options.first_token)


def as_pretrained(
    tokenizer: Tokenizer, *, mask_token: bool = False, first_token: bool = False, **settings: Any
) -> PreTrainedTokenizerFast:
    """A trained tokenizer as Transformers knows it; every sequence, also the second of a pair, ends in ``</s>``."""
    tokenizer.add_special_tokens(list(SPECIALS))
    begin, names = (f"{BOS} ", (BOS, EOS)) if first_token else ("", (EOS,))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}$A {EOS}",
        pair=f"{begin}$A {EOS} $B:1 {EOS}:1",
        special_tokens=[(name, SPECIALS.index(name)) for name in names],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **SPECIAL_TOKENS,
        **({"mask_token": MASK} if mask_token else {}),
        **settings,
    )


def encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, whole and with its special tokens. A fast tokenizer spreads texts over all cores."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(
        list(texts),
        padding=False,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]
    return ids


def load_tokenizers(folder: Path) -> Tokenizers:
    """What ``Tokenizers.save`` wrote, or a single tokenizer for both sides."""
    source = load_tokenizer(folder)
    return Tokenizers(source, load_tokenizer(folder / TARGET) if (folder / TARGET).is_dir() else source)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """A tokenizer that Transformers saved, of whatever origin, made to end its sequences.

    One that ends them in a separator (BERT's) has that as its end of sequence; one that does not end them (GPT-2's)
    now does.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give one that a tokenizer was saved to")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of whatever kind: the library does not check what it reads
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise DataError(f"{folder} holds no tokenizer that can be loaded: {reason}; save it again") from error
    for how in ("is_local", "local_files_only"):  # it was found, which is no part of it
        tokenizer.init_kwargs.pop(how, None)
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token
    for name, token in (("padding", tokenizer.pad_token), ("end of sequence", tokenizer.eos_token)):
        if token is None:
            raise DataError(f"the tokenizer in {folder} has no token for {name}; add one and save it again")
    if tokenizer("a")["input_ids"][-1:] != [tokenizer.eos_token_id]:
        _end_sequences(tokenizer, folder)
    return tokenizer


def _end_sequences(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise DataError(f"the tokenizer in {folder} does not end its sequences; give one that does, or a fast one")
    eos, backend = tokenizer.eos_token, tokenizer.backend_tokenizer
    ending = processors.TemplateProcessing(
        single=["$A", eos], pair=["$A", eos, "$B:1", f"{eos}:1"], special_tokens=[(eos, tokenizer.eos_token_id)]
    )
    earlier = [backend.post_processor] if backend.post_processor is not None else []
    backend.post_processor = processors.Sequence([*earlier, ending])


def _normalizer(options: TokenizerOptions, *, blanks: bool = True) -> normalizers.Normalizer:
    """The Unicode form, lower case, and any run of blanks as one (the sides have none), as far as wanted."""
    return normalizers.Sequence(
        [
            *NORMALIZATIONS[options.normalization],
            *([normalizers.Lowercase()] if options.lowercase else []),
            *([normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()] if blanks else []),
        ]
    )


def _bpe(texts: Iterable[str], options: TokenizerOptions) -> Tokenizer:
    """Letters are at most half of the types, so that scripts with thousands of them leave room for merges.

    Where some are left out, the library leaves it to chance which of those that are equally rare; then it is told.
    """
    num_learned = options.vocab_size - options.num_reserved
    most_letters = max(1, num_learned // 2)

    def trained(letters: list[str]) -> Tokenizer:
        trainer = trainers.BpeTrainer(
            vocab_size=len(SPECIALS) + num_learned,
            limit_alphabet=most_letters,
            initial_alphabet=letters,
            special_tokens=list(SPECIALS),
            show_progress=False,
        )
        return _train_pieces(Tokenizer(models.BPE(unk_token=UNK)), trainer, texts, options)

    tokenizer = trained([])
    if sum(len(piece) == 1 for piece in tokenizer.get_vocab()) < most_letters:
        return tokenizer
    return trained(_commonest_letters(texts, _normalizer(options), most_letters))


def _commonest_letters(texts: Iterable[str], normalizer: normalizers.Normalizer, most: int) -> list[str]:
    """The mark of a blank, and the letters that texts have most often, the first in order among equals."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    counts.pop(" ", None)
    return [BLANK, *sorted(counts, key=lambda letter: (-counts[letter], letter))[: most - 1]]


def _unigram(texts: Iterable[str], options: TokenizerOptions) -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=options.vocab_size - options.num_reserved + len(SPECIALS),
        special_tokens=list(SPECIALS),
        unk_token=UNK,
        show_progress=False,
    )
    try:
        return _train_pieces(Tokenizer(models.Unigram()), trainer, texts, options)
    except Exception as error:
        if "not large enough" not in str(error):
            raise
        raise DataError(
            f"vocab_size={options.vocab_size} is too small for this text; give more, or another kind of tokenizer"
        ) from error


def _train_pieces(
    tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str], options: TokenizerOptions
) -> Tokenizer:
    """Pieces within words: they begin with the blank before them, and punctuation stands alone."""
    tokenizer.normalizer = _normalizer(options)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
    _train(tokenizer, trainer, texts)
    tokenizer = _edited(tokenizer, _steady_scores)
    if options.byte_fallback:
        tokenizer = _edited(tokenizer, _with_bytes)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return tokenizer


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> None:
    remaining = iter(texts)
    first = next(remaining, None)
    if first is None:
        raise DataError(NO_TEXT)
    tokenizer.train_from_iterator(chain([first], remaining), trainer)


def _edited(tokenizer: Tokenizer, edit: Callable[[dict[str, Any]], None]) -> Tokenizer:
    """A copy whose model, as it stands in ``tokenizer.json``, was edited in place."""
    content = json.loads(tokenizer.to_str())
    edit(content["model"])
    return Tokenizer.from_str(json.dumps(content))


def _steady_scores(model: dict[str, Any]) -> None:
    """Undo what is left to chance in unigram training: the last digits of scores, and who of the rarest letters is
    how much less likely than the next, by steps of 0.0001."""
    if model["type"] != "Unigram":
        return
    specials, pieces = model["vocab"][: len(SPECIALS)], model["vocab"][len(SPECIALS) :]
    lowest = min((score for _, score in pieces), default=0.0)
    rarest = lowest + 0.0001 * (1 + sum(len(piece) == 1 for piece, _ in pieces))
    steady = [(lowest if len(piece) == 1 and score < rarest else score, piece) for piece, score in pieces]
    ordered = sorted((-round(score, 6), piece) for score, piece in steady)
    model["vocab"] = [*specials, *([piece, -score] for score, piece in ordered)]


def _with_bytes(model: dict[str, Any]) -> None:
    """Put the pieces of single bytes behind the special ones and let unknown characters be spelled with them."""
    model["byte_fallback"] = True
    if model["type"] == "Unigram":
        lowest = min((score for _, score in model["vocab"]), default=0.0)
        model["vocab"][len(SPECIALS) : len(SPECIALS)] = [[name, lowest] for name in BYTES]
    else:
        learned = sorted(model["vocab"], key=model["vocab"].__getitem__)[len(SPECIALS) :]
        model["vocab"] = _numbered([*SPECIALS, *BYTES, *learned])


def _word(texts: Iterable[str], options: TokenizerOptions) -> Tokenizer:
    """Where punctuation does not stand alone, names of special tokens can be words: none is learned, all are unknown.

    Otherwise the second entry of a name would take its id, and ``<pad>`` in a text would pass for padding.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    blanks = pre_tokenizers.WhitespaceSplit()
    punctuation = [] if options.pretokenized else [pre_tokenizers.Punctuation()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([blanks, *punctuation])
    tokenizer.normalizer = _without_names(options, "")
    _train(tokenizer, _word_trainer(options), texts)
    tokenizer.normalizer = _without_names(options, UNK)
    return tokenizer


def _without_names(options: TokenizerOptions, replacement: str) -> normalizers.Normalizer:
    """The usual form of a text; words that are called like a special token, where there can be any, are replaced."""
    if not options.pretokenized:
        return _normalizer(options)
    names = Regex(rf"(?<!\S)(?:{'|'.join([*SPECIALS, MASK])})(?!\S)")
    return normalizers.Sequence([_normalizer(options), normalizers.Replace(names, replacement)])


def _char(texts: Iterable[str], options: TokenizerOptions) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    tokenizer.normalizer = _normalizer(options, blanks=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    _train(tokenizer, _word_trainer(options), texts)
    return tokenizer


def _word_trainer(options: TokenizerOptions) -> trainers.Trainer:
    return trainers.WordLevelTrainer(
        vocab_size=options.vocab_size - options.mask_token, special_tokens=list(SPECIALS), show_progress=False
    )


def _byte(texts: Iterable[str], options: TokenizerOptions) -> Tokenizer:
    """Nothing is learned: no character is a type, so that all of them fall back to their bytes."""
    model = models.BPE(_numbered([*SPECIALS, *BYTES]), [], unk_token=UNK, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = _normalizer(options, blanks=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}
