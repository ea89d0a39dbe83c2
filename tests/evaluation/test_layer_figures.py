"""Pictures of how layers were used: they show what the logs of runs hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import AxesImage

from depthwise.errors import DataError
from depthwise.evaluation.layer_figures import figures, in_use, read_record

UPDATES = [100, 200, 300]


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def latent(tmp_path: Path) -> Path:
    """Two languages, two layers of the decoder; the gradient of the first update was no number."""
    run = tmp_path / "latent"
    run.mkdir()
    metrics: list[dict[str, Any]] = []
    for number, update in enumerate(UPDATES):
        norms = {f"gradient_norm/decoder.{layer}": 10.0**-layer if number else None for layer in range(2)}
        metrics.append({"update": update, "loss": 3.0 - number, "nll": 2.5 - number, **norms})
        metrics[-1]["effective_depth/decoder"] = 2 - number / 2
        metrics.append({"update": update, "valid_nll": 4.0 - number})
    write(run / "metrics.jsonl", metrics)

    def gates(number: int) -> dict[str, Any]:
        return {"probabilities": [0.5, 0.5 + number / 10], "samples": [1.0, float(number % 2)]}

    write(
        run / "layers.jsonl",
        [
            {"update": update, "decoder": {"de": gates(number), "fr": gates(number + 1)}}
            for number, update in enumerate(UPDATES)
        ],
    )
    return run


def shown(figure: Any, place: int = 0) -> np.ndarray:
    image: AxesImage = figure.axes[place].images[0]
    return np.asarray(image.get_array())


def test_what_is_in_use_at_the_end(latent: Path) -> None:
    """Of de, one of two is above one half at last, 0.7; of fr one with 0.8: all four are undecided."""
    assert in_use(read_record(latent), "decoder") == (
        "latent, decoder, update 300: 1 of 2 layers above 0.5, 2 between 0.1 and 0.9, in the mean over 2 languages"
    )


def test_what_is_read(latent: Path) -> None:
    record = read_record(latent)
    assert record.updates == UPDATES
    assert record.probabilities["decoder"]["fr"].tolist() == pytest.approx(
        np.array([[0.5, 0.6], [0.5, 0.7], [0.5, 0.8]])
    )
    updates, norms = record.gradients["decoder"]
    assert updates == UPDATES
    assert np.isnan(norms[0]).all()
    assert norms[1:].tolist() == [[1.0, 0.1]] * 2
    assert record.curves["valid_nll"] == (UPDATES, [4.0, 3.0, 2.0])
    assert record.curves["loss"] == (UPDATES, [3.0, 2.0, 1.0])


def test_what_is_drawn(latent: Path) -> None:
    """Layers from bottom to top, updates from left to right, in the mean over languages."""
    found = figures([read_record(latent)])
    assert set(found) == {"utilisation", "samples", "languages", "depths", "gradients", "learning"}
    np.testing.assert_allclose(shown(found["utilisation"]), [[0.5, 0.5, 0.5], [0.55, 0.65, 0.75]])
    np.testing.assert_allclose(shown(found["samples"]), [[1, 1, 1], [0.5, 0.5, 0.5]])
    np.testing.assert_allclose(shown(found["languages"]), [[0.5, 0.7], [0.5, 0.8]])
    assert [text.get_text() for text in found["languages"].axes[0].get_yticklabels()] == ["de (1)", "fr (1)"]
    np.testing.assert_allclose(shown(found["gradients"])[:, 1:], [[0, 0], [-1, -1]])
    (line,) = found["depths"].axes[0].lines
    assert line.get_ydata().tolist() == [2, 1.5, 1]
    assert line.get_label() == "latent, decoder"


def test_losses_of_training_are_dashed(latent: Path) -> None:
    """And have the colour of the run whose validation losses stand beside them."""
    lines = figures([read_record(latent)] * 2)["learning"].axes[0].lines
    assert [line.get_ydata().tolist() for line in lines] == [[4, 3, 2], [2.5, 1.5, 0.5]] * 2
    assert [line.get_linestyle() for line in lines] == ["-", "--"] * 2
    assert [line.get_label() for line in lines] == ["latent", "latent, training"] * 2
    assert [line.get_color() for line in lines] == ["C0", "C0", "C1", "C1"]


def test_runs_without_gates_stand_beside(latent: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    write(plain / "metrics.jsonl", [{"update": 100, "loss": 2.0}, {"update": 100, "valid_nll": 3.5}])
    assert set(figures([read_record(plain)])) == {"learning"}
    found = figures([read_record(latent), read_record(plain)])
    assert [line.get_label() for line in found["learning"].axes[0].lines] == ["latent", "latent, training", "plain"]


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics.jsonl is missing or empty; name the folder of a run"):
        read_record(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(DataError, match="it is no log of a run"):
        read_record(tmp_path)


@pytest.mark.parametrize(("num_runs", "num_columns"), [(1, 1), (3, 1), (4, 2), (9, 3)])
def test_many_runs_stand_beside_each_other(latent: Path, num_runs: int, num_columns: int) -> None:
    drawn = figures([read_record(latent)] * num_runs)["utilisation"]
    pictures = [axes for axes in drawn.axes if axes.images]
    assert len(pictures) == num_runs
    assert len({round(axes.get_subplotspec().get_position(drawn).x0, 3) for axes in pictures}) == num_columns


def test_one_side(latent: Path) -> None:
    assert set(figures([read_record(latent)], ["encoder"])) == {"learning"}
    assert set(figures([read_record(latent)], ["decoder"])) == set(figures([read_record(latent)]))
