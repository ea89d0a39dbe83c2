"""``depthwise demo``: a first look at what the library builds."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depthwise.config import ModelConfig, StackConfig, preset


def demo(
    name: Annotated[
        str, typer.Option("--preset", help="Which translation model to build, such as iwslt-lightconv.")
    ] = "iwslt-dynamicconv",
    rows: Annotated[int, typer.Option(help="How many source sequences to decode.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="How many target tokens to decode.", min=1, max=1000)] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the random weights and sources.")] = 0,
) -> None:
    """Build an untrained translation model, summarise it and decode a few steps.

    The weights are random, so the tokens mean nothing: this shows that everything is in place.
    """
    options = preset(name)
    console = Console()
    console.print(_summary(name, options))

    import torch

    from depthwise.models.configuration import DepthwiseConfig
    from depthwise.models.greedy import greedy_decode
    from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM

    torch.manual_seed(seed)
    model = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(options)).eval()
    console.print(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.1f}M parameters, random weights\n")
    source = torch.randint(4, options.source_vocab_size or options.vocab_size, (rows, 12))
    started = time.perf_counter()
    tokens = greedy_decode(model, source, max_new_tokens=steps, stop_at_eos=False)
    seconds = time.perf_counter() - started
    console.print(
        f"{rows} random sources of 12 tokens, {steps} greedy steps each in {seconds:.2f} s (untrained: noise)"
    )
    for row in tokens.tolist():
        console.print("  " + " ".join(f"{token:5d}" for token in row), highlight=False)


def _summary(name: str, options: ModelConfig) -> Table:
    table = Table("side", "layers", "mixer", "kernels", "heads", "norm", title=f"{name}, width {options.width}")
    for side, stack in (("encoder", options.encoder), ("decoder", options.decoder)):
        if stack is not None:
            table.add_row(side, str(stack.num_layers), stack.mixer, _kernels(stack), str(stack.num_heads), stack.norm)
    return table


def _kernels(stack: StackConfig) -> str:
    return "-" if stack.kernel_sizes is None else " ".join(map(str, stack.kernel_sizes))
