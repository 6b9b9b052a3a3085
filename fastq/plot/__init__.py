"""Pictures of the effects of quantization on an array; needs matplotlib, the extra ``[plot]``."""

from fastq.plot.distributions import calibration, channels, histogram
from fastq.plot.information import bit_information
from fastq.plot.panels import errors
from fastq.plot.schemes import compare, sqnr

__all__ = ["bit_information", "calibration", "channels", "compare", "errors", "histogram", "sqnr"]
