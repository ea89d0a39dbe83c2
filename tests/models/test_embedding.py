"""What enters a stack: scaled vectors of tokens plus positions, counted over real tokens."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from depthwise.config import ModelConfig, StackConfig
from depthwise.models.embedding import Embedding, SinusoidalPositions

TYPES, WIDTH, PADDING = 17, 8, 1


@pytest.fixture
def make(randomize: Callable[[Any], Any]) -> Callable[..., Embedding]:
    def make_embedding(**changes: Any) -> Embedding:
        stack = StackConfig(**{"dropout": 0.0, "max_positions": 9, **changes.pop("stack", {})})
        options = ModelConfig(**{"vocab_size": TYPES, "width": WIDTH, "encoder": stack, **changes})
        return randomize(Embedding(options, stack, TYPES, PADDING)).double()

    return make_embedding


def sinusoid(step: int, width: int) -> list[float]:
    """Sines in the first half, cosines in the second, frequencies from 1 down to 1/10000."""
    half = width // 2
    angles = [step * 10000 ** (-index / max(half - 1, 1)) for index in range(half)]
    return [*map(math.sin, angles), *map(math.cos, angles), *[0.0] * (width % 2)]


@pytest.mark.parametrize("width", [1, 2, 3, 8, 9])
def test_sinusoids(width: int) -> None:
    steps = torch.tensor([[0, 1, 2, 57, 1023]])
    expected = torch.tensor([[sinusoid(step, width) for step in steps[0].tolist()]], dtype=torch.float64)
    torch.testing.assert_close(SinusoidalPositions(width)(steps), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("is_padded", [True, False])
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("length", [1, 6, 7, 9])
def test_kept_sinusoids_are_those_made_anew(
    make: Callable[..., Embedding], monkeypatch: pytest.MonkeyPatch, length: int, offset: int, is_padded: bool
) -> None:
    """To the bit, in every precision, and also where inference made them first and a training goes on."""
    embedding = make(position_offset=offset, stack={"positions": "sinusoidal"})
    ids, valid = torch.randint(2, TYPES, (2, length)), torch.arange(length) >= torch.tensor([[0], [1]])
    given = (ids, valid) if is_padded else (ids,)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        embedding = embedding.to(dtype)
        with torch.inference_mode():
            kept = embedding(*given)
        with monkeypatch.context() as patch:
            patch.setattr("depthwise.models.embedding.KEPT_STEPS", 0)
            assert torch.equal(embedding(*given), kept)
        embedding.zero_grad()
        embedding(*given).sum().backward()
        assert embedding.tokens.weight.grad is not None


@pytest.mark.parametrize("scaled", [True, False])
def test_scale(make: Callable[..., Embedding], scaled: bool) -> None:
    embedding, ids = make(scale_embedding=scaled, stack={"positions": "none"}), torch.randint(0, TYPES, (2, 3))
    expected = embedding.tokens.weight[ids] * (math.sqrt(WIDTH) if scaled else 1.0)
    torch.testing.assert_close(embedding(ids), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_of_padded_rows(make: Callable[..., Embedding], kind: str, offset: int) -> None:
    """Counted over real tokens from the offset on; padding has none."""
    embedding = make(position_offset=offset, stack={"positions": kind})
    valid = torch.tensor([[True, True, True], [False, True, True], [True, True, False]])
    ids = torch.full((3, 3), 5)
    added = embedding(ids, valid) - math.sqrt(WIDTH) * embedding.tokens.weight[ids]
    steps = torch.tensor([[0, 1, 2], [0, 0, 1], [0, 1, 0]])
    vectors = embedding.positions(steps + offset).double() * valid.unsqueeze(-1)
    torch.testing.assert_close(added, vectors, rtol=0, atol=1e-12)
    assert added[2, 2].abs().max() < 1e-12


def test_positions_go_on_from_earlier_tokens(make: Callable[..., Embedding]) -> None:
    embedding, ids = make(stack={"positions": "learned"}), torch.randint(4, TYPES, (2, 4))
    whole = embedding(ids)
    assert torch.equal(embedding(ids[:, 3:], None, torch.tensor([3, 3])), whole[:, 3:])
    mixed = embedding(ids[:, 3:], None, torch.tensor([3, 1]))
    assert torch.equal(mixed[0], whole[0, 3:])
    assert not torch.equal(mixed[1], whole[1, 3:])


@pytest.mark.parametrize("offset", [0, 2])
def test_the_table_of_learned_positions(make: Callable[..., Embedding], offset: int) -> None:
    """One vector for each of the longest sequence's steps, and the offset in front."""
    embedding = make(position_offset=offset, stack={"positions": "learned"})
    assert embedding.positions.weight.shape == (9 + offset, WIDTH)
    embedding(torch.full((1, 9), 5))


def test_dropout(make: Callable[..., Embedding]) -> None:
    embedding, ids = make(stack={"dropout": 0.5}), torch.randint(4, TYPES, (2, 3))
    expected = embedding.eval()(ids)
    dropped = embedding.train()(ids)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * expected[kept])


def test_half_precision_does_not_round_frequencies(make: Callable[..., Embedding]) -> None:
    """Positions are computed in float32 and rounded once, however far out."""
    embedding = make(stack={"max_positions": None}).bfloat16()
    with torch.no_grad():
        embedding.tokens.weight.zero_()
    states = embedding(torch.full((1, 1000), 5))
    assert states.dtype == torch.bfloat16
    expected = torch.tensor(sinusoid(999, WIDTH))
    torch.testing.assert_close(states[0, 999].float(), expected, rtol=0, atol=5e-3)


def test_padding_gets_no_gradient(make: Callable[..., Embedding]) -> None:
    embedding = make()
    embedding(torch.tensor([[PADDING, 5]])).sum().backward()
    grad: Tensor = embedding.tokens.weight.grad
    assert not grad[PADDING].any()
    assert grad[5].any()


@pytest.mark.parametrize("given", [True, False])
def test_types_norm_and_a_width_of_its_own(make: Callable[..., Embedding], given: bool) -> None:
    """P norm(sqrt(e) E[id] + position + type) + b, by hand."""
    embedding = make(
        embedding_width=5,
        embedding_norm=True,
        token_types=3,
        stack={"positions": "learned", "norm_epsilon": 0.01},
    )
    ids, kinds = torch.randint(4, TYPES, (2, 4)), torch.randint(0, 3, (2, 4))
    x = math.sqrt(5) * embedding.tokens.weight[ids] + embedding.positions.weight[:4]
    x = x + (embedding.token_types.weight[kinds] if given else embedding.token_types.weight[0])
    centred = x - x.mean(-1, keepdim=True)
    x = centred / (centred.square().mean(-1, keepdim=True) + 0.01).sqrt() * embedding.norm.weight + embedding.norm.bias
    expected = x @ embedding.projection.weight.T + embedding.projection.bias
    found = embedding(ids, type_ids=kinds if given else None)
    assert found.shape == (2, 4, WIDTH)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "none"])
def test_positions_have_the_width_of_embeddings(make: Callable[..., Embedding], kind: str) -> None:
    embedding = make(embedding_width=6, stack={"positions": kind})
    assert embedding(torch.randint(4, TYPES, (2, 3))).shape == (2, 3, WIDTH)


def test_the_same_width_is_projected_too(make: Callable[..., Embedding]) -> None:
    assert make(embedding_width=WIDTH).projection is not None
    assert make().projection is None


def test_dropout_comes_before_the_projection(make: Callable[..., Embedding]) -> None:
    embedding = make(embedding_width=6, stack={"dropout": 0.5}).train()
    seen: list[Tensor] = []
    embedding.projection.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    embedding(torch.randint(4, TYPES, (8, 9)))
    assert 0.3 < (seen[0] == 0).double().mean() < 0.7
