"""QType: the code formats, one table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True)
class QType:
    """An integer code format.

    Attributes
    ----------
    name : str
        Name as ONNX and ml_dtypes spell it.
    bits : int
        Width of one code.
    signed : bool
        Whether codes are two's complement.
    """

    name: str
    bits: int
    signed: bool

    @cached_property
    def qmin(self) -> int:
        """Smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @cached_property
    def qmax(self) -> int:
        """Largest code."""
        return (1 << (self.bits - self.signed)) - 1

    @cached_property
    def middle(self) -> int:
        """The code of zero in a symmetric scheme: 0 for signed formats, the middle of the range for unsigned ones."""
        return 0 if self.signed else 1 << (self.bits - 1)

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """NumPy dtype of an array that holds one code per element."""
        return np.dtype(f"{'int' if self.signed else 'uint'}{max(self.bits, 8)}")

    @cached_property
    def packed(self) -> bool:
        """Whether several codes share a byte in ``QuantizedArray.codes``."""
        return self.bits < 8

    def code_range(self, symmetric: bool) -> tuple[int, int]:
        """First and last code in use: the full range, or for a symmetric scheme as many codes below zero as above."""
        half = (1 << (self.bits - 1)) - 1
        return (self.middle - half, self.middle + half) if symmetric else (self.qmin, self.qmax)

    def __str__(self) -> str:
        return self.name


QTYPES = {
    row.name: row
    for row in (
        QType("int8", 8, True),
        QType("uint8", 8, False),
        QType("int16", 16, True),
        QType("uint16", 16, False),
        QType("int4", 4, True),
        QType("uint4", 4, False),
        QType("int2", 2, True),
        QType("uint2", 2, False),
    )
}


# what callers write most often: np.dtype(...).name takes longer than all else in a call on a small array
_KNOWN: dict[object, QType] = {row.name: row for row in QTYPES.values()}
_KNOWN |= {key: row for row in QTYPES.values() if not row.packed for key in (row.storage, row.storage.type)}


def as_qtype(dtype: object) -> QType:
    """Return the QType that a name, a QType or a NumPy / ml_dtypes dtype stands for.

    Raises
    ------
    TypeError
        If it is not one of the code formats.
    """
    try:
        return _KNOWN[dtype]
    except (KeyError, TypeError):
        pass
    if isinstance(dtype, QType):
        if QTYPES.get(dtype.name) != dtype:
            raise TypeError(f"dtype must be one of {', '.join(QTYPES)}, not {dtype!r}")
        return dtype
    try:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name  # type: ignore[call-overload]
    except TypeError:
        name = repr(dtype)
    if name not in QTYPES:
        raise TypeError(f"dtype must be one of {', '.join(QTYPES)}, not {name}")
    return QTYPES[name]
