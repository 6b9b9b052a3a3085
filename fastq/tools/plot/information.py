"""Draw the information of the bits of floats, and the bits that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastq.formats.bitrounding import of_width
from fastq.results import BitInformation
from fastq.results.bit_information import most_of_noise
from fastq.system.arguments import shown
from fastq.tools.plot.axes import BLUE, GREEN, GREY, ORANGE, VERMILLION, axis_of, check_axis, legend_below, set_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bit_information(found: BitInformation, *, level: float = 0.99, ax: Axes | None = None) -> Axes:
    """Draw the information of each bit, and the line after which bits are dropped.

    Parameters
    ----------
    found : BitInformation
        Result of `fastq.bit_information`.
    level : float
        The share of the information that is kept, from 0 to 1.
    ax : Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    Axes
        Axes with bars of information in bits, for sign, exponent and mantissa. Bits up to the dotted line count as
        noise.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> found = fastq.bit_information(np.sin(np.linspace(0, 9, 10_000)).astype(np.float32))
    >>> fastq.plot.bit_information(found).get_title()
    'float32: 8 of 23 bits of the mantissa have 99 % of the information'
    """
    check_axis(ax)
    if not isinstance(found, BitInformation):
        raise TypeError(f"found must be a BitInformation, not {shown(found)}")
    keepbits = found.keepbits(level)
    bits = len(found.counts)
    mantissa, *_ = of_width(bits)
    places = np.arange(bits)
    first_of_mantissa = bits - mantissa
    a = axis_of(ax)
    parts = (
        ("sign", slice(0, 1), GREY),
        ("exponent", slice(1, first_of_mantissa), ORANGE),
        ("mantissa", slice(first_of_mantissa, None), BLUE),
    )
    for label, part, colour in parts:
        a.bar(places[part], found.information[part], color=colour, label=label, width=0.9)
    a.axvline(first_of_mantissa + keepbits - 0.5, color=VERMILLION, linewidth=2, label=f"keepbits={keepbits}")
    a.axhline(most_of_noise(found.information), color=GREEN, linestyle=":", linewidth=2, label="noise up to here")
    shown_at = places[:: max(bits // 16, 1)]
    a.set_xticks(shown_at, [found.names[k] for k in shown_at], fontsize="small")
    title = f"{found.dtype}: {keepbits} of {mantissa} bits of the mantissa have {100 * level:.5g} % of the information"
    set_labels(a, title, "bit", "information in bits")
    return legend_below(a, 5)
