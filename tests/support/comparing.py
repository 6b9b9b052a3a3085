"""Operations of fastq and of the reference, which a test compares on arrays.

A test has the fixture `compare` of conftest.py and calls it with an array, its options, and operations:

    compare(Work(x, "int8", {"axis": 0}, threads=(1, 4)), quantize, dequantize)
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from catalogue import same_bytes, same_measures, same_quantized

import fastq
from fastq import reference
from fastq.results import QuantizedArray


class Work(NamedTuple):
    """An array, its format and options, by each number of threads."""

    x: np.ndarray
    code: Any = None
    options: Mapping[str, Any] = MappingProxyType({})
    other: np.ndarray | None = None  # quantized with the parameters of x, or with `qparams`; x itself if None
    qparams: fastq.QParams | None = None
    q: QuantizedArray | None = None  # instead of the results of the reference for x
    sources: tuple[np.ndarray, ...] = ()  # x in other memory
    threads: tuple[int, ...] = (1,)
    outputs: tuple[Any, ...] = ()  # dtypes of values, in addition to that of the scale

    def second(self, x):
        """Return the array that is quantized with given parameters, where x may be a copy."""
        return x if self.other is None else self.other

    def chosen(self, *names):
        """Return those of the options that have these names."""
        return {name: self.options[name] for name in names if name in self.options}

    @property
    def by(self):
        """The arguments of a quantization of x."""
        if self.qparams is None:
            return {"dtype": self.code, **self.options}
        return {"qparams": self.qparams, **self.chosen("nan", "saturate")}

    @property
    def given(self):
        """The arguments of a quantization by given parameters."""
        qparams = expected_of(self).qparams if self.qparams is None else self.qparams
        return {"qparams": qparams, **self.chosen("nan", "saturate")}


_expected: dict[int, tuple[Work, QuantizedArray]] = {}  # of the work at hand


def expected_of(work):
    """Return x as the reference quantizes it, computed once for all operations of a work."""
    if work.q is not None:
        return work.q
    if id(work) not in _expected:
        _expected.clear()
        _expected[id(work)] = work, reference.quantize(work.x, **work.by)
    return _expected[id(work)][1]


# --- operations: of an API on an array, which is x of the work or its copy in other memory --------------------------


def quantize(api, x, work):
    return api.quantize(x, **work.by)


def choose_qparams(api, x, work):
    return QuantizedArray(expected_of(work).codes, api.choose_qparams(x, **work.by), expected_of(work).shape)


def dequantize(api, x, work):
    q = expected_of(work)
    return [api.dequantize(q), *(api.dequantize(q, dtype=output) for output in work.outputs)]


def fake_quantize(api, x, work):
    return api.fake_quantize(x, **work.by)


def quantize_given(api, x, work):
    return api.quantize(work.second(x), **work.given)


def fake_quantize_given(api, x, work):
    return api.fake_quantize(work.second(x), **work.given)


def quantize_linear(api, x, work):
    p = work.given["qparams"]
    place = {"axis": p.axis, "block_size": p.block_size}
    options = work.chosen("nan", "saturate")
    return api.quantize_linear(
        work.second(x), p.scale, p.zero_point, p.dtype, convention=p.convention, **place, **options
    )


def dequantize_linear(api, x, work):
    q = expected_of(work)
    codes = reference.unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes
    place = {"axis": q.axis, "block_size": q.block_size}
    p = q.qparams
    return [
        api.dequantize_linear(codes, p.scale, p.zero_point, **place, dtype=output) for output in (None, *work.outputs)
    ]


def minmax(api, x, work):
    return api.minmax(x, **work.chosen("axis", "block_size", "nan"))


def measures(api, x, work):
    return api.compare(work.second(x), expected_of(work))


def clipped(api, x, work):
    return measures(api, x, work).clipped


def refuse_nan(api, x, work):
    return _refused(work, lambda: api.quantize(x, **work.by))


def refuse_nan_given(api, x, work):
    return _refused(work, lambda: api.quantize(x, **work.given))


def refuse_nan_in_minmax(api, x, work):
    return _refused(work, lambda: api.minmax(x, **work.chosen("axis", "block_size")))


def _refused(work, call):
    """The message of the error that a call raises, which counts NaN."""
    with pytest.raises(ValueError, match=f"x has {np.count_nonzero(np.isnan(work.x))} NaN") as refusal:
        call()
    return str(refusal.value)


ALL = quantize, choose_qparams, dequantize, fake_quantize, quantize_given, fake_quantize_given


# --- comparisons of their results -----------------------------------------------------------------------------------


def same_symmetric(actual, expected):
    same_quantized(actual, expected)
    assert actual.symmetric == expected.symmetric


def same_arrays(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        same_bytes(one, other)


def equal(actual, expected):
    assert actual == expected


SAME = {
    quantize: same_symmetric,
    choose_qparams: same_quantized,
    dequantize: same_arrays,
    fake_quantize: same_bytes,
    quantize_given: same_quantized,
    fake_quantize_given: same_bytes,
    quantize_linear: same_bytes,
    dequantize_linear: same_arrays,
    minmax: same_arrays,
    measures: same_measures,
    clipped: equal,
    refuse_nan: equal,
    refuse_nan_given: equal,
    refuse_nan_in_minmax: equal,
}


def compare_with_reference(threads, work, *operations):
    """Compare the results of operations with those of the reference, for x in each memory and number of threads."""
    for operation in operations:
        expected = operation(reference, work.x, work)
        for x in (work.x, *work.sources):
            results = []
            for n in work.threads:
                threads(n)
                results.append(operation(fastq, x, work))
                SAME[operation](results[-1], expected)
            if operation is measures:  # sums are the same by any number of threads
                assert results[1:] == results[:-1]
