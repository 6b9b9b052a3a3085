"""Pictures: the public name of `fastq.tools.plot`; needs matplotlib, the extra ``[plot]``."""

from fastq.tools.plot import bit_information, calibration, channels, compare, errors, histogram, sqnr

__all__ = [
    "bit_information",
    "calibration",
    "channels",
    "compare",
    "errors",
    "histogram",
    "sqnr",
]
