"""Classes of results: QuantizedArray and QParams (codes and parameters), Comparison, BitInformation."""

from fastq.formats.granularity import Axis
from fastq.results.arrays import QuantizedArray
from fastq.results.bit_information import BitInformation
from fastq.results.measures import Comparison, Histogram
from fastq.results.parameters import ParameterKey, QParams, without_checks

__all__ = [
    "Axis",
    "BitInformation",
    "Comparison",
    "Histogram",
    "ParameterKey",
    "QParams",
    "QuantizedArray",
    "without_checks",
]
