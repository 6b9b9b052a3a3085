"""The right results, from fastq.reference, and how the results of a contender differ from them.

fastq has to equal the reference in every bit. A peer may take the other code where a value lies between two, which is
what multiplying by the reciprocal of the scale does; one with arithmetic of its own says within how many steps it is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fastq import QParams, QuantizedArray, reference

from . import data
from .calls import SCALE, Array, Operands, Results, call_of, results_of
from .cases import OPERATIONS, Case

EXACT = 0.0  # every byte
TIES = 1.0  # one step, at some ties
SAME = 0.01  # steps that arithmetic in another order makes
TIES_AT_MOST = 1e-3  # of all elements
MEASURES_AGREE = 1e-6


def named(result: Any, case: Case) -> Results:
    """What a call returned, by the names of the table; the clipped part of the elements is the last of the measures."""
    found = results_of(result)
    if "measures" in found:
        return {"measures": np.append(found["measures"], found["clipped"] / case.elements)}
    written = OPERATIONS[case.work.operation].written.split()[:1]
    return {written[0]: found["result"]} if "result" in found else found


@lru_cache(maxsize=4)
def expected(case: Case) -> Results:
    """The right results of the piece that the case's arrays repeat, and what a step makes in values."""
    o = data.piece(case)
    result = call_of(reference, o)()
    found = named(result, case)
    if isinstance(result, QuantizedArray):
        found |= {"values": reference.dequantize(result), "step": _spread(replace(o, qparams=result.qparams))}
        if case.work.symmetric:  # says nothing
            del found["zero_point"]
    elif "values" in found:
        own = _chosen(o) if o.function == "fake_quantize" else None
        p = o.qparams or own
        found["step"] = SCALE if p is None else _spread(replace(o, qparams=p))
    return found


def _chosen(o: Operands) -> QParams:
    return reference.choose_qparams(o.first, o.code, **o.granularity, symmetric=o.symmetric)


def _spread(o: Operands) -> Array:
    """The scale of each element."""
    return np.broadcast_to(o.beside[0].astype(np.float32), o.grouped_shape).reshape(o.shape)


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
        same = all(piece.tobytes() == wanted.tobytes() for piece in pieces)
        return "" if same else f"{name}: not the reference's, bit for bit"
    step = _step(name, right, wanted)
    return next(filter(None, (_beyond(name, piece, wanted.ravel(), step, within) for piece in pieces)), "")


def _step(name: str, right: Results, wanted: Array) -> Any:
    """What one code makes in the result, element by element or as one number."""
    if name == "values":
        return np.broadcast_to(np.asarray(right["step"], np.float64), wanted.shape).ravel()
    return np.abs(wanted.ravel().astype(np.float64)) * 1e-4 if name in ("scale", "lo", "hi") else 1.0


def _beyond(name: str, got: Array, wanted: Array, step: Any, within: float) -> str:
    if np.array_equal(got, wanted):
        return ""
    far = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) / step
    ties = np.count_nonzero(far > SAME)
    if not far.max() <= within + SAME or (within == TIES and ties > max(1, TIES_AT_MOST * got.size)):
        return f"{name}: {ties} of {got.size} differ, by {far.max():.3g} steps at most"
    return ""
