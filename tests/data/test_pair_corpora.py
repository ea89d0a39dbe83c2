"""Several corpora as one."""

from pathlib import Path

from depthwise.data import JoinedCorpus, LabelledText, LineReport, LineRules, PairCorpora, TabbedPairs


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


def test_files_come_one_behind_the_other(tmp_path: Path) -> None:
    for name, text in (("a", "x\tone\n"), ("b", "two\ny\tthree\n")):
        (tmp_path / name).write_text(text)
    parts = LabelledText(tmp_path / "a"), LabelledText(tmp_path / "b")
    corpus, report = JoinedCorpus(parts), LineReport(LineRules("skip"))
    found = [(example.texts[0], example.file, example.line) for example in corpus.examples(report)]
    assert found == [("one", str(tmp_path / "a"), 1), ("three", str(tmp_path / "b"), 2)]
    assert report.counts == {"missing_tab": 1}
    assert (corpus.num_texts, corpus.num_lines(), corpus.name) == (1, 3, f"{tmp_path / 'a'}, {tmp_path / 'b'}")
    assert corpus.identity() != JoinedCorpus(parts[::-1]).identity()
