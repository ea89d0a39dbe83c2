"""Commands in the middle of sentences and tables."""

import pytest

from .blocks import BadBlock, Span, pages, read_page, spans_of
from .spans import check_span


@pytest.mark.parametrize("page", pages())
def test_what_a_page_names_exists(page: str) -> None:
    problems = []
    for span in spans_of(page, read_page(page)):
        try:
            check_span(span)
        except BadBlock as error:
            problems.append(str(error))
    assert problems == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depthwise evalute RUN", "there is no command evalute"),
        ("depthwise evaluate RUN --dept 3", "there is no option --dept"),
        ("depthwise convert fairseq|onnx SRC DST", r"there is no command fairseq\|onnx"),
        ("depthwise train start/clasify --out RUN", "did you mean start/classify"),
        ("train start/tag training.epochs=6", r"training\.epochs +unknown option"),
        ("python benchmarks/mixers.py --lenghts 3", "has no option --lenghts"),
        ("benchmarks/mixer.py", "does not exist"),
        ("translation/multi30k-nothing", "there is no such recipe"),
        ("classification/faster-{trec,nothing}-mi", "there is no such recipe"),
        ("translation/nothing-*", "there is no such recipe"),
        ("src/depthwise/nothing.py", "there is no such file"),
    ],
)
def test_what_does_not_exist(text: str, message: str) -> None:
    with pytest.raises(BadBlock, match=message):
        check_span(Span("docs/some.md", 3, text))


@pytest.mark.parametrize(
    "text",
    [
        "depthwise evaluate RUN [--depth trained|full|N|policy] [--lossless E] [--split test]",
        "depthwise train RECIPE [section.option=value ...] --out RUN",
        "depthwise convert fairseq|hf SRC DST",
        "classification/faster-{trec,mr}-mi",
        "translation/dat-DATA-ROW",
        "model.use_gates('hard')",
    ],
)
def test_what_is_fine(text: str) -> None:
    check_span(Span("docs/some.md", 3, text))
