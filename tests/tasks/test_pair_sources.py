"""From the names in a recipe to the corpora of several pairs."""

from pathlib import Path

import pytest

from depthwise.config import DataConfig
from depthwise.data import HubDataset, LineReport, LineRules
from depthwise.errors import ConfigError, DataError
from depthwise.tasks.pair_sources import pair_corpora

PAIRS = ("en-de", "en-fr")
EXPECTED = [("en-de", ("one", "eins")), ("en-fr", ("two", "deux"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"en-de": ("one\n", "eins\n"), "en-fr": ("two\n", "deux\n")}
    for pair, (source, target) in texts.items():
        language = pair[3:]
        for name in (f"train.{pair}", f"{pair}/train"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / f"{name}.en").write_text(source)
            (tmp_path / f"{name}.{language}").write_text(target)
        (tmp_path / f"{pair}.tsv").write_text(f"{source.strip()}\t{target}")
        (tmp_path / f"{pair}.jsonl").write_text(
            f'{{"t": {{"en": "{source.strip()}", "{language}": "{target[:-1]}"}}}}\n'
        )
        (tmp_path / f"in.{language}").write_text(source)
        (tmp_path / f"out.{language}").write_text(target)
    for language, text in (("en", "two\n"), ("de", "zwei\n"), ("fr", "deux\n")):
        (tmp_path / f"all.{language}").write_text(text)
    return tmp_path


def found(
    folder: Path, *names: str, pairs: tuple[str, ...] = PAIRS, **data: str
) -> list[tuple[str | None, tuple[str, ...]]]:
    corpus = pair_corpora(DataConfig(pairs=pairs, **data), tuple(str(folder / name) for name in names))
    assert corpus.num_texts == 2
    return [(example.label, example.texts) for example in corpus.examples(LineReport())]


@pytest.mark.parametrize("name", ["train.{pair}", "{pair}/train", "train.{source}-{target}", "{pair}.tsv"])
def test_every_layout(folder: Path, name: str) -> None:
    assert found(folder, name) == EXPECTED


def test_two_files_and_fields(folder: Path) -> None:
    assert found(folder, "in.{target}", "out.{target}") == EXPECTED
    assert found(folder, f"in.{{target}},{folder}/out.{{target}}") == EXPECTED
    assert found(folder, "{pair}.jsonl", source="t.{source}", target="t.{target}") == EXPECTED


def test_texts_that_are_parallel_in_all_languages(folder: Path) -> None:
    assert found(folder, "all", pairs=("de-fr", "fr-de")) == [("de-fr", ("zwei", "deux")), ("fr-de", ("deux", "zwei"))]


def test_the_same_files_serve_the_other_direction(folder: Path) -> None:
    backwards = [("de-en", ("eins", "one")), ("fr-en", ("deux", "two"))]
    for name in ("train.{pair}", "{pair}/train"):
        assert found(folder, name, pairs=("de-en", "fr-en")) == backwards
    assert found(folder, "{pair}.jsonl", pairs=("de-en",), source="t.{source}", target="t.{target}") == backwards[:1]
    both = found(folder, "train.{pair}", pairs=("en-de", "de-en"))
    assert both == [EXPECTED[0], backwards[0]]


def test_columns_and_files_of_any_name_do_not_say_their_language(folder: Path) -> None:
    for name in ("en-de.src", "en-de.tgt"):
        (folder / name).write_text("x\n")
    for names in (["{pair}.src", "{pair}.tgt"], [f"{{pair}}.src,{folder}/{{pair}}.tgt"]):
        with pytest.raises(DataError, match=r"de-en\.src does not exist"):
            found(folder, *names, pairs=("de-en",))
    with pytest.raises(DataError, match=r"de-en\.tsv does not exist"):
        found(folder, "{pair}.tsv", pairs=("de-en",))


def test_data_sets_by_name() -> None:
    data = DataConfig(pairs=PAIRS, hub="s/{source}", hub_config="{pair}", source="x.{source}", target="x.{target}")
    corpora = pair_corpora(data, ("train",)).corpora
    assert corpora["en-fr"] == HubDataset("s/en", ("x.en", "x.fr"), split="train", config="en-fr")


def test_mistakes(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.pairs +is missing; name the directions"):
        pair_corpora(DataConfig(), ("x",))
    with pytest.raises(DataError, match=r"\{lang\} stands for nothing; write \{pair\}, \{source\}, \{target\}"):
        found(folder, "{lang}/train")
    with pytest.raises(DataError, match=r"is the same for en-de and en-fr; put \{pair\} where they differ"):
        found(folder, "en-de.tsv")
    with pytest.raises(DataError, match=r"train\.en-it\.en does not exist"):
        found(folder, "train.{pair}", pairs=("en-it",))


def test_bad_lines_are_named_by_their_own_file(folder: Path) -> None:
    (folder / "train.en-fr.fr").write_text("\n")
    with pytest.raises(DataError, match=r"train\.en-fr\.fr:1: the line is empty"):
        found(folder, "train.{pair}")
    report = LineReport(LineRules("skip"))
    corpus = pair_corpora(DataConfig(pairs=PAIRS), (str(folder / "train.{pair}"),))
    assert [example.label for example in corpus.examples(report)] == ["en-de"]
    assert report.counts == {"empty": 1}
    assert corpus.num_lines() == 2
    assert corpus.identity() != pair_corpora(DataConfig(pairs=PAIRS[::-1]), (str(folder / "train.{pair}"),)).identity()
