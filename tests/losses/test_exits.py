"""The loss of many exits against the plain sum of the losses of each."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from depthwise.config import AdaptiveConfig
from depthwise.errors import InputError
from depthwise.losses import (
    IGNORED,
    ExitLoss,
    ExitTargets,
    TeacherScores,
    exit_cross_entropy,
    label_smoothed_cross_entropy,
    number_exits,
    student_divergence,
    summed_over_items,
    teacher_divergence,
)
from depthwise.models.adaptive import AdaptiveHead
from depthwise.models.language_head import HeadTransform, LanguageHead

ROWS, STEPS, WIDTH, NUM_TYPES, NUM_EXITS = 2, 5, 4, 11, 3
LABELS = torch.tensor([[1, IGNORED, 0, 10, 3], [2, 2, 7, IGNORED, IGNORED]])
NUM_LABELS = 7
CHOSEN = torch.tensor([[0, 1, 2, 1, 1], [2, 0, 2, 0, -1]])


def some_states(num_exits: int = NUM_EXITS, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return tuple(torch.randn(ROWS, STEPS, WIDTH, dtype=dtype).requires_grad_() for _ in range(num_exits))


def some_heads(tied: bool, num_exits: int = NUM_EXITS, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    def head() -> LanguageHead:
        return LanguageHead(NUM_TYPES, WIDTH, bias=True, transform=HeadTransform(WIDTH, WIDTH, "gelu", 1e-5)).to(dtype)

    return [head()] * num_exits if tied else [head() for _ in range(num_exits)]


def params_of(heads: Sequence[nn.Module]) -> list[nn.Parameter]:
    return list(dict.fromkeys(param for head in heads for param in head.parameters()))


def gradients(loss: Tensor, states: Sequence[Tensor], heads: Sequence[nn.Module]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, [*states, *params_of(heads)], allow_unused=True, retain_graph=True)


def assert_same(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], **tolerance: float) -> None:
    """Equal, where no gradient is as good as one of zeros."""
    for ours, plain in zip(found, expected, strict=True):
        if ours is None or plain is None:
            assert all(gradient is None or not gradient.any() for gradient in (ours, plain))
        elif tolerance:
            torch.testing.assert_close(ours, plain, **tolerance)
        else:
            assert torch.equal(ours, plain)


def plain_mean(states: Sequence[Tensor], heads: Sequence[nn.Module], num_items: int | None = None) -> Tensor:
    """The cross-entropy of all exits, each with the same weight."""
    losses = [
        label_smoothed_cross_entropy(head(state), LABELS, 0.0, num_items).loss
        for state, head in zip(states, heads, strict=True)
    ]
    return torch.stack(losses).mean()


CLOSE = {"rtol": 1e-10, "atol": 1e-12}


class CallCounter(nn.Module):
    """A head that counts the chunks it has scored."""

    def __init__(self) -> None:
        super().__init__()
        self.scored, self.num_calls = nn.Linear(WIDTH, NUM_TYPES, dtype=torch.float64), 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.num_calls += len(hidden) > 0
        return self.scored(hidden)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("smoothing", "over_others"), [(0.0, False), (0.1, False), (0.3, True)])
@pytest.mark.parametrize("tokens_at_once", [1, 3, None])
@pytest.mark.parametrize("num_items", [None, 5, torch.tensor(100)])
def test_it_is_the_weighted_sum_of_all_exits(
    tied: bool, smoothing: float, over_others: bool, tokens_at_once: int | None, num_items: Tensor | int | None
) -> None:
    states, heads, weights = some_states(), some_heads(tied), [1.0, 0.5, 2.0]
    found = exit_cross_entropy(
        states,
        heads,
        LABELS,
        weights,
        num_items,
        targets=ExitTargets(smoothing=smoothing, over_others=over_others),
        tokens_at_once=tokens_at_once,
    )
    plain = [
        label_smoothed_cross_entropy(head(state), LABELS, smoothing, num_items, over_others=over_others)
        for state, head in zip(states, heads, strict=True)
    ]
    expected = sum(weight / 3.5 * one.loss for weight, one in zip(weights, plain, strict=True))
    torch.testing.assert_close(found.loss, expected, **CLOSE)
    assert_same(gradients(found.loss, states, heads), gradients(expected, states, heads), **CLOSE)
    torch.testing.assert_close(found.nll_sums, torch.stack([one.nll_sum for one in plain]), **CLOSE)
    assert not found.nll_sums.requires_grad
    assert found.num_tokens.tolist() == [NUM_LABELS] * NUM_EXITS
    assert found.statistics is None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("num_items", [None, 5, torch.tensor(1000)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_last_exit_alone_is_the_ordinary_loss(
    tied: bool, smoothing: float, num_items: Tensor | int | None, dtype: torch.dtype
) -> None:
    """Bit for bit, gradients included, at any scale."""
    states, heads = some_states(dtype=dtype), some_heads(tied, dtype=dtype)
    expected = label_smoothed_cross_entropy(heads[-1](states[-1]), LABELS, smoothing, num_items).loss
    for weights in ([0.0, 0.0, 1.0], [0.0, 0.0, 0.37], torch.tensor([0.0, 0.0, 5.0])):
        found = exit_cross_entropy(states, heads, LABELS, weights, num_items, targets=ExitTargets(smoothing=smoothing))
        assert torch.equal(found.loss, expected)
        assert_same(gradients(found.loss, states, heads), gradients(expected, states, heads))


def test_the_scale_of_weights_does_not_matter() -> None:
    states, heads = some_states(), some_heads(tied=True)
    one, other = (exit_cross_entropy(states, heads, LABELS, [scale, 2 * scale, 4 * scale]).loss for scale in (1.0, 3.0))
    assert torch.equal(one, other)
    assert_same(gradients(one, states, heads), gradients(other, states, heads))


def test_weights_in_a_tensor() -> None:
    """Nobody looks at them: an exit that weighs 0 has no gradient but is there."""
    states, heads = some_states(), some_heads(tied=False)
    weights = torch.tensor([1.0, 0.0, 3.0], requires_grad=True)
    found = exit_cross_entropy(states, heads, LABELS, weights)
    expected = exit_cross_entropy(states, heads, LABELS, [1.0, 0.0, 3.0])
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    assert found.loss.dtype == torch.float64
    assert_same(gradients(found.loss, states, heads), gradients(expected.loss, states, heads), **CLOSE)
    assert torch.autograd.grad(found.loss, weights, allow_unused=True) == (None,)
    assert found.num_tokens.tolist() == [NUM_LABELS] * 3
    assert expected.num_tokens.tolist() == [NUM_LABELS, 0, NUM_LABELS]


def test_exits_without_weight_are_skipped() -> None:
    heads = [CallCounter() for _ in range(3)]
    found = exit_cross_entropy(some_states(), heads, LABELS, [0.0, 1.0, 0.0], tokens_at_once=4)
    assert [head.num_calls for head in heads] == [0, 3, 0]
    assert found.num_tokens.tolist() == [0, NUM_LABELS, 0]
    assert found.nll_sums[[0, 2]].tolist() == [0.0, 0.0]
    exit_cross_entropy(some_states(), heads, LABELS, [0.0, 1.0, 0.0], tokens_at_once=4, statistics=True)
    assert [head.num_calls for head in heads] == [3, 6, 3]


@pytest.mark.parametrize("tokens_at_once", [3, None])
@pytest.mark.parametrize("targets", [ExitTargets(), ExitTargets(smoothing=0.2), ExitTargets(from_last=1.0)])
def test_statistics(tokens_at_once: int | None, targets: ExitTargets) -> None:
    """Of all exits, those without weight included, whatever they learn from."""
    states, heads, weights = some_states(), some_heads(tied=False), [0.0, 1.0, 0.0]
    options: dict[str, Any] = {"targets": targets, "tokens_at_once": tokens_at_once}
    found = exit_cross_entropy(states, heads, LABELS, weights, statistics=True, **options)
    assert found.statistics is not None
    nll, guesses, correct = found.statistics
    log_probs = torch.stack([head(state).log_softmax(-1) for head, state in zip(heads, states, strict=True)]).detach()
    is_counted = LABELS != IGNORED
    expected = -log_probs.gather(-1, LABELS.clamp(min=0).expand(3, -1, -1).unsqueeze(-1)).squeeze(-1) * is_counted
    torch.testing.assert_close(nll, expected, **CLOSE)
    torch.testing.assert_close(found.nll_sums, expected.sum((1, 2)), **CLOSE)
    assert torch.equal(guesses, log_probs.argmax(-1))
    assert torch.equal(correct, (log_probs.argmax(-1) == LABELS) & is_counted)
    assert not nll.requires_grad
    without = exit_cross_entropy(states, heads, LABELS, weights, **options)
    assert torch.equal(found.loss, without.loss)
    assert_same(gradients(found.loss, states, heads), gradients(without.loss, states, heads))


def test_some_guesses_are_right() -> None:
    states, head = some_states(1), some_heads(tied=True)[0]
    guesses = head(states[0]).argmax(-1)
    labels = torch.where(CHOSEN > 0, guesses, (guesses + 1) % NUM_TYPES)
    found = exit_cross_entropy(states, [head], labels, [1.0], statistics=True)
    assert found.statistics is not None
    assert torch.equal(found.statistics.correct[0], CHOSEN > 0)


# Mixed


def mixed(states: Sequence[Tensor], heads: Sequence[nn.Module], smoothing: float) -> tuple[Tensor, list[Tensor]]:
    """The loss of every token at the exit it chose, one by one, and the nll of each exit."""
    nlls = [torch.zeros((), dtype=torch.float64) for _ in states]
    total = torch.zeros((), dtype=torch.float64)
    for row, step in (LABELS != IGNORED).nonzero().tolist():
        index = int(CHOSEN[row, step])
        one = label_smoothed_cross_entropy(
            heads[index](states[index][row, step]).unsqueeze(0), LABELS[row, step].unsqueeze(0), smoothing, 1
        )
        total = total + one.loss
        nlls[index] = nlls[index] + one.nll_sum
    return total / NUM_LABELS, nlls


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens_at_once", [3, None])
@pytest.mark.parametrize("statistics", [False, True])
def test_every_token_counts_where_it_chose(
    tied: bool, smoothing: float, tokens_at_once: int | None, statistics: bool
) -> None:
    states, heads = some_states(), some_heads(tied)
    targets = ExitTargets(smoothing=smoothing)
    found = exit_cross_entropy(
        states,
        heads,
        LABELS,
        chosen=CHOSEN,
        targets=targets,
        tokens_at_once=tokens_at_once,
        statistics=statistics,
    )
    expected, nlls = mixed(states, heads, smoothing)
    torch.testing.assert_close(found.loss, expected, **CLOSE)
    assert_same(gradients(found.loss, states, heads), gradients(expected, states, heads), **CLOSE)
    torch.testing.assert_close(found.nll_sums, torch.stack(nlls), **CLOSE)
    assert found.num_tokens.tolist() == [2, 2, 3]
    if statistics:
        aligned = exit_cross_entropy(states, heads, LABELS, [1.0] * 3, statistics=True)
        assert found.statistics is not None
        assert aligned.statistics is not None
        assert_same(found.statistics, aligned.statistics, **CLOSE)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("index", [0, 2])
def test_tokens_that_all_chose_the_same_exit(tied: bool, index: int) -> None:
    """Exactly the ordinary loss at that exit."""
    states, heads = some_states(dtype=torch.float32), some_heads(tied, dtype=torch.float32)
    found = exit_cross_entropy(states, heads, LABELS, None, 5, chosen=torch.full_like(LABELS, index)).loss
    expected = label_smoothed_cross_entropy(heads[index](states[index]), LABELS, 0.0, 5).loss
    assert torch.equal(found, expected)
    assert_same(gradients(found, states, heads), gradients(expected, states, heads))


def test_one_head_scores_a_choice_once() -> None:
    head = CallCounter()
    exit_cross_entropy(some_states(), [head] * 3, LABELS, chosen=CHOSEN)
    assert head.num_calls == 1


# A teacher


@pytest.mark.parametrize("tokens_at_once", [3, None])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("last", [0.0, 2.0])
@pytest.mark.parametrize(("share", "divergence"), [(1.0, "student"), (0.3, "student"), (0.6, "teacher")])
def test_exits_learn_from_the_last(
    tokens_at_once: int | None, tied: bool, last: float, share: float, divergence: str
) -> None:
    states, heads = some_states(), some_heads(tied)
    found = exit_cross_entropy(
        states,
        heads,
        LABELS,
        [1.0, 3.0, last],
        targets=ExitTargets(smoothing=0.1, from_last=share, divergence=divergence),
        tokens_at_once=tokens_at_once,
    )
    scores = [head(state)[LABELS != IGNORED] for head, state in zip(heads, states, strict=True)]
    teacher = scores[-1].log_softmax(-1).detach()
    diverge = {"student": student_divergence, "teacher": teacher_divergence}[divergence]
    taught = [diverge(one.log_softmax(-1), teacher).mean() for one in scores[:2]]
    told = [label_smoothed_cross_entropy(head(x), LABELS, 0.1).loss for head, x in zip(heads, states, strict=True)]
    parts = [share * taught[exit_] + (1 - share) * told[exit_] for exit_ in range(2)]
    expected = (parts[0] + 3 * parts[1] + last * told[2]) / (4 + last)
    torch.testing.assert_close(found.loss, expected, **CLOSE)
    assert_same(gradients(found.loss, states, heads), gradients(expected, states, heads), **CLOSE)
    assert found.num_tokens.tolist() == [NUM_LABELS] * 3


def test_choice_and_teacher() -> None:
    states, heads = some_states(), some_heads(tied=True)
    found = exit_cross_entropy(states, heads, LABELS, chosen=CHOSEN, targets=ExitTargets(from_last=1.0))
    log_probs = torch.stack([head(state).log_softmax(-1) for head, state in zip(heads, states, strict=True)])
    by_exit = [student_divergence(one, log_probs[-1]) for one in log_probs[:2]]
    by_exit.append(F.cross_entropy(log_probs[-1].movedim(-1, 1), LABELS, reduction="none"))
    is_here = (torch.arange(3).view(-1, 1, 1) == CHOSEN) & (LABELS != IGNORED)
    expected = (torch.stack(by_exit) * is_here).sum() / NUM_LABELS
    torch.testing.assert_close(found.loss, expected, **CLOSE)
    assert_same(gradients(found.loss, states, heads), gradients(expected, states, heads), **CLOSE)


# Heads in bands


def banded() -> AdaptiveHead:
    return AdaptiveHead(NUM_TYPES, WIDTH, AdaptiveConfig(cutoffs=(3, 6), factor=2)).double()


@pytest.mark.parametrize("tokens_at_once", [3, None])
@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("mixes", [False, True])
def test_heads_in_bands(tokens_at_once: int | None, statistics: bool, mixes: bool) -> None:
    states, heads = some_states(), [banded()] * 3 if mixes else [banded() for _ in range(3)]
    how: dict[str, Any] = {"chosen": CHOSEN} if mixes else {"weights": [1.0, 0.0, 2.0]}
    how |= {"statistics": statistics, "tokens_at_once": tokens_at_once}
    found = exit_cross_entropy(states, heads, LABELS, **how, in_bands=True)
    by_scores = exit_cross_entropy(states, heads, LABELS, **how)
    torch.testing.assert_close(found.loss, by_scores.loss, **CLOSE)
    assert_same(gradients(found.loss, states, heads), gradients(by_scores.loss, states, heads), **CLOSE)
    assert_same(found[1:3], by_scores[1:3], **CLOSE)
    if statistics:
        assert found.statistics is not None
        assert by_scores.statistics is not None
        assert_same(found.statistics, by_scores.statistics, **CLOSE)


def test_bands_are_not_scored_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = AdaptiveHead.log_prob
    monkeypatch.setattr(AdaptiveHead, "log_prob", lambda head, x: calls.append(len(x)) or whole(head, x))
    exit_cross_entropy(some_states(), [banded()] * 3, LABELS, [1.0] * 3, in_bands=True)
    exit_cross_entropy(some_states(), [banded()] * 3, LABELS, chosen=CHOSEN, in_bands=True)
    assert set(calls) == {0}
    exit_cross_entropy(some_states(), [banded()] * 3, LABELS, [1.0] * 3, in_bands=True, statistics=True)
    assert calls.count(ROWS * STEPS) == 3


def test_smoothed_bands() -> None:
    states, heads = some_states(), [banded()] * 3
    targets = ExitTargets(smoothing=0.1)
    found = exit_cross_entropy(states, heads, LABELS, [1.0, 1.0, 1.0], targets=targets, in_bands=True).loss
    expected = sum(label_smoothed_cross_entropy(heads[0](state), LABELS, 0.1).loss for state in states) / 3
    torch.testing.assert_close(found, expected, **CLOSE)
    assert_same(gradients(found, states, heads), gradients(expected, states, heads), **CLOSE)


# What learns


def test_without_gradients() -> None:
    states, heads = some_states(), some_heads(tied=True)
    expected = exit_cross_entropy(states, heads, LABELS, [1.0] * 3).loss
    with torch.no_grad():
        found = exit_cross_entropy(states, heads, LABELS, [1.0] * 3).loss
    assert not found.requires_grad
    assert torch.equal(found, expected)


@pytest.mark.parametrize("frozen", ["states", "heads", "both", "one head"])
def test_what_is_frozen_has_no_gradient(frozen: str) -> None:
    """DeeBERT freezes the stack and trains its exits."""
    states, heads = some_states(), some_heads(tied=False)
    if frozen in ("states", "both"):
        states = tuple(state.detach() for state in states)
    for head in heads[:1] if frozen == "one head" else heads if frozen in ("heads", "both") else []:
        head.requires_grad_(False)
    seen = set()
    for head in heads:
        head.register_forward_hook(lambda _, given, scores: seen.add(given[0].requires_grad) if len(scores) else None)
    losses = [exit_cross_entropy(states, heads, LABELS, [1.0] * 3).loss, plain_mean(states, heads)]
    assert [loss.requires_grad for loss in losses] == [frozen != "both"] * 2
    assert seen == {frozen in ("heads", "one head")}
    wanted = [tensor for tensor in (*states, *params_of(heads)) if tensor.requires_grad]
    if wanted:
        assert_same(*(torch.autograd.grad(loss, wanted) for loss in losses), **CLOSE)


def test_gradients_pass_on_what_comes_from_above() -> None:
    """Through states that come from elsewhere, times a factor, twice, and beside another use of the parameters."""
    states, heads = some_states(), some_heads(tied=True)

    def gradients_by(loss: Callable[[tuple[Tensor, ...]], Tensor]) -> list[Tensor]:
        deeper = tuple((state * 2).tanh() for state in states)
        above = loss(deeper).square() * 3 + heads[0].weight.square().sum() + deeper[1].sum()
        first = gradients(above, states, heads)
        assert_same(first, gradients(above, states, heads))
        return [gradient for gradient in first if gradient is not None]

    found = gradients_by(lambda deeper: exit_cross_entropy(deeper, heads, LABELS, [1.0] * 3).loss)
    expected = gradients_by(lambda deeper: plain_mean(deeper, heads))
    assert_same(found, expected, **CLOSE)


def test_heads_with_dropout() -> None:
    """Gradients belong to the masks that the loss was computed with."""
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, NUM_TYPES, dtype=torch.float64))
    states, results = some_states(1), []
    for loss in (
        lambda: exit_cross_entropy(states, [head], LABELS, [1.0]).loss,
        lambda: label_smoothed_cross_entropy(head(states[0]), LABELS, 0.0).loss,
    ):
        torch.manual_seed(5)
        found = loss()
        results.append((found, *gradients(found, states, [head])))
    assert_same(*results)


def test_autocast() -> None:
    states, heads = some_states(dtype=torch.float32), some_heads(tied=True, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert heads[0](states[0]).dtype == torch.bfloat16
        found = exit_cross_entropy(states, heads, LABELS, [0.0, 0.0, 1.0]).loss
        expected = label_smoothed_cross_entropy(heads[-1](states[-1]), LABELS, 0.0).loss
    assert torch.equal(found, expected)
    assert_same(gradients(found, states, heads), gradients(expected, states, heads))
    with torch.autocast("cpu", torch.bfloat16):
        found = exit_cross_entropy(states, heads, LABELS, [1.0, 1.0, 1.0], tokens_at_once=3).loss
        expected = plain_mean(states, heads)
    assert_same(gradients(found, states, heads), gradients(expected, states, heads), rtol=0.02, atol=0.002)


def test_float16_does_not_lose_small_gradients() -> None:
    """With a million items a gradient has the size of 10⁻⁷; a scaler multiplies it only after the loss."""
    states, heads, scale = some_states(dtype=torch.float16), some_heads(tied=True, dtype=torch.float16), 2.0**20
    found = exit_cross_entropy(states, heads, LABELS, [1.0] * 3, 2**20 + 1).loss * scale
    exact_states, exact_heads = (
        tuple(state.detach().double().requires_grad_() for state in states),
        some_heads(tied=True),
    )
    exact_heads[0].load_state_dict(heads[0].state_dict())
    exact = gradients(plain_mean(exact_states, exact_heads, 2**20 + 1) * scale, exact_states, exact_heads)
    assert_same([gradient.double() for gradient in gradients(found, states, heads)], exact, rtol=0.05, atol=0.01)


def test_float16_does_not_round_sums_before_they_are_divided() -> None:
    """The gradients of three chunks add up to more than float16 can hold; their mean over tokens is small."""
    states = (torch.full((1, 3000, 2), 60.0, dtype=torch.float16, requires_grad=True),)
    head, labels = torch.nn.Linear(2, 2, bias=False).half(), torch.zeros(1, 3000, dtype=torch.long)
    torch.nn.init.zeros_(head.weight)
    exit_cross_entropy(states, [head], labels, [1.0], tokens_at_once=1000).loss.backward()
    expected = torch.tensor([[-30.0, -30.0], [30.0, 30.0]], dtype=torch.float16)
    torch.testing.assert_close(head.weight.grad, expected, rtol=1e-3, atol=0.0)


def test_without_labels_it_is_zero() -> None:
    states, heads = some_states(), some_heads(tied=True)
    for how in ({"weights": [1.0] * 3}, {"chosen": CHOSEN}):
        found = exit_cross_entropy(states, heads, torch.full_like(LABELS, IGNORED), **how)
        assert found.loss == 0
        assert not found.num_tokens.any()
        assert not any(gradient.any() for gradient in gradients(found.loss, states, heads) if gradient is not None)


def test_without_tokens() -> None:
    states, heads = tuple(state[:, :0] for state in some_states()), some_heads(tied=True)
    found = exit_cross_entropy(states, heads, LABELS[:, :0], [1.0] * 3, statistics=True)
    assert found.loss == 0
    assert found.statistics is not None
    assert found.statistics.nll.shape == (3, ROWS, 0)
    found.loss.backward()


# Memory


class Peak(TorchDispatchMode):
    """The most bytes that were alive at once of what was made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.most, self.refs = 0, 0, dict[Any, Any]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, Tensor):
                self.watch(tensor.untyped_storage())
        return found

    def watch(self, storage: torch.UntypedStorage) -> None:
        reference = weakref.ref(storage)
        if reference in self.refs:
            return
        size = storage.nbytes()
        self.refs[weakref.ref(storage, lambda gone: self.forget(gone, size))] = size
        self.alive += size
        self.most = max(self.most, self.alive)

    def forget(self, gone: Any, size: int) -> None:
        self.alive -= size
        del self.refs[gone]


def peak(num_exits: int, loss: Callable[[tuple[Tensor, ...], nn.Module], Tensor], width: int, num_types: int) -> int:
    states = tuple(torch.randn(1, 256, width).requires_grad_() for _ in range(num_exits))
    head = LanguageHead(num_types, width)
    with Peak() as tracked:
        loss(states, head).backward()
    return tracked.most


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("statistics", [False, True])
def test_memory_does_not_grow_with_exits_beyond_states(mixes: bool, statistics: bool) -> None:
    width, num_types, chunk = 4, 512, 32
    labels = torch.randint(num_types, (1, 256))

    def ours(states: tuple[Tensor, ...], head: nn.Module) -> Tensor:
        how: dict[str, Any] = {"weights": [1.0] * len(states)}
        if mixes:
            how = {"chosen": torch.arange(256).view(1, -1) % len(states)}
        heads = [head] * len(states)
        found = exit_cross_entropy(states, heads, labels, **how, tokens_at_once=chunk, statistics=statistics)
        return found.loss

    def plain(states: tuple[Tensor, ...], head: nn.Module) -> Tensor:
        return torch.stack([label_smoothed_cross_entropy(head(state), labels, 0.0).loss for state in states]).sum()

    few, many = (peak(num_exits, ours, width, num_types) for num_exits in (2, 8))
    of_states, of_scores = 256 * width * 4, 256 * num_types * 4
    assert many - few <= 6 * (2 * of_states + 256 * 24)  # gradients, also scaled, and a few numbers for every token
    assert many < 2 * of_scores
    assert peak(8, plain, width, num_types) - peak(2, plain, width, num_types) >= 6 * of_scores


# Mistakes


def test_weights_or_a_choice() -> None:
    states, heads = some_states(), some_heads(tied=True)
    for how in ({}, {"weights": [1.0] * 3, "chosen": CHOSEN}):
        with pytest.raises(InputError, match=r"^exits count by .* chose; give one of weights and chosen$"):
            exit_cross_entropy(states, heads, LABELS, **how)


@pytest.mark.parametrize("weights", [[1.0, 1.0], torch.ones(4)])
def test_a_weight_for_every_exit(weights: Any) -> None:
    message = rf"^there are {len(weights)} weights for 3 exits; give one for each$"
    with pytest.raises(InputError, match=message):
        exit_cross_entropy(some_states(), some_heads(tied=True), LABELS, weights)


@pytest.mark.parametrize("weights", [[0.0] * 3, [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0], [float("inf"), 1.0, 1.0]])
def test_weights_that_weigh_nothing(weights: list[float]) -> None:
    with pytest.raises(InputError, match=r"^weights of exits are numbers from 0 on, and not all are 0; found "):
        exit_cross_entropy(some_states(), some_heads(tied=True), LABELS, weights)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_choice_outside_the_exits(wrong: int) -> None:
    chosen = CHOSEN.clamp(min=0)
    chosen[0, 2] = wrong
    with pytest.raises(InputError, match=rf"^a token chose exit {wrong}; choose from 0 to 2, the last of the exits$"):
        exit_cross_entropy(some_states(), some_heads(tied=True), LABELS, chosen=chosen)


def test_labels_outside_the_vocabulary() -> None:
    labels = LABELS.clone()
    labels[1, 2] = NUM_TYPES
    with pytest.raises(InputError, match=rf"^labels row 1 holds {NUM_TYPES}, "):
        exit_cross_entropy(some_states(), some_heads(tied=True), labels, [1.0] * 3, tokens_at_once=2)


def test_nobody_else_teaches_a_vocabulary_or_numbers() -> None:
    targets = ExitTargets(teacher=TeacherScores(torch.zeros(2, 1, 5), 0.5, 2.0))
    with pytest.raises(InputError, match="exits with a vocabulary learn from no other model; leave the teacher out"):
        exit_cross_entropy((torch.zeros(2, 1, 4),), [nn.Linear(4, 5)], torch.zeros(2, 1).long(), [1.0], targets=targets)
    with pytest.raises(InputError, match="from another model by its classes, and numbers have none; leave it out"):
        number_exits([torch.zeros(2, 1)], torch.zeros(2), "regression", [1.0], targets=targets)


def test_bad_smoothing() -> None:
    with pytest.raises(InputError, match=r"^label smoothing is a share from 0 "):
        exit_cross_entropy(some_states(), some_heads(tied=True), LABELS, [1.0] * 3, targets=ExitTargets(smoothing=1.5))


# CUDA graphs


@pytest.mark.parametrize("how", ["numbers", "tensor", "choice"])
@pytest.mark.parametrize("targets", [ExitTargets(smoothing=0.1, over_others=True), ExitTargets(from_last=1.0)])
@pytest.mark.parametrize("statistics", [False, True])
def test_nothing_is_looked_at(how: str, targets: ExitTargets, statistics: bool) -> None:
    """Tensors of the meta device hold no values: whoever asks for one fails."""
    meta = torch.device("meta")
    states = tuple(state.detach().to(meta).requires_grad_() for state in some_states())
    heads, labels = [head.to(meta) for head in some_heads(tied=how != "numbers")], LABELS.to(meta)
    given: dict[str, Any] = {"weights": [1.0, 0.0, 2.0]}
    if how == "tensor":
        given = {"weights": torch.ones(3, device=meta)}
    elif how == "choice":
        given = {"chosen": CHOSEN.to(meta)}
    num_items = torch.tensor(7).to(meta)
    found = exit_cross_entropy(
        states, heads, labels, **given, num_items=num_items, targets=targets, statistics=statistics, tokens_at_once=4
    )
    found.loss.backward()
    assert found.loss.device == meta
    assert states[0].grad is not None


@pytest.mark.gpu
@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("targets", [ExitTargets(smoothing=0.1), ExitTargets(from_last=1.0)])
@pytest.mark.parametrize("statistics", [False, True])
def test_a_cuda_graph_repeats_it(mixes: bool, targets: ExitTargets, statistics: bool) -> None:
    """With other states, labels, weights, choices and counts than those it was recorded with."""
    head = LanguageHead(NUM_TYPES, WIDTH).cuda()
    places = {
        "states": torch.randn(3, ROWS, STEPS, WIDTH, device="cuda"),
        "labels": LABELS.cuda(),
        "num_items": torch.tensor(9, device="cuda"),
        **({"chosen": CHOSEN.clamp(min=0).cuda()} if mixes else {"weights": torch.rand(3, device="cuda") + 1}),
    }

    def run(given: dict[str, Tensor]) -> tuple[ExitLoss, tuple[Tensor | None, ...]]:
        states = tuple(state.requires_grad_() for state in given["states"].detach().unbind())
        rest = {name: value for name, value in given.items() if name != "states"}
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            found = exit_cross_entropy(
                states, [head] * 3, **rest, targets=targets, statistics=statistics, tokens_at_once=4
            )
        return found, torch.autograd.grad(found.loss, [*states, *head.parameters()])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run(places)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found, found_gradients = run(places)
    others = {name: place.flip(-1) if place.dim() else place + 5 for name, place in places.items()}
    with torch.cuda.stream(stream):  # where the head's gradients were first computed
        expected, expected_gradients = run(others)
    torch.cuda.current_stream().wait_stream(stream)
    for name, place in places.items():
        place.copy_(others[name])
    graph.replay()
    assert summed_over_items(expected.loss, 1, 1) > 0
    assert_same(found[:3], expected[:3])
    assert_same(found_gradients, expected_gradients)
    if statistics:
        assert found.statistics is not None
        assert expected.statistics is not None
        assert_same(found.statistics, expected.statistics)
