"""ROUGE by hand, several references, sentences, signatures, and the way without rouge-score."""

import sys

import numpy as np
import pytest

from depthwise.errors import ConfigError, InputError
from depthwise.metrics import compare_means
from depthwise.metrics.rouge import Rouge, split_sentences

PLAIN = Rouge(stemmed=False)


def test_by_hand() -> None:
    """F = 2·overlap / (length + length) for words, pairs of words and the longest common subsequence."""
    hypothesis, reference = "the cat sat on a mat", "a cat sat on the mat"
    values = PLAIN.values([hypothesis], [reference])[0]
    assert values == pytest.approx([1.0, 2 * 2 / 10, 2 * 4 / 12, 2 * 4 / 12])
    scores = PLAIN.scores([hypothesis, "x"], [reference, "y"])
    assert scores["rouge2"].value == pytest.approx(100 * 0.4 / 2)
    assert list(scores) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]


def test_stemming() -> None:
    assert Rouge(("rouge1",)).values(["he walked"], ["he walks"]).tolist() == [[1.0]]
    assert Rouge(("rouge1",), stemmed=False).values(["he walked"], ["he walks"]).tolist() == [[0.5]]


def test_summary_level_does_not_mind_the_order_of_sentences() -> None:
    lines = PLAIN.values(["b b2 b3\na a2 a3"], ["a a2 a3\nb b2 b3"])[0]
    assert lines[2] == pytest.approx(0.5)
    assert lines[3] == 1.0
    one_line = ["B b2 b3. A a2 a3."], ["A a2 a3. B b2 b3."]
    assert PLAIN.values(*one_line)[0, 3] == pytest.approx(0.5)
    by_punctuation = Rouge(stemmed=False, sentences="punctuation").values(*one_line)[0]
    assert by_punctuation[3] == 1.0
    assert by_punctuation[2] == pytest.approx(0.5)


def test_sentences() -> None:
    text = 'He said "no." She left! Why? 3.5 km\n on foot.  '
    assert split_sentences(text) == ['He said "no."', "She left!", "Why?", "3.5 km", "on foot."]
    assert split_sentences(" \n") == []


def test_several_references() -> None:
    hypothesis, references = ["a b"], [["a b", "a c", "d e"]]
    assert Rouge(("rouge1",)).values(hypothesis, references).tolist() == [[1.0]]
    assert Rouge(("rouge1",), several="mean").values(hypothesis, references)[0, 0] == pytest.approx(0.5)


def test_best_is_taken_for_each_type_by_itself() -> None:
    values = Rouge(("rouge1", "rouge2"), stemmed=False).values(["a b c d"], [["d c b a", "a b x y"]])[0]
    assert values == pytest.approx([1.0, 2 * 1 / 6])


def test_signatures() -> None:
    score = Rouge(("rougeL",)).scores(["a"], [["a", "b"]])["rougeL"]
    assert score.signature.startswith("nrefs:2|several:best|stem:porter|sentences:lines|measure:f|rouge-score:0.")
    different = Rouge(stemmed=False, several="mean", sentences="punctuation").signature(["a", ["a", "b"]])
    assert different.startswith("nrefs:var|several:mean|stem:none|sentences:punctuation|")


def test_two_systems_compare() -> None:
    references = ["a b c d"] * 50
    ours = Rouge(("rouge1",)).values(["a b c d"] * 50, references)
    theirs = Rouge(("rouge1",)).values(["a b c d"] * 25 + ["x"] * 25, references)
    found = compare_means(ours[:, 0], theirs[:, 0], num_resamples=200)
    assert (found.ours, found.theirs) == (1.0, 0.5)
    assert found.low > 0


def test_empty_texts_score_nothing() -> None:
    assert np.array_equal(PLAIN.values(["", "a", "!"], ["a", "", "!"]), np.zeros((3, 4)))


def test_without_rouge_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(InputError, match=r'the library rouge-score; install it with: pip install "depthwise\[eval\]"'):
        Rouge().scores(["a"], ["a"])


def test_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        Rouge(("rouge0", "rougeL", "rouge10"), several="worst", sentences="words")
    assert [problem.option for problem in caught.value.problems] == ["types", "types", "several", "sentences"]
    with pytest.raises(InputError, match="2 hypotheses but references for 1 texts"):
        Rouge().values(["a", "b"], ["a"])
    with pytest.raises(InputError, match="there are no texts to score"):
        Rouge().values([], [])
    with pytest.raises(InputError, match="text 1 has no reference"):
        Rouge().values(["a", "b"], ["a", []])
    with pytest.raises(InputError, match="put a single text into a list"):
        Rouge().values("a", ["a"])
