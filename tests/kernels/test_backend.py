"""A back end that was asked for by name runs or raises; nothing takes its place."""

import re
from typing import Any

import pytest
import torch

from depthwise.errors import BackendUnavailable
from depthwise.kernels import BACKENDS, backend, dynamic_conv, light_conv, pick, use_backend

MESSAGE = f'there is no kernel back end "abacus" in this version; use one of {", ".join(BACKENDS)}'
X = torch.ones(1, 2, 2)


def test_the_reference_is_always_there() -> None:
    assert pick("reference") == "reference"


def test_auto_takes_one_that_exists() -> None:
    assert pick("auto") in BACKENDS


def test_an_unknown_back_end() -> None:
    with pytest.raises(BackendUnavailable, match=f"^{re.escape(MESSAGE)}$"):
        pick("abacus")


def test_light_conv_with_an_unknown_back_end() -> None:
    with pytest.raises(BackendUnavailable, match=re.escape(MESSAGE)):
        light_conv(X, torch.ones(1, 1), left=0, backend="abacus")


def test_dynamic_conv_with_an_unknown_back_end() -> None:
    with pytest.raises(BackendUnavailable, match=re.escape(MESSAGE)):
        dynamic_conv(X, torch.ones(1, 2, 1, 1), left=0, backend="abacus")


def test_a_forced_back_end_gives_what_auto_gives() -> None:
    x, weight, logits = torch.randn(2, 5, 4), torch.randn(2, 3), torch.randn(2, 5, 2, 3)
    assert torch.equal(light_conv(x, weight, left=1, backend="reference"), light_conv(x, weight, left=1))
    assert torch.equal(dynamic_conv(x, logits, left=1, backend="reference"), dynamic_conv(x, logits, left=1))


# What Triton serves


@pytest.fixture
def _no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "HAS_TRITON", False)


@pytest.fixture
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "HAS_TRITON", True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def refusal(*tensors: torch.Tensor, **options: Any) -> str:
    with pytest.raises(BackendUnavailable) as raised:
        pick("triton", *tensors, **options)
    assert pick("auto", *tensors, **options) == "reference"
    return str(raised.value)


@pytest.mark.usefixtures("_no_triton")
def test_triton_is_not_installed() -> None:
    reason = 'Triton is not installed; install "depthwise[triton]"'
    assert refusal(X) == f'the kernel back end "triton" cannot serve this: {reason}, or take "auto"'
    assert pick("auto") == "reference"
    assert backend.describe() == f"reference (triton: {reason})"


@pytest.mark.usefixtures("_interpreter")
def test_tensors_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter serves them where it was asked for by name; `auto` never takes it."""
    assert pick("triton", X) == "triton"
    assert pick("auto", X) == "reference"
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "the tensors lie on the CPU; move them to a GPU" in refusal(X)


@pytest.mark.usefixtures("_interpreter")
def test_tensors_elsewhere() -> None:
    assert "the tensors lie on meta; move them to an NVIDIA GPU" in refusal(X.to("meta"))


@pytest.mark.usefixtures("_interpreter")
def test_precisions() -> None:
    for dtype in backend.PRECISIONS:
        assert pick("triton", X.to(dtype), X.to(dtype)) == "triton"
    assert "it knows float32, float16 and bfloat16 but got torch.float64; convert the tensors" in refusal(X.double())
    assert "but got torch.float64" in refusal(X, X.double())


@pytest.mark.usefixtures("_interpreter")
def test_wide_kernels() -> None:
    assert pick("triton", X, torch.ones(2, 255)) == "triton"
    assert "it knows kernels of up to 255 taps but got 256; take narrower ones" in refusal(X, torch.ones(2, 256))


def test_huge_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is where a row begins and ends in memory; the batch may be as large as it likes."""
    monkeypatch.setattr(backend, "_missing", lambda *_: None)
    x = torch.empty(3, 2**20, 2**11, device="meta")
    message = "a row of shape (1048576, 2048) takes 2147483648 elements or more in memory; cut it"
    assert message in refusal(x)
    assert message in refusal(x[:, :1, :1].expand_as(x))
    assert pick("triton", torch.empty(3, 2**20 - 1, 2**11, device="meta")) == "triton"
    assert pick("triton", torch.empty(2**20, 8, 2**11, device="meta")) == "triton"
    steps_first = torch.empty(2**11, 2**10, 2**11, device="meta").transpose(0, 1)
    assert "a row of shape (2048, 2048) takes" in refusal(steps_first)
    assert "a row of shape (5, 2048) takes" in refusal(x[:, :5])
    assert pick("triton", x[:1, :5]) == "triton"
    assert pick("triton", X, torch.empty(3, 8, 4, 7, device="meta")[:, ::2]) == "triton"
    assert "a row of shape (2048, 32, 64) takes" in refusal(X, steps_first.unflatten(2, (32, 64)))


@pytest.mark.usefixtures("_interpreter")
def test_renormalised_kernels_that_are_no_softmax() -> None:
    assert "it renormalises softmax kernels only; normalise by softmax" in refusal(X, fused_renormalization=False)
    with pytest.raises(BackendUnavailable):
        light_conv(X, torch.ones(1, 1), left=0, normalization="abs", renormalize=True, backend="triton")
    with pytest.raises(BackendUnavailable):
        dynamic_conv(X, torch.ones(1, 2, 1, 1), left=0, normalization="abs", renormalize=True, backend="triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what is missing without a GPU")
@pytest.mark.usefixtures("_interpreter")
def test_no_gpu() -> None:
    reason = "torch sees no NVIDIA GPU; use a machine with one and a build of torch for CUDA"
    assert refusal() == f'the kernel back end "triton" cannot serve this: {reason}, or take "auto"'
    assert backend.describe() == f"reference (triton: {reason})"


# The choice of the process


@pytest.mark.usefixtures("_no_triton")
def test_calls_that_leave_the_choice_open_follow_the_process() -> None:
    with use_backend("triton"):
        for requested in ("auto", "triton"):
            with pytest.raises(BackendUnavailable):
                pick(requested, X)
        assert pick("reference", X) == "reference"
        with use_backend("reference"):
            assert pick("auto", X) == "reference"
        with pytest.raises(BackendUnavailable):
            light_conv(X, torch.ones(1, 1), left=0)
    assert pick("auto", X) == "reference"


def test_an_unknown_back_end_for_the_process() -> None:
    with pytest.raises(BackendUnavailable, match=f"^{re.escape(MESSAGE)}$"), use_backend("abacus"):
        pass
