"""Run a case by the fast functions and by the reference, and tell where the two differ."""

import os
import re
import warnings
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial

import called_elsewhere
import numpy as np
from catalogue import same_measures
from fuzzing import exact
from fuzzing.cases import Case
from fuzzing.functions import arguments_of, plain
from refusals import counts_nothing

from fastq.engine.runtime import threadpool
from fastq.plan import policy
from fastq.plan.cache import plans
from fastq.results import Comparison, QParams, QuantizedArray
from fastq.system import tuning

LACKS = "came not with the package"  # what a process says that has the machine code of a wheel and must not compile


class Different(AssertionError):
    """The two do not agree."""


# --- settings ---------------------------------------------------------------------------------------------------------

_BOUNDS = policy.PARALLEL_FROM, threadpool.WAKE_FROM
_TUNING = tuning.current
_CHUNK = threadpool.CHUNK  # the fewest and most elements of a thread's chunk
_SMALL_CHUNK = 64, 640


@contextmanager
def settings():
    """Put back all settings in the end."""
    threads = threadpool.get_num_threads()
    try:
        yield
    finally:
        change(threads, None, None, False)


def change(threads, staged_run, stores_codes, small_chunks):
    """Change to settings; without stores to those of the package."""
    threadpool.CHUNK = _SMALL_CHUNK if small_chunks else _CHUNK
    policy.PARALLEL_FROM, threadpool.WAKE_FROM = (1, 1) if threads > 1 and stores_codes is not None else _BOUNDS
    row = _TUNING()
    if stores_codes is not None:
        row = replace(row, stream_codes=stores_codes)
    if staged_run is not None:
        row = replace(row, stream_from=1, stream_run=1, staged_run=staged_run)
    tuning.current = lambda: row
    threadpool.set_num_threads(threads)
    plans.clear()


class Settings:
    """The settings in force: threads from the first element on, stores past the cache, of codes too, small chunks."""

    def __init__(self):
        self.now = None

    def use(self, case):
        """Change to the settings of a case; launch plans are kept as long as these stay."""
        number, small_chunks = case.of.number, case.small_chunks and case.size != "streamed"
        staged_run = number // 2 % 2 << 40 if case.streamed else None  # straight from registers, or by way of the stack
        wanted = case.threads, staged_run, bool(number % 2), small_chunks
        if wanted == self.now:
            return
        called_elsewhere.function(__name__, "change")(*wanted)
        self.now = wanted


# --- results ----------------------------------------------------------------------------------------------------------


_OF_PARAMETERS = *(field.name for field in fields(QParams) if field.name != "computed"), "compute_dtype"


def parts(result):
    """Parts of a result by name: arrays, numbers and settings."""
    if isinstance(result, QuantizedArray):
        return {"codes": result.codes, "shape": result.shape, **parts(result.qparams)}
    if isinstance(result, QParams):
        return {name: getattr(result, name) for name in _OF_PARAMETERS}
    if isinstance(result, tuple):
        return {f"{k} {name}": each for k, part in enumerate(result) for name, each in parts(part).items()}
    return {"result": result}


def _differing(actual, expected):
    """The indices of elements of two arrays of one dtype and shape whose bytes differ."""
    a, b = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(each.size, -1) for each in (actual, expected))
    return np.flatnonzero((a != b).any(axis=1))


def _same(name, actual, expected):
    if not isinstance(expected, np.ndarray):
        if actual != expected or type(actual) is not type(expected):
            raise Different(f"{name}: {actual!r}, not {expected!r}")
        return
    if type(actual) is not np.ndarray:
        raise Different(f"{name}: {type(actual)}, not ndarray")
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise Different(f"{name}: {actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}")
    if actual.tobytes() != expected.tobytes():
        where = _differing(actual, expected)
        shown = ", ".join(f"{actual.flat[k]!r} at {k} is {expected.flat[k]!r}" for k in where[:3])
        raise Different(f"{name}: {where.size} of {actual.size} elements differ: {shown}")


def same_results(actual, expected):
    """Raise Different unless two results have the same bits."""
    if isinstance(expected, Comparison):
        try:
            same_measures(actual, expected)
        except AssertionError as error:
            raise Different(str(error)) from None
        return
    actual, expected = parts(actual), parts(expected)
    if list(actual) != list(expected):
        raise Different(f"{list(actual)}, not {list(expected)}")
    for name in expected:
        _same(name, actual[name], expected[name])


def left_to_the_cpu(operation, call, actual, expected):
    """Whether the contract leaves it to the CPU where results differ: signs of NaN (C8.6), ties of entropy (C17.6).

    On the CPU that gave the first of the two, the reference has to give it, too.
    """
    if called_elsewhere.VARIABLE not in os.environ:
        return False
    arrays = isinstance(actual, np.ndarray) and isinstance(expected, np.ndarray) and actual.dtype == expected.dtype
    if arrays and actual.shape == expected.shape:
        where = _differing(actual, expected)
        return bool(all(np.isnan(each.flat[where]).all() for each in (actual, expected)))
    return operation == "calibrate" and call.options["method"][0] == "entropy"


_PARTS = "scale", "zero_point", "tensor_scale", "codes", "qparams", "block_size", "axis", "dtype"  # of a QuantizedArray


def _named(error, operation):
    """The argument that the message of an error names first."""
    names = {*arguments_of(operation), *_PARTS}
    found = re.search(r"\b(" + "|".join(names) + r")\b", str(error).replace("qparams.", ""))
    return found and found[1]


def _same_errors(actual, expected, operation):
    if type(actual) is not type(expected):
        raise Different(f"{_shown(actual)}, not {_shown(expected)}")
    names = _named(actual, operation), _named(expected, operation)
    if names[0] != names[1] or names[0] is None:
        raise Different(f"names {names[0]} and not {names[1]}: {_shown(actual)}, not {_shown(expected)}")


def _shown(outcome):
    return (
        f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, BaseException) else f"a {type(outcome).__name__}"
    )


def _outcome(function, call):
    """Result of a call, or the error that it ends in."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return function(*call.args, **call.options)
        except Exception as error:
            return error


# --- cases ------------------------------------------------------------------------------------------------------------


def check_call(case, repeat=0):
    """Do one call both ways; what it came to: "values", "exact" (by fractions, too), "refused", or another."""
    call, other = case.call(repeat), case.call(repeat)
    operation = case.of.operation
    fast = partial(called_elsewhere.function("fuzzing.functions", "fast"), operation)
    actual, there = _outcome(fast, call), False
    if isinstance(actual, AssertionError) and LACKS in str(actual):
        return "lacking"
    expected = _outcome(partial(plain, operation), other)
    refused = isinstance(actual, Exception) or isinstance(expected, Exception)
    if refused:
        for error in (actual, expected):
            if counts_nothing(str(error)):
                raise Different(f"counts 0 of the faults that it reports: {_shown(error)}")
        _same_errors(actual, expected, operation)
        if not isinstance(actual, (TypeError, ValueError, *[IndexError] * (operation == "part"))):
            raise Different(_shown(actual))
    else:
        try:
            same_results(actual, expected)
        except Different:
            if not left_to_the_cpu(operation, call, actual, expected):
                raise
            other, there = case.call(repeat), True
            reference_there = partial(called_elsewhere.function("fuzzing.functions", "plain"), operation)
            same_results(actual, _outcome(reference_there, other))
        if call.out is not None and getattr(actual, "codes", actual) is not call.out:
            raise Different("the result is not out")
    _same_memory(call, other, refused)
    if there:
        return "left to the CPU"
    if not refused and exact.knows(operation, other) and exact.check(operation, case.call(repeat), expected):
        return "exact"
    return "refused" if refused else "values"


def _same_memory(call, other, refused):
    """All memory is the same after both; what is in an output that was refused is not specified."""
    if refused and call.out is not None:
        for out in (call.out, other.out):
            if out.flags.writeable:
                out[...] = np.zeros((), out.dtype)
    for k, (actual, expected) in enumerate(zip(call.memories, other.memories, strict=True)):
        where = np.flatnonzero(actual != expected)
        if where.size:
            raise Different(f"memory {k}: {where.size} bytes differ, the first at {where[0]} of {actual.size}")


def check(number, settings):
    """Check the case of a number; the case and what it came to."""
    case = Case(number)
    settings.use(case)
    outcome = check_call(case)
    if (case.seed + case.variant) % 4 == 0 and case.size != "streamed" and outcome != "lacking":
        check_call(case, repeat=1)  # by the launch plan of the first call, with other values
    return case, outcome
