"""The table of what is compared: works, each an array and how it is quantized, by operations and numbers of threads."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from catalogue import same_bytes, same_measures, same_quantized

import fastq
from fastq import reference
from fastq.results import QuantizedArray

ALL = "quantize, choose, values, fake, given, fake given"


class Work(NamedTuple):
    """An array, its format and options, by each number of threads; `other` has the parameters of x, or `qparams`."""

    x: np.ndarray
    code: Any = None
    options: Mapping[str, Any] = MappingProxyType({})
    other: np.ndarray | None = None
    qparams: fastq.QParams | None = None
    threads: tuple[int, ...] = (1,)
    outputs: tuple[str, ...] = ()  # dtypes of values, beside that of the scale
    operations: str = ""  # instead of those of the row


class Row(NamedTuple):
    """What makes the works of a case, its cases and how they are run."""

    works: Callable[..., Any]
    cases: list[tuple[Any, ...]]
    quick: Callable[..., bool]
    operations: str
    chunk: tuple[int, int] | None  # elements of a thread
    cache: dict[str, Any]  # tuning of what goes past the cache


TABLE = {}


def row(cases, *, quick=lambda *case: False, operations=ALL, chunk=None, cache=None):
    """Add a function to the table; `cases` are tuples of its arguments, or values of the only one."""

    def add(works):
        one = len(inspect.signature(works).parameters) == 1
        listed = [(case,) if one else tuple(case) for case in cases]
        TABLE[works.__name__] = Row(works, listed, quick, operations, chunk, cache or {})
        return works

    return add


def cases():
    """Parameters of pytest: the name of a row and a case of it, slow unless it is one of the quick ones."""
    for name, row in TABLE.items():
        for case in row.cases:
            slow = () if row.quick(*case) else pytest.mark.slow("compiles kernels of its own")
            yield pytest.param(name, case, marks=slow, id="-".join(map(str, (name, *case))))


def same_pair(found, right):
    for one, other in zip(found, right, strict=True):
        same_bytes(one, other)


def same_symmetric(found, right):
    same_quantized(found, right)
    assert found.symmetric == right.symmetric


def equal(found, right):
    assert found == right


def check(work, operations, threads):
    """Compare what operations make of an array, by each number of threads, with what the reference makes of it."""
    x, options = work.x, work.options
    other = x if work.other is None else work.other
    nan = {name: options[name] for name in ("nan",) if name in options}
    where = {name: options[name] for name in ("axis", "block_size") if name in options}
    by = {"dtype": work.code, **options} if work.qparams is None else {"qparams": work.qparams, **nan}
    operations = operations.split(", ")
    q = reference.quantize(x, **by) if {*operations} - {"minmax", "refused"} else None
    given = {"qparams": None if q is None else q.qparams, **nan}

    def refusal(api):
        with pytest.raises(ValueError, match=f"x has {np.count_nonzero(np.isnan(x))} NaN"):
            api.quantize(x, **by)

    calls = {
        "quantize": (same_symmetric, lambda api: api.quantize(x, **by)),
        "choose": (same_quantized, lambda api: QuantizedArray(q.codes, api.choose_qparams(x, **by), q.shape)),
        "values": (
            same_pair,
            lambda api: [api.dequantize(q), *(api.dequantize(q, dtype=output) for output in work.outputs)],
        ),
        "fake": (same_bytes, lambda api: api.fake_quantize(x, **by)),
        "given": (same_quantized, lambda api: api.quantize(other, **given)),
        "fake given": (same_bytes, lambda api: api.fake_quantize(other, **given)),
        "minmax": (same_pair, lambda api: api.minmax(x, **where, **nan)),
        "measures": (same_measures, lambda api: api.compare(other, q)),
        "clipped": (equal, lambda api: api.compare(other, q).clipped),
        "refused": (equal, refusal),
    }
    for same, call in (calls[name] for name in operations):
        right = call(reference)
        for n in work.threads:
            threads(n)
            same(call(fastq), right)
