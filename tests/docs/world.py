"""The folder in which the blocks of a page are run: small texts under the names that pages use, and tiny runs.

A run that a page uses and has not trained is trained, in miniature, when it is first asked for: by the recipe whose
header says that it writes there, or by what ``RUNS`` says of the page.
"""

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import BertConfig, BertModel, BertTokenizer

from depthwise.config import PRETRAINED, Recipe, built_in, read_recipe, recipe_yaml
from depthwise.data import number_words
from depthwise.interop.hf import convert_hf
from depthwise.training.run import train

from .blocks import REPOSITORY
from .calling import run_main
from .miniature import UPDATES, has_tokenizer_of_run, miniature
from .servers import Servers

RECORDS = "docs/results/structure.json"
"""What pages draw from as it is."""
DEMO_NUMBERS = number_words.split_numbers(200, 100, 12)
"""Enough for validation to calibrate a risk by."""
SPLITS = ("train", "valid", "test")
LABELLED = ["good\ta great film", "bad\ta terrible film", "good\tgreat, the end", "bad\tthe end was terrible"]
SCORED = ["0.5\ta great film", "1.5\ta terrible film", "-2\tgreat, the end", "3\tthe end"]
PAIRS = [
    *(("good morning", "guten Morgen"), ("a great film", "ein toller Film")),
    *(("the end", "das Ende"), ("a film", "ein Film")),
]
TAGGED = "EU B-ORG\nrejects O\nGerman B-MISC\ncalls O\n\nPeter B-PER\nBlackburn I-PER\n\nBrussels B-LOC\n"
RUNNING = "a great film\nthe end was terrible\n\ngreat , the end\na terrible film\n"
TIMES = {"train": 3, "valid": 1, "test": 1}
"""How often each split repeats its texts."""
TRANSLATE = "data.train=train data.valid=valid data.test=test data.source=en data.target=de"
CLASSIFY = "data.train=train.tsv data.valid=valid.tsv data.test=test.tsv"
TAG = "data.train=tagged.txt data.valid=tagged.txt data.test=tagged.txt"
RECIPE = "base: translation/multi30k\ndata: {train: train, valid: valid, test: test, source: en, target: de}\n"
LEAVING = f"start/translate {TRANSLATE} model.exits={{}}"
CLASSIFIER = f"start/classify {CLASSIFY} model.exits={{}}"
SETS = ("trec", "mr", "glue_sst2", "glue_cola", "glue_stsb", "glue_rte", "imdb", "agnews_10k", "amazon16/all.")
"""Of labelled texts."""
ARTICLES = (
    *("squad2_half_dev/train.by_article.json", "squadshifts/amazon_reviews_v1.0.json"),
    *("squadshifts/new_wiki_v1.0.json", "squadshifts/reddit_v1.0.json"),
)
ENCODERS = ("runs/minilm", "runs/bert")
"""Runs that are imported and not trained."""
FIXED = {"runs/alberta-small-fixed-sst2": "classification/alberta-small-sst2 model.from=runs/alberta-small-fixed"}
RUNS: dict[str, dict[str, str]] = {
    "": {
        **{"RUN": LEAVING, "RUN1": LEAVING, "RUN2": f"{LEAVING} seed=2", "RUN3": f"{LEAVING} seed=3"},
        **{"OTHER": f"{LEAVING} seed=2", "runs/mine": LEAVING, "runs/translator": LEAVING, "runs/iwslt": LEAVING},
        **dict.fromkeys(ENCODERS, "depthwise convert hf DIR"),
        "runs/seed1": LEAVING,
        "runs/seed2": f"{LEAVING} seed=2",
        "runs/other": f"start/translate {TRANSLATE} model.exits.depths=[1]",
        "runs/classifier": CLASSIFIER,
        "runs/tagger": f"start/tag {TAG} model.size=tiny model.exits={{}}",
    },
    "docs/depth.md": {"runs/mine": f"{LEAVING} model.policy.kind=poisson_binomial"},
    "docs/calibration.md": {
        "runs/mine": f"{CLASSIFIER} data.valid=large.tsv model.encoder.num_layers=3",
        "runs/larger": f"{CLASSIFIER} data.valid=large.tsv model.encoder.num_layers=3",
        "runs/dat-multi30k-aligned": f"translation/dat-multi30k-aligned {TRANSLATE} data.valid=large",
    },
    "docs/structure.md": {"RUN": "classification/alberta-small-sst2 model.from=runs/alberta-small", **FIXED},
    "docs/results.md": FIXED,
    "docs/in-advance.md": {"runs/mine": f"start/classify {CLASSIFY} model.word_depths={{}}"},
}
"""Recipes of runs that no header names: on all pages, and on single ones."""


class World:
    """A folder for one page. ``store`` keeps what was trained for others, ``cache`` their tokenised texts."""

    def __init__(self, page: str, folder: Path, store: Path) -> None:
        self.page, self.folder, self.store = page, folder.resolve(), store
        self.runs = {**trained_by_recipes(), **RUNS[""], **RUNS.get(page, {})}
        self.supplied: set[str] = set()
        self.promised: dict[str, tuple[Recipe, str]] = {}
        self.servers = Servers()
        write_files(folder)

    def recipe(self, name: str, changes: list[str]) -> Recipe:
        """A recipe as the command line reads it; runs that it builds on are there then."""
        recipe = read_recipe(name, changes)
        for other in others_of(recipe):
            self.run(other)
        return recipe

    def train(self, recipe: Recipe, out: Path, command: str) -> None:
        """Promise a run, which is trained in miniature when anything asks for it, or at the end of the page.

        What a page trains takes the place of what it was supplied with; a folder that it trained once is refused to
        another recipe, as ``depthwise train`` does.
        """
        name = str(out)
        small = miniature(recipe, self.data_of(recipe), str(self.store / "cache"))
        if self.promised.setdefault(name, (small, command))[0] != small:
            raise AssertionError(f"{name} was trained by another recipe before; give another --out")
        if name in self.supplied:
            shutil.rmtree(self.folder / name)
            self.supplied.remove(name)

    def _make(self, small: Recipe, command: str, out: Path) -> None:
        """Train in miniature, or take what was trained in the same way before."""
        text = recipe_yaml(small)
        for kept in self.store.glob("*/asked.yaml"):
            if kept.read_text(encoding="utf-8") == text:
                shutil.copytree(kept.parent / "run", out)
                return
        train(small, out, command)
        if not others_of(small):
            place = self.store / str(len(list(self.store.iterdir())))
            shutil.copytree(out, place / "run")
            (place / "asked.yaml").write_text(text, encoding="utf-8")

    def run(self, name: str) -> None:
        """Have a run under this name, unless there is one."""
        path = self.folder / name
        if path.exists():
            return
        if name in self.promised:
            self._make(*self.promised[name], path)
            return
        self.supplied.add(name)
        if name in ENCODERS:
            write_encoder(self.folder / "DIR")
            convert_hf(self.folder / "DIR", path)
            return
        command = self.runs.get(name)
        if command is None:
            raise AssertionError(f"nobody says how {name} is trained: train it on the page, or add it to RUNS")
        if command.startswith("depthwise demo"):
            self.demo(Path(name))
            return
        recipe, *changes = shlex.split(command.partition(" --out ")[0].removeprefix("depthwise train "))
        asked = self.recipe(recipe, changes)
        self._make(miniature(asked, self.data_of(asked), str(self.store / "cache")), command, path)

    def finish(self) -> None:
        """Train what nothing has asked for yet, and stop what still serves."""
        for name in self.promised:
            self.run(name)
        self.servers.stop()

    def demo(self, out: Path) -> str:
        """``depthwise demo`` with few numbers and updates, or the run that it made before; what it printed."""
        kept, folder, printed = self.store / "demo", self.folder / out, self.store / "demo.txt"
        if not kept.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(number_words, "split_numbers", lambda *_: DEMO_NUMBERS)
                said = run_main(["demo", "--out", str(out), "--updates", str(UPDATES), "--swept", "1"])
            assert (folder / "report.html").is_file()
            assert "numbers that training never saw" in said
            printed.write_text(said, encoding="utf-8")
            shutil.copytree(folder, kept)
        elif not folder.exists():
            shutil.copytree(kept, folder)
        return printed.read_text(encoding="utf-8")

    def data_of(self, recipe: Recipe) -> Mapping[str, Any]:
        """Small texts in the place of data sets; files that a page names itself stay."""
        files = recipe.data.train or ("data/",)
        if not files[0].startswith("data/"):
            return {}
        match recipe.task:
            case "translation":
                return {**{split: split for split in SPLITS}, "source": "en", "target": "de", "max_tokens": None}
            case "multilingual_translation":
                for pair in recipe.data.pairs or ():
                    write_pair(self.folder / "many", pair)
                return {**{split: f"many/{split}.{{pair}}" for split in SPLITS}, "source": None, "target": None}
            case "summarization":
                return {**{split: f"{split}.jsonl" for split in SPLITS}, "source": "text", "target": "summary"}
            case "text_classification":
                kind = "scored-" if recipe.data.labels == "number" else ""
                return {split: f"{kind}{split}.tsv" for split in SPLITS}
            case "tagging":
                return dict.fromkeys(SPLITS, "tagged.txt")
            case "question_answering":
                return dict.fromkeys(SPLITS, "questions.json")
        return dict.fromkeys(SPLITS, "running.txt")


def others_of(recipe: Recipe) -> list[str]:
    """Runs that a recipe builds on."""
    found = [recipe.model.get(PRETRAINED), (recipe.model.get("word_depths") or {}).get("run")]
    if has_tokenizer_of_run(recipe):
        found.append(recipe.tokenizer.path)
    return [name for name in found if name is not None]


def trained_by_recipes() -> dict[str, str]:
    """Runs that the headers of recipes name, and the command of each."""
    commands = [known.facts.get("command", "") for known in built_in()]
    return {command.rpartition(" --out ")[2]: command for command in commands if " --out " in command}


def write_files(folder: Path) -> None:
    """Texts under the names that pages use."""

    def write(name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    for split, times in TIMES.items():
        write(f"{split}.tsv", "\n".join(LABELLED * max(times, 5)) + "\n")
        write(f"scored-{split}.tsv", "\n".join(SCORED * times) + "\n")
        write(f"{split}.en", "".join(f"{english}\n" for english, _ in PAIRS * times))
        write(f"{split}.de", "".join(f"{german}\n" for _, german in PAIRS * times))
        write(f"{split}.txt", TAGGED)
        summaries = [{"text": f"{english}. The rest.", "summary": german} for english, german in PAIRS * times]
        write(f"{split}.jsonl", "".join(f"{json.dumps(line)}\n" for line in summaries))
        write(f"{split}.json", questions())
    for pair in ("en-de", "en-fr", "en-nl"):
        write_pair(folder / "corpus", pair)
    write("large.tsv", "\n".join(LABELLED * 50) + "\n")
    for place, language in enumerate(("en", "de")):
        write(f"large.{language}", "".join(f"{pair[place]}\n" for pair in PAIRS * 5))
    write("other.tsv", "good morning\tguten Morgen\n")
    write("tagged.txt", TAGGED)
    write("running.txt", RUNNING)
    write("questions.json", questions())
    for name in SETS:
        for split in SPLITS:
            write(f"data/{name}{'' if name.endswith('.') else '/'}{split}.tsv", "\n".join(LABELLED * 3) + "\n")
    for name in ARTICLES:
        write(f"data/{name}", questions())
    for split in SPLITS:
        write(f"data/wikitext2/{split}.txt", " = Film = \n The end was terrible . \n")
    write("data/conll2003/train.txt", "-DOCSTART- -X- O O\n\nBrussels X O O\n")
    for name in ("text.txt", "article.txt", "letter.txt", "FILE"):
        write(name, "".join(f"{english}\n" for english, _ in PAIRS))
    write("RECIPE", RECIPE)
    write(RECORDS, (REPOSITORY / RECORDS).read_text(encoding="utf-8"))


def write_pair(folder: Path, pair: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        for place, language in enumerate(pair.split("-")):
            lines = [f"{texts[place]}\n" for texts in PAIRS]
            (folder / f"{split}.{pair}.{language}").write_text("".join(lines), encoding="utf-8")


def questions() -> str:
    """Two questions in the JSON of SQuAD, one of which has no answer."""
    context = "The end of a great film was terrible."
    answer = {"text": "The end", "answer_start": 0}
    asked = [
        {"id": "1", "question": "What was terrible?", "answers": [answer], "is_impossible": False},
        {"id": "2", "question": "Who was there?", "answers": [], "is_impossible": True},
    ]
    paragraphs = [{"context": context, "qas": asked}]
    return json.dumps({"version": "v2.0", "data": [{"title": "Films", "paragraphs": paragraphs}]})


def write_encoder(folder: Path) -> None:
    """A tiny BERT as Transformers saves it."""
    words = sorted({word for line in LABELLED for word in line.partition("\t")[2].replace(",", "").split()})
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*".,?", *letters, *(f"##{letter}" for letter in letters), *words]
    vocabulary = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary), encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=256, **sizes)).save_pretrained(folder)


def write_fairseq(folder: Path) -> None:
    """A checkpoint of fairseq with its dictionaries."""
    shutil.copytree(REPOSITORY / "tests" / "golden" / "fairseq_checkpoint", folder)


def quiet() -> None:
    """Nothing is drawn, and nothing is kept outside the folders of the tests."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
