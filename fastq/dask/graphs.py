"""Hand calls on dask arrays to the graphs of their operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq.dask import given, ranged
from fastq.dask.requests import Request
from fastq.dispatch.cache import FIRST_ARGUMENT, Call

_GRAPHS: dict[str, Callable[[Request], Any]] = {
    "quantize": ranged.quantize,
    "fake_quantize": ranged.fake_quantize,
    "choose_qparams": ranged.choose_qparams,
    "minmax": ranged.minmax,
    "quantize_with_qparams": given.quantize,
    "fake_quantize_with_qparams": given.fake_quantize,
    "quantize_linear": given.quantize_linear,
    "dequantize_linear": given.dequantize_linear,
    "dequantize": given.dequantize,
}


def call(given: Call) -> Any:
    """Return the graph of a call.

    Raises
    ------
    TypeError
        If the operation does not work chunk by chunk, or `out` is given.
    """
    graph = _GRAPHS.get(given.operation)
    if graph is None:
        array, name = FIRST_ARGUMENT.get(given.operation, "x"), given.operation.replace("gguf_", "gguf.").split("_")[0]
        raise TypeError(
            f"{array} is a dask array, which {name} can't take by chunks: pass {array}.compute(), all of it"
        )
    if given.out is not None:
        raise TypeError("out must be None for a dask array: write what is returned, as by dask.array.store")
    return graph(Request(*given))
