"""Tables of comparisons: works, each an array and how it is quantized, by operations and numbers of threads.

A file of tests makes a `Table`, adds rows to it and has its test: the one driver that compares with the reference.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from catalogue import same_bytes, same_measures, same_quantized

import fastq
from fastq import reference
from fastq.engine.runtime import threadpool
from fastq.results import QuantizedArray

ALL = "quantize, choose, values, fake, given, fake given"


class Work(NamedTuple):
    """An array, its format and options, by each number of threads; `other` has the parameters of x, or `qparams`."""

    x: np.ndarray
    code: Any = None
    options: Mapping[str, Any] = MappingProxyType({})
    other: np.ndarray | None = None
    qparams: fastq.QParams | None = None
    q: QuantizedArray | None = None  # instead of the results of the reference for x
    sources: tuple[np.ndarray, ...] = ()  # x in other memory
    threads: tuple[int, ...] = (1,)
    outputs: tuple[Any, ...] = ()  # dtypes of values, in addition to that of the scale
    operations: str = ""  # instead of those of the row


class Row(NamedTuple):
    """What makes the works of a case, its cases and how they are run."""

    works: Callable[..., Any]
    cases: list[tuple[Any, ...]]
    quick: Callable[..., bool]
    operations: str
    chunk: tuple[int, int] | None  # elements of a thread
    cache: dict[str, Any]  # tuning of arrays that go past the cache


class Table:
    """Rows by the names of the functions that make their works."""

    def __init__(self):
        self.rows = {}

    def row(self, cases, *, quick=lambda *case: False, operations=ALL, chunk=None, cache=None):
        """Add a function; `cases` are tuples of its arguments, or values of the only one."""

        def add(works):
            one = len(inspect.signature(works).parameters) == 1
            listed = [(case,) if one else tuple(case) for case in cases]
            self.rows[works.__name__] = Row(works, listed, quick, operations, chunk, cache or {})
            return works

        return add

    def cases(self):
        """Parameters of pytest: the name of a row and a case of it, slow unless it is one of the quick ones."""
        for name, row in self.rows.items():
            for case in row.cases:
                slow = () if row.quick(*case) else pytest.mark.slow("compiles kernels of its own")
                yield pytest.param(name, case, marks=slow, id="-".join(map(str, (name, *case))))

    def test(self):
        """Return the test of all rows."""

        @pytest.mark.parametrize(("name", "case"), list(self.cases()))
        def test_fast_equals_reference(name, case, threads, monkeypatch, request):
            row = self.rows[name]
            if row.chunk:
                monkeypatch.setattr(threadpool, "CHUNK", row.chunk)
            if row.cache:
                request.getfixturevalue("small_cache")(**row.cache)
            for work in row.works(*case):
                check(work, work.operations or row.operations, threads)

        return test_fast_equals_reference


def always(*case):
    """Cases of a row that are all quick."""
    return True


def same_pair(found, right):
    for one, other in zip(found, right, strict=True):
        same_bytes(one, other)


def same_symmetric(found, right):
    same_quantized(found, right)
    assert found.symmetric == right.symmetric


def equal(found, right):
    assert found == right


def in_bytes(q):
    """Codes one in a byte, and their place."""
    codes = reference.unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
    return codes, {"axis": q.axis, "block_size": q.block_size}


def calls_of(work):
    """How results of each operation are compared, and the operation, of an API on an array."""
    options, other = work.options, work.other
    kept = {name: options[name] for name in ("nan", "saturate") if name in options}
    nan = {name: kept[name] for name in ("nan",) if name in kept}
    where = {name: options[name] for name in ("axis", "block_size") if name in options}
    by = {"dtype": work.code, **options} if work.qparams is None else {"qparams": work.qparams, **kept}

    @functools.cache
    def q():
        return reference.quantize(work.x, **by) if work.q is None else work.q

    def given():
        return {"qparams": q().qparams if work.qparams is None else work.qparams, **kept}

    def second(x):
        return x if other is None else other

    def values(api):
        return [api.dequantize(q()), *(api.dequantize(q(), dtype=output) for output in work.outputs)]

    def linear(api, x):
        p = given()["qparams"]
        place = {"axis": p.axis, "block_size": p.block_size}
        return api.quantize_linear(second(x), p.scale, p.zero_point, p.dtype, convention=p.convention, **place, **kept)

    def of_linear(api):
        codes, place = in_bytes(q())
        p = q().qparams
        given = p.scale, p.zero_point
        return [api.dequantize_linear(codes, *given, **place, dtype=output) for output in (None, *work.outputs)]

    def refusal(call):
        with pytest.raises(ValueError, match=f"x has {np.count_nonzero(np.isnan(work.x))} NaN"):
            call()

    return {
        "quantize": (same_symmetric, lambda api, x: api.quantize(x, **by)),
        "choose": (same_quantized, lambda api, x: QuantizedArray(q().codes, api.choose_qparams(x, **by), q().shape)),
        "values": (same_pair, lambda api, x: values(api)),
        "fake": (same_bytes, lambda api, x: api.fake_quantize(x, **by)),
        "given": (same_quantized, lambda api, x: api.quantize(second(x), **given())),
        "fake given": (same_bytes, lambda api, x: api.fake_quantize(second(x), **given())),
        "linear": (same_bytes, linear),
        "of linear": (same_pair, lambda api, x: of_linear(api)),
        "minmax": (same_pair, lambda api, x: api.minmax(x, **where, **nan)),
        "measures": (same_measures, lambda api, x: api.compare(second(x), q())),
        "clipped": (equal, lambda api, x: api.compare(second(x), q()).clipped),
        "refused": (equal, lambda api, x: refusal(lambda: api.quantize(x, **by))),
        "given refused": (equal, lambda api, x: refusal(lambda: api.quantize(x, **given()))),
        "minmax refused": (equal, lambda api, x: refusal(lambda: api.minmax(x, **where))),
    }


def check(work, operations, threads):
    """Compare the results of operations for an array, by each number of threads, with those of the reference."""
    calls = calls_of(work)
    for same, call in (calls[name] for name in operations.split(", ")):
        right = call(reference, work.x)
        for x in (work.x, *work.sources):
            found = []
            for n in work.threads:
                threads(n)
                found.append(call(fastq, x))
                same(found[-1], right)
            assert same is not same_measures or found[1:] == found[:-1]  # sums are the same by any number of threads
