"""Tags that mark entities: the ways of writing them, how to tell these apart, and from each to IOB2.

A tag is ``O`` or a prefix and a type, such as ``B-PER``. How an entity of three words, and one right behind it of the
same type, are written:

| scheme | tags | ``B`` |
|---|---|---|
| ``iob1`` | ``I I I B`` | only where the entity before ends without a gap and has the same type |
| ``iob2`` | ``B I I B`` | at every beginning |
| ``bioes`` | ``B I E S`` | at every beginning of two words or more; ``S`` is an entity of one word |

``bilou`` is ``bioes`` with ``L`` for ``E`` and ``U`` for ``S`` and is read as such.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

OUTSIDE = "O"
SCHEMES = ("iob1", "iob2", "bioes")
PREFIXES = {"iob1": ("B", "I"), "iob2": ("B", "I"), "bioes": ("B", "I", "E", "S")}
BILOU = {"L": "E", "U": "S"}


class Contradiction(NamedTuple):
    """A tag that a scheme does not allow where it stands."""

    place: int
    message: str


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type; both are empty for ``O``. Where there is no prefix the first is empty."""
    if tag == OUTSIDE:
        return "", ""
    prefix, dash, kind = tag.partition("-")
    return (BILOU.get(prefix, prefix), kind) if dash and kind else ("", tag)


def contradictions(tags: Sequence[str], scheme: str) -> Iterator[Contradiction]:
    """Every tag of a sentence that the scheme does not allow, from the first on."""
    before, kind_before = "", ""
    for place, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        if tag != OUTSIDE and prefix not in PREFIXES[scheme]:
            allowed = "- or ".join(PREFIXES[scheme])
            yield Contradiction(place, f'tag "{tag}" is neither O nor begins with {allowed}- (scheme plain takes any)')
            before, kind_before = "", ""
            continue
        message = _fault(scheme, tag, prefix, kind, before, kind_before)
        if message is not None:
            yield Contradiction(place, message)
        before, kind_before = prefix, kind
    if scheme == "bioes" and before in ("B", "I"):
        yield Contradiction(len(tags) - 1, f'tag "{before}-{kind_before}" opens an entity that nothing ends')


def _fault(scheme: str, tag: str, prefix: str, kind: str, before: str, kind_before: str) -> str | None:
    if scheme == "iob1":
        misplaced = prefix == "B" and kind != kind_before
        return f'tag "{tag}" follows no {kind}, where IOB1 writes "I-{kind}"' if misplaced else None
    inside = before in ("B", "I") and kind == kind_before
    if scheme == "iob2":
        return (
            f'tag "{tag}" follows no {kind}; an entity begins with "B-{kind}"' if prefix == "I" and not inside else None
        )
    if prefix in ("I", "E") and not inside:
        return f'tag "{tag}" follows no {kind} that goes on; an entity begins with "B-{kind}" or is "S-{kind}"'
    if before in ("B", "I") and prefix not in ("I", "E"):
        return f'tag "{tag}" follows "{before}-{kind_before}", which opens an entity that nothing ends'
    return None


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme that the fewest tags contradict; ``iob2`` where several are as good, as without any entity.

    Any entity tells IOB1 from IOB2: the tag that it begins with is wrong in one of them. So a few wrong tags do not
    change what a file is taken for, and can be named.
    """
    counts = {"iob2": 0, "iob1": 0, "bioes": 0}
    for tags in sentences:
        for scheme in counts:
            counts[scheme] += sum(1 for _ in contradictions(tags, scheme))
    return min(counts, key=lambda scheme: counts[scheme])


def to_iob2(tags: Sequence[str], scheme: str) -> list[str]:
    """Tags without contradictions, of whatever scheme, as IOB2."""
    if scheme == "iob1":
        return iob1_to_iob2(tags)
    return bioes_to_iob2(tags) if scheme == "bioes" else list(tags)


def iob1_to_iob2(tags: Sequence[str]) -> list[str]:
    """``B-`` at every beginning. Of tags in IOB2 this is the identity, and it mends an ``I-`` that follows nothing."""
    converted, kind_before = [], ""
    for tag in tags:
        prefix, kind = split_tag(tag)
        begins = prefix == "B" or kind != kind_before
        converted.append(tag if tag == OUTSIDE else f"{'B' if begins else 'I'}-{kind}")
        kind_before = kind
    return converted


def bioes_to_iob2(tags: Sequence[str]) -> list[str]:
    """``S`` begins and ``E`` goes on."""
    parts = [(tag, *split_tag(tag)) for tag in tags]
    return [tag if tag == OUTSIDE else f"{'B' if prefix in ('B', 'S') else 'I'}-{kind}" for tag, prefix, kind in parts]
