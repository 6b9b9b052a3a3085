"""The work on elements: a body defines it once for all ways to visit them, which are in traversal/.

A body belongs to a class of operands, whose module adds it to `BODIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fastq.engine import simd as v
from fastq.engine.jit import traced


class Reduction(NamedTuple):
    """The rules that merge lanes of elements into results, which traversals keep in registers or in memory.

    A state is a tuple of lanes, one for each result: for each pointer of the operands except that to elements. An
    element may be added twice: where rows and runs do not fill registers, the last register overlaps the one before.
    """

    nothing: Any  # ``f(x)``: the state of no elements, in as many lanes as x has
    add: Any  # ``f(x, state)``: the state with the elements x
    merge: Any  # ``f(state, other)``: the state of the elements of both
    finish: Any = None  # ``f(operands, p, state, nans)``: write results; some lanes met NaN. None: they are the state


class Body(NamedTuple):
    """The work on elements."""

    # ``f(spec, operands, args, p, i, end)``: visit the run i..end, whose parameters have index p; return the status
    run: Any = None
    # ``f(spec, operands, args, p, i, row_end, limit)``: visit runs to `limit` if they are short enough, from i on,
    # where a whole block begins; its row ends at `row_end`. Return how many, where the next one begins and its row
    # ends, and the status
    batch: Any = None
    # ``f(spec, operands)``, of types: how many runs are visited together
    batch_size: Callable[[Any, Any], int] = lambda spec, operands: 1
    # ``f(spec, operands, args, p, i, end)``: visit i..end, a piece of a row; element j has parameter p + j. None: it is
    # visited in registers
    row: Any = None
    # ``f(spec, operands, args, shared, i, kind)``: return the results of elements from i on, a Vec or scalar type of
    # them, as `store_elements` takes them, and the status; `shared` are scale and zero point of all, if there are any
    compute: Any = None
    reduction: Reduction | None = None  # None where parameters are given, or results are as many as elements
    # results, besides those of a reduction, that each thread has for itself, and the argument that tells how many of
    # them belong to a parameter; "" stands for one
    partials: Mapping[str, str] = MappingProxyType({})


BODIES: dict[type, Body] = {}


def body_of(operands: Any) -> Body:
    """Return the body of the Numba type of operands, from the last lines of the module that `with_body` names."""
    return BODIES[operands.instance_class]


def reduction_of(operands: Any) -> Any:
    """Return the reduction of the Numba type of operands, or None without one."""
    return body_of(operands).reduction


_ELEMENTS = "src", "dst", "approximation", "following"


@traced
def rebase(operands, args, units):
    """Move pointers from `origin` to the beginning of the whole array, and to the partial results of the slot."""
    partials = partials_of(operands)
    first = units.slot * args.partial_stride
    moved = {name: v.advance(getattr(operands, name), -units.origin) for name in operands._fields if name in _ELEMENTS}
    for name, count in partials.items():
        moved[name] = v.advance(getattr(operands, name), first * getattr(args, count) if count else first)
    return operands._replace(**moved)


def partials_of(operands: Any) -> Mapping[str, str]:
    """Return the partial results of the Numba type of operands, see `Body`."""
    body = body_of(operands)
    return body.partials if body.reduction is None else dict.fromkeys(results_of(operands), "")


def results_of(operands: Any) -> tuple[str, ...]:
    """Return the names of the results of a reduction."""
    return tuple(name for name in operands.fields if name != "src")


@traced
def visit_run(spec, operands, args, p, i, end):
    """Visit the run i..end, whose parameters have index p; return the status."""
    return body_of(operands).run(spec, operands, args, p, i, end)


@traced
def visit_batch(spec, operands, args, p, i, row_end, limit):
    """Visit short runs together, see `Body`; no runs if the body does not, or if there are no short runs."""
    batch = body_of(operands).batch
    return batch(spec, operands, args, p, i, row_end, limit) if batch and spec.together else (0, i, row_end, 0)


@traced
def batch_size(spec, operands):
    """Return how many runs `visit_batch` visits together."""
    return body_of(operands).batch_size(spec, operands)


@traced
def with_memory(operands, room):
    """Return operands whose results of a reduction, or else parameters, are in other memory."""
    names = results_of(operands) if reduction_of(operands) else ("scale", "zero_point")
    pointers = [
        v.cast_pointer(memory, getattr(operands, name).dtype) for name, memory in zip(names, room, strict=False)
    ]
    return operands._replace(**dict(zip(names, pointers, strict=True)))


# --- the reduction of operands, for loops -----------------------------------------------------------------------------


@traced
def load_state(operands, p, kind):
    """Load the state with index p and on, as many as `kind` has lanes."""
    results = [getattr(operands, name) for name in results_of(operands)]
    return tuple([v.load(pointer, p, v.lanes_like(kind, pointer)) for pointer in results])


@traced
def save_state(operands, p, state):
    """Write a state back."""
    for name, lanes in zip(results_of(operands), state, strict=True):
        v.store(getattr(operands, name), p, lanes)


@traced
def finish_state(operands, p, state, nans):
    """Write a state back as a result: as the reduction says, which knows what becomes of lanes that met NaN."""
    finish = reduction_of(operands).finish
    if finish:
        finish(operands, p, state, nans)
    else:
        save_state(operands, p, state)


@traced
def add_to_state(operands, x, state):
    """Return the state with the elements x."""
    return reduction_of(operands).add(x, state)


@traced
def merge_states(operands, state, other):
    """Return the state of the elements of both."""
    return reduction_of(operands).merge(state, other)
