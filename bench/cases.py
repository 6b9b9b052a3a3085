"""The table of measured works: operation, dtype, code format and granularity, at every size.

A `Work` is a row of the table; a `Case` is a work at a size, with its shape and the bytes that have to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES

ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4}
COLUMNS = 4096
ROWS_AT_LEAST = 16
LOG2_SIZES = range(10, 29)
PERIOD = 18  # log2 of the piece that larger arrays repeat; 64 rows of 4096


class Pass(NamedTuple):
    """Bytes that one pass over memory reads and writes."""

    read: int
    written: int


class Granularity(NamedTuple):
    """What shares a scale: the arguments of fastq, and how many scales a (rows, columns) array has.

    Arrays have `columns`, if these are given, and else as many as `Case.shape` says.
    """

    axis: int | None
    block_size: int
    count: Callable[[int, int], int]
    columns: int = 0


GRANULARITIES = {
    "tensor": Granularity(None, 0, lambda rows, columns: 1),
    "rows": Granularity(0, 0, lambda rows, columns: rows),
    "short_rows": Granularity(0, 0, lambda rows, columns: rows, columns=24),
    "columns": Granularity(1, 0, lambda rows, columns: columns),
    "blocks32": Granularity(1, 32, lambda rows, columns: rows * columns // 32),
    "blocks64": Granularity(1, 64, lambda rows, columns: rows * columns // 64),
    "blocks256": Granularity(1, 256, lambda rows, columns: rows * columns // 256),
}


C_ORDER = "c"


class Operation(NamedTuple):
    """Which bytes an operation must move: of values, of codes, of scales given and of parameters that it computes.

    An operation that `twice` reads its input, where the range is not known before all of it was read. Its title is that
    of its function, if it has none.
    """

    read: str
    written: str
    twice: tuple[str, ...] = ()
    title: str = ""


OPERATIONS = {
    "minmax": Operation("values", ""),
    "quantize_linear": Operation("values", "codes"),
    "dequantize_linear": Operation("codes scales", "values"),
    "dequantize": Operation("codes scales", "values"),
    # a range along columns ends with the last row
    "quantize": Operation("values", "codes parameters", ("tensor", "columns")),
    "fake_quantize": Operation("values scales", "values"),
    "fake_quantize_range": Operation("values", "values", ("tensor",), title="fake_quantize, own range"),
    "requantize": Operation("values", "codes"),
    "compare": Operation("values codes", ""),
    "pack": Operation("bytes", "codes"),
    "unpack": Operation("codes", "bytes"),
    "bitround": Operation("values", "values"),
    "gguf_quantize": Operation("values", "codes"),
    "gguf_dequantize": Operation("codes", "values"),
}


class Work(NamedTuple):
    """A row of the table; the layout in memory is that of the first operand, a row of `data.LAYOUTS`."""

    operation: str
    dtype: str = "float32"
    code: str = "int8"
    granularity: str = "tensor"
    layout: str = C_ORDER

    @property
    def name(self) -> str:
        """Name for the command line and the results: "quantize/float32/int8/rows", and a layout other than C order."""
        return "/".join(self if self.layout != C_ORDER else self[:-1])

    @property
    def function(self) -> str:
        """The public function, with its module."""
        return self.operation.replace("gguf_", "gguf.").removesuffix("_range")

    @property
    def title(self) -> str:
        """Words for tables: what differs from float32, int8 and one scale is said."""
        format_ = [] if self.operation in ("minmax", "bitround") else [self.code]
        parts = [*([self.dtype] if self.dtype not in ("float32", "int8") else []), *format_]
        parts += [self.granularity] if self.granularity != "tensor" else []
        parts += [self.layout] if self.layout != C_ORDER else []
        return " ".join([OPERATIONS[self.operation].title or self.function, *parts])

    @property
    def symmetric(self) -> bool:
        """Whether zero is in the middle of the codes: where channels or blocks have scales of their own."""
        return self.granularity != "tensor"

    @property
    def prescribed(self) -> bool:
        """Whether the code format prescribes blocks and scales."""
        return self.code in BLOCK_FORMATS or QTYPES[self.code].block_size > 0


# block formats whose scales are searched for
SEARCHED = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")

WORKS = (
    Work("minmax"),
    Work("quantize_linear"),
    Work("dequantize_linear"),
    Work("quantize", code="uint8"),
    Work("fake_quantize"),
    Work("fake_quantize_range", code="uint8"),
    *(Work("quantize", granularity=name) for name in ("rows", "columns", "blocks32")),
    *(Work("dequantize_linear", granularity=name) for name in ("rows", "columns", "blocks32")),
    Work("fake_quantize", granularity="blocks32"),
    Work("requantize", "int32"),
    Work("compare", code="uint8"),
    *(Work("quantize_linear", dtype) for dtype in ("float16", "bfloat16")),
    *(Work("quantize", code=code, granularity="blocks32") for code in ("int4", "mxfp4")),
    *(Work("dequantize", code=code, granularity="blocks32") for code in ("int4", "mxfp4")),
    *(Work("quantize_linear", code=code) for code in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")),
    Work("pack", "int8", "int4"),
    Work("unpack", "int8", "int4"),
    Work("bitround"),
    *(
        Work(operation, code=code, granularity=f"blocks{BLOCK_FORMATS[code].size}")
        for operation in ("gguf_quantize", "gguf_dequantize")
        for code in ("Q8_0", "Q4_0", *SEARCHED)
    ),
)

# Works that were slow at some size once, and one of each kind of call, with the share of the roofline's speed that they
# reach at least, from the size on that the gate asks of: the lowest one of Zen 4, Zen 5 and a Xeon, two threads,
# 2026-11-23 to 25.
GATE = {
    Work("dequantize", granularity="blocks32"): 0.63,
    Work("dequantize", code="int4", granularity="blocks32"): 0.61,
    Work("dequantize", granularity="blocks64"): 0.72,
    Work("dequantize", granularity="short_rows"): 0.59,
    Work("dequantize", granularity="columns"): 0.41,
    Work("dequantize", code="mxfp8_e4m3", granularity="blocks32"): 0.45,
    Work("fake_quantize", granularity="blocks32"): 0.81,
    Work("fake_quantize_range", granularity="short_rows"): 0.51,
    Work("quantize", code="int4", granularity="blocks32", layout="fortran"): 0.07,
    Work("quantize", code="uint8", layout="reversed"): 0.24,
    Work("quantize", granularity="rows", layout="fortran"): 0.06,
    Work("quantize_linear", layout="gaps"): 0.29,  # memory brings the gaps, too, which the roofline leaves out
    Work("quantize_linear", granularity="rows", layout="swapped"): 0.21,
    Work("compare", granularity="blocks32"): 0.13,
    Work("compare", code="float8_e4m3fn"): 0.1,
    Work("gguf_quantize", code="Q8_0", granularity="blocks32"): 0.36,
    Work("gguf_dequantize", code="Q4_0", granularity="blocks32"): 0.7,
}
EVERY_WORK = tuple(dict.fromkeys((*WORKS, *GATE)))

# titles of the rows of the README's table
HEADLINES = frozenset(
    {
        "minmax",
        "quantize_linear int8",
        "dequantize_linear int8",
        "quantize uint8",
        "fake_quantize int8",
        "quantize int8 rows",
        "quantize int4 blocks32",
        "quantize_linear float8_e4m3fn",
        "gguf.quantize Q4_0 blocks32",
        "gguf.dequantize Q8_0 blocks32",
    }
)


class Case(NamedTuple):
    """A work on 2**log2 elements; on nearly as many where a granularity has its own number of columns."""

    work: Work
    log2: int

    @property
    def name(self) -> str:
        """Name of the work and the size: "quantize/float32/int8/rows/2^18"."""
        return f"{self.work.name}/2^{self.log2}"

    @property
    def elements(self) -> int:
        """Elements of the array."""
        rows, columns = self.shape
        return rows * columns

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: 4096 columns as soon as that leaves 16 rows, but at least a block.

        An array of more than 2**PERIOD elements has the rows of the piece that it repeats.
        """
        granularity = GRANULARITIES[self.work.granularity]
        columns = max(min(COLUMNS, (1 << self.log2) // ROWS_AT_LEAST), granularity.block_size)
        columns = granularity.columns or columns
        rows = (1 << min(self.log2, PERIOD)) // columns
        return rows << max(0, self.log2 - PERIOD), columns

    def nbytes(self, what: str) -> int:
        """Bytes of the arrays that are named: values, codes, bytes (one code per byte), scales, parameters.

        A given scale of the whole array is a number, and no array.
        """
        return sum(self._sizes[name] for name in what.split())

    @property
    def _sizes(self) -> dict[str, int]:
        count = GRANULARITIES[self.work.granularity].count(*self.shape)
        return {
            "values": self.elements * ITEMSIZES.get(self.work.dtype, 1),
            "codes": code_bytes(self.work.code, self.elements),
            "bytes": self.elements,
            "scales": count * parameter_bytes(self.work.code)[0] if self.work.granularity != "tensor" else 0,
            "parameters": count * sum(parameter_bytes(self.work.code)),
        }

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes over memory that cannot be avoided."""
        operation = OPERATIONS[self.work.operation]
        read, written = self.nbytes(operation.read), self.nbytes(operation.written)
        first = (Pass(read, 0),) if self.work.granularity in operation.twice else ()
        return (*first, Pass(read, written))

    @property
    def bytes_moved(self) -> int:
        """Bytes that must move, of all passes."""
        return sum(map(sum, self.passes))


def code_bytes(code: str, elements: int) -> int:
    """Bytes of codes."""
    if code in BLOCK_FORMATS:
        return elements // BLOCK_FORMATS[code].size * BLOCK_FORMATS[code].nbytes
    return elements * QTYPES[code].bits // 8


def parameter_bytes(code: str) -> tuple[int, int]:
    """Bytes of a scale next to the codes, and of its zero point; none of a constant one, nor in blocks of GGUF."""
    if code in BLOCK_FORMATS:
        return 0, 0
    return (1, 0) if QTYPES[code].scale_element else (4, max(1, QTYPES[code].bits // 8))


def chosen(patterns: Iterable[str]) -> list[Work]:
    """Works whose operation, name or title fits one of the shell patterns; all without patterns."""
    wanted = list(patterns) or ["*"]
    names = {work: (work.operation, work.name, work.title) for work in WORKS}
    return [work for work, each in names.items() if any(fnmatchcase(name, p) for p in wanted for name in each)]


def cases(works: Iterable[Work], sizes: Iterable[int]) -> Iterator[Case]:
    """Every work at every size; the sizes one after the other, so that each work has some if time runs out."""
    works = list(works)
    return (Case(work, log2) for log2 in sizes for work in works)


@cache
def case_of(name: str) -> Case:
    """The case of a name; ValueError if the name is not that of a row of the table at a size."""
    work, _, size = name.rpartition("/2^")
    found = [row for row in EVERY_WORK if row.name == work]
    if not found or not size.isdigit():
        raise ValueError(f"case must be a name such as {Case(WORKS[0], 18).name!r}, not {name!r}")
    return Case(found[0], int(size))
