"""What files of calibrators, quantized arrays and parameters share: paths, conventions as JSON, elements of arrays."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions import Convention
from fastq.system.arguments import native, shown


def as_path(path: Any) -> Path:
    """Return a path of a file, or of none so far.

    Raises
    ------
    TypeError, ValueError
        If it is none, or that of a folder, a pipe or a device.
    """
    try:
        name = os.fspath(path)
    except Exception as error:
        raise TypeError(f"path must be a string or a path, not {shown(path)}") from error
    if not isinstance(name, str):
        raise TypeError(f"path must be a string or a path, not {shown(path)}")
    if not name or "\0" in name:
        raise ValueError(f"path must be the name of a file, not {shown(path)}")
    if (found := Path(name)).exists() and not found.is_file():
        raise ValueError(f"path must be the name of a file, not of a folder, a pipe or a device: {shown(path)}")
    return found


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return what an object of JSON says.

    Raises
    ------
    ValueError
        If it says something twice.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("it names a key twice")
    return fields


def convention_entry(convention: str | Convention) -> str | dict[str, Any]:
    """Return a convention as JSON takes it: its name, or the fields of a row of the user's own."""
    return asdict(convention) if isinstance(convention, Convention) else convention


def convention_of(entry: Any) -> Any:
    """Return the convention that JSON gave back."""
    return (
        Convention(**{name: with_tuples(value) for name, value in entry.items()}) if isinstance(entry, dict) else entry
    )


def with_tuples(value: Any) -> Any:
    """Return the tuples that JSON has made lists of."""
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def read_array(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the elements that follow in a file, in the byte order of the machine.

    Raises
    ------
    ValueError
        If the file ends before.
    """
    found = np.empty(shape, dtype)
    if file.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:  # type: ignore[attr-defined]
        raise ValueError("it became shorter")
    return found.astype(native(dtype), copy=False)
