"""A folder of fairseq (checkpoint, dictionaries, perhaps byte-pair codes) as a run of our own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depthwise.config import ModelConfig
from depthwise.errors import CheckpointError
from depthwise.interop.fairseq_checkpoint import read_checkpoint
from depthwise.interop.fairseq_dictionary import ids_by_type, language_token
from depthwise.interop.fairseq_files import Dictionaries, find_checkpoint, find_dictionaries
from depthwise.interop.fairseq_latent import shared_copy
from depthwise.interop.fairseq_options import LATENT, architecture, options_from_args
from depthwise.interop.fairseq_text import (
    TARGET,
    Words,
    find_codes,
    read_codes,
    write_moses_tokenizer,
    write_word_tokenizer,
)
from depthwise.interop.fairseq_weights import convert_state_dict, model_class, num_embeddings, without_absent_norms
from depthwise.interop.run_folder import Conversion, check_destination, written_at
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.shapes import Tensor

MAX_TARGET_LENGTH = 200
"""How long a translation may get unless the user says otherwise."""
PRETOKENIZED = "The run expects pre-tokenised input: types of the dictionary between blanks."
RAW_TEXT = "The run takes raw text and gives detokenised text, by Moses and the byte-pair codes of {codes}."


def convert_fairseq(
    source: str | Path,
    destination: str | Path,
    *,
    checkpoint: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    bpe_codes: str | Path | None = None,
    lowercase: bool = False,
    force: bool = False,
) -> Conversion:
    """Write the model in the folder ``source`` as a run: configuration, weights and tokenizer files.

    The destination gets everything or, after an error, nothing. Raises ``CheckpointError`` for files that are missing,
    cannot be read or do not fit, ``ConfigError`` for options that our models do not have.
    """
    source, destination = Path(source), Path(destination)
    check_destination(destination, source, force=force)
    file = find_checkpoint(source, checkpoint)
    args, state = read_checkpoint(file)
    policy: dict[str, Any] | None = None
    if architecture(args) == LATENT:
        state, policy = shared_copy(args, state)
    dictionaries = find_dictionaries(
        source,
        args,
        num_embeddings(state),
        pairs=policy["language_pairs"] if policy else (),
        source_lang=source_lang,
        target_lang=target_lang,
    )
    options = options_from_args(args, len(dictionaries.source), len(dictionaries.target))
    options = replace(without_absent_norms(options, state), policy=policy)
    codes = _Codes.chosen(source, args, dictionaries, None if bpe_codes is None else Path(bpe_codes))
    start, remarks = _start_of_targets(args, dictionaries, policy)
    model = _model(options, state, start)
    with written_at(destination) as folder:
        model.save_pretrained(folder)
        _write_tokenizers(folder, options, dictionaries, codes, lowercase=lowercase)
    remarks = [*codes.remarks, *_case_remark(dictionaries, codes, lowercase), *remarks]
    return Conversion(destination, file, type(model).__name__, model.num_parameters(), tuple(remarks))


def _model(
    options: ModelConfig, state: Mapping[str, Tensor], start: int | None
) -> DepthwiseForSeq2SeqLM | DepthwiseForCausalLM:
    kwargs = {} if start is None else {"decoder_start_token_id": start}
    model = model_class(options)(DepthwiseConfig.from_options(options, **kwargs))
    model.load_state_dict(convert_state_dict(state, options))
    if options.encoder is not None and options.decoder is not None:
        limit = options.decoder.max_positions
        model.generation_config.max_length = min(MAX_TARGET_LENGTH, limit or MAX_TARGET_LENGTH)
    return model.eval()


def _start_of_targets(
    args: Mapping[str, Any], dictionaries: Dictionaries, policy: Mapping[str, Any] | None
) -> tuple[int | None, list[str]]:
    """The id that decoding starts from if it is not the usual one, and what to say about tokens of languages."""
    if policy is None:
        return None, []
    remarks = []
    if args.get("encoder_langtok"):
        remarks.append('Sources end in the token of a language, such as "__de__", instead of </s>: put it there.')
    targets = dict.fromkeys(pair.partition("-")[2] for pair in policy["language_pairs"])
    if not args.get("decoder_langtok"):
        return None, remarks
    ids = ids_by_type(dictionaries.target)
    starts = {language: ids[language_token(language)] for language in targets}
    if len(starts) == 1:
        return next(iter(starts.values())), remarks
    listed = ", ".join(f"{start} for {language}" for language, start in starts.items())
    return None, [*remarks, f"Start decoding from the target's language: decoder_start_token_id is {listed}."]


# Text


@dataclass(frozen=True)
class _Codes:
    """Byte-pair codes, where there are some that serve, and what to tell the user about it."""

    merges: list[tuple[str, str]] | None
    remarks: tuple[str, ...]

    @classmethod
    def chosen(cls, folder: Path, args: Mapping[str, Any], dictionaries: Dictionaries, given: Path | None) -> "_Codes":
        """The codes that the user gave, which must serve, else those in the folder if they do."""
        if given is not None:
            if reason := _why_no_raw_text(args, dictionaries):
                raise CheckpointError(f"byte-pair codes cannot be used because {reason}; leave --bpe-codes out")
            return cls._of(given)
        found = find_codes(folder)
        if not found:
            return cls(None, (PRETOKENIZED,))
        listed = ", ".join(path.name for path in found)
        reason = _why_no_raw_text(args, dictionaries) or _other_tokenizer(args)
        if reason is None and len(found) > 1:
            reason = "there are several; choose one with --bpe-codes"
        if reason is None:
            try:
                return cls._of(found[0])
            except CheckpointError as error:
                reason = str(error)
        return cls(None, (PRETOKENIZED, f"{listed} was not used: {reason}."))

    @classmethod
    def _of(cls, path: Path) -> "_Codes":
        remarks = [RAW_TEXT.format(codes=path.name)]
        if find_spec("sacremoses") is None:
            remarks.append("Its tokenizer needs sacremoses: pip install 'depthwise[convert]'.")
        return cls(read_codes(path), tuple(remarks))


def _why_no_raw_text(args: Mapping[str, Any], dictionaries: Dictionaries) -> str | None:
    """Why Transformers' tokenizer cannot do for this model what fairseq does, if it cannot."""
    if dictionaries.languages is None:
        return "they serve translation between two languages only"
    if args.get("moses_no_dash_splits") or args.get("moses_no_escape"):
        return "the model was trained with other settings of Moses"
    if args.get("bpe_separator") not in (None, "@@"):
        return f"pieces of words are marked by {args['bpe_separator']}, not by @@"
    return None


def _other_tokenizer(args: Mapping[str, Any]) -> str | None:
    """What the arguments name instead of Moses and subword-nmt; published models name nothing and mean these."""
    for name, known in (("tokenizer", ("moses",)), ("bpe", ("subword_nmt", "fastbpe"))):
        if args.get(name) not in (None, *known):
            return f"the model names {args[name]} as its {name}"
    return None


def _write_tokenizers(
    folder: Path, options: ModelConfig, dictionaries: Dictionaries, codes: _Codes, *, lowercase: bool
) -> None:
    stacks = (options.encoder or options.decoder, options.decoder)
    source, target = (
        Words(types, None if stack is None else stack.max_positions, lowercase)
        for types, stack in zip((dictionaries.source, dictionaries.target), stacks, strict=True)
    )
    if codes.merges is not None:
        assert dictionaries.languages is not None
        write_moses_tokenizer(folder, source, target, codes.merges, dictionaries.languages)
        return
    write_word_tokenizer(folder, source, for_prompts=options.encoder is None)
    if source.types != target.types:
        write_word_tokenizer(folder / TARGET, target)


def _case_remark(dictionaries: Dictionaries, codes: _Codes, lowercase: bool) -> list[str]:
    if codes.merges is None or lowercase or any(letter.isupper() for name in dictionaries.source for letter in name):
        return []
    return ["The source dictionary has no capital letters: if the training data was lower-cased, add --lowercase."]
