"""A portable vector type for Numba: every operation for a Vec and, under the same name, for a scalar.

A ``Vec(dtype, n)`` is n lanes held in registers, an LLVM vector that code generation splits or joins to fit the CPU.
Memory is reached through typed pointers. A formula written with these names is one function for both::

    @njit
    def square_sum(x, y):
        return fma(x, x, y * y)      # float32, float64 or a Vec of either

Operators ``+ - * / & | ^ ~ << >> < <= > >= == !=`` act lane by lane where LLVM has them for the lane type (no ``/``
for integers, no ``&`` for floats), and a scalar operand is broadcast. Comparisons give a mask, ``Vec(boolean, n)``.
Shuffles (`lower`, `upper`, `even`, `odd`, `join`) take a Vec only. Nothing here has fast-math flags: each operation is
the IEEE one, with the NaN rules stated.
"""

from fastq.simd.arithmetic import (
    absolute,
    constant,
    copysign,
    either_nan,
    floor,
    fma,
    full,
    full_like,
    is_nan,
    maximum,
    minimum,
    rint,
    select,
    trunc,
)
from fastq.simd.atomics import atomic_load, atomic_store, compare_exchange, exchange, fetch_add, fetch_or, pause
from fastq.simd.conversion import bitcast, bounded_to_integer, convert, round_to_int32
from fastq.simd.memory import (
    address_of,
    advance,
    cast_pointer,
    fence,
    load,
    misalignment,
    pointer,
    prefetch,
    scratch,
    store,
    stream,
)
from fastq.simd.shuffles import (
    any_lane,
    bits_to_mask,
    even,
    first,
    join,
    lower,
    mask_to_bits,
    odd,
    reduce_max,
    reduce_min,
    reduce_sum,
    upper,
)
from fastq.simd.vector import (
    LINE,
    REGISTER_BITS,
    Element,
    ElementModel,
    Vec,
    bits_of,
    count,
    dtype_of,
    emit_shuffle,
    is_float,
    lane_count,
    lane_type,
    lanes,
    lanes_like,
    lanes_of_line,
)

__all__ = [
    "LINE",
    "REGISTER_BITS",
    "Element",
    "ElementModel",
    "Vec",
    "absolute",
    "address_of",
    "advance",
    "any_lane",
    "atomic_load",
    "atomic_store",
    "bitcast",
    "bits_of",
    "bits_to_mask",
    "bounded_to_integer",
    "cast_pointer",
    "compare_exchange",
    "constant",
    "convert",
    "copysign",
    "count",
    "dtype_of",
    "either_nan",
    "emit_shuffle",
    "even",
    "exchange",
    "fence",
    "fetch_add",
    "fetch_or",
    "first",
    "floor",
    "fma",
    "full",
    "full_like",
    "is_float",
    "is_nan",
    "join",
    "lane_count",
    "lane_type",
    "lanes",
    "lanes_like",
    "lanes_of_line",
    "load",
    "lower",
    "mask_to_bits",
    "maximum",
    "minimum",
    "misalignment",
    "odd",
    "pause",
    "pointer",
    "prefetch",
    "reduce_max",
    "reduce_min",
    "reduce_sum",
    "rint",
    "round_to_int32",
    "scratch",
    "select",
    "store",
    "stream",
    "trunc",
    "upper",
]
