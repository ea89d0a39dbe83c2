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
    """

    def __init__(self, run: Pass, params: Sequence[nn.Parameter]) -> None:
        self._run = run
        self._params, self._without = list(params), list[nn.Parameter]()
        self._gradients: list[Tensor] | None = None
        self._num_seen: dict[object, int] = {}
        self._recorded: dict[object, _Recorded] = {}
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, batch: dict[str, Tensor], num_items: Tensor) -> Losses:
        self._place_gradients()
        shape = tuple((name, value.shape, value.dtype) for name, value in batch.items())
        if (recorded := self._recorded.get(shape)) is not None:
            return recorded.repeat(batch, num_items)
        seen = self._num_seen.get(shape, 0)
        self._num_seen[shape] = seen + 1
        if seen < NUM_PLAIN or self._gradients is None:
            return self._plain(batch, num_items)
        recorded = self._record(batch, num_items)
        self._recorded[shape] = recorded
        return recorded.repeat(batch, num_items)

    def _plain(self, batch: dict[str, Tensor], num_items: Tensor) -> Losses:
        """Where passes are recorded, too: autograd waits for the stream on which a gradient was first computed."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            losses = self._run(batch, num_items)
        here.wait_stream(self._stream)
        self._keep_gradients()
        return losses

    def _record(self, batch: dict[str, Tensor], num_items: Tensor) -> _Recorded:
        places, count = {name: value.clone() for name, value in batch.items()}, num_items.clone()
        graph = torch.cuda.CUDAGraph()
        # Threads that prepare batches go on meanwhile; only what this one does is recorded.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            found = self._run(places, count)
            losses = Losses(found.loss.detach(), {name: value.detach() for name, value in found.totals.items()})
        assert all(param.grad is None for param in self._without), "the same parameters take part in all batches"
        return _Recorded(graph, places, count, losses)

    def _keep_gradients(self) -> None:
        """From the first pass on gradients have their place: those that it gave, of the parameters that have any."""
        if self._gradients is None:
            self._without = [param for param in self._params if param.grad is None]
            self._params = [param for param in self._params if param.grad is not None]
            self._gradients = [param.grad for param in self._params if param.grad is not None]

    def _place_gradients(self) -> None:
        """After an update has taken them away, gradients begin at zero in their place."""
        if self._gradients is not None and self._params[0].grad is not self._gradients[0]:
            torch._foreach_zero_(self._gradients)
            for param, gradient in zip(self._params, self._gradients, strict=True):
                param.grad = gradient
