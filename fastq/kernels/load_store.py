"""From memory to lanes and back, whatever the form in memory: the one place that knows it."""

from __future__ import annotations

from typing import Any

from numba import types

from fastq.kernels.bitpack import Bits, fetch_code, pack_lanes, put_code, unpack_lanes
from fastq.kernels.minifloat import Minifloat, PowerOfTwo, decode, decode_power, encode, encode_power
from fastq.simd.vec import (
    LINE,
    Vec,
    by_type,
    cast_pointer,
    convert,
    load,
    prefetch,
    store,
    stream,
)


def _packed(dtype: Any) -> Bits | None:
    """Return the form of elements narrower than a byte."""
    if isinstance(dtype, Minifloat) and dtype.bitwidth < 8:
        return Bits(dtype.bitwidth, signed=False)
    return dtype if isinstance(dtype, Bits) else None


def group_size(where: Any) -> int:
    """Return the least number of elements of a pointer type that fills whole bytes."""
    packed = _packed(where.dtype)
    return packed.group if packed else 1


@by_type
def group_of(where: Any) -> Any:
    """The least number of elements that fills whole bytes."""
    group = group_size(where)
    return lambda where: group


@by_type
def fetch(where: Any, index: Any, kind: Any) -> Any:
    """Elements ``where[index]`` onwards, as many as `kind` has lanes: small floats as float32, the rest as they are."""
    dtype = where.dtype
    if isinstance(dtype, Minifloat):
        return lambda where, index, kind: decode(fetch_bits(where, index, kind), dtype)
    if isinstance(dtype, PowerOfTwo):
        return lambda where, index, kind: decode_power(fetch_bits(where, index, kind), dtype)
    return lambda where, index, kind: fetch_bits(where, index, kind)


@by_type
def fetch_bits(where: Any, index: Any, kind: Any) -> Any:
    """Elements ``where[index]`` onwards, as many as `kind` has lanes: small floats as their bits."""
    dtype, packed = where.dtype, _packed(where.dtype)
    n = getattr(kind.instance_type, "n", 0) if isinstance(kind, types.TypeRef) else 0
    if packed is not None and n:
        vec, bits = Vec(types.uint8, n * packed.bitwidth // 8), packed.bitwidth
        return lambda where, index, kind: unpack_lanes(
            load(cast_pointer(where, types.uint8), index * bits >> 3, vec), packed
        )
    if packed is not None:
        return lambda where, index, kind: fetch_code(cast_pointer(where, types.uint8), index, packed)
    if isinstance(dtype, Minifloat | PowerOfTwo):
        word = dtype.bits
        held = Vec(word, n) if n else word
        return lambda where, index, kind: load(cast_pointer(where, word), index, held)
    return lambda where, index, kind: load(where, index, kind)


@by_type
def prefetch_lanes(where: Any, index: Any, kind: Any) -> Any:
    """Prefetch the lines of ``where[index]`` onwards that the lanes of `kind` fill."""
    n = kind.instance_type.n
    if n * where.dtype.bitwidth <= 8 * LINE:
        return lambda where, index, kind: prefetch(where, index)
    half, rest = Vec(where.dtype, n // 2), n // 2

    def both(where, index, kind):  # type: ignore[no-untyped-def]
        prefetch_lanes(where, index, half)
        prefetch_lanes(where, index + rest, half)

    return both


def _putting(write: Any, doc: str) -> Any:
    """Make `put` on `store` or `stream`."""

    def put(where: Any, index: Any, value: Any) -> Any:
        dtype, packed = where.dtype, _packed(where.dtype)
        if packed is not None and isinstance(value, Vec):
            bits = packed.bitwidth
            return lambda where, index, value: write(
                cast_pointer(where, types.uint8), index * bits >> 3, pack_lanes(value, packed)
            )
        if packed is not None:
            return lambda where, index, value: put_code(cast_pointer(where, types.uint8), index, value, packed)
        if isinstance(dtype, Minifloat | PowerOfTwo):
            word = dtype.bits
            return lambda where, index, value: write(cast_pointer(where, word), index, value)
        return lambda where, index, value: write(where, index, value)

    put.__doc__ = doc
    return by_type(put)


put = _putting(
    store,
    """Write lanes to ``where[index]`` onwards; they are in the form that `held` gives.

    Elements that share bytes are written group by group, from a whole byte on, or one after the other.
    """,
)
put_streaming = _putting(stream, "`put` past the cache, of lanes to an address aligned to them, or to lines.")


@by_type
def held(value: Any, where: Any) -> Any:
    """Lanes, in range, as `put` takes them for a pointer: floats rounded where the elements are small floats."""
    dtype = where.dtype
    if isinstance(dtype, Minifloat):
        return lambda value, where: encode(value, dtype)
    if isinstance(dtype, PowerOfTwo):
        return lambda value, where: encode_power(value, dtype)
    target = dtype.held if isinstance(dtype, Bits) else dtype
    return lambda value, where: convert(value, target)
