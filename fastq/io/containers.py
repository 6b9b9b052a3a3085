"""Tensors in .npy, .npz and .safetensors files: read one at a time, through a memory map where there is one.

The safetensors library checks a file's header, but it can't load float8 into NumPy, and it writes only what is all in
memory; so the bytes are read and written here.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import reason, without_duplicates
from fastq.system.dtypes import ML_FLOATS, READ, Array, numpy_dtype, safetensors_dtype, safetensors_header

try:
    from safetensors import SafetensorError, safe_open
except ModuleNotFoundError as error:
    needed = "files of tensors need safetensors: pip install safetensors"
    raise ModuleNotFoundError(needed, name=error.name) from error

POINTER = b"version https://git-lfs."  # what a clone without Git LFS has for a file
METADATA = "__metadata__"  # what is no tensor in the header of a .safetensors file
LONGEST_HEADER = 100_000_000  # bytes that the library reads
# by the version of the format; the third one differs in names of fields, which arrays of numbers do not have
NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPY_HEADERS[3, 0] = NPY_HEADERS[2, 0]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as a safetensors header describes it."""

    name: str  # unique in its file
    dtype: str  # as safetensors spells it: F32, BF16, I8, ..
    shape: tuple[int, ...]  # elements on each axis
    nbytes: int  # bytes of the data

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def spec_of(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """Return the spec of a tensor of one of the dtypes known here."""
    return TensorSpec(name, dtype, shape, math.prod(shape) * numpy_dtype(dtype).itemsize)


# Reading


def name_of(path: Path) -> str:
    """Return what the one array of a file is called: as the file, in characters that UTF-8 has."""
    return path.stem.encode("utf-8", "replace").decode()


class NpySource:
    """The array of a .npy file, named for the file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            header = _npy_header(file, path.stat().st_size)
            start = file.tell()
        self.path, self._array = path, np.empty(header.shape if not header.nbytes else 0, header.dtype)
        if header.nbytes:
            self._array = np.asarray(np.memmap(path, header.dtype, "r", start, header.shape, header.order))
        name = name_of(path)
        self.tensors = {name: header.spec(name)}
        self.metadata: dict[str, str] = {}

    def load(self, name: str) -> Array:
        """Return the array, in the byte and memory order of the file."""
        return self._array

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return its bytes in C order."""
        return bytes_of(self.load(name))


class NpzSource(NpySource):
    """The arrays of a .npz file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path, self.tensors = path, dict[str, TensorSpec]()
        self.metadata: dict[str, str] = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in self.tensors or name == member.filename:
                    held = "no array" if name == member.filename else "there twice"
                    raise ValueError(f"its member {member.filename!r} is {held}")
                with archive.open(member) as file:
                    self.tensors[name] = _npy_header(file, member.file_size).spec(name)

    def load(self, name: str) -> Array:
        """Return an array, in the byte and memory order of the file."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                header = _npy_header(file, archive.getinfo(f"{name}.npy").file_size)
                return np.ndarray(header.shape, header.dtype, file.read(header.nbytes), order=header.order)
        except (*DAMAGED, TypeError) as error:  # TypeError: of an array whose bytes are too few
            raise ValueError(f"array {name!r} of {self.path.name} can't be read: {reason(error)}") from error


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
        self.tensors, self._starts, self.path = {}, {}, path
        for name, entry in entries:
            start, end = entry["data_offsets"]
            self.tensors[name] = TensorSpec(name, entry["dtype"], tuple(entry["shape"]), end - start)
            self._starts[name] = 8 + length + start

    def load(self, name: str) -> Array:
        """Return a tensor, mapped; ValueError if NumPy and ml_dtypes lack its dtype."""
        spec = self.tensors[name]
        if spec.dtype not in READ | ML_FLOATS:
            raise ValueError(f"{name!r} is {spec.dtype}, which fastq does not read")
        return self.raw(name).view(numpy_dtype(spec.dtype)).reshape(spec.shape)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, mapped; one map a tensor, so that the pages read so far can go."""
        nbytes = self.tensors[name].nbytes
        if not nbytes:
            return np.empty(0, np.uint8)
        return np.asarray(np.memmap(self.path, np.uint8, "r", self._starts[name], (nbytes,)))

    def read_ahead(self, name: str) -> None:
        """Let the system begin to read a tensor from disk, where it can."""
        if hasattr(os, "posix_fadvise"):
            with self.path.open("rb") as file:
                os.posix_fadvise(file.fileno(), self._starts[name], self.tensors[name].nbytes, os.POSIX_FADV_WILLNEED)


TensorSource = NpySource | SafetensorsSource
SOURCES: dict[str, Callable[[Path], TensorSource]] = {
    ".npy": NpySource,
    ".npz": NpzSource,
    ".safetensors": SafetensorsSource,
}
DAMAGED = SafetensorError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError


def open_source(path: Path, suffix: str = "") -> TensorSource:
    """Return the tensors of the file at `path`, by its suffix or another one; what `SOURCES` lacks is .safetensors.

    ValueError if the file is damaged, or is a pipe or a device.
    """
    if not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    try:
        return SOURCES.get(suffix or path.suffix, SafetensorsSource)(path)
    except DAMAGED as error:
        check_pointer(path)
        raise ValueError(f"{path.name} is not a readable {path.suffix} file: {reason(error)}") from error


def check_pointer(path: Path) -> None:
    """Raise ValueError if a file is what a clone without Git LFS has in its place."""
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ValueError(f"{path.name} is a pointer of Git LFS; git lfs pull fetches the file")


class NpyHeader(NamedTuple):
    """What a .npy file, or a member of a .npz file, says of its array; it was checked before memory is taken."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    nbytes: int

    def spec(self, name: str) -> TensorSpec:
        """Return the array as a tensor."""
        return TensorSpec(name, safetensors_dtype(self.dtype) or self.dtype.name, self.shape, self.nbytes)


def _npy_header(file: IO[bytes], size: int) -> NpyHeader:
    """Read the header of the array in `size` bytes; ValueError if no array has it, or they are too few."""
    version = np.lib.format.read_magic(file)
    if version not in NPY_HEADERS:
        raise ValueError(f"version {version[0]}.{version[1]} of the format is not known")
    try:
        shape, fortran_order, dtype = NPY_HEADERS[version](file)
    except Exception as error:  # tokenize.TokenError, RecursionError, IndexError, ...: NumPy evaluates the header
        raise ValueError(f"its header makes no sense: {error}") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not unpickled")
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"its shape {shape} must be integers of 0 or more")
    if math.prod(n for n in shape if n) * dtype.itemsize > np.iinfo(np.intp).max:
        raise ValueError(f"{dtype} of shape {shape} is more than memory can hold")
    nbytes, left = math.prod(shape) * dtype.itemsize, size - file.tell()
    if nbytes > left:
        raise ValueError(f"{dtype} of shape {shape} takes {nbytes:,} bytes, and it has {left:,}")
    return NpyHeader(shape, "F" if fortran_order else "C", dtype, nbytes)


# Writing

OF_NUMPY = {"bool": "BOOL", "uint32": "U32", "uint64": "U64", "complex64": "C64"}  # that are copied, not computed with


def as_safetensors(spec: TensorSpec) -> TensorSpec:
    """Return what an array of NumPy is in a .safetensors file; ValueError if it can't be in one."""
    name = OF_NUMPY.get(spec.dtype, spec.dtype)
    if not name[:1].isupper():
        raise ValueError(f"array {spec.name!r} is {spec.dtype}, which a .safetensors file can't hold")
    return replace(spec, dtype=name)


class Header:
    """What a .safetensors file begins with, known before any data: where each tensor goes.

    ValueError if two tensors have the same name or one has a name that none can have, or the header is too long.
    """

    def __init__(self, specs: Iterable[TensorSpec], metadata: Mapping[str, str]) -> None:
        self.specs: dict[str, TensorSpec] = {}
        # wide elements first, which aligns all of them, as the safetensors library does
        for spec in sorted(specs, key=lambda it: (-it.nbytes / it.size if it.size else -math.inf, it.name)):
            if spec.name in self.specs:
                raise ValueError(f"two tensors would be named {spec.name!r}")
            if spec.name == METADATA:
                raise ValueError(f"a .safetensors file can't hold a tensor named {METADATA!r}")
            self.specs[spec.name] = spec
        tensors = {name: (spec.dtype, spec.shape, spec.nbytes) for name, spec in self.specs.items()}
        self.raw = safetensors_header(tensors, metadata)
        if len(self.raw) > LONGEST_HEADER:
            raise ValueError(f"a .safetensors file can't hold a header of {len(self.raw):,} bytes")
        ends = accumulate((spec.nbytes for spec in self.specs.values()), initial=len(self.raw))
        self.starts = dict(zip(self.specs, ends, strict=False))


class SafetensorsWriter:
    """Writes the tensors of a `Header` into a file, in any order, each whole or some rows after the other."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        self._file, self._header = file, header
        self._next = dict(header.starts)
        file.write(header.raw)

    def write(self, name: str, array: Array) -> None:
        """Write a tensor; ValueError if its shape or dtype is not the promised one."""
        spec = self._header.specs[name]
        if array.shape != spec.shape or array.dtype != numpy_dtype(spec.dtype):
            raise ValueError(f"{name!r} is {array.dtype} of shape {array.shape}, not {spec.dtype} of {spec.shape}")
        self.append(name, array)

    def append(self, name: str, rows: Array) -> int:
        """Write the next rows of a tensor, and return their bytes."""
        data = bytes_of(rows)
        self.write_raw(data, self.take(name, data.nbytes))
        return data.nbytes

    def take(self, name: str, nbytes: int) -> int:
        """Return where the next bytes of a tensor go, and count them."""
        self._next[name] += nbytes
        return self._next[name] - nbytes

    def write_raw(self, data: NDArray[np.uint8], start: int) -> None:
        """Write bytes at a place of the file."""
        self._file.seek(start)
        self._file.write(data.data)

    def finish(self) -> None:
        """Pass if all tensors are whole; else ValueError."""
        for name, spec in self._header.specs.items():
            if (nbytes := self._next[name] - self._header.starts[name]) != spec.nbytes:
                raise ValueError(f"{name!r} has {nbytes:,} bytes, not {spec.nbytes:,}")


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """Return the bytes of an array in C order, little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
