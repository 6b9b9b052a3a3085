"""Draw the picture of the README, light and dark: `python docs/pictures.py`."""

from pathlib import Path

import numpy as np

import fastq

FOLDER = Path(__file__).parent / "_static"
GROUNDS = {"light": ("#ffffff", "#1f2328"), "dark": ("#0d1117", "#f0f6fc")}  # ground and text, those of GitHub
COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")


def weights() -> np.ndarray:
    """Return a matrix of weights, three of whose columns are far larger than the rest."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    x[:, [9, 30, 51]] *= 30
    return x


def draw(folder: Path = FOLDER) -> list[Path]:
    """Write the pictures, and return their paths."""
    import matplotlib
    from matplotlib import pyplot

    x, made = weights(), []
    q = fastq.quantize(x, "int8", axis=1, block_size=16, symmetric=True)
    for name, (ground, text) in GROUNDS.items():
        with matplotlib.rc_context(
            {"figure.facecolor": ground, "savefig.facecolor": ground, **dict.fromkeys(COLOURED, text)}
        ):
            figure = fastq.plot.errors(x, q)[0].figure
            made.append(folder / f"errors-{name}.png")
            figure.savefig(made[-1], dpi=80)
            pyplot.close(figure)
    return made


if __name__ == "__main__":
    for path in draw():
        print(path, path.stat().st_size)
