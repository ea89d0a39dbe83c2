"""Pairs of languages: shares by temperature, batches of one pair, epochs shared and resumed, language tokens."""

from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.data import BatchOptions, ParallelText, StoreOptions, TokenStore, build_store
from depthwise.data.batches import ORDERS
from depthwise.data.collate import Seq2SeqCollator
from depthwise.data.languages import (
    DecoderLanguageCollator,
    LanguageBatches,
    LanguagePair,
    LanguageStores,
    MixedBatches,
    add_language_tokens,
    language_tokens,
    temperature_shares,
)
from depthwise.data.tokenizers import TokenizerOptions, load_tokenizer, train_tokenizer
from depthwise.errors import ConfigError, DataError

Lengths = dict[str, np.ndarray[Any, Any]]
TABLE = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=40).map(np.array)
LENGTHS = st.lists(TABLE, min_size=1, max_size=4).map(lambda tables: dict(zip(["de", "fr", "es", "nl"], tables)))  # noqa: B905
TEMPERATURES = st.sampled_from([1.0, 1.5, 5.0, 100.0])


@st.composite
def all_options(draw: st.DrawFn) -> BatchOptions:
    return BatchOptions(
        max_tokens=draw(st.integers(1, 120)),
        max_rows=draw(st.none() | st.integers(1, 9)),
        order=draw(st.sampled_from(ORDERS)),
        seed=draw(st.integers(0, 3)),
    )


def named(lengths: Lengths) -> list[str]:
    """The language of every example."""
    return [name for name, table in lengths.items() for _ in range(len(table))]


def epoch_of(sampler: LanguageBatches, epoch: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    return list(sampler)


def test_shares_by_hand() -> None:
    assert temperature_shares([100, 25], 1) == pytest.approx([0.8, 0.2])
    assert temperature_shares([100, 25], 2) == pytest.approx([2 / 3, 1 / 3])
    assert temperature_shares([10**9, 1], np.inf) == pytest.approx([0.5, 0.5])
    assert temperature_shares([7], 0.5) == [1.0]
    assert temperature_shares([10**9, 1], 0.001) == pytest.approx([1.0, 0.0])
    for wrong in (0.0, -1.0, np.nan):
        with pytest.raises(ConfigError, match="is not above 0"):
            temperature_shares([1, 2], wrong)


@given(LENGTHS, all_options(), TEMPERATURES, st.integers(0, 3))
def test_every_batch_is_of_one_language_and_within_the_budget(
    lengths: Lengths, options: BatchOptions, temperature: float, epoch: int
) -> None:
    sampler = LanguageBatches(lengths, options, temperature)
    batches, languages = epoch_of(sampler, epoch), named(lengths)
    assert len(batches) == len(sampler) == sum(sampler.batches_by_pair.values())
    drawn = Counter()
    all_lengths = np.concatenate(list(lengths.values()))
    for batch in batches:
        (language,) = {languages[example] for example in batch}
        drawn[language] += 1
        assert len(batch) == len(set(batch)) <= (options.max_rows or np.inf)
        assert len(batch) == 1 or len(batch) * all_lengths[batch].max() <= (options.max_tokens or 0)
    assert drawn == sampler.batches_by_pair
    assert epoch_of(LanguageBatches(lengths, options, temperature), epoch) == batches


@given(LENGTHS, all_options(), st.integers(0, 3))
def test_temperature_1_is_every_example_once(lengths: Lengths, options: BatchOptions, epoch: int) -> None:
    batches = epoch_of(LanguageBatches(lengths, options), epoch)
    assert sorted(chain(*batches)) == list(range(len(named(lengths))))


@given(LENGTHS, all_options(), TEMPERATURES)
def test_examples_of_a_language_are_drawn_equally_often(
    lengths: Lengths, options: BatchOptions, temperature: float
) -> None:
    """Over epochs a language is gone through again and again: no example falls behind another by more than one."""
    sampler = LanguageBatches(lengths, options, temperature)
    counts, languages = np.zeros(len(named(lengths)), int), np.array(named(lengths))
    for epoch in range(4):
        for batch in epoch_of(sampler, epoch):
            counts[batch] += 1
        for language in lengths:
            of_language = counts[languages == language]
            assert of_language.max() - of_language.min() <= 1


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0, 1000.0])
def test_examples_are_drawn_by_their_shares(temperature: float) -> None:
    """Also where the texts of one language are longer, so that it has fewer examples in a batch."""
    generator = np.random.default_rng(0)
    sizes, longest = {"de": 16_000, "fr": 4000, "nl": 500}, {"de": 10, "fr": 40, "nl": 20}
    lengths = {name: generator.integers(1, longest[name], size) for name, size in sizes.items()}
    languages = named(lengths)
    sampler = LanguageBatches(lengths, BatchOptions(max_tokens=200), temperature)
    counts = Counter(languages[example] for batch in epoch_of(sampler, 0) for example in batch)
    total = sum(counts.values())
    expected = temperature_shares(list(sizes.values()), temperature)
    for name, share in zip(sizes, expected, strict=True):
        assert counts[name] / total == pytest.approx(share, rel=0.1)


def test_epochs_differ_and_languages_are_mixed() -> None:
    lengths = {"de": np.full(50, 4), "fr": np.full(50, 4)}
    sampler = LanguageBatches(lengths, BatchOptions(max_rows=5), 1.0)
    first, second = epoch_of(sampler, 0), epoch_of(sampler, 1)
    assert {tuple(batch) for batch in first} != {tuple(batch) for batch in second}
    order = [batch[0] < 50 for batch in first]
    assert order != sorted(order)
    assert order != sorted(order, reverse=True)
    assert {tuple(batch) for batch in first if batch[0] < 50} != {
        tuple(example - 50 for example in batch) for batch in first if batch[0] >= 50
    }
    given = LanguageBatches(lengths, BatchOptions(max_rows=50, order="given"))
    assert list(given) == [list(range(50)), list(range(50, 100))]


@given(LENGTHS, all_options(), TEMPERATURES, st.integers(1, 5))
def test_processes_share_an_epoch(lengths: Lengths, options: BatchOptions, temperature: float, world_size: int) -> None:
    shares = [
        list(LanguageBatches(lengths, options, temperature, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    alone = list(LanguageBatches(lengths, options, temperature))
    together = sorted(example for batch in chain(*shares) for example in batch if example >= 0)
    assert together == sorted(chain(*alone))


@given(LENGTHS, all_options(), TEMPERATURES, st.integers(1, 3), st.integers(1, 3), st.data())
def test_resuming_with_any_number_of_processes(
    lengths: Lengths, options: BatchOptions, temperature: float, before: int, after: int, data: st.DataObject
) -> None:
    def sampler(rank: int, world_size: int) -> LanguageBatches:
        return LanguageBatches(lengths, options, temperature, rank=rank, world_size=world_size)

    first = [sampler(rank, before) for rank in range(before)]
    num_steps = data.draw(st.integers(0, len(first[0]) - 1))
    done = list(chain(*(islice(one, num_steps) for one in first)))
    (state,) = {tuple(one.state_dict().items()) for one in first}
    rest = []
    for rank in range(after):
        resumed = sampler(rank, after)
        resumed.load_state_dict(dict(state))
        rest += list(resumed)
    drawn = sorted(example for batch in done + rest for example in batch if example >= 0)
    assert drawn == sorted(chain(*sampler(0, 1)))


def test_a_state_of_other_languages_is_refused() -> None:
    lengths = {"de": np.array([3, 4]), "fr": np.array([5])}
    state = LanguageBatches(lengths, BatchOptions(max_rows=1), 2.0).state_dict()
    others: list[tuple[Lengths, float]] = [
        (lengths, 1.0),
        ({"de": np.array([3]), "fr": np.array([4, 5])}, 2.0),
        ({"de": np.array([3, 4]), "es": np.array([5])}, 2.0),
    ]
    for other, temperature in others:
        with pytest.raises(DataError, match="saved for other data or other batch options"):
            LanguageBatches(other, BatchOptions(max_rows=1), temperature).load_state_dict(state)


@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_have_a_batch_of_each_language(seed: int) -> None:
    lengths = {"de": np.full((40, 2), 5), "fr": np.full((4, 2), 5), "es": np.full((16, 2), 5)}
    sampler = LanguageBatches(lengths, BatchOptions(max_rows=2, seed=seed), rounds=True)
    assert sampler.batches_by_pair == {"de": 10, "fr": 10, "es": 10}
    names, orders, seen = named(lengths), set(), Counter[int]()
    for epoch in range(2):
        languages = [names[batch[0]] for batch in epoch_of(sampler, epoch)]
        rounds = [tuple(languages[place : place + 3]) for place in range(0, 30, 3)]
        assert all(set(each) == {"de", "fr", "es"} for each in rounds)
        orders |= set(rounds)
        seen.update(chain.from_iterable(epoch_of(sampler, epoch)))
    assert len(orders) > 2
    assert [seen[number] for number in range(40)] == [1] * 40
    assert {seen[number] for number in range(40, 44)} == {10}
    by_shares = LanguageBatches(lengths, BatchOptions(max_rows=2, seed=seed))
    with pytest.raises(DataError):
        by_shares.load_state_dict(sampler.state_dict())


@pytest.mark.parametrize(("num_pairs", "accumulate"), [(2, 1), (2, 2), (4, 2), (4, 4), (3, 3)])
def test_updates_of_two_processes_have_all_languages(num_pairs: int, accumulate: int) -> None:
    """Where both together take as many batches as there are pairs, or each does (Li et al. 2020, Algorithm 2)."""
    names, draw = ["de", "fr", "es", "nl"][:num_pairs], np.random.default_rng(1)
    lengths = {name: draw.integers(1, 9, size) for name, size in zip(names, (33, 5, 21, 12), strict=False)}
    languages, steps = named(lengths), []
    for rank in range(2):
        sampler = LanguageBatches(lengths, BatchOptions(max_rows=2), rounds=True, rank=rank, world_size=2)
        steps.append([batch for epoch in range(4) for batch in epoch_of(sampler, epoch)])
    for first in range(0, len(steps[0]) - accumulate + 1, accumulate):
        update = [batch for of_rank in steps for batch in of_rank[first : first + accumulate]]
        seen = {languages[example] for batch in update for example in batch if example >= 0}
        assert seen == set(names), first


def test_a_language_without_examples_is_named() -> None:
    lengths = {"de": np.array([3]), "fr": np.array([9])}
    with pytest.raises(DataError, match=r"^fr: there is nothing to batch: every example is longer than max_tokens=5"):
        LanguageBatches(lengths, BatchOptions(max_tokens=5, too_long="skip"))
    with pytest.raises(DataError, match="there are no languages to batch"):
        LanguageBatches({}, BatchOptions(max_tokens=5))


def stores_of(folder: Path) -> tuple[dict[str, TokenStore], dict[str, int]]:
    """Three pairs of one, two and three lines, and ids for the tokens of their targets."""
    tokenizer = train_tokenizer(["abcd <2de>"], TokenizerOptions("char", 50))
    stores = {}
    for num, (name, target) in enumerate([("en-de", "ab"), ("en-fr", "abc"), ("en-nl", "d")], start=1):
        paths = folder / f"{name}.src", folder / f"{name}.tgt"
        paths[0].write_text("abc\n" * num)
        paths[1].write_text(f"{target}\n" * num)
        stores[name] = build_store(ParallelText(*paths), [tokenizer, tokenizer], StoreOptions(), folder / "cache")
    return stores, add_language_tokens(tokenizer, ["de", "fr", "nl"])


def test_language_tokens(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["ab <2de>"], TokenizerOptions("char", 50))
    before = len(tokenizer)
    ids = add_language_tokens(tokenizer, ["de", "fr"])
    assert ids == {"de": before, "fr": before + 1}
    assert add_language_tokens(tokenizer, ["fr", "nl"]) == {"fr": before + 1, "nl": before + 2}
    assert before not in tokenizer("ab <2de>")["input_ids"]  # in text it is text
    assert tokenizer.decode([before, *tokenizer("ab")["input_ids"]], skip_special_tokens=True) == "ab"
    assert language_tokens(tokenizer) == {"de": before, "fr": before + 1, "nl": before + 2}
    tokenizer.save_pretrained(tmp_path)
    assert language_tokens(load_tokenizer(tmp_path)) == language_tokens(tokenizer)
    assert add_language_tokens(load_tokenizer(tmp_path), ["de", "nl"]) == {"de": before, "nl": before + 2}


def test_a_word_that_is_called_like_a_language_token() -> None:
    """As in text whose lines begin with the language already."""
    tokenizer = train_tokenizer(["<2de> ab"], TokenizerOptions("word", 50, pretokenized=True))
    word = tokenizer.get_vocab()["<2de>"]
    assert add_language_tokens(tokenizer, ["de", "fr"]) == language_tokens(tokenizer) == {"de": word, "fr": 6}
    assert tokenizer.decode([word, 5], skip_special_tokens=True) == "ab"


def test_the_token_before_the_source(tmp_path: Path) -> None:
    stores, tokens = stores_of(tmp_path)
    data = LanguageStores(stores, tokens)
    assert (len(data), [data.pair(number) for number in (0, 1, 2, 3, 5, ~5)]) == (
        6,
        ["en-de", "en-fr", "en-fr", "en-nl", "en-nl", "en-nl"],
    )
    for number, target in enumerate(["de", "fr", "fr", "nl", "nl", "nl"]):
        row, plain = data[number], stores[f"en-{target}"][0]
        assert row.texts[0].tolist() == [tokens[target], *plain.texts[0].tolist()]
        assert row.texts[1].tolist() == plain.texts[1].tolist()
        assert (row.index, row.label, row.ignored) == (number, None, False)
    assert (data[~4].index, data[~4].ignored) == (4, True)
    assert [data[number].pair for number in (0, 1, 2, 5, ~5)] == [0, 1, 1, 2, 2]
    assert data.report.num_kept == 6
    assert {name: table.tolist() for name, table in data.lengths().items()} == {
        "en-de": [[5, 3]],
        "en-fr": [[5, 4]] * 2,
        "en-nl": [[5, 2]] * 3,
    }
    with pytest.raises(IndexError, match="example 6 of 6"):
        data[6]
    (batch, *_) = LanguageBatches(data.lengths(), BatchOptions(max_rows=3, order="given"))
    assert set(Seq2SeqCollator(1)([data[number] for number in batch])) == {"input_ids", "attention_mask", "labels"}


def test_the_token_starts_the_decoder(tmp_path: Path) -> None:
    stores, tokens = stores_of(tmp_path)
    data = LanguageStores(stores, tokens, "decoder")
    a, b, c = stores["en-fr"][0].texts[0].tolist()[:3]
    batch = DecoderLanguageCollator(pad_id=1)([data[0], data[1], data[~1]])
    assert batch["input_ids"][0].tolist() == [a, b, c, 2]
    assert batch["labels"].tolist() == [[a, b, 2, -100], [a, b, c, 2], [-100] * 4]
    assert batch["decoder_input_ids"].tolist() == [
        [tokens["de"], a, b, 2],
        [tokens["fr"], a, b, c],
        [tokens["fr"], a, b, c],
    ]
    assert data.lengths()["en-de"].tolist() == [[4, 3]]
    sources = [type(row)(row.index, row.texts[:1], row.label) for row in (data[0], data[1])]
    assert DecoderLanguageCollator(1)(sources)["decoder_input_ids"].tolist() == [[tokens["de"]], [tokens["fr"]]]


def test_one_target_needs_no_token(tmp_path: Path) -> None:
    stores, _ = stores_of(tmp_path)
    data = LanguageStores({"de-en": stores["en-de"], "fr-en": stores["en-fr"]}, {}, "none")
    assert data[0].texts[0].tolist() == stores["en-de"][0].texts[0].tolist()
    assert data[0].label is None


def test_errors(tmp_path: Path) -> None:
    stores, tokens = stores_of(tmp_path)
    assert (LanguagePair.parse("en-de"), str(LanguagePair("en", "de"))) == (LanguagePair("en", "de"), "en-de")
    for text in ("en", "en-", "-de", "en-de-fr"):
        with pytest.raises(ConfigError, match="is no pair of languages; write it as en-de"):
            LanguagePair.parse(text)
    with pytest.raises(ConfigError, match='"none" does not tell de, fr, nl apart; give source or decoder'):
        LanguageStores(stores, tokens, "none")
    with pytest.raises(ConfigError, match="there is none for fr, nl; add language tokens"):
        LanguageStores(stores, {"de": 5})
    with pytest.raises(ConfigError, match='"target" is none of source, decoder, none'):
        LanguageStores(stores, tokens, "target")


@given(LENGTHS, all_options(), TEMPERATURES, st.integers(0, 3))
def test_mixed_batches_hold_every_example_as_often_as_its_share_says(
    lengths: Lengths, options: BatchOptions, temperature: float, epoch: int
) -> None:
    sampler = MixedBatches(lengths, options, temperature)
    sampler.set_epoch(epoch)
    batches, languages = list(sampler), named(lengths)
    all_lengths = np.concatenate(list(lengths.values()))
    for batch in batches:
        assert len(batch) <= (options.max_rows or np.inf)
        assert len(batch) == 1 or len(batch) * all_lengths[batch].max() <= (options.max_tokens or 0)
    times = Counter(chain.from_iterable(batches))
    drawn = Counter(languages[example] for example in times.elements())
    assert drawn == sampler.examples_by_pair
    assert len(times) == len(languages)
    for name in lengths:
        of_language = [times[number] for number, language in enumerate(languages) if language == name]
        assert max(of_language) - min(of_language) <= 1
    again = MixedBatches(lengths, options, temperature)
    again.set_epoch(epoch)
    assert list(again) == batches


def test_mixed_batches_by_hand() -> None:
    lengths = {"de": np.full((100, 2), 5), "nl": np.full((25, 2), 5)}
    assert MixedBatches(lengths, BatchOptions(max_rows=10)).examples_by_pair == {"de": 100, "nl": 25}
    assert MixedBatches(lengths, BatchOptions(max_rows=10), 2.0).examples_by_pair == {"de": 100, "nl": 50}
    assert MixedBatches(lengths, BatchOptions(max_rows=10), np.inf).examples_by_pair == {"de": 100, "nl": 100}
    assert any(
        {number < 100 for number in batch} == {True, False}
        for batch in MixedBatches(lengths, BatchOptions(max_rows=50))
    )
    with pytest.raises(DataError, match="no languages"):
        MixedBatches({}, BatchOptions(max_rows=10))
