"""Tokenizers that are trained once for the same text: seeds, controls and sweeps need no others.

They lie in the cache under a key made of the content of the corpus, the options and the version of the library that
trains them, as ``Tokenizers.save`` writes them.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import tokenizers

from depthwise.data.corpora import Corpus
from depthwise.data.kept import kept
from depthwise.data.lines import LineRules
from depthwise.data.store import write_meta
from depthwise.data.tokenizers import TokenizerOptions, Tokenizers, load_tokenizers, train_tokenizers

FORMAT = 1


def trained_tokenizers(
    corpus: Corpus, options: TokenizerOptions, rules: LineRules, *, joint: bool, cache: Path
) -> Tokenizers:
    """What ``train_tokenizers`` gives, from the cache if it is there and whole."""

    def write(folder: Path) -> None:
        train_tokenizers(corpus, options, rules, joint=joint).save(folder)
        files = (path for path in folder.rglob("*") if path.is_file())
        write_meta(folder, {}, sorted(path.relative_to(folder).as_posix() for path in files))

    place = cache / f"tokenizers-{_key(corpus, options, rules, joint=joint)}"
    again = f"tokenizers are trained again on {corpus.name}"
    return load_tokenizers(kept(place, write, what="trained tokenizers", again=again))


def _key(corpus: Corpus, options: TokenizerOptions, rules: LineRules, *, joint: bool) -> str:
    parts = {
        "format": FORMAT,
        "library": tokenizers.__version__,
        "corpus": corpus.identity(),
        "options": asdict(options),
        "rules": asdict(rules),
        "joint": joint,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
