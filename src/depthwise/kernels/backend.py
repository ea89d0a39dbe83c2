"""Which implementation of an operation runs, decided in one place and never silently."""

from depthwise.errors import BackendUnavailable

BACKENDS = ("auto", "reference")


def pick(requested: str) -> str:
    """The back end that serves a request: ``auto`` takes the best that can run here; a forced one runs or raises."""
    if requested not in BACKENDS:
        raise BackendUnavailable(
            f'there is no kernel back end "{requested}" in this version; use one of {", ".join(BACKENDS)}'
        )
    return "reference"
