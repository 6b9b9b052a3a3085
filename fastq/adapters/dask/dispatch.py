"""Take calls on dask arrays, and hand each to the graph of its operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da

from fastq.adapters.dask import bitround, by_parameters, by_range, comparison
from fastq.adapters.dask.chunks import refuse_masked_meta
from fastq.ops.bitround import BIT_INFORMATION, BITROUND
from fastq.ops.compare import COMPARE_CODES, COMPARE_VALUES
from fastq.ops.dequantize import DEQUANTIZE, DEQUANTIZE_LINEAR
from fastq.ops.minmax import MINMAX
from fastq.ops.quantize import (
    CHOOSE_QPARAMS,
    FAKE_QUANTIZE,
    FAKE_QUANTIZE_WITH_QPARAMS,
    QUANTIZE,
    QUANTIZE_LINEAR,
    QUANTIZE_WITH_QPARAMS,
)
from fastq.ops.requantize import REQUANTIZE
from fastq.plan.cache import Call, Operation

# the function that makes tasks of a call, for each operation that can work chunk by chunk
GRAPHS: dict[Operation, Callable[[Call, da.Array], Any]] = {
    QUANTIZE: by_range.quantize,
    FAKE_QUANTIZE: by_range.fake_quantize,
    CHOOSE_QPARAMS: by_range.choose_qparams,
    MINMAX: by_range.minmax,
    QUANTIZE_WITH_QPARAMS: by_parameters.quantize_with_qparams,
    FAKE_QUANTIZE_WITH_QPARAMS: by_parameters.fake_quantize_with_qparams,
    QUANTIZE_LINEAR: by_parameters.quantize_linear,
    DEQUANTIZE_LINEAR: by_parameters.dequantize_linear,
    DEQUANTIZE: by_parameters.dequantize,
    REQUANTIZE: by_parameters.requantize,
    COMPARE_CODES: comparison.compare_codes,
    COMPARE_VALUES: comparison.compare_values,
    BITROUND: bitround.bitround,
    BIT_INFORMATION: bitround.bit_information,
}


def take_call(arguments: Call) -> Any:
    """Return the graph of a call on a dask array; refuse what has no graph, an `out`, and masked chunks."""
    operation = arguments.operation
    array = operation.operands[0]
    graph = GRAPHS.get(operation)
    if graph is None:
        raise TypeError(
            f"{array} is a dask array, which {operation.function} can't process by chunks: pass {array}.compute(), the"
            " whole array"
        )
    has_output = operation.operands[1:2] != ("q",)  # the second operand of compare is an input
    if has_output and arguments.operands[1] is not None:
        raise TypeError("out must be None for a dask array: write the result, for example with dask.array.store")
    for operand, name in zip(arguments.operands, operation.operands, strict=False):
        if isinstance(operand, da.Array):
            refuse_masked_meta(operand, name)
    return graph(arguments, arguments.operands[0])
