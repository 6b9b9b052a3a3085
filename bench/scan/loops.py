"""The same work as plain parallel loops of Numba, as one would write them: in the memory order of the operand.

Where neighbours in memory share parameters, arrays are seen as groups of these. Elsewhere they are seen with four axes;
those that share parameters have length 1 in arrays of parameters. Numba takes neither float16 nor the dtypes of
ml_dtypes, nor memory that is unaligned or byte-swapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange

from fastq.formats.qtypes import QTYPES, QType

from .arrays import Array, Operands, dtype_of, grouped
from .grid import NO_FORMAT, WORKS, Cell

Call = Callable[[], Any]
AXES = 4
FOUR_BITS = ("int4", "uint4")
HALVES = ("float16", "bfloat16")

# --- an element -------------------------------------------------------------------------------------------------------


@njit
def encode(x, scale, zero, lowest, highest):
    return min(max(np.rint(x / scale) + zero, lowest), highest)


@njit
def decode(code, scale, zero, lowest, highest):
    return (code - zero) * scale


@njit
def encode_and_decode(x, scale, zero, lowest, highest):
    return (min(max(np.rint(x / scale) + zero, lowest), highest) - zero) * scale


@njit
def is_clipped(x, scale, zero, lowest, highest):
    return not lowest <= np.rint(x / scale) + zero <= highest


@njit
def keep(value, scale, zero, lowest, highest):
    return value


@njit
def never(x, scale, zero, lowest, highest):
    return False


@njit
def from_range(lo, hi, symmetric, lowest, highest):
    """Take scale and zero point from a range, all of one type."""
    scale, zero = (hi - lo) / (highest - lowest), (lowest + highest) / 2 * 0
    if symmetric:
        scale, zero = max(-lo, hi) / ((highest - lowest) / 2), (lowest + highest) / 2
    if scale == 0:
        return scale + 1, zero
    return scale, zero if symmetric else min(max(np.rint(lowest - lo / scale), lowest), highest)


# --- groups -----------------------------------------------------------------------------------------------------------


def groups_with_given(element: Any) -> Any:
    """A loop that computes each element of a result with the parameters of its group."""

    @njit(parallel=True)
    def loop(x, scale, zero, lowest, highest, result):
        real = scale.dtype.type
        for g in prange(x.shape[0]):
            s, z = scale[g], zero[g]
            for i in range(x.shape[1]):
                result[g, i] = element(real(x[g, i]), s, z, lowest, highest)

    return loop


def groups_with_own(element: Any) -> Any:
    """A loop that takes the parameters of each group from its range, and computes its elements with them."""

    @njit(parallel=True)
    def loop(x, low, high, symmetric, lowest, highest, scale, zero, result):
        real = scale.dtype.type
        for g in prange(x.shape[0]):
            lo, hi = low, high
            for i in range(x.shape[1]):
                lo, hi = min(lo, x[g, i]), max(hi, x[g, i])
            s, z = from_range(real(lo), real(hi), symmetric, lowest, highest)
            scale[g], zero[g] = s, z
            for i in range(x.shape[1]):
                result[g, i] = element(real(x[g, i]), s, z, lowest, highest)

    return loop


@njit(parallel=True)
def find_ranges_of_groups(x, low, high, lows, highs):
    for g in prange(x.shape[0]):
        lo, hi = low, high
        for i in range(x.shape[1]):
            lo, hi = min(lo, x[g, i]), max(hi, x[g, i])
        lows[g], highs[g] = lo, hi


@njit(parallel=True)
def find_parameters_of_groups(x, low, high, symmetric, lowest, highest, scale, zero):
    real = scale.dtype.type
    for g in prange(x.shape[0]):
        lo, hi = low, high
        for i in range(x.shape[1]):
            lo, hi = min(lo, x[g, i]), max(hi, x[g, i])
        scale[g], zero[g] = from_range(real(lo), real(hi), symmetric, lowest, highest)


# --- four axes, from one index of the first to another ----------------------------------------------------------------


@njit
def start(i, low, high, lows, highs):
    """Make ranges those of no elements."""
    for j in range(lows.shape[1]):
        for k in range(lows.shape[2]):
            for n in range(lows.shape[3]):
                lows[i, j, k, n], highs[i, j, k, n] = low, high


@njit
def widen(first, end, x, place, lows, highs):
    """Widen the ranges at a place by the elements from one index to another."""
    for i in range(first, end):
        for j in range(x.shape[1]):
            for k in range(x.shape[2]):
                a, b = min(j, lows.shape[1] - 1), min(k, lows.shape[2] - 1)
                if lows.shape[3] == 1:
                    lo, hi = lows[place, a, b, 0], highs[place, a, b, 0]
                    for n in range(x.shape[3]):
                        lo, hi = min(lo, x[i, j, k, n]), max(hi, x[i, j, k, n])
                    lows[place, a, b, 0], highs[place, a, b, 0] = lo, hi
                else:
                    for n in range(x.shape[3]):
                        lows[place, a, b, n] = min(lows[place, a, b, n], x[i, j, k, n])
                        highs[place, a, b, n] = max(highs[place, a, b, n], x[i, j, k, n])


@njit
def choose(i, lows, highs, symmetric, lowest, highest, scale, zero):
    """Take parameters from ranges."""
    real = scale.dtype.type
    for j in range(scale.shape[1]):
        for k in range(scale.shape[2]):
            for n in range(scale.shape[3]):
                lo, hi = real(lows[i, j, k, n]), real(highs[i, j, k, n])
                scale[i, j, k, n], zero[i, j, k, n] = from_range(lo, hi, symmetric, lowest, highest)


def each(element: Any) -> Any:
    """A loop that computes each element of a result."""

    @njit
    def part(first, end, x, scale, zero, lowest, highest, result):
        real = scale.dtype.type
        for i in range(first, end):
            for j in range(x.shape[1]):
                for k in range(x.shape[2]):
                    a, b = min(j, scale.shape[1] - 1), min(k, scale.shape[2] - 1)
                    if scale.shape[3] == 1:
                        s, z = scale[i, a, b, 0], zero[i, a, b, 0]
                        for n in range(x.shape[3]):
                            result[i, j, k, n] = element(real(x[i, j, k, n]), s, z, lowest, highest)
                    else:
                        for n in range(x.shape[3]):
                            s, z = scale[i, a, b, n], zero[i, a, b, n]
                            result[i, j, k, n] = element(real(x[i, j, k, n]), s, z, lowest, highest)

    return part


# --- four axes --------------------------------------------------------------------------------------------------------


@njit(parallel=True)
def find_ranges(x, low, high, lows, highs):
    for i in prange(len(x)):
        start(i, low, high, lows, highs)
        widen(i, i + 1, x, i, lows, highs)


@njit(parallel=True)
def find_ranges_of_slices(x, starts, low, high, lows, highs):
    """Find ranges that go on along the first axis, of each slice of it."""
    for s in prange(len(lows)):
        start(s, low, high, lows, highs)
        widen(starts[s], starts[s + 1], x, s, lows, highs)


@njit(parallel=True)
def find_parameters(x, low, high, symmetric, lowest, highest, lows, highs, scale, zero):
    for i in prange(len(x)):
        start(i, low, high, lows, highs)
        widen(i, i + 1, x, i, lows, highs)
        choose(i, lows, highs, symmetric, lowest, highest, scale, zero)


def with_given(element: Any) -> Any:
    """A loop that computes each element of a result with given parameters."""
    part = each(element)

    @njit(parallel=True)
    def loop(starts, x, scale, zero, lowest, highest, result):
        for s in prange(len(starts) - 1):
            part(starts[s], starts[s + 1], x, scale, zero, lowest, highest, result)

    return loop


def with_own(element: Any) -> Any:
    """A loop that computes each element of a result with parameters of ranges that end within the first axis."""
    part = each(element)

    @njit(parallel=True)
    def loop(x, low, high, symmetric, lowest, highest, lows, highs, scale, zero, result):
        for i in prange(len(x)):
            start(i, low, high, lows, highs)
            widen(i, i + 1, x, i, lows, highs)
            choose(i, lows, highs, symmetric, lowest, highest, scale, zero)
            part(i, i + 1, x, scale, zero, lowest, highest, result)

    return loop


def measured(value: Any, outside: Any) -> Any:
    """A loop that sums the errors of an approximation in float64, and counts what is outside the range of the codes."""

    @njit
    def part(first, end, x, other, scale, zero, lowest, highest):
        real = scale.dtype.type
        squares, errors, relatives, power, most, most_relative, counted, clipped = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0
        for i in range(first, end):
            for j in range(x.shape[1]):
                for k in range(x.shape[2]):
                    a, b, last = min(j, scale.shape[1] - 1), min(k, scale.shape[2] - 1), scale.shape[3] - 1
                    for n in range(x.shape[3]):
                        s, z = scale[i, a, b, min(n, last)], zero[i, a, b, min(n, last)]
                        exact = np.float64(x[i, j, k, n])
                        error = abs(exact - np.float64(value(real(other[i, j, k, n]), s, z, lowest, highest)))
                        squares += error * error
                        errors += error
                        power += exact * exact
                        most = max(most, error)
                        if exact != 0:
                            relatives += error / abs(exact)
                            most_relative = max(most_relative, error / abs(exact))
                            counted += 1
                        if outside(real(x[i, j, k, n]), s, z, lowest, highest):
                            clipped += 1
        return squares, errors, relatives, power, most, most_relative, counted, clipped

    @njit(parallel=True)
    def loop(starts, x, other, scale, zero, lowest, highest):
        squares, errors, relatives, power, most, most_relative, counted, clipped = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0
        for i in prange(len(starts) - 1):
            a, b, c, d, e, f, g, h = part(starts[i], starts[i + 1], x, other, scale, zero, lowest, highest)
            squares += a
            errors += b
            relatives += c
            power += d
            most = max(most, e)
            most_relative = max(most_relative, f)
            counted += g
            clipped += h
        return squares, errors, relatives, power, most, most_relative, counted, clipped

    return loop


@njit(parallel=True)
def pack_pairs(codes, packed):
    for i in prange(codes.shape[0]):
        for j in range(codes.shape[1]):
            for k in range(codes.shape[2] // 2):
                packed[i, j, k] = codes[i, j, 2 * k] & 15 | codes[i, j, 2 * k + 1] << 4
            if codes.shape[2] % 2:
                packed[i, j, codes.shape[2] // 2] = codes[i, j, codes.shape[2] - 1] & 15


@njit(parallel=True)
def unpack_pairs(packed, sign, codes):
    for i in prange(codes.shape[0]):
        for j in range(codes.shape[1]):
            for k in range(codes.shape[2] // 2):
                codes[i, j, 2 * k] = (packed[i, j, k] & 15 ^ sign) - sign
                codes[i, j, 2 * k + 1] = packed[i, j, k] >> 4
            if codes.shape[2] % 2:
                codes[i, j, codes.shape[2] - 1] = (packed[i, j, codes.shape[2] // 2] & 15 ^ sign) - sign


@njit(parallel=True)
def keep_signs(x, nothing, packed):
    for i in prange(packed.shape[0]):
        for j in range(packed.shape[1]):
            for k in range(packed.shape[2]):
                octet = nothing
                for bit in range(min(8, x.shape[2] - 8 * k)):
                    if x[i, j, 8 * k + bit] > 0:
                        octet += 128 >> bit
                packed[i, j, k] = octet


# function -> what becomes of an element
ELEMENTS = {
    "quantize": encode,
    "quantize_linear": encode,
    "fake_quantize": encode_and_decode,
    "dequantize": decode,
    "dequantize_linear": decode,
}
WITH_GIVEN = {element: with_given(element) for element in (encode, encode_and_decode, decode)}
WITH_OWN = {element: with_own(element) for element in (encode, encode_and_decode)}
GROUPS_WITH_GIVEN = {element: groups_with_given(element) for element in WITH_GIVEN}
GROUPS_WITH_OWN = {element: groups_with_own(element) for element in WITH_OWN}
MEASURE_CODES, MEASURE_VALUES = measured(decode, is_clipped), measured(keep, never)

# --- how arrays are seen ----------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """How arrays of the shape of the operand are seen: axes in this order, then this shape.

    Attributes
    ----------
    order : tuple of int
        The axes, blocks being an axis of their own, from the slowest in memory to the fastest.
    shape : tuple of int
        Of `AXES` axes: neighbouring ones that share parameters, or have their own, are one where no copy is needed.
    own : tuple of int
        The shape of parameters, 1 where they are shared.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]
    own: tuple[int, ...]

    def all(self, array: Array) -> Array:
        """The whole array, without a copy."""
        return array.transpose(self.order).reshape(self.shape)

    @property
    def in_groups(self) -> bool:
        """Whether neighbours share parameters, and nothing else has an axis but the groups of them."""
        return self.shape[1:-1] == self.own[1:-1] and self.own[1:] == (1,) * (AXES - 1)

    def parameters(self, array: Array, shape: list[int]) -> Array:
        """A copy of parameters, which have this shape beside the operand."""
        return np.ascontiguousarray(array.reshape(shape).transpose(self.order)).reshape(self.own)

    def repeated(self, *parameters: Array) -> list[Array]:
        """Parameters along the whole first axis, also where it shares them."""
        return [np.broadcast_to(each, (self.shape[0], *self.own[1:])) for each in parameters]


def seen(arrays: list[Array], shared: tuple[int, ...]) -> Seen:
    """How to see arrays of one shape, of which the first one decides about the order; the axes share parameters."""
    first = arrays[0]
    order = sorted(range(first.ndim), key=lambda a: (first.strides[a] != 0, -abs(first.strides[a])))
    axes = [([a], first.shape[a]) for a in order if first.shape[a] > 1]
    for place in reversed(range(1, len(axes))):
        (before, outer), (here, inner) = axes[place - 1 : place + 1]
        alike = (before[-1] in shared) == (here[0] in shared)
        joined = all(x.strides[before[-1]] == x.strides[here[0]] * x.shape[here[0]] for x in arrays)
        if len(axes) > 2 and alike and joined:
            axes[place - 1 : place + 1] = [([*before, *here], outer * inner)]
    kept = [1 if among[0] in shared else n for among, n in axes]
    between = [1] * (AXES - len(axes))
    shape = [axes[0][1], *between, *(n for _, n in axes[1:])]
    return Seen(tuple(order), tuple(shape), (kept[0], *between, *kept[1:]))


class Work(NamedTuple):
    """What the loops of a cell are called with.

    Attributes
    ----------
    cell : Cell
        The cell.
    first : ndarray
        The operand, blocks being an axis of their own.
    shared : tuple of int
        The axes of it that share parameters.
    operands : Operands
        What the cell is called with.
    real : dtype
        What is computed in.
    """

    cell: Cell
    first: Array
    shared: tuple[int, ...]
    operands: Operands
    real: np.dtype[Any]

    @property
    def qtype(self) -> QType:
        """The format of the codes."""
        return QTYPES[self.cell.format]

    @property
    def symmetric(self) -> bool:
        """Whether zero points are the middle."""
        return WORKS[self.cell.work].parameters == "symmetric"

    @property
    def limits(self) -> tuple[Any, ...]:
        """The first and the last code; none without a format."""
        if self.cell.format == NO_FORMAT:
            return ()
        return tuple(map(self.real.type, self.qtype.code_range(self.symmetric)))

    @property
    def shape_of_parameters(self) -> list[int]:
        """The shape of parameters beside that of the operand."""
        return [1 if a in self.shared else n for a, n in enumerate(self.first.shape)]

    def result(self) -> Array:
        """Memory for codes or values, in the order of `out` where one is given."""
        floats = self.real if self.first.dtype.kind in "iu" else self.first.dtype
        name = WORKS[self.cell.work].function
        dtype = {"quantize": self.qtype.storage, "quantize_linear": self.qtype.storage, "fake_quantize": floats}.get(
            name, dtype_of(self.cell.dtype)
        )
        out = self.operands.out
        return np.ones(self.operands.shape, dtype) if out is None else np.ones_like(out, dtype)

    @property
    def beside(self) -> tuple[Array, Array]:
        """Scales and zero points that are given, with the axes of the operand."""
        p, shape = self.operands.qparams, self.shape_of_parameters
        assert p is not None
        return p.scale.reshape(shape), p.zero_point.astype(self.real).reshape(shape)

    def given(self, view: Seen) -> list[Array]:
        """The same as loops take them."""
        return view.repeated(*(view.parameters(each, self.shape_of_parameters) for each in self.beside))


class Ranges:
    """Memory for ranges and parameters, and the calls that fill it.

    Attributes
    ----------
    lows, highs, scale, zero : ndarray
        Of the shape of parameters.
    end_within : bool
        Whether ranges end within the first axis.
    """

    def __init__(self, work: Work, x: Array, view: Seen, low: Any, high: Any) -> None:
        self.x, self.view, self.start = x, view, (x.dtype.type(low), x.dtype.type(high))
        self.lows, self.highs = np.ones(view.own, x.dtype), np.ones(view.own, x.dtype)
        self.scale, self.zero = np.ones(view.own, work.real), np.ones(view.own, work.real)
        self.end_within = view.own[0] == len(x)
        self.rule = work.symmetric, *work.limits
        self.starts = _slices(len(x))
        self.of_slices = [np.ones((len(self.starts) - 1, *view.own[1:]), x.dtype) for _ in self.start]

    def find(self) -> tuple[Array, Array]:
        """Find the ranges."""
        if self.end_within and self.view.in_groups:
            find_ranges_of_groups(_groups(self.x), *self.start, self.lows.ravel(), self.highs.ravel())
        elif self.end_within:
            find_ranges(self.x, *self.start, self.lows, self.highs)
        else:
            find_ranges_of_slices(self.x, self.starts, *self.start, *self.of_slices)
            np.min(self.of_slices[0], 0, keepdims=True, out=self.lows)
            np.max(self.of_slices[1], 0, keepdims=True, out=self.highs)
        return self.lows, self.highs

    def choose(self) -> tuple[Array, Array]:
        """Find the ranges, and take parameters from them."""
        if self.end_within and self.view.in_groups:
            parameters = self.scale.ravel(), self.zero.ravel()
            find_parameters_of_groups(_groups(self.x), *self.start, *self.rule, *parameters)
        elif self.end_within:
            find_parameters(self.x, *self.start, *self.rule, self.lows, self.highs, self.scale, self.zero)
        else:
            choose(0, *self.find(), *self.rule, self.scale, self.zero)
        return self.scale, self.zero

    def use(self, element: Any, result: Array) -> None:
        """Compute all elements with parameters of their ranges."""
        if self.end_within and self.view.in_groups:
            loop, parameters = GROUPS_WITH_OWN[element], (self.scale.ravel(), self.zero.ravel())
            loop(_groups(self.x), *self.start, *self.rule, *parameters, _groups(result))
        elif self.end_within:
            memory = self.lows, self.highs, self.scale, self.zero
            WITH_OWN[element](self.x, *self.start, *self.rule, *memory, result)
        else:
            use_given(element, self.x, self.view, self.view.repeated(*self.choose()), self.rule[1:], result)


def use_given(element: Any, x: Array, view: Seen, given: list[Array], limits: tuple[Any, ...], result: Array) -> None:
    """Compute all elements with given parameters."""
    if view.in_groups:
        GROUPS_WITH_GIVEN[element](_groups(x), *(each[:, 0, 0, 0] for each in given), *limits, _groups(result))
    else:
        WITH_GIVEN[element](_slices(len(x)), x, *given, *limits, result)


def _groups(array: Array) -> Array:
    return array[:, 0, 0, :]


def _slices(length: int) -> Array:
    """The first index of each thread's part, and the end."""
    parts = min(get_num_threads(), length)
    return np.arange(parts + 1) * length // parts


def _elements(work: Work) -> Call:
    element, result = ELEMENTS[WORKS[work.cell.work].function], work.result()
    beside = result.reshape(work.first.shape)
    view = seen([work.first, beside], work.shared)
    x, made = view.all(work.first), view.all(beside)
    if work.operands.qparams is None:
        ranges = Ranges(work, x, view, 0, 0)
        return lambda: ranges.use(element, made) or result
    given = work.given(view)
    return lambda: use_given(element, x, view, given, work.limits, made) or result


def _choose_qparams(work: Work) -> Call:
    view = seen([work.first], work.shared)
    return Ranges(work, view.all(work.first), view, 0, 0).choose


def _minmax(work: Work) -> Call:
    view, dtype = seen([work.first], work.shared), work.first.dtype
    nothing = (np.iinfo(dtype).max, np.iinfo(dtype).min) if dtype.kind in "iu" else (np.inf, -np.inf)
    return Ranges(work, view.all(work.first), view, *nothing).find


def _compare(work: Work) -> Call:
    other = work.operands.approximation
    assert other is not None
    other = other.reshape(work.first.shape)
    view = seen([work.first, other], work.shared)
    arrays = _slices(view.shape[0]), view.all(work.first), view.all(other)
    if work.operands.qparams is None:
        nothing = np.ones((view.shape[0], 1, 1, 1))
        return lambda: MEASURE_VALUES(*arrays, nothing, nothing, 0.0, 0.0)
    given, limits = work.given(view), work.limits
    return lambda: MEASURE_CODES(*arrays, *given, *limits)


def _binarize(work: Work) -> Call:
    out, shape = work.operands.out, work.operands.shape
    packed = np.ones((*shape[:-1], -(-shape[-1] // 8)), work.qtype.storage) if out is None else np.ones_like(out)
    return lambda: keep_signs(work.operands.first, work.qtype.qmin, packed) or packed


def _pack(work: Work) -> Call:
    codes, shape = work.operands.first.view(np.uint8), work.operands.shape
    packed = np.ones((*shape[:-1], -(-shape[-1] // 2)), np.uint8)
    return lambda: pack_pairs(codes, packed) or packed


def _unpack(work: Work) -> Call:
    codes, sign = np.ones(work.operands.shape, work.qtype.storage), 8 if work.qtype.signed else 0
    packed = work.operands.first.view(codes.dtype)
    return lambda: unpack_pairs(packed, sign, codes) or codes


_LOOPS: dict[str, Callable[[Work], Call]] = {
    **dict.fromkeys(ELEMENTS, _elements),
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
    "binarize": _binarize,
    "pack": _pack,
    "unpack": _unpack,
}


def _numba_takes(cell: Cell, first: Array) -> bool:
    """Whether all operands and results have dtypes and memory that Numba takes, and codes are whole bytes or halves."""
    work = WORKS[cell.work]
    takes_memory = first.flags.aligned and first.dtype.isnative
    if work.function not in _LOOPS or cell.dtype in HALVES or not (takes_memory and cell.is_plain):
        return False
    if work.function in ("pack", "unpack"):
        return cell.format in FOUR_BITS
    if cell.format == NO_FORMAT:
        return True
    qtype, moves = QTYPES[cell.format], {*work.reads.split(), *work.writes.split()}
    return not (qtype.element or qtype.block_size) and (qtype.fills_storage or not moves & {"codes", "bytes"})


def work_of(cell: Cell, o: Operands, first: Array | None = None) -> Work | None:
    """What a plain way to do the work of a cell is called with; None where blocks are ragged."""
    view = grouped(cell, o.first if first is None else first)
    real = np.result_type(o.first, np.float32) if o.qparams is None else o.qparams.scale.dtype
    return view and Work(cell, *view, o, real)


def numba_loop(cell: Cell, o: Operands) -> Call | None:
    """The work as parallel loops; None where Numba does not take it, or blocks are ragged."""
    work = work_of(cell, o) if _numba_takes(cell, o.first) else None
    return work and _LOOPS[WORKS[cell.work].function](work)
