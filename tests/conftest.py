"""What holds for every test: one seed, one thread per worker, no network, checked shapes, repeatable examples."""

import os
import signal

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test may need the network

# The shapes in signatures are checked while tests run. Modules that take a user's values are left out: there a wrong
# type has to end in our own error, which the tests want to see.
CHECKED = [
    *("kernels", "memory", "mixers", "depth", "losses"),
    *(f"models.{module}" for module in ("adaptive", "block", "embedding", "language_head", "masked", "stack")),
]
install_import_hook([f"depthwise.{name}" for name in CHECKED], "beartype.beartype")

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its interpreter runs the kernels on the CPU

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for jobs that a shell started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # pytest-xdist already keeps every core busy

hypothesis.settings.register_profile(
    "depthwise",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("depthwise")


class TorchRandom:
    """Torch's generator as Hypothesis wants it, so that each example draws the same numbers whenever it is replayed."""

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def getstate(self) -> torch.Tensor:
        return torch.get_rng_state()

    def setstate(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)


TORCH_RANDOM = TorchRandom()  # Hypothesis keeps a weak reference only
hypothesis.register_random(TORCH_RANDOM)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
