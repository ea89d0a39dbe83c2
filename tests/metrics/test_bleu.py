"""BLEU in its variants: against sacrebleu, by hand, and at the edges."""

import math
import random

import numpy as np
import pytest
import sacrebleu

from depthwise.errors import InputError
from depthwise.metrics import BLEU_VARIANTS, Bleu, SacreBleu, Score, TokenizedBleu, chrf
from depthwise.metrics.bleu_counts import bleu_of_counts

HYPOTHESES = ["The cat sat on the mat .", "It is a well-known, simple fact.", "no overlap whatsoever here"]
REFERENCES = ["The cat is on the mat .", "It is a well-known and simple fact.", "quite different words stand there"]


def corpus(seed: int, size: int = 30) -> tuple[list[str], list[list[str]]]:
    """Random sentences over few words, so that n-grams of all orders match; some are empty or very short."""
    draw = random.Random(seed)

    def sentence() -> str:
        return " ".join(draw.choices(["a", "B-c"], k=draw.choice([0, 1, 3, 6, 12])))

    return [sentence() for _ in range(size)], [[sentence() for _ in range(draw.choice([1, 2]))] for _ in range(size)]


def streams(references: list[list[str]]) -> list[list[str | None]]:
    return [[of_sentence[rank] if rank < len(of_sentence) else None for of_sentence in references] for rank in (0, 1)]


def test_sacrebleu_is_that_of_the_package() -> None:
    score = SacreBleu().score(HYPOTHESES, REFERENCES)
    assert score.value == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    version = sacrebleu.__version__
    assert score.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    assert str(score) == f"sacreBLEU = {score.value:.2f} ({score.signature})"


def test_sacrebleu_options_show_in_value_and_signature() -> None:
    upper = [line.upper() for line in HYPOTHESES]
    cased, lowered = SacreBleu().score(upper, REFERENCES), SacreBleu(lowercase=True).score(upper, REFERENCES)
    assert lowered.value == SacreBleu(lowercase=True).score(HYPOTHESES, REFERENCES).value > cased.value
    assert "case:lc" in lowered.signature
    assert "tok:char" in SacreBleu(tokenize="char").score(HYPOTHESES, REFERENCES).signature


def test_several_references() -> None:
    both = [[first, second] for first, second in zip(REFERENCES, HYPOTHESES, strict=True)]
    for variant in BLEU_VARIANTS.values():
        score = variant.score(HYPOTHESES, both)
        assert score.value == pytest.approx(100)
        assert score.signature.startswith("nrefs:2|")
        ragged: list[list[str]] = [both[0], *[[line] for line in REFERENCES[1:]]]
        assert variant.score(HYPOTHESES, ragged).signature.startswith("nrefs:var|")


@pytest.mark.parametrize("seed", range(5))
def test_tokenized_bleu_is_sacrebleu_without_tokeniser_and_smoothing(seed: int) -> None:
    hypotheses, references = corpus(seed)
    expected = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    score = TokenizedBleu().score(hypotheses, references)
    assert score.value == pytest.approx(expected.corpus_score(hypotheses, streams(references)).score, abs=1e-9)
    assert score.value > 0


@pytest.mark.parametrize("name", BLEU_VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_sum_of_the_counts_gives_the_score(name: str, seed: int) -> None:
    """Also for parts of a corpus, down to single sentences, where smoothing matters."""
    variant: Bleu = BLEU_VARIANTS[name]
    hypotheses, references = corpus(seed)
    counts = variant.counts(hypotheses, references)
    assert counts.shape == (30, 10)
    for size in (1, 2, 5, 30):
        expected = [
            variant.score(hypotheses[start : start + size], references[start : start + size]).value
            for start in range(0, 30, size)
        ]
        sums = counts.reshape(30 // size, size, 10).sum(axis=1)
        np.testing.assert_allclose(bleu_of_counts(sums, variant.smoothing), expected, atol=1e-9)


def test_tokenized_bleu_by_hand() -> None:
    """Precisions 4/5, 3/4, 2/3 and 1/2 of one sentence, with the penalty for being one token short."""
    score = TokenizedBleu().score(["a b c d x"], ["a b c d e f"])
    precisions = 4 / 5 * 3 / 4 * 2 / 3 * 1 / 2
    assert score.value == pytest.approx(100 * math.exp(1 - 6 / 5) * precisions**0.25)
    assert score == Score("BLEU", score.value, "nrefs:1|case:mixed|tok:none|compounds:whole|smooth:none|multi-bleu")


def test_matches_are_clipped() -> None:
    """Papineni's example: seven times "the" matches only as often as the reference has it."""
    counts = TokenizedBleu().counts(["the the the the the the the"], ["the cat is on the mat"])
    assert counts[0].tolist() == [7, 6, 2, 0, 0, 0, 7, 6, 5, 4]


def test_the_closest_reference_counts_and_the_shorter_of_two() -> None:
    references = [["x " * 9, "y " * 4, "z " * 2, "z " * 8]]
    assert TokenizedBleu().counts(["a b c"], references)[0, 1] == 2
    assert TokenizedBleu().counts(["a b c d"], references)[0, 1] == 4


def test_no_smoothing() -> None:
    assert TokenizedBleu().score(["a b c x d e f"], ["a b c y d e f"]).value == 0
    assert SacreBleu().score(["a b c x d e f"], ["a b c y d e f"]).value > 0


def test_lower_casing_is_that_of_bytes() -> None:
    lowered = TokenizedBleu(lowercase=True)
    assert lowered.score(["THE CAT SAT HERE"], ["the Cat sat here"]).value == pytest.approx(100)
    assert "case:lc" in lowered.score(["a"], ["a"]).signature
    assert lowered.counts(["Über"], ["über"])[0, 2] == 0
    assert lowered.counts(["É A"], ["É a"])[0, 2] == 2


def test_only_ascii_white_space_separates_tokens() -> None:
    counts = TokenizedBleu().counts(["a\u00a0b c\td  e\u3000f"], ["x"])
    assert counts[0, 0] == 4


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("x-y", "x ##AT##-##AT## y"),
        ("über-all gut", "über ##AT##-##AT## all gut"),
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
        ("a-ü-b", "a ##AT##-##AT## ü ##AT##-##AT## b"),
        ("a - b -c d- -", "a - b -c d- -"),
        ("x--y", "x ##AT##-##AT## -y"),
    ],
)
def test_compounds_are_split(text: str, tokens: str) -> None:
    assert b" ".join(TokenizedBleu(split_compounds=True)._tokens(text)).decode() == tokens
    assert b" ".join(TokenizedBleu()._tokens(text)).decode() == text


def test_parts_of_compounds_match_on_both_sides() -> None:
    hypotheses, references = ["ein blau-grünes altes Haus"], ["ein blau-rotes altes Haus"]
    assert TokenizedBleu().counts(hypotheses, references)[0, 2] == 3
    split = TokenizedBleu(split_compounds=True)
    assert split.counts(hypotheses, references)[0, [0, 1, 2]].tolist() == [6, 6, 5]
    assert "compounds:split" in split.score(hypotheses, references).signature


def test_chrf_is_that_of_the_package() -> None:
    score = chrf(HYPOTHESES, REFERENCES)
    assert score.value == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert score.name == "chrF"
    assert "nc:6|nw:0" in score.signature
    plus = chrf(HYPOTHESES, REFERENCES, word_order=2)
    assert plus.name == "chrF++"
    assert plus.value != score.value


@pytest.mark.parametrize("name", BLEU_VARIANTS)
@pytest.mark.parametrize(("hypothesis", "reference"), [("", "a b"), ("a b", ""), ("", ""), ("x", "y")])
def test_without_anything_in_common_it_is_zero(name: str, hypothesis: str, reference: str) -> None:
    assert BLEU_VARIANTS[name].score([hypothesis], [reference]).value == 0


@pytest.mark.parametrize("measure", [*(variant.score for variant in BLEU_VARIANTS.values()), chrf])
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "^there are no texts to score; give at least one$"),
        (["a"], ["a", "b"], "^1 hypotheses but references for 2 texts; give both for each$"),
        (["a", "b"], [["a"], []], "^text 1 has no reference; give at least one for each$"),
        ("ab", ["a", "b"], "^hypotheses and references are lists of texts"),
        (["a"], "a", "put a single text into a list$"),
    ],
)
def test_bad_input(measure: object, hypotheses: object, references: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure(hypotheses, references)  # type: ignore[operator]


def test_unknown_tokeniser() -> None:
    with pytest.raises(InputError, match=r"^sacreBLEU has no tokeniser '13b'; choose one of .*13a"):
        SacreBleu(tokenize="13b").score(["a"], ["a"])
