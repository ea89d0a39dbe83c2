"""Every block of every page is run, or read by what would run it; so are commands in the midst of sentences."""

from collections.abc import Callable

import pytest

from .blocks import blocks_of, pages, read_page, spans_of
from .running import Runner


@pytest.mark.parametrize("page", pages())
def test_the_blocks_of_a_page(page: str, make_runner: Callable[[str], Runner]) -> None:
    runner, text = make_runner(page), read_page(page)
    for shown in sorted([*blocks_of(page, text), *spans_of(page, text)], key=lambda shown: shown.line):
        runner.run(shown)
    runner.finish()
