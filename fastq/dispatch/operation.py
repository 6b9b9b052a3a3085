"""The operations: one row says all about one of them that is not what it computes."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.requests.options import (
    BinarizeOptions,
    BlockOptions,
    CompareOptions,
    DequantizeOptions,
    HistogramOptions,
    LinearOptions,
    MinMaxOptions,
    NoOptions,
    PackOptions,
    QuantizeOptions,
    RangeOptions,
    ValuesOptions,
)


class Operation(NamedTuple):
    """An operation."""

    resolver: str  # module of `fastq.dispatch` whose function of the operation's name makes a plan of a call
    options: type[Any]  # its options, a named tuple with their defaults
    # its arrays and numbers as the public function calls them, in the order of `cache.call`
    operands: tuple[str, ...] = ("x", "out", "scale", "zero_point")
    label: str = ""  # how what it makes of a DataArray gets labels back: a name of `labelled.LABELS`; none: not at all
    # module of `fastq.dask` whose function of the operation's name makes tasks of a call; none: it takes no chunks
    graph: str = ""
    function: str = ""  # the public function, where that is not called as the operation


_CODES = "codes", "out", "scale", "zero_point"

OPERATIONS = {
    "quantize": Operation("ranged", RangeOptions, ("x", "out"), "codes", "ranged"),
    "fake_quantize": Operation("ranged", RangeOptions, ("x", "out"), "elements", "ranged"),
    "choose_qparams": Operation("ranged", RangeOptions, ("x",), "", "ranged"),
    "qparams_of_ranges": Operation("ranged", RangeOptions, ("lo", "hi")),
    "minmax": Operation("reduction", MinMaxOptions, ("x",), "ranges", "ranged"),
    "magnitudes": Operation("reduction", MinMaxOptions, ("x",), "ranges"),
    "histogram": Operation("histogram", HistogramOptions, ("x",)),
    "quantize_with_qparams": Operation(
        "elementwise", QuantizeOptions, label="codes", graph="given", function="quantize"
    ),
    "fake_quantize_with_qparams": Operation(
        "elementwise", QuantizeOptions, label="elements", graph="given", function="fake_quantize"
    ),
    "quantize_linear": Operation("elementwise", LinearOptions, label="elements", graph="given"),
    "dequantize_linear": Operation("elementwise", ValuesOptions, _CODES, "elements", "given"),
    "dequantize": Operation("elementwise", DequantizeOptions, _CODES, "elements", "given"),
    "compare_codes": Operation("errors", CompareOptions, ("x", "q", "scale", "zero_point"), function="compare"),
    "compare_values": Operation("errors", NoOptions, ("x", "q"), function="compare"),
    "pack": Operation("subbyte", PackOptions, ("codes",)),
    "unpack": Operation("subbyte", PackOptions, ("packed",)),
    "binarize": Operation("subbyte", BinarizeOptions, ("x", "out")),
    "gguf_quantize": Operation("gguf", BlockOptions, ("data", "out", "imatrix"), function="gguf.quantize"),
    "gguf_dequantize": Operation("gguf", BlockOptions, ("data", "out"), function="gguf.dequantize"),
}
