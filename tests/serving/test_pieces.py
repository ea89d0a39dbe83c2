"""What each token adds to a text, for every kind of tokenizer."""

import pytest

from depthwise.data import Example, TokenizerOptions
from depthwise.data.tokenizers import encoded
from depthwise.serving.pieces import TextStream, check_text, pieces_of, text_behind

TEXTS = ["the cat sat", "the dog, the cat", "ein Käfer läuft", "日本語 text", "thé 😀 cat"]


@pytest.fixture(scope="module", params=["bpe", "unigram", "word", "char", "byte"])
def tokenizer(request: pytest.FixtureRequest) -> object:
    from depthwise.data import LineRules, train_tokenizers

    class Texts:
        name, num_texts = "texts", 1

        def examples(self, report: object) -> object:
            return (Example((text,), None, "texts", number) for number, text in enumerate(TEXTS * 4))

        def num_lines(self) -> int:
            return 4 * len(TEXTS)

    options = TokenizerOptions(kind=request.param, vocab_size=300 if request.param == "byte" else 60)
    return train_tokenizers(Texts(), options, LineRules("skip", 1000), joint=True).source  # type: ignore[arg-type]


def test_pieces_make_the_text(tokenizer: object) -> None:
    for text in TEXTS:
        (ids,) = encoded(tokenizer, [text])  # type: ignore[arg-type]
        pieces = pieces_of(tokenizer, ids)  # type: ignore[arg-type]
        assert len(pieces) == len(ids)
        assert pieces[-1] == ""
        assert "".join(pieces) == text_behind(tokenizer, (), ids)  # type: ignore[arg-type]


def test_a_text_behind_another(tokenizer: object) -> None:
    """Has the blank that stands between them."""
    for text in TEXTS:
        (ids,) = encoded(tokenizer, [text])  # type: ignore[arg-type]
        for cut in range(1, len(ids)):
            before, after = ids[:cut], ids[cut:]
            whole, first = (text_behind(tokenizer, (), part) for part in (ids, before))  # type: ignore[arg-type]
            behind = text_behind(tokenizer, before, after)  # type: ignore[arg-type]
            if whole.startswith(first):
                assert first + behind == whole
                stream = TextStream(tokenizer, before)  # type: ignore[arg-type]
                streamed = "".join(stream.step(token) for token in after)
                assert streamed == behind or "�" in streamed + behind + first


def test_half_a_character() -> None:
    check_text("whole 😀", "input")
    with pytest.raises(ValueError, match="input has half a character at place 1; write it whole"):
        check_text("a\ud800", "input")
