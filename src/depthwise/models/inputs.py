"""Checks of what is fed to a model, and the masks that follow from it.

Tensors on the CPU are looked into, so that a message can name the row. On other devices only shapes are checked here:
looking would wait for the device at every step, and embedding an id outside the vocabulary fails there by itself.
"""

import torch

from depthwise.errors import InputError
from depthwise.memory import sent
from depthwise.shapes import Bool, Int, Tensor


def check_ids(ids: Int[Tensor, "B T"], name: str, num_types: int, max_positions: int | None, earlier: int = 0) -> None:
    """Refuse ids that are empty, too long or outside the vocabulary. ``earlier`` counts the steps before these."""
    _check_whole_numbers(ids, name)
    if ids.dim() != 2:
        raise InputError(f"{name} must have two axes (rows, steps), not {ids.dim()}")
    if ids.shape[0] == 0:
        raise InputError(f"{name} is an empty batch; give it at least one row")
    if ids.shape[1] == 0:
        raise InputError(f"{name} has no steps; give every row at least one token")
    length = ids.shape[1] + earlier
    if max_positions is not None and length > max_positions:
        raise InputError(f"{name} has {length} steps but max_positions is {max_positions}; shorten the input")
    if not can_look_into(ids):
        return
    outside = (ids < 0) | (ids >= num_types)
    if bool(outside.any()):
        row, step = outside.nonzero()[0].tolist()
        found = int(ids[row, step])
        raise InputError(f"{name} row {row} step {step} holds id {found}, outside the vocabulary of {num_types} types")


def valid_tokens(
    mask: Tensor | None,
    ids: Int[Tensor, "B T"],
    name: str,
    padding: int | None = None,
    *,
    may_be_empty: bool = False,
) -> Bool[Tensor, "B T"] | None:
    """Which tokens are real: from the mask, else (where a padding id is given) from the ids; none means all.

    The mask may lie on the host while the ids are on a device; the result is where the ids are. A row without any is
    refused, unless these are later steps of rows that had some.
    """
    if mask is None:
        if padding is None:
            return None
        mask = ids != padding
    if mask.shape != ids.shape:
        raise InputError(f"{name} has shape {tuple(mask.shape)} but its ids have shape {tuple(ids.shape)}")
    valid = mask.bool()
    if not can_look_into(valid):
        return valid
    if bool(valid.all()):
        return None
    empty = ~valid.any(1)
    if bool(empty.any()) and not may_be_empty:
        raise InputError(f"{name} row {int(empty.nonzero()[0])} has no real token; drop the row or give it one")
    return sent(valid, ids.device)


def check_token_types(type_ids: Tensor | None, ids: Int[Tensor, "B T"], num_token_types: int) -> None:
    """Refuse types of tokens that the model does not have, or that do not stand beside the ids one by one."""
    if type_ids is None:
        return
    if num_token_types == 0:
        raise InputError("token_type_ids were given, but this model has no token types; leave them out")
    _check_whole_numbers(type_ids, "token_type_ids")
    if type_ids.shape != ids.shape:
        raise InputError(f"token_type_ids has shape {tuple(type_ids.shape)} but its ids have shape {tuple(ids.shape)}")
    if not can_look_into(type_ids):
        return
    outside = (type_ids < 0) | (type_ids >= num_token_types)
    if bool(outside.any()):
        row, step = outside.nonzero()[0].tolist()
        found = int(type_ids[row, step])
        raise InputError(f"token_type_ids row {row} step {step} holds {found}, but token_types is {num_token_types}")


def _check_whole_numbers(ids: Tensor, name: str) -> None:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        kind = str(ids.dtype) if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(f"{name} must be a tensor of whole numbers, not {kind}")


def can_look_into(tensor: Tensor) -> bool:
    """Whether the values of a tensor are at hand: on the CPU, and not while a program is being compiled."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
