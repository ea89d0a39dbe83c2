"""Lines of objects inside JSON, against a text whose lines are known."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from depthwise.data.json_places import Place, object_lines, spelled

TRICKY = st.sampled_from(["a", "data", "{", '"', "\\", "]:,", "\n", 'x"{\n}'])
VALUES = st.recursive(
    st.none() | st.integers() | TRICKY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


def objects_in(value: Any, place: Place = ()) -> list[Place]:
    if isinstance(value, dict):
        inner = [found for name, item in value.items() for found in objects_in(item, (*place, name))]
        return [place, *inner]
    if isinstance(value, list):
        return [found for number, item in enumerate(value) for found in objects_in(item, (*place, number))]
    return []


@given(VALUES)
def test_every_object_is_found_on_its_line(value: Any) -> None:
    assert set(object_lines(json.dumps(value)).items()) == {(place, 1) for place in objects_in(value)}
    text = json.dumps(value, indent=1)
    lines = text.split("\n")
    found = object_lines(text)
    assert list(found) == objects_in(value)
    assert all("{" in lines[line - 1] for line in found.values())
    assert list(found.values()) == sorted(found.values())


def test_by_hand() -> None:
    text = '\n{"data": [\n {"b": 1}, [],\n\n {"c": {"d":\n {}}}]}'
    assert object_lines(text) == {
        (): 2,
        ("data", 0): 3,
        ("data", 2): 5,
        ("data", 2, "c"): 5,
        ("data", 2, "c", "d"): 6,
    }


def test_spelling() -> None:
    assert spelled(("data", 0, "paragraphs", 3)) == "data[0].paragraphs[3]"
    assert spelled(()) == "the file"
