"""What each of two processes does in ``test_sharding``: it trains whole models and some in shards, and takes notes.

Accelerate puts models into shards on GPUs alone; it is made to believe that these processes have some.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch import nn

from depthwise.config import load_recipe
from depthwise.training import run
from depthwise.training.trainer import DepthwiseTrainer


def shard_on_cpus() -> None:
    original = AcceleratorState.__init__

    def begin(state: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        if fsdp_plugin is not None:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        original(state, *args, fsdp_plugin=fsdp_plugin, **options)

    AcceleratorState.__init__ = begin
    run.check_machine = lambda recipe: None


def close_some_gates() -> None:
    """From the beginning every second one, and not the same ones for all languages."""
    original = DepthwiseTrainer.__init__

    def begin(trainer: DepthwiseTrainer, task: Any, model: Any, *args: Any, **options: Any) -> None:
        for layers in model.latent_layers().values():
            language, layer = (torch.arange(size) for size in layers.logits.shape)
            layers.logits.data.copy_(0.6 * (-1.0) ** (language.unsqueeze(1) + layer))
        original(trainer, task, model, *args, **options)

    DepthwiseTrainer.__init__ = begin  # type: ignore[method-assign]


class Watch:
    """Notes the logits before every pass and the samples of it; asks training to stop where ``stops_at`` says so."""

    def __init__(self) -> None:
        self.notes: list[dict[str, Any]] = []
        self.stops_at: int | None = None
        original = DepthwiseTrainer.training_step

        def step(trainer: DepthwiseTrainer, model: nn.Module, batch: dict[str, Any], *rest: Any) -> torch.Tensor:
            gates, update = trainer.trained_model.latent_layers(), trainer.state.global_step
            about = {"update": update, "pair": int(batch["pair"][0]), "model": type(model).__name__}
            logits = {side: layers.whole_logits().tolist() for side, layers in gates.items()}
            if update == self.stops_at:
                os.kill(os.getpid(), signal.SIGTERM)
            loss = original(trainer, model, batch, *rest)
            samples = {side: layers.drawn.samples.tolist() for side, layers in gates.items()}
            types = sorted({str(layers.drawn.logits.dtype) for layers in gates.values()})
            self.notes.append({**about, "logits": logits, "samples": samples, "types": types})
            return loss

        DepthwiseTrainer.training_step = step  # type: ignore[method-assign]


def main() -> None:
    """A model that stays whole, one in shards, the same in half precision, and one in shards that one process wants to
    stop after its first update, when its logits have learned nothing yet."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    shard_on_cpus()
    close_some_gates()
    watch = Watch()
    for name in ("whole", "shards", "half"):
        watch.notes.clear()
        run.train(load_recipe(folder / f"{name}.yaml"), folder / name)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(watch.notes), encoding="utf-8")
    shards = load_recipe(folder / "shards.yaml")
    watch.stops_at = 0 if rank == 1 else None
    stopped = run.train(shards, folder / "parts")
    assert (stopped.interrupted, stopped.num_updates) == (signal.SIGTERM, 1)
    watch.stops_at = None
    run.train(shards, folder / "parts")
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo that are still there now and then abort a process that ends in the usual way


if __name__ == "__main__":
    main()
