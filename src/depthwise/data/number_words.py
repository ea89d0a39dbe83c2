"""Numbers in words, and a corpus of them: small data of our own whose right answers are known.

A source is the language that is wanted and the digits, ``de 4 7 1 1``; its target are the words,
``viertausendsiebenhundertelf``. It is translation in small: words stand for groups of digits, zeros are silent, English
sets blanks and hyphens where German writes one word and says units before tens.
"""

import random
from collections.abc import Callable
from pathlib import Path

from depthwise.errors import DataError

LARGEST = 999_999

_ENGLISH_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_ENGLISH_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GERMAN_SMALL = (
    *("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    *("dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
)
_GERMAN_TENS = ("", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")


def english(number: int) -> str:
    """``forty-seven thousand three hundred and eleven``, as in British English."""
    thousands, rest = divmod(_checked(number), 1000)
    if not thousands:
        return _english_below_1000(rest)
    head = f"{_english_below_1000(thousands)} thousand"
    if not rest:
        return head
    return f"{head} {'' if rest >= 100 else 'and '}{_english_below_1000(rest)}"


def _english_below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if not hundreds:
        return _english_below_100(rest)
    head = f"{_ENGLISH_SMALL[hundreds]} hundred"
    return f"{head} and {_english_below_100(rest)}" if rest else head


def _english_below_100(number: int) -> str:
    if number < 20:
        return _ENGLISH_SMALL[number]
    tens, unit = divmod(number, 10)
    return f"{_ENGLISH_TENS[tens]}-{_ENGLISH_SMALL[unit]}" if unit else _ENGLISH_TENS[tens]


def german(number: int) -> str:
    """``siebenundvierzigtausenddreihundertelf``; one is ``eins`` at the end and ``ein`` before what follows it."""
    thousands, rest = divmod(_checked(number), 1000)
    if not thousands:
        return _german_below_1000(rest)
    words = _german_below_1000(thousands)
    head = (words.removesuffix("s") if thousands % 100 == 1 else words) + "tausend"
    return head + _german_below_1000(rest) if rest else head


def _german_below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if not hundreds:
        return _german_below_100(rest)
    head = f"{_german_before(hundreds)}hundert"
    return head + _german_below_100(rest) if rest else head


def _german_below_100(number: int) -> str:
    if number < 20:
        return _GERMAN_SMALL[number]
    tens, unit = divmod(number, 10)
    return f"{_german_before(unit)}und{_GERMAN_TENS[tens]}" if unit else _GERMAN_TENS[tens]


def _german_before(unit: int) -> str:
    """A unit with something behind it."""
    return "ein" if unit == 1 else _GERMAN_SMALL[unit]


def source(language: str, number: int) -> str:
    """What a model reads: ``de 4 7 1 1``."""
    return " ".join([language, *str(number)])


def split_numbers(num_train: int, num_valid: int, num_test: int, *, seed: int = 0) -> dict[str, list[int]]:
    """Different numbers for each split, about as many of each length; all below 100 are for training.

    There are too few short numbers to go round, so the longer ones fill up.
    """
    generator = random.Random(seed)
    wanted = num_train + num_valid + num_test
    by_length = [range(10 ** (length - 1), 10**length) for length in range(3, 7)]
    drawn: list[int] = []
    for place, numbers in enumerate(by_length):
        share = (wanted - len(drawn)) // (len(by_length) - place)
        drawn += generator.sample(numbers, min(share, len(numbers)))
    generator.shuffle(drawn)
    held_out = drawn[: num_valid + num_test]
    train = [*range(100), *drawn[num_valid + num_test : wanted - 100]]
    return {"train": train, "valid": held_out[:num_valid], "test": held_out[num_valid:]}


LANGUAGES: dict[str, Callable[[int], str]] = {"en": english, "de": german}


def _checked(number: int) -> int:
    assert 0 <= number <= LARGEST, number
    return number


def write_corpus(folder: Path, numbers: dict[str, list[int]]) -> None:
    """Parallel text: ``<split>.digits`` and ``<split>.words``, every number in every language.

    Files that are there already are left as they are; they must say the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, of_split in numbers.items():
        pairs = [(source(name, number), words(number)) for number in of_split for name, words in LANGUAGES.items()]
        for side, ending in enumerate(("digits", "words")):
            path, text = folder / f"{split}.{ending}", "".join(f"{pair[side]}\n" for pair in pairs)
            if not path.exists():
                partial = path.with_name(f".{path.name}.partial")
                partial.write_text(text, encoding="utf-8")
                partial.replace(path)
            elif path.read_text(encoding="utf-8") != text:
                raise DataError(f"{path} holds other numbers than these; give another folder")
