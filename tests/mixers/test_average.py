"""Average attention as a module."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from depthwise.mixers import AverageAttention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_formula(
    causal: bool, padded: bool, randomized: Callable[[Any], Any], assert_same: Callable[..., None]
) -> None:
    """One position at a time: mean, feed-forward, two gates of which the first is on the state itself."""
    mixer = randomized(AverageAttention(4, 7, causal=causal))
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    valid = torch.tensor([[True] * 5, [False, True, True, False, True]]) if padded else None
    y = mixer(x, valid)
    for row in range(2):
        real = [step for step in range(5) if valid is None or valid[row, step]]
        for now in real:
            mean = x[row, [step for step in real if not causal or step <= now]].mean(0)
            hidden = (mixer.hidden.weight @ mean + mixer.hidden.bias).clamp(min=0)
            context = mixer.out.weight @ hidden + mixer.out.bias
            gates = mixer.gates.weight @ torch.cat([x[row, now], context]) + mixer.gates.bias
            gates = 1 / (1 + (-gates).exp())
            assert_same(y[row, now], gates[:4] * x[row, now] + gates[4:] * context)


def test_decoding_keeps_only_a_sum(randomized: Callable[[Any], Any]) -> None:
    """The cost of a step does not grow: nothing but the step itself is read, and no input is kept."""
    mixer = randomized(AverageAttention(4, 7, causal=True))
    memory = mixer.write(torch.randn(2, 9, 4, dtype=torch.float64))
    kept = mixer.forget(memory)
    assert kept.length == 0
    assert kept.before is not None
    torch.testing.assert_close(kept.before[0], memory.inputs.sum(1), rtol=1e-10, atol=1e-12)
    assert kept.before[1].tolist() == [[9.0], [9.0]]
