"""Entity F1 by hand and against seqeval's own scores, and counts that add up."""

import numpy as np
import pytest
import seqeval.metrics
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from depthwise.errors import InputError
from depthwise.metrics import paired_bootstrap
from depthwise.metrics.entities import entities, entity_counts, entity_report, f1_of_counts

TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b"])


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[list[str]], list[list[str]]]:
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    one, other = ([draw(st.lists(TAGS, min_size=size, max_size=size)) for size in lengths] for _ in range(2))
    return one, other


@given(corpora())
def test_the_same_as_seqeval(corpus: tuple[list[list[str]], list[list[str]]]) -> None:
    predictions, answers = corpus
    report = entity_report(predictions, answers)
    for ours, theirs in (
        (report.overall.precision, "precision"),
        (report.overall.recall, "recall"),
        (report.overall.f1, "f1"),
    ):
        score = getattr(seqeval.metrics, f"{theirs}_score")(answers, predictions, zero_division=0)
        assert ours == pytest.approx(100 * score)
    assert report.macro_f1 == pytest.approx(
        100 * seqeval.metrics.f1_score(answers, predictions, average="macro", zero_division=0) if report.by_type else 0
    )
    assert report.overall.num_there == sum(scores.num_there for scores in report.by_type.values())


@given(corpora())
def test_the_entities_of_seqeval(corpus: tuple[list[list[str]], list[list[str]]]) -> None:
    for tags in corpus[0]:
        theirs = [(kind, start, end + 1) for kind, start, end in get_entities(tags)]
        assert [tuple(entity) for entity in entities(tags)] == theirs


def test_by_hand() -> None:
    answers = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC"]]
    predictions = [["B-PER", "I-PER", "O", "B-PER"], ["I-LOC", "B-LOC"]]
    report = entity_report(predictions, answers)
    overall = report.overall
    assert (overall.num_right, overall.num_predicted, overall.num_there) == (2, 4, 3)
    assert (overall.precision, overall.recall) == (50, pytest.approx(200 / 3))
    assert overall.f1 == pytest.approx(100 * 4 / 7)
    assert list(report.by_type) == ["LOC", "PER"]
    assert report.by_type["PER"].f1 == pytest.approx(200 / 3)
    assert report.by_type["LOC"].recall == 50
    assert report.macro_f1 == pytest.approx((50 + 200 / 3) / 2)
    nothing = entity_report([["O"]], [["O"]])
    assert (nothing.overall.f1, nothing.by_type, nothing.macro_f1) == (0, {}, 0)


def test_two_systems_compare() -> None:
    answers = [["B-PER", "O", "B-LOC"]] * 40
    better = [["B-PER", "O", "B-LOC"]] * 30 + [["O", "O", "O"]] * 10
    worse = [["B-PER", "O", "O"]] * 40
    ours, theirs = entity_counts(better, answers), entity_counts(worse, answers)
    found = paired_bootstrap(ours, theirs, f1_of_counts, num_resamples=200)
    assert found.ours == pytest.approx(entity_report(better, answers).overall.f1)
    assert found.theirs == pytest.approx(entity_report(worse, answers).overall.f1)
    assert found.low > 0
    assert f1_of_counts(np.zeros(3)) == 0


def test_errors() -> None:
    with pytest.raises(InputError, match="tags were predicted for 2 sentences but are given for 1"):
        entity_counts([["O"], ["O"]], [["O"]])
    with pytest.raises(InputError, match="there are no sentences to score"):
        entity_counts([], [])
    with pytest.raises(InputError, match="sentence 1 has 1 predicted tags but 2 words"):
        entity_counts([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(InputError, match="sentence 0 is one text; give a list of tags"):
        entity_counts(["O"], [["O"]])
    for tag in ("S-PER", "PER", "B-", ""):
        with pytest.raises(InputError, match=f'sentence 0 has the tag "{tag}", which is not in IOB2'):
            entity_counts([[tag]], [["O"]])
