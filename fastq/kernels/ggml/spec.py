"""What the loops over blocks of GGUF have in common: the type that chooses their code."""

from __future__ import annotations

from numba import types
from numba.core.extending import models, register_model

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.formats.gguf import BlockFormat
from fastq.kernels.minifloat import Minifloat, decode, encode

GROUP = 16  # blocks whose parameters are computed side by side, one a lane


class BlockSpec(types.Opaque):
    """Type of an argument that is nothing at run time and chooses the code for a block format.

    Parameters
    ----------
    row : BlockFormat
        The format.
    parameter : Minifloat
        Format of the scale and the smallest value.
    source : type
        Scalar type of the values to quantize, or the Minifloat whose bits they are.
    streaming : bool
        Whether results go past the cache.
    weighted : bool
        Whether columns have an importance.
    """

    def __init__(
        self, row: BlockFormat, parameter: Minifloat, source: types.Type, streaming: bool, weighted: bool
    ) -> None:
        self.row, self.parameter, self.source = row, parameter, source
        self.streaming, self.weighted = streaming, weighted
        # all of the row, since machine code is kept on disk under this name
        super().__init__(name=f"BlockSpec({row!r}, {parameter}, {source}, {streaming}, {weighted})")


register_model(BlockSpec)(models.OpaqueModel)


@specialize
def nbytes(spec):
    """Return the size of a block in bytes."""
    n = spec.row.nbytes
    return lambda spec: n


@specialize
def size(spec):
    """Return the number of values in a block."""
    n = spec.row.size
    return lambda spec: n


@specialize
def streams(spec):
    """Whether results go past the cache."""
    streaming = spec.streaming
    return lambda spec: streaming


@specialize
def values_from(spec, src, i, kind):
    """Load values from src[i] on as float32, as many as the Vec type `kind` has lanes."""
    source, vec = spec.source, v.Vec(src.dtype, kind.instance_type.n)
    if isinstance(source, Minifloat):
        return lambda spec, src, i, kind: decode(v.load(src, i, vec), source)
    return lambda spec, src, i, kind: v.convert(v.load(src, i, vec), types.float32)


@specialize
def half(spec, x):
    """Encode a parameter as it is stored."""
    parameter = spec.parameter
    return lambda spec, x: encode(x, parameter)


@specialize
def from_half(spec, bits):
    """Decode a parameter."""
    parameter = spec.parameter
    return lambda spec, bits: decode(bits, parameter)


@njit
def scale_beside(minimum, scale):
    """Return the scale of values that a minimum is added to: 0 beside NaN, since LLVM may pass on either of two NaN."""
    return v.select(minimum == minimum, scale, v.constant(0, scale))


@specialize
def is_special(spec, bits):
    """Mask of parameters that are infinite or NaN."""
    infinity = spec.parameter.row.infinity
    return lambda spec, bits: (bits & v.constant(infinity, bits)) == v.constant(infinity, bits)


@specialize
def step_of(spec, scale):
    """Return half of what scales of 8 bits, as int32 lanes, stand for as float32: codes are looked up doubled."""

    def power(spec, scale):
        subnormal = v.select(scale == v.constant(0, scale), v.full_like(0x200000, scale), v.full_like(0x400000, scale))
        normal = (scale - v.constant(1, scale)) << v.constant(23, scale)
        return v.bitcast(v.select(scale < v.constant(2, scale), subnormal, normal), types.float32)

    def e4m3(spec, scale):
        mantissa = scale & v.constant(7, scale)
        exponent = (scale >> v.constant(3, scale)) & v.constant(15, scale)
        word = ((exponent + v.constant(119, scale)) << v.constant(23, scale)) | (mantissa << v.constant(20, scale))
        tiny = v.convert(mantissa, types.float32)
        tiny = tiny * v.constant(2.0**-10, tiny)
        value = v.select(exponent == v.constant(0, scale), tiny, v.bitcast(word, types.float32))
        return v.select(scale == v.constant(0x7F, scale), v.constant(0, value), value)

    return power if spec.row.scale == "e8m0" else e4m3


@njit
def signed(stored, zero):
    """Return what bytes stand for that are stored with `zero` in addition; those of 8 bits are signed."""
    return v.convert(v.convert(v.convert(stored - v.constant(zero, stored), types.int8), types.int32), types.float32)
