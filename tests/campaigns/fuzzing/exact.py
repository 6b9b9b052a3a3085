"""The contract in exact fractions, each operation rounded once: an oracle for the reference, of small arrays.

Written from docs/contract.md and docs/conventions.md alone. Numbers are fractions, infinities floats and NaN None.
Only tables of `fastq` are used: what formats and conventions are called, and their fields.
"""

import functools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
from fuzzing.arrays import Granularity

import fastq
from fastq.formats.codebooks import LEAST_SCALE
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import CASTS, QTYPES, as_qtype

MOST = 64  # elements
INF = math.inf

# significant bits, and the exponent of the smallest subnormal number
_TYPES = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}
_HALVES = "float16", "bfloat16"
_SMALLEST_NORMAL = {name: Fraction(2) ** (lowest + bits - 1) for name, (bits, lowest) in _TYPES.items()}
_LARGEST = {name: (2 - Fraction(2) ** (1 - bits)) * 2 / _SMALLEST_NORMAL[name] for name, (bits, _) in _TYPES.items()}


# --- arithmetic -------------------------------------------------------------------------------------------------------


def exponent(value):
    """The e for which 2**e <= |value| < 2**(e + 1)."""
    value = abs(value)
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e - 1 if Fraction(2) ** e > value else e


def rounded(value, name):
    """A number rounded to a float type as if exponents had no end, infinite beyond its largest number."""
    if value is None or value in (INF, -INF) or value == 0:
        return value
    bits, lowest = _TYPES[name]
    unit = Fraction(2) ** max(exponent(value) - bits + 1, lowest)
    nearest = round(value / unit) * unit
    return nearest if abs(nearest) <= _LARGEST[name] else INF if value > 0 else -INF


def number(value):
    """An element of an array as it is."""
    if not isinstance(value, int | np.integer):
        with np.errstate(invalid="ignore"):  # signalling NaN
            value = float(value)
        if math.isnan(value):
            return None
        if math.isinf(value):
            return value
    return Fraction(int(value)) if isinstance(value, np.integer) else Fraction(value)


def add(a, b):
    if a is None or b is None or (a in (INF, -INF) and b == -a):
        return None
    return a if a in (INF, -INF) else b if b in (INF, -INF) else a + b


def multiply(a, b):
    if a is None or b is None:
        return None
    if INF in (abs(a), abs(b)):
        return None if 0 in (a, b) else INF if (a > 0) == (b > 0) else -INF
    return a * b


def divide(a, b):
    """A quotient whose divisor is neither 0 nor infinite."""
    return multiply(a, 1 / b)


_ROUNDINGS = {
    "half_even": round,
    "half_away": lambda v: math.floor(abs(v) + Fraction(1, 2)) * (1 if v > 0 else -1),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
}


def whole(value, rounding="half_even", ftype="float64"):
    """A number of a type rounded to a whole one."""
    if rounding == "half_up":
        rounding, value = "floor", rounded(add(value, Fraction(1, 2)), ftype)
    return value if value is None or value in (INF, -INF) else Fraction(_ROUNDINGS[rounding](value))


def clamped(value, first, last):
    """A code; NaN counts as the lowest one."""
    return first if value is None else max(first, min(value, last))


# --- arrays -----------------------------------------------------------------------------------------------------------


def _codes_in_use(row, qtype, symmetric):
    """The first and the last code to which values are clamped."""
    return (qtype.qmin, qtype.qmax) if row.clamp == "format" else row.parameter_range(qtype, symmetric)


def compute_type(dtype, row=None):
    """F of an input dtype under a row."""
    if row is not None and row.compute_type == "float64":
        return "float64"
    return "float64" if dtype.name in ("float64", "int32", "uint32", "int64", "uint64") else "float32"


def _of_each(parameters, p, shape):
    """The parameters of elements, one after the other."""
    each = Granularity(p.axis, p.block_size).each(np.asarray(parameters, np.float64), shape)
    return map(number, np.broadcast_to(each, math.prod(shape)))


def _groups(x, axis, block_size, *parameters):
    """Elements by the parameter that they have, NaN as 0, each group with its numbers in arrays of parameters."""
    granularity = Granularity(axis, block_size)
    shape = granularity.parameters(x.shape)
    _expect("the shape of parameters", [each.shape for each in parameters], [shape] * len(parameters))
    groups = [[] for _ in range(math.prod(shape))]
    for owner, element in zip(granularity.owners(x.shape).flat, x.flat, strict=True):
        groups[owner].append(number(element) or Fraction(0))
    return [*zip(groups, *(map(number, each.flat) for each in parameters), strict=True)]


# --- codes and values -------------------------------------------------------------------------------------------------


def _row(convention):
    return convention if isinstance(convention, fastq.Convention) else fastq.CONVENTIONS[convention]


def _row_of(p):
    """The row by which parameters are used."""
    kind = Granularity(p.axis, p.block_size).kind
    return _row(p.convention).under(p.symmetric, "channels" if kind == "axes" else kind, as_qtype(p.dtype).format)


def operation_type(row, dtype):
    """The type of half precision to which operations are rounded after F, if any."""
    return dtype.name if row.operation_type == "input" and dtype.name in _HALVES else ""


def twice_rounded(value, ftype, half):
    """The result of an operation, rounded to F and perhaps to half precision."""
    value = rounded(value, ftype)
    return rounded(value, half) if half else value


def steps_in_unit(scale, ftype):
    """How many steps of a scale a unit has, whole numbers above 1."""
    inverse = rounded(1 / scale, "float64")
    return rounded(whole(inverse) if inverse > 1 else inverse, ftype)


def integer_code(x, scale, zero, row, codes, ftype, half="", bits=0):
    """The code of a number, by the formulas of a convention; the format has so many bits."""

    def cut(steps):
        parts = Fraction(2) ** max(row.cut_from - bits, 0)
        steps = multiply(whole(rounded(multiply(steps, parts), ftype)), 1 / parts) if parts > 1 else steps
        return whole(steps, row.rounding, ftype)

    first, last = map(Fraction, codes)
    stored, scale = scale, rounded(scale, ftype)
    zero = rounded(zero, ftype)
    distance = twice_rounded(add(x, -zero), ftype, half) if row.zero_point == "offset" else x
    if row.quotient == "steps_in_unit":
        inverse = steps_in_unit(stored, ftype)
        steps = add(rounded(multiply(x, inverse), ftype), -rounded(multiply(zero, inverse), ftype))
    elif row.quotient == "divide_in_float64":
        distance = rounded(add(x, -zero), "float64") if row.zero_point == "offset" else x
        steps = rounded(divide(distance, scale), "float64")
    elif row.quotient == "divide":
        steps = divide(distance, scale)
    elif row.by_range:
        span = rounded(rounded((last - first) * stored, "float64"), ftype)
        steps = Fraction(0)
        if span and row.quotient == "range":
            steps = multiply(rounded(divide(distance, span), ftype), last - first)
        elif span:
            steps = divide(rounded(multiply(distance, last - first), ftype), span)
    else:
        inverse = 1 / scale if row.quotient == "reciprocal" else rounded(1 / stored, "float64")
        factor = twice_rounded(inverse, ftype, half)
        steps = multiply(distance, factor)
        if row.fused and row.zero_point_inside and row.zero_point != "offset" and ftype == "float32":
            total = twice_rounded(add(steps, zero), ftype, half)
            return clamped(cut(total), first, last)
    steps = twice_rounded(steps, ftype, half)
    if row.zero_point == "offset":
        code = add(cut(steps), first if row.offset_code == "lowest" else 0)
    elif row.zero_point_inside:
        code = cut(twice_rounded(add(steps, zero), ftype, half))
    else:
        code = add(cut(steps), zero)
    return clamped(code, first, last)


@functools.cache
def numbers(form):
    """Numbers of the codes of a float format without sign, one more than it has: where rounding would go on."""
    unit = Fraction(2) ** (1 - form.bias - form.mantissa)
    found = []
    for code in range(form.largest + 2):
        field, fraction = code >> form.mantissa, code & ((1 << form.mantissa) - 1)
        significand = fraction + (1 << form.mantissa) * (field > 0)
        found.append(significand * unit * 2 ** max(field - 1, 0))
    return found


def float_code(value, negative, form, saturate, first=False):
    """The code of a number, infinity or NaN with a sign, rounded to nearest, ties to the even or the `first` code."""
    sign = negative << (form.bits - 1)
    one_zero = first or form.nan == 1 << (form.bits - 1)
    if value is None:
        return form.nan if one_zero else form.nan | sign
    known, size = numbers(form), abs(value)
    if size >= known[-1]:
        code = form.largest + 1
    else:
        above = next(k for k, candidate in enumerate(known) if candidate >= size)
        below = max(above - (known[above] != size), 0)
        distances = size - known[below], known[above] - size
        is_tie = distances[0] == distances[1]
        code = below if distances[0] < distances[1] or (is_tie and (first or below % 2 == 0)) else above
    if code > form.largest:
        if saturate or form.nan is None:
            code = form.largest
        elif form.infinity is not None:
            code = form.infinity
        else:
            return form.nan if one_zero else form.nan | sign
    return code if one_zero and code == 0 else code | sign


def value_of_code(code, form):
    """The number of a code; infinity and NaN too."""
    sign, size = -1 if code >> (form.bits - 1) else 1, code & ((1 << (form.bits - 1)) - 1)
    if code == form.nan or (form.nan is not None and size == form.nan):
        return None
    if form.infinity is not None and size >= form.infinity:
        return sign * INF if size == form.infinity else None
    return None if size > form.largest else sign * numbers(form)[size]


def value(code, stored, zero, row, codes, ftype, dtype):
    """The value of an integer code, by the formulas of a convention, before it is rounded to a dtype."""
    first, last = codes
    half = dtype if row.value_type == "result" and dtype in _HALVES else ""
    scale, zero = twice_rounded(stored, ftype, half), rounded(zero, ftype)
    if half and (row.zero_point == "offset" or row.zero_point_inside):
        zero = rounded(zero, half)
    base = zero if row.zero_point != "offset" else Fraction(first if row.offset_code == "lowest" else 0)
    steps = twice_rounded(add(Fraction(code), -base), ftype, half)
    if row.decode == "middle":
        steps = twice_rounded(add(steps, Fraction(1, 2)), ftype, half)
    if row.zero_point != "offset":
        return rounded(multiply(steps, scale), ftype)
    if row.quotient == "steps_in_unit":
        return rounded(add(rounded(divide(steps, steps_in_unit(stored, ftype)), ftype), zero), ftype)
    if row.by_range:
        n = Fraction(last - first)
        steps = rounded(divide(steps, n), ftype)
        scale = rounded(rounded(n * stored, "float64"), ftype)
    return rounded(add(twice_rounded(multiply(steps, scale), ftype, half), zero), ftype)


# --- what is compared -------------------------------------------------------------------------------------------------


class NotExact(AssertionError):
    """The fractions say something else."""


def _expect(name, actual, expected):
    if actual != expected:
        raise NotExact(f"by fractions {name} is {expected}, not {actual}")


def _packed(codes, shape, qtype):
    """Codes as a format stores them, and their shape: bytes of the rows of packed ones, else codes themselves."""
    if not qtype.packed:
        return codes, shape
    *outer, length = shape or (1,)
    rows = []
    for start in range(0, len(codes), max(length, 1)):
        bits = sum(
            (code % (1 << qtype.bits)) << (k * qtype.bits) for k, code in enumerate(codes[start : start + length])
        )
        rows += bits.to_bytes(-(-length * qtype.bits // 8), "little")
    return rows, (*outer, -(-length * qtype.bits // 8))


def _one_an_element(stored, shape, qtype):
    """Codes from the stored bytes of a format."""
    if not qtype.packed:
        return stored
    length, mask, sign = shape[-1] if shape else 1, (1 << qtype.bits) - 1, 1 << (qtype.bits - 1)
    width, codes = -(-length * qtype.bits // 8), []
    for start in range(0, len(stored), width) if width else ():
        bits = int.from_bytes(bytes(stored[start : start + width]), "little")
        row = [bits >> (k * qtype.bits) & mask for k in range(length)]
        codes += [code - 2 * (code & sign) for code in row] if qtype.signed and not qtype.element else row
    return codes


def _flat(array, qtype):
    array = np.ascontiguousarray(array).reshape(-1)
    return [int(code) for code in (array.view(np.uint8) if qtype.element and not qtype.packed else array)]


def _codes(x, p, nan, saturate):
    """Codes of values under parameters, one per element."""
    qtype, row = as_qtype(p.dtype), _row_of(p)
    ftype = compute_type(x.dtype, row)
    form, own, half = qtype.float_format, qtype.block_size > 0, operation_type(row, x.dtype)
    codes, scales, zeros = [], _of_each(p.scale, p, x.shape), _of_each(p.zero_point, p, x.shape)
    for given, scale, zero in zip(x.flat, scales, zeros, strict=True):
        element = rounded(number(given), ftype)
        negative = bool(given < 0 if x.dtype.kind in "iu" else np.signbit(given))
        if element is None and (nan == "zero" or own):
            element, negative = Fraction(0), False
        if own:
            codes.append(_own_code(element, negative, scale, p, row, ftype, half))
        elif qtype.codebook:
            codes.append(_table_code(element, scale, qtype.codebook, ftype))
        elif form:
            ratio = twice_rounded(divide(element, rounded(scale, ftype)), ftype, half)
            negative ^= element is not None and scale < 0
            zeros_alone = (form.nan is None or row.zero_point_inside) and ratio == 0
            first = row.float_ties == "first_code"
            codes.append(float_code(ratio, negative and not zeros_alone, form, saturate, first))
        else:
            allowed = _codes_in_use(row, qtype, p.symmetric)
            codes.append(int(integer_code(element, scale, zero, row, allowed, ftype, half, qtype.bits)))
    return codes


def _table_code(element, scale, row, ftype):
    """The code of a number in a format given by a table."""
    least = number(np.dtype(ftype).type(LEAST_SCALE))
    factor = rounded(1 / max(rounded(scale, ftype), least), ftype)
    ratio = rounded(multiply(element, factor), ftype)
    return row.order[sum(Fraction(threshold) < ratio for threshold in row.thresholds)]


def _own_code(element, negative, scale, p, row, ftype, half):
    """The code of a number in a format with scales of its own."""
    qtype = as_qtype(p.dtype)
    if scale == 0:
        return 0
    if p.tensor_scale is not None and row.block_quotient == "divide":
        ratio = rounded(divide(element, rounded(multiply(scale, number(p.tensor_scale)), ftype)), ftype)
    elif p.tensor_scale is not None:
        inverse = rounded(1 / number(p.tensor_scale), ftype)
        ratio = rounded(multiply(element, rounded(inverse / scale, ftype)), ftype)
    else:
        ratio = divide(element, scale)
    if qtype.float_format:
        inside = p.tensor_scale is None and row.zero_point_inside
        adds_zero = inside and twice_rounded(ratio, ftype, half) == 0
        first = row.float_ties == "first_code"
        return float_code(ratio, negative and not adds_zero, qtype.float_format, True, first)
    return int(clamped(whole(multiply(ratio, Fraction(64))), Fraction(-127), Fraction(127)))


def _check_values(codes, shape, p, ftype, actual):
    """Values of codes, one per element; false where F has no such scale."""
    if (p := _stored(p, ftype)) is None:
        return False
    qtype, row = as_qtype(p.dtype), _row_of(p)
    _expect("the shape of values", actual.shape, shape)
    ftype = "float32" if qtype.block_size else ftype
    allowed, form = _codes_in_use(row, qtype, p.symmetric), qtype.float_format
    scales, zeros = _of_each(p.scale, p, shape), _of_each(p.zero_point, p, shape)
    for k, (code, scale, zero, found) in enumerate(zip(codes, scales, zeros, actual.flat, strict=True)):
        if p.tensor_scale is not None:
            scale = rounded(multiply(scale, number(p.tensor_scale)), "float32")
        if qtype.codebook:
            expected = rounded(multiply(Fraction(qtype.codebook.values[code]), rounded(scale, ftype)), ftype)
        elif form or qtype.block_size:
            step = value_of_code(code, form) if form else Fraction(code, 64)
            expected = rounded(multiply(step, rounded(scale, ftype)), ftype)
        else:
            expected = value(code, scale, zero, row, allowed, ftype, actual.dtype.name)
        _expect(f"value {k}", number(found), rounded(expected, actual.dtype.name))
    return True


def _check_parameters(x, p):
    """Check parameters of ranges, and return those that codes are computed with.

    Those of integers are by the formulas of any convention, those of other formats by those of "onnx".
    """
    qtype, row = as_qtype(p.dtype), _row_of(p)
    ftype = compute_type(x.dtype, row)
    kept = "float64" if row.stored_type == "float64" else ftype
    groups = _groups(x, p.axis, p.block_size, *(np.asarray(each, np.float64) for each in (p.scale, p.zero_point)))
    if p.tensor_scale is not None:
        whole_size = max(abs(rounded(element, ftype)) for group, *_ in groups for element in group)
        tensor = rounded(rounded(whole_size / 2688, ftype), "float32")
        tensor = min(max(tensor, Fraction(1, 2**120)), Fraction(2) ** 119) if whole_size else Fraction(1)
        tensor = Fraction(1) if row.tensor_scale == "one" else tensor
        _expect("tensor_scale", number(p.tensor_scale), tensor)
    if qtype.element and not qtype.codebook:
        codes = -numbers(qtype.float_format)[-2], numbers(qtype.float_format)[-2]
    else:
        codes = tuple(map(Fraction, row.parameter_range(qtype, p.symmetric)))
    half = x.dtype.name if row.stored_type == "input" else row.stored_type
    half = half if half in _HALVES and not qtype.block_size else ""
    is_first = row.codes_by == "stored"  # whether scales are rounded first
    unrounded = []
    for which, (group, *found) in enumerate(groups):
        lo, hi = (rounded(end, ftype) for end in (min(group), max(group)))
        size = max(-lo, hi, Fraction(0))
        if qtype.block_size:
            operations = operation_type(row, x.dtype)
            step, point = _own_scale(size, qtype, row, ftype, operations, p.tensor_scale), 0
        elif qtype.codebook:
            step, point = size, 0
        else:
            found_by_range = range_parameters(lo, hi, row, codes, p.symmetric, ftype, half if is_first else "")
            step, point = (rounded(each, kept) for each in found_by_range)
        unrounded += [(step, point)]
        if half and not is_first:
            least = Fraction(2) ** _TYPES[half][1]
            step = _positive(abs(step), half, least) * (1 if step > 0 else -1)
            point = rounded(point, half) if row.zero_point == "offset" else point
        _expect(f"scale and zero_point {which}", found, [step, point])
    if is_first or not half:
        return p
    steps, points = (np.array([float(each) for each in numbers]) for numbers in zip(*unrounded, strict=True))
    scale, zero_point = np.asarray(p.scale), np.asarray(p.zero_point)
    return p.with_values(
        steps.reshape(scale.shape).astype(scale.dtype), points.reshape(scale.shape).astype(zero_point.dtype)
    )


def range_parameters(lo, hi, row, codes, symmetric, ftype, half=""):
    """Scale and zero point of a range, by the formulas of a convention, in the type that it computes them in.

    Scales are rounded to half precision, if one is named.
    """
    ptype = "float64" if row.parameter_type == "float64" else ftype
    (first, last), smallest = codes, lo
    steps, middle = last - first + (row.divisor == "codes"), Fraction(round((first + last) / 2))
    if row.includes_zero or symmetric:
        lo, hi = min(lo, Fraction(0)), max(hi, Fraction(0))
    least_range = rounded(Fraction(row.range_floor), ptype)
    constant = lo == hi
    if row.offset_rounding == "float32_below" and not symmetric:
        lo = _float32_below(lo)
    if symmetric:
        least = -abs(smallest) if row.symmetric_extreme == "signed_low" else lo
        signed = row.symmetric_extreme != "magnitude"
        extreme = (-hi if hi > -least else -least) if signed else max(-lo, hi)
        extreme = max(abs(extreme), least_range) * (-1 if extreme < 0 else 1)
        scale = _over(extreme, steps / 2, row, ptype)
    elif row.scale_from == "inverse":
        return _by_inverse(lo, hi, first, steps, row, ftype)
    elif row.span_type == "compute":
        scale = _over(rounded(hi - lo, ftype), steps, row, ptype)
    elif row.scale_quotient == "reciprocal":
        scale = _over(rounded(hi - lo, ptype), steps, row, ptype)
    else:
        scale = _asymmetric_scale(lo, hi, steps, ptype)
    if not symmetric:
        scale = max(scale, _over(least_range, steps, row, ptype))
    if row.scale_rounding == "power_of_two" and not symmetric and scale:
        scale = _power_that_suffices(scale, rounded(hi - lo, ptype), steps, row.rounding, ptype)
    if row.scale_rounding == "whole_inverse" and not symmetric and 0 < scale < 1:
        inverse = rounded(1 / scale, ptype)
        scale = rounded(Fraction(1, math.floor(inverse)), ptype) if inverse <= _LARGEST[ptype] else scale
    if row.by_range and not symmetric and _are_longer(scale, last - first, lo, hi, ftype):
        scale = Fraction(float(np.nextafter(np.dtype(ptype).type(scale), 0)))
    if row.offset_rounding == "float32_below" and not symmetric and constant:
        scale = Fraction(0)
    scale = rounded(scale, row.scale_digits) if row.scale_digits != "all" else scale
    scale = rounded(scale, half) if half else scale
    span = rounded(hi - lo, ptype)
    few, (bits, least) = rounded(scale, ftype), _TYPES[half or ftype]
    unit = Fraction(2) ** least
    size, halves = (max(-lo, hi), steps / 2) if symmetric else (rounded(hi - lo, ptype), steps)
    size = max(size, least_range)
    reaches = row.tiny_scale == "nearest" or scale >= _SMALLEST_NORMAL[half or ftype]
    if not reaches and rounded(few * (2 * halves + 1), ptype) < 2 * size:
        scale = few + unit
    scale = rounded(scale, ftype) if row.scale_rounded else scale
    operations = half if row.operation_type == "input" else ""
    normal = _SMALLEST_NORMAL[operations or ftype]
    floor = _least_scale(row, normal)
    floor = _positive(floor, half, unit) if half else rounded(floor, ptype)
    if row.stored_type == "float32":
        floor = max(floor, Fraction(1, 2**149))
    size = abs(scale) if row.signed_scale else scale
    degenerate = size < floor or size == 0
    if degenerate and row.degenerate == "value":
        scale = smallest if symmetric else lo
        scale = Fraction(1) if abs(scale) < floor or scale == 0 else scale
    elif degenerate:
        known = {"floor": floor, "epsilon": Fraction(2, 2**bits)}
        number = known[row.degenerate] if row.degenerate in known else Fraction(row.degenerate)
        scale = _positive(number, half, unit) if half else rounded(number, ptype)
    degenerate = degenerate and row.degenerate != "floor" and row.degenerate_zero_point != "formula"
    if not symmetric and row.narrow_range is not None and span <= rounded(Fraction(row.narrow_range), ptype):
        scale = Fraction(1)
    kept = "float32" if row.stored_type == "float32" else ptype
    if symmetric:
        point = Fraction(0) if degenerate and row.degenerate_zero_point == "zero" else middle
        return rounded(scale, kept), point
    turns = {"negative": True, "nearer_end": -lo > hi, "farther_end": abs(lo) <= abs(hi)}
    if not degenerate and turns.get(row.scale_sign, False):
        scale, lo, hi = -scale, hi, lo
    if row.scale_rounding == "whole_steps":
        k = whole(rounded(divide(lo, scale), ptype))
        scale = rounded(divide(lo, k), ptype) if k not in (0, INF, -INF) else scale
        lo = lo if k else Fraction(0)
    if row.zero_point == "offset":
        offset = {
            "lowest": lambda: lo,
            "zero": lambda: rounded(lo - rounded(first * scale, ptype), ptype),
            "middle": lambda: _middle(lo, hi, rounded((first + last) * scale, ptype), ptype),
        }[row.offset_code]()
        offset = {"zero": Fraction(0), "value": lo}.get(row.degenerate_zero_point, offset) if degenerate else offset
        return rounded(scale, kept), rounded(offset, kept)
    if degenerate:
        beside = {"lowest": first, "end": last if lo < 0 else Fraction(0)}.get(row.degenerate_zero_point, Fraction(0))
        return rounded(scale, kept), beside if row.zero_point == "integer" else Fraction(0)
    end, code = (hi, last) if row.zero_point_end == "highest" else (lo, first)
    distance = rounded(divide(end, scale), ptype)
    if row.zero_point_end == "both":
        between = _between_ends(lo, hi, first, last, ptype)
        point = rounded(add(code, -distance), ptype) if between in (None, INF, -INF) else between
    elif row.zero_point_rounded == "quotient" and row.zero_point == "integer":
        point = add(code, -whole(distance, row.zero_point_rounding, ptype))
    else:
        point = rounded(add(code, -distance), ptype)
    if row.zero_point == "float":
        return rounded(scale, kept), rounded(point, kept)
    return rounded(scale, kept), clamped(whole(point, row.zero_point_rounding, ptype), first, last)


def _are_longer(scale, steps, lo, hi, ftype):
    """Whether so many steps are longer than a range, as numbers of a type."""
    span = rounded(rounded(hi, ftype) - rounded(lo, ftype), ftype)
    return rounded(rounded(steps * scale, "float64"), ftype) > span


def _float32_below(value):
    """The largest float32 that is not above a number, none of them subnormal."""
    least = _SMALLEST_NORMAL["float32"]
    if abs(value) < least:
        return -least if value < 0 else Fraction(0)
    if value > _LARGEST["float32"]:
        return _LARGEST["float32"]
    unit = Fraction(2) ** (exponent(value) - 23)
    below = math.floor(value / unit) * unit
    return -INF if below < -_LARGEST["float32"] else below


def _power_that_suffices(scale, span, steps, rounding, ptype):
    """The smallest power of two, a normal number, by which a span has no more steps when it is rounded."""
    least = _SMALLEST_NORMAL[ptype]
    power = max(Fraction(2) ** (exponent(scale) + (Fraction(2) ** exponent(scale) < scale)), least)
    enough = power / 2 >= least and whole(rounded(span / (power / 2), ptype), rounding, ptype) <= steps
    return power / 2 if enough else power


def _middle(lo, hi, reach, ptype):
    """The value of code 0 of a range whose codes `reach` to one side."""
    return rounded(rounded(rounded(lo + hi, ptype) - reach, ptype) / 2, ptype)


def _by_inverse(lo, hi, first, steps, row, ftype):
    """Scale and zero point of a range by the number of steps in a unit."""
    span = rounded(hi - lo, ftype)
    floor = _least_scale(row, _SMALLEST_NORMAL[ftype])
    if row.narrow_range is not None and span <= rounded(Fraction(row.narrow_range), ftype):
        inverse = Fraction(1)
    else:
        inverse = INF if span == 0 else rounded(multiply(rounded(1 / span, ftype), steps), ftype)
    if floor:
        inverse = min(inverse, rounded(rounded(1 / floor, "float64"), ftype))
    point = rounded(add(first, -rounded(multiply(lo, inverse), ftype)), ftype)
    return rounded(1 / inverse, "float64"), point


def _least_scale(row, normal):
    """The number below which a scale is degenerate, by the smallest normal one."""
    root = Fraction(2) ** (exponent(normal) // 2)
    return {None: normal, "root": root}.get(row.scale_floor) or Fraction(row.scale_floor)


def _over(size, steps, row, ptype):
    """The size of a range in units of a number of steps."""
    if row.scale_quotient == "reciprocal":
        return rounded(multiply(size, rounded(1 / steps, ptype)), ptype)
    return rounded(divide(size, steps), ptype)


def _between_ends(lo, hi, first, last, ptype):
    """The zero point from both ends of a range; none where that is NaN."""
    above, below, length = (rounded(each, ptype) for each in (first * hi, last * lo, hi - lo))
    distance = rounded(add(above, multiply(below, -1)), ptype)
    if length == 0 or (length == INF and distance in (None, INF, -INF)):
        return None
    return Fraction(0) if length == INF else rounded(divide(distance, length), ptype)


def _positive(value, half, least):
    """A number in half precision, above 0 if it was."""
    return max(rounded(min(value, _LARGEST[half]), half), least) if value else value


def _asymmetric_scale(lo, hi, steps, ptype):
    """The quotient of a range, which may be wider than the largest number."""
    span = rounded(hi - lo, ptype)
    if span != INF:
        return rounded(span / steps, ptype)
    if ptype == "float32":
        scale = rounded(rounded(rounded(hi - lo, "float64") / steps, "float64"), ptype)
    else:
        scale = rounded(add(rounded(hi / steps, ptype), -rounded(lo / steps, ptype)), ptype)
    return min(scale, _LARGEST[ptype])


def _own_scale(size, qtype, row, ftype, half, tensor_scale):
    """The scale of a block from its largest magnitude."""
    form = qtype.float_format
    most = numbers(form)[-2] if form else Fraction(127, 64)
    if row.scale_quotient == "reciprocal":
        quotient = twice_rounded(multiply(size, twice_rounded(1 / most, ftype, half)), ftype, half)
    else:
        quotient = twice_rounded(size / most, ftype, half)
    if tensor_scale is None:
        emax = exponent(most)
        if row.exponent == "ceil_of_quotient":
            size, emax = quotient, 0
        if size == 0:
            return Fraction(1) if row.zero_exponent == "zero" else Fraction(1, 2**127)
        e = exponent(size)
        if row.exponent.startswith("even"):
            digits = 1 if row.exponent == "even_float4" else form.mantissa if form else 6
            e += size / Fraction(2) ** e + Fraction(1, 2 ** (digits + 1)) >= 2
        elif row.exponent.startswith("ceil"):
            e += size > Fraction(2) ** e
        return Fraction(2) ** max(-127, min(e - emax, 127))
    part = rounded(quotient / number(tensor_scale), ftype)
    form = FLOAT_FORMATS["float8_e4m3fn"]
    part = max(Fraction(row.block_scale_floor), min(part, Fraction(448)))
    return numbers(form)[float_code(part, False, form, True)]


# --- operations -------------------------------------------------------------------------------------------------------


def _plain(array):
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("=")) if array.dtype.isbuiltin == 1 else array


def knows(operation, call):
    """Whether the fractions may say what a call gives; `check` tells whether they did."""
    if operation not in _CHECKS or "rounding" in call.options:
        return False
    given = call.args[0]
    if isinstance(given, fastq.QuantizedArray):
        return 0 < given.size <= MOST
    array = np.asarray(given)
    return 0 < array.size <= MOST and array.dtype.kind in "iufV"


def _knows_parameters(call, x):
    """Whether parameters of ranges are known: of whole ranges, by operations in F, of no block with NaN."""
    keeps_nan = call.options.get("nan") == "keep" and None in map(number, x.flat)
    if call.options.get("range", "minmax") != "minmax" or keeps_nan:
        return False
    row, qtype = _row(call.options.get("convention", "onnx")), as_qtype(call.args[1])
    if qtype.block_size:
        return True
    if qtype.element:
        return row.name == "onnx"
    return not operation_type(row, x.dtype)


def _ranged(call, result):
    """Parameters of a range, those of the result or else of the reference, and what is computed with them."""
    x, p = _plain(call.args[0]), getattr(result, "qparams", result)
    if not _knows_parameters(call, x):
        return False
    if isinstance(result, np.ndarray):
        options = {name: each for name, each in call.options.items() if name not in ("saturate", "out")}
        p = fastq.reference.choose_qparams(*call.args, **options)
    by = _check_parameters(x, p)
    return p is result or _with_parameters(call, p, result, by=by)


def _with_parameters(call, p, result, codes=None, by=None):
    """Codes by parameters, or what values these stand for; codes by other parameters if they are given."""
    x, qtype, stored = _plain(call.args[0]), as_qtype(p.dtype), getattr(result, "codes", codes)
    ftype = compute_type(x.dtype, _row(p.convention))
    if (p := _stored(p, ftype)) is None:
        return False
    by = p if by is None else _stored(by, ftype)
    codes = _codes(x, by, call.options.get("nan", "raise"), call.options.get("saturate", True))
    if stored is None:
        return _check_values(codes, x.shape, p, ftype, _plain(result))
    _expect("codes", (_flat(stored, qtype), stored.shape), _packed(codes, x.shape, qtype))
    return True


def _dequantize(call, values):
    q = call.args[0]
    codes = _one_an_element(_flat(_plain(q.codes), q.dtype), q.shape, q.dtype)
    return _check_values(codes, q.shape, q.qparams, q.qparams.compute_dtype.name, _plain(values))


def _extremes(call, ends):
    """Smallest and largest elements."""
    groups = _groups(_plain(call.args[0]), call.options["axis"], call.options["block_size"], *map(np.asarray, ends))
    for which, (group, *found) in enumerate(groups):
        _expect(f"extremes {which}", found, [min(group), max(group)])
    return True


def _raw(call, qtype):
    """Raw parameters as QParams."""
    _, given, zero = call.args[:3]
    scale = np.asarray(given, None if hasattr(given, "dtype") else np.float64)
    zero = np.zeros(scale.shape, np.int8) if zero is None else np.asarray(zero)
    axis, block_size = call.options.get("axis", 1), call.options.get("block_size", 0)
    if scale.size == 1:
        axis, block_size = None, 0
    return fastq.QParams(_plain(scale), _plain(zero), qtype, axis, block_size, False, call.options["convention"])


def _quantize_linear(call, codes):
    dtype, zero = call.args[3], call.args[2]
    if dtype is None:
        named = (zero, QTYPES), (call.out, QTYPES | CASTS)
        dtype = next((a.dtype.name for a, rows in named if hasattr(a, "dtype") and a.dtype.name in rows), "uint8")
    if as_qtype(dtype, casts=True).name in CASTS:
        return False  # no QParams have it
    return _with_parameters(call, _raw(call, as_qtype(dtype)), None, codes)


def _stored(p, ftype):
    """Parameters in the types in which a row keeps them; None where F has no such scale."""
    if as_qtype(p.dtype).block_size:
        return p
    p = replace(p, scale=_plain(p.scale), zero_point=_plain(p.zero_point))
    if any(rounded(number(s), ftype) in (0, INF, -INF) for s in p.scale.reshape(-1)):
        return None  # rows that keep scales in float64 take more than F has
    row = _row(p.convention)
    kept = np.float64 if row.stored_type == "float64" else np.dtype(ftype)
    with np.errstate(all="ignore"):
        zero = p.zero_point.astype(kept) if row.zero_point != "integer" else p.zero_point
        return p.with_values(p.scale.astype(kept), np.asarray(zero))


def _dequantize_linear(call, values):
    codes, given = _plain(call.args[0]), call.args[1]
    qtype = as_qtype(codes.dtype)
    p = _raw(call, qtype)
    scale_type = np.dtype(given.dtype.newbyteorder("=")) if hasattr(given, "dtype") else np.dtype(np.float32)
    values = _plain(values)
    row = _row(p.convention)
    ftype = compute_type(values.dtype if row.stored_type == "float64" else scale_type, row)
    words = codes.reshape(-1).view(np.uint8) if qtype.element else codes.reshape(-1).astype(np.int64)
    return _check_values(words.tolist(), codes.shape, p, ftype, values)


_CHECKS = {
    **dict.fromkeys(("quantize", "fake_quantize", "choose_qparams"), _ranged),
    **dict.fromkeys(
        ("quantize_given", "fake_quantize_given"),
        lambda call, result: _with_parameters(call, call.options["qparams"], result),
    ),
    "quantize_linear": _quantize_linear,
    "dequantize_linear": _dequantize_linear,
    **dict.fromkeys(("dequantize", "dequantize_method"), _dequantize),
    "minmax": _extremes,
}


OPERATIONS = tuple(_CHECKS)  # that the fractions know


def check(operation, call, result):
    """Raise NotExact unless a result is what the fractions say; false where they do not say anything."""
    return _CHECKS[operation](call, result)
