"""Files of tensors of any kind, opened and written by their suffix: .npy, .npz and .safetensors."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fastq.system.arguments import reason
from fastq.tools.files import numpy_files, safetensors_files
from fastq.tools.files.links import check_link
from fastq.tools.files.numpy_files import NpySource, NpzSource, NpzWriter
from fastq.tools.files.safetensors_files import Header, SafetensorsSource, SafetensorsWriter

POINTER = b"version https://git-lfs."  # the start of a file in a clone without Git LFS


TensorSource = NpySource | SafetensorsSource
SOURCES: dict[str, Callable[[Path], TensorSource]] = {
    ".npy": NpySource,
    ".npz": NpzSource,
    ".safetensors": SafetensorsSource,
}
DAMAGED = (*numpy_files.DAMAGED, *safetensors_files.DAMAGED)


def open_source(path: Path, suffix: str = "") -> TensorSource:
    """Open a file of tensors, whose kind is told by `suffix` or its own suffix; raise ValueError if it is damaged.

    A file of any other suffix is opened as .safetensors, whose header tells whether it is one.
    """
    check_link(path)
    if not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    try:
        return SOURCES.get(suffix or path.suffix, SafetensorsSource)(path)
    except DAMAGED as error:
        check_pointer(path)
        raise ValueError(f"{path.name} is not a readable {path.suffix} file: {reason(error)}") from error


def check_pointer(path: Path) -> None:
    """Raise ValueError if a file is only a pointer, as in a clone without Git LFS."""
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ValueError(f"{path.name} is a pointer of Git LFS; git lfs pull fetches the file")


@contextmanager
def writer_of(file: BinaryIO, out: Path, header: Header, metadata: Mapping[str, str]) -> Iterator[Any]:
    """Yield the writer of tensors for the suffix of `out`: .npz, else .safetensors.

    `file` is the temporary file that becomes `out`. A `header` of .safetensors has the metadata already.
    """
    if out.suffix == ".npz":
        with zipfile.ZipFile(file, "w") as archive:  # it ends the archive while the file is open, after errors, too
            yield NpzWriter(archive, header, metadata)
    else:
        yield SafetensorsWriter(file, header)
