"""Every block of every page is run, or read by what would run it."""

from collections.abc import Callable

import pytest

from .blocks import blocks_of, pages, read_page
from .running import Runner


@pytest.mark.parametrize("page", pages())
def test_the_blocks_of_a_page(page: str, make_runner: Callable[[str], Runner]) -> None:
    runner = make_runner(page)
    for block in blocks_of(page, read_page(page)):
        runner.run(block)
