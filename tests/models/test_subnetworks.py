"""Sub-networks: plain models that compute what gates make of one, on the same weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from depthwise.models.subnetworks import fixed_gates, subnetwork

from .test_latent import BOTH, DEEP, set_gates

Build = Callable[..., Any]


@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("options", [{}, {"connections": "rezero", "norm": "none"}, {"shared_layers": [0, 1, 0, 1]}])
def test_a_subnetwork_computes_the_same_on_the_same_weights(
    build: Build, draw_batch: Build, mixer: str, mode: str, options: dict[str, Any]
) -> None:
    if "shared_layers" in options:
        mixer = "attention"  # whose layers are all alike
    norm = options.get("norm", "pre")
    stack = {**DEEP, **{name: value for name, value in options.items() if name != "norm"}}
    model = build("seq2seq", mixer, norm, latent=BOTH, stack=stack)
    set_gates(model, {"encoder": [[1.0, -1.0, 0.5, -2.0]], "decoder": [[-0.5, 2.0, 1.0, 0.3]]})
    model.use_gates(mode)
    layers = model.latent_layers()
    gates = {side: fixed_gates(of_side)[0] for side, of_side in layers.items()}
    plain = subnetwork(model, gates)
    assert not plain.latent_layers()
    num_open = {side: int(of_side.is_open.sum()) if mode == "hard" else 4 for side, of_side in layers.items()}
    assert {side: getattr(plain.config.options, side).num_layers for side in layers} == num_open
    assert plain.exit_depths == (num_open["decoder"],)
    batch = draw_batch("seq2seq")
    expected = model(**batch)
    torch.testing.assert_close(plain(**batch).logits, expected.logits, atol=1e-12, rtol=1e-12)
    assert torch.equal(plain(**batch).depths, expected.depths)
    held = {param.data_ptr() for param in model.parameters()}
    copied = [name for name, param in plain.named_parameters() if param.data_ptr() not in held]
    assert all(name.endswith(".scale") for name in copied)
    assert bool(copied) == (mode == "soft")
    assert model.latent_layers().keys() == layers.keys()
    torch.testing.assert_close(model(**batch).logits, expected.logits, atol=0, rtol=0)
