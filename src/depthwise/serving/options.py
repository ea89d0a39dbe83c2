"""What a server is told when it starts, as plain data."""

from dataclasses import dataclass, field

from depthwise.errors import InputError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much one request may ask for. Whatever exceeds it is refused with a reason."""

    body_bytes: int = 256 * 1024
    input_tokens: int = 4096
    """Fewer where the model has fewer positions."""
    new_tokens: int = 1024
    """Of a text that is generated; fewer where the run's own rule says so."""
    beams: int = 8
    choices: int = 16
    """Texts that one request for completions may ask for: prompts times ``n``."""
    waiting: int = 256
    """Requests of one model that may wait for their turn."""
    seconds: float = 60.0
    """From the first byte of a request to the last of its answer."""

    def __post_init__(self) -> None:
        for name in ("body_bytes", "input_tokens", "new_tokens", "beams", "choices", "waiting"):
            if getattr(self, name) < 1:
                raise InputError(f"a limit of {getattr(self, name)} for {name} lets nothing in; give at least 1")
        if not self.seconds > 0:
            raise InputError(f"a limit of {self.seconds:g} seconds lets nothing be answered; give more than 0")


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How a server works, whatever it serves."""

    limits: Limits = field(default_factory=Limits)
    max_rows: int = 32
    """Requests of one model that run at the same time."""
    max_wait: float = 0.005
    """Seconds for which a request may wait for others to run with."""
    api_key: str | None = field(default=None, repr=False)
    """What requests must carry, if anything."""
    logs_text: bool = False
    """Whether what users write, and what they are answered, goes into the log."""
    depth: str | int | None = None
    """Of requests that ask for none; none stands for what each run says."""
    num_examples: int = 0
    """Inputs of its validation data that each run shows to whoever asks."""
    device: str = "auto"
    precision: str = "fp32"
    drain_seconds: float | None = None
    """How long accepted requests may take once the server is told to stop; none stands for the limit of seconds."""

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise InputError("the API key is empty, which keeps nobody out; give one, or leave it away")
        if self.max_rows < 1:
            raise InputError(f"max_rows is {self.max_rows}, which lets nobody in; give at least 1")
        if not self.max_wait >= 0:
            raise InputError(f"max_wait is {self.max_wait}; give a number of seconds, or 0 to run everybody at once")
