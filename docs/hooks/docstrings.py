"""Docstrings of policies answer questions line by line; here every answer is a paragraph."""

import re
from typing import Any

import griffe

QUESTION = re.compile(r"^(Decides|Source|Choose it|Needs|Ours -> symbols): ", re.MULTILINE)


class Paragraphs(griffe.Extension):
    """Parts the answers, and sets the questions in bold."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = QUESTION.sub(r"\n**\1.** ", cls.docstring.value)
