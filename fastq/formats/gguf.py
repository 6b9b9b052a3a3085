"""BlockFormat: the block formats of GGUF, one table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fastq.formats import gguf_grids
from fastq.formats.gguf_field import Field
from fastq.formats.gguf_grids import Grid
from fastq.system.arguments import as_int, as_str, did_you_mean, shown
from fastq.system.attributes import cached_property

BLOCK = 32  # values in a small block
SUPER = 256  # values in a super-block


class Candidates(NamedTuple):
    """The numbers that a search tries: ``first + k * delta`` for k = 0..last."""

    first: float
    delta: float
    last: int


@dataclass(frozen=True)
class BlockFormat:
    """A format that stores neighbours on the last axis as blocks of bytes."""

    # name and value in ggml's enumeration of types
    name: str
    number: int
    # the bytes of a block. Among fields that share a byte, the one with its lowest bits is first
    fields: tuple[Field, ...] = field(repr=False)
    # whether the importance of columns changes the blocks of ggml
    weighted: bool = field(default=True, repr=False, kw_only=True)
    # whether ggml quantizes to it with an importance of columns alone
    needs_importance: bool = field(default=False, repr=False, kw_only=True)
    # the candidates for each sub-block in a search for the least error; empty without a search. A candidate times the
    # scale is the first value of the largest magnitude; or it is added to the code of a float scale; or it is the
    # number of steps by which both ends of a range move inwards
    trials: tuple[Candidates, ...] = field(default=(), repr=False, kw_only=True)

    def fields_of(self, *names: str) -> tuple[Field, ...]:
        """Return the fields of a kind of numbers."""
        return tuple(field for field in self.fields if field.of in names)

    def count(self, of: str) -> int:
        """Return the count of numbers of a kind."""
        return max((field.first + field.numbers for field in self.fields_of(of)), default=0)

    def width(self, of: str) -> int:
        """Return the bits of a number of a kind."""
        return max(field.shift + field.bits for field in self.fields_of(of))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return max(field.at + field.nbytes for field in self.fields)

    @cached_property
    def size(self) -> int:
        """Values in a block."""
        return self.count("codes")

    @cached_property
    def sub(self) -> int:
        """Values that share a scale."""
        return self.size // max(self.count("scales"), self.count("d"))

    @cached_property
    def bits(self) -> int:
        """Width of a code."""
        return self.width("codes")

    @cached_property
    def has_minimum(self) -> bool:
        """Whether a smallest value is stored, too."""
        return self.count("min") > 0

    @property
    def of_rows(self) -> bool:
        """Whether importance is combined with the spread of a whole row, not of a block."""
        return False

    @property
    def zero(self) -> int:
        """Code of 0.0, or of the smallest value, for integer codes; 8-bit codes are signed."""
        return self._zero_of("codes", "min")

    @property
    def scale_zero(self) -> int:
        """The number that is added to stored scales of sub-blocks; 8-bit scales are signed."""
        return self._zero_of("scales", "mins")

    def _zero_of(self, of: str, least: str) -> int:
        """Return the code of 0 among codes or scales `of`, which have no sign if smallest values, `least`, are stored.

        Codes of 8 bits are two's complement; all others are stored with half of their number added: 8 to those of 4.
        """
        unsigned = self.count(least) or not self.count(of) or self.width(of) == 8
        return 0 if unsigned else 1 << self.width(of) - 1

    @property
    def group(self) -> int:
        """Number of neighbours for which ggml stores zeros if all have an importance of 0; 0 if it never does.

        Without a smallest value, these are the ones that share a scale. With one, those without importance still have
        the range of their values, so ggml stores no zeros for a block of 32. But the unit of the scales of sub-blocks
        needs some importance in the super-block.
        """
        return self.sub if not self.has_minimum else 0 if self.of_rows else self.size

    def searches(self, weighted: bool) -> bool:
        """Whether scales are found by a search, whose sums must not overflow."""
        return weighted if self.of_rows else self.weighted

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ScaledFormat(BlockFormat):
    """A format that stores 32 neighbours as float16 parameters and one code per value."""

    # "magnitude", "signed" or "range": the scale is a fraction of the largest magnitude, the first
    # value of the largest magnitude with its sign, or the largest minus the smallest value
    extent: str
    steps: int  # ``scale = extent / steps``

    @property
    def of_rows(self) -> bool:
        """Whether importance is combined with the spread of a whole row."""
        return self.weighted

    @property
    def reach(self) -> tuple[int, int]:
        """The smallest and the largest number of a code."""
        if self.extent == "signed":  # `steps` is below 0, -8 for codes -8..7, as the largest magnitude has code -8
            return self.steps, -self.steps - 1
        return 0 if self.has_minimum else -self.steps, self.steps


@dataclass(frozen=True)
class SuperFormat(BlockFormat):
    """A K-quant: 256 neighbours in sub-blocks, whose scales are integers in units of a float16 scale."""

    # candidates for scales without weights, ``range / (steps + number)``, in formats with a smallest value for each
    # sub-block; in the others codes are signed
    candidates: Candidates | None = None

    @property
    def steps(self) -> int:
        """Largest code, or the magnitude of the smallest signed code."""
        return (1 << self.bits) - 1 if self.has_minimum else 1 << self.bits - 1

    @property
    def scale_steps(self) -> int:
        """Largest integer scale of a sub-block, or the magnitude of the smallest signed one."""
        bits = self.width("scales")
        return (1 << bits) - 1 if self.has_minimum else 1 << bits - 1


@dataclass(frozen=True)
class CodebookFormat(BlockFormat):
    """A format of 4 bit codes for the integers of a table, in sub-blocks of 32, each with a scale."""


# ggml/src/ggml-common.h, kvalues_iq4nl
CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class BinaryFormat(BlockFormat):
    """A format of codes for -1 and 1, in units of the mean magnitude of neighbours."""


class PointSearch(NamedTuple):
    """The search for the points and the scale of a sub-block."""

    last: int
    # on a grid of n levels ``(2 * n - 1 + k * delta) / largest`` is tried as the inverse of a scale, k = -last..last
    delta: float
    shells: int  # points at this number of least distances from a position are its neighbours; the nearest one is taken
    tiny: float  # sub-blocks whose largest magnitude is below this are zero
    raised: float  # by how much the unit of scales is multiplied before it is stored
    # which codes are taken once more by the scale that was found: those of positions "off" the grid, "all" if one of
    # them is off, or "always" all
    takes_again: str = "off"
    of_mean: float = 0.0  # how much of twice the mean square of a block is added to squares as weights
    spread: float = 2.0  # the mean square of a block times this is combined with the importance of columns
    # if not 0, `largest` is the value of the code `levels` under the best scale for codes 0..steps_before
    steps_before: int = 0


class SplitSearch(NamedTuple):
    """The search on a grid of three levels: sorted values are split into a lowest, a middle and a highest part.

    Each part gets one level, and each sign of a sub-block a shift of all levels, up or down.
    """

    shells: int  # as in PointSearch
    tiny: float
    raised: float
    from_total: bool  # whether the sums of a split are taken from the total, or added up from those of its three parts
    fits_unit: bool  # whether the unit of scales is fitted to points and codes of scales


@dataclass(frozen=True)
class GridFormat(BlockFormat):
    """A format whose codes are points of a grid with several values each, in units of odd multiples of a scale.

    With seven signs for eight values, the number of minus signs is even.
    """

    grid: Grid = field(repr=False)  # the points of the codes
    unit: float  # the scale of a sub-block is ``d * (2 * code + 1) * unit``
    search: PointSearch | SplitSearch = field(repr=False)  # how blocks are quantized

    @property
    def shifts(self) -> bool:
        """Whether signs belong to a 1 that is added to values, not to the values."""
        return isinstance(self.search, SplitSearch)

    @cached_property
    def size(self) -> int:
        """Values in a block."""
        return self.count("codes") * self.grid.width


@dataclass(frozen=True)
class TernaryFormat(BlockFormat):
    """A format of codes from -1 on, in units of the largest magnitude of neighbours."""

    of_tiny: int = 1  # the code of every value if the scale has no finite inverse

    @property
    def zero(self) -> int:
        """Code of 0.0."""
        return 1


@dataclass(frozen=True)
class Float4Format(BlockFormat):
    """A format of codes in float4_e2m1fn with a scale of 8 bits for each sub-block."""

    scale: str  # format of the scales: "e8m0", a power of two, or "e4m3", a float whose sign is not used

    @property
    def largest_scale(self) -> int:
        """Code of the largest scale."""
        return 0xFE if self.scale == "e8m0" else 0x7E


# the values of the codes of float4_e2m1fn, doubled
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

WEIGHTED_CANDIDATES = Candidates(-0.9, 0.05, 36)  # candidates with weights, for every format with a smallest value


def _half(of: str, at: int) -> Field:
    """Return the field of one float16."""
    return Field(of, at, 2, 1, bits=16, stride=1, word=2)


def _nibbles(at: int, size: int, stride: int) -> Field:
    """Return the field of the lowest four bits of `size` codes; a byte has those of two codes `stride` apart."""
    return Field("codes", at, size // 2, size, bits=4, stride=stride)


def _fifth_bits(at: int, size: int, stride: int) -> Field:
    """Return the field of the fifth bits of `size` codes; a byte has those of eight codes `stride` apart."""
    return Field("codes", at, size // 8, size, bits=1, stride=stride, shift=4)


_D = _half("d", 0)
_MIN = _half("min", 2)
_SIX_BIT_PAIRS = (  # fields of the scales and smallest values of eight sub-blocks
    Field("scales", 4, 4, 4, bits=6, stride=4),
    Field("mins", 8, 4, 4, bits=6, stride=4),
    Field("scales", 12, 4, 4, bits=4, stride=4, first=4),
    Field("mins", 12, 4, 4, bits=4, stride=4, first=4, low=4),
    Field("scales", 4, 4, 4, bits=2, stride=4, first=4, low=6, shift=4),
    Field("mins", 8, 4, 4, bits=2, stride=4, first=4, low=6, shift=4),
)
_Q5_0 = (_D, _fifth_bits(2, BLOCK, 1), _nibbles(6, BLOCK, 16))
_Q5_1 = (_D, _MIN, _fifth_bits(4, BLOCK, 1), _nibbles(8, BLOCK, 16))
_Q8_0 = (_D, Field("codes", 2, BLOCK, BLOCK, bits=8, stride=BLOCK))
_Q2_K = (
    Field("scales", 0, 16, 16, bits=4, stride=16),
    Field("mins", 0, 16, 16, bits=4, stride=16, low=4),
    Field("codes", 16, 64, SUPER, bits=2, stride=32),
    _half("d", 80),
    _half("min", 82),
)
_Q3_K = (
    Field("codes", 0, 32, SUPER, bits=1, stride=32, shift=2),
    Field("codes", 32, 64, SUPER, bits=2, stride=32),
    Field("scales", 96, 8, 16, bits=4, stride=8),
    Field("scales", 104, 4, 16, bits=2, stride=4, shift=4),
    _half("d", 108),
)
_Q6_K = (
    _nibbles(0, SUPER, 64),
    Field("codes", 128, 64, SUPER, bits=2, stride=32, shift=4),
    Field("scales", 192, 16, 16, bits=8, stride=16),
    _half("d", 208),
)
_IQ4_XS = (
    _D,
    Field("scales", 2, 2, 8, bits=2, stride=1, shift=4),
    Field("scales", 4, 4, 8, bits=4, stride=1),
    _nibbles(8, SUPER, 16),
)
_TQ1_0 = (
    Field("codes", 0, 32, 160, bits=2, stride=32, base=3),
    Field("codes", 32, 16, 80, bits=2, stride=16, base=3, first=160),
    Field("codes", 48, 4, 16, bits=2, stride=4, base=3, first=240),
    _half("d", 52),
)
_TQ2_0 = (Field("codes", 0, 64, SUPER, bits=2, stride=32), _half("d", 64))
_Q1_0 = (_D, Field("codes", 2, 16, 128, bits=1, stride=1))
_Q2_0 = (_D, Field("codes", 2, 16, 64, bits=2, stride=1))


def _in_words(of: str, at: int, words: int, word: int, numbers: int, bits: int, low: int = 0, shift: int = 0) -> Field:
    """Return the field of numbers of which each of some words, of `word` bytes from byte `at` on, has several in turn.

    In IQ2_XXS each of 8 words of 8 bytes has the 8 bits of four codes from bit 0 on, and 7 bits of signs from bit 32.
    """
    return Field(of, at, words * word, numbers, bits, stride=1, shift=shift, low=low, word=word)


_IQ1_S = (
    _D,
    Field("codes", 2, 32, 32, bits=8, stride=32),
    _in_words("codes", 34, 8, 2, 32, bits=3, shift=8),
    _in_words("scales", 34, 8, 2, 8, bits=3, low=12),
    _in_words("signs", 34, 8, 2, 8, bits=1, low=15),
)
_IQ1_M = (
    Field("codes", 0, 32, 32, bits=8, stride=32),
    Field("codes", 32, 16, 32, bits=3, stride=1, shift=8, apart=4),
    Field("signs", 32, 16, 32, bits=1, stride=1, low=3, apart=4),
    _in_words("scales", 48, 4, 2, 16, bits=3),
    *(_in_words("d", 48 + 2 * k, 1, 2, 1, bits=4, low=12, shift=4 * k) for k in range(4)),
)
_IQ2_XXS = (
    _D,
    _in_words("codes", 2, 8, 8, 32, bits=8),
    _in_words("signs", 2, 8, 8, 32, bits=7, low=32),
    _in_words("scales", 2, 8, 8, 8, bits=4, low=60),
)
_IQ2_XS = (
    _D,
    _in_words("codes", 2, 32, 2, 32, bits=9),
    _in_words("signs", 2, 32, 2, 32, bits=7, low=9),
    _in_words("scales", 66, 8, 1, 16, bits=4),
)
_IQ2_S = (
    _D,
    Field("codes", 2, 32, 32, bits=8, stride=32),
    Field("signs", 34, 32, 32, bits=8, stride=32),
    _in_words("codes", 66, 8, 1, 32, bits=2, shift=8),
    _in_words("scales", 74, 8, 1, 16, bits=4),
)
_IQ3_XXS = (
    _D,
    Field("codes", 2, 64, 64, bits=8, stride=64),
    _in_words("signs", 66, 8, 4, 32, bits=7),
    _in_words("scales", 66, 8, 4, 8, bits=4, low=28),
)
_IQ3_S = (
    _D,
    Field("codes", 2, 64, 64, bits=8, stride=64),
    _in_words("codes", 66, 8, 1, 64, bits=1, shift=8),
    Field("signs", 74, 32, 32, bits=8, stride=32),
    _in_words("scales", 106, 4, 1, 8, bits=4),
)
_MXFP4 = (Field("d", 0, 1, 1, bits=8, stride=1), _nibbles(1, 32, 16))
_NVFP4 = (Field("d", 0, 4, 4, bits=8, stride=4), _nibbles(4, 64, 8))

# chosen on the matrices of all-MiniLM-L6-v2: within 0.02 dB of the best of 128 numbers, for ranges within 0.15 dB
_OF_FOUR_BITS = Candidates(-9.0, 0.23, 7), Candidates(6.6, 0.23, 7)
_OF_FIVE_BITS = Candidates(-18.0, 0.43, 7), Candidates(14.0, 0.43, 7)
_OF_CODEBOOK = Candidates(-138.0, 4.7, 7), Candidates(98.0, 4.0, 7)
_IN_IQ3_XXS = PointSearch(15, 0.2, 2, 1e-8, 1.0125)
_IN_IQ3_S = PointSearch(9, 0.2, 3, 2.0**-149, 1.033, takes_again="all")
_IN_IQ2_S = PointSearch(9, 0.1, 1, 1e-8, 0.9875, of_mean=0.25)
_IN_IQ2_XS = PointSearch(9, 0.1, 2, 1e-15, 1.0, spread=1.0)
_IN_IQ2_XXS = PointSearch(6, 0.1, 2, 1e-15, 1.0, takes_again="always", spread=1.0, steps_before=4)
_IN_IQ1_S = SplitSearch(3, 1e-12, 1.125, from_total=False, fits_unit=False)
_IN_IQ1_M = SplitSearch(3, 1e-7, 1.1125, from_total=True, fits_unit=True)
_ENDS = (Candidates(-0.4, 0.35, 3),)

# ggml/include/ggml.h, enum ggml_type; ggml/src/ggml-common.h, block_*; ggml/src/ggml-quants.c, quantize_row_*
BLOCK_FORMATS: dict[str, BlockFormat] = {
    row.name: row
    for row in (
        ScaledFormat("Q4_0", 2, (_D, _nibbles(2, BLOCK, 16)), "signed", -8, trials=_OF_FOUR_BITS),
        ScaledFormat("Q4_1", 3, (_D, _MIN, _nibbles(4, BLOCK, 16)), "range", 15, trials=_ENDS),
        ScaledFormat("Q5_0", 6, _Q5_0, "signed", -16, trials=_OF_FIVE_BITS),
        ScaledFormat("Q5_1", 7, _Q5_1, "range", 31, trials=_ENDS),
        ScaledFormat("Q8_0", 8, _Q8_0, "magnitude", 127, weighted=False, trials=(Candidates(120.0, 0.5, 15),)),
        SuperFormat("Q2_K", 10, _Q2_K, Candidates(-0.5, 0.1, 15)),
        SuperFormat("Q3_K", 11, _Q3_K),
        SuperFormat("Q4_K", 12, (_D, _MIN, *_SIX_BIT_PAIRS, _nibbles(16, SUPER, 32)), Candidates(-1.0, 0.1, 20)),
        SuperFormat(
            "Q5_K",
            13,
            (_D, _MIN, *_SIX_BIT_PAIRS, _fifth_bits(16, SUPER, 32), _nibbles(48, SUPER, 32)),
            Candidates(-0.5, 0.1, 15),
        ),
        SuperFormat("Q6_K", 14, _Q6_K),
        GridFormat("IQ2_XXS", 16, _IQ2_XXS, gguf_grids.POINTS_256, 1 / 8, _IN_IQ2_XXS, needs_importance=True),
        GridFormat("IQ2_XS", 17, _IQ2_XS, gguf_grids.POINTS_512, 1 / 8, _IN_IQ2_XS, needs_importance=True),
        GridFormat("IQ3_XXS", 18, _IQ3_XXS, gguf_grids.QUADS_256, 1 / 4, _IN_IQ3_XXS),
        GridFormat("IQ1_S", 19, _IQ1_S, gguf_grids.TERNARY, 1 / 8, _IN_IQ1_S, needs_importance=True),
        CodebookFormat("IQ4_NL", 20, (_D, _nibbles(2, BLOCK, 16)), trials=_OF_CODEBOOK),
        GridFormat("IQ3_S", 21, _IQ3_S, gguf_grids.QUADS_512, 1.0, _IN_IQ3_S),
        GridFormat("IQ2_S", 22, _IQ2_S, gguf_grids.POINTS_1024, 1 / 8, _IN_IQ2_S),
        CodebookFormat("IQ4_XS", 23, _IQ4_XS, trials=_OF_CODEBOOK),
        GridFormat("IQ1_M", 29, _IQ1_M, gguf_grids.TERNARY, 1 / 8, _IN_IQ1_M),
        TernaryFormat("TQ1_0", 34, _TQ1_0, weighted=False),
        TernaryFormat("TQ2_0", 35, _TQ2_0, weighted=False),
        Float4Format("MXFP4", 39, _MXFP4, "e8m0", weighted=False, trials=(Candidates(-1, 2, 1),)),
        Float4Format("NVFP4", 40, _NVFP4, "e4m3", weighted=False, trials=(Candidates(-2, 1, 8),)),
        BinaryFormat("Q1_0", 41, _Q1_0, weighted=False),
        TernaryFormat("Q2_0", 42, _Q2_0, weighted=False, of_tiny=0),
    )
}
# formats whose bytes leave a choice, for which the least error can be searched
LEAST_ERROR = tuple(row.name for row in BLOCK_FORMATS.values() if row.trials)
RANGES = "minmax", "mse"
_BY_NUMBER = {row.number: row for row in BLOCK_FORMATS.values()}


def as_block_format(qtype: object) -> BlockFormat:
    """Return the row for a name or a number; members of gguf.GGMLQuantizationType are numbers."""
    if issubclass(type(qtype), str):
        form = BLOCK_FORMATS.get(as_str(qtype, "qtype"))
    else:
        form = _BY_NUMBER.get(as_int(qtype, "qtype", "a name, a number or a GGMLQuantizationType"))
    if form is None:
        choices = ", ".join(f"{row.name} ({row.number})" for row in BLOCK_FORMATS.values())
        hint = did_you_mean(qtype, BLOCK_FORMATS, {})
        raise ValueError(f"qtype must be one of {choices}, not {shown(qtype)}{hint}")
    return form
