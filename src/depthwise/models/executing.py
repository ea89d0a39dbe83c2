"""By whom encoders are run: the masked executor, unless somebody says otherwise for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from depthwise.depth import Plan, StructurePredictor
from depthwise.models.masked import Leaving
from depthwise.models.stack import Stack, StackOutput
from depthwise.shapes import Bool, Float, Int, Tensor


class Executor(Protocol):
    """Runs an encoder's stack: all of it, or what a plan, a policy or its first layers say. Nothing is learned from
    what it gives."""

    def __call__(
        self,
        stack: Stack,
        x: Float[Tensor, "B T D"],
        *,
        valid: Bool[Tensor, "B T"] | None,
        plan: Plan | None,
        leaving: Leaving | None,
        steps: Int[Tensor, "B T"],
        structure: StructurePredictor | None = None,
    ) -> tuple[StackOutput, Int[Tensor, "B T"]]:
        """The states after the stack, and how deep each token ran."""
        ...


_current: ContextVar[Executor | None] = ContextVar("executor", default=None)


@contextmanager
def executed_by(executor: Executor) -> Iterator[None]:
    """Within it, encoders of this thread (or task) are run by this executor where they only predict."""
    token = _current.set(executor)
    try:
        yield
    finally:
        _current.reset(token)


def current_executor() -> Executor | None:
    return _current.get()
