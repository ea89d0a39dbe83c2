"""``depthwise convert``: models of other libraries become runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from depthwise.cli.run_arguments import quieten

if TYPE_CHECKING:
    from depthwise.interop.fairseq import Conversion

convert = typer.Typer(no_args_is_help=True)


@convert.callback()
def options() -> None:
    """Import a model of another library as a run."""


@convert.command()
def fairseq(
    source: Annotated[Path, typer.Argument(help="Folder with checkpoint and dictionaries.", metavar="DIR")],
    destination: Annotated[Path, typer.Argument(help="Folder of the run to write.", metavar="DST")],
    checkpoint: Annotated[
        str | None, typer.Option(help="Which file in DIR; else the best, the last or the only checkpoint.")
    ] = None,
    source_lang: Annotated[str | None, typer.Option(help="Source language, if the checkpoint names none.")] = None,
    target_lang: Annotated[str | None, typer.Option(help="Target language, if the checkpoint names none.")] = None,
    bpe_codes: Annotated[
        Path | None, typer.Option(help="Byte-pair codes of subword-nmt; else those found in DIR.")
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lower-case text, as the training data was.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in DST.")] = False,
) -> None:
    """Import a translation or language model of fairseq; nothing stored in its files is executed.

    DIR holds the checkpoint and dict.<language>.txt of both languages (of a language model: dict.txt). With byte-pair
    codes beside them the run takes raw text, by Moses and subword-nmt; without, it expects pre-tokenised input.
    """
    from depthwise.interop.fairseq import convert_fairseq

    quieten()
    done = convert_fairseq(
        source,
        destination,
        checkpoint=checkpoint,
        source_lang=source_lang,
        target_lang=target_lang,
        bpe_codes=bpe_codes,
        lowercase=lowercase,
        force=force,
    )
    _report(done)


@convert.command()
def hf(
    source: Annotated[Path, typer.Argument(help="Folder that Transformers saved a model to.", metavar="DIR")],
    destination: Annotated[Path, typer.Argument(help="Folder of the run to write.", metavar="DST")],
    bare: Annotated[
        bool, typer.Option("--bare", help="Keep the encoder alone, to fine-tune it with another head.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in DST.")] = False,
) -> None:
    """Import a BERT, RoBERTa or ALBERT of Transformers; nothing stored in its files is executed.

    DIR holds config.json, the weights (model.safetensors, else pytorch_model.bin, whole or in parts) and the files of
    the tokenizer. The run has the head that config.json names: none, masked language modelling, sequence or token
    classification, question answering.
    """
    from depthwise.interop.hf import convert_hf

    quieten()
    _report(convert_hf(source, destination, bare=bare, force=force))


def _report(done: "Conversion") -> None:
    """What was made of which file, and what there is to say about it."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{done.folder}: {done.model} of {done.num_parameters:,} parameters from {done.checkpoint.name}")
    for remark in done.remarks:
        console.print(remark)
