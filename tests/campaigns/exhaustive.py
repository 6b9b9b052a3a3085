"""Exhaustive proofs: `python -m tests.campaigns.exhaustive` quantizes every float32, and every pattern of 16 bits.

The oracle for float32 is cheap: over the floats in increasing order codes are a step function. Where it steps is found
by bisection over their bit patterns, with exact fractions; then every code of the kernel is compared with the function.
A run goes on where the one before it stopped, but begins the setting that it was at again; the finished settings and
the versions are in a file.
"""

import argparse
import bisect
import functools
import itertools
import sys
import time
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import called_elsewhere
import numpy as np
from fuzzing import exact
from fuzzing.arrays import as_dtype
from kept import Kept

import fastq
from fastq import reference
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, as_qtype

STATE = Path(__file__).parents[2] / ".pytest_cache" / "exhaustive.json"
CHUNK = 1 << 20  # patterns, which a cache holds
CHUNKS = range(0, 1 << 32, CHUNK)  # the first pattern of each
INFINITY, SIGN = 0x7F800000, 1 << 31
FAST = called_elsewhere.api("fastq")


# --- what is tried ----------------------------------------------------------------------------------------------------

ROUNDINGS = {
    rounding: replace(fastq.CONVENTIONS["onnx"], name=rounding, rounding=rounding)
    for rounding in fastq.Convention.__dataclass_fields__["rounding"].metadata["choices"]
}
INTEGERS = ("int8", "uint8", "int16")
FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def _beside(power, towards):
    return float(np.nextafter(np.float32(power), np.float32(towards)))


# plain ones, and both sides of where the quotient is a division; the zero point as a part of the codes, from 0 to 1
PARAMETERS = (
    (1.0, 0.5),
    (2.0**-7, 0.0),
    (0.1, 1.0),
    (1 / 3, 0.3),
    (1 / 127, 0.5),
    (1 / 255, 0.0),
    (0.007843138, 0.7),
    (3e-5, 0.25),
    (100.7, 0.9),
    (_beside(1, 2), 0.5),
    (_beside(2, 0), 0.5),
    (2.0**-100, 0.5),
    (_beside(2.0**-100, 1), 0.1),
    (_beside(2.0**-99, 0), 0.6),
    (_beside(2.0**-80, 0), 0.5),
    (_beside(2.0**-80, 1), 0.5),
    (2.0**100, 0.5),
    (_beside(2.0**100, 0), 0.4),
    (_beside(2.0**100, 2.0**101), 0.8),
    (2.0**-126, 0.5),
    (_beside(2.0**-126, 0), 0.2),
    (2.0**-149, 0.5),
    (3 * 2.0**-149, 0.0),
    (float(np.finfo(np.float32).max), 0.5),
    (1.7e38, 1.0),
    (1e30, 0.05),
)


@dataclass(frozen=True)
class Setting:
    """A call that is made for every float32."""

    format: str
    rounding: str
    scale: float
    zero_point: int
    saturate: bool = True
    columns: bool = False

    @property
    def name(self):
        how = "without saturation" if not self.saturate else "a scale for each column" if self.columns else ""
        return f"{self.format} {self.rounding} {self.scale!r} {self.zero_point} {how}".strip()

    @property
    def row(self):
        return ROUNDINGS[self.rounding]

    def codes(self, x, out):
        """Codes of the fast function."""
        options = {"dtype": self.format, "saturate": self.saturate, "nan": "zero"}
        if QTYPES[self.format].element:
            options["nan"] = "keep"
        elif self.rounding != "half_even":
            options["convention"] = self.row
        scale, zero_point = np.float32(self.scale), self.zero_point
        if self.columns:
            width = 64
            x, out = x.reshape(-1, width), out.reshape(-1, width)
            scale, zero_point = np.full(width, scale), np.full(width, zero_point, np.int64)
            options["axis"] = 1
        return fastq.quantize_linear(x, scale, zero_point, out=out, **options)


def zero_point_at(part, q):
    """The code at a part of all codes of a format."""
    return round(q.qmin + part * (q.qmax - q.qmin))


def settings():
    """All settings: parameters x integers x roundings, scales by columns for some, and float formats."""
    for columns, parameters in ((False, PARAMETERS), (True, PARAMETERS[2:15:6])):
        for rounding, (scale, part), name in itertools.product(ROUNDINGS, parameters, INTEGERS):
            zero_point = zero_point_at(part, QTYPES[name])
            yield Setting(name, rounding, float(np.float32(scale)), zero_point, columns=columns)
    for (scale, _), name, saturate in itertools.product(PARAMETERS[::3], FLOATS, (True, False)):
        yield Setting(name, "half_even", float(np.float32(scale)), 0, saturate)


# --- the step function ------------------------------------------------------------------------------------------------
#
# Floats in increasing order are counted: 0.0 is 0, -0.0 is -1, the smallest subnormal number 1, infinity INFINITY.


def order_of(value):
    """The count of a float32."""
    word = int(np.float32(value).view(np.int32))
    return word if word >= 0 else -1 - (word & (SIGN - 1))


def number_of(order, scaling=0):
    """The number of a count, times a power of two: a fraction or an infinity."""
    size = order if order >= 0 else -1 - order
    sign, e = 1 if order >= 0 else -1, max(size >> 23, 1) - 150 + scaling
    if size == INFINITY:
        return sign * exact.INF
    significand = sign * (size & 0x7FFFFF | (size >= 0x800000) << 23)
    return Fraction(significand << e) if e >= 0 else Fraction(significand, 1 << -e)


@dataclass(frozen=True)
class Steps:
    """Codes of all floats: from each count on, the next code."""

    starts: np.ndarray
    codes: np.ndarray

    def between(self, first, last):
        """Codes of the counts first..last - 1."""
        low, high = np.searchsorted(self.starts, [first, last - 1], "right")
        ends = np.append(self.starts[low:high], last)
        return np.repeat(self.codes[low - 1 : high], np.diff(np.append(first, ends)))


def first_from(guess, reached):
    """The first count for which `reached`, which is never so before it and always after; None if for none."""
    lowest, end = -1 - INFINITY, INFINITY + 1
    low = high = max(lowest, min(guess, INFINITY))
    width = 1
    while low > lowest and reached(low):
        low, width = max(lowest, low - width), width * 4
    width = 1
    while high < end and not reached(high):
        high, width = min(end, high + width), width * 4
    start = low + bisect.bisect_left(range(low, high), True, key=reached)
    return None if start == end else start


def _steps(codes, rank, guess):
    """The step function of codes in their order, by the place among them of the code of a count.

    `guess` is about the number at which the code at a place begins.
    """
    lowest = rank(-1 - INFINITY)
    starts, found = [-1 - INFINITY], [codes[lowest]]
    for k in range(lowest + 1, len(codes)):
        near = order_of(float(exact.rounded(guess(k), "float32")))
        start = first_from(near, lambda order, k=k: rank(order) >= k)
        if start is None:
            break
        if start == starts[-1]:
            found[-1] = codes[k]
        else:
            starts.append(start)
            found.append(codes[k])
    return np.array(starts), found


def integer_steps(setting):
    """The step function of a setting of integers."""
    q, row = QTYPES[setting.format], setting.row
    scale, zero = Fraction(setting.scale), Fraction(setting.zero_point)
    scaling = -exact.exponent(scale)  # a quotient stays the same, and its fractions are shorter
    near_one = scale * Fraction(2) ** scaling

    @functools.lru_cache(16)
    def rank(order):
        x = number_of(order, scaling)
        return int(exact.integer_code(x, near_one, zero, row, (q.qmin, q.qmax), "float32")) - q.qmin

    def guess(k):
        steps = k + q.qmin - zero - (Fraction(1, 2) if "half" in setting.rounding else 0)
        return (steps - (setting.rounding == "trunc" and steps <= 0)) * scale

    starts, codes = _steps(range(q.qmin, q.qmax + 1), rank, guess)
    return Steps(starts, np.array(codes, q.storage))


def float_steps(setting):
    """The step function of a setting of a float format."""
    form, scale = FLOAT_FORMATS[setting.format], Fraction(setting.scale)
    known = exact.numbers(form)

    @functools.lru_cache(16)
    def code(order):
        ratio = exact.rounded(exact.divide(number_of(order), scale), "float32")
        return exact.float_code(ratio, order < 0, form, setting.saturate)

    sizes = range(form.largest + 1 + (code(INFINITY) != form.largest))

    def code_of(size, negative):
        if 0 < size <= form.largest:
            return size | negative << (form.bits - 1)
        order = INFINITY if size else 0
        return code(-1 - order if negative else order)

    signed = [*((size, True) for size in reversed(sizes)), *((size, False) for size in sizes)]
    codes = [(code_of(size, negative), negative) for size, negative in signed]
    values = [-known[size] if negative else known[size] for size, negative in signed]
    places = {each: k for k, each in enumerate(codes)}
    starts, found = _steps(
        codes,
        lambda order: places[code(order), order < 0],
        lambda k: (values[k - 1] + values[k]) / 2 * scale,
    )
    return Steps(starts, np.array([code for code, _ in found], np.uint8))


def steps_of(setting):
    return float_steps(setting) if QTYPES[setting.format].element else integer_steps(setting)


# --- every float32 ----------------------------------------------------------------------------------------------------


class Wrong(AssertionError):
    """A code is not the one expected."""


class EveryFloat:
    """Compares the codes of all floats with a step function, chunk by chunk of bit patterns."""

    def __init__(self, setting, steps=None):
        self.setting, self.steps = setting, steps_of(setting) if steps is None else steps
        q = as_qtype(setting.format)
        self.is_float, self.form = bool(q.element), q.float_format
        self.out = np.empty(CHUNK, q.storage)
        self.words = np.arange(CHUNK, dtype=np.uint32)

    def expected(self, first):
        """Codes of the patterns from `first` on."""
        sign, size = first & SIGN, first & (SIGN - 1)
        nans = np.full(CHUNK, self._nan(sign), self.steps.codes.dtype)
        if size > INFINITY:
            return nans
        count = 1 if size == INFINITY else CHUNK
        codes = self.steps.between(-size - count, -size)[::-1] if sign else self.steps.between(size, size + count)
        return np.append(codes, nans[count:])  # infinity is followed by NaN

    def _nan(self, sign):
        if not self.is_float:
            return self.setting.zero_point
        return exact.float_code(None, bool(sign), self.form, self.setting.saturate)

    def check(self, first):
        """Compare the chunk that begins at a pattern."""
        x = (self.words + np.uint32(first)).view(np.float32)
        self.setting.codes(x, self.out)
        actual, expected = self.out.view(np.uint8) if self.is_float else self.out, self.expected(first)
        if not np.array_equal(actual, expected):
            where = np.flatnonzero(actual != expected)
            k = where[0]
            raise Wrong(
                f"{self.setting.name}: {where.size} of the patterns from {first:#x} on, "
                f"the first {first + int(k):#x}, {x[k]!r}: {actual[k]}, not {expected[k]}"
            )

    def chunks_with_steps(self):
        """Chunks in which codes change, and those with zeros, infinities and NaN."""
        sizes = [start if start >= 0 else SIGN | -start - 1 for start in map(int, self.steps.starts)]
        sizes += [start - 1 if start > 0 else SIGN | -start for start in map(int, self.steps.starts)]
        special = [0, SIGN, INFINITY, SIGN | INFINITY, SIGN - 1, 2 * SIGN - 1]
        return sorted({size // CHUNK * CHUNK for size in sizes + special})


# --- every pattern of 16 bits -----------------------------------------------------------------------------------------


def patterns(name):
    """Every number of a 16-bit dtype; of floats without NaN."""
    x = np.arange(1 << 16, dtype=np.uint16).view(as_dtype(name))
    return x if x.dtype.kind in "iu" else x[~np.isnan(x.astype(np.float32))]


HALVES = ("float16", "bfloat16", "int16", "uint16")
HALF_SCALES = (1.0, 0.1, 1 / 3, 3e-5, 100.7, _beside(2.0**-99, 0), _beside(2.0**-80, 1), 2.0**-149, 1e38)


def same(actual, expected, name):
    if actual.tobytes() != expected.tobytes():
        where = np.flatnonzero(actual.view(np.uint8) != expected.view(np.uint8))
        raise Wrong(f"{name}: {where.size} bytes differ, the first at {where[0]}")


def every_half(name, format):
    """Codes of every number of a 16-bit dtype in a format, by scales and roundings; how many there are."""
    x, q = patterns(name), QTYPES[format]
    if q.block_size:
        shuffled = np.random.default_rng(1).permutation(x)
        for order in (x, x[::-1], shuffled):
            usable = order[np.isfinite(order.astype(np.float32))]
            whole = usable[: usable.size // 64 * 64]
            for shape, axis in (((-1,), 0), ((-1, 64), 1), ((64, -1), 0)):
                given = whole.reshape(shape)
                actual, expected = (api.quantize(given, format, axis=axis) for api in (FAST, reference))
                same(actual.codes, expected.codes, f"{name} to {format}")
                same(actual.scale, expected.scale, f"scales of {name} to {format}")
                yield whole.size
        return
    for (rounding, row), scale in itertools.product(ROUNDINGS.items(), HALF_SCALES):
        if rounding != "half_even" and q.element:
            continue
        for part, saturate in ((0.0, True), (0.6, True), (1.0, False)):
            zero_point = 0 if q.element else zero_point_at(part, q)
            options = {"dtype": format, "saturate": saturate}
            if rounding != "half_even":
                options["convention"] = row
            args = x, np.float32(scale), zero_point
            actual, expected = (api.quantize_linear(*args, **options) for api in (FAST, reference))
            same(actual, expected, f"{name} to {format} {rounding} {scale} {zero_point} {saturate}")
            yield x.size


def every_half_by_fractions(name, format):
    """Codes of every number of a 16-bit dtype in a float format by exact fractions; how many there are."""
    x, form = patterns(name), FLOAT_FORMATS[format]
    for scale, saturate in ((1.0, True), (0.1, False), (_beside(2.0**-99, 0), True)):
        wide = x.astype(np.float32)
        codes = fastq.quantize_linear(x, np.float32(scale), dtype=format, saturate=saturate)
        if QTYPES[format].packed:
            codes = fastq.unpack(codes, format, shape=x.shape)
        for value, code in zip(wide, codes.view(np.uint8), strict=True):
            ratio = exact.rounded(exact.divide(exact.number(value), Fraction(float(np.float32(scale)))), "float32")
            keeps_sign = form.nan is not None or ratio != 0
            expected = exact.float_code(ratio, bool(np.signbit(value)) and keeps_sign, form, saturate)
            if code != expected:
                raise Wrong(f"{name} to {format}: {value!r} / {scale!r} is {code}, not {expected}")
        yield x.size


# --- the quotient -----------------------------------------------------------------------------------------------------


def quotient_kernel():
    """A compiled function: quotients of an array by one scale, as kernels take them."""
    from numba import types
    from onnx_rule import spec
    from traced_functions import CFunction

    from fastq.engine.simd import Vec, count, load, pointer, store
    from fastq.kernels import formulas

    vec = Vec(types.float32, 16)

    def kernel(x_address, y_address, n, scale):
        x, y = pointer(x_address, types.float32), pointer(y_address, types.float32)
        s = formulas.prepare_scale(spec(), scale, np.float32(0), np.float32(-128), np.float32(127))
        for i in range(0, n, count(vec)):
            store(y, i, formulas.quotient(load(x, i, vec), s))

    compiled = CFunction(kernel, types.intp, types.intp, types.intp, types.float32)
    return lambda x, y, scale: compiled(x.ctypes.data, y.ctypes.data, x.size, scale)


SIGNIFICANDS = (1.0, 2 - 2.0**-23, 1 + 2.0**-23, 2 - 2.0**-22, 1.5, 1.1, 1.9999, 1.3333334)


def every_quotient(significand, exponents=range(-99, 100)):
    """Every float over a scale, from a quarter of it to 2**17 of it, for scales of all exponents; how many there are.

    Nearer to zero no quotient is near a tie of integer codes.
    """
    kernel = quotient_kernel()
    x = (np.arange(1 << 23, 1 << 24, dtype=np.int32) * np.float64(2.0**-23)).astype(np.float32)
    scaled, actual, expected = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    for e in exponents:
        scale = np.float32(significand * 2.0**e)
        for quotient in range(-2, 18):
            np.multiply(x, np.float32(2.0 ** (e + quotient)), out=scaled)
            kernel(scaled, actual, scale)
            np.divide(scaled, scale, out=expected)
            if not np.array_equal(actual.view(np.int32), expected.view(np.int32)):
                where = np.flatnonzero(actual != expected)
                raise Wrong(f"{where.size} quotients by {scale!r} are wrong, the first of {scaled[where[0]]!r}")
            yield x.size


# --- runs -------------------------------------------------------------------------------------------------------------


def jobs():
    """All that is proven: kind, name and a function that does it, step by step, yielding how many values it tried."""
    for name, format in itertools.product(HALVES, QTYPES):
        yield "every 16-bit pattern, by the reference", f"{name} {format}", functools.partial(every_half, name, format)
    for name, format in itertools.product(HALVES[:2], [n for n in QTYPES if n in FLOAT_FORMATS]):
        work = functools.partial(every_half_by_fractions, name, format)
        yield "every 16-bit pattern, by fractions", f"{name} {format}", work
    for significand in SIGNIFICANDS:
        for e in range(-99, 100, 20):
            work = functools.partial(every_quotient, significand, range(e, min(e + 20, 100)))
            yield "quotients", f"{significand!r} 2**{e}", work
    for setting in settings():
        yield "every float32", setting.name, functools.partial(_every_float, setting)


def _every_float(setting):
    every = EveryFloat(setting)
    for first in CHUNKS:
        every.check(first)
        yield CHUNK


class State(Kept):
    """The proofs, their settings, and the faults that were found; `made` is what figures.made_with() said of each."""

    def __init__(self, path):
        super().__init__(path, done={}, wrong={}, seconds=0.0, made={})

    def has(self, kind, name):
        """Whether a setting was tried."""
        return name in self.done.get(kind, {}) or name in self.wrong.get(kind, {})

    def runs(self):
        """Figures by their versions, on any day: a line for each kind of proof."""
        found = {}
        for kind, name, _ in jobs():
            if not self.has(kind, name):
                continue
            made = self.made.get(kind, {}).get(name, {})  # which files of earlier runs lack
            run, lines = found.setdefault(tuple(made[key] for key in made if key != "date"), ({}, {}))
            run.update(max(run, made, key=lambda each: each.get("date", "")))
            line = lines.setdefault(kind, {"what": kind, "settings": 0, "values": 0, "wrong": 0})
            line["settings"] += name in self.done.get(kind, {})
            line["values"] += self.done.get(kind, {}).get(name, 0)
            line["wrong"] += name in self.wrong.get(kind, {})
        return [run | {"rows": list(lines.values())} for run, lines in found.values()]


def run(state, until, everything):
    """Do what is not done yet of all jobs, until a time."""
    import figures
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress:
        whole = progress.add_task("settings", total=len(everything))
        part = progress.add_task("", total=1)
        for kind, name, work in everything:
            if state.has(kind, name):
                progress.advance(whole)
                continue
            progress.reset(part, total=1 << 32 if kind == "every float32" else 1, description=name)
            began, tried = time.monotonic(), 0
            try:
                for count in work():
                    tried += count
                    progress.advance(part, count)
                    if time.monotonic() > until:
                        return
                state.done.setdefault(kind, {})[name] = tried
            except Wrong as error:
                state.wrong.setdefault(kind, {})[name] = str(error)
                progress.console.print(str(error), markup=False, highlight=False)
            state.made.setdefault(kind, {})[name] = figures.made_with()
            state.seconds += time.monotonic() - began
            state.save()
            progress.advance(whole)


def main():
    import figures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1000.0, help="stop after so long; the next run goes on")
    parser.add_argument("--state", type=Path, default=STATE, help="file that a run goes on from")
    given = parser.parse_args()
    state = State(given.state)
    run(state, time.monotonic() + given.hours * 3600, list(jobs()))
    figures.store_runs("exhaustive", state.runs())
    return int(bool(state.wrong))


if __name__ == "__main__":
    sys.exit(main())
