"""The loop over elements that share their parameters, in registers and the last ones one by one."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.body import body_of, rebase
from fastq.kernels.load_store import prefetch_distance, prefetch_lanes, store_elements
from fastq.kernels.operands import register_lanes
from fastq.kernels.traversal.streaming import stream_by_lines


@traced
def _compute_elements(context, i, kind):
    """Return the results of a Vec or scalar type of elements from src[i] on, and the status."""
    return body_of(context[1]).compute(*context, i, kind)


@traced
def _prefetch_and_compute(context, i, vec):
    src = context[1].src
    prefetch_lanes(src, i + prefetch_distance(src), vec)
    return _compute_elements(context, i, vec)


_stream_lines = stream_by_lines(_prefetch_and_compute)


@traced
def _shared_parameters(operands):
    """Return the scale and the zero point of all elements where operands have them."""
    return (operands.scale[0], operands.zero_point[0]) if "scale" in operands._fields else None


@traced
def elements(spec, operands, args, units):
    """Write the results of elements start..stop; src and dst hold those from `origin` on."""
    operands = rebase(operands, args, units)
    src = operands.src
    dst = operands.dst
    i = units.start
    stop = units.stop
    status = 0
    context = (spec, operands, args, _shared_parameters(operands))
    vec = register_lanes(operands)
    if args.streaming:
        i, status = _stream_lines(spec, context, src, dst, i, stop, vec)
    while i <= stop - v.count(vec):
        results, reported = _prefetch_and_compute(context, i, vec)
        store_elements(dst, i, results)
        status |= reported
        i += v.count(vec)
    while i < stop:
        results, reported = _compute_elements(context, i, v.dtype_of(src))
        store_elements(dst, i, results)
        status |= reported
        i += 1
    return status
