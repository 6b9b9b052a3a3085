"""Single codes of an array of any size, their parameters and values, in NumPy: no kernel is compiled."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.describe import format_value_formula, value_formula
from fastq.formats.qtypes import QType
from fastq.results.indexing import parts_of
from fastq.results.parameters import QParams, coding_of_parameters
from fastq.system.arrays_of_callers import as_array, is_lazy
from fastq.system.dtypes import Array

Places = tuple[Any, ...]  # indices of elements: integers or arrays of integers that broadcast, one for each axis

_NAME = re.compile(r"\b[a-z_]+\b")


def codes_at(codes: Array, qtype: QType, places: Places) -> Array:
    """Return the codes at some places, one code per element, in the storage dtype of the format."""
    if not qtype.packed:
        return np.asarray(codes[(*places, ...)])
    *rows, column = places or (0,)
    # a code has its bits in one byte or in two, from the lowest on: code 2 of 3 bits has bits 6 to 8 of its row
    first_bit = np.asarray(column) * qtype.bits
    first_byte, last_byte = first_bit // 8, codes.shape[-1] - 1
    low, high = (codes[(*rows, byte)].astype(np.uint16) for byte in (first_byte, np.minimum(first_byte + 1, last_byte)))
    code = (low | high << 8) >> (first_bit % 8).astype(np.uint16) & np.uint16((1 << qtype.bits) - 1)
    if qtype.element:
        return np.asarray(code.astype(np.uint8)).view(qtype.storage)
    # the sign bit is worth -8 in 4 bits: 0b1111 ^ 8 is 7, and 7 - 8 is -1
    sign = 1 << (qtype.bits - 1) if qtype.signed else 0
    return np.asarray((code.astype(np.int16) ^ sign) - sign).astype(qtype.storage)


def parameter_places(p: QParams, shape: tuple[int, ...], places: Places) -> Places:
    """Return where the parameters of the elements at some places are."""
    parts = parts_of(p.scale.shape, shape, p.axis, p.block_size)
    if p.scale.shape != parts.parameter_shape:  # one number for all
        return (0,) * p.scale.ndim
    if not p.block_size:
        return tuple(places[a] for a in parts.axes)
    return tuple(place // p.block_size if a in parts.axes else place for a, place in enumerate(places))


def code_ends(p: QParams) -> tuple[float, float]:
    """Return the first and the last code in use; for float formats their numbers."""
    if p.dtype.codebook:
        return 0, (1 << p.dtype.bits) - 1
    return coding_of_parameters(p).codes


def formula_of(p: QParams) -> str:
    """Return the formula of values under some parameters."""
    return format_value_formula(p.dtype) or value_formula(coding_of_parameters(p).convention)


@np.errstate(all="ignore")  # scales that do not fit the type
def terms_of(codes: Array, p: QParams, shape: tuple[int, ...], places: Places) -> dict[str, Any]:
    """Return the numbers in the formula for codes at some places, by their names there and in the types it uses."""
    ftype = np.dtype(np.float32) if p.dtype.block_size else p.compute_dtype
    convention = coding_of_parameters(p).convention
    first, last = code_ends(p)
    parameter_index = parameter_places(p, shape, places)
    scale, zero_point = (as_array(number, "parameters")[(*parameter_index, ...)] for number in (p.scale, p.zero_point))
    code = codes.astype(ftype)
    table = p.dtype.codebook
    terms = {
        "code": code,
        "number": np.asarray(table.values, ftype)[codes] if table else code,
        "scale": scale.astype(np.float64 if convention.by_range else ftype),  # F(n * scale) rounds a float64 product
        "tensor_scale": p.tensor_scale,
        "zero_point": zero_point.astype(ftype),
        "offset": zero_point.astype(ftype),
        "qmin": ftype.type(first),
        "n": ftype.type(last - first),
    }
    if convention.quotient == "steps_in_unit":
        terms["i"] = _steps_in_unit(scale).astype(ftype)
    return terms


def _steps_in_unit(scale: Array) -> Array:
    """Return how many steps of a scale a unit has, whole numbers above 1."""
    inverse = 1.0 / scale.astype(np.float64)
    return np.where(inverse > 1, np.rint(inverse), inverse)


def values_of(codes: Array, p: QParams, shape: tuple[int, ...], places: Places) -> Array:
    """Return the values of unpacked codes at some places, in the compute type."""
    return evaluate(formula_of(p), terms_of(codes, p, shape, places)).astype(p.compute_dtype)


def values_at(codes: Array, p: QParams, shape: tuple[int, ...], places: Places) -> Array:
    """Return the values of the codes of an array at some places."""
    return values_of(codes_at(codes, p.dtype, places), p, shape, places)


def sample_places(shape: tuple[int, ...], most: int) -> tuple[NDArray[np.intp], ...]:
    """Return the places of all elements of an array, or a random sample of `most`, the same at each call."""
    size = math.prod(shape)
    picked = np.arange(size) if size <= most else np.random.default_rng(0).integers(size, size=most)
    return np.unravel_index(picked, shape) if shape else ()


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@np.errstate(all="ignore")
def evaluate(formula: str, terms: dict[str, Any]) -> Array:
    """Evaluate a formula of `fastq.formats.describe`, so that the shown formula is the one that is computed."""
    compute_type = terms["code"].dtype.type

    def value_of(node: ast.expr) -> Any:
        match node:
            case ast.BinOp(left, operation, right):
                return _ARITHMETIC[type(operation)](value_of(left), value_of(right))
            case ast.Call(ast.Name("F"), [argument]):
                return compute_type(value_of(argument))
            case ast.Name(name):
                return terms[name]
        assert isinstance(node, ast.Constant)
        return node.value

    return np.asarray(value_of(ast.parse(formula, mode="eval").body))


def names_in(formula: str) -> list[str]:
    """Return the names of the numbers in a formula, each once, in order."""
    return list(dict.fromkeys(_NAME.findall(formula)))


def fill_in(formula: str, terms: dict[str, Any]) -> str:
    """Return a formula with the numbers of one element instead of names."""
    return _NAME.sub(lambda name: number_text(terms[name[0]]), formula)


def number_text(number: Any) -> str:
    """Return a number with enough digits to distinguish it from others of its type."""
    return str(number).removesuffix(".0")


# --- codes as text ---------------------------------------------------------------------------------------------------

EDGE = 3  # codes shown at either end of an axis, as NumPy does
WHOLE = 100  # most codes of an array that is shown whole
AXES_SHOWN = 4  # arrays with more axes are shown without codes, which would fill a page


def codes_text(codes: Any, p: QParams, shape: tuple[int, ...], prefix: str) -> str:
    """Return the codes at the ends of each axis as NumPy shows an array, reading only these; "" for too many axes."""
    if is_lazy(codes) or len(shape) > AXES_SHOWN:
        return ""
    whole = math.prod(shape) <= WHOLE
    places = [np.arange(n) if whole else _ends(n) for n in shape]
    codes_at_ends = codes_at(as_array(codes, "codes"), p.dtype, np.ix_(*places)).reshape(
        [len(place) for place in places]
    )
    threshold = WHOLE if whole else 0
    return np.array2string(codes_at_ends, separator=", ", prefix=prefix, threshold=threshold, edgeitems=EDGE)


def _ends(n: int) -> NDArray[np.intp]:
    """Return the first and the last places of an axis, and one between them if there are more, for NumPy's dots."""
    return np.arange(n) if n <= 2 * EDGE + 1 else np.array([*range(EDGE), n // 2, *range(n - EDGE, n)])
