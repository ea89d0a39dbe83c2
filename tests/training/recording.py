"""Recorded passes without a GPU: what stands for CUDA graphs."""

from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from depthwise.training import graphs


class Graph:
    """Stands for a CUDA graph: what is recorded takes effect only when it is repeated, with what its places hold."""

    def __init__(self, work: Callable[[], graphs.Losses]) -> None:
        self.replay = work


class Recorder:
    """Lets passes be recorded on a CPU, and counts how many were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_recorded = 0
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        for name in ("Stream", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, MagicMock())
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)

    def serve(self, passes: graphs.RecordedPasses) -> None:
        def captured(work: Callable[[], graphs.Losses]) -> tuple[Graph, graphs.Losses]:
            assert passes._gradients is not None
            before = [gradient.clone() for gradient in passes._gradients]
            losses = work()
            torch._foreach_copy_(passes._gradients, before)
            self.num_recorded += 1
            return Graph(work), losses

        self._monkeypatch.setattr(passes, "_captured", captured)
