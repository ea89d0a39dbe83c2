"""Files of fairseq's trainer are read without running what they hold, in either format of torch and of any age."""

import argparse
import collections
import io
import os
import pickle
import re
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from depthwise.errors import CheckpointError
from depthwise.interop.fairseq import read_checkpoint
from depthwise.shapes import Tensor

State = dict[str, Tensor]
WEIGHTS = {"encoder.embed_tokens.weight": torch.randn(5, 4), "decoder.version": torch.tensor([3.0])}
ARGS = {"arch": "lightconv", "encoder_kernel_size_list": [3, 7], "source_lang": "de", "dropout": 0.3}
NAMESPACE = argparse.Namespace(**ARGS)


@contextmanager
def classes(*names: str) -> Iterator[dict[str, type]]:
    """Classes under these full names, importable while a file is written and gone afterwards."""
    made: dict[str, type] = {}
    modules: dict[str, types.ModuleType] = {}
    for full_name in names:
        module_name, _, name = full_name.rpartition(".")
        parts = module_name.split(".")
        for end in range(1, len(parts) + 1):
            parent = ".".join(parts[:end])
            assert parent not in sys.modules or parent in modules, f"{parent} is really installed"
            sys.modules[parent] = modules.setdefault(parent, types.ModuleType(parent))
        made[name] = type(name, (), {"__module__": module_name})
        setattr(modules[module_name], name, made[name])
    try:
        yield made
    finally:
        for module_name in modules:
            del sys.modules[module_name]


def filled(made: type, **attributes: Any) -> Any:
    found = made()
    vars(found).update(attributes)
    return found


class Calls:
    """Asks for a function to be called when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


@pytest.fixture(params=["zip", "legacy"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any], Path]:
    """Write a file in each format of torch in turn."""

    def saved(content: Any) -> Path:
        path = tmp_path / "checkpoint.pt"
        torch.save(content, path, _use_new_zipfile_serialization=request.param == "zip")
        assert zipfile.is_zipfile(path) == (request.param == "zip")
        return path

    return saved


def assert_read(path: Path, args: dict[str, Any], state: State) -> None:
    found_args, found_state = read_checkpoint(path)
    assert found_args == args
    assert found_state.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in found_state.items())


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    message = str(caught.value)
    assert message.startswith(f"{path} ")
    assert "\n" not in message
    return message.removeprefix(f"{path} ")


# What is read


def test_a_file_of_the_trainer(golden_folder: Path) -> None:
    args, state = read_checkpoint(golden_folder / "fairseq_checkpoint" / "checkpoint_best.pt")
    assert (args["arch"], args["source_lang"], args["decoder_kernel_size_list"]) == ("lightconv", "de", [3, 7])
    assert len(state) == 95


def test_older_generations_with_meters_inside(
    golden: Any, older: Callable[..., State], write: Callable[[Any], Path]
) -> None:
    state = older(golden.state, tied=golden.args["share_all_embeddings"])
    with classes("fairseq.meters.AverageMeter", "fairseq.meters.TimeMeter", "fairseq.meters.StopwatchMeter") as made:
        train_meters = collections.OrderedDict(
            train_loss=filled(made["AverageMeter"], val=3.2, avg=torch.tensor(3.1), sum=31.0, count=10),
            wps=filled(made["TimeMeter"], init=0, start=1548978901.5, n=40),
            train_wall=filled(made["StopwatchMeter"], sum=12.5, n=3, start_time=None),
        )
        path = write(
            {
                "args": argparse.Namespace(**golden.args),
                "model": collections.OrderedDict(state),
                "optimizer_history": [{"criterion_name": "CrossEntropyCriterion", "best_loss": 2.5}],
                "last_optimizer_state": {"state": {0: {"exp_avg": torch.randn(3)}}, "param_groups": []},
                "extra_state": {"train_iterator": {"epoch": 3}, "val_loss": 4.5, "train_meters": train_meters},
            }
        )
    assert "fairseq" not in sys.modules
    assert_read(path, golden.args, state)
    assert "fairseq" not in sys.modules


def test_statistics_of_numpy(write: Callable[[Any], Path]) -> None:
    numpy = pytest.importorskip("numpy")
    extra = {"best": numpy.float64(3.5), "history": numpy.arange(3), "kinds": collections.defaultdict(list, a=[1])}
    assert_read(write({"args": NAMESPACE, "model": WEIGHTS, "extra_state": extra}), ARGS, WEIGHTS)


def test_a_parameter_among_the_weights(write: Callable[[Any], Path]) -> None:
    weights = {name: torch.nn.Parameter(tensor) for name, tensor in WEIGHTS.items()}
    assert_read(write({"args": NAMESPACE, "model": weights}), ARGS, WEIGHTS)


def test_half_precision_becomes_single(write: Callable[[Any], Path]) -> None:
    weights = {"half": torch.randn(3).half(), "brain": torch.randn(3).bfloat16(), "count": torch.tensor([7])}
    _, state = read_checkpoint(write({"args": NAMESPACE, "model": weights}))
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "half": torch.float32,
        "brain": torch.float32,
        "count": torch.int64,
    }
    assert torch.equal(state["half"], weights["half"].float())


@pytest.mark.parametrize("model", [argparse.Namespace(**ARGS), {**ARGS}, {**ARGS, "arch": None, "_name": "lightconv"}])
def test_a_newer_configuration(model: Any, write: Callable[[Any], Path]) -> None:
    config = {
        "_name": None,
        "common": {"fp16": False},
        "task": {"_name": "translation", "source_lang": "xx", "target_lang": "en"},
        "model": model,
        "tokenizer": {"_name": "moses", "moses_no_escape": False},
        "bpe": argparse.Namespace(_name="subword_nmt", bpe_codes="codes"),
    }
    args, state = read_checkpoint(write({"args": None, "cfg": config, "model": WEIGHTS}))
    named = {"task": "translation", "tokenizer": "moses", "bpe": "subword_nmt", "target_lang": "en"}
    assert {**ARGS, **named}.items() <= args.items()
    assert state.keys() == WEIGHTS.keys()


def test_configuration_objects(write: Callable[[Any], Path]) -> None:
    """Containers and nodes of OmegaConf, an enumeration of fairseq, references and gaps."""
    names = ("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.nodes.AnyNode")
    metadata, enumeration = "omegaconf.base.ContainerMetadata", "fairseq.dataclass.constants.Choice"
    with classes(*names, metadata, enumeration) as made:

        def node(value: Any) -> Any:
            return filled(made["AnyNode"], _val=value, _metadata=None)

        def container(content: Any, kind: str = "DictConfig") -> Any:
            about = filled(
                made["ContainerMetadata"],
                ref_type=Any,
                object_type=dict,
                key_type=str,
                element_type=int,
                resolver_cache=collections.defaultdict(dict),
            )
            found = filled(made[kind], _content=content, _metadata=about, _parent=None)
            for item in content.values() if isinstance(content, dict) else content:
                item._parent = found
            return found

        made["Choice"].__reduce__ = lambda self: (made["Choice"], ("c10d",))  # type: ignore[method-assign]
        made["Choice"].__init__ = lambda self, *value: None  # type: ignore[misc]
        model = {
            "_name": node("transformer_lm"),
            "decoder_embed_dim": node(16),
            "cutoffs": container([node(3), node(7)], "ListConfig"),
            "backend": filled(made["Choice"], _value_="c10d"),
            "tokens_per_sample": node("${task.tokens_per_sample}"),
            "nothing": node("???"),
        }
        task = {"_name": node("language_modeling"), "tokens_per_sample": node(64)}
        path = write({"cfg": container({"model": container(model), "task": container(task)}), "model": WEIGHTS})
    args, _ = read_checkpoint(path)
    assert args == {
        "arch": "transformer_lm",
        "decoder_embed_dim": 16,
        "cutoffs": [3, 7],
        "backend": "c10d",
        "task": "language_modeling",
        "tokens_per_sample": 64,
    }


# What is refused


@pytest.mark.parametrize("place", ["args", "model", "extra_state", "weight"])
def test_code_is_refused_and_not_run(place: str, write: Callable[[Any], Path], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    attack = Calls(os.system, f"touch {trace}")
    content: dict[str, Any] = {"args": NAMESPACE, "model": dict(WEIGHTS), "extra_state": {}}
    if place == "weight":
        content["model"]["decoder.embed_tokens.weight"] = attack
    else:
        content[place] = attack
    message = refused(write(content))
    assert re.match(r"asks for (posix|nt)\.system, which is refused because it could run code; give ", message)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (eval, "builtins.eval"),
        (getattr, "builtins.getattr"),
        (__import__, "builtins.__import__"),
        (pickle.loads, "pickle.loads"),
        (torch.hub.load, "torch.hub.load"),
        (torch.load, "torch.serialization.load"),
    ],
)
def test_the_function_is_named(function: Callable[..., Any], name: str, write: Callable[[Any], Path]) -> None:
    path = write({"args": NAMESPACE, "model": WEIGHTS, "extra_state": Calls(function, "1 + 1")})
    assert refused(path).startswith(f"asks for {name}, which is refused")


def test_a_newer_protocol_hides_nothing(tmp_path: Path) -> None:
    content = {"posix": "system", "model": WEIGHTS, "first": Calls(os.getpid), "second": Calls(os.getcwd)}
    torch.save(content, tmp_path / "checkpoint.pt", pickle_protocol=4)
    assert re.match(r"asks for (posix|nt)\.getpid, which is refused", refused(tmp_path / "checkpoint.pt"))


def test_functions_of_fairseq_are_not_called(write: Callable[[Any], Path]) -> None:
    called = []
    with classes("fairseq.meters.AverageMeter") as made:
        function = made["AverageMeter"]
        function.__init__ = lambda self, *arguments: called.append(arguments)  # type: ignore[misc]
        path = write({"args": NAMESPACE, "model": WEIGHTS, "extra_state": Calls(function, 1, 2)})
        assert_read(path, ARGS, WEIGHTS)
    assert called == []


def test_what_the_user_allows_stays_allowed(write: Callable[[Any], Path]) -> None:
    path = write({"args": NAMESPACE, "model": WEIGHTS})
    earlier = set(torch.serialization.get_safe_globals())
    with torch.serialization.safe_globals([argparse.Namespace]):
        read_checkpoint(path)
        assert set(torch.serialization.get_safe_globals()) == {*earlier, argparse.Namespace}
    read_checkpoint(path)
    assert set(torch.serialization.get_safe_globals()) == earlier


CANNOT_BE_READ = "cannot be read: it is damaged, incomplete or no checkpoint; copy it again"
NO_TORCH = "is no file of torch; give a checkpoint that fairseq saved"


@pytest.mark.parametrize("kept", [0.98, 0.5, 0.1])
def test_a_file_cut_short(kept: float, write: Callable[[Any], Path]) -> None:
    path = write({"args": NAMESPACE, "model": {"decoder.embed_tokens.weight": torch.randn(200, 20)}})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert refused(path) == CANNOT_BE_READ


def test_scrambled_bytes(write: Callable[[Any], Path]) -> None:
    path = write({"args": NAMESPACE, "model": WEIGHTS})
    whole = path.read_bytes()
    start = whole.index(b"encoder.embed_tokens")
    path.write_bytes(whole[: start - 40] + b"\xff" * 60 + whole[start + 20 :])
    assert refused(path) == CANNOT_BE_READ


def plain_pickle() -> bytes:
    return pickle.dumps({"args": NAMESPACE, "model": Calls(os.getpid)})


def other_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme/text.txt", "data.pkl")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"<!DOCTYPE html>", b"\x00" * 100, pickle.dumps(7, protocol=2), plain_pickle(), other_zip()],
    ids=["empty", "page", "zeros", "number", "pickle", "zip"],
)
def test_another_kind_of_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    assert refused(path) == NO_TORCH


@pytest.mark.parametrize("name", ["absent.pt", "."])
def test_no_file(name: str, tmp_path: Path) -> None:
    assert refused(tmp_path / name) == "is no file; give a checkpoint such as checkpoint_best.pt"


@pytest.mark.parametrize(
    "content", [{"args": NAMESPACE}, {"args": NAMESPACE, "model": {}}, {"args": NAMESPACE, "model": {"a": 1}}, [], 7]
)
def test_no_weights(content: Any, write: Callable[[Any], Path]) -> None:
    assert refused(write(content)) == 'holds no weights under "model"; give a checkpoint that fairseq saved'


@pytest.mark.parametrize(
    "content", [{}, {"args": None}, {"cfg": None}, {"cfg": {"model": None}}, {"cfg": {"model": {"dropout": 0.1}}}]
)
def test_no_arguments(content: dict[str, Any], write: Callable[[Any], Path]) -> None:
    assert refused(write({**content, "model": WEIGHTS})) == (
        'holds no arguments under "args" or "cfg"; give the checkpoint as training saved it, not its weights alone'
    )
