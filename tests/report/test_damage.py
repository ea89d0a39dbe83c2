"""Whatever stands in the files of a run, there is a page."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from depthwise.report import page, page_data, read_runs

from .conftest import MakeFolder, structured, structured_files

ODD: tuple[Any, ...] = (None, "x", [], {}, -1, True, [1, "a"], 1e999)
FILES = (
    *("config.json", "training.json", "calibration.json", "metrics.jsonl", "layers.jsonl"),
    *("results/frontier.json", "results/depths.json", "results/test.json"),
)


def damaged(content: Any) -> Iterator[Any]:
    """The content with one of its values, however deep, replaced by something that nobody expects there."""
    if isinstance(content, dict | list):
        places = list(content) if isinstance(content, dict) else range(min(2, len(content)))
        for place in places:
            for odd in (*ODD, *damaged(content[place])):
                changed = copy.copy(content)
                changed[place] = odd
                yield changed


@pytest.mark.parametrize("file", FILES)
def test_a_value_of_another_kind_ends_no_page(make_folder: MakeFolder, file: str) -> None:
    folder = make_folder(**structured_files(structured()))
    path = folder / file
    if file.endswith("jsonl"):
        first, *rest = path.read_text().splitlines()
        texts = ["\n".join([json.dumps(each), *rest]) for each in damaged(json.loads(first))]
    else:
        texts = [json.dumps(each) for each in damaged(json.loads(path.read_text()))]
    assert len(texts) > 10
    for text in texts:
        path.write_text(text)
        try:
            content = page(page_data(read_runs([folder])))
        except Exception as error:
            raise AssertionError(f"{file}: {text[:3000]}") from error
        assert content.endswith("</html>\n")
