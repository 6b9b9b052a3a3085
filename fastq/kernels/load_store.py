"""Load elements into lanes and store them, in any storage format: the one place that knows all of them."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import specialize
from fastq.kernels.bitpack import (
    Bits,
    LowBits,
    from_low_bits,
    load_code,
    pack_lanes,
    store_code,
    unpack_lanes,
)
from fastq.kernels.minifloat import Minifloat, PowerOfTwo, decode, decode_power, encode, encode_power
from fastq.system import tuning

PREFETCH = tuning.current().prefetch


@specialize
def prefetch_distance(where):
    """How far ahead to prefetch from a pointer whose elements are converted, in elements."""
    return PREFETCH if where.dtype.bitwidth > 8 else tuning.current().prefetch_codes


def _packed(dtype) -> Bits | None:
    """Return the type of packed codes whose bits elements narrower than a byte are, None of wider elements."""
    if isinstance(dtype, Minifloat) and dtype.bitwidth < 8:
        return Bits(dtype.bitwidth, signed=False)
    return dtype if isinstance(dtype, Bits) else None


def group_size(where) -> int:
    """Return the least number of elements of a pointer type that fills whole bytes."""
    packed = _packed(where.dtype)
    return packed.group if packed else 1


@specialize
def group_of(where):
    """Return the least number of elements that fills whole bytes."""
    return group_size(where)


@specialize
def load_elements(where, index, kind):
    """Load elements from ``where[index]`` on, as many as `kind` has lanes; minifloats are decoded to float32."""
    dtype = where.dtype
    if isinstance(dtype, Minifloat):
        return lambda where, index, kind: decode(load_bits(where, index, kind), dtype)
    if isinstance(dtype, PowerOfTwo):
        return lambda where, index, kind: decode_power(load_bits(where, index, kind), dtype)
    return lambda where, index, kind: load_bits(where, index, kind)


@specialize
def load_bits(where, index, kind):
    """Load elements from ``where[index]`` on, as many as `kind` has lanes; minifloats as their bits."""
    dtype, packed = where.dtype, _packed(where.dtype)
    n = getattr(kind.instance_type, "n", 0) if isinstance(kind, types.TypeRef) else 0
    if packed is not None and n:
        vec, bits = v.Vec(types.uint8, n * packed.bitwidth // 8), packed.bitwidth
        return lambda where, index, kind: unpack_lanes(
            v.load(v.cast_pointer(where, types.uint8), index * bits >> 3, vec), packed
        )
    if packed is not None:
        return lambda where, index, kind: load_code(v.cast_pointer(where, types.uint8), index, packed)
    if isinstance(dtype, LowBits):
        lanes = v.Vec(types.uint8, n) if n else types.uint8
        return lambda where, index, kind: from_low_bits(v.load(v.cast_pointer(where, types.uint8), index, lanes), dtype)
    if isinstance(dtype, Minifloat | PowerOfTwo):
        word = dtype.bits
        words = v.Vec(word, n) if n else word
        return lambda where, index, kind: v.load(v.cast_pointer(where, word), index, words)
    return lambda where, index, kind: v.load(where, index, kind)


@specialize
def prefetch_lanes(where, index, kind):
    """Prefetch the cache lines that the lanes of `kind` fill from ``where[index]`` on."""
    n = kind.instance_type.n
    if n * where.dtype.bitwidth <= 8 * v.LINE:
        return lambda where, index, kind: v.prefetch(where, index)
    half, rest = v.Vec(where.dtype, n // 2), n // 2

    def both(where, index, kind):
        prefetch_lanes(where, index, half)
        prefetch_lanes(where, index + rest, half)

    return both


def _storing(write, doc: str):
    """Make `store_elements` on `store` or `stream`."""

    def store_elements(where, index, value):
        dtype, packed = where.dtype, _packed(where.dtype)
        if packed is not None and isinstance(value, v.Vec):
            bits = packed.bitwidth
            return lambda where, index, value: write(
                v.cast_pointer(where, types.uint8), index * bits >> 3, pack_lanes(value, packed)
            )
        if packed is not None:
            return lambda where, index, value: store_code(v.cast_pointer(where, types.uint8), index, value, packed)
        if isinstance(dtype, Minifloat | PowerOfTwo):
            word = dtype.bits
            return lambda where, index, value: write(v.cast_pointer(where, word), index, value)
        return lambda where, index, value: write(where, index, value)

    store_elements.__doc__ = doc
    return specialize(store_elements)


store_elements = _storing(
    v.store,
    """Store lanes to ``where[index]`` onwards, as `encode_as` returns them.

    Elements that share bytes are stored in whole groups from a whole byte on, or one by one in order.
    """,
)
_stream_lines = _storing(
    v.stream, "`store_elements` past the cache; the address is aligned to the lanes, or to a line."
)
_stream_granules = _storing(v.stream_granules, "`store_elements` past the cache; the address begins a granule.")


@specialize
def stream_elements(where, index, value):
    """Do `store_elements` past the cache; the address begins a granule for `in_granules`, else a line."""
    write = _stream_granules if in_granules(where.dtype) else _stream_lines
    return lambda where, index, value: write(where, index, value)


def in_granules(dtype) -> bool:
    """Return whether elements may be streamed a granule at a time: of narrower ones LLVM stores some into the cache.

    It merges what narrows them with a store of a granule, which is then no streaming one, 20 times slower beside others
    of the same line.
    """
    return int(dtype.bitwidth) >= 32


@specialize
def encode_as(value, where):
    """Convert lanes, in range, to the elements of a pointer, as `store_elements` takes them; minifloats are rounded."""
    dtype = where.dtype
    if isinstance(dtype, Minifloat):
        return lambda value, where: encode(value, dtype)
    if isinstance(dtype, PowerOfTwo):
        return lambda value, where: encode_power(value, dtype)
    target = dtype.code_type if isinstance(dtype, Bits) else dtype
    return lambda value, where: v.convert(value, target)
