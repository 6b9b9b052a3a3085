"""The variables of netCDF files and zarr stores as tensors, which are read part by part."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system.dtypes import Array
from fastq.tools.files.pipeline import Progress
from fastq.tools.tensors.extent import Extent, extent_of
from fastq.tools.tensors.netcdf_zarr import ROUNDED, StoredVariable, is_packed, packing_of
from fastq.tools.tensors.tensor import Tensor

MADE_UP = re.compile(r"phony_dim_\d+")  # names of dimensions by netCDF and h5netcdf, which number them differently


@dataclass(frozen=True, kw_only=True)
class VariableTensor(Tensor):
    """A variable of a netCDF file or a zarr store; its values are decoded, except for times."""

    variable: StoredVariable

    @classmethod
    def of(cls, stored: StoredVariable) -> VariableTensor:
        """Return a variable as a tensor."""
        variable = stored.variable
        dtype = np.dtype(variable.encoding.get("dtype") or variable.dtype)
        packing = packing_of(variable)
        scheme = f"{dtype}{', packed' * is_packed(variable)}{', rounded' * any(key in packing for key in ROUNDED)}"
        return cls(
            name=stored.name,
            shape=variable.shape,
            scheme=stored.special or scheme,
            # without compression, which only the sizes of files and stores have: `fastq compare` prints these below
            nbytes=variable.size * dtype.itemsize,
            # of float64, too: only `fastq dequantize` looks at this, which takes no such files
            original_dtype="F32",
            # also if it was rounded only: its values are an approximation, whose errors count in the sums of a table
            is_quantized=bool(packing),
            has_numbers=variable.dtype.kind in "fiu" and not stored.special,
            variable=stored,
        )

    def load(self) -> Array:
        """Return the values."""
        with self.open_parts() as read:
            return read(())

    def raw(self) -> NDArray[np.uint8]:
        """Return the bytes of the values: those of texts, or of lists and records after their length."""
        values = self.load()
        if self.variable.special:  # `str` of a long array leaves elements out
            return np.frombuffer(b"".join(_bytes_after_length(value) for value in values.ravel()), np.uint8)
        return np.frombuffer("\0".join(map(str, values.ravel().tolist())).encode("utf-8", "replace"), np.uint8)

    @property
    def is_read_in_parts(self) -> bool:
        """Whether its values can be read part by part."""
        return True

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunks of its storage, with which parts are aligned."""
        preferred = self.variable.variable.encoding.get("preferred_chunks", {})
        return tuple(preferred.get(dim, 1) for dim in self.variable.variable.dims)

    @contextlib.contextmanager
    def open_parts(self) -> Iterator[Callable[[Any], Array]]:
        """Open the file, and yield the function that returns the values of a part."""
        with self.variable.reader() as read:
            yield read

    def extent(self, progress: Progress) -> Extent:
        """Return the statistics of the values without outlier channels, computed part by part."""
        statistics = Extent()
        with self.open_parts() as read:
            for part in self.parts():
                values = read(part)
                statistics = statistics.with_more(extent_of(values.ravel()))
                progress(self.nbytes_of(values), 0)
        return statistics

    @property
    def packing(self) -> Mapping[str, Any]:
        """The attributes of its packing or its rounding."""
        return packing_of(self.variable.variable)

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of its dimensions; empty if one has none, for which readers of HDF5 make up names."""
        dims = tuple(self.variable.variable.dims)
        return () if any(map(MADE_UP.fullmatch, map(str, dims))) else dims

    def labels(self) -> Mapping[str, Any]:
        """Return the coordinates of its dimensions by their names."""
        return self.variable.labels()


def _bytes_after_length(value: Any) -> bytes:
    """Return the bytes of a list or a record, after their number."""
    stored = np.asarray(value).tobytes()
    return len(stored).to_bytes(8, "little") + stored
