"""The Auto classes of Transformers know Depthwise as soon as both are imported, in either order.

``import depthwise`` must stay light (the command line answers at once, configurations need no torch), so it does not
import Transformers. It registers the configuration class at once if Transformers' Auto configuration is loaded already,
and else right after it gets loaded. The configuration class registers the models when the first configuration is made.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

AUTO_CONFIG_MODULE = "transformers.models.auto.configuration_auto"


def register_with_transformers() -> None:
    """Register now, or as soon as Transformers' Auto configuration is imported."""
    if AUTO_CONFIG_MODULE in sys.modules:
        _register_config(sys.modules[AUTO_CONFIG_MODULE])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _register_config(auto: ModuleType) -> None:
    from depthwise.models.configuration import DepthwiseConfig

    auto.AutoConfig.register(DepthwiseConfig.model_type, DepthwiseConfig, exist_ok=True)


class _AfterImport(MetaPathFinder):
    """Finds nothing itself; steps aside for the one module it waits for and wraps its loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != AUTO_CONFIG_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(Loader):
    """Loads a module as its own loader would, then registers with it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _register_config(module)
