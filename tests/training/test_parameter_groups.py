"""Which parameters an optimiser gets, and which of them decay."""

import pytest
import torch
from torch import nn

from depthwise.errors import ConfigError
from depthwise.training import build_optimizer, parameter_groups


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm((2, 4))
        self.linear = nn.Linear(4, 5)
        self.linear.weight = self.embedding.weight
        self.head_bias = nn.Parameter(torch.zeros(2, 2))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.gate = nn.Parameter(torch.zeros(()))


def test_biases_and_norms_can_be_spared_decay() -> None:
    model = Mixed()
    decayed, spared = parameter_groups(model, weight_decay=0.1, decay_biases_and_norms=False)
    assert decayed == {"params": [model.embedding.weight], "weight_decay": 0.1}
    expected = [model.head_bias, model.gate, model.norm.weight, model.norm.bias, model.linear.bias]
    assert [id(param) for param in spared["params"]] == [id(param) for param in expected]
    assert (spared["weight_decay"], spared["adapt"]) == (0.0, False)
    (every,) = parameter_groups(model, weight_decay=0.1)
    assert len(every["params"]) == 6


def test_one_kind_only_makes_one_group() -> None:
    (group,) = parameter_groups(nn.LayerNorm(3), weight_decay=0.1, decay_biases_and_norms=False)
    assert group["weight_decay"] == 0


def test_nothing_to_train() -> None:
    with pytest.raises(ConfigError, match="no parameter is trainable; unfreeze some"):
        build_optimizer("adamw", nn.Linear(2, 2).requires_grad_(False), lr=0.1)
