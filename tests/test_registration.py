"""The Auto classes know our models whichever is imported first, and importing us alone loads nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

STACK = {"num_layers": 1, "num_heads": 2, "ffn_width": 8}
USES = """
config = AutoConfig.from_pretrained(FOLDER)
assert type(config).__name__ == "DepthwiseConfig", config
model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER)
assert type(model).__name__ == "DepthwiseForSeq2SeqLM", model
"""
AUTO = "from transformers import AutoConfig, AutoModelForSeq2SeqLM"
FORGET = """
for name in [name for name in sys.modules if name.split(".")[0] == "depthwise"]:
    del sys.modules[name]
"""
ORDERS = {
    "theirs first": f"{AUTO}\nimport depthwise",
    "modeling_utils first": f"import transformers.modeling_utils\nimport depthwise\n{AUTO}",
    "modeling_utils last": f"import depthwise\nimport transformers.modeling_utils\n{AUTO}",
    "modeling_layers last": f"import depthwise\nimport transformers.modeling_layers\n{AUTO}",
    "a module of ours first": f"import depthwise.models.seq2seq\n{AUTO}",
}


def run(code: str) -> str:
    """What a fresh interpreter prints; warnings are errors there too, where they come from us."""
    result = subprocess.run(
        [sys.executable, "-W", "error:::depthwise", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved translation model."""
    from depthwise.models.configuration import DepthwiseConfig
    from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

    folder = tmp_path_factory.mktemp("run")
    DepthwiseForSeq2SeqLM(DepthwiseConfig(vocab_size=9, width=4, encoder=STACK, decoder=STACK)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_auto_classes_know_us(folder: Path, imports: str) -> None:
    run(f"{imports}\nFOLDER = {str(folder)!r}\n{USES}")


def test_importing_loads_neither_torch_nor_transformers() -> None:
    """Nor does looking at what there is."""
    code = "import sys, depthwise; dir(depthwise); print({'torch', 'transformers'} & set(sys.modules))"
    assert run(code) == "set()"


def test_importing_again_does_no_harm(folder: Path) -> None:
    """Reloaded before and after Transformers is there, then forgotten and imported from scratch, as notebooks do.

    No second watcher of imports is set up, none stays behind, and other imports are left alone.
    """
    count = "sum(type(finder).__name__ == '_AfterImport' for finder in sys.meta_path)"
    run(
        "import sys, importlib, importlib.util, depthwise\n"
        "importlib.reload(depthwise)\n"
        f"assert {count} == 1\n"
        "assert importlib.util.find_spec('no_such_module') is None\n"
        f"{AUTO}\n"
        f"assert {count} == 0\n"
        "assert sys.modules[AutoConfig.__module__].__file__.endswith('configuration_auto.py')\n"
        f"FOLDER = {str(folder)!r}\n{USES}"
        f"importlib.reload(depthwise)\n{USES}"
        f"{FORGET}\nimport depthwise\n{USES}"
    )


def test_every_auto_class_has_its_model() -> None:
    """In this process, where everything is loaded already."""
    from transformers import AutoConfig

    from depthwise.models.auto import MODELS, register_models
    from depthwise.models.configuration import DepthwiseConfig

    register_models()
    assert len(MODELS) == 7
    for auto_class, model_class in MODELS.items():
        assert auto_class._model_mapping[DepthwiseConfig] is model_class
    assert AutoConfig.for_model("depthwise", vocab_size=9, width=4, encoder=STACK).width == 4
