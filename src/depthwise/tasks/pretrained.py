"""Models that begin with the weights of another run."""

from typing import Any

import torch
from safetensors import SafetensorError

from depthwise.errors import CheckpointError
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.pretrained import DepthwisePreTrainedModel

POOLER = "model.pooler."
"""What a classifier has of its encoder that other heads do not keep."""
EXIT_NORMS = ".exit_norms."
"""What a stack has of exits that another one may lack."""
PREDICTOR = ".structure."
"""What an encoder has that says how many layers it needs."""


def pretrained_model(
    model_class: type[DepthwisePreTrainedModel], config: DepthwiseConfig, folder: str
) -> DepthwisePreTrainedModel:
    """A model with the weights of another one, which may have another head.

    The backbone must be there whole; a head that fits is taken over, and so is a pooler. Exits may be new: their norms
    then begin as the last one. So may be a predictor of the structure, as a whole.
    """
    try:
        found: Any = model_class.from_pretrained(
            folder, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
        )
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise CheckpointError(
            f"{folder} cannot be trained further: {reason}; give a folder with all files of a run"
        ) from error
    loaded, info = found
    other = [key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"]]
    missing = set(info["missing_keys"])
    new_norms = [name for name in missing if EXIT_NORMS in name]
    predictor = {name for name in loaded.state_dict() if PREDICTOR in name}
    may_be_new = {*new_norms, *(predictor if predictor <= missing else ())}
    lacking = [name for name in missing - may_be_new if not name.startswith(POOLER)]
    unlike = sorted(name for name in (*other, *lacking) if name.startswith("model."))
    if unlike:
        raise CheckpointError(
            f"{folder} holds another model: {unlike[0]} is missing or has another shape there; keep its options"
        )
    assert isinstance(loaded, DepthwisePreTrainedModel)
    params = dict(loaded.named_parameters())
    with torch.no_grad():
        for name in new_norms:
            stack, _, parameter = name.partition(EXIT_NORMS)
            params[name].copy_(params[f"{stack}.final_norm.{parameter.rpartition('.')[2]}"])
    return loaded
