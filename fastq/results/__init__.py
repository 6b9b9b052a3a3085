"""Hold what operations return: QuantizedArray and QParams (codes and their parameters) and Comparison (errors)."""

from fastq.formats.granularity import Axis
from fastq.results.arrays import QuantizedArray
from fastq.results.measures import Comparison, Histogram
from fastq.results.parameters import ParameterKey, QParams, without_checks

__all__ = ["Axis", "Comparison", "Histogram", "ParameterKey", "QParams", "QuantizedArray", "without_checks"]
