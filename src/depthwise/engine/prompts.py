"""Before the first step: whether a decoder can be run by the engine, and what prompts leave behind in it."""

from collections.abc import Sequence

import torch

from depthwise.engine.prepared import Model, Prepared
from depthwise.errors import InputError
from depthwise.memory import DecodeState, Memory
from depthwise.models.masked import Leaving, run_leaving
from depthwise.shapes import Bool, Int, Tensor


def check_model(model: Model) -> None:
    """``InputError`` where the engine would say something else than the model."""
    assert model.model.decoder is not None
    gates = model.latent_layers()
    if "decoder" in gates or any(len(of_side.languages) > 1 for of_side in gates.values()):
        raise InputError("layers of this model have gates, which are run by Engine.generate alone; use that")
    if model.model.decoder.stack.dense is not None:
        raise InputError("the engine has no steps for dense connections; use the model's own generate")
    if model.training:
        raise InputError("a model in training drops units at random and lets nobody leave; call model.eval() first")


def prompt_memories(
    prepared: Prepared, prompt: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None, leaving: Leaving | None
) -> Sequence[Memory]:
    """What all but the last token of prompts leave behind, by the masked executor; nothing where there are none.

    Each token runs as deep as the policy says, or all the way where there is none.
    """
    ids, decoder = prompt[:, :-1], prepared.decoder
    if ids.shape[1] == 0:
        return ()
    valid = None if valid is None else valid[:, :-1]
    x = decoder.embedding(ids, valid)
    if leaving is None:
        output = decoder.stack.run_all(x, valid=valid, state=DecodeState())
    else:
        steps = ((torch.ones_like(ids) if valid is None else valid.long()).cumsum(1) - 1).clamp(min=0)
        output, _ = run_leaving(decoder.stack, x, leaving, steps, valid=valid, state=DecodeState())
    assert output.memories is not None
    return [layer.past for layer in output.memories]
