"""Makes a text to pretrain encoders on out of the training data of other tasks.

    python benchmarks/pretraining_text.py                  # data/pretraining/train.txt and valid.txt

Sentences stand on lines of their own, an empty line parts documents. Articles of WikiText are documents, and so are
reviews, news, contexts of questions and newswire articles; sentences that stand alone in their set are lines of
documents of a hundred. Nothing but training data is read, and no label; valid.txt has the validation data of WikiText.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

Document = list[str]
END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
SPACED_END = re.compile(r"(?<= [.!?]) (?=[^ ])")
HEADING = re.compile(r" = [^=].* = ")
LINES = 100
REVIEWS = ("imdb/train.tsv", "amazon16/all.train.tsv", "agnews_10k/train.tsv")
SENTENCES = ("glue_sst2/train.tsv", "mr/train.tsv", "glue_cola/train.tsv", "glue_stsb/train.tsv", "trec/train.tsv")
PASSAGES = ("glue_rte/train.tsv",)
QUESTIONS = (
    *("squad2_half_dev/train.by_article.json", "squadshifts/amazon_reviews_v1.0.json"),
    *("squadshifts/new_wiki_v1.0.json", "squadshifts/reddit_v1.0.json"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a text to pretrain encoders on.")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("data/pretraining"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "train.txt", training_documents(options.data))
    write(options.out / "valid.txt", articles(options.data / "wikitext2/valid.txt"))


def write(path: Path, documents: Iterator[Document]) -> None:
    num_documents = num_lines = num_chars = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            num_documents, num_lines = num_documents + 1, num_lines + len(document)
            num_chars += file.write("\n".join(document) + "\n\n")
    print(f"{path}: {num_documents:,} documents, {num_lines:,} sentences, {num_chars:,} characters")


def training_documents(data: Path) -> Iterator[Document]:
    yield from articles(data / "wikitext2/train.txt")
    for name in REVIEWS:
        for texts in rows(data / name):
            yield sentences(" ".join(texts))
    for name in PASSAGES:
        for texts in rows(data / name):
            yield sentences(texts[0])
    for name in SENTENCES:
        alone = list(dict.fromkeys(text for texts in rows(data / name) for text in texts))
        yield from (alone[begin : begin + LINES] for begin in range(0, len(alone), LINES))
    for name in QUESTIONS:
        for article in json.loads((data / name).read_text(encoding="utf-8"))["data"]:
            yield [line for part in article["paragraphs"] for line in sentences(part["context"])]
    yield from newswire(data / "conll2003/train.txt")


def articles(path: Path) -> Iterator[Document]:
    """Those of WikiText, without headings; its blanks around punctuation go, its unknown words stay out."""
    document: Document = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if HEADING.fullmatch(line) and document:
            yield document
            document = []
        elif line.strip() and not line.strip().startswith("="):
            document += [plain(part) for part in SPACED_END.split(line.strip()) if "<unk>" not in part]
    if document:
        yield document


def rows(path: Path) -> Iterator[list[str]]:
    """The texts of lines that begin with a label."""
    for line in path.read_text(encoding="utf-8").splitlines():
        _, *texts = line.split("\t")
        yield [text for text in texts if text.strip()]


def sentences(text: str) -> Document:
    text = re.sub(r"(<br ?/?>|\s)+", " ", text).strip()
    return [part for part in END.split(text) if part.strip()]


def newswire(path: Path) -> Iterator[Document]:
    """Articles of the four columns of CoNLL."""
    for article in path.read_text(encoding="utf-8").split("-DOCSTART-")[1:]:
        parts = [[line.split()[0] for line in part.splitlines() if line.strip()] for part in article.split("\n\n")]
        yield [" ".join(words) for words in parts[1:] if words]


def plain(sentence: str) -> str:
    """A sentence of WikiText with punctuation where people put it."""
    sentence = re.sub(r" @([-,.])@ ", r"\1", sentence)
    sentence = re.sub(r" ([.,;:!?%)\]])", r"\1", sentence)
    return re.sub(r"([(\[$]) ", r"\1", sentence).strip()


if __name__ == "__main__":
    main()
