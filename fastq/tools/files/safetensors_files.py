"""Tensors in .safetensors files, read one at a time through a memory map, and written in any order.

The safetensors library checks a file's header, but it can't load float8 into NumPy, and it only writes tensors that are
all in memory; so the bytes are read and written here.

`numpy_dtype` of fastq/system/dtypes.py has the NumPy dtype that a name such as "F8_E4M3" stands for, and
`safetensors_header` there writes the header: `QuantizedArray.save` makes such files, too, without that library.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import without_duplicates
from fastq.system.dtypes import ML_FLOATS, READ, Array, numpy_dtype, safetensors_header
from fastq.tools.files.tensor_specs import METADATA, TensorSpec, bytes_of

try:
    from safetensors import SafetensorError, safe_open
except ModuleNotFoundError as error:
    needed = "files of tensors need safetensors: pip install safetensors"
    raise ModuleNotFoundError(needed, name=error.name) from error

DAMAGED = (SafetensorError, ValueError)  # errors about a damaged file
LONGEST_HEADER = 100_000_000  # most bytes that the library reads


class SafetensorsSource:
    """The tensors of a .safetensors file."""

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="numpy") as checked:
            self.metadata: dict[str, str] = checked.metadata() or {}
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length), object_pairs_hook=without_duplicates)
        header.pop(METADATA, None)
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        self.tensors = {}
        self._starts = {}
        self.path = path
        for name, entry in entries:
            start, end = entry["data_offsets"]
            self.tensors[name] = TensorSpec(name, entry["dtype"], tuple(entry["shape"]), end - start)
            self._starts[name] = 8 + length + start

    def load(self, name: str) -> Array:
        """Return a tensor, mapped; raise ValueError if NumPy and ml_dtypes lack its dtype."""
        spec = self.tensors[name]
        if spec.dtype not in READ | ML_FLOATS:
            raise ValueError(f"{name!r} is {spec.dtype}, which NumPy lacks")
        return self.raw(name).view(numpy_dtype(spec.dtype)).reshape(spec.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, mapped; each tensor has its own map, so that the system can drop pages."""
        nbytes = self.tensors[name].nbytes
        if not nbytes:
            return np.empty(0, np.uint8)
        return np.asarray(np.memmap(self.path, np.uint8, "r", self._starts[name], (nbytes,)))

    def read_ahead(self, name: str) -> None:
        """Let the system start to read a tensor from disk, if it can."""
        if hasattr(os, "posix_fadvise"):
            with self.path.open("rb") as file:
                os.posix_fadvise(file.fileno(), self._starts[name], self.tensors[name].nbytes, os.POSIX_FADV_WILLNEED)


# Writing

# names in safetensors of NumPy dtypes that are copied, not computed with
OF_NUMPY = {"bool": "BOOL", "uint32": "U32", "uint64": "U64", "complex64": "C64"}


def as_safetensors(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a NumPy array in a .safetensors file; raise ValueError if it can't be in one.

    Specs of .npy and .npz files have the name in NumPy, in small letters, of dtypes that fastq does not compute with.
    """
    name = OF_NUMPY.get(spec.dtype, spec.dtype)
    if not name[:1].isupper():
        raise ValueError(f"array {spec.name!r} is {spec.dtype}, which fastq does not write")
    return replace(spec, dtype=name)


class Header:
    """The start of a .safetensors file, written before any data, with the position of each tensor."""

    def __init__(self, specs: Iterable[TensorSpec], metadata: Mapping[str, str]) -> None:
        self.specs: dict[str, TensorSpec] = {}
        for spec in sorted(specs, key=_order_in_file):
            if spec.name in self.specs:
                raise ValueError(f"two tensors would be named {spec.name!r}")
            if spec.name == METADATA:
                raise ValueError(f"a .safetensors file can't hold a tensor named {METADATA!r}")
            self.specs[spec.name] = spec
        tensors = {name: (spec.dtype, spec.shape, spec.nbytes) for name, spec in self.specs.items()}
        self.raw = safetensors_header(tensors, metadata)
        if len(self.raw) > LONGEST_HEADER:
            raise ValueError(f"a .safetensors file can't hold a header of {len(self.raw):,} bytes")
        # each tensor starts where the one before ends, the first behind the header; the last end is not needed
        ends = accumulate((spec.nbytes for spec in self.specs.values()), initial=len(self.raw))
        self.starts = dict(zip(self.specs, ends, strict=False))


def _order_in_file(spec: TensorSpec) -> tuple[float, str]:
    """Return the sort key of a tensor: wide elements first, which aligns all tensors, as in the safetensors library.

    Empty tensors come before all, since they need no alignment.
    """
    bytes_of_element = spec.nbytes / spec.size if spec.size else math.inf
    return -bytes_of_element, spec.name


class SafetensorsWriter:
    """Writes the tensors of a `Header` to a file in any order, each as a whole or row by row."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        self._file = file
        self._header = header
        self._next = dict(header.starts)  # position of the next bytes of each tensor
        file.write(header.raw)

    def write(self, name: str, array: Array) -> None:
        """Write a tensor; raise ValueError if its shape or dtype differs from the header."""
        spec = self._header.specs[name]
        if array.shape != spec.shape or array.dtype != numpy_dtype(spec.dtype):
            raise ValueError(f"{name!r} is {array.dtype} of shape {array.shape}, not {spec.dtype} of {spec.shape}")
        self.append(name, array)

    def append(self, name: str, rows: Array) -> int:
        """Write the next rows of a tensor, and return their bytes."""
        data = bytes_of(rows)
        self.write_raw(data, self.advance(name, data.nbytes))
        return data.nbytes

    def advance(self, name: str, nbytes: int) -> int:
        """Return the position of the next bytes of a tensor, which the caller writes there, maybe in another thread."""
        start = self._next[name]
        self._next[name] += nbytes
        return start

    def write_raw(self, data: NDArray[np.uint8], start: int) -> None:
        """Write bytes at a position of the file."""
        self._file.seek(start)
        self._file.write(data.data)

    def finish(self) -> None:
        """Raise ValueError unless all tensors are complete."""
        for name, spec in self._header.specs.items():
            if (nbytes := self._next[name] - self._header.starts[name]) != spec.nbytes:
                raise ValueError(f"{name!r} has {nbytes:,} bytes, not {spec.nbytes:,}")
