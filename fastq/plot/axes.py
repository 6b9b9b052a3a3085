"""What pictures share: colours, Axes that are given or new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastq.system.arguments import is_a, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colours that the colour-blind tell apart, by Okabe and Ito, on light and dark ground
BLUE, ORANGE, GREEN, VERMILLION, PINK, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY = "#8C8C8C"


def require_matplotlib() -> None:
    """Pass if matplotlib can be imported.

    Raises
    ------
    ImportError
        If not, with what to install.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("fastq.plot needs matplotlib: pip install 'fastq-kernels[plot]'", name=error.name) from error


def axis_of(ax: object) -> Axes:
    """Return the Axes to draw in: the given one, or that of a new figure.

    Raises
    ------
    TypeError
        If it is none.
    """
    require_matplotlib()
    from matplotlib import pyplot
    from matplotlib.axes import Axes

    if ax is None:
        return pyplot.subplots(figsize=(8.0, 4.5), layout="constrained")[1]
    if not is_a(ax, Axes):
        raise TypeError(f"ax must be an Axes, not {shown(ax)}")
    return ax


def percent(share: float) -> str:
    """Return a share of a whole as text."""
    return f"{100 * share:.2g} %" if share else "nothing"


def legend_below(ax: Axes, columns: int) -> None:
    """Put the legend below the axis, where it hides nothing."""
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns, fontsize="small", frameon=False)
