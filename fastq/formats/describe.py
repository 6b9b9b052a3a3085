"""Conventions written out: their formulas in one line each, and their rounding and their ends in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fastq.formats.codebooks import LEAST_SCALE
from fastq.formats.conventions.convention import Convention, coding_of
from fastq.formats.conventions.table import CONVENTIONS, DEFAULT
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, QType

PARTS = ("array", "channels", "blocks")

_ROUND = {"half_even": "rint", "half_away": "round", "half_up": "up", "floor": "floor", "trunc": "trunc"}
_NEAREST = {"half_even": "nearest, ties to even", "half_away": "nearest, ties away from zero"}
_OF_NUMBERS = _NEAREST | {"half_up": "nearest, ties up", "floor": "down", "trunc": "towards zero"}
# where a zero point is added before codes are rounded
_OF_CODES = {
    "half_even": "nearest, ties to the even code",
    "half_away": "nearest, ties away from code 0",
    "half_up": "nearest, ties up",
    "floor": "down",
    "trunc": "towards code 0",
}


def in_every_case(row: Convention, formula: Callable[[Convention, str], str]) -> list[tuple[str, str]]:
    """Return the different formulas of a convention, each with the cases in which it holds; "" for all of them.

    `formula` takes a row with the variants of a case, and the scheme. A case has a scheme, a part and a code format, ""
    for formats without variants of their own.
    """
    cases_of_text: dict[str, list[tuple[str, str, str]]] = {}
    names_of_own = {qtype.name for qtype in own_formats(row)}  # which `of_own_formats` describes
    conditions = (condition for condition, *_ in row.variants)
    formats = ("", *dict.fromkeys(name for name in conditions if name in row.formats and name not in names_of_own))
    for case in itertools.product(row.schemes, PARTS, formats):
        scheme, part, code_format = case
        text = formula(row.under(scheme == "symmetric", part, code_format), scheme)
        cases_of_text.setdefault(text, []).append(case)
    holds_always = len(cases_of_text) == 1
    return [(text, "" if holds_always else _named(cases, row)) for text, cases in cases_of_text.items()]


def own_formats(row: Convention) -> list[QType]:
    """Return the formats with scales of their own that a convention has: those that it names, the default one all."""
    named = row.formats or (QTYPES if row.name == DEFAULT else ())
    return [qtype for qtype in QTYPES.values() if qtype.block_size and qtype.name in named]


def of_own_formats(row: Convention, formula: Callable[[QType, Convention], str]) -> list[tuple[str, str]]:
    """Return the different formulas of formats with scales of their own, each with these formats."""
    formats: dict[str, list[str]] = {}
    for qtype in own_formats(row):
        formats.setdefault(formula(qtype, row.under(True, "blocks", qtype.name)), []).append(qtype.name)
    return [(text, ", ".join(names)) for text, names in formats.items()]


def _named(cases: list[tuple[str, str, str]], row: Convention) -> str:
    """Return some of the cases of a convention in words, such as "symmetric, per channels": what they all have.

    "else" are cases with each scheme and each part, and with formats that have no variants.
    """
    schemes, parts, formats = (list(dict.fromkeys(names)) for names in zip(*cases, strict=True))
    words = schemes if len(schemes) < len(row.schemes) else []
    words = [*words, *([f"per {' or '.join(parts)}"] if len(parts) < 3 else [])]
    return ", ".join([*words, *(formats if "" not in formats else [])]) or "else"


def rounding_words(row: Convention, _: str = "asymmetric") -> str:
    """Return in words how codes are rounded, in any scheme: the second argument is for `in_every_case`."""
    inside = row.zero_point_inside and row.zero_point != "offset"
    words = (_OF_CODES if inside else _OF_NUMBERS)[row.rounding]
    return f"{_NEAREST['half_even']}, to {row.cut_from} bits, and then {words}" if row.cut_from else words


def ends_words(row: Convention) -> str:
    """Return the codes at which integers of a convention saturate, where these are not all codes of a format."""
    ends_by_scheme = {scheme: _ends_of_codes(row, scheme == "symmetric") for scheme in row.schemes}
    if len(set(ends_by_scheme.values())) == 1:
        return ends_by_scheme[row.schemes[0]] or "all codes"
    return "; ".join(f"{scheme}: {ends or 'all codes'}" for scheme, ends in ends_by_scheme.items())


def _ends_of_codes(row: Convention, symmetric: bool) -> str:
    """Return the first and the last code of each format that does not use all codes, such as "int8 -127 to 127".

    Of a convention for all formats, int8 and uint8 stand for the others.
    """
    ends = []
    for qtype in (QTYPES[name] for name in row.formats or ("int8", "uint8") if name in QTYPES):
        first, last = coding_of(row, qtype, symmetric, None, 0, np.dtype(np.float32)).codes
        if not qtype.element and (first, last) != (qtype.qmin, qtype.qmax):
            ends.append(f"{qtype} {first:g} to {last:g}")
    return ", ".join([*ends, "others alike"] if ends and not row.formats else ends)


def has_only_floats(row: Convention) -> bool:
    """Return whether all code formats of a convention are floats, or tables of numbers."""
    return bool(row.formats) and all(name in QTYPES and bool(QTYPES[name].element) for name in row.formats)


def code_formula(row: Convention, _: str = "asymmetric") -> str:
    """Return the formula of codes; `row` has the variants of a scheme, so the second argument is not read.

    `nearest` rounds to a number of a float format.
    """
    offset = row.zero_point == "offset"
    x = "(x - offset)" if offset else "x"
    steps = {
        "divide": f"{x} / scale",
        "divide_in_float64": f"F({x.replace('x', 'float64(x)')} / scale)",
        "reciprocal": f"{x} * F(1 / scale)",
        "reciprocal_of_double": f"{x} * F(1 / float64(scale))",
        "range": f"{x} / F(n * scale) * n",
        "range_of_multiple": f"{x} * n / F(n * scale)",
        "steps_in_unit": "x * i - offset * i",
    }[row.quotient]
    if has_only_floats(row):
        return f"nearest({steps})"
    if row.zero_point_inside and not offset:
        inner = f"fma({steps.replace(' *', ',')}, zero_point)" if row.fused else f"{steps} + zero_point"
        return f"clamp({_whole(inner, row)})"
    start = ("", " + qmin")[row.offset_code == "lowest"] if offset else " + zero_point"
    also = ""
    if row.by_range:
        also = "; qmin if F(n * scale) is 0"
    elif row.divides_steps:
        also = "; i = F(1 / float64(scale)), whole where it is above 1"
    return f"clamp({_whole(steps, row)}{start}){also}"


def _whole(steps: str, row: Convention) -> str:
    """Return the formula that makes steps whole."""
    if row.cut_from:
        parts = f"2**({row.cut_from} - bits)"
        steps = f"rint({f'({steps})' if ' + ' in steps else steps} * {parts}) / {parts}"
    return f"{_ROUND[row.rounding]}({steps})"


def value_formula(row: Convention, _: str = "asymmetric") -> str:
    """Return the formula of values; `row` has the variants of a scheme, so the second argument is not read."""
    half = " + 0.5" if row.decode == "middle" else ""
    if row.zero_point != "offset":
        return f"(code - zero_point{half}) * scale"
    steps = ("code - qmin" if row.offset_code == "lowest" else "code") + half
    steps = f"({steps})" if " " in steps else steps
    if row.by_range:
        return f"{steps} / n * F(n * scale) + offset"
    return f"{steps} / i + offset" if row.divides_steps else f"{steps} * scale + offset"


def scale_formula(row: Convention, scheme: str = "asymmetric") -> str:
    """Return the formula of scales."""
    steps = "(qmax - qmin)" if row.divisor == "steps" else "(qmax - qmin + 1)"
    number = "float64" if row.parameter_type == "float64" else "F"
    narrow = "" if row.narrow_range is None or scheme == "symmetric" else f"; 1 if hi - lo <= {row.narrow_range:g}"
    if row.scale_from == "inverse" and scheme != "symmetric":
        most = "" if row.scale_floor == 0.0 else f", at most 1 / {_floor(row)}"
        return f"1 / inverse in float64; inverse = 1 / (hi - lo) * {steps} in F{narrow}{most}"
    if scheme == "symmetric":
        extreme = _size_with_floor(_EXTREMES[row.symmetric_extreme], row)
        by = f"({steps} / 2)"
        scale = f"{extreme} / ({steps[1:-1]}) * 2" if row.divisor == "codes" else f"{extreme} / {by}"
    else:
        difference = "F(hi - lo)" if row.span_type == "compute" and number != "F" else "(hi - lo)"
        by = steps
        scale = f"{_size_with_floor(difference, row)} / {by}"
        if row.scale_rounding == "power_of_two":
            scale = f"the smallest 2**e with {_ROUND[row.rounding]}({difference} / 2**e) <= {steps[1:-1]}"
        if row.scale_rounding == "whole_inverse":
            scale += ", below 1 raised to 1 / floor(1 / scale)"
        scale = f"-{scale}" if row.scale_sign == "negative" else scale
    if row.scale_quotient == "reciprocal":
        scale = scale.replace(f" / {by}", f" * F(1 / {by})")
    rounded = ", rounded to F" if row.scale_rounded else ", rounded to float32" if row.stored_type == "float32" else ""
    if row.scale_digits != "all":
        rounded += f", rounded to {row.scale_digits} and then {row.stored_type}"
    degenerate = f"; {_degenerate(row)}" if _may_be_too_small(row) else ""
    return f"{scale} in {number}{rounded}{degenerate}{narrow}{_last_steps(row, scheme)}"


# what a symmetric scale comes from
_EXTREMES = {
    "magnitude": "max(-lo, hi)",
    "signed": "-(hi if hi > -lo else lo)",
    "signed_low": "(-hi if hi > abs(lo) else abs(lo))",
}
# when an asymmetric scale is negative
_SIGNS = {"nearer_end": "; negative if -lo > hi", "farther_end": "; negative unless abs(lo) > abs(hi)"}


def _size_with_floor(size: str, row: Convention) -> str:
    """Return the size of a range that scales come from, which may have a least magnitude."""
    return f"max({size}, {_power(row.range_floor)})" if row.range_floor else size


def _last_steps(row: Convention, scheme: str) -> str:
    """Return what becomes of an asymmetric scale at last."""
    if scheme == "symmetric":
        return ""
    whole = "; then offset / k, k = rint(offset / scale), or where k is 0 the offset is 0"
    return _SIGNS.get(row.scale_sign, "") + (whole if row.scale_rounding == "whole_steps" else "")


def _degenerate(row: Convention) -> str:
    """Return what becomes of scales that are too small."""
    up = "up where a subnormal one is too short; " if row.tiny_scale == "reaching" else ""
    if row.degenerate == "floor":
        return f"at least {_floor(row)}"
    words = {"value": "the constant", "epsilon": "the epsilon of that type"}
    return f"{up}if {_too_small(row)}: {words.get(str(row.degenerate)) or _power(row.degenerate)}"


def _may_be_too_small(row: Convention) -> bool:
    """Return whether scales may have to be replaced: not if they come from a least range, and all their digits stay."""
    return not row.range_floor or row.scale_floor != 0.0 or row.scale_digits != "all" or row.stored_type != "compute"


def _floor(row: Convention) -> str:
    """Return the smallest scale in words, or as a number."""
    if row.scale_floor is None:
        return "the smallest normal number"
    if row.scale_floor == "root":
        return "the root of the smallest normal number"
    return _power(_floor_number(row))


def _too_small(row: Convention) -> str:
    """Return the condition under which scales are replaced."""
    return f"below {_floor(row)}" if row.scale_floor is None or _floor_number(row) else "0"


def _floor_number(row: Convention) -> float:
    """Return the smallest scale of a row that names one; of "root" that of float32, 2**-63, and 0.0 without one.

    Scales that are stored in float32 are at least its smallest number.
    """
    floor = 2.0**-63 if row.scale_floor == "root" else float(row.scale_floor or 0.0)
    return max(floor, 2.0**-149) if row.stored_type == "float32" else floor


def _power(number: Any) -> str:
    """Return a number as text, powers of two as powers."""
    mantissa, exponent = math.frexp(number)
    return f"2**{exponent - 1}" if mantissa == 0.5 and number != 1 else f"{number:g}"


def zero_point_formula(row: Convention, scheme: str = "asymmetric") -> str:
    """Return the formula of zero points."""
    if scheme != "symmetric" and row.zero_point == "offset":
        return _offset_of_range(row)
    code = "the middle code" if scheme == "symmetric" else _zero_point_of_range(row)
    of_degenerate = _other_zero_point(row, scheme)
    by_formula = row.degenerate == "floor" or row.degenerate_zero_point == "formula"
    differs = of_degenerate and not by_formula and _may_be_too_small(row)
    return f"{code}; if the scale was {_too_small(row)}: {of_degenerate}" if differs else code


def _offset_of_range(row: Convention) -> str:
    """Return the formula of offsets."""
    end, _ = _ends(row)
    offset = {
        "lowest": end,
        "zero": f"{end} - qmin * scale",
        "middle": "(lo + hi - (qmin + qmax) * scale) / 2",
    }[row.offset_code]
    other = {"zero": "0", "value": "lo"}.get(row.degenerate_zero_point)
    if other is None or row.degenerate == "floor":
        return f"offset = {offset}"
    return f"offset = {offset}; if the scale was {_too_small(row)}: {other}"


def _other_zero_point(row: Convention, scheme: str) -> str:
    """Return the zero point for a replaced scale; an empty text if it does not differ."""
    if scheme == "symmetric":
        return "0" if row.degenerate_zero_point == "zero" else ""
    if row.scale_from == "inverse":
        return ""
    ends = {"lowest": "qmin", "end": "qmax if lo < 0 else 0"} if row.zero_point == "integer" else {}
    return ends.get(row.degenerate_zero_point, "0")


def _ends(row: Convention) -> tuple[str, str]:
    """Return the ends of an asymmetric range that have the first and the last code."""
    return {
        "positive": ("lo", "hi"),
        "negative": ("hi", "lo"),
        "nearer_end": ("(hi if -lo > hi else lo)", "(lo if -lo > hi else hi)"),
        "farther_end": ("(lo if abs(lo) > abs(hi) else hi)", "(hi if abs(lo) > abs(hi) else lo)"),
    }[row.scale_sign]


def _zero_point_of_range(row: Convention) -> str:
    """Return the formula of zero points among the codes, in the asymmetric scheme."""
    lowest, highest = _ends(row)
    end, code = (highest, "qmax") if row.zero_point_end == "highest" else (lowest, "qmin")
    if row.scale_from == "inverse":
        return "qmin - lo * F(1 / scale)"
    whole = "" if row.zero_point == "float" else _ROUND[row.zero_point_rounding]
    if row.zero_point_end == "both":
        point = f"(qmin * {highest} - qmax * {lowest}) / ({highest} - {lowest})"
        return f"clamp({whole}({point}))" if whole else point
    if not whole:
        return f"{code} - {end} / scale"
    rounded = f"{code} - {whole}({end} / scale)" if row.zero_point_rounded == "quotient" else ""
    return f"clamp({rounded or f'{whole}({code} - {end} / scale)'})"


def format_value_formula(qtype: QType) -> str:
    """Return the formula of values in formats with their own arithmetic; an empty text for others.

    `number` is the number of a float code.
    """
    if qtype.has_tensor_scale:
        return "number * F(scale * tensor_scale)"
    if qtype.element:
        return "number * scale"
    return "code * F(scale / 64)" if qtype.block_size else ""


def format_code_formula(qtype: QType, row: Convention) -> str:
    """Return the formula of codes in such formats: `nearest` rounds to a number of the format, ties to even.

    In formats given by a table, `decided` compares with the thresholds of its numbers. `row` has the variants of the
    format.
    """
    if qtype.codebook:
        return f"decided(x * (1 / max(scale, {LEAST_SCALE:g})))"
    steps = "x / scale"
    if qtype.has_tensor_scale:
        divides = row.block_quotient == "divide"
        steps = "x / F(scale * tensor_scale)" if divides else "x * ((1 / tensor_scale) / scale)"
    elif qtype.element and row.zero_point_inside:
        steps += " + 0"
    if not qtype.element:
        return "clamp(rint(x / scale * 64))"
    ties = "; ties, and all that rounds to 0, to the first code" if row.float_ties == "first_code" else ""
    zero = "; 0 if scale is 0" if row.allows_zero_scale(qtype) else ""
    return f"nearest({steps}){ties}{zero}"


def rounding_of_format(qtype: QType, row: Convention) -> str:
    """Return in words how codes of such formats are rounded; `row` has the variants of the format."""
    if qtype.codebook:
        return "nearest, ties to the lower number"
    return "nearest, ties to the smaller magnitude" if row.float_ties == "first_code" else _NEAREST["half_even"]


def format_scale_formula(qtype: QType, row: Convention) -> str:
    """Return the formula of scales in such formats; `largest` is the largest magnitude of the block.

    `row` has the variants of the format.
    """
    if qtype.codebook:
        return "max(-lo, hi) in F"
    most = qtype.largest_element
    by = f"largest * F(1 / {most:g})" if row.scale_quotient == "reciprocal" else f"largest / {most:g}"
    if qtype.has_tensor_scale:
        of_array = row.scales_by_array(qtype)
        least = _power(row.block_scale_floor) if row.block_scale_floor else "0"
        part = f"{by} / tensor_scale" if of_array else by
        form = FLOAT_FORMATS[qtype.scale_element]
        tensor_scale = f"largest of the array / {most * form.max:g}" if of_array else "1"
        return f"nearest(clamp({part}, {least}, {form.max:g})); tensor_scale = {tensor_scale}"
    if qtype.block_size:
        return f"2**{_block_exponent(qtype, row, by)}"
    return f"max(-lo, hi) / {most:g} in F; {_degenerate(CONVENTIONS[DEFAULT])}"


def _block_exponent(qtype: QType, row: Convention, quotient: str) -> str:
    """Return the formula of the exponent of a scale that is a power of two."""
    form = FLOAT_FORMATS.get(qtype.element)
    emax = form.emax if form else 0
    digits = {"even": form.mantissa if form else qtype.bits - 2, "even_float4": 1}.get(row.exponent, 0)
    exponent = {
        "floor": "floor(log2(largest))",
        "ceil": "ceil(log2(largest))",
        "ceil_of_quotient": f"ceil(log2({quotient}))",
    }.get(row.exponent, f"floor(log2(largest rounded half up to {digits + 1} binary digits))")
    of_quotient = row.exponent == "ceil_of_quotient"
    zero = f"; 1 if {'that quotient' if of_quotient else 'largest'} is 0" if row.zero_exponent == "zero" else ""
    return f"{exponent}{zero}" if of_quotient or not emax else f"({exponent} - {emax}){zero}"
