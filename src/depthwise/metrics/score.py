"""The result of a metric that has more than one definition in use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A number together with the text that says how it was computed, so that two of them can be compared or not."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f} ({self.signature})"
