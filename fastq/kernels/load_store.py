"""Load elements into lanes and store them, in any storage format: the one place that knows all of them."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import bitpack
from fastq.kernels.minifloat import Minifloat, PowerOfTwo, decode, decode_power, encode, encode_power

# elements between what is loaded and what is prefetched
prefetch_ahead = v.tuned("prefetch")
_prefetch_codes = v.tuned("prefetch_codes")


_BITS = Minifloat | PowerOfTwo  # elements that are loaded and stored as integers


@traced
def prefetch_distance(pointer):
    """Return how far ahead to prefetch from a pointer whose elements are converted, in elements."""
    return prefetch_ahead() if pointer.dtype.bitwidth > 8 else _prefetch_codes()


def _packed_type(dtype) -> bitpack.Bits | None:
    """Return the type of packed codes whose bits elements narrower than a byte are, None of wider elements."""
    if isinstance(dtype, Minifloat) and dtype.bitwidth < 8:
        return bitpack.Bits(dtype.bitwidth, signed=False)
    return dtype if isinstance(dtype, bitpack.Bits) else None


def group_size(pointer) -> int:
    """Return the least number of elements of a pointer type that fills whole bytes."""
    packed = _packed_type(pointer.dtype)
    return packed.group if packed else 1


group_of = traced(group_size)


@traced
def load_elements(pointer, index, kind):
    """Load elements from ``pointer[index]`` on, as many as `kind` has lanes; minifloats are decoded to float32."""
    bits = load_bits(pointer, index, kind)
    if isinstance(pointer.dtype, Minifloat):
        return decode(bits, pointer.dtype)
    return decode_power(bits, pointer.dtype) if isinstance(pointer.dtype, PowerOfTwo) else bits


@traced
def load_bits(pointer, index, kind):
    """Load elements from ``pointer[index]`` on, as many as `kind` has lanes, without decoding floats.

    Packed codes get a lane of 8 bits each; minifloats are integers, their bits.
    """
    dtype = pointer.dtype
    packed = _packed_type(pointer.dtype)
    octets = v.cast_pointer(pointer, types.uint8)
    if packed is not None and not isinstance(kind, v.Vec):
        return bitpack.load_code(octets, index, packed)
    if packed is not None:
        lanes = v.Vec(types.uint8, kind.n * packed.bitwidth // 8)
        return bitpack.unpack_lanes(v.load(octets, index * packed.bitwidth >> 3, lanes), packed)
    if isinstance(dtype, bitpack.LowBits):
        return bitpack.from_low_bits(v.load(octets, index, v.with_lane_type(kind, types.uint8)), dtype)
    if isinstance(dtype, _BITS):
        return v.load(v.cast_pointer(pointer, dtype.bits), index, v.with_lane_type(kind, dtype.bits))
    return v.load(pointer, index, kind)


@traced
def prefetch_lanes(pointer, index, kind):
    """Prefetch the cache lines that the lanes of `kind` fill from ``pointer[index]`` on."""
    lines = max(1, kind.n * pointer.dtype.bitwidth // (8 * v.LINE))
    for k in v.unrolled(lines):
        v.prefetch(pointer, index + k * (kind.n // lines))


def _make_store_elements(write, doc: str):
    """Make `store_elements` that writes registers by `write`: into the cache, or past it."""

    def store_elements(pointer, index, value):
        dtype = pointer.dtype
        packed = _packed_type(pointer.dtype)
        octets = v.cast_pointer(pointer, types.uint8)
        if packed is not None and not isinstance(value, v.Vec):
            bitpack.store_code(octets, index, value, packed)  # one code, among others of its byte
        elif packed is not None:
            write(octets, index * packed.bitwidth >> 3, bitpack.pack_lanes(value, packed))
        else:
            write(v.cast_pointer(pointer, dtype.bits) if isinstance(dtype, _BITS) else pointer, index, value)

    store_elements.__doc__ = doc
    return traced(store_elements)


store_elements = _make_store_elements(
    v.store,
    """Store lanes to ``pointer[index]`` onwards, as `encode_as` returns them.

    Elements that share bytes are stored in whole groups from a whole byte on, or one by one in order.
    """,
)
_stream_lines = _make_store_elements(
    v.stream, "`store_elements` past the cache; the address is aligned to the lanes, or to a line."
)
_stream_granules = _make_store_elements(
    v.stream_granules, "`store_elements` past the cache; the address begins a granule."
)


@traced
def stream_elements(pointer, index, value):
    """Do `store_elements` past the cache; the address begins a granule for `in_granules`, else a line."""
    (_stream_granules if in_granules(pointer.dtype) else _stream_lines)(pointer, index, value)


def in_granules(dtype) -> bool:
    """Return whether elements may be streamed a granule at a time: of narrower ones LLVM stores some into the cache.

    It merges the conversion to narrower elements with the store of a granule; such a store is not a streaming one, and
    is slow next to others of the same line: decision D15.
    """
    return int(dtype.bitwidth) >= 32


@traced
def encode_as(value, pointer):
    """Convert lanes, in range, to the elements of a pointer, as `store_elements` takes them; minifloats are rounded."""
    dtype = pointer.dtype
    if isinstance(dtype, Minifloat):
        return encode(value, dtype)
    if isinstance(dtype, PowerOfTwo):
        return encode_power(value, dtype)
    return v.convert(value, dtype.code_type if isinstance(dtype, bitpack.Bits) else dtype)
