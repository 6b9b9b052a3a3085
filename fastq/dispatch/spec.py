"""Describe an operation apart from its arrays: op, arithmetic, granularity, NaN policy and how codes lie in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions import UNROUNDED, Convention, HalfPrecision
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.kernels.rule import ONNX, RangeRule, Rule
from fastq.kernels.storage import StorageFormat
from fastq.system.lazy import cached_property

Axes = tuple[int, ...] | None
CodeRange = tuple[float, float]  # the first and the last code in use


class Arithmetic(NamedTuple):
    """The rule of an operation, and the storage of codes and scales where their dtype does not say it.

    Attributes
    ----------
    rule : Rule
        The convention's arithmetic.
    code_format : StorageFormat or None
        The storage of the codes; None: that of their dtype.
    scale_format : StorageFormat or None
        The storage of the scales, where the code format prescribes one.
    """

    rule: Rule = ONNX
    code_format: StorageFormat | None = None
    scale_format: StorageFormat | None = None

    @property
    def clamping(self) -> Arithmetic:
        """The same for values beyond the range that parameters are taken from."""
        ranged = self.rule.range
        return self if ranged is None else self._replace(rule=self.rule._replace(range=ranged._replace(fits=False)))

    @property
    def packed(self) -> bool:
        """Whether codes share bytes."""
        return self.code_format is not None and self.code_format.packed


PLAIN = Arithmetic()


class RangeScheme(NamedTuple):
    """How parameters are taken from a range ("symmetric", "asymmetric", ...), and the dtypes of what is written."""

    name: str
    scale_dtype: np.dtype[Any]
    zero_point_dtype: np.dtype[Any]


GIVEN = RangeScheme("", np.dtype(np.float32), np.dtype(np.int8))  # parameters are given, and none are written


@dataclass(frozen=True, eq=False)
class OpSpec:
    """All of an operation but its arrays; there is one object for each, so caches compare identities.

    Attributes
    ----------
    op : {"quantize", "dequantize", "fake", "compare"}
        What is computed.
    arithmetic : Arithmetic
        By which rule, from and to which storage.
    code_range : tuple of float
        The first and the last code in use.
    axes : tuple of int or None
        The axes that keep parameters of their own, sorted and not negative; None: one set for the array.
    block_size : int
        Elements in a block along the one axis; 0: no blocks.
    nan : {"raise", "zero", "keep"}
        What to do with NaN.
    range_scheme : RangeScheme
        How parameters are taken from ranges; `GIVEN` where they are given.
    """

    op: str
    arithmetic: Arithmetic = PLAIN
    code_range: CodeRange = (0, 0)
    axes: Axes = None
    block_size: int = 0
    nan: str = "raise"
    range_scheme: RangeScheme = GIVEN

    @property
    def packs(self) -> bool:
        """Whether codes that share bytes are read or written."""
        return self.arithmetic.packed and self.op != "fake"

    @cached_property
    def in_bytes(self) -> OpSpec:
        """The same for codes in the lowest bits of a byte each."""
        return self._with_codes(self.arithmetic.code_format and self.arithmetic.code_format.in_bytes)

    @cached_property
    def unpacked(self) -> OpSpec:
        """The same for codes one in a byte, as integers or the bits of floats."""
        return self._with_codes(self.arithmetic.code_format and self.arithmetic.code_format.unpacked)

    def _with_codes(self, code_format: StorageFormat | None) -> OpSpec:
        return replace(self, arithmetic=self.arithmetic._replace(code_format=code_format))

    @cached_property
    def given(self) -> OpSpec:
        """The same where parameters are given."""
        rule = self.arithmetic.rule._replace(range=None)
        return replace(self, arithmetic=self.arithmetic._replace(rule=rule), range_scheme=GIVEN)

    def with_axes(self, axes: Axes) -> OpSpec:
        """Return the same for transposed arrays, whose kept axes are others."""
        return self if axes == self.axes else _with_axes(self, axes)


@functools.lru_cache(1024)
def _with_axes(spec: OpSpec, axes: Axes) -> OpSpec:
    return replace(spec, axes=axes)


class Parameters(NamedTuple):
    """Scales, zero points, and the scale of the whole array that scales are multiples of, 0 where there is none."""

    scale: NDArray[Any]
    zero_point: NDArray[Any]
    tensor_scale: float = 0.0

    @property
    def are_in_c_order(self) -> bool:
        """Whether both are in C order without gaps."""
        return self.scale.flags.c_contiguous and self.zero_point.flags.c_contiguous

    @property
    def as_bits(self) -> Parameters:
        """The same as kernels can read them."""
        return self._replace(scale=as_bits(self.scale), zero_point=as_bits(self.zero_point))


def as_bits(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of one-byte floats of ml_dtypes as the bits of its elements, any other as it is."""
    return array if array.dtype.kind in "iu" or array.dtype.itemsize > 1 else array.view(np.uint8)


# --- from a code format and a convention to an OpSpec -----------------------------------------------------------------

# how the scales of a block are taken from its range, by the float format of the scales
_SCHEMES = {"float8_e8m0fnu": "microscaling", "float8_e4m3fn": "nvfp4"}


@functools.lru_cache(4096)
def op_spec(
    op: str,
    convention: Convention,
    qtype: QType,
    symmetric: bool,
    granularity: str,
    compute: np.dtype[Any],
    axes: Axes,
    block_size: int,
    nan: str = "raise",
    saturate: bool = True,
    by_range: bool = False,
    half: HalfPrecision = UNROUNDED,
) -> OpSpec:
    """Return the spec of an operation with given parameters, or with parameters that it takes from ranges.

    `granularity` is what one parameter belongs to ("array", "channels" or "blocks"), as conditions of variants say it;
    `half` is `Convention.rounded_to` for the dtype of the input.
    """
    rule, range_scheme = rule_of(convention, symmetric, granularity, compute)._replace(half=half.operations), GIVEN
    if by_range:
        ranged = range_rule_of(convention, qtype, symmetric, granularity)
        # codes of a scale that was rounded may lie beyond the ends, and have to be clamped
        rule = rule._replace(range=ranged._replace(half=half.scale, fits=ranged.fits and not half.scale))
        range_scheme = _range_scheme(convention, qtype, symmetric, compute)
    arithmetic = Arithmetic(rule, _code_format(qtype, saturate), _scale_format(qtype))
    code_range = convention.under(symmetric, granularity).code_range(qtype, symmetric)
    return OpSpec(op, arithmetic, code_range, axes, block_size, nan, range_scheme)


def _range_scheme(convention: Convention, qtype: QType, symmetric: bool, compute: np.dtype[Any]) -> RangeScheme:
    name = _SCHEMES.get(qtype.scale_element) or ("symmetric" if symmetric else "asymmetric")
    byte = np.dtype(np.uint8)
    scale_dtype = byte if qtype.scale_element else convention.scale_dtype(compute)
    return RangeScheme(name, scale_dtype, byte if qtype.element else convention.zero_point_dtype(qtype, compute))


def _code_format(qtype: QType, saturate: bool) -> StorageFormat | None:
    """Return how codes lie in memory where their dtype does not say it, else None."""
    if not (qtype.packed or qtype.element):
        return None
    row = qtype.float_format
    may_overflow = row is not None and row.nan is not None and not qtype.block_size
    return StorageFormat(qtype.bits, qtype.signed and not qtype.element, qtype.element, saturate or not may_overflow)


def _scale_format(qtype: QType) -> StorageFormat | None:
    """Return the storage of scales where the code format prescribes it, else None."""
    if not qtype.scale_element:
        return None
    row = FLOAT_FORMATS[qtype.scale_element]
    exponent = 0 if qtype.element or row.sign else qtype.bits - 2
    return StorageFormat(8, False, row.name, exponent=exponent)


def rule_of(convention: Convention, symmetric: bool, granularity: str, compute: np.dtype[Any]) -> Rule:
    """Return the arithmetic of a convention with given parameters."""
    row = convention.under(symmetric, granularity)
    zero = "offset" if row.zero_point == "offset" else "inside" if row.zero_point_inside else "code"
    return Rule(
        quotient=row.quotient,
        rounding=row.rounding,
        zero=zero,
        fused=row.fused and zero == "inside",
        lowest=row.offset_code == "lowest" and zero == "offset",
        middle=row.decode == "middle",
        signed=row.signed_scale,
        compute="" if row.scale_dtype(compute) == compute else compute.name,
    )


def range_rule_of(convention: Convention, qtype: QType, symmetric: bool, granularity: str) -> RangeRule:
    """Return the arithmetic with which a convention takes parameters from a range."""
    row = convention.under(symmetric, granularity)
    codes, clamped = row.parameter_range(qtype, symmetric), row.code_range(qtype, symmetric)
    if qtype.codebook:
        return RangeRule(floor=0.0, degenerate=0.0)
    return RangeRule(
        codes=None if codes == clamped else codes,
        widened=row.includes_zero or symmetric,
        double=row.parameter_type == "float64",
        span_in_compute=row.span_type == "compute",
        rounds_scale=row.scale_rounded,
        divisor=int(row.divisor == "codes"),
        floor=row.scale_floor,
        degenerate=row.degenerate,
        signed=row.symmetric_extreme == "signed" and symmetric,
        fits=symmetric and row.divisor == "steps" and codes == qtype.code_range(True),
        from_highest=row.zero_point_end == "highest",
        rounding="" if row.zero_point == "float" else row.zero_point_rounding,
        rounds_quotient=row.zero_point_rounded == "quotient",
        zero_when_degenerate=row.degenerate_zero_point,
    )
