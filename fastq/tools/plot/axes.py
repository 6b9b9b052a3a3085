"""Shared parts of pictures: colours, and Axes that are given or new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.system.arguments import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colours by Okabe and Ito that colour-blind readers can distinguish, on light and dark ground
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILLION = "#D55E00"
PINK = "#CC79A7"
SKY = "#56B4E9"
GREY = "#8C8C8C"


def require_matplotlib() -> None:
    """Raise ImportError with the command to install matplotlib if it can't be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("fastq.plot needs matplotlib: pip install matplotlib", name=error.name) from error


def check_axis(ax: object) -> None:
    """Check that `ax` is Axes or None, before the data is measured; raise ImportError without matplotlib."""
    require_matplotlib()
    from matplotlib.axes import Axes

    if ax is not None and not isinstance(ax, Axes):
        raise TypeError(f"ax must be an Axes, not {shown(ax)}")


def axis_of(ax: Axes | None) -> Axes:
    """Return the given Axes, or those of a new figure: after measuring, so that refusals leave no empty figure."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(8.0, 4.5), layout="constrained")[1] if ax is None else ax


def set_labels(ax: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the labels of the axes."""
    ax.set(xlabel=x, ylabel=y)
    ax.set_title(title, fontsize="medium", wrap=True)


def legend_below(ax: Axes, columns: int, place: float = -0.14) -> Axes:
    """Put the legend below the axis, where it covers nothing, and return the Axes."""
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, place), ncols=columns, fontsize="small", frameon=False)
    return ax
