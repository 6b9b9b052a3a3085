"""What an operation calls: the function of fastq, and what gives the same by the reference or by the contract's words.

Most have one name in `fastq` and in `fastq.reference`. The others are pairs: objects of which several methods belong
together, and parts of arrays, which are parts of the values of the whole.
"""

import inspect
import itertools
import math
import pickle
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import unpacked
from fuzzing.arrays import Granularity

import fastq
from fastq import QuantizedArray, reference
from fastq.reference.calibration import edges_of

# --- calibrators ------------------------------------------------------------------------------------------------------


def _through_a_file(calibrator):
    with tempfile.TemporaryDirectory() as folder:
        calibrator.save(Path(folder, "state"))
        return fastq.Calibrator.load(Path(folder, "state"))


# what a calibrator is sent through between pieces and merges
KEPT_AS = {
    "object": lambda calibrator: calibrator,
    "pickle": lambda calibrator: pickle.loads(pickle.dumps(calibrator)),
    "file": _through_a_file,
}


def _calibrate(pieces, dtype, *, parts, kept_as, method, **options):
    """State, ranges and parameters of pieces that several calibrators see, which are merged in the end."""
    calibrators = [fastq.Calibrator(dtype, **options) for _ in range(max(parts) + 1)]
    for piece, part in zip(pieces, parts, strict=True):
        calibrators[part].update(piece)
        calibrators[part] = KEPT_AS[kept_as](calibrators[part])
    whole, *others = calibrators
    for k, other in enumerate(others):
        if k % 2:
            whole.merge(other)
        else:
            whole |= other
    name, how = method
    state = whole.count, whole.minimum, whole.maximum, whole.counts, whole.edges
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "bins=.* can't tell the")  # contract 17.9
        return state, whole.clipping_range(name, **how), whole.qparams(name, **how), whole.importance()


def _calibrate_plainly(pieces, dtype, *, parts, kept_as, method, **options):
    """The same of one calibrator that keeps all elements."""
    calibrator = reference.Calibrator(dtype, **options)
    for piece in pieces:
        calibrator.update(piece)
    lo, hi, counts = calibrator.histogram()
    edges = np.empty((*lo.shape, 2 * calibrator.bins + 1))
    for part in np.ndindex(lo.shape):
        edges[part] = edges_of(float(lo[part]), float(hi[part]), calibrator.bins)
    name, how = method
    ends = (each.astype(calibrator.compute) for each in (lo, hi))
    state = np.asarray(counts.sum(axis=-1)), *ends, counts, edges
    return state, calibrator.clipping_range(name, **how), calibrator.qparams(name, **how), calibrator.importance()


# --- nested scales ----------------------------------------------------------------------------------------------------


def _nest_scale(scale, **options):
    nested = fastq.nest_scale(scale, **options)
    return nested.quantized, nested.offset, nested.dequantize()


def _without_payload(values):
    """Values with one NaN in place of all."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


# --- parts of arrays --------------------------------------------------------------------------------------------------


def _one_an_element(q):
    return reference.unpack(q.codes, q.dtype, shape=q.shape) if q.dtype.packed else q.codes


def _as_stored(codes, qtype):
    return reference.pack(codes, qtype) if qtype.packed else codes


def _of_array(q):
    """What is compared of an array."""
    return q.shape, q.dequantize(), q.codes, q.unpacked()


def _of_values(values, codes, qtype):
    """The same for values and unpacked codes."""
    return values.shape, np.asarray(values), np.asarray(_as_stored(codes, qtype)), np.asarray(codes)


def _values_at(q, index):
    """Values at an index of every axis: only the parameters there have to be valid, elements of them or not."""
    if q.scale.size == 1:
        return reference.dequantize(q)[index]
    axes = range(len(q.shape)) if q.block_size else _granularity(q).kept(len(q.shape))
    own = np.unique(
        _granularity(q).owners(q.shape)[tuple(item if a in axes else slice(None) for a, item in enumerate(index))]
    )
    scale = np.ones_like(q.scale)
    scale.flat[own] = q.scale.reshape(-1)[own]
    return reference.dequantize(replace(q, qparams=q.qparams.with_values(scale, q.zero_point)))[index]


def _granularity(q):
    return Granularity(q.axis, q.block_size)


def _part_plainly(q, index):
    index = _of_every_axis(index, len(q.shape))
    for item, n in zip(index, q.shape, strict=True):
        if isinstance(item, int | np.integer) and not -n <= item < n:
            raise IndexError("index is out of bounds")
    if sum(isinstance(item, list | np.ndarray) for item in index) > 1:
        raise TypeError("index has two lists")
    if q.block_size and _cuts_a_block(q, index[q.axis]):
        raise ValueError("index cuts a block")
    return _of_values(_values_at(q, index), _one_an_element(q)[(*index, ...)], q.dtype)


def _of_every_axis(index, ndim):
    """An index with slices of whole axes in place of '...'."""
    at = next((k for k, item in enumerate(index) if item is Ellipsis), None)
    whole = (slice(None),) * (ndim - len(index) + 1)
    return index if at is None else (*index[:at], *whole, *index[at + 1 :])


def _cuts_a_block(q, taken):
    """Whether an index along the axis of blocks is not a slice, or a slice that does not begin with a block."""
    if not isinstance(taken, slice):
        return True
    places = range(q.shape[q.axis])[taken]
    return bool(places) and (places.start % q.block_size != 0 or places.step != 1)


def _reshape_plainly(q, shape):
    if not _keeps_parameters(q, shape):
        raise ValueError("shape joins what has parameters of its own")
    return _of_values(reference.dequantize(q).reshape(shape), _one_an_element(q).reshape(shape), q.dtype)


def _keeps_parameters(q, shape):
    """Whether each parameter belongs to whole indices of some axes of another shape, or to whole blocks of it."""
    if q.axis is None or (q.scale.size == 1 and not q.block_size):
        return True
    axes = _granularity(q).kept(len(q.shape))
    if q.block_size:
        (axis,) = axes
        inner, length = math.prod(q.shape[axis + 1 :]), q.shape[axis]
        ends = [n for a, n in enumerate(shape) if math.prod(shape[a + 1 :]) == inner]
        return any(n == length or not (n % q.block_size or length % q.block_size) for n in ends)
    owners = _granularity(q).owners(q.shape).reshape(shape)
    varying = [a for a in range(len(shape)) if (np.diff(owners, axis=a) != 0).any()]
    return math.prod(shape[a] for a in varying) == math.prod(q.shape[a] for a in axes)


def _explained(value):
    return _without_payload(np.asarray(value)), type(value).__name__


# --- all --------------------------------------------------------------------------------------------------------------

# the functions of `fastq` and of the reference, of operations that have not one name in both
_PAIRS = {
    "dequantize_method": (QuantizedArray.dequantize, reference.dequantize),
    "bit_information": [
        lambda *args, api=api, **options: api.bit_information(*args, **options).counts for api in (fastq, reference)
    ],
    "calibrate": (_calibrate, _calibrate_plainly),
    "nest_scale": (_nest_scale, reference.nest_scale),
    "unpack_array": (lambda *args, **options: fastq.xarray.unpack_array(*args, **options), unpacked.unpack_array),
    "part": (lambda q, index: _of_array(q[index]), _part_plainly),
    "reshape": (lambda q, shape: _of_array(q.reshape(shape)), _reshape_plainly),
    "explain": (lambda q, index: _explained(q.explain(index).value), lambda q, index: _explained(_values_at(q, index))),
}


def function_of(api, operation):
    """The function of an API, `fastq` or `fastq.reference`, that does an operation."""
    if pair := _PAIRS.get(operation):
        return pair[api is reference]
    name = operation.removesuffix("_given")
    return getattr(api.gguf, name[5:]) if name.startswith("gguf_") else getattr(api, name)


def fast(operation, *args, **options):
    """Do an operation by `fastq`."""
    return function_of(fastq, operation)(*args, **options)


def plain(operation, *args, **options):
    """Do an operation by `fastq.reference`."""
    return function_of(reference, operation)(*args, **options)


def arguments_of(operation):
    """Names of arguments that errors of an operation may name."""
    plain = getattr(fastq, operation.removesuffix("_given"), None)  # what a call by name is that takes anything
    functions = [plain, *(function_of(api, operation) for api in (fastq, reference))]
    found = {name for each in functions if each for name in inspect.signature(each).parameters} - {"args", "options"}
    if operation == "calibrate":
        methods = (fastq.Calibrator, fastq.Calibrator.update, fastq.Calibrator.clipping_range)
        found |= {"Calibrator", *itertools.chain(*(inspect.signature(method).parameters for method in methods))}
    return found
