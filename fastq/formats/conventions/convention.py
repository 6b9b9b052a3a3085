"""Convention: the arithmetic of one system, as fields; and Coding: a code format under it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from fastq.formats.granularity import Axis, kind_of
from fastq.formats.qtypes import QTYPES, WIDE, QType
from fastq.system.arguments import as_choice, as_int, check_fields, shown
from fastq.system.attributes import cached_property

_HALVES = ("float16", "bfloat16")
_ROUNDINGS = ("half_even", "half_away", "half_up", "floor", "trunc")
NEAREST = _ROUNDINGS[:3]
_CONDITIONS = ("asymmetric", "symmetric", "array", "channels", "blocks")


class HalfPrecision(NamedTuple):
    """Dtypes to which numbers are rounded, "float16" or "bfloat16"; "" for no rounding."""

    scale: str = ""  # scales, before anything is computed with them
    operations: str = ""  # results of operations
    stored: str = ""  # scales and offsets, after codes were computed with them


UNROUNDED = HalfPrecision()


def _one_of(*choices: str) -> Any:
    """Return a field that is one of these words, by default the first."""
    return field(default=choices[0], metadata={"choices": choices})


@dataclass(frozen=True)
class Convention:
    """The arithmetic of one system: its formulas from ranges to parameters, from values to codes, and back.

    F is the compute type of the values (see ``compute_type``); lo and hi are the smallest
    and the largest of the values that share a parameter, and qmin and qmax are the first and the last code. To make
    your own convention, replace fields of a row of the table.

    Attributes
    ----------
    name : str
        Name that callers pass.
    system : str
        The system and its functions.
    formats : tuple of str
        Code formats that it supports; empty for all. "int32" and "uint32" are those of `quantize_linear` and
        `dequantize_linear` only, and need an offset that is the value of code 0, or of the middle; no code is above
        the largest number of F that is one.
    schemes : tuple of str
        "asymmetric", "symmetric" or both.
    includes_zero : bool
        Whether the asymmetric range is widened to contain 0.
    compute_type : {"input", "float64"}
        The type F: float32, or float64 for float64 and wide integers; or float64 for all input.
    operation_type : {"compute", "input"}
        Type to which each operation on parameters or codes is rounded: F; or for bfloat16 and float16 that of the
        input, as in PyTorch, which computes in float32 and rounds each result. Scales are such numbers, in F.
    parameter_type : {"compute", "float64"}
        Type in which parameters are computed: F or float64.
    stored_type : {"compute", "float64", "input", "float32", "float16", "bfloat16"}
        Type in which the scale is kept, and a zero point that is not an integer. Codes are still computed in F. With
        "input" a scale for bfloat16 or float16 input is rounded to that type before a zero point or codes are computed
        from it, and with "float16" or "bfloat16" the scale for any input; the result is such a number in F. With
        "float32" scale and offset are rounded to it last, before codes are computed from them, and a scale below its
        smallest number is degenerate.
    codes_by : {"stored", "unrounded"}
        Scale that codes of an array are computed with: as it is kept; or as it was before it was rounded to half
        precision, which is then the last step, and rounds an offset, too. Values, and codes under parameters that are
        given, always come from what is kept.
    value_type : {"compute", "result"}
        Type to which each operation on the way from codes to values is rounded: F, and only the result to another
        dtype that is asked for; or that dtype, if it is bfloat16 or float16, after F. The scale, and a zero point that
        is an offset or inside, are rounded to it first.
    span_type : {"parameter", "compute"}
        Type of the difference ``hi - lo``: that of the parameters, or F.
    range_floor : float
        The least size of a range, which is ``hi - lo``, or ``max(-lo, hi)`` in the symmetric scheme: the scale of a
        smaller one is that of this size.
    scale_digits : {"all", "float16", "bfloat16"}
        Type to which a scale is rounded before it is rounded to ``stored_type``.
    divisor : {"steps", "codes"}
        ``scale = (hi - lo) / divisor``: ``qmax - qmin``, or one more. Symmetric: ``scale = max(-lo, hi) / (divisor /
        2)``.
    scale_from : {"range", "inverse"}
        An asymmetric scale comes from the range, or from its inverse, the number of steps in a unit: ``1 / (hi - lo) *
        divisor``, at most F(1 / ``scale_floor``), each operation rounded to F. The scale is then 1 / inverse in
        float64, and a product takes the place of the quotient in the zero point: ``qmin - lo * inverse``. That needs
        ``quotient="reciprocal_of_double"``, by which codes are computed with the inverse itself, and a float zero
        point.
    narrow_range : float or None
        An asymmetric range that is not wider has the scale 1, before an inverse is limited.
    scale_quotient : {"divide", "reciprocal"}
        Whether the range is divided so, or multiplied by ``1 / divisor``, rounded, as compilers do.
    scale_sign : {"positive", "negative", "nearer_end", "farther_end"}
        Sign of an asymmetric scale, unless it was replaced by another number than the floor: positive; negative; or
        negative if ``-lo > hi``, or unless ``abs(lo) > abs(hi)``. So the end that is nearer to 0, or farther, has the
        code qmin. A range with a negative scale is read from its other end: formulas of zero points have hi in the
        place of lo, and lo in that of hi.
    scale_rounding : {"nearest", "whole_steps", "power_of_two", "whole_inverse"}
        With "whole_steps" the offset becomes a whole number of steps, after a scale that is degenerate was replaced: k
        is ``rint(offset / scale)``, and where it is finite and not 0 the scale becomes ``offset / k``; where it is 0
        the offset becomes 0. That needs an offset at the lowest code. With "power_of_two" an asymmetric scale becomes
        the smallest power of two, a normal number, by which the range has at most qmax - qmin steps, rounded by
        ``rounding``. With "whole_inverse" an asymmetric scale below 1 becomes ``1 / floor(1 / scale)``, so that a unit
        has a whole number of steps; where the quotient is infinite it stays.
    scale_floor : float, None or "root"
        Scales below it are degenerate, and so is 0; None: the smallest normal number of F, or of the type of operations
        where these are rounded to that of the input; "root": the square root of that number.
    tiny_scale : {"nearest", "reaching"}
        The rounding of a scale below the smallest normal number of its type, F or that of ``stored_type``: to the
        nearest number; or to the next larger one if the ends of the range would lie more than half a step beyond the
        codes. With a ``scale_floor`` of 0 no range is then lost, however small, except that of zeros.
    degenerate : float, "floor", "value" or "epsilon"
        The replacement of a degenerate scale: a number; the floor; the difference of 1 and the next larger number of
        the type of operations; or the value of the constant array from which it comes: the smallest value (lo, in the
        symmetric scheme not widened), or 1 if that is below the floor or 0.
    degenerate_zero_point : {"scheme", "zero", "lowest", "end", "value", "formula"}
        Zero point for a degenerate scale, unless it became the floor. "scheme": 0, in the symmetric scheme the middle.
        "zero": 0 in both schemes. "lowest": qmin, in the symmetric scheme the middle. "end": 0, or qmax if lo is below
        0, like a division by 0. An offset is what its formula gives, 0 with "zero", and lo with "value".
        "formula": what its formula gives, also a code.
    scale_rounded : bool
        Whether a scale computed in float64 is rounded to F before a zero point is computed from it.
    zero_point : {"integer", "float", "offset"}
        The kind of the zero point: a code; a float among the codes, neither rounded nor clamped; or a value, in the
        units of the array.
    zero_point_end : {"lowest", "highest", "both"}
        ``qmin - lo / scale``; ``qmax - hi / scale``; or ``(qmin * hi - qmax * lo) / (hi - lo)``, and where that is
        infinite or NaN the first.
    zero_point_rounding : {"half_even", "half_away", "half_up", "floor", "trunc"}
        The rounding of an integer zero point.
    zero_point_rounded : {"difference", "quotient"}
        ``round(qmin - lo / scale)`` or ``qmin - round(lo / scale)``.
    zero_point_inside : bool
        ``round(x / scale + zero_point)``, else ``round(x / scale) + zero_point``.
    fused : bool
        Whether a product by the reciprocal and a zero point inside are rounded once, as their sum: float32 only.
    exponent : {"floor", "ceil", "even", "even_float4", "ceil_of_quotient"}
        Exponent of the scale of a block of an MX format, with m the largest magnitude of the block, L the largest
        number of an element and emax the exponent of L: ``floor(log2(m)) - emax``; ``ceil(log2(m)) - emax``; with
        "even" the first for m rounded half up to as many binary digits as elements have, with "even_float4" to those of
        float4_e2m1fn; or ``ceil(log2(m / L))``, the quotient divided and rounded as ``scale_quotient`` and
        ``operation_type`` say.
    zero_exponent : {"least", "zero"}
        Exponent of such a scale where m, or the quotient that it comes from, is 0: -127 or 0.
    tensor_scale : {"largest", "one"}
        The number that scales of blocks of "nvfp4" are multiplied by: the largest magnitude of the array over 2688, or
        1.
    block_scale_floor : float
        The least scale of a block of "nvfp4" before it is rounded: 0.0, or from 2**-9, the smallest float8_e4m3fn, to
        448.0. With 0.0 scales may be 0, whose codes are 0.
    block_quotient : {"reciprocal", "divide"}
        ``x * ((1 / tensor_scale) / scale)`` in "nvfp4", or ``x / F(scale * tensor_scale)``.
    offset_code : {"lowest", "zero", "middle"}
        The code with the offset as its value: for qmin the offset is lo, for 0 it is ``lo - qmin * scale``, or with
        "middle" ``(lo + hi - (qmin + qmax) * scale) / 2``.
    offset_rounding : {"nearest", "float32_below"}
        With "float32_below" the range begins at the largest float32 that is not above lo, subnormal ones left out, and
        scale and offset are those of that range. Needs an offset.
    quotient : {"divide", "divide_in_float64", "reciprocal", "reciprocal_of_double", "range", "range_of_multiple", ...}
        ``x / scale``; the same, with the offset taken from x, in float64 and rounded to F; ``x * F(1 / F(scale))``;
        ``x * F(1 / float64(scale))``; ``x / F(n * scale) * n`` with n = qmax - qmin; or ``x * n / F(n * scale)``. Or
        "steps_in_unit", ``x * i - offset * i``, with i the number of steps in a unit: ``F(1 / float64(scale))``,
        rounded to a whole number first where it is above 1; values are ``steps / i + offset``. The last three need an
        offset at the lowest code.
    rounding : {"half_even", "half_away", "half_up", "floor", "trunc"}
        The rounding of codes. "half_up" is ``floor(v + 0.5)``, the sum rounded in F.
    float_ties : {"even", "first_code"}
        The code of a float format for a number in the middle between two: the even one; or the one that comes first in
        the order of codes, that of the smaller magnitude. What rounds to 0 is then 0.0, also from below.
    cut_from : int
        Bits of the integers that codes are cut from: steps are first rounded, half to even, to units of these integers,
        2**-(cut_from - bits). 0, or no more than the bits of codes: they are not.
    decode : {"point", "middle"}
        The value of a code: ``(code - zero_point) * scale`` (with an offset: ``offset + steps * scale``), or half a
        step more.
    symmetric_extreme : {"magnitude", "signed", "signed_low"}
        A symmetric scale comes from ``max(-lo, hi)``; or from whichever of lo and hi is larger in magnitude, as ``it /
        -(divisor / 2)``, and is then negative for hi. With "signed_low" lo stands for ``-abs(lo)``, and is not widened
        to 0: the scale of a positive constant is positive, and its code is clamped.
    searched_signed : tuple of str
        Formats whose symmetric scales are "signed" where a range is searched for.
    narrow : str or tuple of str
        Formats whose symmetric scheme has as many codes below the middle as above: "all", or names.
    narrow_unsigned : {"lowest", "highest"}
        The code that unsigned ones of these leave out; the middle is half of the number of codes, or one less.
    reserves_fill : bool
        Whether one code is never used: the lowest of signed formats, the highest of unsigned ones.
    reduce_range : bool
        Whether only half of the codes are used: ``qmin / 2 .. qmax // 2``.
    reduced : tuple of (str, int, int)
        Formats with another reduced range: name, qmin, qmax.
    clamp : {"range", "format"}
        Whether codes are clamped to the codes for which the parameters were computed, or to all codes of the format.
    variants : tuple of (str, str, object)
        Fields with another value under a condition: the condition, the field, the value. Conditions are "asymmetric"
        and "symmetric", "array", "channels" and "blocks" for the elements that share a parameter, and code formats.

    Examples
    --------
    >>> import dataclasses
    >>> import numpy as np, fastq
    >>> fbgemm = dataclasses.replace(fastq.CONVENTIONS["torch"], name="fbgemm", reduce_range=True)
    >>> fastq.quantize(np.linspace(0, 1, 3, dtype=np.float32), "uint8", convention=fbgemm).codes
    array([  0,  64, 127], dtype=uint8)
    """

    name: str
    system: str = ""
    formats: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ("asymmetric", "symmetric")
    includes_zero: bool = True
    compute_type: str = _one_of("input", "float64")
    operation_type: str = _one_of("compute", "input")
    parameter_type: str = _one_of("compute", "float64")
    stored_type: str = _one_of("compute", "float64", "input", "float32", *_HALVES)
    codes_by: str = _one_of("stored", "unrounded")
    value_type: str = _one_of("compute", "result")
    span_type: str = _one_of("parameter", "compute")
    range_floor: float = 0.0
    scale_digits: str = _one_of("all", *_HALVES)
    divisor: str = _one_of("steps", "codes")
    scale_from: str = _one_of("range", "inverse")
    narrow_range: float | None = None
    scale_quotient: str = _one_of("divide", "reciprocal")
    scale_sign: str = _one_of("positive", "negative", "nearer_end", "farther_end")
    scale_rounding: str = _one_of("nearest", "whole_steps", "power_of_two", "whole_inverse")
    exponent: str = _one_of("floor", "ceil", "even", "even_float4", "ceil_of_quotient")
    zero_exponent: str = _one_of("least", "zero")
    tensor_scale: str = _one_of("largest", "one")
    block_scale_floor: float = 2.0**-6
    block_quotient: str = _one_of("reciprocal", "divide")
    scale_floor: float | str | None = None
    tiny_scale: str = _one_of("nearest", "reaching")
    degenerate: float | str = 1.0
    degenerate_zero_point: str = _one_of("scheme", "zero", "lowest", "end", "value", "formula")
    scale_rounded: bool = False
    zero_point: str = _one_of("integer", "float", "offset")
    zero_point_end: str = _one_of("lowest", "highest", "both")
    zero_point_rounding: str = _one_of(*_ROUNDINGS)
    zero_point_rounded: str = _one_of("difference", "quotient")
    zero_point_inside: bool = False
    fused: bool = False
    offset_code: str = _one_of("lowest", "zero", "middle")
    offset_rounding: str = _one_of("nearest", "float32_below")
    quotient: str = _one_of(
        *("divide", "divide_in_float64", "reciprocal", "reciprocal_of_double", "range", "range_of_multiple"),
        "steps_in_unit",
    )
    rounding: str = _one_of(*_ROUNDINGS)
    float_ties: str = _one_of("even", "first_code")
    cut_from: int = 0
    decode: str = _one_of("point", "middle")
    symmetric_extreme: str = _one_of("magnitude", "signed", "signed_low")
    searched_signed: tuple[str, ...] = ()
    narrow: str | tuple[str, ...] = "all"
    narrow_unsigned: str = _one_of("lowest", "highest")
    reserves_fill: bool = False
    reduce_range: bool = False
    reduced: tuple[tuple[str, int, int], ...] = ()
    clamp: str = _one_of("range", "format")
    variants: tuple[tuple[str, str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        for attribute in fields(self):
            if choices := attribute.metadata.get("choices"):
                vars(self)[attribute.name] = as_choice(getattr(self, attribute.name), attribute.name, choices)
        self._check_formats()
        floor = self.scale_floor
        degenerate = self.degenerate
        if isinstance(floor, str):
            vars(self)["scale_floor"] = as_choice(floor, "scale_floor", ("root",))
        elif floor is not None and not (_is_number(floor) and 0.0 <= floor <= sys.float_info.max):
            raise ValueError(f"scale_floor must be None, 'root', 0.0 or a positive finite number, not {shown(floor)}")
        elif floor is not None:
            vars(self)["scale_floor"] = float(floor)
        if not (isinstance(degenerate, str) and degenerate in ("floor", "value", "epsilon")) and not (
            _is_number(degenerate) and 0.0 < degenerate <= sys.float_info.max
        ):
            raise ValueError(
                f"degenerate must be 'floor', 'value', 'epsilon' or a positive number, not {shown(degenerate)}"
            )
        if not (_is_number(self.range_floor) and 0.0 <= self.range_floor <= sys.float_info.max):
            raise ValueError(f"range_floor must be 0.0 or a positive finite number, not {shown(self.range_floor)}")
        vars(self)["range_floor"] = float(self.range_floor)
        floor = self.block_scale_floor  # less than 2**-9 may be rounded to 0, which is a scale with 0.0 alone
        if not (_is_number(floor) and (floor == 0.0 or 2.0**-9 <= floor <= 448.0)):
            raise ValueError(f"block_scale_floor must be 0.0, or from 2**-9 to 448.0, not {shown(floor)}")
        vars(self)["block_scale_floor"] = float(self.block_scale_floor)
        vars(self)["degenerate"] = str(degenerate) if isinstance(degenerate, str) else float(degenerate)
        if self.degenerate == "floor" and self.scale_floor == 0.0:
            raise ValueError("degenerate='floor' needs a scale_floor that is a valid scale: None or a positive number")
        if self.zero_point == "float" and not self.zero_point_inside:
            raise ValueError(
                "a float zero_point needs zero_point_inside=True, because otherwise codes would not be integers"
            )
        if self.zero_point == "offset" and "symmetric" in self.schemes:
            raise ValueError("an offset has no symmetric scheme: schemes must be ('asymmetric',)")
        if not 0 <= self.cut_from <= 32:
            raise ValueError(f"cut_from must be 0 to 32 bits, not {self.cut_from}")
        if self.divides_steps and (self.zero_point, self.offset_code) != ("offset", "lowest"):
            raise ValueError(f"quotient={self.quotient!r} needs zero_point='offset' and offset_code='lowest'")
        if self.operation_type == "input" and "float64" in (self.parameter_type, self.stored_type):
            raise ValueError("operation_type='input' needs parameters of the compute type, not of float64")
        if self.operation_type == "input" and self.divides_steps:
            raise ValueError(
                f"operation_type='input' needs a quotient other than {self.quotient!r}, which decodes values"
            )
        if self.operation_type == "input" and self.compute_type == "float64":
            raise ValueError(
                "operation_type='input' needs compute_type='input', which rounds to half precision once more"
            )
        at_lowest = (self.zero_point, self.offset_code) == ("offset", "lowest")
        if self.offset_rounding == "float32_below" and self.zero_point != "offset":
            raise ValueError("offset_rounding='float32_below' needs zero_point='offset'")
        if self.tiny_scale == "reaching" and self.symmetric_extreme != "magnitude":
            raise ValueError("tiny_scale='reaching' needs symmetric_extreme='magnitude', which gives positive scales")
        in_halves = self.operation_type == "compute" and self.stored_type not in ("float64", "float32")
        if self.codes_by == "unrounded" and not in_halves:
            raise ValueError(
                "codes_by='unrounded' needs operation_type='compute' and scales that are kept in F or half precision"
            )
        if self.codes_by == "unrounded" and self.divides_steps:
            raise ValueError(
                f"codes_by='unrounded' needs a quotient other than {self.quotient!r}, which decodes values"
            )
        narrow = self.narrow_range
        if narrow is not None and not (_is_number(narrow) and 0.0 <= narrow <= sys.float_info.max):
            raise ValueError(f"narrow_range must be None, 0.0 or a positive finite number, not {shown(narrow)}")
        if narrow is not None:
            vars(self)["narrow_range"] = float(narrow)
        of_inverse = (self.quotient, self.stored_type, self.zero_point, self.parameter_type)
        if self.scale_from == "inverse" and of_inverse != ("reciprocal_of_double", "float64", "float", "compute"):
            raise ValueError(
                "scale_from='inverse' needs quotient='reciprocal_of_double', stored_type='float64', zero_point='float' "
                "and parameter_type='compute'"
            )
        if self.value_type == "result" and self.divides_steps:
            raise ValueError(f"value_type='result' needs a quotient other than {self.quotient!r}, which decodes values")
        if self.scale_rounding == "whole_steps" and not at_lowest:
            raise ValueError("scale_rounding='whole_steps' needs zero_point='offset' and offset_code='lowest'")
        self._check_variants()

    def _check_variants(self) -> None:
        """Raise an error unless variants name known conditions and fields, and give a valid row in each case."""
        # what these say must not depend on the case: some are read before it is known
        fixed = {"name", "system", "formats", "schemes", "compute_type", "operation_type", "zero_point", "codes_by"}
        names_of_fields = {field.name for field in fields(self)} - fixed - {"variants"}
        for condition, name, _ in _rows(self.variants, "variants", "(condition, field, value)"):
            as_choice(condition, "a condition of variants", (*_CONDITIONS, *QTYPES, *WIDE))
            as_choice(name, "a field of variants", sorted(names_of_fields))
        formats = ("", *(condition for condition, *_ in self.variants if condition not in _CONDITIONS))
        for scheme in self.schemes if self.variants else ():
            for part in ("array", "channels", "blocks"):
                for code_format in formats:
                    self.under(scheme == "symmetric", part, code_format)  # which validates the row of this case

    def _check_formats(self) -> None:
        """Raise an error unless the fields that name schemes, code formats and their codes are valid."""
        if not _are_of(self.schemes, ("asymmetric", "symmetric")) or not self.schemes:
            raise ValueError(f"schemes must be a tuple of 'asymmetric' and 'symmetric', not {shown(self.schemes)}")
        for name, known in (("formats", (*QTYPES, *WIDE)), ("searched_signed", QTYPES)):
            if not _are_of(getattr(self, name), known):
                raise ValueError(f"{name} must be a tuple of code formats, not {shown(getattr(self, name))}")
        # Steps are rounded to integers of 32 bits. Counted from code 0 they are the codes of these formats; from the
        # lowest code, or from a zero point among the codes, they may be more than such an integer holds.
        wide = [name for name in self.formats if name in WIDE]
        if wide and (self.zero_point != "offset" or self.offset_code == "lowest"):
            raise ValueError(f"format {wide[0]} needs zero_point='offset' of the code 0 or the middle")
        if not ((isinstance(self.narrow, str) and self.narrow == "all") or _are_of(self.narrow, QTYPES)):
            raise ValueError(f"narrow must be 'all' or a tuple of code formats, not {shown(self.narrow)}")
        for name, first, last in _rows(self.reduced, "reduced", "(code format, first code, last code)"):
            as_choice(name, "a format of reduced", (*QTYPES, *WIDE))
            if as_int(first, "a code of reduced") >= as_int(last, "a code of reduced"):
                raise ValueError(f"reduced must have its first code before the last, not {first} and {last} for {name}")

    def __hash__(self) -> int:
        return hash(self.name)  # rows are keys of caches; their many fields take longer

    def under(self, symmetric: bool, part: str, code_format: str = "") -> Convention:
        """Return the row with the variants for a scheme, parameters of a part and a format.

        Parts are "array", "channels" and "blocks".
        """
        holds = ("symmetric" if symmetric else "asymmetric", part, code_format)
        return replace(self, variants=(), **{name: value for when, name, value in self.variants if when in holds})

    def parameter_range(self, qtype: QType, symmetric: bool) -> tuple[float, float]:
        """Return the first and the last of the codes for which parameters are computed.

        A reserved code, for missing values, is the lowest of a signed format and the highest of an unsigned one.
        """
        if self.reduce_range:
            for name, least, most in self.reduced:
                if name == qtype.name:
                    return least, most
            return qtype.qmin // 2, qtype.qmax // 2
        if self.reserves_fill:
            return qtype.qmin + qtype.signed, qtype.qmax - (not qtype.signed)
        narrow = symmetric and (self.narrow == "all" or qtype.format in self.narrow)
        first, last = qtype.ranges[narrow]
        if narrow and not qtype.signed and self.narrow_unsigned == "highest":
            return first - 1, last - 1
        return first, last

    @property
    def by_range(self) -> bool:
        """Whether values are divided by the range of all codes."""
        return self.quotient in ("range", "range_of_multiple")

    @property
    def divides_steps(self) -> bool:
        """Whether values are quotients of steps, not products."""
        return self.by_range or self.quotient == "steps_in_unit"

    def scales_by_array(self, qtype: QType) -> bool:
        """Return whether the scales of all blocks depend on the largest magnitude of the array."""
        return qtype.has_tensor_scale and self.tensor_scale == "largest"

    def allows_zero_scale(self, qtype: QType) -> bool:
        """Return whether scales that a format prescribes may be 0."""
        return qtype.has_tensor_scale and self.block_scale_floor == 0.0

    def parts_of_steps(self, qtype: QType) -> float:
        """Return how many parts of a step there are to which steps are rounded first; 0 if they are not.

        Codes of 16 bits that are cut from 32 have 2**16.
        """
        return 2.0 ** (self.cut_from - qtype.bits) if self.cut_from > qtype.bits else 0.0

    def half_precision_for(self, dtype: np.dtype[Any]) -> HalfPrecision:
        """Return the dtypes of half precision to which this convention rounds, for input of a dtype."""
        half = dtype.name if dtype.name in _HALVES else ""
        scale = half if "input" in (self.operation_type, self.stored_type) else ""
        scale = self.stored_type if self.stored_type in _HALVES else scale
        if self.codes_by == "unrounded":
            return HalfPrecision(stored=scale)
        return HalfPrecision(scale=scale, operations=half if self.operation_type == "input" else "")

    def computes_in(self, values: np.dtype[Any]) -> np.dtype[Any]:
        """Return F for values of which other rows have the compute type `values`."""
        return np.dtype(np.float64) if self.compute_type == "float64" else values

    def half_of_values(self, dtype: np.dtype[Any]) -> str:
        """Return the dtype of half precision to which operations on values are rounded, for values of a dtype."""
        return dtype.name if self.value_type == "result" and dtype.name in _HALVES else ""

    @cached_property
    def before_rounding(self) -> Convention:
        """The row whose parameters are those that codes are computed with, before ``codes_by`` has them rounded."""
        return self if self.codes_by == "stored" else replace(self, codes_by="stored", stored_type="compute")

    def dtypes(self, qtype: QType, compute: np.dtype[Any]) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """Return the types of scales and of zero points for values of a compute type."""
        compute = self.computes_in(compute)
        scale = np.dtype(np.float64) if self.stored_type == "float64" else compute
        return scale, qtype.storage if self.zero_point == "integer" else scale

    @cached_property
    def signed_scale(self) -> bool:
        """Whether a scale may be negative."""
        from_range = self.symmetric_extreme != "magnitude" or self.scale_sign != "positive"
        of_variant = any(name == "scale_sign" and value != "positive" for _, name, value in self.variants)
        return from_range or of_variant or self.degenerate == "value" or bool(self.searched_signed)


# --- a code format under a convention ---------------------------------------------------------------------------------


class Coding(NamedTuple):
    """A code format as a convention uses it in one scheme."""

    convention: Convention  # its fields as they are in that scheme
    parameters: tuple[float, float]  # the first and the last of the codes that parameters are made for
    codes: tuple[float, float]  # the first and the last code in use
    compute: np.dtype[Any]  # the type to compute in
    scale: np.dtype[Any]  # the types of scales and zero points
    zero_point: np.dtype[Any]


_under = functools.lru_cache(256)(Convention.under)


def coding_of(
    convention: Convention, qtype: QType, symmetric: bool, axis: Axis, block_size: int, compute: np.dtype[Any]
) -> Coding:
    """Return a format under a convention, for parameters along an axis of values of a compute type.

    `compute` is the compute type under most conventions; some have one of their own.
    """
    in_scheme = convention
    if convention.variants:
        in_scheme = _under(convention, symmetric, kind_of(axis, block_size), qtype.format)
    compute = in_scheme.computes_in(compute)
    parameters = in_scheme.parameter_range(qtype, symmetric)
    first, last = (qtype.qmin, qtype.qmax) if in_scheme.clamp == "format" else parameters
    codes = first, _largest_up_to(last, compute) if exceeds_digits(qtype, compute) else last
    scale, zero_point = in_scheme.dtypes(qtype, compute)
    return Coding(in_scheme, parameters=parameters, codes=codes, compute=compute, scale=scale, zero_point=zero_point)


def exceeds_digits(qtype: QType, compute: np.dtype[Any]) -> bool:
    """Return whether codes have more digits than numbers of a compute type."""
    return not qtype.element and qtype.bits > np.finfo(compute).nmant + 1


def _largest_up_to(code: float, compute: np.dtype[Any]) -> float:
    """Return the largest number of a compute type that is not above a code: values are clamped to it (contract 7.8).

    The last code of int32 is 2147483647; the largest float32 up to it is 2147483520.
    """
    near = compute.type(code)
    return float(near if float(near) <= code else np.nextafter(near, compute.type(0)))


# --- fields -----------------------------------------------------------------------------------------------------------


def _is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a float or an int of Python, but not a bool."""
    return issubclass(type(value), (int, float)) and type(value) is not bool


def _are_of(names: object, known: Collection[str]) -> bool:
    """Return whether this is a tuple of known names."""
    return type(names) is tuple and all(issubclass(type(name), str) and name in known for name in names)


def _rows(rows: object, name: str, columns: str) -> tuple[tuple[Any, Any, Any], ...]:
    """Return the value of a field if it is a tuple of tuples of three items; `columns` names these in the error."""
    if type(rows) is tuple and all(type(row) is tuple and len(row) == 3 for row in rows):
        return rows
    raise ValueError(f"{name} must be a tuple of {columns}, not {shown(rows)}")
