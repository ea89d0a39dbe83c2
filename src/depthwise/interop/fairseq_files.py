"""Which files in a folder of fairseq are the checkpoint and the dictionaries of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from depthwise.errors import CheckpointError
from depthwise.interop.fairseq_dictionary import language_token, read_dictionary
from depthwise.interop.fairseq_options import is_language_model

PREFERRED = ("checkpoint_best.pt", "checkpoint_last.pt")
LANGUAGE_OPTIONS = "--source-lang and --target-lang"


@dataclass(frozen=True)
class Dictionaries:
    """The types of both sides; a language model has one dictionary, which stands for both.

    ``languages`` are source and target where there is one of each.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    languages: tuple[str, str] | None = None


def find_checkpoint(folder: Path, name: str | None = None) -> Path:
    """The checkpoint with this name; else the best, the last or the only one."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; give the one that holds the checkpoint and its dictionaries")
    found = sorted(path.name for path in folder.glob("*.pt"))
    if name is not None:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}; {_there_is(found)}")
        return folder / name
    for preferred in PREFERRED:
        if preferred in found:
            return folder / preferred
    if len(found) != 1:
        remedy = "choose one with --checkpoint" if found else "give a folder with a file such as checkpoint_best.pt"
        raise CheckpointError(f"{folder} has no checkpoint_best.pt; {_there_is(found)}, {remedy}")
    return folder / found[0]


def find_dictionaries(
    folder: Path,
    args: Mapping[str, Any],
    num_rows: Mapping[str, int],
    *,
    pairs: Sequence[str] = (),
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> Dictionaries:
    """The dictionaries of a model with these arguments and numbers of embeddings (``encoder``, ``decoder``).

    ``pairs`` are the language pairs of a multilingual model, whose languages share one dictionary per side.
    """
    if (is_language_model(args) or pairs) and (source_lang or target_lang):
        what = "this model names its own languages" if pairs else "a language model has one dictionary, dict.txt"
        raise CheckpointError(f"{what}; leave {LANGUAGE_OPTIONS} out")
    if is_language_model(args):
        types = _read(folder, "dict.txt")
        _check_size(types, folder / "dict.txt", "decoder", num_rows)
        return Dictionaries(types, types)
    named = [_of_pair(pair) for pair in pairs] or [_languages(folder, args, num_rows, source_lang, target_lang)]
    added = _language_tokens(args, named) if pairs else ()
    source = _shared(folder, [source for source, _ in named], "encoder", num_rows, added)
    target = _shared(folder, [target for _, target in named], "decoder", num_rows, added)
    return Dictionaries(source, target, named[0] if len(named) == 1 else None)


def _of_pair(pair: str) -> tuple[str, str]:
    source, dash, target = pair.partition("-")
    if not dash:
        raise CheckpointError(f'"{pair}" in lang_pairs is no pair of languages such as de-en; correct the arguments')
    return source, target


def _language_tokens(args: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Types behind the dictionary, one for each language in alphabetical order, where training used them."""
    if not (args.get("encoder_langtok") or args.get("decoder_langtok")):
        return ()
    return tuple(map(language_token, sorted({language for pair in pairs for language in pair})))


def _languages(
    folder: Path, args: Mapping[str, Any], num_rows: Mapping[str, int], source_lang: str | None, target_lang: str | None
) -> tuple[str, str]:
    """Source and target as the user or the arguments name them, else as two dictionaries fit the embeddings."""
    source, target = source_lang or args.get("source_lang"), target_lang or args.get("target_lang")
    if source and target:
        return source, target
    files = sorted(path.name for path in folder.glob("dict.*.txt"))
    sizes = {name.removeprefix("dict.").removesuffix(".txt"): len(_read(folder, name)) for name in files}
    fitting = [
        (one, other)
        for one, other in permutations(sizes, 2)
        if source in (one, None) and target in (other, None)
        if (sizes[one], sizes[other]) == (num_rows.get("encoder"), num_rows.get("decoder"))
    ]
    if len(fitting) != 1:
        raise CheckpointError(
            f"the checkpoint in {folder} does not name its languages; {_there_is(files)}, give {LANGUAGE_OPTIONS}"
        )
    return fitting[0]


def _shared(
    folder: Path, languages: Sequence[str], side: str, num_rows: Mapping[str, int], added: Sequence[str]
) -> tuple[str, ...]:
    """The one dictionary of all languages of a side, with the types that stand for languages behind it."""
    first, *others = dict.fromkeys(f"dict.{language}.txt" for language in languages)
    types = _read(folder, first)
    for other in others:
        if _read(folder, other) != types:
            raise CheckpointError(f"{folder / other} differs from {first}; languages of one {side} share a dictionary")
    types = (*types, *(token for token in added if token not in types))
    _check_size(types, folder / first, side, num_rows)
    return types


def _read(folder: Path, name: str) -> tuple[str, ...]:
    if not (folder / name).is_file():
        found = sorted(path.name for path in folder.glob("dict*.txt"))
        remedy = "put the dictionary of the training data beside the checkpoint"
        raise CheckpointError(f"{folder} has no {name}; {_there_is(found)}, {remedy}")
    return read_dictionary(folder / name)


def _check_size(types: Sequence[str], path: Path, side: str, num_rows: Mapping[str, int]) -> None:
    rows = num_rows.get(side)
    if rows is not None and rows != len(types):
        raise CheckpointError(
            f"{path} makes {len(types)} types with the special ones, but the {side} has {rows} embeddings; give the "
            "dictionary that the model was trained with"
        )


def _there_is(names: Sequence[str]) -> str:
    return f"there is {', '.join(names)}" if names else "there is none"
