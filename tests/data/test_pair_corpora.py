"""Several corpora as one."""

from pathlib import Path

from depthwise.data import LineReport, PairCorpora, TabbedPairs


def test_pairs_come_one_after_the_other_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\n")
    (tmp_path / "b.tsv").write_text("three\ttrois\n")
    corpus = PairCorpora({"en-de": TabbedPairs(tmp_path / "a.tsv"), "en-fr": TabbedPairs(tmp_path / "b.tsv")})
    found = list(corpus.examples(LineReport()))
    assert [(example.label, example.texts[0], example.line) for example in found] == [
        ("en-de", "one", 1),
        ("en-de", "two", 2),
        ("en-fr", "three", 1),
    ]
    assert (corpus.num_texts, corpus.num_lines()) == (2, 3)
    assert corpus.name == f"{tmp_path / 'a.tsv'}, {tmp_path / 'b.tsv'}"
    other = PairCorpora({"en-fr": TabbedPairs(tmp_path / "b.tsv"), "en-de": TabbedPairs(tmp_path / "a.tsv")})
    assert corpus.identity() != other.identity()
