"""The operations: one row says all about one of them that is not what it computes."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.requests import options as named


class Operation(NamedTuple):
    """An operation."""

    resolver: str  # module of `fastq.plan` whose function of the operation's name makes a plan of a call
    options: type[Any]  # its options, a named tuple with their defaults
    # its arrays and numbers as the public function calls them, in the order of `cache.call`
    operands: tuple[str, ...] = ("x", "out", "scale", "zero_point")
    label: str = ""  # how a result for a DataArray gets its labels back: a name of `labelled.LABELS`; empty: not at all
    # module of `fastq.dask` whose function of the operation's name makes tasks of a call; empty: no chunks
    graph: str = ""
    function: str = ""  # the public function, if it does not have the name of the operation


_WEIGHED = "x", "out", "importance"
_COMPARED = "x", "q", "scale", "zero_point"
_CODES = "codes", "out", "scale", "zero_point"

OPERATIONS = {
    "quantize": Operation("by_range", named.RangeOptions, _WEIGHED, "codes", "ranged"),
    "fake_quantize": Operation("by_range", named.RangeOptions, _WEIGHED, "elements", "ranged"),
    "choose_qparams": Operation("by_range", named.RangeOptions, _WEIGHED, "", "ranged"),
    "qparams_of_ranges": Operation("by_range", named.RangeOptions, ("lo", "hi")),
    "minmax": Operation("reduction", named.MinMaxOptions, ("x",), "ranges", "ranged"),
    "histogram": Operation("histogram", named.HistogramOptions, ("x",)),
    "quantize_with_qparams": Operation(
        "by_parameters", named.QuantizeOptions, label="codes", graph="given", function="quantize"
    ),
    "fake_quantize_with_qparams": Operation(
        "by_parameters", named.QuantizeOptions, label="elements", graph="given", function="fake_quantize"
    ),
    "quantize_linear": Operation("by_parameters", named.LinearOptions, label="elements", graph="given"),
    "requantize": Operation(
        "requantization", named.RequantizeOptions, ("acc", "out", "multiplier", "zero_point"), "elements", "given"
    ),
    "dequantize_linear": Operation("by_parameters", named.ValuesOptions, _CODES, "elements", "given"),
    "dequantize": Operation("by_parameters", named.DequantizeOptions, _CODES, "elements", "given"),
    "compare_codes": Operation("errors", named.CompareOptions, _COMPARED, graph="measured", function="compare"),
    "compare_values": Operation("errors", named.NoOptions, _COMPARED, graph="measured", function="compare"),
    "totals_of_codes": Operation("errors", named.CompareOptions, _COMPARED, function="compare"),
    "totals_of_values": Operation("errors", named.NoOptions, _COMPARED, function="compare"),
    "pack": Operation("subbyte", named.PackOptions, ("codes",)),
    "unpack": Operation("subbyte", named.PackOptions, ("packed",)),
    "bitround": Operation("bitround", named.BitRoundOptions, ("x", "out"), "elements", "bitround"),
    "bit_information": Operation("bitround", named.BitPairOptions, ("x",), graph="bitround"),
    "binarize": Operation("subbyte", named.BinarizeOptions, ("x", "out")),
    "unpack_array": Operation(
        "casting",
        named.UnpackOptions,
        ("codes", "out", "scale_factor", "add_offset"),
        function="xarray.unpack_array",
    ),
    "gguf_quantize": Operation("gguf", named.BlockOptions, ("data", "out", "imatrix"), function="gguf.quantize"),
    "gguf_dequantize": Operation("gguf", named.BlockValuesOptions, ("data", "out"), function="gguf.dequantize"),
}
