"""What a kernel works on: typed operands, numeric arguments in registers, and the units that one call visits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from numba import from_dtype, types

from fastq.engine.jit import njit, specialize
from fastq.engine.simd import REGISTER_BITS, Vec, advance, cast_pointer, convert
from fastq.kernels.args import KERNEL_ARGS, STAGED, STRAIGHT, WHOLE_ROWS

KERNEL_ARGS_TYPE = from_dtype(KERNEL_ARGS)  # passed to a kernel as its address


class ElementOperands(NamedTuple):
    """Pointers of a conversion of elements, or the types that they point to."""

    src: Any
    dst: Any
    scale: Any
    zero_point: Any


class ErrorOperands(NamedTuple):
    """Pointers of a comparison, `approximation` being codes or values; sums of errors are added to `errors`."""

    src: Any
    approximation: Any
    scale: Any
    zero_point: Any
    errors: Any


class ReductionOperands(NamedTuple):
    """Pointers of a reduction of elements to minima and maxima."""

    src: Any
    lo: Any
    hi: Any


class HistogramOperands(NamedTuple):
    """Pointers of a histogram of elements: minima and maxima of float64, and counts, which are added to."""

    src: Any
    lo: Any
    hi: Any
    counts: Any


class PartialOperands(NamedTuple):
    """Pointers to partial minima and maxima, which are merged in place."""

    lo: Any
    hi: Any


class RangeOperands(NamedTuple):
    """Pointers of a conversion of ranges to scales and zero points."""

    lo: Any
    hi: Any
    scale: Any
    zero_point: Any


class SearchOperands(NamedTuple):
    """Pointers of a search for ranges, which are written in place of minima and maxima; of scales the type counts."""

    src: Any
    lo: Any
    hi: Any
    scale: Any


class CandidateOperands(NamedTuple):
    """Pointers of a sum of the errors of all candidates of a search, which are added to `errors`."""

    src: Any
    lo: Any
    hi: Any
    scale: Any
    errors: Any


class CopyOperands(NamedTuple):
    """Pointers of a conversion that has no parameters, or has them among the elements."""

    src: Any
    dst: Any


class WeightedOperands(NamedTuple):
    """Pointers of a conversion to blocks that the importance of columns has a part in."""

    src: Any
    dst: Any
    weights: Any


class Units(NamedTuple):
    """Units `start` to `stop` of the work, by the thread of a slot; src and dst begin with element `origin`."""

    origin: Any
    start: Any
    stop: Any
    slot: Any


class Args(NamedTuple):
    """`KERNEL_ARGS` in registers: from memory they would be read anew after each store, which might have changed it."""

    outer: Any
    length: Any
    inner: Any
    block: Any
    blocks: Any
    cycle: Any
    kept: Any
    lowest: Any
    highest: Any
    tensor: Any
    streaming: Any
    staging: Any
    whole_rows: Any
    outgrows_cache: Any
    repeat: Any
    chunk: Any
    size: Any
    partials: Any
    partial_stride: Any
    grid: Any
    candidates: Any


@njit
def load_args(args, compute):
    """Load numeric arguments, floats in the type to compute in."""
    indexing = (args.outer, args.length, args.inner, args.block, args.blocks, args.cycle, args.kept)
    floats = (convert(args.lowest, compute), convert(args.highest, compute), convert(args.tensor, compute))
    modes = (args.streaming == STRAIGHT, args.streaming == STAGED, args.streaming == WHOLE_ROWS)
    return Args(*indexing, *floats, *modes, *_others(args))


@njit
def without_streaming(args):
    """Return the same arguments for results that stay in the cache."""
    indexing = (args.outer, args.length, args.inner, args.block, args.blocks, args.cycle, args.kept)
    floats = (args.lowest, args.highest, args.tensor)
    return Args(*indexing, *floats, False, False, False, *_others(args))


@njit
def _others(args):
    sizes = args.chunk, args.size, args.partials, args.partial_stride, args.grid, args.candidates
    return args.outgrows_cache != 0, args.repeat, *sizes


@specialize
def rebase(operands, args, units):
    """Move pointers from `origin` to the beginning of the whole array, and to the partial results of the slot."""
    return _REBASED[operands.instance_class]


def _rebase_elements(operands, args, units):
    src, dst = advance(operands.src, -units.origin), advance(operands.dst, -units.origin)
    return ElementOperands(src, dst, operands.scale, operands.zero_point)


def _rebase_copy(operands, args, units):
    return CopyOperands(advance(operands.src, -units.origin), advance(operands.dst, -units.origin))


def _rebase_errors(operands, args, units):
    src, approximation = advance(operands.src, -units.origin), advance(operands.approximation, -units.origin)
    return ErrorOperands(src, approximation, operands.scale, operands.zero_point, operands.errors)


def _rebase_reduction(operands, args, units):
    first = units.slot * args.partial_stride
    return ReductionOperands(
        advance(operands.src, -units.origin), advance(operands.lo, first), advance(operands.hi, first)
    )


def _rebase_histogram(operands, args, units):
    first = units.slot * args.partial_stride
    lo, hi, counts = (
        advance(operands.lo, first),
        advance(operands.hi, first),
        advance(operands.counts, first * args.size),
    )
    return HistogramOperands(advance(operands.src, -units.origin), lo, hi, counts)


def _rebase_search(operands, args, units):
    return SearchOperands(advance(operands.src, -units.origin), operands.lo, operands.hi, operands.scale)


def _rebase_candidates(operands, args, units):
    errors = advance(operands.errors, units.slot * args.partial_stride)
    return CandidateOperands(advance(operands.src, -units.origin), operands.lo, operands.hi, operands.scale, errors)


_REBASED = {
    CandidateOperands: _rebase_candidates,
    CopyOperands: _rebase_copy,
    ElementOperands: _rebase_elements,
    ErrorOperands: _rebase_errors,
    HistogramOperands: _rebase_histogram,
    ReductionOperands: _rebase_reduction,
    SearchOperands: _rebase_search,
}


@specialize
def parameter_bits(operands):
    """Return pointers to the bits of scales and of zero points."""
    pointers = pointer_types(operands)
    scale, zero_point = (
        types.Integer.from_bitwidth(pointers[name].dtype.bitwidth, False) for name in ("scale", "zero_point")
    )
    return lambda operands: (cast_pointer(operands.scale, scale), cast_pointer(operands.zero_point, zero_point))


_WITH_PARAMETERS = {
    ElementOperands: lambda operands, scale, zero_point: ElementOperands(operands.src, operands.dst, scale, zero_point),
    ErrorOperands: lambda operands, scale, zero_point: ErrorOperands(
        operands.src, operands.approximation, scale, zero_point, operands.errors
    ),
}


@specialize
def with_parameters(operands, scale, zero_point):
    """Return the operands with parameters of the same types in other memory."""
    pointers, replaced = pointer_types(operands), njit(_WITH_PARAMETERS[operands.instance_class])
    scale_type, zero_type = (pointers[name].dtype for name in ("scale", "zero_point"))
    return lambda operands, scale, zero_point: replaced(
        operands, cast_pointer(scale, scale_type), cast_pointer(zero_point, zero_type)
    )


def pointer_types(operands: types.NamedTuple) -> dict[str, types.CPointer]:
    """Return the types of the pointers by their names."""
    return dict(zip(operands.fields, operands.types, strict=True))


def widest_bits(elements: Iterable[types.Type], scale: types.Type | None = None) -> int:
    """Return the bits of the widest of these types.

    A scale of fewer bits counts as the float32 that it is decoded to: blocks of 16 and 32 fill registers of no more.
    """
    widest: int = max(each.bitwidth for each in elements)
    return widest if scale is None else max(widest, scale.bitwidth, 32)


@specialize
def register_lanes(operands):
    """Vec type of elements of the first operand: of the widest of it, results and scales a register is full."""
    dtypes = {name: pointer.dtype for name, pointer in pointer_types(operands).items()}
    widest = widest_bits([dtypes[name] for name in ("src", "dst", "lo") if name in dtypes], dtypes.get("scale"))
    vec = Vec(operands.types[0].dtype, REGISTER_BITS // widest)
    return lambda operands: vec
