"""The grid: the parameters of a call, one table per axis, and the valid combinations.

A `Cell` takes one value of each axis. Its arrays have three axes, of which the `growing_axis` of its granularity grows
with the size; the others keep their lengths from `PIECE` elements on. So a large array repeats a small one exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fastq.formats import gguf
from fastq.formats.conventions import CONVENTIONS, DEFAULT
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.gguf import BLOCK, ScaledFormat
from fastq.formats.qtypes import CASTS, QTYPES

from .. import cases
from ..calls import NO_FORMAT, SEED, Axes, kept_axes
from ..cases import Pass
from .layouts import LAYOUTS

PIECE = 16  # log2 of the elements that larger arrays repeat
ROWS_AT_LEAST = 4
OF_CODES = "codes"
FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
# those that take their scale from extremes: a search for it takes longer than memory does
BLOCK_FORMATS = {name: row for name, row in gguf.BLOCK_FORMATS.items() if isinstance(row, ScaledFormat)}
ITEMSIZES = cases.ITEMSIZES | {name: np.dtype(name).itemsize for name in INTEGERS}


class Granularity(NamedTuple):
    """What shares a scale, and the lengths of the array's axes; 0 stands for the axis that grows.

    Ranges that end only with the array are `read_twice`, once for the range and once for the codes.
    """

    axis: Axes
    block_size: int
    lengths: tuple[int, int, int]
    read_twice: bool = False

    @property
    def growing_axis(self) -> int:
        """The axis that grows."""
        return self.lengths.index(0)

    def shape(self, log2: int) -> tuple[int, int, int]:
        """Return the shape of about 2**log2 elements; the longest axis of small ones is cut until some rows remain."""
        lengths, small = list(self.lengths), 1 << min(log2, PIECE)
        while prod(filter(None, lengths)) > small // ROWS_AT_LEAST:
            lengths[lengths.index(max(lengths))] //= 2
        fixed = prod(filter(None, lengths))
        lengths[self.growing_axis] = small // fixed * ((1 << log2) // (small // fixed * fixed))
        return lengths[0], lengths[1], lengths[2]

    def times(self, log2: int) -> int:
        """Return how often an array of `size` elements repeats its piece."""
        return self.shape(log2)[self.growing_axis] // self.shape(min(log2, PIECE))[self.growing_axis]

    def count(self, shape: tuple[int, ...]) -> int:
        """Return the number of scales of an array."""
        if self.block_size:
            return prod(-(-n // self.block_size) if a == self.axis else n for a, n in enumerate(shape))
        return prod(shape[a] for a in kept_axes(self.axis))

    @property
    def growing_axis_of_parameters(self) -> int | None:
        """The axis of the scales that grows with the array; None where their number stays."""
        if self.block_size:
            return self.growing_axis
        kept = kept_axes(self.axis)
        return kept.index(self.growing_axis) if self.growing_axis in kept else None


# "odd" lengths have no line, vector or byte of packed codes in which a row would end
GRANULARITIES = {
    "array": Granularity(None, 0, (0, 8, 512), read_twice=True),
    "rows": Granularity(0, 0, (0, 8, 512)),
    "odd rows": Granularity(0, 0, (0, 1, 999)),
    "short rows": Granularity(0, 0, (0, 1, 24)),
    "long rows": Granularity(0, 0, (16, 1, 0), read_twice=True),
    "columns": Granularity(2, 0, (0, 1, 4096), read_twice=True),
    "few columns": Granularity(2, 0, (0, 1, 24), read_twice=True),
    "channels": Granularity(1, 0, (0, 16, 196), read_twice=True),
    "axes 0 1": Granularity((0, 1), 0, (0, 12, 64)),
    "axes 0 2": Granularity((0, 2), 0, (0, 32, 48)),
    "axes 1 2": Granularity((1, 2), 0, (0, 12, 64), read_twice=True),
    "pixels": Granularity((0, 2), 0, (16, 0, 3), read_twice=True),
    "blocks 32": Granularity(2, 32, (0, 4, 1024)),
    "blocks 64": Granularity(2, 64, (0, 4, 1024)),
    "blocks 128": Granularity(2, 128, (0, 4, 1024)),
    "ragged blocks": Granularity(2, 32, (0, 1, 1000)),
    "inner blocks": Granularity(1, 32, (0, 128, 24)),
    "inner blocks, long": Granularity(1, 64, (4, 0, 256)),
    "first blocks": Granularity(0, 32, (0, 8, 128)),
    "first blocks, few": Granularity(0, 32, (0, 1, 4)),
}
WITHOUT_BLOCKS = tuple(name for name, row in GRANULARITIES.items() if not row.block_size)
PLAIN_SHAPES = ("array", "rows", "odd rows", "short rows")  # for works that know no granularity
IN_BLOCKS = tuple(name for name, row in GRANULARITIES.items() if row.block_size == BLOCK)

# --- works ------------------------------------------------------------------------------------------------------------

FORMATS = QTYPES | CASTS
_ALL = tuple(QTYPES)
_WITHOUT_BLOCKS = tuple(name for name, row in QTYPES.items() if not row.block_size)
_SCHEMES = tuple(name for name in _WITHOUT_BLOCKS if not QTYPES[name].element and QTYPES[name].bits > 1)
_PACKED = tuple(name for name, row in QTYPES.items() if row.packed and not row.block_size)
# one code per element, in a dtype that tells the format: NumPy's or that of ml_dtypes
_OWN_DTYPE = tuple(
    name
    for name in _WITHOUT_BLOCKS
    if QTYPES[name].element in FLOAT_FORMATS or (name in _SCHEMES and QTYPES[name].bits in (2, 4, 8, 16))
)
# of each kind some, for works that the other formats are measured in without a convention or NaN
_BY_CONVENTION = ("int8", "uint8", "int16", "uint16", "int4", "uint4")
_BY_ANY_CONVENTION = (*_BY_CONVENTION, "float8_e4m3fn")  # codes that are floats have no scheme to choose
_WITH_NAN = ("int8", "uint4", "float8_e4m3fn", "float8_e5m2fnuz", "float6_e2m3fn", "nf4", "mxfp4", "mxint8", "nvfp4")
# codes in bytes and packed ones, in one piece and in blocks, steps and floats
_AT_RANDOM = ("int8", "uint8", "int16", "int4", "float8_e4m3fn", "float4_e2m1fn", "mxfp4", "mxint8", "nvfp4")
_NAN_GIVEN = tuple(name for name in _WITH_NAN if name in _WITHOUT_BLOCKS)  # given scales of blocks cannot mark it


class Work(NamedTuple):
    """A family of calls: a public function, where its parameters come from, and what the axes may be for it.

    `reads` and `writes` name what moves: values, codes (as they are stored), bytes (one code per element), bits (one
    code per bit), parameters. `conventions` and `nans` are those that the call names, of works that take them;
    `options` are the same in all calls.
    """

    function: str
    parameters: str
    formats: tuple[str, ...]
    reads: str
    writes: str = ""
    dtypes: tuple[str, ...] = (*FLOATS, *INTEGERS)
    granularities: tuple[str, ...] = tuple(GRANULARITIES)
    out: bool = True
    conventions: tuple[str, ...] = (DEFAULT,)
    nans: tuple[str, ...] = ("raise",)
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def at_random(self) -> bool:
        """Whether codes are rounded at random, so that those of an array are not those of its piece repeated."""
        return "rng" in self.options


RANDOM = MappingProxyType({"rounding": "stochastic", "rng": SEED})
_OTHERS = tuple(name for name in CONVENTIONS if name != DEFAULT)


def _plain(function: str, formats: tuple[str, ...], reads: str, writes: str = "", *dtypes: str, **more: Any) -> Work:
    """A work that knows neither parameters nor granularities; of all dtypes where none is named."""
    named = {"dtypes": dtypes} if dtypes else {}
    return Work(function, NO_FORMAT, formats, reads, writes, **named | {"granularities": PLAIN_SHAPES} | more)


_AS_GIVEN = "values parameters"
_MARKED = tuple(name for name in _AT_RANDOM if name in _WITHOUT_BLOCKS)
_ROUNDED = ("float16", "float32", "float64")
_UNPACKED = ("int8", "uint8", "int16", "uint16")
_GGUF = {"granularities": ("array", "blocks 32")}
# function -> what it reads and writes, where its parameters come from, and what it takes
_PARAMETRIC = {
    "quantize": Work("quantize", "own", _ALL, "values", "codes parameters"),
    "quantize symmetric": Work("quantize", "symmetric", _SCHEMES, "values", "codes parameters"),
    "quantize given": Work("quantize", "given", _ALL, _AS_GIVEN, "codes"),
    "quantize_linear": Work("quantize_linear", "given", _WITHOUT_BLOCKS, _AS_GIVEN, "codes"),
    "dequantize_linear": Work("dequantize_linear", "given", _OWN_DTYPE, "bytes parameters", "values", FLOATS),
    "dequantize": Work("dequantize", "given", _ALL, "codes parameters", "values", FLOATS),
    "fake_quantize": Work("fake_quantize", "own", _ALL, "values", "values"),
    "fake_quantize symmetric": Work("fake_quantize", "symmetric", _SCHEMES, "values", "values"),
    "fake_quantize given": Work("fake_quantize", "given", _ALL, _AS_GIVEN, "values"),
    "choose_qparams": Work("choose_qparams", "own", _ALL, "values", "parameters", out=False),
}


def _by_convention(name: str, nans: tuple[str, ...] = ("raise", "zero")) -> Work:
    work = _PARAMETRIC[name]
    formats = _BY_CONVENTION if work.parameters == "symmetric" else _BY_ANY_CONVENTION
    return work._replace(formats=formats, conventions=_OTHERS, nans=nans)


def _with_nan(name: str, formats: tuple[str, ...] = _WITH_NAN) -> Work:
    return _PARAMETRIC[name]._replace(formats=formats, nans=("zero", "keep"))  # values have NaN where it is not refused


_MINMAX = Work("minmax", NO_FORMAT, (NO_FORMAT,), "values", out=False)
_CAST = _plain("quantize_linear", tuple(CASTS), "values", "codes")
WORKS = _PARAMETRIC | {
    "minmax": _MINMAX,
    "compare": Work("compare", "given", _ALL, "values codes parameters", out=False),
    "compare values": _plain("compare", (NO_FORMAT,), "values values", out=False),
    "quantize at random": _PARAMETRIC["quantize"]._replace(formats=_AT_RANDOM, options=RANDOM),
    "quantize_linear at random": _PARAMETRIC["quantize_linear"]._replace(formats=_MARKED, options=RANDOM),
    "cast": _CAST,
    "cast at random": _CAST._replace(options=RANDOM),
    "requantize": Work(
        "requantize", "given", ("int8", "uint8", "int16"), _AS_GIVEN, "codes", ("int32",), WITHOUT_BLOCKS
    ),
    "unpack_array": _plain("xarray.unpack_array", _UNPACKED, "bytes", "values", "float32", "float64", out=False),
    "pack": _plain("pack", _PACKED, "bytes", "codes", OF_CODES, out=False),
    "unpack": _plain("unpack", _PACKED, "codes", "bytes", OF_CODES, out=False),
    "bitround": _plain("bitround", (NO_FORMAT,), "values", "values", *_ROUNDED),
    "bit_information": _plain("bit_information", (NO_FORMAT,), "values", "", *_ROUNDED, out=False),
    "gguf.quantize": Work("gguf.quantize", "own", tuple(BLOCK_FORMATS), "values", "codes", **_GGUF),
    "gguf.dequantize": Work("gguf.dequantize", "own", tuple(BLOCK_FORMATS), "codes", "values", ("float32",), **_GGUF),
    "binarize": _plain("binarize", ("uint8", "int8"), "values", "bits", nans=("raise", "zero")),
    **{
        f"{name} by convention": _by_convention(name)
        for name in ("quantize", "quantize symmetric", "quantize given", "quantize_linear")
    },
    **{f"{name} by convention": _by_convention(name, ("raise",)) for name in ("dequantize", "dequantize_linear")},
    **{f"{name} by convention": _by_convention(name) for name in ("fake_quantize", "choose_qparams")},
    "quantize with NaN": _with_nan("quantize"),
    "quantize given with NaN": _with_nan("quantize given", _NAN_GIVEN),
    "fake_quantize with NaN": _with_nan("fake_quantize"),
    "choose_qparams with NaN": _with_nan("choose_qparams"),
    "minmax with NaN": _MINMAX._replace(nans=("zero",)),
}
# those whose first operand is an array of codes, which the layout is of
OF_CODES_WORKS = tuple(name for name, row in WORKS.items() if row.reads.split()[0] in ("codes", "bytes"))

# --- axes -------------------------------------------------------------------------------------------------------------

LADDER = (12, 18, 22, 25)  # log2 of the sizes that every cell is measured at
AXES: dict[str, tuple[str, ...]] = {
    "work": tuple(WORKS),
    "format": (*FORMATS, *BLOCK_FORMATS, NO_FORMAT),
    "granularity": tuple(GRANULARITIES),
    "dtype": (*FLOATS, *INTEGERS, OF_CODES),
    "layout": tuple(LAYOUTS),
    "out": ("none", "c", "like x"),  # in C order, or in the memory order of the operand
    "threads": ("all", "one"),
    "convention": tuple(CONVENTIONS),
    "nan": ("raise", "zero", "keep"),
    "sizes": ("10,20", "14,24", "16,26"),  # in addition to those of `LADDER`
}


class Rule(NamedTuple):
    """Axes and what must hold of their values together."""

    axes: tuple[str, ...]
    holds: Callable[..., bool]


def _swappable(layout: str, work: str, dtype: str, format_: str) -> bool:
    """Return whether an operand can be swapped: what NumPy itself defines has a byte order, from two bytes on."""
    operand = format_ if work in OF_CODES_WORKS else dtype
    return layout != "swapped" or (operand != "bfloat16" and ITEMSIZES.get(operand, 1) > 1)


def _follows(convention: str, format_: str, work: str) -> bool:
    """Return whether a convention has the work's scheme and the format, which it names if codes are floats."""
    row, qtype = CONVENTIONS[convention], QTYPES.get(format_)
    if convention == DEFAULT or qtype is None:
        return convention == DEFAULT
    has = qtype.name in row.formats if row.formats or qtype.element else True
    return has and ("symmetric" if WORKS[work].parameters == "symmetric" else "asymmetric") in row.schemes


def _keeps_nan(nan: str, format_: str) -> bool:
    """Return whether codes, or scales of blocks, have a NaN where it is kept."""
    qtype = QTYPES.get(format_)
    if nan != "keep" or qtype is None:
        return nan != "keep"
    return qtype.block_size > 0 or getattr(qtype.float_format, "nan", None) is not None


def _prescribed(format_: str, granularity: str) -> bool:
    return format_ not in QTYPES or not QTYPES[format_].block_size or granularity in IN_BLOCKS


RULES = (
    Rule(("work", "format"), lambda work, format_: format_ in WORKS[work].formats),
    Rule(("work", "granularity"), lambda work, granularity: granularity in WORKS[work].granularities),
    Rule(("work", "dtype"), lambda work, dtype: dtype in WORKS[work].dtypes),
    Rule(("work", "out"), lambda work, out: out == "none" or WORKS[work].out),
    Rule(("work", "convention"), lambda work, convention: convention in WORKS[work].conventions),
    Rule(("work", "nan"), lambda work, nan: nan in WORKS[work].nans),
    Rule(("convention", "format", "work"), _follows),
    Rule(("nan", "format"), _keeps_nan),
    Rule(("format", "granularity"), _prescribed),
    Rule(("layout", "work", "dtype", "format"), _swappable),
)


def allowed(values: Mapping[str, str], axis: str) -> bool:
    """Return whether the value of an axis goes with all others that are known."""
    return all(
        rule.holds(*(values[each] for each in rule.axes))
        for rule in RULES
        if axis in rule.axes and all(each in values for each in rule.axes)
    )


class Cell(NamedTuple):
    """One value of each axis."""

    work: str
    format: str = "int8"
    granularity: str = "array"
    dtype: str = "float32"
    layout: str = "c"
    out: str = "c"
    threads: str = "all"
    convention: str = DEFAULT
    nan: str = "raise"
    sizes: str = AXES["sizes"][0]

    @property
    def name(self) -> str:
        """Words for tables and for the command line."""
        return "/".join(self)

    @property
    def valid(self) -> bool:
        """Whether all values are of their axes and go together."""
        values = self._asdict()
        return all(value in AXES[axis] and allowed(values, axis) for axis, value in values.items())

    @property
    def is_plain(self) -> bool:
        """Return whether plain peers do the same: ONNX's convention, no NaN taken, and nothing random.

        `binarize` compares with 0, to which NaN is a value like any other.
        """
        if WORKS[self.work].at_random:
            return False
        return self.convention == DEFAULT and (self.nan == "raise" or WORKS[self.work].function == "binarize")

    @property
    def sizes_measured(self) -> tuple[int, ...]:
        """The sizes at which the cell is measured, as log2."""
        return tuple(sorted({*LADDER, *map(int, self.sizes.split(","))}))

    def shape(self, log2: int) -> tuple[int, int, int]:
        """Return the shape of the array of values."""
        return GRANULARITIES[self.granularity].shape(log2)

    def elements(self, log2: int) -> int:
        """Return the elements of the array of values, about 2**log2."""
        return prod(self.shape(log2))

    def nbytes(self, what: str, log2: int) -> float:
        """Return the bytes of the named operands, as in `Work.reads`; with the layout, the touched bytes."""
        sizes, first = self._sizes(log2), WORKS[self.work].reads.split()[0]
        touched = {first: LAYOUTS[self.layout].touched} if what.split()[:1] == [first] else {}
        return sum(sizes[name] * touched.pop(name, 1.0) for name in what.split())

    def moved(self, log2: int) -> Pass:
        """Return the bytes that the call must read, twice where the range ends only with the array, and write."""
        work = WORKS[self.work]
        read, written = self.nbytes(work.reads, log2), sum(self._sizes(log2)[name] for name in work.writes.split())
        twice = GRANULARITIES[self.granularity].read_twice and work.parameters in ("own", "symmetric")
        again = twice and work.writes not in ("", "parameters") and self.format not in BLOCK_FORMATS
        return Pass(int(read * (1 + again)), int(written))

    def bytes_moved(self, log2: int) -> int:
        """Return the bytes that the call must read and write."""
        return sum(self.moved(log2))

    def _sizes(self, log2: int) -> dict[str, float]:
        elements, granularity = self.elements(log2), GRANULARITIES[self.granularity]
        qtype, blocks = FORMATS.get(self.format), BLOCK_FORMATS.get(self.format)
        bits = blocks.nbytes * 8 / BLOCK if blocks else qtype.bits if qtype else 0
        return {
            "values": elements * ITEMSIZES.get(self.dtype, 0),
            "codes": elements * bits / 8,
            "bytes": elements * max(1, bits // 8),
            "bits": elements / 8,
            "parameters": granularity.count(self.shape(log2)) * self._of_parameters(),
        }

    def _of_parameters(self) -> int:
        """Return the bytes of a scale and its zero point."""
        convention = CONVENTIONS[self.convention]
        if self.format not in QTYPES:
            return 0
        scale, zero = cases.parameter_bytes(self.format)
        scale = 8 if convention.stored_type == "float64" else scale
        return scale + (zero if convention.zero_point == "integer" or not zero else scale)


def cell_of(name: str) -> Cell:
    """Return the cell of a name; ValueError if the values are not of the axes, or do not go together."""
    values = name.split("/")
    if len(values) != len(AXES) or not Cell(*values).valid:
        raise ValueError(f"cell must be a name such as {Cell('quantize').name!r}, not {name!r}")
    return Cell(*values)


# where the scan that made us look found cliffs, and one usual call of each kind: what the gate measures again
GATE = (
    Cell("dequantize", "int8", "blocks 32"),
    Cell("dequantize", "int4", "blocks 32"),
    Cell("dequantize", "int8", "blocks 64"),
    Cell("dequantize", "int8", "short rows"),
    Cell("dequantize", "int8", "columns"),
    Cell("dequantize", "mxfp8_e4m3", "blocks 32"),
    Cell("fake_quantize given", "int8", "blocks 32"),
    Cell("fake_quantize symmetric", "int8", "short rows"),
    Cell("quantize symmetric", "int4", "blocks 32", layout="fortran", out="none"),
    Cell("quantize", "uint8", "array", layout="reversed"),
    Cell("quantize symmetric", "int8", "rows", layout="permuted"),
    Cell("quantize_linear", "int8", "array", layout="gaps"),
    Cell("quantize_linear", "int8", "rows", layout="swapped"),
    Cell("compare", "int8", "blocks 32", out="none"),
    Cell("compare", "float8_e4m3fn", "array", out="none"),
    Cell("gguf.quantize", "Q8_0", "blocks 32"),
    Cell("gguf.dequantize", "Q4_0", "blocks 32"),
)
