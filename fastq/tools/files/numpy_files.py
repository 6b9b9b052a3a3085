"""Tensors in .npy and .npz files, read one at a time, .npy files through a memory map."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import reason, without_duplicates
from fastq.system.dtypes import ML_FLOATS, Array, numpy_dtype, safetensors_dtype
from fastq.tools.files.safetensors_files import Header
from fastq.tools.files.tensor_specs import METADATA, TensorSpec, bytes_of

# errors about a damaged file
DAMAGED = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
# readers by version of the format; the third one differs in names of fields, which arrays of numbers lack
NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPY_HEADERS[3, 0] = NPY_HEADERS[2, 0]


def name_of(path: Path) -> str:
    """Return the name of the only array of a file: the stem of the file, in characters that UTF-8 can encode."""
    return path.stem.encode("utf-8", "replace").decode()


class NpySource:
    """The array of a .npy file, named for the file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            header = _npy_header(file, path.stat().st_size)
            start = file.tell()
        self.path = path
        if header.nbytes:
            mapped = np.memmap(path, header.dtype, "r", offset=start, shape=header.shape, order=header.order)
            self._array = np.asarray(mapped)
        else:  # which can't be mapped
            self._array = np.empty(header.shape, header.dtype)
        name = name_of(path)
        self.tensors = {name: header.spec(name)}
        self.metadata: dict[str, str] = {}

    def load(self, name: str) -> Array:
        """Return the array, in the byte and memory order of the file; it has only one, whatever the name."""
        return self._array

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return its bytes in C order."""
        return bytes_of(self.load(name))


class NpzSource(NpySource):
    """The arrays of a .npz file, each read when it is needed. In files of fastq one more array has metadata as JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, TensorSpec] = {}
        self.metadata: dict[str, str] = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in self.tensors or name == member.filename:
                    reason_against = "not an array" if name == member.filename else "there twice"
                    raise ValueError(f"its member {member.filename!r} is {reason_against}")
                with archive.open(member) as file:
                    self.tensors[name] = _npy_header(file, member.file_size).spec(name)
        if METADATA in self.tensors and self.tensors[METADATA].dtype.startswith("str"):
            metadata = json.loads(str(self.load(METADATA)), object_pairs_hook=without_duplicates)
            if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
                raise ValueError(f"its {METADATA} must be a JSON object of strings")
            self.metadata = metadata
            del self.tensors[METADATA]

    def load(self, name: str) -> Array:
        """Return an array, in the byte and memory order of the file."""
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                header = _npy_header(file, archive.getinfo(f"{name}.npy").file_size)
                return np.ndarray(header.shape, header.dtype, file.read(header.nbytes), order=header.order)
        except (*DAMAGED, TypeError) as error:  # TypeError: the array has too few bytes
            raise ValueError(f"array {name!r} of {self.path.name} can't be read: {reason(error)}") from error


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
    # NumPy refuses this of the other axes even if one has no elements
    if math.prod(n for n in shape if n) * dtype.itemsize > np.iinfo(np.intp).max:
        raise ValueError(f"{dtype} of shape {shape} is more than memory can hold")
    nbytes = math.prod(shape) * dtype.itemsize
    bytes_after_header = size - file.tell()
    if nbytes > bytes_after_header:
        raise ValueError(f"{dtype} of shape {shape} takes {nbytes:,} bytes, and it has {bytes_after_header:,}")
    return NpyHeader(shape, "F" if fortran_order else "C", dtype, nbytes)


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
        """Write a tensor, and return its bytes: `rows` are all of its rows, since members of archives do not grow."""
        spec = self._specs[name]
        data = bytes_of(rows)
        self._write(name, numpy_dtype(spec.dtype), spec.shape, data)
        return data.nbytes

    def _write(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: NDArray[np.uint8]) -> None:
        """Write a member with the bytes of an array. Its date is fixed, so that the same tensors are the same bytes."""
        with self._archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
            write_npy_header(member, dtype, shape)
            member.write(data.data)

    def finish(self) -> None:
        """Write the metadata, if there is any."""
        if self._metadata:
            text = np.array(json.dumps(dict(self._metadata)))
            self._write(METADATA, text.dtype, (), bytes_of(text))


def write_npy_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the header of a .npy file for an array in C order."""
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
