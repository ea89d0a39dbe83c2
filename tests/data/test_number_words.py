"""Number words: known values, their build-up over the whole range, and splits that share no number."""

from pathlib import Path

import pytest

from depthwise.data.number_words import LARGEST, english, german, source, split_numbers, write_corpus
from depthwise.errors import DataError


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (9, "nine"),
        (12, "twelve"),
        (15, "fifteen"),
        (18, "eighteen"),
        (20, "twenty"),
        (40, "forty"),
        (81, "eighty-one"),
        (100, "one hundred"),
        (105, "one hundred and five"),
        (999, "nine hundred and ninety-nine"),
        (1000, "one thousand"),
        (1001, "one thousand and one"),
        (1099, "one thousand and ninety-nine"),
        (1100, "one thousand one hundred"),
        (47_311, "forty-seven thousand three hundred and eleven"),
        (100_000, "one hundred thousand"),
        (101_010, "one hundred and one thousand and ten"),
        (999_999, "nine hundred and ninety-nine thousand nine hundred and ninety-nine"),
    ],
)
def test_english(number: int, words: str) -> None:
    assert english(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "null"),
        (1, "eins"),
        (12, "zwölf"),
        (16, "sechzehn"),
        (17, "siebzehn"),
        (21, "einundzwanzig"),
        (30, "dreißig"),
        (66, "sechsundsechzig"),
        (77, "siebenundsiebzig"),
        (100, "einhundert"),
        (101, "einhunderteins"),
        (121, "einhunderteinundzwanzig"),
        (1000, "eintausend"),
        (1001, "eintausendeins"),
        (4711, "viertausendsiebenhundertelf"),
        (21_000, "einundzwanzigtausend"),
        (101_000, "einhunderteintausend"),
        (201_101, "zweihunderteintausendeinhunderteins"),
        (111_111, "einhundertelftausendeinhundertelf"),
        (999_999, "neunhundertneunundneunzigtausendneunhundertneunundneunzig"),
    ],
)
def test_german(number: int, words: str) -> None:
    assert german(number) == words


def value_of_english(words: str) -> int:
    """Reads words by adding and multiplying them up, without regard to how they were made."""
    values = {english(number): number for number in [*range(20), *range(20, 100, 10)]}
    total = part = 0
    for word in words.replace("-", " ").split():
        if word == "thousand":
            total, part = 1000 * part, 0
        elif word == "hundred":
            part *= 100
        elif word != "and":
            part += values[word]
    return total + part


def value_of_german(words: str) -> int:
    """The same for German: a group ends at ``tausend``, and what stands before ``hundert`` or ``und`` is a unit."""
    units = {german(number): number for number in [*range(20), *range(20, 100, 10)]} | {"ein": 1}

    def below_100(text: str) -> int:
        if text in units:
            return units[text]
        unit, tens = text.split("und", 1)
        return units[unit] + units[tens]

    def below_1000(text: str) -> int:
        hundreds, found, rest = text.partition("hundert")
        if not found:
            return below_100(text)
        return 100 * units[hundreds] + (below_100(rest) if rest else 0)

    thousands, found, rest = words.partition("tausend")
    if not found:
        return below_1000(words)
    return 1000 * below_1000(thousands) + (below_1000(rest) if rest else 0)


def test_words_can_be_read_back() -> None:
    for number in [*range(2100), *range(2100, LARGEST + 1, 97), LARGEST]:
        assert value_of_english(english(number)) == number
        assert value_of_german(german(number)) == number


def test_no_words_are_given_twice() -> None:
    numbers = [*range(2000), *range(100_000, LARGEST, 41)]
    for words in (english, german):
        assert len({words(number) for number in numbers}) == len(numbers)


@pytest.mark.parametrize("sizes", [(200, 5, 12), (8000, 200, 500)])
def test_splits_share_no_number(sizes: tuple[int, int, int]) -> None:
    splits = split_numbers(*sizes)
    assert tuple(len(numbers) for numbers in splits.values()) == sizes
    every = [number for numbers in splits.values() for number in numbers]
    assert len(set(every)) == len(every)
    assert set(range(100)) <= set(splits["train"])
    assert all(0 <= number <= LARGEST for number in every)
    lengths = {len(str(number)) for number in splits["test"]}
    assert lengths == {3, 4, 5, 6}


def test_splits_follow_from_the_seed() -> None:
    assert split_numbers(300, 10, 10) == split_numbers(300, 10, 10)
    assert split_numbers(300, 10, 10) != split_numbers(300, 10, 10, seed=1)


def test_a_corpus_has_every_number_in_every_language(tmp_path: Path) -> None:
    write_corpus(tmp_path, {"train": [7, 4711]})
    assert (tmp_path / "train.digits").read_text(encoding="utf-8") == "en 7\nde 7\nen 4 7 1 1\nde 4 7 1 1\n"
    words = ["seven", "sieben", english(4711), german(4711)]
    assert (tmp_path / "train.words").read_text(encoding="utf-8").splitlines() == words
    assert source("de", 30) == "de 3 0"


def test_a_corpus_is_not_changed_under_a_run(tmp_path: Path) -> None:
    write_corpus(tmp_path, {"train": [1, 2]})
    before = (tmp_path / "train.digits").stat().st_mtime_ns
    write_corpus(tmp_path, {"train": [1, 2]})
    assert (tmp_path / "train.digits").stat().st_mtime_ns == before
    with pytest.raises(DataError, match=r"train\.digits holds other numbers"):
        write_corpus(tmp_path, {"train": [1, 3]})
