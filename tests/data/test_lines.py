"""Lines of files, and the account of those that are bad."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthwise.data.lines import Fault, LineReport, LineRules, count_lines, merged_reports, read_lines
from depthwise.errors import ConfigError, DataError


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_line_ends_in_a_newline_and_in_nothing_else(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, "one\r\ntwo\rstill\u2028two\x0b\x0c\x1c\x85.\nthree".encode())
    assert list(read_lines(path, 100)) == ["one", "two\rstill\u2028two\x0b\x0c\x1c\x85.", "three"]
    assert count_lines(path) == 3


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for content, lines in ((b"one\ntwo\n", ["one", "two"]), (b"one", ["one"]), (b"", [])):
        path = written(tmp_path / "a", b"\xef\xbb\xbf" + content)
        assert list(read_lines(path, 100)) == lines
        assert count_lines(path) == len(lines)


def test_faults_are_named_and_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = written(tmp_path / "a", b"good\n\n \t\nb\xffd\n" + b"x" * 11 + b"\n" + b"y" * 5000 + b"\nlast\n")
    first, *faults, last = read_lines(path, 10)
    assert (first, last) == ("good", "last")
    assert [fault.kind for fault in faults if isinstance(fault, Fault)] == [
        *("empty", "empty", "bad_utf8", "over_long", "over_long")
    ]
    assert isinstance(faults[2], Fault)
    assert faults[2].message == "byte 2 of the line is not UTF-8"


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
@pytest.mark.parametrize("begin", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_limit_counts_characters_and_is_exact(tmp_path: Path, letter: str, begin: str, end: str) -> None:
    fits = written(tmp_path / "fits", (begin + letter * 10 + end).encode())
    exceeds = written(tmp_path / "exceeds", (begin + letter * 11 + end).encode())
    assert list(read_lines(fits, 10)) == [letter * 10]
    (fault,) = read_lines(exceeds, 10)
    assert isinstance(fault, Fault)
    assert fault.message == "the line has more than max_chars=10 characters"


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=12)),
    st.text(st.characters(exclude_characters="\n\ufeff", codec="utf-8"), max_size=12),
)
def test_as_many_lines_are_read_as_are_counted(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], unended: str
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a"
    path.write_bytes("".join([*(line + "\n" for line in lines), unended]).encode())
    assert len(list(read_lines(path, 8))) == count_lines(path) == len(lines) + bool(unended)


def test_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt does not exist; give the path of a text file"):
        count_lines(tmp_path / "none.txt")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        count_lines(tmp_path)
    whole = gzip.compress(bytes(range(256)) * 50)
    for number, content in enumerate((b"plain text\n", whole[:-20], whole[:20] + b"\x00" * 20 + whole[40:])):
        path = tmp_path / f"{number}.gz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"\.gz is no complete gzip file; fetch or pack it again"):
            list(read_lines(path, 100))


def test_a_report_counts_by_kind_and_keeps_the_first_few() -> None:
    report = LineReport(LineRules(on_bad_line="skip"), num_kept=1200)
    for number in range(1, 9):
        report.bad("a.txt", number, Fault("bad_json", "the line is not JSON", "x" * 500))
    report.left_out("a.txt", 9, Fault("empty", "the line is empty"))
    assert report.num_bad == 9
    first, *rest = report.summary().splitlines()
    assert first == "1,200 lines kept, 9 left out (8 bad json, 1 empty)"
    assert rest == [f'  a.txt:{number}: the line is not JSON: "{"x" * 80}"' for number in range(1, 6)]
    assert LineReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report


def test_reports_add_up() -> None:
    reports = [LineReport(LineRules(on_bad_line="skip"), num_kept=3, num_cut=1) for _ in range(2)]
    for number in range(1, 5):
        reports[0].bad("a.txt", number, Fault("empty", "the line is empty"))
        reports[1].bad("b.txt", number, Fault("bad_json", "the line is not JSON"))
    reports[1].bad("b.txt", 9, Fault("empty", "the line is empty"))
    both = merged_reports(reports)
    assert (both.num_kept, both.num_cut, both.counts) == (6, 2, {"empty": 5, "bad_json": 4})
    assert [(bad.file, bad.line) for bad in both.first] == [
        *(("a.txt", number) for number in range(1, 5)),
        ("b.txt", 1),
    ]
    assert both.rules == reports[0].rules


def test_under_the_rule_fail_the_first_bad_line_is_the_end() -> None:
    report = LineReport()
    with pytest.raises(DataError, match=r"^a\.txt:7: the line is empty; mend it, or set on_bad_line=skip to leave"):
        report.bad("a.txt", 7, Fault("empty", "the line is empty"))
    report.left_out("a.txt", 8, Fault("too_many_tokens", "a text has 9 tokens"))
    assert report.counts == {"too_many_tokens": 1}


def test_rules_are_checked_together() -> None:
    with pytest.raises(ConfigError) as caught:
        LineRules(on_bad_line="ignore", max_chars=0)
    assert [problem.option for problem in caught.value.problems] == ["on_bad_line", "max_chars"]
