"""What ``import depthwise`` offers, and no more."""

import importlib

import pytest

import depthwise


def test_every_public_name_resolves() -> None:
    for name in depthwise.__all__:
        assert getattr(depthwise, name) is not None


def test_public_names_are_listed_once() -> None:
    assert len(set(depthwise.__all__)) == len(depthwise.__all__)
    assert set(depthwise.__all__) <= set(dir(depthwise))


@pytest.mark.parametrize("name", [name for name in depthwise.__all__ if name != "__version__"])
def test_a_public_name_is_that_of_its_module(name: str) -> None:
    """The same object as in the module that defines it, where it has the same name."""
    found = getattr(depthwise, name)
    assert found.__name__ == name
    assert found.__module__.startswith("depthwise.")
    assert getattr(importlib.import_module(found.__module__), name) is found


def test_every_head_is_public() -> None:
    from depthwise.models.auto import MODELS

    assert {model_class.__name__ for model_class in MODELS.values()} <= set(depthwise.__all__)


def test_star_import() -> None:
    names: dict[str, object] = {}
    exec("from depthwise import *", names)
    assert set(depthwise.__all__) <= set(names)


@pytest.mark.parametrize("name", ["DepthwiseForNothing", "models_", "_private"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'depthwise' has no attribute '{name}'$"):
        getattr(depthwise, name)
    assert not hasattr(depthwise, name)


def test_the_version_is_that_of_the_distribution() -> None:
    assert depthwise.__version__ == importlib.metadata.version("depthwise")
