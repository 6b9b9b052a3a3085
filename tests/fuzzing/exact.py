"""The contract in exact fractions, each operation rounded once: an oracle for the reference, of small arrays.

Written from docs/contract.md and docs/conventions.md alone. Numbers are fractions, infinities floats and NaN None.
Of `fastq` only tables are used: what formats and conventions are called, and their fields.
"""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np

import fastq
from fastq.formats.codebooks import LEAST_SCALE
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, as_qtype

MOST = 64  # elements
INF = math.inf

# significant bits, exponent of the smallest subnormal number, largest number
_TYPES = {
    "float16": (11, -24, Fraction(65504)),
    "bfloat16": (8, -133, Fraction(2) ** 127 * (2 - Fraction(1, 128))),
    "float32": (24, -149, Fraction(2) ** 127 * (2 - Fraction(1, 2**23))),
    "float64": (53, -1074, Fraction(2) ** 1023 * (2 - Fraction(1, 2**52))),
}
SMALLEST_NORMAL = {"float32": Fraction(1, 2**126), "float64": Fraction(1, 2**1022)}


# --- arithmetic -------------------------------------------------------------------------------------------------------


def exponent(value):
    """The e for which 2**e <= |value| < 2**(e + 1)."""
    value = abs(value)
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e - 1 if Fraction(2) ** e > value else e


def rounded(value, name):
    """A number rounded to a float type, ties to even."""
    if value is None or value in (INF, -INF) or value == 0:
        return value
    bits, lowest, largest = _TYPES[name]
    unit = Fraction(2) ** max(exponent(value) - bits + 1, lowest)
    nearest = round(value / unit) * unit  # Python rounds fractions to even
    return nearest if abs(nearest) <= largest else INF if value > 0 else -INF


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
    "trunc": math.trunc,
}


def whole(value, rounding="half_even"):
    """A number rounded to a whole one."""
    return value if value is None or value in (INF, -INF) else Fraction(_ROUNDINGS[rounding](value))


def clamped(value, first, last):
    """A code; NaN counts as the lowest one."""
    return first if value is None else max(first, min(value, last))


# --- arrays -----------------------------------------------------------------------------------------------------------


def compute_type(dtype):
    """F of an input dtype."""
    return "float64" if dtype.name in ("float64", "int32", "uint32", "int64", "uint64") else "float32"


def _indices(shape):
    return itertools.product(*map(range, shape))


def _index_of(index, shape, axis, block_size):
    """Which parameter an element has."""
    if axis is None:
        return ()
    axes = sorted(a % len(shape) for a in (axis if isinstance(axis, tuple) else (axis,)))
    if block_size:
        return tuple(i // block_size if a in axes else i for a, i in enumerate(index))
    return tuple(index[a] for a in axes)


def _parameter(parameters, index, shape, axis, block_size):
    if parameters.size == 1:
        return parameters.reshape(-1)[0]
    return parameters[_index_of(index, shape, axis, block_size)]


def _part(parameters, axis, block_size):
    if block_size:
        return "blocks"
    return "array" if axis is None else "channels"


def _groups(x, axis, block_size):
    """Elements by the parameter that they have."""
    groups = {}
    for index in _indices(x.shape):
        groups.setdefault(_index_of(index, x.shape, axis, block_size), []).append(x[index])
    return groups


# --- codes and values -------------------------------------------------------------------------------------------------


def _row(convention):
    return convention if isinstance(convention, fastq.Convention) else fastq.CONVENTIONS[convention]


def operation_type(row, dtype):
    """The type of half precision to which operations are rounded after F, if any."""
    return dtype.name if row.operation_type == "input" and dtype.name in ("float16", "bfloat16") else ""


def twice_rounded(value, ftype, half):
    """The result of an operation, rounded to F and perhaps to half precision."""
    value = rounded(value, ftype)
    return rounded(value, half) if half else value


def integer_code(x, scale, zero, row, codes, ftype, half=""):
    """The code of a number, by the formulas of a convention."""
    first, last = map(Fraction, codes)
    stored, scale = scale, rounded(scale, ftype)
    zero = rounded(zero, ftype)
    distance = twice_rounded(add(x, -zero), ftype, half) if row.zero_point == "offset" else x
    if row.quotient == "divide":
        steps = divide(distance, scale)
    elif row.quotient == "range":
        part = divide(distance, rounded(rounded((last - first) * stored, "float64"), ftype))
        steps = multiply(rounded(part, ftype), last - first)
    else:
        inverse = 1 / scale if row.quotient == "reciprocal" else rounded(1 / stored, "float64")
        factor = twice_rounded(inverse, ftype, half)
        steps = multiply(distance, factor)
        if row.fused and row.zero_point_inside and row.zero_point != "offset" and ftype == "float32":
            return clamped(whole(twice_rounded(add(steps, zero), ftype, half), row.rounding), first, last)
    steps = twice_rounded(steps, ftype, half)
    if row.zero_point == "offset":
        code = add(whole(steps, row.rounding), first if row.offset_code == "lowest" else 0)
    elif row.zero_point_inside:
        code = whole(twice_rounded(add(steps, zero), ftype, half), row.rounding)
    else:
        code = add(whole(steps, row.rounding), zero)
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


def float_code(value, negative, form, saturate):
    """The code of a number, infinity or NaN with a sign, rounded to nearest, ties to the even code."""
    sign = negative << (form.bits - 1)
    one_zero = form.nan == 1 << (form.bits - 1)
    if value is None:
        return form.nan if one_zero else form.nan | sign
    known, size = numbers(form), abs(value)
    if size >= known[-1]:
        code = form.largest + 1
    else:
        above = next(k for k, candidate in enumerate(known) if candidate >= size)
        below = max(above - (known[above] != size), 0)
        distances = size - known[below], known[above] - size
        code = below if distances[0] < distances[1] or (distances[0] == distances[1] and below % 2 == 0) else above
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


def value(code, scale, zero, row, first, ftype):
    """The value of an integer code, by the formulas of a convention."""
    scale, zero = rounded(scale, ftype), rounded(zero, ftype)
    if row.zero_point == "offset":
        steps = code - first if row.offset_code == "lowest" else code
        return rounded(add(rounded(multiply(Fraction(steps), scale), ftype), zero), ftype)
    return rounded(multiply(rounded(code - zero, ftype), scale), ftype)


# --- what is compared -------------------------------------------------------------------------------------------------


class NotExact(AssertionError):
    """The fractions say something else."""


def _expect(name, actual, expected):
    if actual != expected:
        raise NotExact(f"by fractions {name} is {expected}, not {actual}")


def _stored(codes, shape, qtype):
    """Codes as a format stores them: bytes of the rows of packed ones, else codes themselves."""
    if not qtype.packed:
        return codes
    length = shape[-1] if shape else 1
    rows = []
    for start in range(0, len(codes), max(length, 1)):
        bits = sum(
            (code % (1 << qtype.bits)) << (k * qtype.bits) for k, code in enumerate(codes[start : start + length])
        )
        rows += bits.to_bytes(-(-length * qtype.bits // 8), "little")
    return rows


def _flat(array, qtype):
    array = np.ascontiguousarray(array).reshape(-1)
    return [int(code) for code in (array.view(np.uint8) if qtype.element and not qtype.packed else array)]


def _check_codes(x, p, nan, saturate, stored):
    """Codes of values under parameters."""
    ftype, qtype, row = compute_type(x.dtype), as_qtype(p.dtype), _row(p.convention)
    form, own, half = qtype.float_format, qtype.block_size > 0, operation_type(row, x.dtype)
    row = row.under(p.symmetric, _part(p.scale, p.axis, p.block_size))
    codes = []
    for index in _indices(x.shape):
        element = rounded(number(x[index]), ftype)
        negative = bool(x[index] < 0 if x.dtype.kind in "iu" else np.signbit(x[index]))
        if element is None and (nan == "zero" or own):
            element, negative = Fraction(0), False
        scale = _parameter(p.scale, index, x.shape, p.axis, p.block_size)
        zero = number(_parameter(np.asarray(p.zero_point, np.float64), index, x.shape, p.axis, p.block_size))
        if own:
            codes.append(_own_code(element, negative, scale, p, qtype, ftype))
        elif qtype.codebook:
            codes.append(_table_code(element, scale, qtype.codebook, ftype))
        elif form:
            ratio = twice_rounded(divide(element, rounded(number(scale), ftype)), ftype, half)
            zeros = (form.nan is None or row.zero_point_inside) and ratio == 0
            codes.append(float_code(ratio, negative and not zeros, form, saturate))
        else:
            allowed = row.code_range(qtype, p.symmetric)
            codes.append(int(integer_code(element, number(scale), zero, row, allowed, ftype, half)))
    _expect("codes", _flat(stored, qtype), _stored(codes, x.shape, qtype))


def _table_code(element, scale, row, ftype):
    """The code of a number in a format given by a table."""
    least = number(np.dtype(ftype).type(LEAST_SCALE))
    factor = rounded(1 / max(rounded(number(scale), ftype), least), ftype)
    ratio = rounded(multiply(element, factor), ftype)
    return row.order[sum(Fraction(threshold) < ratio for threshold in row.thresholds)]


def _own_code(element, negative, scale, p, qtype, ftype):
    """The code of a number in a format with scales of its own."""
    step = number(np.float64(scale))
    if p.tensor_scale is not None:
        tensor = number(p.tensor_scale)
        ratio = rounded(multiply(element, rounded(rounded(1 / tensor, ftype) / step, ftype)), ftype)
    else:
        ratio = divide(element, step)
    if qtype.float_format:
        return float_code(ratio, negative, qtype.float_format, True)
    return int(clamped(whole(multiply(ratio, Fraction(64))), Fraction(-127), Fraction(127)))


def _check_values(codes, p, dtype, ftype, actual):
    """Values of codes, one an element."""
    qtype, row = as_qtype(p.dtype), _row(p.convention)
    row = row.under(p.symmetric, _part(p.scale, p.axis, p.block_size))
    first = row.code_range(qtype, p.symmetric)[0]
    words = np.ascontiguousarray(codes).view(np.uint8).reshape(codes.shape) if qtype.element else codes
    for index in _indices(codes.shape):
        scale = number(_parameter(p.scale, index, codes.shape, p.axis, p.block_size))
        zero = number(_parameter(np.asarray(p.zero_point, np.float64), index, codes.shape, p.axis, p.block_size))
        if qtype.element:
            code, table = int(words[index]), qtype.codebook
            step = Fraction(table.values[code]) if table else value_of_code(code, qtype.float_format)
            expected = rounded(multiply(step, rounded(scale, ftype)), ftype)
        else:
            expected = value(int(codes[index]), scale, zero, row, first, ftype)
        _expect(f"value {index}", number(actual[index]), rounded(expected, dtype.name))


def _check_parameters(x, p, nan):
    """Parameters of "onnx" and of formats with scales of their own."""
    ftype, qtype = compute_type(x.dtype), as_qtype(p.dtype)
    least, largest = SMALLEST_NORMAL[ftype], _TYPES[ftype][2]
    groups = {
        which: [Fraction(0) if element is None else element for element in map(number, group)]
        for which, group in _groups(x, p.axis, p.block_size).items()
    }
    groups = {which: [rounded(element, ftype) for element in group] for which, group in groups.items()}
    if p.tensor_scale is not None:
        whole_size = max(abs(element) for group in groups.values() for element in group)
        tensor = rounded(rounded(whole_size / 2688, ftype), "float32")
        tensor = Fraction(1) if tensor < Fraction(1, 2**120) else min(tensor, Fraction(2) ** 119)
        _expect("tensor_scale", number(p.tensor_scale), tensor)
    for which, group in groups.items():
        lo, hi = min(*group, Fraction(0)) if group else 0, max(*group, Fraction(0)) if group else 0
        size = max(-lo, hi)
        scale, zero = number(np.float64(p.scale[which])), int(np.asarray(p.zero_point, np.float64)[which])
        if qtype.block_size:
            _expect(f"scale {which}", scale, _own_scale(size, qtype, ftype, p.tensor_scale))
            continue
        if qtype.codebook:
            _expect(f"scale {which}", scale, size)
            _expect(f"zero_point {which}", zero, 0)
            continue
        if p.symmetric:
            half = numbers(qtype.float_format)[-2] if qtype.element else 2 ** (qtype.bits - 1) - 1
            step, code = rounded(size / half, ftype), 0 if qtype.signed else 2 ** (qtype.bits - 1)
        else:
            span = hi - lo
            steps = qtype.qmax - qtype.qmin
            if rounded(span, ftype) != INF:
                step = rounded(rounded(span, ftype) / steps, ftype)
            elif ftype == "float32":
                step = min(rounded(rounded(rounded(span, "float64") / steps, "float64"), ftype), largest)
            else:
                step = min(rounded(add(rounded(hi / steps, ftype), -rounded(lo / steps, ftype)), ftype), largest)
            code = None
        if step < least:
            step, code = Fraction(1), code or 0
        if code is None:
            position = rounded(qtype.qmin - rounded(lo / step, ftype), ftype)
            code = int(clamped(whole(position), qtype.qmin, qtype.qmax))
        _expect(f"scale {which}", scale, step)
        _expect(f"zero_point {which}", zero, code)


def _own_scale(size, qtype, ftype, tensor_scale):
    if tensor_scale is None:
        form = qtype.float_format
        emax = exponent(numbers(form)[-2]) if form else 0
        e = -127 if size == 0 else max(-127, min(exponent(size) - emax, 127))
        return Fraction(2) ** e
    part = rounded(rounded(size / 6, ftype) / number(tensor_scale), ftype)
    form = FLOAT_FORMATS["float8_e4m3fn"]
    return numbers(form)[float_code(max(Fraction(1, 64), min(part, Fraction(448))), False, form, True)]


# --- operations -------------------------------------------------------------------------------------------------------


def _plain(array):
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("=")) if array.dtype.isbuiltin == 1 else array


def knows(operation, call):
    """Whether the fractions say what a call gives."""
    if operation not in _CHECKS:
        return False
    array = np.asarray(call.args[0])
    row = _row(call.options.get("convention", "onnx"))
    if not 0 < array.size <= MOST or array.dtype.kind not in "iufV":
        return False
    if operation == "dequantize_linear":
        return row.decode == "point" and row.quotient != "range"
    if operation == "quantize_linear":
        return True
    return row.name == "onnx" and call.options.get("range", "minmax") == "minmax"


@np.errstate(invalid="ignore")  # signalling NaN
def has_nan(x):
    return bool(np.isnan(x.astype(np.float64)).any())


def _quantize(call, q):
    x, nan = _plain(call.args[0]), call.options.get("nan", "raise")
    if nan == "keep" and has_nan(x):
        return
    _check_parameters(x, q.qparams, nan)
    _check_codes(x, q.qparams, nan, call.options.get("saturate", True), q.codes)


def _choose_qparams(call, p):
    x, nan = _plain(call.args[0]), call.options.get("nan", "raise")
    if nan == "keep" and has_nan(x):
        return
    _check_parameters(x, p, nan)


def _raw(call, qtype, shape):
    """Raw parameters as QParams."""
    given = call.args[1]
    scale = np.asarray(given, None if hasattr(given, "dtype") else np.float64)
    zero = call.args[2]
    zero = np.zeros(scale.shape, np.int8) if zero is None else np.asarray(zero)
    axis, block_size = call.options.get("axis", 1), call.options.get("block_size", 0)
    if scale.size == 1:
        axis, block_size = None, 0
    return fastq.QParams(_plain(scale), _plain(zero), qtype, axis, block_size, False, call.options["convention"])


def _quantize_linear(call, codes):
    x, dtype, zero = _plain(call.args[0]), call.args[3], call.args[2]
    if dtype is None:
        given = [a.dtype for a in (zero, call.out) if hasattr(a, "dtype")]
        dtype = next((d.name for d in given if d.name in QTYPES), "uint8")
    p = _raw(call, as_qtype(dtype), x.shape)
    ftype = compute_type(x.dtype)
    if any(rounded(number(s), ftype) in (0, INF, -INF) for s in p.scale.reshape(-1)):
        return  # rows that keep scales in float64 take more than F has
    p = _stored_parameters(p, ftype)
    _check_codes(x, p, call.options.get("nan", "raise"), call.options.get("saturate", True), codes)


def _stored_parameters(p, ftype):
    """Raw parameters in the type in which a row keeps them."""
    row = _row(p.convention)
    kept = np.float64 if row.stored_type == "float64" else np.dtype(ftype)
    with np.errstate(all="ignore"):
        zero = p.zero_point.astype(kept) if row.zero_point != "integer" else p.zero_point
        return p.with_values(p.scale.astype(kept), np.asarray(zero))


def _dequantize_linear(call, values):
    codes, given = _plain(call.args[0]), call.args[1]
    p = _raw(call, as_qtype(codes.dtype), codes.shape)
    kept = _row(p.convention).stored_type == "float64"
    scale_type = np.dtype(given.dtype.newbyteorder("=")) if hasattr(given, "dtype") else np.dtype(np.float32)
    dtype = values.dtype.newbyteorder("=") if values.dtype.isbuiltin == 1 else values.dtype
    ftype = compute_type(dtype if kept else scale_type)
    if any(rounded(number(s), ftype) in (0, INF, -INF) for s in p.scale.reshape(-1)):
        return
    _check_values(codes, _stored_parameters(p, ftype), dtype, ftype, values)


_CHECKS = {
    "quantize": _quantize,
    "choose_qparams": _choose_qparams,
    "quantize_linear": _quantize_linear,
    "dequantize_linear": _dequantize_linear,
}


def check(operation, call, result):
    """Raise NotExact unless a result is what the fractions say."""
    _CHECKS[operation](call, result)
