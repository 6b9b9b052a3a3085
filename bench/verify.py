"""The right results, from fastq.reference, and how the results of a contender differ from them.

fastq has to equal the reference in every bit. A peer may take the other code where a value lies between two, which is
what multiplying by the reciprocal of the scale does; one with arithmetic of its own says within how many steps it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fastq import QuantizedArray, reference

from . import data
from .cases import Case
from .data import (
    KEEPBITS,
    MULTIPLIER,
    SCALE,
    ZERO_POINT,
    Array,
    granularity,
    piece_of_codes,
    piece_of_qparams,
    piece_of_values,
    scale,
    zero_point,
)

Results = dict[str, Any]

EXACT = 0.0  # every byte
TIES = 1.0  # one step, at some ties
SAME = 0.01  # steps that arithmetic in another order makes
TIES_AT_MOST = 1e-3  # of all elements
MEASURES = ("mse", "sqnr_db", "max_abs_error", "mean_abs_error", "max_relative_error", "mean_relative_error")
MEASURES_AGREE = 1e-6


def _values(case: Case, values: Array) -> Results:
    """Values, and what a step of the given scales makes in them."""
    return {"values": values, "step": _spread(piece_of_qparams(case).scale, case)}


def _dequantize_linear(case: Case) -> Results:
    p = piece_of_qparams(case)
    given = {"axis": p.axis, "block_size": p.block_size}
    return _values(case, reference.dequantize_linear(piece_of_codes(case), p.scale, p.zero_point, **given))


def _dequantize(case: Case) -> Results:
    p, codes = piece_of_qparams(case), piece_of_codes(case)
    codes = reference.pack(codes, p.dtype) if p.dtype.packed else codes
    return _values(case, reference.dequantize(QuantizedArray(codes, p, case.shape)))


def _quantized(case: Case) -> QuantizedArray:
    return reference.quantize(piece_of_values(case), case.work.code, **granularity(case))


def _quantize(case: Case) -> Results:
    q = _quantized(case)
    found = {"codes": q.codes, "scale": q.scale, "values": reference.dequantize(q), "step": _spread(q.scale, case)}
    return found | ({} if case.work.symmetric else {"zero_point": q.zero_point})


def _spread(scales: Array, case: Case) -> Array:
    """The scale of each element, or an array that broadcasts to that."""
    scales = scales.astype(np.float32)
    if case.work.granularity == "rows":
        return scales[:, None]
    return np.repeat(scales, case.shape[1] // scales.shape[1], axis=1) if scales.ndim == 2 else scales


def _fake_quantize_range(case: Case) -> Results:
    x, code = piece_of_values(case), case.work.code
    return {"values": reference.fake_quantize(x, code), "step": float(reference.choose_qparams(x, code).scale)}


def measures(comparison: Any, case: Case) -> Array:
    """The error measures as an array, the last one the part of the elements that is clipped."""
    return np.array([*(getattr(comparison, name) for name in MEASURES), comparison.clipped / case.elements])


def _gguf_dequantize(case: Case) -> Results:
    encode = Case(case.work._replace(operation="gguf_quantize"), case.log2)
    return {"values": reference.gguf.dequantize(expected(encode)["codes"], case.work.code), "step": SCALE}


def _quantize_linear(case: Case) -> Results:
    code = case.work.code
    return {"codes": reference.quantize_linear(piece_of_values(case), scale(code), zero_point(code), code)}


def _fake_quantize(case: Case) -> Results:
    return _values(case, reference.fake_quantize(piece_of_values(case), qparams=piece_of_qparams(case)))


def _requantize(case: Case) -> Results:
    return {"codes": reference.requantize(piece_of_values(case), MULTIPLIER, ZERO_POINT, case.work.code)}


EXPECTED: dict[str, Callable[[Case], Results]] = {
    "minmax": lambda case: dict(zip(("lo", "hi"), reference.minmax(piece_of_values(case)), strict=True)),
    "quantize_linear": _quantize_linear,
    "dequantize_linear": _dequantize_linear,
    "dequantize": _dequantize,
    "quantize": _quantize,
    "fake_quantize": _fake_quantize,
    "fake_quantize_range": _fake_quantize_range,
    "requantize": _requantize,
    "compare": lambda case: {"measures": measures(reference.compare(piece_of_values(case), _quantized(case)), case)},
    "pack": lambda case: {"codes": reference.pack(piece_of_codes(case), case.work.code)},
    "unpack": lambda case: {"bytes": piece_of_codes(case)},
    "bitround": lambda case: {"values": reference.bitround(piece_of_values(case), keepbits=KEEPBITS), "step": SCALE},
    "gguf_quantize": lambda case: {"codes": reference.gguf.quantize(piece_of_values(case), case.work.code)},
    "gguf_dequantize": _gguf_dequantize,
}


@lru_cache(maxsize=4)
def expected(case: Case) -> Results:
    """The right results of the piece that the case's arrays repeat."""
    return EXPECTED[case.work.operation](case)


def differences(case: Case, results: Results, within: float) -> str:
    """Say what is wrong with the results of a contender: '' when they are as they have to be."""
    right = expected(data.period(case))
    if not results.keys() & right.keys():
        return f"no result among {', '.join(right)}"
    found = (_difference(name, results[name], right, within) for name in results if name in right)
    return "; ".join(filter(None, found))


def _difference(name: str, got: Any, right: Results, within: float) -> str:
    got, wanted = np.asarray(got), np.asarray(right[name])
    times, rest = divmod(got.size, max(1, wanted.size))
    if rest or not times:
        return f"{name}: shape {got.shape}, where repetitions of {wanted.shape} are right"
    if name == "measures":
        return "" if np.allclose(got, wanted, MEASURES_AGREE, 0) else f"measures: {got}, not {wanted}"
    pieces = got.reshape(times, -1)
    if within == EXACT:
        same = all(_bytes_of(piece) == _bytes_of(wanted) for piece in pieces)
        return "" if same else f"{name}: not the reference's, bit for bit"
    step = _step(name, right, wanted)
    return next(filter(None, (_beyond(name, piece, wanted.ravel(), step, within) for piece in pieces)), "")


def _bytes_of(array: Array) -> bytes:
    return np.ascontiguousarray(array).view(np.uint8).tobytes()


def _step(name: str, right: Results, wanted: Array) -> Any:
    """What one code makes in the result, element by element or as one number."""
    if name == "values":
        step = np.asarray(right["step"], np.float64)
        return step if step.size == 1 else np.broadcast_to(step, wanted.shape).ravel()
    return np.abs(wanted.ravel().astype(np.float64)) * 1e-4 if name in ("scale", "lo", "hi") else 1.0


def _beyond(name: str, got: Array, wanted: Array, step: Any, within: float) -> str:
    if np.array_equal(got, wanted):
        return ""
    far = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) / step
    ties = np.count_nonzero(far > SAME)
    if not far.max() <= within + SAME or (within == TIES and ties > max(1, TIES_AT_MOST * got.size)):
        return f"{name}: {ties} of {got.size} differ, by {far.max():.3g} steps at most"
    return ""
