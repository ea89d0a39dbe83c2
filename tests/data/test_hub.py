"""Data sets of the datasets library, with a stand-in for the library."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from depthwise.data import HubDataset, LineReport, LineRules
from depthwise.errors import DataError


class Split(list[dict[str, Any]]):
    """What ``load_dataset`` returns, as far as it is used."""

    _fingerprint = "f00d"
    features = {"label": SimpleNamespace(names=["neg", "pos"])}

    @property
    def column_names(self) -> list[str]:
        return list(self[0])


class LibraryError(Exception):
    """The root of the library's own errors, which is none of Python's."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records how data sets are loaded."""
    calls: list[Any] = []
    splits = {
        "reviews": Split(
            {"label": label, "text": text} for label, text in ((1, "fine"), (-1, "unknown"), (0, " "), (0, "x" * 50))
        ),
        "pairs": Split([{"translation": {"de": "ein", "en": "one"}, "score": 0.5}]),
    }

    def load_dataset(path: str, config: str | None, **options: Any) -> Split:
        calls.append((path, config, options))
        if path not in splits:
            raise FileNotFoundError(f"Dataset '{path}' doesn't exist on the Hub.\nmore lines")
        if config == "broken":
            raise LibraryError("An error occurred while generating the dataset")
        return splits[path]

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    module.exceptions = SimpleNamespace(DatasetsError=LibraryError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_classes_come_by_name_and_bad_rows_by_number(library: list[Any]) -> None:
    corpus = HubDataset("reviews", ("text",), "label", split="test", options={"data_dir": "x"})
    report = LineReport(LineRules("skip", max_chars=20))
    (example,) = corpus.examples(report)
    assert (example.texts, example.label, example.file, example.line) == (("fine",), "pos", "reviews[test]", 1)
    assert report.counts == {"bad_label": 1, "empty": 1, "over_long": 1}
    assert [str(bad) for bad in report.first][:2] == [
        "reviews[test]:2: -1 is the number of no class",
        'reviews[test]:3: field "text" is empty',
    ]
    assert corpus.num_lines() == 4
    assert library == [("reviews", None, {"split": "test", "revision": None, "data_dir": "x"})], "loaded once"


def test_fields_of_columns(library: list[Any]) -> None:
    corpus = HubDataset("pairs", ("translation.de", "translation.en"), "score", config="de-en")
    (example,) = corpus.examples(LineReport())
    assert (example.texts, example.label, corpus.name) == (("ein", "one"), "0.5", "pairs/de-en[train]")
    assert corpus.num_texts == 2
    assert corpus.identity() == {
        "kind": "datasets",
        "fingerprint": "f00d",
        "texts": ["translation.de", "translation.en"],
        "label": "score",
    }


def test_what_cannot_be_loaded(library: list[Any]) -> None:
    with pytest.raises(
        DataError, match=r"^none\[train\] cannot be loaded: Dataset 'none' doesn't exist on the Hub; check"
    ):
        HubDataset("none", ("text",)).num_lines()
    with pytest.raises(DataError, match=r"^pairs/broken\[train\] cannot be loaded: An error occurred while generating"):
        HubDataset("pairs", ("text",), config="broken").num_lines()
    with pytest.raises(DataError, match=r'^reviews\[train\] has no column "texts"; it has label, text$'):
        HubDataset("reviews", ("texts",)).num_lines()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        DataError, match=r'reviews needs the library datasets; install it with: pip install "depthwise\[data\]"'
    ):
        HubDataset("reviews", ("text",)).num_lines()
