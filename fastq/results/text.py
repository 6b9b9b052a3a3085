"""Write the first and last codes of an array as NumPy shows them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.results.elements import codes_at
from fastq.results.parameters import QParams
from fastq.system.arguments import as_array, is_lazy

EDGE = 3  # codes shown at either end of an axis, as NumPy does
WHOLE = 100  # codes of an array that is shown whole
AXES_SHOWN = 4  # of an array of more axes no codes are shown: they would fill a page


def codes_text(codes: Any, p: QParams, shape: tuple[int, ...], prefix: str) -> str:
    """Return the codes as NumPy shows an array, those at the ends of each axis; nothing where there are too many axes.

    Only codes that are shown are read.
    """
    if is_lazy(codes) or len(shape) > AXES_SHOWN:
        return ""
    whole = math.prod(shape) <= WHOLE
    places = [np.arange(n) if whole else _ends(n) for n in shape]
    shown = codes_at(as_array(codes, "codes"), p.dtype, np.ix_(*places)).reshape([len(place) for place in places])
    threshold = WHOLE if whole else 0
    return np.array2string(shown, separator=", ", prefix=prefix, threshold=threshold, edgeitems=EDGE)


def _ends(n: int) -> NDArray[np.intp]:
    """Return the first and the last places of an axis, and one between them where there are more."""
    return np.arange(n) if n <= 2 * EDGE + 1 else np.array([*range(EDGE), n // 2, *range(n - EDGE, n)])
