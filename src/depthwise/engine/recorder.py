"""Work that a GPU repeats by itself.

A small model is faster than the Python that tells a GPU what to do, kernel by kernel. A CUDA graph holds all kernels of
a piece of work and starts them at once. It is bound to shapes and addresses: whatever changes from one repetition to
the next lies in tensors that stay where they are.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

Work = Callable[[], None]
"""Reads tensors that stay, and writes such; what it does follows from the key under which it is known."""

MOST_GRAPHS = 512
"""How many pieces of work are kept; the ones that were not used for longest make room."""


class Recorder(ABC):
    """Does pieces of work, each known by a key. Whoever moves a tensor that they use has to ``forget`` all of them."""

    @abstractmethod
    def __call__(self, key: Hashable, work: Work) -> None:
        """Do a piece of work, the one that was first given with this key."""

    @abstractmethod
    def forget(self) -> None:
        """Addresses have changed."""


class Rehearsal(Recorder):
    """Calls the function that was first given with a key: what graphs do, as far as a CPU can show it."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Work] = {}

    def __call__(self, key: Hashable, work: Work) -> None:
        self._known.setdefault(key, work)()

    def forget(self) -> None:
        self._known.clear()


class GraphRecorder(Recorder):
    """Does a piece of work kernel by kernel when it first comes, then records it, and repeats it from then on.

    The first time loads libraries and makes what is kept of weights, which must not be part of a recording. All graphs
    share one pool of memory, since only one of them runs at a time and none leaves results there.
    """

    def __init__(self, device: torch.device, most: int = MOST_GRAPHS) -> None:
        self.device, self.most = device, most
        self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self._known: OrderedDict[Hashable, torch.cuda.CUDAGraph | None] = OrderedDict()

    def __call__(self, key: Hashable, work: Work) -> None:
        if key not in self._known:
            self._known[key] = None
            self._aside(work)
            return
        graph = self._known[key]
        if graph is None:
            graph = self._known[key] = self._recorded(work)
        self._known.move_to_end(key)
        graph.replay()

    def forget(self) -> None:
        torch.cuda.synchronize(self.device)
        self._known.clear()
        self._pool = torch.cuda.graph_pool_handle()  # the old one ends with its last graph

    def _recorded(self, work: Work) -> torch.cuda.CUDAGraph:
        while len(self._known) > self.most:
            self._known.popitem(last=False)
        graph = torch.cuda.CUDAGraph()

        def record() -> None:
            # Other threads go on meanwhile; only what this one does is recorded.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()

        self._aside(record)
        return graph

    def _aside(self, work: Work) -> None:
        """Where work is recorded, it is also done by hand, so that what libraries keep for a stream is there before."""
        here = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(here)
        # The attention of cuDNN is planned anew for every shape, which takes longer than it could save here
        with torch.cuda.stream(self._stream), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            work()
        here.wait_stream(self._stream)
