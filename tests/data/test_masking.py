"""Masking: rates, shares, whole words, n-grams, never special tokens, the same again from the same seed."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from depthwise.config.masking import UNITS
from depthwise.data.collate import IGNORED
from depthwise.data.masking import (
    MaskedCollator,
    MaskedRows,
    MaskingOptions,
    MaskVocabulary,
    beginnings_of_words,
    filled_places,
    mask_tokens,
    ngram_shares,
    num_filled_places,
)
from depthwise.data.rows import TextRows
from depthwise.data.sentence_pairs import PairOptions, SentencePairs
from depthwise.data.store import Row
from depthwise.data.tokenizers import TokenizerOptions, train_tokenizer
from depthwise.errors import ConfigError, DataError

SIZE, MASK = 50, 49
SPECIAL = np.isin(np.arange(SIZE), [0, 1, 2, 3, MASK])
BEGINS = np.arange(SIZE) % 3 == 1
"""Ids 4, 7, 10, … begin a word."""
VOCABULARY = MaskVocabulary(MASK, SPECIAL, BEGINS)
Array = np.ndarray[Any, Any]


def text_of(num_tokens: int, seed: int = 0) -> Array:
    """Ordinary ids with special ones here and there."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(4, MASK, num_tokens)
    return np.where(generator.random(num_tokens) < 0.05, 2, ids)


def words_of(ids: Array) -> list[list[int]]:
    """Places of whole words, by a plain loop."""
    words: list[list[int]] = []
    for place, token in enumerate(ids.tolist()):
        if SPECIAL[token]:
            continue
        if BEGINS[token] or place == 0 or SPECIAL[ids[place - 1]]:
            words.append([])
        words[-1].append(place)
    return words


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize(("num_tokens", "rate"), [(400, 0.15), (9, 0.15), (3, 0.15), (40, 0.4)])
def test_the_rate_is_what_is_asked_for(units: str, num_tokens: int, rate: float) -> None:
    """Also on short texts, where rounding or passing over long words would show."""
    ids, options = text_of(num_tokens), MaskingOptions(rate=rate, units=units)
    num_ordinary = int((~SPECIAL[ids]).sum())
    num_texts = 20_000 // num_tokens + 2000
    counts = [
        (mask_tokens(ids, VOCABULARY, options, np.random.default_rng(seed))[1] != IGNORED).sum()
        for seed in range(num_texts)
    ]
    deviation = np.std(counts) / np.sqrt(num_texts)
    assert abs(np.mean(counts) - rate * num_ordinary) < 4 * deviation + 1e-9
    if units == "tokens":
        assert set(counts) <= {int(rate * num_ordinary), int(rate * num_ordinary) + 1}


@given(st.integers(0, 60), st.integers(0, 99), st.sampled_from(UNITS), st.floats(0.05, 0.9))
def test_labels_are_what_stood_there(num_tokens: int, seed: int, units: str, rate: float) -> None:
    ids, options = text_of(num_tokens, seed), MaskingOptions(rate=rate, units=units)
    before = ids.copy()
    inputs, labels = mask_tokens(ids, VOCABULARY, options, np.random.default_rng(seed))
    chosen = labels != IGNORED
    assert (ids == before).all()
    assert (labels[chosen] == ids[chosen]).all()
    assert (inputs[~chosen] == ids[~chosen]).all()
    assert not SPECIAL[ids[chosen]].any()
    assert not (SPECIAL & (np.arange(SIZE) != MASK))[inputs[chosen]].any()
    if units != "tokens":
        for word in words_of(ids):
            assert len(set(chosen[word].tolist())) == 1


def test_what_becomes_of_the_chosen() -> None:
    ids = text_of(40_000)
    inputs, labels = mask_tokens(ids, VOCABULARY, MaskingOptions(rate=0.5), np.random.default_rng(0))
    chosen = labels != IGNORED
    num = chosen.sum()
    masked, kept = inputs[chosen] == MASK, inputs[chosen] == ids[chosen]
    other = inputs[chosen][~masked & ~kept]
    random = num * 0.1 * 44 / 45  # one in 45 random tokens is the one that stood there
    assert abs(masked.sum() - 0.8 * num) < 4 * np.sqrt(num * 0.16)
    assert abs(len(other) - random) < 4 * np.sqrt(num * 0.09)
    counts = np.bincount(other, minlength=SIZE)
    assert (counts[SPECIAL] == 0).all()
    assert (counts[~SPECIAL] > 0.5 * random / 45).all()
    everything = MaskingOptions(rate=0.5, mask_share=1.0, random_share=0.0)
    inputs, labels = mask_tokens(ids, VOCABULARY, everything, np.random.default_rng(0))
    assert (inputs[labels != IGNORED] == MASK).all()


def test_the_lengths_of_ngrams() -> None:
    """In a long text of words of one token, where few n-grams meet, runs are as long as p(n) says."""
    assert ngram_shares(3) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    ids = np.full(200_000, 4)
    _, labels = mask_tokens(ids, VOCABULARY, MaskingOptions(rate=0.005, units="ngrams"), np.random.default_rng(1))
    ends = np.flatnonzero(np.diff(np.concatenate([[0], labels != IGNORED, [0]])))
    runs = Counter((ends[1::2] - ends[::2]).tolist())
    total = sum(runs.values())
    for length, share in zip((1, 2, 3), ngram_shares(3), strict=True):
        assert abs(runs[length] / total - share) < 0.06
    assert sum(runs[length] for length in runs if length > 3) < 0.05 * total


def test_ngrams_do_not_reach_beyond_special_tokens() -> None:
    """Two words, a special token, a word: the n-grams are these within either side."""
    ids, options = np.array([4, 7, 2, 10, 2]), MaskingOptions(rate=0.3, units="ngrams", max_ngram=4)
    seen = set()
    for seed in range(300):
        _, labels = mask_tokens(ids, VOCABULARY, options, np.random.default_rng(seed))
        seen.add(tuple(np.flatnonzero(labels != IGNORED).tolist()))
    assert seen == {(), (0,), (1,), (3,), (0, 1)}


def test_words_do_not_reach_beyond_special_tokens() -> None:
    """What follows a special token is a word of its own even where it does not look like a beginning."""
    ids, options = np.array([4, 5, 2, 5, 6]), MaskingOptions(rate=0.4, units="words")
    seen = set()
    for seed in range(100):
        _, labels = mask_tokens(ids, VOCABULARY, options, np.random.default_rng(seed))
        seen.add(tuple(np.flatnonzero(labels != IGNORED).tolist()))
    assert seen == {(), (0, 1), (3, 4)}


def texts_of(num: int) -> TextRows:
    return TextRows([text_of(30, number) for number in range(num)], range(num))


def masked(texts: TextRows, **options: Any) -> MaskedRows:
    return MaskedRows(texts, VOCABULARY, MaskingOptions(**options))


def labels_of(rows: MaskedRows) -> Array:
    return np.stack([rows[number].texts[1] for number in range(len(rows))])


def test_static_and_dynamic() -> None:
    texts = texts_of(4)
    for dynamic in (False, True):
        rows = masked(texts, dynamic=dynamic)
        first = labels_of(rows)
        assert (labels_of(rows) == first).all()
        rows.set_epoch(1)
        assert (labels_of(rows) == first).all() == (not dynamic)
        rows.set_epoch(0)
        assert (rows[2].texts[1] == first[2]).all()
        assert not (labels_of(masked(texts, dynamic=dynamic, seed=1)) == first).all()
    same_text = labels_of(masked(TextRows([texts.texts[0]] * 2, [1, 2])))
    assert not (same_text[0] == same_text[1]).all()


def test_masks_do_not_tell_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments and masks of the same seed, number and epoch are drawn from generators of their own."""
    tokenizer = train_tokenizer(["a b"], TokenizerOptions("word", 20, mask_token=True))
    pairs = SentencePairs(TextRows([np.array([4, 2])] * 2, [1, 2]), tokenizer, PairOptions(4, seed=3))
    rows = MaskedRows(pairs, MaskVocabulary.of(tokenizer), MaskingOptions(seed=3))
    rows.set_epoch(5)
    original, draws = np.random.default_rng, []

    def default_rng(seed: list[int]) -> np.random.Generator:
        draws.append(original(seed).integers(1 << 62))
        return original(seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)
    assert rows[0].label is not None
    assert len(draws) == len(set(draws)) == 2


def test_rows() -> None:
    rows = masked(texts_of(3))
    assert rows.lengths().tolist() == [[30]] * 3
    assert rows.report.num_kept == len(rows) == 3
    assert rows[~1].ignored
    assert (rows[~1].texts[1] == rows[1].texts[1]).all()


def test_batches() -> None:
    nothing = IGNORED
    short = Row(0, (np.array([MASK, 2]), np.array([5, nothing])), 1)
    long = Row(1, (np.array([5, MASK, 7, 2]), np.array([nothing, 6, 7, nothing])), 0)
    batch = MaskedCollator(pad_id=1)([short, long, replace(long, ignored=True)])
    assert batch["input_ids"].tolist() == [[MASK, 2, 1, 1], [5, MASK, 7, 2], [5, MASK, 7, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1] * 4, [1] * 4]
    assert batch["labels"].tolist() == [[5, *[nothing] * 3], [nothing, 6, 7, nothing], [nothing] * 4]
    assert batch["labels"].flatten()[batch["label_places"]].tolist() == [5, 6, 7]
    assert batch["sentence_order_label"].tolist() == [1, 0, IGNORED]
    assert "sentence_order_label" not in MaskedCollator(pad_id=1)([replace(short, label=None)])
    assert set(MaskedCollator(pad_id=1)([replace(short, texts=short.texts[:1])])) == {"input_ids", "attention_mask"}


@given(st.integers(0, 400), st.integers(1, 20), st.integers(1, 20), st.floats(0.01, 0.99))
def test_places_are_filled_up(num: int, rows: int, steps: int, rate: float) -> None:
    """All labels are there, every place once, and there are few numbers of places for a shape."""
    labels = torch.full((rows * steps,), IGNORED)
    labels[torch.randperm(rows * steps)[:num]] = 7
    places = filled_places(labels.view(rows, steps), rate)
    assert len(set(places.tolist())) == len(places) == num_filled_places(min(num, rows * steps), rows * steps, rate)
    assert (labels[places] != IGNORED).sum() == (labels != IGNORED).sum()
    assert {num_filled_places(count, rows * steps, rate) for count in range(int(rate * rows * steps) + 1)} == {
        num_filled_places(0, rows * steps, rate)
    }


def test_numbers_of_places() -> None:
    assert [num_filled_places(count, 1000, 0.15) for count in (0, 150, 151, 169, 170, 999)] == [
        *(150, 150, 169, 169, 188, 1000)
    ]
    assert len({num_filled_places(count, 1000, 0.2) for count in range(201, 401)}) == 8


def word_piece() -> PreTrainedTokenizerFast:
    names = ["[UNK]", "[MASK]", "low", "##er", "er"]
    tokenizer = Tokenizer(models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", mask_token="[MASK]")


def byte_level() -> PreTrainedTokenizerFast:
    names = ["<mask>", "Ġ", "l", "o", "Ġl", "Ġlo"]
    tokenizer = Tokenizer(models.BPE({name: n for n, name in enumerate(names)}, [("Ġ", "l"), ("Ġl", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="<mask>")


def test_where_words_begin() -> None:
    assert beginnings_of_words(word_piece()).tolist() == [True, True, True, False, True]
    assert beginnings_of_words(byte_level()).tolist() == [False, True, False, False, True, True]
    texts = ["low lower lowest new newer"] * 3
    for kind in ("bpe", "unigram"):
        tokenizer = train_tokenizer(texts, TokenizerOptions(kind, 18, mask_token=True))
        ids = np.array(tokenizer("lowest newer low", add_special_tokens=False)["input_ids"])
        starts = beginnings_of_words(tokenizer)[ids]
        assert starts.sum() == 3
        assert len(ids) > 3
        assert tokenizer.convert_ids_to_tokens(ids[starts].tolist())[0].startswith("▁")
    word = train_tokenizer(texts, TokenizerOptions("word", 40, mask_token=True))
    assert beginnings_of_words(word).all()


def test_the_vocabulary_of_a_tokenizer() -> None:
    tokenizer = train_tokenizer(["low lower"], TokenizerOptions("bpe", 40, mask_token=True))
    vocabulary = MaskVocabulary.of(tokenizer)
    assert vocabulary.mask_id == len(tokenizer) - 1
    assert np.flatnonzero(vocabulary.special).tolist() == [0, 1, 2, 3, vocabulary.mask_id]
    assert vocabulary.begins_word is None
    assert MaskVocabulary.of(tokenizer, "words").begins_word is not None
    with pytest.raises(ConfigError, match="words needs to know where words begin"):
        MaskedRows(texts_of(1), vocabulary, MaskingOptions(units="words"))


def test_errors() -> None:
    with pytest.raises(DataError, match="the tokenizer has no mask token; train one with mask_token=true"):
        MaskVocabulary.of(train_tokenizer(["a"], TokenizerOptions("char", 20)))
    for kind in ("char", "byte"):
        tokenizer = train_tokenizer(["a"], TokenizerOptions(kind, 20, mask_token=True))
        with pytest.raises(DataError, match="does not mark where words begin"):
            MaskVocabulary.of(tokenizer, "words")
    with pytest.raises(ConfigError) as caught:
        MaskingOptions(rate=1.0, units="letters", max_ngram=0, mask_share=0.95, seed=-1)
    names = [problem.option for problem in caught.value.problems]
    assert names == ["rate", "units", "max_ngram", "mask_share", "seed"]
    with pytest.raises(ConfigError, match=r"max_ngram.*has no effect on words; set units to ngrams"):
        MaskingOptions(units="words", max_ngram=5)
