"""What each of two processes does in ``test_latent``: it trains, and writes down what gates were in every pass."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from depthwise.config import load_recipe
from depthwise.training.run import train
from depthwise.training.trainer import DepthwiseTrainer

Pass = dict[str, Any]


def watched(passes: list[Pass]) -> Callable[..., torch.Tensor]:
    """The trainer's ``training_step``, which notes noise, samples and logits of the decoder behind every pass."""
    original = DepthwiseTrainer.training_step

    def training_step(trainer: DepthwiseTrainer, model: nn.Module, batch: dict[str, Any], *rest: Any) -> torch.Tensor:
        pair = int(batch["pair"][0])
        logits = trainer.trained_model.latent_layers()["decoder"].whole_logits().tolist()
        loss = original(trainer, model, batch, *rest)
        layers = trainer.trained_model.latent_layers()["decoder"]
        assert layers.drawn is not None
        passes.append(
            {
                "update": trainer.state.global_step,
                "pair": pair,
                "model": type(model).__name__,
                "noise": layers.noise.tolist(),
                "samples": layers.drawn.samples.tolist(),
                "logits": logits,
            }
        )
        return loss

    return training_step


def main() -> None:
    recipe, folder, rank = Path(sys.argv[1]), Path(sys.argv[2]), os.environ["RANK"]
    passes: list[Pass] = []
    DepthwiseTrainer.training_step = watched(passes)  # type: ignore[method-assign]
    train(load_recipe(recipe), folder)
    folder.with_suffix(f".{rank}.json").write_text(json.dumps(passes), encoding="utf-8")
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo that are still there now and then abort a process that ends in the usual way


if __name__ == "__main__":
    main()
