"""Schemes of tags: told apart, checked, converted and converted back."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.data.tags import (
    OUTSIDE,
    SCHEMES,
    contradictions,
    detect_scheme,
    iob1_to_iob2,
    split_tag,
    to_iob2,
)
from depthwise.metrics.entities import Entity, entities


def iob2_to_iob1(tags: Sequence[str]) -> list[str]:
    """``B-`` only between neighbours of the same type."""
    converted, kind_before = [], ""
    for tag in tags:
        prefix, kind = split_tag(tag)
        converted.append(tag if tag == OUTSIDE else f"{'B' if prefix == 'B' and kind == kind_before else 'I'}-{kind}")
        kind_before = kind
    return converted


def iob2_to_bioes(tags: Sequence[str]) -> list[str]:
    """The last word of an entity is ``E``, or ``S`` where it is the only one."""
    converted = []
    for tag, following in zip(tags, [*tags, OUTSIDE][1:], strict=True):
        prefix, kind = split_tag(tag)
        ends = following != f"I-{kind}"
        converted.append(tag if tag == OUTSIDE else f"{'BISE'[2 * ends + (prefix == 'I')]}-{kind}")
    return converted


def iob2_of(found: Iterable[Entity], num_words: int) -> list[str]:
    """Tags in IOB2 of entities that do not overlap: the way back from ``entities``."""
    tags = [OUTSIDE] * num_words
    for kind, start, end in found:
        tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tags


WAYS = {"iob1": iob2_to_iob1, "iob2": list, "bioes": iob2_to_bioes}


@st.composite
def marked(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities that do not overlap, often neighbours of the same type, and how many words there are."""
    found, place = [], 0
    for kind, gap, length in draw(
        st.lists(st.tuples(st.sampled_from(["PER", "LOC", "a-b"]), st.integers(0, 2), st.integers(1, 3)), max_size=6)
    ):
        found.append(Entity(kind, place + gap, place + gap + length))
        place += gap + length
    return found, place + draw(st.integers(0, 2))


@given(marked())
def test_every_scheme_and_back(case: tuple[list[Entity], int]) -> None:
    found, num_words = case
    tags = iob2_of(found, num_words)
    assert entities(tags) == found
    for scheme, convert in WAYS.items():
        written = convert(tags)
        assert list(contradictions(written, scheme)) == []
        assert to_iob2(written, scheme) == tags
        if found:
            assert detect_scheme([written]) == scheme
            assert all(list(contradictions(written, other)) for other in SCHEMES if other != scheme)


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), max_size=8))
def test_conversion_to_iob2_never_contradicts_it_and_is_idempotent(tags: list[str]) -> None:
    converted = iob1_to_iob2(tags)
    assert list(contradictions(converted, "iob2")) == []
    assert iob1_to_iob2(converted) == converted
    assert (converted == tags) == (not list(contradictions(tags, "iob2")))
    assert [tag[1:] for tag in converted] == [tag[1:] for tag in tags]


def test_by_hand() -> None:
    iob2 = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-PER", "I-PER", "I-PER"]
    assert iob2_to_iob1(iob2) == ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER", "I-PER", "I-PER"]
    assert iob2_to_bioes(iob2) == ["B-PER", "E-PER", "S-PER", "O", "S-LOC", "B-PER", "I-PER", "E-PER"]
    assert to_iob2(["B-PER", "L-PER", "U-PER", "O", "U-LOC", "B-PER", "I-PER", "L-PER"], "bioes") == iob2
    assert entities(iob2) == [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5), ("PER", 5, 8)]


def test_a_few_wrong_tags_do_not_change_the_scheme() -> None:
    good = [["B-PER", "I-PER", "O"]] * 5
    assert detect_scheme([*good, ["O", "I-PER", "O"]]) == "iob2"
    assert detect_scheme([*([iob2_to_iob1(tags) for tags in good]), ["O", "B-PER", "O"]]) == "iob1"
    assert detect_scheme([["O", "O"], []]) == "iob2"
    assert detect_scheme([["B-PER", "L-PER", "U-LOC"]]) == "bioes"


@pytest.mark.parametrize(
    ("scheme", "tags", "place", "message"),
    [
        ("iob2", "O I-PER", 1, 'tag "I-PER" follows no PER; an entity begins with "B-PER"'),
        ("iob2", "B-LOC I-PER", 1, 'tag "I-PER" follows no PER; an entity begins with "B-PER"'),
        ("iob2", "I-PER", 0, 'tag "I-PER" follows no PER; an entity begins with "B-PER"'),
        (
            "iob2",
            "B-PER E-PER",
            1,
            'tag "E-PER" is neither O nor begins with B- or I- (scheme plain takes any)',
        ),
        (
            "iob2",
            "O X-PER",
            1,
            'tag "X-PER" is neither O nor begins with B- or I- (scheme plain takes any)',
        ),
        (
            "iob2",
            "BI-PER",
            0,
            'tag "BI-PER" is neither O nor begins with B- or I- (scheme plain takes any)',
        ),
        ("iob2", "O B-", 1, 'tag "B-" is neither O nor begins with B- or I- (scheme plain takes any)'),
        ("iob2", "o", 0, 'tag "o" is neither O nor begins with B- or I- (scheme plain takes any)'),
        ("iob1", "O B-PER", 1, 'tag "B-PER" follows no PER, where IOB1 writes "I-PER"'),
        ("iob1", "I-LOC B-PER", 1, 'tag "B-PER" follows no PER, where IOB1 writes "I-PER"'),
        (
            "bioes",
            "S-PER E-PER",
            1,
            'tag "E-PER" follows no PER that goes on; an entity begins with "B-PER" or is "S-PER"',
        ),
        ("bioes", "B-PER O", 1, 'tag "O" follows "B-PER", which opens an entity that nothing ends'),
        ("bioes", "O B-PER", 1, 'tag "B-PER" opens an entity that nothing ends'),
    ],
)
def test_contradictions(scheme: str, tags: str, place: int, message: str) -> None:
    assert next(contradictions(tags.split(), scheme)) == (place, message)
