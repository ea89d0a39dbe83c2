"""Forward and backward passes that the GPU repeats by itself: one CUDA graph for every shape of batch.

A small model is faster than the Python that tells the GPU what to do, kernel by kernel. A graph holds all kernels of a
pass and starts them at once. It is bound to shapes and addresses: batches are padded to few shapes, what changes from
batch to batch is copied to where the graph looks for it, and gradients always lie in the same place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from depthwise.shapes import Tensor
from depthwise.tasks import Losses

NUM_PLAIN = 2
"""How often a shape is run kernel by kernel before it gets a graph: those that hardly ever come need none."""

Pass = Callable[[dict[str, Tensor], Tensor], Losses]
"""From a batch and the items of the whole update to losses, with gradients added to those of the parameters."""


@dataclass(frozen=True)
class _Recorded:
    """A graph with the places that it reads from and writes to."""

    graph: torch.cuda.CUDAGraph
    batch: dict[str, Tensor]
    num_items: Tensor
    losses: Losses

    def repeat(self, batch: Mapping[str, Tensor], num_items: Tensor) -> Losses:
        for name, place in self.batch.items():
            place.copy_(batch[name], non_blocking=True)
        self.num_items.copy_(num_items, non_blocking=True)
        self.graph.replay()
        return self.losses


class RecordedPasses:
    """A pass over a batch, recorded at the third batch of the same shape and repeated from then on.

    What it returns is overwritten by the next batch of that shape. The pass must not wait for the GPU, and its work
    must follow from the shape of the batch alone. All graphs share one pool of memory, since only one runs at a time.
    Gradients of an update's first batch are copied to their place all at once; those of later ones are added there.
    """

    def __init__(self, run: Pass, params: Sequence[nn.Parameter]) -> None:
        self._run = run
        self._params, self._without = list(params), list[nn.Parameter]()
        self._gradients: list[Tensor] | None = None
        self._num_seen: dict[object, int] = {}
        self._recorded: dict[object, _Recorded] = {}
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, batch: dict[str, Tensor], num_items: Tensor) -> Losses:
        is_first = self._gradients is None or self._params[0].grad is None
        shape = (is_first, *((name, value.shape, value.dtype) for name, value in batch.items()))
        recorded = self._recorded.get(shape)
        if recorded is None:
            seen = self._num_seen.get(shape, 0)
            self._num_seen[shape] = seen + 1
            if seen < NUM_PLAIN or self._gradients is None:
                return self._plain(batch, num_items)
            recorded = self._recorded[shape] = self._record(batch, num_items, adds=not is_first)
        losses = recorded.repeat(batch, num_items)
        if is_first:
            self._place_gradients()
        return losses

    def _plain(self, batch: dict[str, Tensor], num_items: Tensor) -> Losses:
        """Where passes are recorded, too: autograd waits for the stream on which a gradient was first computed."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            losses = self._run(batch, num_items)
            self._keep_gradients()
        here.wait_stream(self._stream)
        return losses

    def _record(self, batch: dict[str, Tensor], num_items: Tensor, *, adds: bool) -> _Recorded:
        places, count = {name: value.clone() for name, value in batch.items()}, num_items.clone()
        graph, losses = self._captured(lambda: self._pass(places, count, adds=adds))
        assert all(param.grad is None for param in self._without), "the same parameters take part in all batches"
        return _Recorded(graph, places, count, losses)

    def _captured(self, work: Callable[[], Losses]) -> tuple[torch.cuda.CUDAGraph, Losses]:
        """A graph of what the GPU would have to do, which it has not done yet, and where its results will be."""
        graph = torch.cuda.CUDAGraph()
        # Threads that prepare batches go on meanwhile; only what this one does is recorded.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            losses = work()
        return graph, losses

    def _pass(self, batch: dict[str, Tensor], num_items: Tensor, *, adds: bool) -> Losses:
        """What is recorded: a pass whose gradients then go to their place."""
        assert self._gradients is not None
        for param in self._params:
            param.grad = None
        found = self._run(batch, num_items)
        (torch._foreach_add_ if adds else torch._foreach_copy_)(self._gradients, self._new_gradients())
        self._place_gradients()
        return Losses(found.loss.detach(), {name: value.detach() for name, value in found.totals.items()})

    def _keep_gradients(self) -> None:
        """From the first pass on gradients have their place: those that it gave, of the parameters that have any."""
        if self._gradients is None:
            self._without = [param for param in self._params if param.grad is None]
            self._params = [param for param in self._params if param.grad is not None]
            self._gradients = [param.grad for param in self._params if param.grad is not None]
        elif self._params[0].grad is not self._gradients[0]:
            torch._foreach_copy_(self._gradients, self._new_gradients())
            self._place_gradients()

    def _new_gradients(self) -> list[Tensor]:
        return [torch.zeros_like(param) if param.grad is None else param.grad for param in self._params]

    def _place_gradients(self) -> None:
        assert self._gradients is not None
        for param, gradient in zip(self._params, self._gradients, strict=True):
            param.grad = gradient
