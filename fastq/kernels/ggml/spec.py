"""The common part of the loops over blocks of GGUF: the type that chooses their code."""

from __future__ import annotations

from dataclasses import dataclass

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, Constants, traced
from fastq.formats.gguf import BlockFormat, GridFormat, PointSearch, SplitSearch
from fastq.formats.gguf_grids import Grid
from fastq.kernels.minifloat import Minifloat, decode, encode
from fastq.kernels.sizes import GGUF_GROUP

GROUP = GGUF_GROUP


@dataclass(eq=False, repr=False)
class BlockSpec(Constants):
    """Type of an argument that chooses the code for a block format."""

    block_format: BlockFormat
    parameter: Minifloat  # format of the scale and the smallest value
    source: types.Type  # scalar type of the values to quantize, or the Minifloat whose bits they are
    streaming: bool  # whether results go past the cache
    weighted: bool  # whether columns have an importance
    least_error: bool  # whether parameters of less error than those of ggml are searched for

    def __post_init__(self) -> None:
        block_format = self.block_format
        self.nbytes = block_format.nbytes
        self.size = block_format.size
        self.sub = block_format.sub
        self.bits = block_format.bits
        self.of_rows = block_format.of_rows
        # whether scales are searched for by changing one code after the other, see `fit_signed_in_turn`
        self.in_turn = block_format.bits == 3 and not self.weighted
        self.steps = getattr(block_format, "steps", 0)
        self.scale_steps = getattr(block_format, "scale_steps", 0)
        self.code = types.uint16 if block_format.bits > 8 else types.uint8
        self.of_mean = 0.0  # see PointSearch
        self.spread = 1.0 if block_format.bits == 2 else 2.0  # of the mean square of a block in weights
        if isinstance(block_format, GridFormat):
            self._describe_grid(block_format)
        # how often `lessen` fits parameters to codes: only where each block has its own float16 scale
        self.polishes = 2 if not block_format.count("scales") and block_format.width("d") == 16 else 0
        super().__post_init__()

    def _describe_grid(self, block_format: GridFormat) -> None:
        self.width = block_format.grid.width
        self.levels = len(block_format.grid.levels)
        self.level_bits = (self.levels - 1).bit_length()
        self.sign_bits = block_format.width("signs")
        self.tiny = block_format.search.tiny
        self.raised = block_format.search.raised
        self.scale_steps = (1 << block_format.width("scales")) - 1
        if isinstance(block_format.search, PointSearch):
            self._search_points(block_format.search)
        else:
            self._search_splits(block_format.grid, block_format.search)

    def _search_points(self, search: PointSearch) -> None:
        self.pitch = 2  # of the numbers of levels
        self.last = search.last
        self.delta = search.delta
        self.takes_all_again = search.takes_again != "off"
        self.takes_always = search.takes_again == "always"
        self.spread = search.spread
        self.steps_before = search.steps_before
        self.of_mean = 0.0 if self.weighted else search.of_mean

    def _search_splits(self, grid: Grid, search: SplitSearch) -> None:
        self.pitch = 1
        self.from_total = search.from_total
        self.fits_unit = search.fits_unit
        # of a sub-block, each with a shift
        self.parts = self.block_format.count("signs") // self.block_format.count("scales")
        self.first_point = sum(
            grid.levels.index(number) << self.level_bits * k for k, number in enumerate(grid.points[0])
        )


@traced
def values_from(spec, src, i, kind):
    """Load values from src[i] on as float32, as many as the Vec type `kind` has lanes."""
    x = v.load(src, i, v.Vec(src.dtype, kind.n))
    return decode(x, spec.source) if isinstance(spec.source, Minifloat) else v.convert(x, types.float32)


@traced
def half(spec, x):
    """Encode a parameter as it is stored."""
    return encode(x, spec.parameter)


@traced
def from_half(spec, bits):
    """Decode a parameter."""
    return decode(bits, spec.parameter)


@traced
def scale_beside(minimum, scale):
    """Return the scale of values that a minimum is added to: 0 for a NaN, since LLVM may pass on either of two NaN."""
    return v.select(minimum == minimum, scale, v.constant(0, scale))


@traced
def negative_where_made(value, *operands):
    """Give a NaN that no operand is, as of 0 times infinity, its sign on x86-64; on AArch64 it is positive."""
    if not TARGET.is_arm:
        return value
    made = v.is_nan(value)
    for each in operands:
        made = made & (each == each)
    return v.select(made, -v.absolute(value), value)


@traced
def is_special(spec, bits):
    """Mask of parameters that are infinite or NaN."""
    infinity = v.constant(spec.parameter.format.infinity, bits)
    return (bits & infinity) == infinity


@traced
def step_of(spec, scale):
    """Return half of the values of 8-bit scales, given as int32 lanes, in float32: codes are looked up doubled."""
    if spec.block_format.scale == "e8m0":
        subnormal = v.select(scale == v.constant(0, scale), v.full_like(0x200000, scale), v.full_like(0x400000, scale))
        normal = (scale - v.constant(1, scale)) << v.constant(23, scale)
        return v.bitcast(v.select(scale < v.constant(2, scale), subnormal, normal), types.float32)
    mantissa = scale & v.constant(7, scale)
    exponent = (scale >> v.constant(3, scale)) & v.constant(15, scale)
    # 119 is 127 - 7 for the biases of both formats, less 1 for the half
    word = ((exponent + v.constant(119, scale)) << v.constant(23, scale)) | (mantissa << v.constant(20, scale))
    tiny = v.convert(mantissa, types.float32)
    tiny = tiny * v.constant(2.0**-10, tiny)
    value = v.select(exponent == v.constant(0, scale), tiny, v.bitcast(word, types.float32))
    return v.select(scale == v.constant(0x7F, scale), v.constant(0, value), value)


@traced
def as_signed(stored, zero):
    """Return what bytes stand for that are stored with `zero` in addition; those of 8 bits are signed."""
    return v.convert(v.convert(v.convert(stored - v.constant(zero, stored), types.int8), types.int32), types.float32)
