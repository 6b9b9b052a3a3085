"""Short rows with the same parameters, such as pixels, that a loop visits as one: their parameters side by side.

How many are merged, says `rows_as_one` of fastq/plan/policy.py.
"""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import body
from fastq.kernels.operands import parameter_bits
from fastq.kernels.sizes import MOST_ROW

_MOST_JOINED = 2 * MOST_ROW  # elements of rows taken as one: of shorter ones as many as fill it
_COPIED = 16  # parameters that are copied at a time, up to this many too many
PAGE = 4096  # bytes
ROOM = (_MOST_JOINED + _COPIED) * 8  # bytes of their scales, or zero points, or minima, or maxima
MEMORY = PAGE + 2 * ROOM


@traced
def place_side_by_side(spec, operands, args, p, rows, room):
    """Return operands whose parameters, those from p on, are repeated in a buffer for each of the merged rows.

    Results begin with the identities of the reduction, see `merge_rows`.
    """
    place = _place_results if body.reduction_of(operands) else _place_parameters
    return place(operands, args, p, rows, room)


@traced
def _place_results(operands, args, p, rows, room):
    """Return operands whose results are in a buffer, where they begin as those of no elements."""
    if args.merged == 1:
        return operands
    placed = body.with_memory(operands, room)
    identity = identity_like(operands, body.load_state(placed, 0, _copied_lanes(operands[1]))[0])
    for k in range(0, rows * args.inner, _COPIED):
        body.save_state(placed, k, identity)
    return placed


@traced
def identity_like(operands, x):
    """Return the identity of the reduction, the state of no elements, in as many lanes as x has."""
    return body.reduction_of(operands).nothing(x)


@traced
def _place_parameters(operands, args, p, rows, room):
    """Return operands whose parameters, those from p on, are in a buffer, once for each of the merged rows."""
    if args.merged == 1:
        return operands
    scale, zero_point = parameter_bits(operands)
    _repeat(v.advance(scale, p), room[0], args.inner, rows)
    _repeat(v.advance(zero_point, p), room[1], args.inner, rows)
    return body.with_memory(operands, room)


@traced
def _repeat(src, room, n, rows):
    """Store the n elements of src `rows` times in succession; up to `_COPIED` more may be written after them."""
    vec = _copied_lanes(src)
    at = src
    dst = v.cast_pointer(room, v.dtype_of(src))
    if _reads_next_page(src, n):
        for k in range(n):
            dst[k] = src[k]
        at = dst
    if n <= _COPIED:  # from a register: decision D38
        some = v.load(at, 0, vec)
        for row in range(rows):
            v.store(dst, row * n, some)
        return
    for row in range(rows):
        for k in range(0, n, _COPIED):
            v.store(dst, row * n + k, v.load(at, k, vec))


@traced
def _reads_next_page(pointer, n):
    """Return whether loading n elements in groups of `_COPIED` touches a page after the last element's.

    That page may be unmapped.
    """
    size = v.bits_of(pointer) // 8
    end = v.address_of(pointer) + n * size
    whole = v.address_of(pointer) + -(-n // _COPIED) * _COPIED * size
    return (end - 1) // PAGE != (whole - 1) // PAGE


@traced
def _copied_lanes(pointer):
    """Vec type of as many elements of a pointer as are copied at a time."""
    return v.Vec(pointer.dtype, _COPIED)


@traced
def merge_rows(operands, args, p, rows, placed):
    """Merge the results of rows side by side into those from p on."""
    if body.reduction_of(operands):
        _merge_rows(operands, args, p, rows, placed)


@traced
def _merge_rows(operands, args, p, rows, placed):
    """Merge the second half of the rows into the first, as long as halves are whole groups; then row after row.

    Of 24 rows of 4 elements 12 are merged into the other 12. Half of these have 24 elements, which is no multiple of
    16, so these 12 are merged one after the other. `placed` are the operands of `place_side_by_side`.
    """
    if args.merged == 1:
        return
    n = args.inner
    half = rows // 2
    one = v.dtype_of(operands[1])
    vec = _copied_lanes(operands[1])
    while rows == 2 * half and half * n % _COPIED == 0:
        for k in range(0, half * n, _COPIED):
            both = body.load_state(placed, half * n + k, vec), body.load_state(placed, k, vec)
            body.save_state(placed, k, body.merge_states(operands, *both))
        rows = half
        half = half // 2
    for k in range(0, n, _COPIED):
        state = body.load_state(placed, k, vec)
        for row in range(1, rows):
            state = body.merge_states(operands, body.load_state(placed, row * n + k, vec), state)
        body.save_state(placed, k, state)
    for k in range(n):
        body.save_state(
            operands,
            p + k,
            body.merge_states(operands, body.load_state(placed, k, one), body.load_state(operands, p + k, one)),
        )
