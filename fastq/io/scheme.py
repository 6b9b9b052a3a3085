"""Scheme: how the command line quantizes a tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastq.formats.conventions import as_convention
from fastq.results import Axis


@dataclass(frozen=True)
class Scheme:
    """The arguments of `fastq.quantize` that choose codes and granularity; each means what it means there."""

    dtype: str  # name of the code format
    axis: Axis = None  # channel axis, or the axis along which blocks run
    block_size: int = 0  # elements in a block; 0 without blocks
    symmetric: bool = False  # whether zero lies in the middle of the codes
    range: str = "minmax"  # how ranges are taken
    convention: str = "onnx"  # whose arithmetic to follow

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `fastq.quantize`."""
        return dict(vars(self))

    def arguments_for(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the same for values of a dtype: scales of half precision are rounded to it, as files hold them."""
        row = as_convention(self.convention)
        if row.stored_type != "compute" or row.rounded_to(dtype).scale:
            return self.arguments()
        return {**self.arguments(), "convention": replace(row, stored_type="input")}

    def fitted(self, ndim: int) -> Scheme:
        """Return the scheme for an array of `ndim` dimensions.

        A channel of a vector is a single element, so vectors get one scale each; scalars always do.

        ValueError if an array of two or more dimensions lacks the axis.
        """
        if ndim < (1 if self.block_size else 2):
            return replace(self, axis=None, block_size=0)
        if isinstance(self.axis, int) and not -ndim <= self.axis < ndim:
            raise ValueError(f"axis {self.axis} is out of bounds for {ndim} dimensions")
        return self

    def __str__(self) -> str:
        blocks = f" blocks of {self.block_size}" if self.block_size else ""
        method = "" if self.range == "minmax" else f" {self.range}"
        whose = "" if self.convention == "onnx" else f" {self.convention}"
        where = "" if self.axis is None else f" axis={self.axis}"
        return f"{self.dtype}{where}{blocks}{' symmetric' if self.symmetric else ''}{method}{whose}"
