"""What the folder of a run says about its model, and where lies what runs share."""

import os
from pathlib import Path

from transformers import AutoConfig

from depthwise.errors import CheckpointError, ConfigError
from depthwise.models.configuration import DepthwiseConfig

CACHE_VARIABLE = "DEPTHWISE_CACHE"


def cache_folder(given: str | None) -> Path:
    """Where tokenised corpora are kept: as told, or as the environment says, or with the user's caches."""
    return Path(given or os.environ.get(CACHE_VARIABLE) or "~/.cache/depthwise").expanduser()


def run_config(folder: Path) -> DepthwiseConfig:
    """The configuration of the model in a run."""
    if not (folder / "config.json").is_file():
        state = "is no folder" if not folder.is_dir() else "holds no trained model"
        unfinished = any(folder.glob("checkpoint-*")) if folder.is_dir() else False
        remedy = "run its depthwise train command again to finish it" if unfinished else "give the folder of a run"
        raise CheckpointError(f"{folder} {state}; {remedy}")
    try:
        config = AutoConfig.from_pretrained(folder)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split(". ")[0].split()).rstrip(".")
        raise CheckpointError(f"the configuration in {folder} cannot be read: {reason}; give a whole run") from error
    if not isinstance(config, DepthwiseConfig):
        raise CheckpointError(
            f'{folder} holds a model of type "{config.model_type}", not a Depthwise model; try depthwise convert hf'
        )
    return config
