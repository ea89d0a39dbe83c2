"""Every kind of tokenizer: fixed ids, the end of sequences, saving, loading, and the same result twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from depthwise.data import (
    LineRules,
    ParallelText,
    TokenizerOptions,
    load_tokenizer,
    load_tokenizers,
    train_tokenizer,
    train_tokenizers,
)
from depthwise.errors import ConfigError, DataError

TEXT = "the newest  größer, don't </s> <pad> <unk> <mask> <0x41> Ж😀 end."
OPTIONS = {
    "bpe": TokenizerOptions("bpe", 120),
    "bpe with bytes": TokenizerOptions("bpe", 400, byte_fallback=True, mask_token=True),
    "unigram": TokenizerOptions("unigram", 60),
    "unigram with bytes": TokenizerOptions("unigram", 330, byte_fallback=True),
    "word": TokenizerOptions("word", 40),
    "char": TokenizerOptions("char", 40),
    "byte": TokenizerOptions("byte"),
    "byte with a mask": TokenizerOptions("byte", mask_token=True),
}


@pytest.fixture(params=OPTIONS)
def options(request: pytest.FixtureRequest) -> TokenizerOptions:
    return OPTIONS[request.param]


def test_ids_endings_and_sizes(options: TokenizerOptions, texts: list[str]) -> None:
    tokenizer = train_tokenizer(texts, options)
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.convert_tokens_to_ids(names) == [0, 1, 2, 3]
    assert [tokenizer.bos_token, tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token] == names
    assert tokenizer.mask_token_id == (len(tokenizer) - 1 if options.mask_token else None)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert len(tokenizer) <= options.vocab_size
    ids = tokenizer(TEXT)["input_ids"]
    assert ids[-1] == 2
    assert not {0, 1, 2} & set(ids[:-1]), "names of special tokens inside of text are text"
    assert options.mask_token is False or tokenizer.mask_token_id not in ids
    first, second = tokenizer("low")["input_ids"], tokenizer("new")["input_ids"]
    assert tokenizer("low", "new")["input_ids"] == first + second
    assert set(tokenizer("low")) == {"input_ids", "attention_mask"}


def test_saved_and_loaded_by_transformers(options: TokenizerOptions, texts: list[str], tmp_path: Path) -> None:
    tokenizer = train_tokenizer(texts, options)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)):
        assert loaded(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded.mask_token_id == tokenizer.mask_token_id


@pytest.mark.parametrize("name", ["bpe with bytes", "unigram with bytes", "byte"])
def test_bytes_spell_what_was_never_seen(name: str, texts: list[str]) -> None:
    tokenizer = train_tokenizer(texts, OPTIONS[name])
    ids = tokenizer(TEXT)["input_ids"]
    assert 3 not in ids
    text = TEXT if name == "byte" else " ".join(TEXT.split())
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert name != "byte" or [number - 4 for number in ids[:-1]] == list(TEXT.encode())


@pytest.mark.parametrize("name", ["bpe", "unigram", "char"])
def test_known_text_comes_back(name: str, texts: list[str]) -> None:
    tokenizer = train_tokenizer(texts, OPTIONS[name])
    for text in texts[:20]:
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_words_and_blanks() -> None:
    texts = ["a dog, <s> a\u00a0cat"] * 2
    split = train_tokenizer(texts, TokenizerOptions("word"))
    assert set(split.get_vocab()) - {"<s>", "<pad>", "</s>", "<unk>"} == {"a", "dog", ",", "<", "s", ">", "cat"}
    kept = train_tokenizer(["a dog, a cat"], TokenizerOptions("word", pretokenized=True))
    assert kept.convert_ids_to_tokens(kept("a  dog,\tbird")["input_ids"]) == ["a", "dog,", "<unk>", "</s>"]


@pytest.mark.parametrize("mask_token", [False, True])
def test_names_of_special_tokens_as_words(mask_token: bool) -> None:
    """As in WikiText, whose rare words are spelled ``<unk>``: one entry, one id, and no padding inside of text."""
    text = "a <unk> b <pad> </s> <s> <mask> <unk>, \uff1cunk\uff1e"
    options = TokenizerOptions("word", 40, pretokenized=True, normalization="nfkc", mask_token=mask_token)
    tokenizer = train_tokenizer([text] * 5, options)
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert tokenizer.mask_token_id == (len(tokenizer) - 1 if mask_token else None)
    assert set(tokenizer.get_vocab()) == {"<s>", "<pad>", "</s>", "<unk>", "a", "b", "<unk>,"} | (
        {"<mask>"} if mask_token else set()
    )
    names = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert names == ["a", "<unk>", "b", *["<unk>"] * 4, "<unk>,", "<unk>", "</s>"]


@pytest.mark.parametrize("name", ["bpe", "unigram", "char", "byte", "word"])
def test_names_of_special_tokens_that_are_split(name: str, texts: list[str]) -> None:
    tokenizer = train_tokenizer([*texts, *["<unk> <pad> </s> <s> <mask>"] * 50], OPTIONS[name])
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert "<mask>" not in tokenizer.get_vocab()
    assert not {0, 1, 2, 3} & set(tokenizer("<unk>")["input_ids"][:-1])


def test_normalization_and_case() -> None:
    plain, folded = (
        train_tokenizer(["Ａb e\u0301"], TokenizerOptions("char", lowercase=lowercase, normalization=form))
        for lowercase, form in ((False, "none"), (True, "nfkc"))
    )
    assert set(plain.get_vocab()) >= {"Ａ", "b", "e", "\u0301"}
    assert set(folded.get_vocab()) >= {"a", "b", "é"}


def test_training_in_another_process_gives_the_same(texts: list[str]) -> None:
    """Hash maps are seeded anew in each process, which must not show."""
    code = (
        "import sys; from depthwise.data import TokenizerOptions, train_tokenizer\n"
        "texts = sys.stdin.read().split('\\n')\n"
        "for kind, size in (('bpe', 120), ('unigram', 60), ('word', 40)):\n"
        "    print(train_tokenizer(texts, TokenizerOptions(kind, size)).backend_tokenizer.to_str())"
    )
    given = "\n".join(texts)
    other = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=True)
    here = [train_tokenizer(texts, OPTIONS[kind]).backend_tokenizer.to_str() for kind in ("bpe", "unigram", "word")]
    assert [json.loads(line) for line in other.stdout.splitlines()] == [json.loads(text) for text in here]


def test_letters_that_are_left_out_are_not_left_to_chance() -> None:
    """Of letters that are equally rare the first are kept; commoner ones, and the mark of a blank, come before them."""
    letters = [chr(0x4E00 + number) for number in range(200)]
    tokenizer = train_tokenizer(["".join(letters), letters[150] * 2], TokenizerOptions("bpe", 44))
    kept = {piece for piece in tokenizer.get_vocab() if len(piece) == 1}
    assert kept == {"▁", letters[150], *letters[:18]}


def test_joint_and_separate(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc\n\nabc\n")
    (tmp_path / "b").write_text("xyz\nxyz\nxyz\n")
    corpus, rules = ParallelText(tmp_path / "a", tmp_path / "b"), LineRules(on_bad_line="skip")
    joint = train_tokenizers(corpus, TokenizerOptions("char"), rules, joint=True)
    assert joint.joint
    assert set(joint.source.get_vocab()) >= set("abcxyz")
    joint.save(tmp_path / "joint")
    assert load_tokenizers(tmp_path / "joint").joint
    separate = train_tokenizers(corpus, TokenizerOptions("char"), rules, joint=False)
    separate.save(tmp_path / "separate")
    loaded = load_tokenizers(tmp_path / "separate")
    assert [set(each.get_vocab()) & set("abcxyz") for each in (loaded.source, loaded.target)] == [
        set("abc"),
        set("xyz"),
    ]


def test_a_bad_line_ends_training_with_its_place(corpus: ParallelText) -> None:
    corpus.target.write_bytes(corpus.target.read_bytes().replace(b"\n", b"\xff\n", 1))
    with pytest.raises(DataError, match=r"a\.tgt:1: byte \d+ of the line is not UTF-8"):
        train_tokenizers(corpus, TokenizerOptions("bpe", 50), LineRules(), joint=True)


def test_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no text to train a tokenizer on"):
        train_tokenizer([], TokenizerOptions("bpe"))


@pytest.mark.parametrize("joint", [True, False])
def test_no_line_is_good(corpus: ParallelText, joint: bool) -> None:
    num_lines = corpus.num_lines()
    corpus.source.write_bytes(b"\xff\n" * num_lines)
    with pytest.raises(DataError, match="there is no text to train a tokenizer on") as caught:
        train_tokenizers(corpus, TokenizerOptions("bpe", 50), LineRules("skip"), joint=joint)
    assert f"0 lines kept, {num_lines:,} left out ({num_lines:,} bad utf8)" in str(caught.value)
    assert f"{corpus.source}:1: byte 1 of the line is not UTF-8" in str(caught.value)


def test_a_vocabulary_smaller_than_the_alphabet() -> None:
    texts = ["".join(chr(0x4E00 + number) for number in range(start, start + 20)) for start in range(0, 400, 20)]
    assert len(train_tokenizer(texts, TokenizerOptions("bpe", 50))) <= 50
    with pytest.raises(DataError, match="vocab_size=50 is too small for this text; give more, or another kind"):
        train_tokenizer(texts, TokenizerOptions("unigram", 50))


def test_options_are_checked_together() -> None:
    with pytest.raises(ConfigError) as caught:
        TokenizerOptions("bbpe", normalization="nfx", byte_fallback=True, vocab_size=100)
    names = [problem.option for problem in caught.value.problems]
    assert names == ["kind", "normalization", "byte_fallback", "vocab_size"]


def saved(folder: Path, **settings: str) -> Path:
    """A tokenizer of words as others make them: it does not end its sequences."""
    vocabulary = {name: number for number, name in enumerate(["a", "b", "<end>", "[SEP]", "<fill>", "?"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if "sep_token" in settings:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("b", 1))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", **settings).save_pretrained(folder)
    return folder


def test_a_pretrained_tokenizer_is_made_to_end_its_sequences(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(tmp_path / "plain", pad_token="<fill>", eos_token="<end>"))
    assert tokenizer("a b")["input_ids"] == [0, 1, 2]
    assert tokenizer("a", "b")["input_ids"] == [0, 2, 1, 2]
    tokenizer.save_pretrained(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again")("a b")["input_ids"] == [0, 1, 2]
    bert = load_tokenizer(saved(tmp_path / "bert", pad_token="<fill>", sep_token="[SEP]"))
    assert (bert.eos_token_id, bert("a")["input_ids"]) == (3, [1, 0, 3])


def test_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none is no folder; give one that a tokenizer was saved to"):
        load_tokenizer(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no tokenizer that can be loaded: "):
        load_tokenizer(tmp_path / "empty")
    harmed = saved(tmp_path / "harmed", pad_token="<fill>", eos_token="<end>")
    for content in ("[]", (harmed / "tokenizer.json").read_text().replace("WordLevel", "Words")):
        (harmed / "tokenizer.json").write_text(content)
        with pytest.raises(DataError, match=r"harmed holds no tokenizer that can be loaded: .*; save it again"):
            load_tokenizer(harmed)
    with pytest.raises(DataError, match="has no token for padding; add one and save it again"):
        load_tokenizer(saved(tmp_path / "unpadded", eos_token="<end>"))
    with pytest.raises(DataError, match="has no token for end of sequence; add one"):
        load_tokenizer(saved(tmp_path / "endless", pad_token="<fill>"))


@pytest.mark.parametrize("mask_token", [False, True])
def test_a_first_token_where_one_is_wanted(texts: list[str], mask_token: bool, tmp_path: Path) -> None:
    options = TokenizerOptions(vocab_size=60, first_token=True, mask_token=mask_token)
    train_tokenizer(texts, options).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(texts[0])["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    pair = tokenizer(texts[0], texts[1])["input_ids"]
    assert pair == ids + tokenizer(texts[1])["input_ids"][1:]
    assert tokenizer.decode(ids, skip_special_tokens=True) == train_tokenizer(
        texts, TokenizerOptions(vocab_size=60, mask_token=mask_token)
    ).decode(ids, skip_special_tokens=True)
