"""Forward and backward passes that the GPU repeats by itself: one CUDA graph for every shape of batch.

A small model is faster than the Python that tells the GPU what to do, kernel by kernel. A graph holds all kernels of a
pass and starts them at once. It is bound to shapes and addresses: batches are padded to few shapes, what changes from
batch to batch is copied to where the graph looks for it, and gradients always lie in the same place.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from depthwise.shapes import Tensor
from depthwise.tasks import Losses
from depthwise.training.half_states import HalfStates, add_in_float32

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
    With ``half`` states a pass runs on the twins of the parameters, which have the gradients until they are copied.
    """

    def __init__(self, run: Pass, params: Sequence[nn.Parameter], half: HalfStates | None = None) -> None:
        self._run, self._half = run, half
        self._params, self._without = list(params), list[nn.Parameter]()
        self._learners = self._params if half is None else half.twins(params)
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
            if self._half is not None and self._gradients is not None:
                losses = self._pass(batch, num_items, adds=self._params[0].grad is not None)
                self._check_learners()
            else:
                losses = self._ran(batch, num_items)
                self._keep_gradients()
        here.wait_stream(self._stream)
        return losses

    def _ran(self, batch: dict[str, Tensor], num_items: Tensor) -> Losses:
        """The pass by itself: gradients are added to those of the parameters, or of their twins."""
        with nullcontext() if self._half is None else self._half.worn():
            return self._run(batch, num_items)

    def _record(self, batch: dict[str, Tensor], num_items: Tensor, *, adds: bool) -> _Recorded:
        places, count = {name: value.clone() for name, value in batch.items()}, num_items.clone()
        graph, losses = self._captured(lambda: self._pass(places, count, adds=adds))
        self._check_learners()
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
        for param in self._learners:
            param.grad = None
        found = self._ran(batch, num_items)
        self._collect_gradients(adds=adds)
        return Losses(found.loss.detach(), {name: value.detach() for name, value in found.totals.items()})

    def _check_learners(self) -> None:
        """Gradients of others would be lost."""
        assert all(learner.grad is None for learner in self._without), "the same parameters take part in all batches"

    def _keep_gradients(self) -> None:
        """From the first pass on gradients have their place: those that it gave, of the parameters that have any."""
        if self._gradients is None:
            given = [learner.grad is not None for learner in self._learners]
            self._without = [learner for learner, has in zip(self._learners, given, strict=True) if not has]
            self._params, self._learners = (
                [param for param, has in zip(params, given, strict=True) if has]
                for params in (self._params, self._learners)
            )
            if self._half is None:
                self._gradients = [param.grad for param in self._params if param.grad is not None]
            else:
                self._gradients = [torch.empty_like(param) for param in self._params]
                self._collect_gradients(adds=False)
        elif self._params[0].grad is not self._gradients[0]:
            self._collect_gradients(adds=False)

    def _collect_gradients(self, *, adds: bool) -> None:
        """New gradients are copied to their place or added there; twins, which have a place in no graph, lose them."""
        assert self._gradients is not None
        new = [torch.zeros_like(learner) if learner.grad is None else learner.grad for learner in self._learners]
        if not adds:
            torch._foreach_copy_(self._gradients, new)
        elif self._half is None:
            torch._foreach_add_(self._gradients, new)
        else:
            add_in_float32(self._gradients, new)
        if self._half is not None:
            for learner in self._learners:
                learner.grad = None
        self._place_gradients()

    def _place_gradients(self) -> None:
        assert self._gradients is not None
        for param, gradient in zip(self._params, self._gradients, strict=True):
            param.grad = gradient
