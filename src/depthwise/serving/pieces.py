"""Token by token, what each one adds to a text."""

from collections.abc import Iterable, Sequence

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase


class TextStream:
    """The text that tokens make, as they come. Those that end a character late, or are special, add nothing."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()) -> None:
        """``before`` are tokens that the text follows, whose own text is not told again."""
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(list(before), skip_special_tokens=True)

    def step(self, token: int) -> str:
        return self._stream.step(self._tokenizer, token) or ""


def pieces_of(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> list[str]:
    """What each token of a text adds to it."""
    stream = TextStream(tokenizer)
    return [stream.step(int(token)) for token in ids]


def text_behind(tokenizer: PreTrainedTokenizerBase, before: Sequence[int], ids: Sequence[int]) -> str:
    """The text of tokens, with the blank between it and the text that it follows where there is one."""
    if not before:
        alone = tokenizer.decode(list(ids), skip_special_tokens=True)
        assert isinstance(alone, str)
        return alone
    whole, first = (tokenizer.decode(part, skip_special_tokens=True) for part in ([*before, *ids], list(before)))
    assert isinstance(whole, str)
    assert isinstance(first, str)
    if whole.startswith(first):
        return whole[len(first) :]
    return text_behind(tokenizer, (), ids)


def check_text(text: str, name: str) -> None:
    """``ValueError`` where a text is none: half of a pair of surrogates, which JSON can write but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a character at place {error.start}; write it whole") from None
