"""From text to the ids of a fairseq model and back, as tokenizer files that Transformers reads.

Two kinds are written. Where byte-pair codes are known, Transformers' own ``FSMTTokenizer`` does what the published
models expect: Moses, byte-pair encoding, dictionary, and the way back. Where they are not, words are looked up as they
stand between blanks, and the tokenizer says that it expects text which is prepared already.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from depthwise.errors import CheckpointError
from depthwise.interop.fairseq_dictionary import SPECIALS, ids_by_type

CODE_FILES = ("bpecodes", "code", "codes", "bpe.codes", "bpecodes.txt", "codes.txt")
"""What a file of byte-pair codes is called; anything that ends in ``.codes`` or ``.bpecodes`` is one too."""
END_OF_WORD, CONTINUES = "</w>", "@@"
"""How the codes mark the last piece of a word, and how the dictionary marks all others."""
BOS, PAD, EOS, UNK = SPECIALS
SPECIAL_TOKENS = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNK, "pad_token": PAD}
TARGET = "target"
"""The subfolder of a run for the target's tokenizer."""


@dataclass(frozen=True)
class Words:
    """Types of a model, and how its text is to be treated."""

    types: Sequence[str]
    max_length: int | None
    lowercase: bool = False


def find_codes(folder: Path) -> list[Path]:
    """Files of byte-pair codes: those with a usual name, else all that end like one."""
    usual = [folder / name for name in CODE_FILES if (folder / name).is_file()]
    return usual or sorted(path for path in folder.iterdir() if path.suffix in (".codes", ".bpecodes"))


def read_codes(path: Path) -> list[tuple[str, str]]:
    """The merges in order, each once. They count the end of a word as part of its last letter (version 0.2).

    fastBPE writes a count behind each merge and no version; it means the same.
    """
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(f"{path} cannot be read as text; give a file of byte-pair codes") from None
    version = lines.pop(0).split()[-1] if lines[0].startswith("#version:") else None
    merges = [tuple(line.strip("\r ").split(" ")) for line in lines]
    is_fast = version is None and all(len(merge) == 3 and merge[2].isdecimal() for merge in merges)
    pairs = [(merge[0], merge[1]) for merge in merges if len(merge) == (3 if is_fast else 2)]
    if len(pairs) != len(merges):
        raise CheckpointError(f"{path} holds lines that are no pair of pieces; give a file of byte-pair codes")
    if not is_fast and version != "0.2":
        found = f"version {version}" if version else "an early version, without a number"
        raise CheckpointError(f"{path} holds codes of {found}; only version 0.2 can be used, learn or convert to it")
    # No word holds a blank, so that a merge with one never applies; Transformers would misread its line.
    return list(dict.fromkeys(pair for pair in pairs if not any(letter.isspace() for letter in "".join(pair))))


def write_moses_tokenizer(
    folder: Path, source: Words, target: Words, merges: Sequence[tuple[str, str]], languages: tuple[str, str]
) -> None:
    """Files of an ``FSMTTokenizer`` that takes the source language and gives the target language.

    The subfolder ``target`` has one that takes the target language, for labels.
    """
    _write_moses(folder, source, target, merges, languages)
    _write_moses(folder / TARGET, target, target, merges, (languages[1], languages[1]))


def _write_moses(
    folder: Path, taken: Words, given: Words, merges: Sequence[tuple[str, str]], languages: tuple[str, str]
) -> None:
    folder.mkdir(exist_ok=True)
    for file, words in (("vocab-src.json", taken), ("vocab-tgt.json", given)):
        _write_json(folder / file, {_piece(name): row for name, row in ids_by_type(words.types).items()})
    (folder / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges), encoding="utf-8")
    settings = {
        "tokenizer_class": "FSMTTokenizer",
        "langs": list(languages),
        "do_lower_case": taken.lowercase,
        **SPECIAL_TOKENS,
        "sep_token": EOS,
        **_settings(taken),
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _piece(name: str) -> str:
    """A type of the dictionary as Transformers' tokenizer calls it: ``le@@ er`` is ``le er</w>``."""
    if name in SPECIALS:
        return name
    return name.removesuffix(CONTINUES) if name.endswith(CONTINUES) and name != CONTINUES else name + END_OF_WORD


def write_word_tokenizer(folder: Path, words: Words, *, for_prompts: bool = False) -> None:
    """A tokenizer that looks up what stands between blanks and says that it expects prepared text.

    Sequences end in ``</s>``, as sources and targets of translation do; prompts of a language model begin with it.
    """
    ids = ids_by_type(words.types)
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if words.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A" if for_prompts else f"$A {EOS}", special_tokens=[(EOS, ids[EOS])]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        expects_pretokenized=True,
        padding_side="left" if for_prompts else "right",
        **SPECIAL_TOKENS,
        **_settings(words),
    ).save_pretrained(folder)


def _settings(words: Words) -> dict[str, Any]:
    """What both kinds have in common. Special tokens have no meaning inside of text, as in fairseq."""
    limit = {} if words.max_length is None else {"model_max_length": words.max_length}
    return {
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
        **limit,
    }


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
