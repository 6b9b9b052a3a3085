"""What a call consists of besides its arrays: the arithmetic, and the place of parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.kernels.rule import ONNX, Rule
from fastq.kernels.storage import StorageFormat
from fastq.system.lazy import cached_property

Bounds = tuple[float, float]  # the first and the last code in use


class How(NamedTuple):
    """The arithmetic of a call, and how codes and scales lie in memory where their dtype does not say it.

    Attributes
    ----------
    rule : Rule
        The convention's arithmetic.
    code : StorageFormat or None
        The form of the codes; None: that of their dtype.
    steps : StorageFormat or None
        The form of the scales, where the format prescribes one.
    """

    rule: Rule = ONNX
    code: StorageFormat | None = None
    steps: StorageFormat | None = None

    @property
    def packed(self) -> bool:
        """Whether codes share bytes."""
        return self.code is not None and self.code.packed

    @property
    def apart(self) -> How:
        """The same for codes one in a byte."""
        form = self.code and self.code.unpacked
        return self._replace(code=form if isinstance(form, StorageFormat) else None)

    @property
    def given(self) -> How:
        """The same where parameters are given."""
        return self._replace(rule=self.rule._replace(range=None))


PLAIN = How()


class Ranging(NamedTuple):
    """How parameters are taken from a range ("symmetric", "asymmetric", ...), and the dtypes of what is written."""

    scheme: str
    steps: np.dtype[Any]
    zeros: np.dtype[Any]


GIVEN = Ranging("", np.dtype(np.float32), np.dtype(np.int8))  # no parameters are taken and nothing is written


@dataclass(frozen=True, eq=False)
class Call:
    """All of a call but its arrays; there is one for each, which caches know by its identity.

    Hashing all that it consists of would take a small call 1 us.

    Attributes
    ----------
    does : {"quantize", "dequantize", "fake", "compare"}
        The action.
    how : How
        The arithmetic.
    bounds : tuple of float
        The first and the last code in use.
    axes : tuple of int or None
        The axes that keep parameters of their own, sorted and not negative; None: one set for the array.
    block_size : int
        Elements in a block along the one axis; 0: no blocks.
    nan : {"raise", "zero", "keep"}
        What to do with NaN.
    ranging : Ranging
        How parameters are taken from ranges; `GIVEN` where they are given.
    """

    does: str
    how: How = PLAIN
    bounds: Bounds = (0, 0)
    axes: tuple[int, ...] | None = None
    block_size: int = 0
    nan: str = "raise"
    ranging: Ranging = GIVEN

    @cached_property
    def apart(self) -> Call:
        """The same for codes one in a byte."""
        return replace(self, how=self.how.apart)

    @cached_property
    def given(self) -> Call:
        """The same where parameters are given."""
        return replace(self, how=self.how.given, ranging=GIVEN)


class Parameters(NamedTuple):
    """Scales, zero points, and the scale of the whole array that scales are in units of, 0 where there is none."""

    scale: NDArray[Any]
    zero: NDArray[Any]
    tensor: float = 0.0

    @property
    def in_bits(self) -> Parameters:
        """The same as kernels can read them."""
        return self._replace(scale=in_bits(self.scale), zero=in_bits(self.zero))


def in_bits(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that kernels can read: that of a dtype of ml_dtypes as the bits of its elements."""
    return array if array.dtype.kind in "iu" or array.dtype.itemsize > 1 else array.view(np.uint8)
