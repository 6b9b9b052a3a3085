"""Pictures of what quantization does to an array; needs matplotlib, the extra ``[plot]``."""

from fastq.plot.grids import histogram
from fastq.plot.outliers import channels
from fastq.plot.panels import errors
from fastq.plot.ranges import calibration
from fastq.plot.schemes import compare, sqnr

__all__ = ["calibration", "channels", "compare", "errors", "histogram", "sqnr"]
