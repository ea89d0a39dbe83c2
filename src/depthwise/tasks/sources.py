"""From the names in a recipe to corpora."""

from pathlib import Path

from depthwise.config import DataConfig
from depthwise.data import (
    ConllColumns,
    Corpus,
    HubDataset,
    JoinedCorpus,
    JsonLines,
    JsonReferences,
    LabelledText,
    ParallelText,
    PlainText,
    SquadJson,
    TabbedPairs,
    num_texts_in,
)
from depthwise.errors import DataError

SPLITS = ("train", "valid", "test")
PACKED = ".gz"


def pairs(data: DataConfig, files: tuple[str, ...]) -> Corpus:
    """Texts and their translations: two files, the common beginning of two, or one file of either form."""
    if data.hub is not None:
        source, target = _fields(data, files[0])
        return HubDataset(
            data.hub, (source, target), split=files[0], config=data.hub_config, revision=data.hub_revision
        )
    files = _listed(files)
    if len(files) > 2:
        raise DataError(f"{', '.join(files)} are {len(files)} files; a split is one file or one for each side")
    if len(files) == 2:
        return ParallelText(Path(files[0]), Path(files[1]))
    path = Path(files[0])
    match _form(path):
        case ".jsonl" | ".json":
            return JsonLines(path, _fields(data, files[0]))
        case ".tsv":
            return TabbedPairs(path)
    sides = [_with_ending(path, language) for language in _languages(data, path)]
    if path.is_file() and not all(side.exists() for side in sides):
        raise _one_side(path)
    return ParallelText(*sides)


def labelled(data: DataConfig, files: tuple[str, ...]) -> Corpus:
    """Texts, or pairs of texts, with a label each."""
    if data.hub is not None:
        return HubDataset(
            data.hub, data.text, data.label, split=files[0], config=data.hub_config, revision=data.hub_revision
        )
    if len(files) != 1:
        raise DataError(f"{', '.join(files)} are {len(files)} files; labelled text is one file for each split")
    path = Path(files[0])
    if _form(path) in (".jsonl", ".json"):
        return JsonLines(path, data.text, data.label)
    return LabelledText(path, data.num_texts or num_texts_in(path))


def summaries(data: DataConfig, files: tuple[str, ...]) -> Corpus:
    """Texts and their summaries, in the forms of ``pairs``; in jsonl a text may have a list of summaries."""
    if data.hub is None and len(files) == 1 and _form(Path(files[0])) in (".jsonl", ".json"):
        return JsonReferences(Path(files[0]), *_fields(data, files[0]))
    return pairs(data, files)


def tagged(data: DataConfig, files: tuple[str, ...]) -> JoinedCorpus[ConllColumns]:
    """Words with a tag each, in columns."""
    _check_plain(data, "tagged words")
    columns = (data.word_column, data.tag_column, data.tag_scheme)
    return JoinedCorpus(tuple(ConllColumns(Path(name), *columns) for name in _listed(files)))


def questions(data: DataConfig, files: tuple[str, ...]) -> JoinedCorpus[SquadJson]:
    """Questions about contexts, in the JSON of SQuAD."""
    _check_plain(data, "questions")
    return JoinedCorpus(tuple(SquadJson(Path(name)) for name in _listed(files)))


def running_text(data: DataConfig, files: tuple[str, ...], empty_lines: str = "keep") -> Corpus:
    """Lines of plain text, one field of JSON lines or of ``hub``, or the text of tab-separated values with labels.

    Empty lines are treated as told by default.
    """
    if data.hub is not None:
        return HubDataset(data.hub, data.text[:1], split=files[0], config=data.hub_config, revision=data.hub_revision)
    if len(files) != 1:
        raise DataError(f"{', '.join(files)} are {len(files)} files; running text is one file for each split")
    path = Path(files[0])
    if _form(path) in (".jsonl", ".json"):
        return JsonLines(path, data.text[:1])
    if _form(path) == ".tsv":
        return LabelledText(path, 1)
    return PlainText(path, data.empty_lines or empty_lines)


def num_texts(data: DataConfig, files: tuple[str, ...]) -> int:
    """How many texts an example of labelled text has."""
    if data.hub is not None or _form(Path(files[0])) in (".jsonl", ".json"):
        return len(data.text)
    return data.num_texts or num_texts_in(Path(files[0]))


def _check_plain(data: DataConfig, what: str) -> None:
    if data.hub is not None:
        raise DataError(f"{what} are read from files, not by data.hub; leave it out and name files")


def _listed(files: tuple[str, ...]) -> tuple[str, ...]:
    """Files one by one; on the command line they may stand in one text with commas between them."""
    if len(files) == 1 and "," in files[0] and not _begins_a_name(Path(files[0])):
        return tuple(part.strip() for part in files[0].split(","))
    return files


def _begins_a_name(path: Path) -> bool:
    """Whether there is a file that is called so, or so with an ending."""
    folder = path.parent
    return folder.is_dir() and any(entry.name.startswith(path.name) for entry in folder.iterdir())


def _form(path: Path) -> str:
    """The ending of a file's name that says how it is to be read."""
    return Path(path.stem).suffix if path.suffix == PACKED else path.suffix


def _fields(data: DataConfig, name: str) -> tuple[str, str]:
    if data.source is None or data.target is None:
        raise DataError(f"{name}: say which fields hold the texts with data.source=FIELD data.target=FIELD")
    return data.source, data.target


def _languages(data: DataConfig, path: Path) -> tuple[str, str]:
    if data.source is not None and data.target is not None:
        return data.source, data.target
    if path.is_file():
        raise _one_side(path)
    endings = sorted(found.name.removeprefix(f"{path.name}.") for found in path.parent.glob(f"{path.name}.*"))
    if endings:
        raise DataError(f"{path}.* ends in {', '.join(endings)}; say which two with data.source=... data.target=...")
    raise DataError(f"{path} does not exist; give a file, or the common beginning of two")


def _one_side(path: Path) -> DataError:
    return DataError(
        f"{path} is one side of a translation; name both files with data.<split>=[SOURCE,TARGET], or the beginning "
        "that they share together with data.source and data.target"
    )


def _with_ending(path: Path, language: str) -> Path:
    plain = path.with_name(f"{path.name}.{language}")
    packed = plain.with_name(plain.name + PACKED)
    return packed if packed.exists() and not plain.exists() else plain
