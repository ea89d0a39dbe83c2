"""How large gradients are, part by part of a model."""

import re

import torch
from torch import nn

from depthwise.shapes import Tensor

_LAYER = re.compile(r"(?:.*\.)?(encoder|decoder)\.stack\.layers\.(\d+)\.")


def gradient_norms(model: nn.Module) -> dict[str, Tensor]:
    """Norm of the gradients of every layer, of everything else of each side, and of the head; still on the device."""
    parts: dict[str, list[Tensor]] = {}
    for name, param in model.named_parameters():
        if param.grad is not None:
            parts.setdefault(_part(name), []).append(param.grad)
    return {
        f"gradient_norm/{part}": torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        for part, grads in parts.items()
    }


def _part(name: str) -> str:
    """``encoder.3``, ``decoder.embedding``, ``head``."""
    if match := _LAYER.match(name):
        return f"{match[1]}.{match[2]}"
    parts = name.removeprefix("model.").split(".")
    return ".".join(parts[:2]) if parts[0] in ("encoder", "decoder") else parts[0]
