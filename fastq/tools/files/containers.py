"""Tensors in .npy, .npz and .safetensors files: read one at a time, if possible through a memory map.

The safetensors library checks a file's header, but it can't load float8 into NumPy, and it only writes tensors that are
all in memory; so the bytes are read and written here.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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

POINTER = b"version https://git-lfs."  # the start of a file in a clone without Git LFS
METADATA = "__metadata__"  # the entry in the header of a .safetensors file that is not a tensor
LONGEST_HEADER = 100_000_000  # most bytes that the library reads
# readers by version of the format; the third one differs in names of fields, which arrays of numbers lack
NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPY_HEADERS[3, 0] = NPY_HEADERS[2, 0]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as a safetensors header describes it."""

    name: str  # unique in its file
    dtype: str  # the name in safetensors: F32, BF16, I8, ..
    shape: tuple[int, ...]  # elements on each axis
    nbytes: int  # bytes of the data

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def spec_of(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """Return the spec of a tensor of a known dtype."""
    return TensorSpec(name, dtype, shape, math.prod(shape) * numpy_dtype(dtype).itemsize)


# Reading


def name_of(path: Path) -> str:
    """Return the name of the one array of a file: that of the file, in characters that UTF-8 can encode."""
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
    """The arrays of a .npz file, each read when it is asked for; one is a text, JSON of metadata, if fastq wrote it."""

    def __init__(self, path: Path) -> None:
        self.path, self.tensors = path, dict[str, TensorSpec]()
        self.metadata: dict[str, str] = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in self.tensors or name == member.filename:
                    held = "not an array" if name == member.filename else "there twice"
                    raise ValueError(f"its member {member.filename!r} is {held}")
                with archive.open(member) as file:
                    self.tensors[name] = _npy_header(file, member.file_size).spec(name)
        if METADATA in self.tensors and self.tensors[METADATA].dtype.startswith("str"):
            found = json.loads(str(self.load(METADATA)), object_pairs_hook=without_duplicates)
            if not (isinstance(found, dict) and all(isinstance(value, str) for value in found.values())):
                raise ValueError(f"its {METADATA} is not an object with texts")
            self.metadata = found
            del self.tensors[METADATA]

    def load(self, name: str) -> Array:
        """Return an array, in the byte and memory order of the file."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                header = _npy_header(file, archive.getinfo(f"{name}.npy").file_size)
                return np.ndarray(header.shape, header.dtype, file.read(header.nbytes), order=header.order)
        except (*DAMAGED, TypeError) as error:  # TypeError: the array has too few bytes
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
            raise ValueError(f"{name!r} is {spec.dtype}, which fastq does not read")
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


TensorSource = NpySource | SafetensorsSource
SOURCES: dict[str, Callable[[Path], TensorSource]] = {
    ".npy": NpySource,
    ".npz": NpzSource,
    ".safetensors": SafetensorsSource,
}
DAMAGED = SafetensorError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError


def open_source(path: Path, suffix: str = "") -> TensorSource:
    """Return the tensors of a file by `suffix` or its own, .safetensors if unknown; raise ValueError if damaged."""
    if not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    try:
        return SOURCES.get(suffix or path.suffix, SafetensorsSource)(path)
    except DAMAGED as error:
        check_pointer(path)
        raise ValueError(f"{path.name} is not a readable {path.suffix} file: {reason(error)}") from error


def check_pointer(path: Path) -> None:
    """Raise ValueError if a file is the pointer that a clone without Git LFS has instead."""
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ValueError(f"{path.name} is a pointer of Git LFS; git lfs pull fetches the file")


class NpyHeader(NamedTuple):
    """The header of an array in a .npy file or .npz member; it is checked before memory is allocated."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    nbytes: int

    def spec(self, name: str) -> TensorSpec:
        """Return the array as a tensor."""
        return TensorSpec(name, safetensors_dtype(self.dtype) or self.dtype.name, self.shape, self.nbytes)


def _npy_header(file: IO[bytes], size: int) -> NpyHeader:
    """Read the header of the array in `size` bytes; raise ValueError if it is invalid, or they are too few."""
    version = np.lib.format.read_magic(file)
    if version not in NPY_HEADERS:
        raise ValueError(f"version {version[0]}.{version[1]} of the format is not known")
    try:
        shape, fortran_order, dtype = NPY_HEADERS[version](file)
    except Exception as error:  # tokenize.TokenError, RecursionError, IndexError, ...: NumPy evaluates the header
        raise ValueError(f"its header is invalid: {error}") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not unpickled")
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"its shape {shape} must be integers of 0 or more")
    if math.prod(n for n in shape if n) * dtype.itemsize > np.iinfo(np.intp).max:
        raise ValueError(f"{dtype} of shape {shape} is more than memory can hold")
    nbytes = math.prod(shape) * dtype.itemsize
    left = size - file.tell()
    if nbytes > left:
        raise ValueError(f"{dtype} of shape {shape} takes {nbytes:,} bytes, and it has {left:,}")
    return NpyHeader(shape, "F" if fortran_order else "C", dtype, nbytes)


# Writing

# dtypes that are copied, not computed with
OF_NUMPY = {"bool": "BOOL", "uint32": "U32", "uint64": "U64", "complex64": "C64"}


def as_safetensors(spec: TensorSpec) -> TensorSpec:
    """Return the spec of a NumPy array in a .safetensors file; raise ValueError if it can't be in one."""
    name = OF_NUMPY.get(spec.dtype, spec.dtype)
    if not name[:1].isupper():
        raise ValueError(f"array {spec.name!r} is {spec.dtype}, which fastq does not write")
    return replace(spec, dtype=name)


class Header:
    """The start of a .safetensors file, written before any data, with the position of each tensor."""

    def __init__(self, specs: Iterable[TensorSpec], metadata: Mapping[str, str]) -> None:
        self.specs: dict[str, TensorSpec] = {}
        # wide elements first, which aligns all tensors, as in the safetensors library
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
    """Writes the tensors of a `Header` to a file in any order, each as a whole or row by row."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        self._file = file
        self._header = header
        self._next = dict(header.starts)
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
        self.write_raw(data, self.take(name, data.nbytes))
        return data.nbytes

    def take(self, name: str, nbytes: int) -> int:
        """Return the position of the next bytes of a tensor, and count them."""
        self._next[name] += nbytes
        return self._next[name] - nbytes

    def write_raw(self, data: NDArray[np.uint8], start: int) -> None:
        """Write bytes at a position of the file."""
        self._file.seek(start)
        self._file.write(data.data)

    def finish(self) -> None:
        """Raise ValueError unless all tensors are complete."""
        for name, spec in self._header.specs.items():
            if (nbytes := self._next[name] - self._header.starts[name]) != spec.nbytes:
                raise ValueError(f"{name!r} has {nbytes:,} bytes, not {spec.nbytes:,}")


class NpzWriter:
    """Writes tensors into a .npz file, each of them whole; `numpy.load` reads it."""

    def __init__(self, archive: zipfile.ZipFile, header: Header, metadata: Mapping[str, str]) -> None:
        self._archive = archive
        self._specs = header.specs
        self._metadata = metadata
        for spec in self._specs.values():
            if spec.dtype in ML_FLOATS:
                raise ValueError(f"{spec.name!r} is {spec.dtype}, which .npz files do not hold; write .safetensors")
            if "\0" in spec.name:  # zipfile would cut the name there
                raise ValueError(f".npz files hold no name like {spec.name!r}; write .safetensors")

    def append(self, name: str, rows: Array) -> int:
        """Write a tensor, and return its bytes."""
        spec = self._specs[name]
        data = bytes_of(rows)
        self._write(name, numpy_dtype(spec.dtype), spec.shape, data)
        return data.nbytes

    def _write(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: NDArray[np.uint8]) -> None:
        # of a fixed date, so that the same tensors are the same bytes
        with self._archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
            write_npy_header(member, dtype, shape)
            member.write(data.data)

    def finish(self) -> None:
        """Write the metadata, if there is any."""
        if self._metadata:
            text = np.array(json.dumps(dict(self._metadata)))
            self._write(METADATA, text.dtype, (), bytes_of(text))


@contextmanager
def writer_of(file: BinaryIO, out: Path, header: Header, metadata: Mapping[str, str]) -> Iterator[Any]:
    """Return what writes tensors in the form of the suffix of `out`."""
    if out.suffix == ".npz":
        with zipfile.ZipFile(file, "w") as archive:  # it ends the archive while the file is open, after errors, too
            yield NpzWriter(archive, header, metadata)
    else:
        yield SafetensorsWriter(file, header)


def write_npy_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write what precedes the bytes of an array in C order in a .npy file."""
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """Return the bytes of an array in C order, little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
