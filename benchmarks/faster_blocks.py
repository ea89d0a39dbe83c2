"""A deeper model from a pretrained one: each of its blocks several times in a row. ``faster.py deepen`` writes it.

Neighbours of a copied block have learned to read what it writes, which is why copies stand beside each other; such a
model needs to be trained further before it is of use, by guessing masked words, say.
"""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

LAYERS = "encoder.stack.layers."


def deepen(folder: Path, num_layers: int, into: Path) -> None:
    """A run with so many blocks, each of the given run's as often as any other, or once more if it comes first."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    has = config["encoder"]["num_layers"]
    if num_layers < has:
        raise SystemExit(f"{folder} has {has} blocks already; ask for more than that")
    states = load_file(folder / "model.safetensors")
    begins = f"{LAYERS}0."
    prefixes = {name[: name.index(LAYERS)] for name in states if begins in name}
    if len(prefixes) != 1:
        raise SystemExit(f"{folder} has no encoder with blocks of its own; give the run of one")
    layers = prefixes.pop() + LAYERS
    deeper = {name: state for name, state in states.items() if not name.startswith(layers)}
    for number in range(num_layers):
        source = f"{layers}{number * has // num_layers}."
        copies = {name: state for name, state in states.items() if name.startswith(source)}
        deeper |= {f"{layers}{number}.{name.removeprefix(source)}": state.clone() for name, state in copies.items()}
    into.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(folder / name, into / name)
    config["encoder"]["num_layers"] = num_layers
    (into / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(deeper, into / "model.safetensors", {"format": "pt"})
