"""What each of two processes does in ``test_latent``: a model with gates, whole and sharded over both (FSDP)."""

import copy
import os
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from depthwise.config import LatentTrainingConfig, TrainingConfig
from depthwise.models.block import Block
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.tasks.latent_training import LatentTraining

OPTIONS = LatentTrainingConfig(beta=0.1, target_depth=(1,), soft_updates=1, anneal_updates=1)
NUM_UPDATES = 4


def build() -> DepthwiseForSeq2SeqLM:
    stack = {"num_layers": 3, "num_heads": 2, "ffn_width": 12, "norm": "pre", "dropout": 0.0}
    languages = {"source_languages": ["en"], "target_languages": ["de", "fr", "nl"]}
    latent = {"sides": ["encoder", "decoder"], "per_language": True, **languages}
    torch.manual_seed(0)
    config = DepthwiseConfig(vocab_size=20, width=8, encoder=stack, decoder=stack, latent=latent)
    return DepthwiseForSeq2SeqLM(config).double().train()


def updates(model: DepthwiseForSeq2SeqLM, batch: dict[str, Tensor], *, is_sharded: bool) -> list[dict[str, Tensor]]:
    """Some updates of the weights and logits; the samples and gradients of each."""
    training = LatentTraining(TrainingConfig(latent=OPTIONS), model.config.options, seed=3)
    training.attach(model)
    found = []
    for update in range(NUM_UPDATES):
        training.advance(update, torch.device("cpu"))
        (model(**batch).loss + training.penalty(batch)).backward()
        samples = {f"samples/{side}": layers.drawn.samples.detach() for side, layers in model.latent_layers().items()}
        gradients = {name: param.grad.clone() for name, param in model.named_parameters()}
        for name, gradient in gradients.items():
            if isinstance(gradient, DTensor):
                gradients[name] = gradient.full_tensor()
            else:
                distributed.all_reduce(gradient)
                gradients[name] = gradient / 2
        with torch.no_grad():
            for name, param in model.named_parameters():
                param -= 0.1 * (param.grad if is_sharded else gradients[name])
                param.grad = None
        record = training.record()
        assert set(record) == {"encoder", "decoder"}
        found.append({**samples, **gradients})
    return found


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    whole = build()
    sharded: Any = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", (2,))
    for block in [module for module in sharded.modules() if isinstance(module, Block)]:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    torch.manual_seed(5 + rank)
    ids, labels = torch.randint(4, 20, (3, 5)), torch.randint(4, 20, (3, 4))
    batch = {"input_ids": ids, "labels": labels, "target_languages": torch.full((3,), rank)}
    ours, theirs = updates(sharded, batch, is_sharded=True), updates(whole, batch, is_sharded=False)
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], msg=lambda text, name=name: f"{name}: {text}")
            both = [torch.empty_like(one[name]) for _ in range(2)]
            distributed.all_gather(both, one[name].contiguous())
            assert torch.equal(*both), name
        assert bool(one["model.decoder.latent.logits"][:2].all())
    layers, expected = sharded.latent_layers()["decoder"], whole.latent_layers()["decoder"]
    assert isinstance(layers.logits, DTensor)
    torch.testing.assert_close(layers.probabilities, expected.probabilities)
    assert torch.equal(layers.is_open, expected.is_open)
    if rank == 0:
        print("both agree", flush=True)
    distributed.barrier()
    os._exit(0)  # threads of gloo that are still there now and then abort a process that ends in the usual way


if __name__ == "__main__":
    main()
