"""On which line of a JSON file something stands, for messages about its content."""

import re

Place = tuple[str | int, ...]
"""The way from the outermost value inwards: names of fields and numbers of items."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:\n]', re.DOTALL)


def object_lines(text: str) -> dict[Place, int]:
    """The line, counted from 1, that every object of a valid JSON text begins on, by the way that leads to it."""
    lines: dict[Place, int] = {}
    way: list[str | int] = []  # the field or item that is being read at each level
    in_list: list[bool] = []
    number, last = 1, ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            number += 1
        elif token in "{[":
            if token == "{":
                lines[tuple(way)] = number
            way.append(0 if token == "[" else "")
            in_list.append(token == "[")
        elif token in "}]":
            way.pop()
            in_list.pop()
        elif token == ",":
            if in_list[-1]:
                way[-1] = int(way[-1]) + 1
        elif token == ":":
            way[-1] = last
        else:
            last = token[1:-1]
    return lines


def spelled(place: Place) -> str:
    """A way as one writes it: ``data[0].paragraphs[3]``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".") or "the file"
