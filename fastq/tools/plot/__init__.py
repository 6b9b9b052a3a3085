"""Pictures of the effects of quantization on an array; needs matplotlib, the extra ``[plot]``."""

from fastq.tools.plot.distributions import calibration, channels, histogram
from fastq.tools.plot.information import bit_information
from fastq.tools.plot.panels import errors
from fastq.tools.plot.schemes import compare, sqnr

__all__ = ["bit_information", "calibration", "channels", "compare", "errors", "histogram", "sqnr"]
