"""Tensors of files and of folders of files, plain and quantized ones alike: what they are, and their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.conventions import Convention
from fastq.io.containers import TensorSource, TensorSpec, name_of, open_source
from fastq.io.gguf.container import GgufSource, has_values, open_gguf
from fastq.io.pipeline import failures
from fastq.io.records import KEY, Record, are_of_array, decoded, from_metadata, stored_specs
from fastq.io.scheme import Scheme
from fastq.results import QuantizedArray
from fastq.results.measures import outliers_of
from fastq.system.dtypes import DTYPES, ML_FLOATS, Array

SUFFIXES = ".npy", ".safetensors"
PIECE = 1 << 20  # elements looked at together; bounds the temporaries


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file."""

    name: str  # as the file has it; of a quantized one that of the tensor that it was
    shape: tuple[int, ...]
    scheme: str  # its dtype, or how it was quantized
    nbytes: int  # bytes in the file, of scales and zero points too
    # whether its values can be loaded: NumPy lacks some dtypes, and fastq some blocks of GGUF
    has_numbers: bool
    load: Callable[[], Array | QuantizedArray]  # returns it, mapped, or codes and parameters of a quantized one
    raw: Callable[[], NDArray[np.uint8]] | None = None  # returns its bytes; None: it is quantized

    def values(self) -> Array:
        """Return the values."""
        loaded = self.load()
        if not isinstance(loaded, QuantizedArray):
            return loaded
        with failures(lambda error: f"tensor {self.name!r} can't be dequantized: {error}"):
            return loaded.dequantize()


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .npy, .safetensors or .gguf file, or of the first two in a folder, by name.

    ValueError if a file can't be read, a folder has no such file, or two files have a tensor of one name.
    """
    files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"there is no {' or '.join(SUFFIXES)} file in it")
    found: dict[str, Tensor] = {}
    for file in files:
        for tensor in _tensors_of_file(file, path):
            if tensor.name in found:
                raise ValueError(f"two files have a tensor {tensor.name!r}; the second is {file.name}")
            found[tensor.name] = tensor
    return found


def _tensors_of_file(file: Path, given: Path) -> list[Tensor]:
    """Return the tensors of a file; an error names it where a folder was given."""
    try:
        return list(_gguf_tensors(open_gguf(file)) if file.suffix == ".gguf" else _tensors(file, open_source(file)))
    except ValueError as error:
        if file == given:
            raise
        raise ValueError(f"{file.name}: {error}") from error


def _tensors(path: Path, source: TensorSource) -> Iterator[Tensor]:
    if are_of_array(source.metadata):
        yield _array(path, sum(spec.nbytes for spec in source.tensors.values()))
        return
    records = from_metadata(source.metadata) if KEY in source.metadata else {}
    stored = {spec.name: name for name, record in records.items() for spec in stored_specs(name, record)}
    for name, record in records.items():
        load, nbytes = partial(decoded, name, record, source.load), _bytes(source, stored_specs(name, record))
        yield Tensor(name, record.shape, _scheme(record, record.dtype, record.convention), nbytes, True, load)
    for name, spec in source.tensors.items():
        if name not in stored:
            known = spec.dtype in DTYPES or spec.dtype in ML_FLOATS
            yield Tensor(
                name, spec.shape, spec.dtype, spec.nbytes, known, partial(source.load, name), partial(source.raw, name)
            )


def _array(path: Path, nbytes: int) -> Tensor:
    """Return what `QuantizedArray.save` wrote as a tensor of the name of its file."""
    q, load = fastq.load(path), partial(fastq.load, path)  # read again when it is needed: a folder may have many
    return Tensor(name_of(path), q.shape, _scheme(q, str(q.dtype), q.convention), nbytes, True, load)


def _gguf_tensors(source: GgufSource) -> Iterator[Tensor]:
    scales = set(source.scales.values())  # in the values of others
    for name, spec in source.tensors.items():
        if name in scales:
            continue
        ways = partial(source.values, name), partial(source.raw, name)
        yield Tensor(name, spec.shape, spec.kind.name, spec.nbytes, has_values(spec.kind), *ways)


def _scheme(of: Record | QuantizedArray, dtype: str, convention: str | Convention) -> str:
    named = convention.name if isinstance(convention, Convention) else convention
    return str(Scheme(dtype, of.axis, of.block_size, of.symmetric, convention=named))


def _bytes(source: TensorSource, specs: list[TensorSpec]) -> int:
    missing = next((spec.name for spec in specs if spec.name not in source.tensors), None)
    if missing is not None:
        raise ValueError(f"{missing!r} is missing, by its {KEY!r} metadata")
    return sum(source.tensors[spec.name].nbytes for spec in specs)


@dataclass(frozen=True)
class Extent:
    """What the numbers of a tensor are like."""

    lo: float | None  # the smallest and the largest that is finite; None where none is
    hi: float | None
    nan: int  # how many are no numbers, or infinite
    infinite: int
    # indices on the first axis of two or more whose largest magnitude is six times the median of all, or more
    outliers: tuple[int, ...]


def extent_of(values: Array) -> Extent:
    """Return what the numbers of an array are like, piece by piece."""
    shape = (values.shape[0], math.prod(values.shape[1:])) if values.ndim > 1 else (1, values.size)
    # what has its first axis fastest in memory is not copied: in which order a row is, does not matter here
    rows = values.T.reshape(shape[::-1]).T if values.flags.f_contiguous and values.ndim > 1 else values.reshape(shape)
    height, width = max(PIECE // max(shape[1], 1), 1), max(min(PIECE, shape[1]), 1)
    found = np.zeros((4, shape[0]))
    found[:2] = [[np.inf], [-np.inf]]
    for top in range(0, shape[0], height):
        band = found[:, top : top + height]
        for left in range(0, shape[1], width):
            lo, hi, *counts = _row_ends(rows[top : top + height, left : left + width])
            band[:2] = np.minimum(band[0], lo), np.maximum(band[1], hi)
            band[2:] += counts
    lo, hi, nan, infinite = found
    finite = lo <= hi
    largest = np.maximum(-lo, hi)[finite]
    outliers = np.flatnonzero(finite)[outliers_of(largest)] if values.ndim > 1 else np.empty(0, int)
    least, most = (float(lo[finite].min()), float(hi[finite].max())) if finite.any() else (None, None)
    return Extent(least, most, int(nan.sum()), int(infinite.sum()), tuple(outliers.tolist()))


def _row_ends(rows: Array) -> tuple[Array, Array, Array, Array]:
    """Return the finite extremes of each row, inf and -inf where there are none, and how many are NaN and infinite."""
    numbers = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    lo, hi = numbers.min(axis=1), numbers.max(axis=1)
    if np.isfinite(lo).all() and np.isfinite(hi).all():  # as almost always, in a fifth of the time
        return lo, hi, np.zeros(len(rows)), np.zeros(len(rows))
    nan, infinite = np.isnan(numbers), np.isinf(numbers)
    finite = ~(nan | infinite)
    lo = np.min(numbers, axis=1, where=finite, initial=np.inf)
    hi = np.max(numbers, axis=1, where=finite, initial=-np.inf)
    return lo, hi, nan.sum(axis=1), infinite.sum(axis=1)
