"""Text files line by line, and an account of the lines that are not as they should be.

A line ends in a newline, with or without a carriage return before it, and in nothing else: a lone carriage return or
one of Unicode's separators stays inside its line, so that two sides of a translation cannot get out of step. Nothing
here holds more than one line; a line that is too long is passed over without being kept.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from depthwise.errors import ConfigError, DataError, Problem

ON_BAD_LINE = ("fail", "skip")
NUM_KEPT = 5
"""How many bad lines a report keeps word by word."""
SHOWN = 80
"""How many characters of a bad line are kept."""
BYTES_PER_CHARACTER = 4
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLOCK = 1 << 20


@dataclass(frozen=True)
class LineRules:
    """What a line must be like, and what happens to one that is not."""

    on_bad_line: str = "fail"
    """``fail`` ends with an error that names the first bad line; ``skip`` leaves bad lines out and counts them."""
    max_chars: int = 100_000
    """The most characters a line may have."""

    def __post_init__(self) -> None:
        problems = []
        if self.on_bad_line not in ON_BAD_LINE:
            problems.append(Problem("on_bad_line", f'"{self.on_bad_line}" is none of {", ".join(ON_BAD_LINE)}'))
        if self.max_chars < 1:
            problems.append(Problem("max_chars", f"{self.max_chars} leaves no line; give at least 1"))
        if problems:
            raise ConfigError("data", problems)


@dataclass(frozen=True, slots=True)
class Example:
    """One item of a corpus as it was written: its texts, its label if it has one, and where it stands."""

    texts: tuple[str, ...]
    label: str | None
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a line, in a word to count by and in a sentence to read."""

    kind: str
    message: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A fault and the place where it was found."""

    file: str
    line: int
    kind: str
    message: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass
class LineReport:
    """How many lines were kept, cut and left out, the last by kind, with the first few word by word."""

    rules: LineRules = field(default_factory=LineRules)
    num_kept: int = 0
    num_cut: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: list[BadLine] = field(default_factory=list)

    @property
    def num_bad(self) -> int:
        return sum(self.counts.values())

    def bad(self, file: str | Path, line: int, fault: Fault) -> None:
        """Take note of a line that is malformed; under the rule ``fail`` this is the end."""
        if self.rules.on_bad_line == "fail":
            raise DataError(f"{file}:{line}: {fault.message}; mend it, or set on_bad_line=skip to leave such lines out")
        self.left_out(file, line, fault)

    def left_out(self, file: str | Path, line: int, fault: Fault) -> None:
        """Take note of a line that an option leaves out, whatever the rule for malformed ones."""
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        if len(self.first) < NUM_KEPT:
            self.first.append(BadLine(str(file), line, fault.kind, fault.message, fault.text[:SHOWN]))

    def summary(self) -> str:
        """One line with the totals, then the first lines that were left out, one each."""
        kinds = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in sorted(self.counts.items()))
        total = f"{self.num_kept:,} lines kept, {self.num_bad:,} left out" + (f" ({kinds})" if kinds else "")
        cut = f", {self.num_cut:,} cut short" if self.num_cut else ""
        return "\n".join([total + cut, *(f"  {bad}" + (f': "{bad.text}"' if bad.text else "") for bad in self.first)])

    def as_dict(self) -> dict[str, Any]:
        """As plain data for a JSON file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LineReport":
        """The report that ``as_dict`` wrote."""
        return cls(
            rules=LineRules(**values["rules"]),
            num_kept=int(values["num_kept"]),
            num_cut=int(values["num_cut"]),
            counts=dict(values["counts"]),
            first=[BadLine(**bad) for bad in values["first"]],
        )


def merged_reports(reports: Sequence[LineReport]) -> LineReport:
    """One report on the lines of all of them, whose rules are the same."""
    counts: dict[str, int] = {}
    for kind, count in (item for report in reports for item in report.counts.items()):
        counts[kind] = counts.get(kind, 0) + count
    return LineReport(
        rules=reports[0].rules,
        num_kept=sum(report.num_kept for report in reports),
        num_cut=sum(report.num_cut for report in reports),
        counts=counts,
        first=[bad for report in reports for bad in report.first][:NUM_KEPT],
    )


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The bytes of a file, unpacked if its name ends in ``.gz``. Whatever goes wrong names the file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give the path of a text file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path} is no complete gzip file; fetch or pack it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; give the path of a text file") from None


def count_lines(path: Path) -> int:
    """How many lines ``read_lines`` gives; the last one need not end in a newline."""
    count, last = 0, b"\n"
    with opened(path) as file:
        block = file.read(BLOCK).removeprefix(BYTE_ORDER_MARK)
        while block:
            count += block.count(b"\n")
            last, block = block, file.read(BLOCK)
    return count + (not last.endswith(b"\n"))


def read_lines(path: Path, max_chars: int) -> Iterator[str | Fault]:
    """Every line without its end, or what is wrong with it."""
    limit = BYTES_PER_CHARACTER * max_chars + len(BYTE_ORDER_MARK) + len(b"\r\n")
    with opened(path) as file:
        raw = file.readline(limit).removeprefix(BYTE_ORDER_MARK)
        while raw:
            ended = raw.endswith(b"\n")
            line = _decoded(raw, max_chars)
            while not ended and (rest := file.readline(limit)):
                ended = rest.endswith(b"\n")
                line = _over_long(raw.decode(errors="replace"), max_chars)
            yield line
            raw = file.readline(limit)


def _decoded(raw: bytes, max_chars: int) -> str | Fault:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        return Fault("bad_utf8", f"byte {error.start + 1} of the line is not UTF-8", raw.decode(errors="replace"))
    if len(text) > max_chars:
        return _over_long(text, max_chars)
    return text if text.strip() else Fault("empty", "the line is empty")


def _over_long(text: str, max_chars: int) -> Fault:
    return Fault("over_long", f"the line has more than max_chars={max_chars:,} characters", text[:SHOWN])
