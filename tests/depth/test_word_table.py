"""From what words tell to their depths."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.config import WordDepthsConfig
from depthwise.depth.mutual_information import WordCounter, WordCounts, split_documents
from depthwise.depth.word_table import WordTable, binned, binned_by_tokens, dealt_out, word_table
from depthwise.errors import DataError

LAYERS = 12
PLAIN = WordDepthsConfig()
values = st.lists(st.floats(-20, 40, width=32), min_size=1, max_size=30).map(lambda found: np.array(found, np.float64))


def corpus(seed: int = 0, size: int = 400) -> WordCounts:
    """Two labels; ``good`` and ``bad`` tell which, ``the`` is everywhere, the others are chance."""
    random = np.random.default_rng(seed)
    lines = []
    for number in range(size):
        label = number % 2
        telling = ["bad", "good"][label] if random.random() < 0.8 else ""
        rare = [f"rare{number}"] if number < 20 else []
        lines.append((" ".join(["the", telling, *random.choice([*"abcdefgh"], 3), *rare]), "xy"[label]))
    counter = WordCounter()
    counter.add(split_documents(lines))
    return counter.counts()


def made(counts: WordCounts | None = None, **options: Any) -> WordTable:
    found = corpus() if counts is None else counts
    return word_table(found, WordDepthsConfig(**options), num_layers=LAYERS, tokenizer="t")


def test_depths_are_bins_of_equal_width() -> None:
    table = made()
    assert table.information is not None
    scores = -np.log(np.maximum(table.information, 1e-12))
    width = (scores.max() - scores.min()) / LAYERS
    expected = np.clip(np.floor((scores - scores.min()) / width) + 1, 1, LAYERS)
    assert table.depths.tolist() == expected.tolist()
    assert table.depths.min() == 1
    assert table.depths.max() == LAYERS
    assert table.depth_of("good") <= 2 < table.depth_of("the")
    assert table.histogram().sum() == len(table.depths)
    assert table.summary()["width"] == pytest.approx(width)


@given(values, st.floats(-5, 5), st.integers(1, 12))
def test_the_base_of_logarithms_shifts_values_and_no_depth(found: np.ndarray, shift: float, num_layers: int) -> None:
    """Values on an edge may fall to either side of it; those are at most one apart."""
    plain, moved = (binned(scores, scores, PLAIN, num_layers) for scores in (found, found + shift))
    assert plain.min() >= 1
    assert plain.max() <= num_layers
    width = (found.max() - found.min()) / num_layers
    within = (found - found.min()) / width % 1 if width > 1e-6 else np.zeros(len(found))
    is_clear = (within > 1e-6) & (within < 1 - 1e-6)
    assert (plain[is_clear] == moved[is_clear]).all()


@given(values, st.sampled_from(["width", "quantile"]), st.integers(1, 12))
def test_higher_values_are_never_shallower(found: np.ndarray, bins: str, num_layers: int) -> None:
    depths = binned(found, found, WordDepthsConfig(bins=bins), num_layers)
    assert (np.diff(depths[np.argsort(found)]) >= 0).all()
    assert ((depths >= 1) & (depths <= num_layers)).all()


def test_the_base_of_the_information_changes_no_depth() -> None:
    table = made()
    assert table.information is not None
    in_bits = -np.log(np.maximum(table.information, PLAIN.floor) / math.log(2))
    assert binned(in_bits, in_bits, PLAIN, LAYERS).tolist() == table.depths.tolist()


def test_words_that_nothing_tells_apart_run_all_blocks() -> None:
    same = np.full(3, 2.0)
    assert binned(same, same, PLAIN, LAYERS).tolist() == [LAYERS] * 3


def test_equally_many_words_in_each_bin() -> None:
    found = np.random.default_rng(0).exponential(size=120)
    depths = binned(found, found, WordDepthsConfig(bins="quantile"), LAYERS)
    assert np.bincount(depths)[1:].tolist() == [10] * LAYERS


def test_a_narrower_range_draws_in_its_ends() -> None:
    found = np.array([*np.linspace(0, 1, 99), 1000.0])
    wide, narrow = (binned(found, found, WordDepthsConfig(range_quantile=share), LAYERS) for share in (None, 0.05))
    assert set(wide[:-1].tolist()) == {1}
    assert len(set(narrow.tolist())) == LAYERS
    assert narrow[-1] == LAYERS


def test_the_floor_and_the_scale_decide_the_range() -> None:
    """A word with equal counts in both classes tells nothing at all: without a floor its value has no bound."""
    lines = [("even odd", "x"), ("even", "y")] * 20 + [("odd", "x")] * 3 + [("some", "y")] * 3
    counter = WordCounter()
    counter.add(split_documents(lines))
    counts = counter.counts()
    low, high = (made(counts, floor=floor) for floor in (1e-12, 1e-3))
    assert low.values is not None
    assert high.values is not None
    assert low.values.max() == pytest.approx(-math.log(1e-12))
    assert high.values.max() == pytest.approx(-math.log(1e-3))
    assert low.depth_of("some") < high.depth_of("some")
    linear = made(counts, log_scale=False)
    assert linear.values is not None
    assert linear.information is not None
    assert linear.values.tolist() == (-linear.information).tolist()


def test_words_never_seen() -> None:
    table = made()
    once = [table.depth_of(f"rare{number}") for number in range(20)]
    assert table.place_of("nobody") is None
    assert table.depth_of("nobody") == table.unseen_depth == math.floor(sum(once) / 20 + 0.5)
    assert made(unseen="smoothed").depth_of("nobody") == LAYERS  # labels are balanced: added counts tell nothing
    frequent = made(corpus(size=20), unseen="once")
    assert 1 <= frequent.unseen_depth <= LAYERS


def test_without_words_seen_once_added_counts_decide() -> None:
    counter = WordCounter()
    counter.add(split_documents([("a b", "x"), ("a", "y"), ("b c", "y"), ("c", "x")]))
    once, smoothed = (made(counter.counts(), unseen=unseen) for unseen in ("once", "smoothed"))
    assert once.unseen_depth == smoothed.unseen_depth


def test_random_depths_have_the_same_histogram() -> None:
    table, first, again, other = made(), *(made(estimator="random", matched="words", seed=seed) for seed in (1, 1, 2))
    assert first.histogram().tolist() == table.histogram().tolist() == other.histogram().tolist()
    assert first.depths.tolist() == again.depths.tolist()
    assert first.depths.tolist() != table.depths.tolist()
    assert first.depths.tolist() != other.depths.tolist()


def test_frequent_words_are_shallow_by_frequency() -> None:
    table = made(estimator="frequency")
    assert table.information is None
    order = np.argsort(-table.counts.frequencies(), kind="stable")
    assert (np.diff(table.depths[order]) >= 0).all()
    assert (table.depth_of("the"), table.depth_of("rare3")) == (1, LAYERS)
    assert made(estimator="frequency", unseen="smoothed").unseen_depth == LAYERS
    assert made(estimator="frequency", log_scale=False, unseen="smoothed").unseen_depth == LAYERS


def test_one_depth_for_all() -> None:
    table = made(estimator="fixed", depth=5)
    assert set(table.depths.tolist()) == {5}
    assert table.depth_of("nobody") == 5


def test_no_word_at_all() -> None:
    with pytest.raises(DataError, match="there is no word to give a depth"):
        made(WordCounter().counts())


def test_digests_tell_tables_apart() -> None:
    table = made()
    assert table.digest == made().digest
    others = [made(floor=0.01), replace(table, tokenizer="u"), replace(table, unseen_depth=1), made(special="min")]
    assert len({table.digest, *(other.digest for other in others)}) == 5


def test_random_depths_of_as_many_tokens() -> None:
    """Also where one word makes up half of all tokens, which a word for a word would not keep to."""
    random = np.random.default_rng(0)
    depths = random.integers(1, LAYERS + 1, 500)
    tokens = random.zipf(1.7, 500).clip(max=4000)
    wanted = np.bincount(depths, weights=tokens, minlength=LAYERS + 1)
    first, again, other = (dealt_out(depths, tokens, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    for found in (first, other):
        assert np.abs(np.bincount(found, weights=tokens, minlength=LAYERS + 1) - wanted).max() <= 0.01 * tokens.sum()
        assert (found != depths).mean() > 0.5
    assert set(dealt_out(np.array([3, 3]), np.array([5, 1]), random).tolist()) == {3}


def test_the_seed_of_random_depths_may_be_that_of_the_recipe() -> None:
    def dealt(seed: int, own: int | None = None) -> list[int]:
        options = WordDepthsConfig(estimator="random", matched="words", seed=own)
        found: list[int] = word_table(corpus(), options, num_layers=LAYERS, tokenizer="t", seed=seed).depths.tolist()
        return found

    assert dealt(1) != dealt(2)
    assert dealt(1, own=3) == dealt(2, own=3) == dealt(3)


def rarities() -> WordCounts:
    """Every document has a word of its own, and one label is a little more frequent than the other."""
    counter = WordCounter()
    counter.add(split_documents([(f"the {'abc'[n % 3]} own{n}", "x" if n < 105 else "y") for n in range(200)]))
    return counter.counts()


def rare_depths(table: WordTable) -> set[tuple[str, int]]:
    """Labels and depths of words that one document has."""
    return {("x" if int(word[3:]) < 105 else "y", table.depth_of(word)) for word in table.counts.words if len(word) > 3}


def test_depths_of_rare_words_may_give_labels_away() -> None:
    """Words of one document each are as many of either kind, and quantiles part them."""
    assert len({depth for _, depth in rare_depths(made(rarities(), bins="quantile"))}) > 1
    assert len(dict(rare_depths(made(rarities(), bins="quantile")))) == 2
    for options in ({"bins": "quantile"}, {"bins": "width"}, {"bins": "quantile", "unseen": "smoothed"}):
        table = made(rarities(), min_documents=2, **options)
        assert rare_depths(table) == {("x", table.unseen_depth), ("y", table.unseen_depth)}


def test_bins_are_made_of_words_that_count() -> None:
    counts = corpus()
    table, common = made(min_documents=2), counts.frequencies() >= 2
    assert table.values is not None
    alone = binned(table.values[common], table.values[common], PLAIN, LAYERS)
    assert table.depths[common].tolist() == alone.tolist()
    assert table.summary()["max"] == pytest.approx(table.values[common].max())
    assert made(min_documents=1).depths.tolist() == made().depths.tolist()


def test_words_that_are_all_too_rare() -> None:
    with pytest.raises(DataError, match="no word stands in 1000 documents; lower"):
        made(min_documents=1000)


BY_TOKENS = WordDepthsConfig(bins="tokens")
weighed = st.lists(st.tuples(st.floats(-20, 40, width=32), st.integers(1, 50)), min_size=2, max_size=40)


def test_informative_words_run_deep_on_request() -> None:
    usual, turned = made(), made(deep="informative")
    assert usual.values is not None
    assert turned.values is not None
    assert turned.values.tolist() == (-usual.values).tolist()
    assert usual.depth_of("good") <= 2
    assert turned.depth_of("good") >= LAYERS - 1
    assert turned.depth_of("the") < turned.depth_of("good")


@given(weighed, st.integers(2, 12))
def test_bins_by_tokens_have_as_many_tokens_each(words: list[tuple[float, int]], num_layers: int) -> None:
    """A bin is at most off by the tokens of one value, which cannot be parted."""
    scores, tokens = np.array([score for score, _ in words]), np.array([count for _, count in words])
    depths = binned_by_tokens(scores, scores, tokens, BY_TOKENS, num_layers)
    distinct = np.unique(scores)
    if len(distinct) == 1:
        assert set(depths.tolist()) == {num_layers}
        return
    assert [len(set(depths[scores == value].tolist())) for value in distinct] == [1] * len(distinct)
    order = np.argsort(scores)
    assert (np.diff(depths[order]) >= 0).all()
    most = max(tokens[scores == value].sum() for value in distinct)
    for depth in range(1, num_layers + 1):
        assert abs(tokens[depths <= depth].sum() - tokens.sum() * depth / num_layers) <= most


@given(st.integers(0, 5), st.floats(1, 8))
def test_tokens_run_as_deep_as_asked_in_the_mean(seed: int, mean_depth: float) -> None:
    random = np.random.default_rng(seed)
    scores, tokens = random.normal(size=2000), random.integers(1, 20, 2000)
    depths = binned_by_tokens(scores, scores, tokens, replace(BY_TOKENS, mean_depth=mean_depth), 8)
    assert np.average(depths, weights=tokens) == pytest.approx(mean_depth, abs=0.01)
    assert (np.diff(depths[np.argsort(scores)]) >= 0).all()


@pytest.mark.parametrize("bins", ["width", "quantile", "tokens"])
def test_no_word_runs_less_than_the_least(bins: str) -> None:
    """Bins from there on are those of a model that lacks the blocks below."""
    counts, shallower = corpus(), LAYERS - 2
    options = WordDepthsConfig(bins=bins)
    made = {
        least: word_table(
            counts, replace(options, least=least), num_layers=layers, tokenizer="t", tokens=counts.frequencies()
        )
        for least, layers in ((3, LAYERS), (1, shallower))
    }
    assert (made[3].depths == made[1].depths + 2).all()
    assert made[3].unseen_depth == made[1].unseen_depth + 2


@given(st.integers(0, 5), st.floats(3, 8))
def test_a_budget_above_the_least(seed: int, mean_depth: float) -> None:
    random = np.random.default_rng(seed)
    scores, tokens = random.normal(size=2000), random.integers(1, 20, 2000)
    depths = binned_by_tokens(scores, scores, tokens, replace(BY_TOKENS, mean_depth=mean_depth, least=3), 8)
    assert np.average(depths, weights=tokens) == pytest.approx(mean_depth, abs=0.01)
    assert depths.min() >= 3


def test_values_beyond_those_of_the_words_are_in_the_outer_bins() -> None:
    scores, tokens = np.arange(10.0), np.ones(10, np.int64)
    assert binned_by_tokens(np.array([-5.0, 4.5, 50.0]), scores, tokens, BY_TOKENS, 4).tolist() == [1, 3, 4]


def test_a_table_with_bins_by_tokens() -> None:
    counts = corpus()
    options = WordDepthsConfig(bins="tokens", mean_depth=4.0, deep="informative")
    tokens = counts.frequencies()
    table = word_table(counts, options, num_layers=LAYERS, tokenizer="t", tokens=tokens)
    assert np.average(table.depths, weights=tokens) == pytest.approx(4.0, abs=1.0)
    assert table.depth_of("good") > table.depth_of("the")
    assert "width" not in table.summary()
