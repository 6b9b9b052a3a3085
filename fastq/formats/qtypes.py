"""QType: the code formats, one table."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.codebooks import CODEBOOKS, Codebook
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.system.arguments import as_bool, as_dtype, as_int, as_str, check_fields, did_you_mean, native, shown
from fastq.system.attributes import cached_property

_ELEMENTS: dict[str, FloatFormat | Codebook] = {**FLOAT_FORMATS, **CODEBOOKS}


@dataclass(frozen=True)
class QType:
    """A code format.

    Attributes
    ----------
    name : str
        Name in ONNX and ml_dtypes; for formats with their own scales the name in the OCP specification.
    bits : int
        Width of one code.
    signed : bool
        Whether codes are two's complement, or have a sign bit.
    element : str
        Name of the float format or codebook of a code; empty if codes are integers.
    block_size : int
        Number of elements that share a scale, if the format prescribes it; else 0.
    scale_element : str
        Name of the float format of a scale, if the format prescribes it; else empty.
    container : str
        Name of the format whose storage holds codes of fewer bits, one per element; else empty.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> int4 = fastq.quantize(np.arange(4.0), "int4").dtype
    >>> int4.bits, int4.qmin, int4.qmax, int4.packed
    (4, -8, 7, True)
    """

    name: str
    bits: int
    signed: bool = True
    element: str = ""
    block_size: int = 0
    scale_element: str = ""
    container: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (1 <= self.bits <= 16 or self.bits == 32):
            raise ValueError(f"bits must be from 1 to 16, or 32, not {self.bits}")

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def float_format(self) -> FloatFormat | Codebook | None:
        """The float format of a code, or the table of its numbers; None if codes are integers."""
        return _ELEMENTS[self.element] if self.element else None

    @cached_property
    def codebook(self) -> Codebook | None:
        """The table of the numbers of codes, None without one."""
        return CODEBOOKS.get(self.element)

    @cached_property
    def is_float(self) -> bool:
        """Whether codes are floats, rather than integers or places in a table."""
        return self.element in FLOAT_FORMATS

    @cached_property
    def largest_element(self) -> float:
        """The largest number of a code in a block: integers count parts, of "mxint8" 64ths."""
        return self.float_format.max if self.float_format is not None else self.qmax / 2.0 ** (self.bits - 2)

    @cached_property
    def has_tensor_scale(self) -> bool:
        """Whether the scales of blocks are multiples of one scale for the whole array."""
        return bool(self.scale_element) and FLOAT_FORMATS[self.scale_element].sign

    @cached_property
    def qmin(self) -> int:
        """Smallest integer code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @cached_property
    def qmax(self) -> int:
        """Largest integer code."""
        return (1 << (self.bits - self.signed)) - 1

    @cached_property
    def middle(self) -> int:
        """The code of zero in a symmetric scheme: 0 for signed formats, the middle of the range for unsigned ones."""
        return 0 if self.signed else 1 << (self.bits - 1)

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """Dtype of an array with one code per element; one of ml_dtypes for float formats."""
        if self.element:
            return _ELEMENTS[self.element].dtype
        return np.dtype(self.container or f"{'int' if self.signed else 'uint'}{max(self.bits, 8)}")

    @cached_property
    def has_zero_point(self) -> bool:
        """Whether zero points may differ from 0; codes of 32 bits have offsets instead."""
        return not self.element and self.bits <= 16

    @cached_property
    def packed(self) -> bool:
        """Whether several codes share a byte in ``QuantizedArray.codes``."""
        return self.bits < 8 and not self.container

    @cached_property
    def format(self) -> str:
        """Name of the format whose storage codes use: that of the row, even if they use fewer bits of it."""
        return self.container or self.name

    @cached_property
    def fills_storage(self) -> bool:
        """Whether every value of the storage dtype is a code."""
        return not self.packed and not self.container

    def with_bits(self, bits: int) -> QType:
        """Return the format of codes with fewer bits in the storage of this one."""
        bits = as_int(bits, "bits")
        if self.packed or self.element or self.block_size or self.container:
            raise TypeError(f"bits needs dtype to be int8, uint8, int16 or uint16, not {self}")
        if not 2 <= bits <= self.bits:
            raise ValueError(f"bits must be from 2 to {self.bits} for {self}, not {bits}")
        return self if bits == self.bits else QType(f"{self}[{bits}]", bits, self.signed, container=self.name)

    def code_range(self, symmetric: bool) -> tuple[float, float]:
        """Return the first and last code in use: the full range, or if symmetric as many codes below zero as above.

        Float codes and those in blocks with their own scales are always symmetric.
        """
        return self.ranges[as_bool(symmetric, "symmetric")]

    @cached_property
    def ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The full range of codes, and the symmetric one, as `code_range` returns them."""
        if self.float_format is not None:
            return ((-self.float_format.max, self.float_format.max),) * 2
        half = (1 << (self.bits - 1)) - 1
        symmetric = self.middle - half, self.middle + half
        return symmetric if self.block_size else (self.qmin, self.qmax), symmetric

    def __str__(self) -> str:
        return self.name


def _integers() -> list[QType]:
    """Return the formats of integers, in the order in which tables and messages list them."""
    widths = (8, 16, 4, 2, 1, 3, 5, 6, 7)
    return [QType(f"{'' if signed else 'u'}int{bits}", bits, signed) for bits in widths for signed in (True, False)]


def _floats() -> list[QType]:
    """Return the formats whose codes are floats; those without a sign are for scales alone, those of 16 bits casts."""
    return [QType(name, row.bits, element=name) for name, row in FLOAT_FORMATS.items() if row.bits <= 8 and row.sign]


_E8M0 = "float8_e8m0fnu"
_E4M3 = "float8_e4m3fn"

# OCP Microscaling Formats (MX) 1.0, table 1; NVFP4 as in cuBLAS and TensorRT
_MICROSCALING = [
    QType("mxfp8_e5m2", 8, element="float8_e5m2", block_size=32, scale_element=_E8M0),
    QType("mxfp8_e4m3", 8, element=_E4M3, block_size=32, scale_element=_E8M0),
    QType("mxfp6_e3m2", 6, element="float6_e3m2fn", block_size=32, scale_element=_E8M0),
    QType("mxfp6_e2m3", 6, element="float6_e2m3fn", block_size=32, scale_element=_E8M0),
    QType("mxfp4", 4, element="float4_e2m1fn", block_size=32, scale_element=_E8M0),
    QType("mxint8", 8, block_size=32, scale_element=_E8M0),
    QType("nvfp4", 4, element="float4_e2m1fn", block_size=16, scale_element=_E4M3),
]

# sums of products of codes, such as biases, which ONNX's DequantizeLinear reads
SUMS = QType("int32", 32)
# codes that values are only quantized to under rows that name them, by parameters that are given: see `Convention`
WIDE = {row.name: row for row in (SUMS, QType("uint32", 32, signed=False))}

_TABLES = [QType(name, row.bits, element=name) for name, row in CODEBOOKS.items()]

QTYPES = {row.name: row for row in (*_integers(), *_floats(), *_TABLES, *_MICROSCALING)}
# floats to which values are cast: their exponents need no scale, so no range is taken and no array is quantized to them
CASTS = {name: QType(name, row.bits, element=name) for name, row in FLOAT_FORMATS.items() if row.bits == 16}
# what follows from the fields is kept with them, except for dtypes of ml_dtypes, which would be imported
_DERIVED = [name for name, each in vars(QType).items() if isinstance(each, cached_property) and name != "storage"]
for _row, _name in itertools.product((*QTYPES.values(), *CASTS.values(), *WIDE.values()), _DERIVED):
    getattr(_row, _name)

# for messages and help: the integers, and the starts of the other names
FAMILIES = "int1 to int8, int16, uint1 to uint8, uint16, " + ", ".join(
    dict.fromkeys(re.sub("_.*", "_*", row.name) for row in QTYPES.values() if row.element or row.block_size)
)
_SPELLINGS = {
    **dict.fromkeys(("fp8", "float8", "e4m3", "fp8_e4m3"), _E4M3),
    **dict.fromkeys(("e5m2", "fp8_e5m2"), "float8_e5m2"),
    "fp6": "float6_e3m2fn",
    "float4": "float4_e2m1fn",
    "mxfp8": "mxfp8_e4m3",
    "mxfp6": "mxfp6_e3m2",
    "qint8": "int8",
    "quint8": "uint8",
    "byte": "uint8",
} | {
    f"{prefix}{bits}": f"{kind}{bits}"
    for prefix, kind in (("i", "int"), ("s", "int"), ("u", "uint"))
    for bits in (4, 8, 16)
}
# NumPy counts bytes where others count bits: the meanings of its dtype codes that look like formats of one or two bits;
# an empty text looks like others
_OF_NUMPY = {"i1": "int8", "u1": "uint8", "i2": "int16", "u2": "uint16", "f2": "", "f4": "", "f8": ""}


# the most frequent arguments: np.dtype(...).name takes longer than the rest of a call on a small array
_KNOWN: dict[object, QType] = {key: row for row in QTYPES.values() for key in (row.name, row)}
_KNOWN |= {
    key: row
    for row in QTYPES.values()
    if not (row.packed or row.element or row.block_size)
    for key in (row.storage, row.storage.type)
}


_OF_LINEAR = QTYPES | CASTS | WIDE


def as_qtype(dtype: object, name: str = "dtype", casts: bool = False) -> QType:
    """Return the QType for a name, a QType or a dtype.

    `name` is that of the argument; `casts` allows `CASTS` and `WIDE`.
    """
    try:
        return _KNOWN[dtype]
    except Exception:  # not hashable, or not comparable
        pass
    rows, names = (_OF_LINEAR, f"{FAMILIES}, {', '.join(CASTS)}") if casts else (QTYPES, FAMILIES)
    if type(dtype) is QType and (_in_bits_of_a_row(dtype) or rows.get(dtype.name) == dtype):
        return dtype
    expected = f"one of the formats {names}"
    dtype_name = as_str(dtype, name) if issubclass(type(dtype), str) else as_dtype(dtype, name, expected).name
    if dtype_name not in rows:
        hint = "" if dtype_name in vars(np) else did_you_mean(dtype_name, QTYPES, _SPELLINGS | _OF_NUMPY)
        hint = "; fastq.quantize_linear casts to it" if dtype_name in CASTS else hint
        raise TypeError(f"{name} must be {expected}, not {shown(dtype_name)}{hint}")
    return rows[dtype_name]


def _in_bits_of_a_row(qtype: QType) -> bool:
    """Return whether this is a result of `with_bits` for a row."""
    row = QTYPES.get(qtype.container)
    return row is not None and 2 <= qtype.bits < row.bits and row.fills_storage and row.with_bits(qtype.bits) == qtype


# requirements of scales, by whether they may be negative and whether they may be 0
WANTED_SCALES = {
    (False, False): "positive and finite",
    (False, True): "finite and not negative",
    (True, False): "finite and not zero",
    (True, True): "finite",
}


# --- shape and dtype of stored codes ---------------------------------------------------------------------------------


def packed_length(length: int, qtype: QType) -> int:
    """Return the number of bytes in a row of codes."""
    return -(-length * qtype.bits // 8)


def packed_shape(shape: tuple[int, ...], qtype: QType, axis: int = -1) -> tuple[int, ...]:
    """Return the shape of packed codes: ``ceil(D * bits / 8)`` bytes along the axis; (1,) for rank 0."""
    sizes = list(shape) or [1]
    sizes[axis] = packed_length(sizes[axis], qtype)
    return tuple(sizes)


def stored_as(shape: tuple[int, ...], qtype: QType) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of the stored codes of an array with a shape."""
    return (packed_shape(shape, qtype), np.dtype(np.uint8)) if qtype.packed else (shape, qtype.storage)


def check_stored_codes(codes: NDArray[Any], qtype: QType, shape: tuple[int, ...]) -> None:
    """Raise an error unless codes have the shape and dtype that a format stores for an array with a shape."""
    expected, storage = stored_as(shape, qtype)
    if codes.shape != expected or native(codes.dtype) != storage:
        raise ValueError(
            f"codes have shape {codes.shape} and dtype {codes.dtype}, "
            f"but {qtype} codes of shape {shape} have shape {expected} and dtype {storage}"
        )
