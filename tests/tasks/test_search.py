"""What a search may not do: a scripted decoder, and beams that would repeat themselves if they could."""

import math
from typing import Any

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Float, Tensor
from depthwise.tasks import Translation
from depthwise.tasks.search import NoRepeatedNgram, until_end

from .conftest import with_generation

END = 0


def forbidden(size: int, *ids: int) -> set[int]:
    """What may not follow these tokens, by what the processor does to even scores over ten types."""
    scores = torch.zeros(1, 10)
    blocked = NoRepeatedNgram(size, END)(torch.tensor([[END, *ids]]), scores)
    assert not scores.isneginf().any()
    return set(blocked[0].isneginf().nonzero().flatten().tolist())


def test_exactly_the_third_token_of_a_repeated_trigram_is_forbidden() -> None:
    assert forbidden(3, 1, 2, 3, 1, 2) == {3}
    assert forbidden(3, 1, 2, 3, 1) == set()
    assert forbidden(3, 1, 2, 3, 2, 1) == set()
    assert forbidden(3, 1, 2, 3, 1, 2, 4, 1, 2) == {3, 4}
    assert forbidden(3, 5, 5) == set()
    assert forbidden(3, 5, 5, 5) == {5}
    assert forbidden(2, 1, 2, 1) == {2}


def test_a_text_may_always_end() -> None:
    """Decoders start from the end of a sequence, which must not count as a token that occurred."""
    assert forbidden(1, 3, 4) == {3, 4}
    plain = NoRepeatNGramLogitsProcessor(1)(torch.tensor([[END, 3]]), torch.zeros(1, 10))
    assert plain[0, END].isneginf()


def test_rows_are_blocked_each_for_itself() -> None:
    ids = torch.tensor([[END, 1, 2, 3, 1, 2], [END, 1, 2, 4, 1, 3]])
    blocked = NoRepeatedNgram(3, END)(ids, torch.zeros(2, 10))
    assert blocked.isneginf().nonzero().tolist() == [[0, 3]]


def test_tokens_behind_the_end_do_not_count() -> None:
    tokens = torch.tensor([[5, 0, 0], [0, 5, 5], [5, 6, 7]])
    assert until_end(tokens, 0).tolist() == [[True, True, False], [True, False, False], [True, True, True]]


class Loop(DepthwiseForSeq2SeqLM):
    """Wants to say a b c a b c … and, where it may not, d rather than end. Remembers what was found."""

    cycle: tuple[int, int, int, int]
    found: list[int]

    def wishes(self, last: int) -> Float[Tensor, "V"]:
        """Scores of the token behind ``last``."""
        a, b, c, d = self.cycle
        logits = torch.full((self.config.vocab_size,), -50.0)
        logits[{a: b, b: c, c: a}.get(last, a)] = 4.0
        logits[d] = 1.0
        logits[self.config.eos_token_id] = -1.0
        return logits

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        logits = torch.stack([self.wishes(last) for last in kwargs["decoder_input_ids"][:, -1].tolist()])
        return output.replaced(logits=logits.unsqueeze(1))

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        output = super().generate(*args, **kwargs)
        self.found = output.sequences[0, 1:].tolist()
        return output


def best_without_repeats(model: Loop, limit: int, size: int) -> list[int]:
    """The text of at most ``limit`` tokens with the best mean log-probability, by trying all of them."""
    end = int(model.config.eos_token_id)
    log_probs = {last: model.wishes(last).log_softmax(-1).tolist() for last in (end, *model.cycle)}
    best: tuple[float, list[int]] = (-math.inf, [])

    def go_on(text: list[int], total: float) -> None:
        nonlocal best
        last = text[-1] if text else end
        best = max(best, ((total + log_probs[last][end]) / (len(text) + 1), [*text, end]))
        if len(text) + 1 == limit:
            return
        for token in model.cycle:
            longer = [*text, token]
            grams = list(zip(*(longer[start:] for start in range(size)), strict=False))
            if not size or len(set(grams)) == len(grams):
                go_on(longer, total + log_probs[last][token])

    go_on([], 0.0)
    return best[1]


@pytest.mark.parametrize("size", [0, 2, 3])
def test_beams_find_the_best_text_that_repeats_no_ngram(translation: Translation, size: int) -> None:
    vocabulary = translation.tokenizers.target.get_vocab()
    model = Loop(translation.model_config()).eval()
    model.cycle = a, b, c, _ = (vocabulary["a"], vocabulary["b"], vocabulary["c"], vocabulary["<unk>"])
    task = with_generation(translation, num_beams=30, no_repeat_ngram=size, max_factor=0.0, max_extra=8)
    task.predict(model, task.collate(task.rows([("a b c",)])))
    assert model.found == best_without_repeats(model, 8, size)
    assert (model.found[:6] == [a, b, c, a, b, c]) == (size == 0)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_few_beams_repeat_no_trigram_either(translation: Translation, num_beams: int) -> None:
    vocabulary = translation.tokenizers.target.get_vocab()
    model = Loop(translation.model_config()).eval()
    model.cycle = (vocabulary["a"], vocabulary["b"], vocabulary["c"], vocabulary["<unk>"])
    repeats = {}
    for size in (0, 3):
        task = with_generation(translation, num_beams=num_beams, no_repeat_ngram=size, max_factor=0.0, max_extra=11)
        task.predict(model, task.collate(task.rows([("a b c",)])))
        found = list(zip(model.found, model.found[1:], model.found[2:], strict=False))
        repeats[size] = len(found) - len(set(found))
    assert repeats[0] > 0
    assert repeats[3] == 0
