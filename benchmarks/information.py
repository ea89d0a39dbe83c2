"""How fast words and labels are counted, and in how much memory.

    python benchmarks/information.py
    python benchmarks/information.py --documents 100000 --types 200000

Documents are made up as they are counted: words are drawn by Zipf's law, and the time that takes is not counted. One
core does all of it. The last line has what is asked for: a million documents of 100 words in under a minute.
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from depthwise.config import WordDepthsConfig
from depthwise.depth.mutual_information import WordCounter, split_documents
from depthwise.depth.word_table import word_table

CHUNK = 4096
KIBIBYTES_PER_MEBIBYTE = 1024


def drawn(documents: int, length: int, types: int, labels: int) -> Iterator[list[tuple[str, str]]]:
    """Chunks of texts with labels."""
    random = np.random.default_rng(0)
    names = np.array([f"word{number}" for number in range(types)])
    shares = np.cumsum(1 / np.arange(1, types + 1))
    shares /= shares[-1]
    for begin in range(0, documents, CHUNK):
        rows = min(CHUNK, documents - begin)
        words = names[np.searchsorted(shares, random.random((rows, length)))]
        of_rows = random.integers(labels, size=rows)
        yield [(" ".join(row), f"label{label}") for row, label in zip(words.tolist(), of_rows.tolist(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the counting of words and labels.")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=100, help="words of a document")
    parser.add_argument("--types", type=int, default=50_000, help="different words")
    parser.add_argument("--labels", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    counter, seconds = WordCounter(), 0.0
    for chunk in drawn(options.documents, options.length, options.types, options.labels):
        start = time.process_time()
        counter.add(split_documents(chunk))
        seconds += time.process_time() - start
    counts = counter.counts()
    start = time.process_time()
    table = word_table(counts, WordDepthsConfig(), num_layers=options.layers, tokenizer="none")
    making = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        peak //= KIBIBYTES_PER_MEBIBYTE
    print(f"{len(counts.words):,} words; depths {table.histogram().tolist()}; peak {peak / 1024:,.0f} MiB")
    print(f"table made in {making:.1f} s of one core")
    print(f"{counts.num_documents:,} documents of {options.length} words counted in {seconds:.1f} s of one core")


if __name__ == "__main__":
    main()
