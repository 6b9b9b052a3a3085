"""Shared parts of the files of calibrators, arrays and parameters: paths, conventions as JSON, array elements."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QType, as_qtype
from fastq.system.arguments import native, reason, shown

_OF_OTHER_FORMATS = (
    *(".npy", ".npz", ".gguf", ".txt", ".csv", ".json", ".pkl", ".pickle", ".pt", ".pth", ".onnx", ".tflite"),
    *(".h5", ".hdf5", ".nc", ".zarr", ".mat", ".parquet", ".arrow", ".feather", ".tsv", ".toml", ".yaml", ".yml"),
)

# by the format that a file names: its writer and its reader
SAVED = {
    "fastq.QuantizedArray": ("QuantizedArray.save", "fastq.load"),
    "fastq.QParams": ("QParams.save", "fastq.QParams.load"),
}


def as_name(path: Any) -> Path:
    """Return a path to anything or to nothing yet; raise TypeError or ValueError if `path` is not a path."""
    try:
        name = os.fspath(path)
    except Exception as error:
        raise TypeError(f"path must be a string or a path, not {shown(path)}") from error
    if not isinstance(name, str):
        raise TypeError(f"path must be a string or a path, not {shown(path)}")
    if not name or "\0" in name or not _can_be_encoded(name):
        raise ValueError(f"path must be the name of a file, not {shown(path)}")
    return Path(name)


def as_path(path: Any) -> Path:
    """Return a path of a file that may not exist yet, but not of a folder, a pipe or a device."""
    if (name := as_name(path)).exists() and not name.is_file():
        raise ValueError(f"path must be the name of a file, not of a folder, a pipe or a device: {shown(path)}")
    return name


def as_path_to_write(path: Any, usual: str) -> Path:
    """Return the path of a file to write, whose suffix must not stand for another format than the `usual` one."""
    name = as_path(path)
    if (suffix := name.suffix.lower()) in _OF_OTHER_FORMATS:
        why = f"the file that is written has another format, that of {usual}"
        raise ValueError(f"path must not end with {suffix}: {why}, not {shown(path)}")
    return name


def _can_be_encoded(name: str) -> bool:
    """Return whether the file system can have a file of this name."""
    try:
        return bool(os.fsencode(name))
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        return False


@contextmanager
def open_to_read(path: Path, class_name: str) -> Iterator[BinaryIO]:
    """Open a file to read an object of some kind from it; errors of its reader become a ValueError of one line."""
    with path.open("rb") as file:
        try:
            yield file
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise ValueError(f"path is not a file of a {class_name}: {shown(str(path))}: {reason(error)}") from error


def qtype_entry(qtype: QType) -> dict[str, Any]:
    """Return a code format as an object for JSON."""
    return {"dtype": qtype.format, "bits": qtype.bits if qtype.container else None}


def qtype_of(name: Any, bits: Any) -> QType:
    """Return the code format that JSON gave back."""
    return as_qtype(name) if bits is None else as_qtype(name).with_bits(bits)


def convention_entry(convention: str | Convention) -> str | dict[str, Any]:
    """Return a convention as an object for JSON: its name, or the fields of a user's own row."""
    return asdict(convention) if isinstance(convention, Convention) else convention


def convention_of(entry: Any) -> Any:
    """Return the convention that JSON gave back."""
    fields = {name: with_tuples(value) for name, value in entry.items()} if isinstance(entry, dict) else None
    return entry if fields is None else Convention(**fields)


def with_tuples(value: Any) -> Any:
    """Return tuples for the lists that JSON made from them."""
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def read_array(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the elements that follow in a file, in native byte order; raise ValueError if it ends early."""
    array = np.empty(shape, dtype)
    if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError("it became shorter")
    return array.astype(native(dtype), copy=False)
