"""Convention: whose arithmetic to follow, one table."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fastq.qtypes import QTYPES, QType

_CHOICES = {
    "parameter_type": ("compute", "float64"),
    "stored_type": ("compute", "float64"),
    "divisor": ("steps", "codes"),
    "degenerate": ("one", "floor", "value"),
    "degenerate_zero_point": ("zero", "lowest"),
    "zero_point": ("integer", "float", "offset"),
    "zero_point_end": ("lowest", "highest"),
    "zero_point_rounding": ("half_even", "half_away", "floor", "trunc"),
    "zero_point_rounded": ("difference", "quotient"),
    "offset_code": ("lowest", "zero"),
    "symmetric_extreme": ("magnitude", "signed"),
    "quotient": ("divide", "reciprocal", "reciprocal_of_double", "range"),
    "rounding": ("half_even", "half_away", "floor", "trunc"),
    "decode": ("point", "middle"),
}


@dataclass(frozen=True)
class Convention:
    """The arithmetic of one system: how it takes parameters from a range, codes from values and values from codes.

    F is the compute type of the values (float32, or float64 for float64 and wide integers); lo and hi are the smallest
    and the largest value that a parameter belongs to, qmin and qmax the first and the last code. A row of the table
    with one field changed is ``dataclasses.replace(fastq.CONVENTIONS["torch"], reduce_range=True)``.

    Attributes
    ----------
    name : str
        What the caller writes.
    system : str
        Whose functions these are.
    formats : tuple of str
        Code formats it has; empty for all.
    schemes : tuple of str
        "asymmetric", "symmetric" or both.
    includes_zero : bool
        Whether the asymmetric range is widened to contain 0.
    parameter_type : {"compute", "float64"}
        Type in which parameters are computed: F or float64.
    stored_type : {"compute", "float64"}
        Type in which the scale is kept, and a zero point that is no integer. Codes are computed in F all the same.
    divisor : {"steps", "codes"}
        ``scale = (hi - lo) / divisor``: ``qmax - qmin``, or one more. Symmetric: ``scale = max(-lo, hi) / (divisor /
        2)``.
    scale_floor : float
        A scale below it is degenerate; 0.0: below the smallest normal number of F.
    degenerate : {"one", "floor", "value"}
        A degenerate scale becomes 1, the floor, or the value of the constant array that it comes from.
    degenerate_zero_point : {"zero", "lowest"}
        Beside a degenerate scale that became 1 or a value: code 0, or qmin.
    zero_point : {"integer", "float", "offset"}
        A code; a float among the codes, neither rounded nor clamped; or a value, in the units of the array.
    zero_point_end : {"lowest", "highest"}
        ``qmin - lo / scale`` or ``qmax - hi / scale``.
    zero_point_rounding : {"half_even", "half_away", "floor", "trunc"}
        How an integer zero point is rounded.
    zero_point_rounded : {"difference", "quotient"}
        ``round(qmin - lo / scale)`` or ``qmin - round(lo / scale)``.
    zero_point_inside : bool
        ``round(x / scale + zero_point)``, else ``round(x / scale) + zero_point``.
    offset_code : {"lowest", "zero"}
        The code whose value an offset is: qmin, then it is lo; or 0, then it is ``lo - qmin * scale``.
    quotient : {"divide", "reciprocal", "reciprocal_of_double", "range"}
        ``x / scale``; ``x * F(1 / F(scale))``; ``x * F(1 / float64(scale))``; or ``x / F(n * scale) * n`` with
        n = qmax - qmin, which needs an offset at the lowest code.
    exact_product : tuple of str
        Formats for which the product with n of "range" is taken in float64.
    rounding : {"half_even", "half_away", "floor", "trunc"}
        How codes are rounded.
    decode : {"point", "middle"}
        A code stands for ``(code - zero_point) * scale`` (an offset: ``offset + steps * scale``), or for the value half
        a step further up.
    symmetric_extreme : {"magnitude", "signed"}
        A symmetric scale comes from ``max(-lo, hi)``; or from whichever of lo and hi is larger in magnitude, as ``it /
        (qmin - middle)``, and is then negative for hi.
    narrow : str or tuple of str
        Formats whose symmetric scheme has as many codes below the middle as above it: "all", or names.
    reserves_fill : bool
        Whether one code is never used: the lowest of signed formats, the highest of unsigned ones.
    reduce_range : bool
        Whether half of the codes are used: ``qmin / 2 .. qmax // 2``.
    reduced : tuple of (str, int, int)
        Formats whose reduced range is another: name, qmin, qmax.
    when_symmetric : tuple of (str, object)
        Fields that have other values in the symmetric scheme.
    """

    name: str
    system: str = ""
    formats: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ("asymmetric", "symmetric")
    includes_zero: bool = True
    parameter_type: str = "compute"
    stored_type: str = "compute"
    divisor: str = "steps"
    scale_floor: float = 0.0
    degenerate: str = "one"
    degenerate_zero_point: str = "zero"
    zero_point: str = "integer"
    zero_point_end: str = "lowest"
    zero_point_rounding: str = "half_even"
    zero_point_rounded: str = "difference"
    zero_point_inside: bool = False
    offset_code: str = "lowest"
    quotient: str = "divide"
    exact_product: tuple[str, ...] = ()
    rounding: str = "half_even"
    decode: str = "point"
    symmetric_extreme: str = "magnitude"
    narrow: str | tuple[str, ...] = "all"
    reserves_fill: bool = False
    reduce_range: bool = False
    reduced: tuple[tuple[str, int, int], ...] = ()
    when_symmetric: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        self._check_formats()
        if not (isinstance(self.scale_floor, int | float) and 0.0 <= self.scale_floor < float("inf")):
            raise ValueError(f"scale_floor must be a finite number, 0.0 or positive, not {self.scale_floor!r}")
        if self.zero_point == "float" and not self.zero_point_inside:
            raise ValueError(
                "a zero_point that is a float needs zero_point_inside=True: outside, codes would be floats"
            )
        if self.zero_point == "offset" and "symmetric" in self.schemes:
            raise ValueError("an offset has no symmetric scheme: schemes must be ('asymmetric',)")
        if self.quotient == "range" and (self.zero_point, self.offset_code) != ("offset", "lowest"):
            raise ValueError("quotient='range' needs zero_point='offset' and offset_code='lowest'")
        if unknown := {name for name, _ in self.when_symmetric} - {field.name for field in fields(self)}:
            raise ValueError(f"when_symmetric names no fields of a Convention: {', '.join(sorted(unknown))}")
        if self.when_symmetric:
            self.under(True)

    def _check_formats(self) -> None:
        if not self.schemes or set(self.schemes) - {"asymmetric", "symmetric"}:
            raise ValueError(f"schemes must be of 'asymmetric' and 'symmetric', not {self.schemes!r}")
        for field in ("formats", "exact_product", "narrow"):
            names = getattr(self, field)
            if names != "all" and (not isinstance(names, tuple) or set(names) - set(QTYPES)):
                raise ValueError(f"{field} must be a tuple of code formats, not {names!r}")

    def __hash__(self) -> int:
        return hash(self.name)

    def under(self, symmetric: bool) -> Convention:
        """Return the fields as they are in a scheme."""
        if not (symmetric and self.when_symmetric):
            return self
        return replace(self, **(dict(self.when_symmetric) | {"when_symmetric": ()}))

    def check(self, qtype: QType, symmetric: bool) -> None:
        """Pass if the system has the format and the scheme.

        Raises
        ------
        ValueError
            If not, naming what it has.
        """
        scheme = "symmetric" if symmetric else "asymmetric"
        if scheme not in self.schemes:
            raise ValueError(f"symmetric must be {not symmetric}: convention {self.name!r} has no {scheme} scheme")
        self.check_format(qtype)

    def check_format(self, qtype: QType) -> None:
        """Pass if the system has the format.

        Raises
        ------
        ValueError
            If not, naming those it has.
        """
        if self.formats and qtype.format not in self.formats:
            raise ValueError(
                f"dtype must be one of {', '.join(self.formats)} for convention {self.name!r}, not {qtype}"
            )

    def code_range(self, qtype: QType, symmetric: bool) -> tuple[int, int]:
        """Return the first and the last code in use."""
        row = self.under(symmetric)
        if row.reduce_range:
            for name, first, last in row.reduced:
                if name == qtype.name:
                    return first, last
            return qtype.qmin // 2, qtype.qmax // 2
        if row.reserves_fill:
            return qtype.qmin + qtype.signed, qtype.qmax - (not qtype.signed)
        return qtype.code_range(symmetric and (row.narrow == "all" or qtype.format in row.narrow))

    def scale_dtype(self, compute: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of scales beside values of a compute type."""
        return np.dtype(np.float64) if self.stored_type == "float64" else compute

    def zero_point_dtype(self, qtype: QType, compute: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of zero points beside values of a compute type."""
        return qtype.storage if self.zero_point == "integer" else self.scale_dtype(compute)

    @property
    def signed_scale(self) -> bool:
        """Whether a scale may be negative."""
        return self.symmetric_extreme == "signed" or self.degenerate == "value"


_EPS = 2.0**-23
_BITS_4_8 = ("uint4", "uint8")

_TORCH = Convention(
    "torch",
    "PyTorch: quantize_per_tensor, quantize_per_channel; MinMaxObserver, PerChannelMinMaxObserver",
    scale_floor=_EPS,
    degenerate="floor",
    zero_point_rounded="quotient",
    quotient="reciprocal",
    narrow=(),
)

_NBITS = Convention(
    "matmul-nbits",
    "ONNX Runtime: weights of MatMulNBits, quantize_matmul_4bits and quantize_matmul_8bits",
    formats=_BITS_4_8,
    zero_point_rounding="half_away",
    zero_point_inside=True,
    degenerate_zero_point="lowest",
    quotient="reciprocal",
    rounding="half_away",
    symmetric_extreme="signed",
    narrow=(),
)

_ROWS = (
    Convention("onnx", "ONNX: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear"),
    Convention(
        "onnxruntime",
        "ONNX Runtime: its Python tools, quantize_data and compute_scale_zp",
        parameter_type="float64",
        narrow=("int8", "int16"),
        reduced=(("int8", -64, 64), ("int16", -16384, 16384)),
    ),
    _TORCH,
    replace(
        _TORCH,
        name="torch-pt2e",
        system="PyTorch export: quantized_decomposed.quantize_per_tensor and quantize_per_channel",
        stored_type="float64",
        quotient="reciprocal_of_double",
    ),
    replace(
        _TORCH,
        name="torch-fake-quantize",
        system="PyTorch: fake_quantize_per_tensor_affine, fake_quantize_per_channel_affine",
    ),
    replace(
        _TORCH,
        name="torchao",
        system="torchao: choose_qparams_affine, quantize_affine",
        scale_floor=0.0,
    ),
    Convention(
        "tflite",
        "TensorFlow Lite: Quantize and its converter's parameters; symmetric: the converter's weights",
        stored_type="float64",
        degenerate_zero_point="lowest",
        zero_point_rounding="half_away",
        rounding="half_away",
        when_symmetric=(("quotient", "reciprocal_of_double"), ("parameter_type", "float64")),
    ),
    Convention(
        "compressed-tensors",
        "compressed-tensors (vLLM): calculate_qparams, quantize",
        scale_floor=_EPS,
        degenerate="floor",
        zero_point_inside=True,
        narrow=(),
    ),
    _NBITS,
    replace(
        _NBITS,
        name="qdq-nbits",
        system="ONNX Runtime: weights of 4 bit QDQ, quantize_qdq_matmul_4bits",
        formats=("uint4", "int4"),
        zero_point_inside=False,
    ),
    Convention(
        "sentence-transformers",
        "sentence-transformers: quantize_embeddings",
        formats=("uint8", "int8"),
        schemes=("asymmetric",),
        includes_zero=False,
        zero_point="offset",
        rounding="floor",
    ),
    Convention(
        "faiss",
        "faiss: ScalarQuantizer, QT_8bit, QT_8bit_uniform and QT_4bit",
        formats=("uint8", "uint4"),
        schemes=("asymmetric",),
        includes_zero=False,
        stored_type="float64",
        parameter_type="float64",
        degenerate="floor",
        zero_point="offset",
        quotient="range",
        exact_product=("uint4",),
        rounding="trunc",
        decode="middle",
    ),
    Convention(
        "cf",
        "CF conventions: packed data of netCDF, scale_factor and add_offset",
        formats=("int8", "uint8", "int16", "uint16"),
        schemes=("asymmetric",),
        includes_zero=False,
        parameter_type="float64",
        zero_point="offset",
        offset_code="zero",
        reserves_fill=True,
    ),
    Convention(
        "textbook",
        "Lessons and notebooks: scale = (max - min) / (qmax - qmin), in Python floats",
        includes_zero=False,
        parameter_type="float64",
        stored_type="float64",
        degenerate="value",
        zero_point_inside=True,
    ),
)

CONVENTIONS = {row.name: row for row in _ROWS}


def as_convention(convention: str | Convention) -> Convention:
    """Return the Convention that a name stands for, or the one given.

    Raises
    ------
    ValueError
        If it is no name of the table.
    """
    if isinstance(convention, Convention):
        return convention
    if not isinstance(convention, str) or convention not in CONVENTIONS:
        known = ", ".join(CONVENTIONS)
        raise ValueError(f"convention must be one of {known}, or a fastq.Convention, not {convention!r}")
    return CONVENTIONS[convention]
