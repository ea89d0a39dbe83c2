"""Byte-pair codes that subword-nmt learned, as a tokenizer for text that is split into words at blanks.

The segmentation is subword-nmt's. Pieces go by other names inside: subword-nmt writes ``lo@@ w`` where a vocabulary
here has ``lo`` and ``w</w>``, so that the last piece of a word carries a mark instead of all others;
``with_joiners`` translates. Decoding gives the words back. In one case the two may differ: where codes make the same
piece in two ways and the rarer way meets itself in a word, an occurrence may be merged before its neighbour.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from depthwise.data.lines import opened
from depthwise.data.tokenizers import SPECIALS, UNK, as_pretrained
from depthwise.errors import DataError

END_OF_WORD = "</w>"
JOINER = "@@"
VERSION = "#version:"
SUPPORTED = "0.2"
EIGHT = 8
"""Vocabularies are filled up to a multiple of it. Products with an odd number of columns take a GPU three times as long
in half precision, and the scores of all types are the largest product of a small model."""

Merge = tuple[str, str]


def tokenizer_from_codes(codes: Path, texts: Iterable[str] | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer that applies codes.

    Types are letters and what merges make of them, in the order of the codes. With ``texts``, tokenised text to learn
    from, they are the letters that occur there and the merges that apply there: one side of joint codes does not pay
    for pieces of the other language, and no type is without an example but those on the way to a longer one. Words that
    would have had such a piece come in smaller ones that did occur. Without, they are all of the codes.

    At the end stand types that no text has (``madeupword0000``, ...), up to a multiple of eight: fairseq's dictionaries
    have them, too.
    """
    merges = read_codes(codes)
    letters = {letter for merge in merges for piece in merge for letter in _letters(piece)}
    if texts is None:
        return as_pretrained(_byte_pairs(letters, merges))
    words = sorted({word for text in texts for word in _words(text)})
    seen = {letter for word in words for letter in _letters(word + END_OF_WORD)}
    segments = _byte_pairs(letters | seen, merges).encode_batch(words, add_special_tokens=False)
    pieces = {piece for segment in segments for piece in segment.tokens}
    applied = _applied(pieces, merges)
    return as_pretrained(_byte_pairs(seen, [merge for merge in merges if merge in applied]))


def _byte_pairs(letters: set[str], merges: Sequence[Merge]) -> Tokenizer:
    # A letter may end a word here and stand inside of one elsewhere.
    letters = letters | {letter.removesuffix(END_OF_WORD) for letter in letters}
    letters |= {letter + END_OF_WORD for letter in letters if not letter.endswith(END_OF_WORD)}
    merged = (piece for left, right in merges for piece in (left, right, left + right))
    pieces = list(dict.fromkeys([*SPECIALS, *sorted(letters), *merged]))
    pieces += [f"madeupword{number:04}" for number in range(-len(pieces) % EIGHT)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges), unk_token=UNK, end_of_word_suffix=END_OF_WORD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.decoder = decoders.BPEDecoder(END_OF_WORD)
    return tokenizer


def _applied(pieces: Iterable[str], merges: Sequence[Merge]) -> set[Merge]:
    """The merges on the way from letters to pieces. A piece is made in a word as it is made alone: no merge that
    reached over its ends took place, so that those within it came in the order of the codes."""
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    applied = set()
    for piece in pieces:
        parts = _letters(piece)
        while known := [merge for merge in pairwise(parts) if merge in ranks]:
            merge = min(known, key=ranks.__getitem__)
            applied.add(merge)
            parts = _merged(parts, merge)
    return applied


def _merged(parts: Iterable[str], merge: Merge) -> list[str]:
    """Every occurrence of a merge carried out, from the left."""
    result: list[str] = []
    for part in parts:
        if result and (result[-1], part) == merge:
            result[-1] += part
        else:
            result.append(part)
    return result


def with_joiners(pieces: Sequence[str]) -> list[str]:
    """Pieces of a tokenizer as subword-nmt writes them: ``["lo", "w</w>"]`` is ``["lo@@", "w"]``."""
    return [
        piece if piece in SPECIALS else piece.removesuffix(END_OF_WORD) + JOINER * (not piece.endswith(END_OF_WORD))
        for piece in pieces
    ]


def read_codes(path: Path) -> list[Merge]:
    """The merges in their order, each once; the first of several counts."""
    with opened(path) as file:
        try:
            lines = file.read().decode().rstrip("\n").split("\n")
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8; give a file of byte-pair codes") from None
    version = lines.pop(0).split()[-1] if lines[0].startswith(VERSION) else "0.1, which has no number in its file"
    if version != SUPPORTED:
        raise DataError(f"{path} holds codes of version {version}; learn them again to have version {SUPPORTED}")
    merges: dict[Merge, None] = {}
    for number, line in enumerate(lines, start=2):
        left, *rest = line.strip("\r ").split(" ")
        if len(rest) != 1:
            raise DataError(f"{path}:{number}: a line of byte-pair codes is two pieces with a blank between them")
        merges[left, rest[0]] = None
    return [merge for merge in merges if _can_apply(merge)]


def _can_apply(merge: Merge) -> bool:
    """Only a word's last piece bears the mark of its end; a merge with an empty or a marked left piece is idle."""
    left, right = merge
    return bool(left) and bool(right) and not left.endswith(END_OF_WORD) and right != END_OF_WORD


def _letters(piece: str) -> list[str]:
    """The letters that a piece is merged from, the last one with the mark of the word's end if the piece has it."""
    letters = list(piece.removesuffix(END_OF_WORD))
    if letters and piece.endswith(END_OF_WORD):
        letters[-1] += END_OF_WORD
    return letters


def _words(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]
