"""Describe an operation apart from its arrays: op, arithmetic, NaN policy and how codes lie in memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.conventions.convention import Coding, exceeds_digits
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.kernels.rule import AT_RANDOM, ONNX, WIDELY_AT_RANDOM, RangeRule, Rule
from fastq.kernels.storage import StorageFormat
from fastq.requests.quantization import Request
from fastq.system.attributes import cached_property

CodeRange = tuple[float, float]  # the first and the last code in use


class Arithmetic(NamedTuple):
    """The rule of an operation, and the storage of codes and scales where their dtype does not say it."""

    rule: Rule = ONNX  # the convention's arithmetic
    code_format: StorageFormat | None = None  # the storage of the codes; None: that of their dtype
    scale_format: StorageFormat | None = None  # the storage of the scales, where the code format prescribes one

    @property
    def clamping(self) -> Arithmetic:
        """The same where codes are always clamped: a search tries ranges that not all values lie in."""
        range_rule = self.rule.range
        if range_rule is None:
            return self
        return self._replace(rule=self.rule._replace(range=range_rule._replace(values_fit=False)))


PLAIN = Arithmetic()


class RangeScheme(NamedTuple):
    """The computation of parameters from a range ("symmetric", "asymmetric", ...), and the dtypes of results."""

    name: str
    scale_dtype: np.dtype[Any]
    zero_point_dtype: np.dtype[Any]


GIVEN = RangeScheme("", np.dtype(np.float32), np.dtype(np.int8))  # parameters are given, and none are written


@dataclass(frozen=True, eq=False)
class OpSpec:
    """The computation, without arrays and granularity."""

    op: str  # what is computed
    arithmetic: Arithmetic = PLAIN  # the rule, and the storage of source and result
    code_range: CodeRange = (0, 0)  # the first and the last code in use
    nan: str = "raise"  # what to do with NaN
    range_scheme: RangeScheme = GIVEN  # the method for parameters from ranges; `GIVEN` if they are given
    draws: bool = False  # whether codes are rounded at random
    packed_format: StorageFormat | None = None  # the storage of codes that share bytes, where such are read or written

    @cached_property
    def in_bytes(self) -> OpSpec:
        """The same for codes in the lowest bits of a byte each, whatever its higher bits are."""
        return self._with_codes(self.arithmetic.code_format and self.arithmetic.code_format.in_bytes)

    @cached_property
    def unpacked(self) -> OpSpec:
        """The same for codes one in a byte, as integers or the bits of floats."""
        return self._with_codes(self.arithmetic.code_format and self.arithmetic.code_format.unpacked)

    @cached_property
    def at_random(self) -> OpSpec:
        """The same with codes rounded at random."""
        lowest, highest = self.code_range
        # codes of more than 8 bits need another arithmetic: a step and its random bits together fill an int32
        rule = self.arithmetic.rule._replace(rounding=AT_RANDOM if highest - lowest < 256 else WIDELY_AT_RANDOM)
        return replace(self, arithmetic=self.arithmetic._replace(rule=rule), draws=True)

    def _with_codes(self, code_format: StorageFormat | None) -> OpSpec:
        """Return the same for codes that lie in memory in another way, and share no bytes."""
        return replace(self, arithmetic=self.arithmetic._replace(code_format=code_format), packed_format=None)

    @cached_property
    def by_parameters(self) -> OpSpec:
        """The same where parameters are given: the conversion that follows once parameters were taken from ranges."""
        rule = self.arithmetic.rule
        # codes are computed with scales before these are rounded to what is stored; the values of "fake" come from the
        # rounded ones, so its kernels still have to round them
        rule = rule._replace(range=None, stored_half=rule.stored_half if self.op == "fake" else "")
        return replace(self, arithmetic=self.arithmetic._replace(rule=rule), range_scheme=GIVEN)


# --- from a code format and a convention to an OpSpec -----------------------------------------------------------------

# how the scales of a block are taken from its range, by the float format of the scales
_SCHEMES = {"float8_e8m0fnu": "microscaling", "float8_e4m3fn": "nvfp4"}
_BYTE = np.dtype(np.uint8)  # parameters whose dtype the code format prescribes are written as bytes


@functools.lru_cache(4096)
def spec_of(op: str, request: Request, *, by_range: bool = False, values: np.dtype[Any] | None = None) -> OpSpec:
    """Return the spec of an operation with given parameters, or with parameters that it takes from ranges.

    The latter rounds as in the convention: for stochastic rounding it gives only parameters. `values` is the dtype of
    the values that it gives, if any.
    """
    coding = request.coding
    qtype = request.qtype
    symmetric = request.symmetric
    rule = _rule_of_request(request, by_range)
    if op == "dequantize":
        rule = rule.of_values
    if values is not None:
        rule = rule._replace(value_half=coding.convention.half_of_values(values))
    range_scheme = GIVEN
    if by_range:
        name = _SCHEMES.get(qtype.scale_element) or ("symmetric" if symmetric else "asymmetric")
        range_scheme = RangeScheme(
            name=name,
            scale_dtype=_BYTE if qtype.scale_element else coding.scale,
            zero_point_dtype=_BYTE if qtype.element else coding.zero_point,
        )
    codes, scales = _storages(qtype, request.saturate)
    packed = codes if qtype.packed and op != "fake" else None
    arithmetic = Arithmetic(rule, codes, scales)
    draws = request.stochastic and not by_range
    spec = OpSpec(
        op=op,
        arithmetic=arithmetic,
        code_range=coding.codes,
        nan=request.nan,
        range_scheme=range_scheme,
        packed_format=packed,
    )
    return spec.at_random if draws else spec


def _rule_of_request(request: Request, by_range: bool) -> Rule:
    """Return the arithmetic of a request, with the types of half precision that numbers are rounded to on the way.

    There are three, and a rule may name each: that of scales from ranges, before anything is computed with them; that
    of the results of operations; and that of scales and offsets as they are stored, once codes are computed with them.
    The first and the last are those of parameters from ranges. Given parameters are what they are.
    """
    coding = request.coding
    half = request.half
    rule = rule_of(coding, request.qtype)._replace(operation_half=half.operations)
    if not by_range:
        return rule
    range_rule = range_rule_of(coding, request.qtype, request.symmetric)
    range_rule = range_rule._replace(
        scale_half=half.scale,
        scale_floor=_floor_in_half(range_rule.scale_floor, half.operations),
        # codes of a scale that was rounded may lie beyond the ends, and have to be clamped
        values_fit=range_rule.values_fit and not half.scale,
    )
    return rule._replace(stored_half=half.stored, range=range_rule)


def _floor_in_half(scale_floor: float | str | None, operations: str) -> float | str | None:
    """Return the floor of scales as a number where operations are rounded to half precision, else as it is.

    None stands for the smallest normal number of the type of operations, and "root" for its square root. Kernels know
    that of the type in which they compute, float32 or float64, but the type of these operations has another one.
    """
    if not operations or isinstance(scale_floor, float):
        return scale_floor
    smallest_normal = FLOAT_FORMATS[operations].smallest_normal
    return smallest_normal**0.5 if scale_floor == "root" else smallest_normal


def _storages(qtype: QType, saturate: bool) -> tuple[StorageFormat | None, StorageFormat | None]:
    """Return how codes and scales lie in memory where their dtype does not say it, else None.

    `saturate` is the caller's option. It is not read where a code can't overflow: a format may have no NaN to overflow
    to, and the scale of a block is such that its values fit.
    """
    codes = scales = None
    if qtype.packed or qtype.element:
        float_format = qtype.float_format
        may_overflow = float_format is not None and float_format.nan is not None and not qtype.block_size
        signed = qtype.signed and not qtype.element  # two's complement: the sign bit of a float is part of its format
        codes = StorageFormat(
            bits=qtype.bits, signed=signed, element=qtype.element, saturate=saturate or not may_overflow
        )
    if qtype.scale_element:
        of_scale = FLOAT_FORMATS[qtype.scale_element]
        # codes of "mxint8" count 64ths: a stored 2**e stands for steps of 2**(e - 6)
        exponent = 0 if qtype.element or of_scale.sign else qtype.bits - 2
        scales = StorageFormat(8, signed=False, element=of_scale.name, exponent=exponent)
    return codes, scales


def rule_of(coding: Coding, qtype: QType) -> Rule:
    """Return the arithmetic of a convention with given parameters."""
    convention = coding.convention
    counts = not qtype.element  # whether codes count steps; those of float formats and tables do not
    zero = "code"
    if convention.zero_point == "offset" and counts:
        zero = "offset"
    elif convention.zero_point_inside:
        zero = "inside"
    return Rule(
        quotient=convention.quotient if counts or not convention.divides_steps else "divide",
        rounding=convention.rounding,
        finer=convention.parts_of_steps(qtype) if counts else 0.0,
        zero=zero,
        fused=convention.fused and zero == "inside",
        offset=convention.offset_code if zero == "offset" else "",
        middle=convention.decode == "middle" and counts,
        ties=convention.float_ties if qtype.is_float else "even",
        divides_blocks=convention.block_quotient == "divide" and qtype.has_tensor_scale,
        allows_zero=convention.allows_zero_scale(qtype),
        signed=convention.signed_scale,
        wide=exceeds_digits(qtype, coding.compute),
        beyond_int32=qtype.bits == 32 and not qtype.signed,
        compute="" if coding.scale == coding.compute else coding.compute.name,
    )


def range_rule_of(coding: Coding, qtype: QType, symmetric: bool) -> RangeRule:
    """Return the arithmetic with which a convention takes parameters from a range.

    Only what a format or a scheme reads is taken, so that conventions that differ elsewhere share kernels: all else
    has its default.
    """
    convention = coding.convention
    if qtype.codebook:
        return RangeRule(scale_floor=0.0, degenerate=0.0)
    if qtype.scale_element:
        return RangeRule(
            scale_floor=0.0,
            scale_by_reciprocal=convention.scale_quotient == "reciprocal",
            exponent=convention.exponent,
            scale_of_zeros=1.0 if convention.zero_exponent == "zero" else 2.0**-127,
            block_scale_floor=convention.block_scale_floor,
            tensor_scale_is_one=convention.tensor_scale == "one",
        )
    is_by_magnitude = not symmetric or convention.symmetric_extreme == "magnitude"
    return RangeRule(
        codes=None if coding.parameters == coding.codes else coding.parameters,
        includes_zero=convention.includes_zero or symmetric,
        in_float64=convention.parameter_type == "float64",
        span_in_compute=convention.span_type == "compute",
        starts_at_float32_below=convention.offset_rounding == "float32_below",
        scale_is_power_of_two=convention.scale_rounding == "power_of_two",
        scale_has_whole_inverse=convention.scale_rounding == "whole_inverse",
        scale_sign=convention.scale_sign,
        stored_in_float32=convention.stored_type == "float32",
        scale_rounded=convention.scale_rounded,
        range_floor=convention.range_floor,
        scale_digits="" if convention.scale_digits == "all" else convention.scale_digits,
        added_to_divisor=int(convention.divisor == "codes"),
        scale_by_reciprocal=convention.scale_quotient == "reciprocal",
        scale_floor=convention.scale_floor,
        tiny_scale_reaches=convention.tiny_scale == "reaching",
        degenerate=convention.degenerate,
        symmetric_extreme="" if is_by_magnitude else convention.symmetric_extreme,
        scale_from_inverse=convention.scale_from == "inverse" and not symmetric,
        narrow_range=convention.narrow_range,
        offset_in_whole_steps=convention.scale_rounding == "whole_steps",
        values_fit=symmetric and convention.divisor == "steps" and coding.parameters == qtype.ranges[True],
        zero_point_end=convention.zero_point_end,
        zero_point_rounding="" if convention.zero_point == "float" else convention.zero_point_rounding,
        zero_point_rounds_quotient=convention.zero_point_rounded == "quotient",
        degenerate_zero_point=convention.degenerate_zero_point,
    )
