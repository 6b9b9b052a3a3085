"""Importance matrices: weights for the columns of a model's matrices, from files of llama-imatrix and of tensors.

llama-imatrix measures the mean square of the activations that multiply each column of a matrix. Its newer files are
GGUF files with sums of squares and counts for each tensor; older files have their own format, with means that are
already multiplied by the number of calls. Other files have the means themselves, as from `Calibrator.importance`.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.ops.file_parts import as_path
from fastq.requests.gguf import with_equal_weights_where_all_are_0
from fastq.tools.files.containers import SOURCES, TensorSource, open_source
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.patterns import nearest
from fastq.tools.files.pipeline import Say
from fastq.tools.files.records import FLOATS
from fastq.tools.files.texts import some_of
from fastq.tools.gguf_files.gguf_file import MAGIC, GgufSource, open_gguf

Weights = NDArray[np.float32]
# names of tensors, each with the index of a matrix in it; None: all matrices
Names = tuple[tuple[str, int | None], ...]
SUMS = ".in_sum2"
COUNTS = ".counts"
LOOKED_UP = 50  # most names that are missing for which the nearest are looked for


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix."""

    # for each tensor a weight per column; with several matrices one row for each, or one after the other
    values: dict[str, Weights]
    datasets: list[str] = field(default_factory=list)  # the text that it was computed from
    chunks: int = 0  # number of pieces of text
    uncounted: dict[str, int] = field(default_factory=dict)  # number of matrices in a tensor without counts


class MatrixToWeigh(NamedTuple):
    """One matrix of a tensor, or all of them, whose columns get weights from an importance matrix."""

    names: Names  # names in an importance matrix; the first that exists counts
    shape: tuple[int, ...]
    group: int = 0  # number of neighbours that share a scale, at least one of which must count; 0 if none must
    may_differ: bool = False  # whether it may have other columns there, and then counts as missing


def load_imatrix(path: str | os.PathLike[str]) -> dict[str, Weights]:
    """Return the importance of the columns of each tensor in a file.

    Parameters
    ----------
    path : str or path
        A file of llama-imatrix in its newer format, which is GGUF, or in the older one; or a .safetensors or .npz file
        with the mean squares of the inputs of each column, by the name of the weight.

    Returns
    -------
    dict of str to ndarray of float32
        Weights by the names in the file, of shape (columns,), or for experts (matrices, columns), which the older
        format stores one after the other. Matrices that were never counted have 1 everywhere.

    Raises
    ------
    TypeError
        If path is not a string or a path.
    ValueError
        If the file has another format, ends too early, or has values that are negative or not finite.
    OSError
        If the file can't be read.

    Examples
    --------
    >>> import numpy as np, fastq.io, tempfile, pathlib
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name) / "columns.npz"
    >>> np.savez(path, **{"layers.0.down_proj": np.float32([4, 0.25])})
    >>> fastq.io.load_imatrix(path)
    {'layers.0.down_proj': array([4.  , 0.25], dtype=float32)}
    >>> folder.cleanup()
    """
    return read(as_path(path)).values


def read(path: Path) -> Imatrix:
    """Return the importance matrix of a file; raise the errors of `load_imatrix`."""
    if not path.is_file():
        raise ValueError(f"importance matrix {path.name} is not a file")
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        is_gguf = file.read(4) == MAGIC
    with naming(lambda error: f"importance matrix {path.name}: {error}", ValueError):
        if is_gguf:
            imatrix = _from_gguf(open_gguf(path))
        else:
            in_tensors = suffix in SOURCES
            imatrix = _from_tensors(open_source(path, suffix)) if in_tensors else _from_legacy(path.read_bytes())
        if not imatrix.values:
            raise ValueError("it has no entries")
        for name, values in imatrix.values.items():
            if not np.isfinite(values).all():
                raise ValueError(f"{name!r} has values that are not finite")
            if (values < 0).any():
                raise ValueError(f"{name!r} has values that are negative")
    return imatrix


def weigh(
    imatrix: Imatrix, to_weigh: Mapping[str, MatrixToWeigh], known: Collection[str], say: Say
) -> dict[str, Weights]:
    """Return the importance of the columns of the matrices asked for by their keys, in shape (matrices, columns).

    `known` are other names that may be unused in the matrix. Missing and unused entries are reported by name. Raise
    ValueError if no entry matches.
    """
    importance = {}
    used = set(known)
    uncounted = {}  # texts by name: an entry may serve several matrices, and is named once
    equalized = []
    for key, matrix in to_weigh.items():
        name, index = next((pair for pair in matrix.names if pair[0] in imatrix.values), ("", None))
        if not name:
            continue
        used.add(name)
        weights = _weights_of(imatrix.values[name], name, index, matrix)
        if weights is None:
            continue
        importance[key] = with_equal_weights_where_all_are_0(weights, matrix.group)
        if importance[key] is not weights:
            equalized.append(key)
        if count := imatrix.uncounted.get(name):
            rows = imatrix.values[name].size // matrix.shape[-1]
            uncounted[name] = f"{name}, {count} of {rows}"
    if not importance:
        raise ValueError(
            f"the importance matrix belongs to another model: it lacks all {len(to_weigh):,} tensors, such as "
            f"{next(iter(to_weigh))!r}, but has {next(iter(imatrix.values))!r}"
        )
    lacking = [key for key in to_weigh if key not in importance]
    unused = [name for name in imatrix.values if name not in used]
    if lacking:
        nearest_names = next(filter(None, (nearest(name, unused) for name in lacking[:LOOKED_UP])), "")
        say(f"the importance matrix lacks, or has with other columns: {_first_quoted(lacking)}{nearest_names}")
    for fault, names in (
        ("has names that no tensor has, which are not used:", unused),
        ("has matrices that were never counted, whose columns get equal weights:", list(uncounted.values())),
        ("has 0 for all columns of some blocks, which get equal weights, in", equalized),
    ):
        if names:
            say(f"the importance matrix {fault} {_first_quoted(names)}")
    return importance


def _weights_of(values: Weights, name: str, index: int | None, matrix: MatrixToWeigh) -> Weights | None:
    """Return the weights of a matrix from those of an entry, a row for each matrix, or None if it may have others.

    `index` is that of the matrix among those of the entry; None if the entry has all matrices of the tensor. Raise
    ValueError if the entry has another number of values, and the matrix must not differ.
    """
    columns = matrix.shape[-1]
    matrices = math.prod(matrix.shape[:-2])
    rows, rest = divmod(values.size, columns)
    has_all_rows = rows == matrices if index is None else index < rows
    if has_all_rows and rest == 0:
        weights = values.reshape(rows, columns)
        return weights if index is None else weights[index : index + 1]
    if matrix.may_differ:
        return None
    raise ValueError(f"the importance matrix has {values.size:,} values for {name!r}, not {columns * matrices:,}")


def _first_quoted(names: list[str]) -> str:
    """Return the first of some names in quotes, and the number of the others."""
    return some_of([repr(name) for name in names])


# Files


def _from_gguf(source: GgufSource) -> Imatrix:
    """Return the matrix in a newer file of llama-imatrix: sums of squares and counts."""
    names = {name.removesuffix(part) for part in (SUMS, COUNTS) for name in source.tensors if name.endswith(part)}
    values = {}
    uncounted = {}
    for name in sorted(names):
        values[name], uncounted[name] = _means(source, name)
    datasets = source.get("imatrix.datasets", [])
    chunks = source.get("imatrix.chunk_count", 0)
    return Imatrix(
        values=values,
        datasets=[str(dataset) for dataset in (datasets if isinstance(datasets, list) else [datasets])],
        chunks=chunks if isinstance(chunks, int) else 0,
        uncounted=uncounted,
    )


def _means(source: GgufSource, name: str) -> tuple[Weights, int]:
    """Return sums divided by counts, and the number of counts that are not positive.

    Their matrices, such as experts that were never chosen, get ones: equal weights for all columns.
    """
    for end, other_end in ((SUMS, COUNTS), (COUNTS, SUMS)):
        if name + end not in source.tensors:
            raise ValueError(f"{name + other_end!r} is there without {name + end!r}")
        if (kind := source.tensors[name + end].kind).name != "F32":
            raise ValueError(f"{name + end!r} is {kind}, not F32")
    sums = source.load(name + SUMS).reshape(-1)
    counts = np.rint(source.load(name + COUNTS).reshape(-1, 1))
    if not counts.size or sums.size % counts.size:
        raise ValueError(f"{name!r} has {counts.size:,} counts for {sums.size:,} sums")
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.asarray(sums.reshape(counts.size, -1) / counts, np.float32)
    means[counts[:, 0] <= 0] = 1
    return means if counts.size > 1 else means[0], int(np.sum(~(counts > 0)))


def _from_tensors(source: TensorSource) -> Imatrix:
    """Return the matrix in a file of tensors, which has the means themselves."""
    values = {}
    for name, spec in source.tensors.items():
        if spec.dtype not in FLOATS or len(spec.shape) not in (1, 2) or not spec.size:
            raise ValueError(f"{name!r} is {spec.dtype} of shape {spec.shape}, not floats for columns")
        with np.errstate(over="ignore"):  # an infinity is refused where all files are checked
            values[name] = np.array(source.load(name), np.float32)
    return Imatrix(values)


def _from_legacy(data: bytes) -> Imatrix:
    """Return the matrix in an older file of llama-imatrix: means that are multiplied by the number of calls.

    It has a number of entries, each a name, a number of calls, a number of values and the values. Newer versions of it
    go on with the number of pieces of text, and the name of the text.
    """
    try:
        (count,) = struct.unpack_from("<i", data)
        at = 4  # after the number of entries; 4 bytes have a number, 8 the two before the values
        values: dict[str, Weights] = {}
        for _ in range(count):
            name, at = _legacy_text(data, at)
            calls, size = struct.unpack_from("<ii", data, at)
            if size < 1 or at + 8 + 4 * size > len(data):
                raise ValueError(f"it is not an importance matrix: {name!r} would have {size:,} values")
            sums = np.frombuffer(data, "<f4", size, at + 8)
            values[name] = np.divide(sums, np.float32(max(calls, 1)), dtype=np.float32)
            at += 8 + 4 * size
        chunks = 0
        datasets = []
        if at < len(data):
            (chunks,) = struct.unpack_from("<i", data, at)
            at += 4
            datasets = [_legacy_text(data, at)[0]] if at < len(data) else []
    except struct.error:
        raise ValueError("it is not an importance matrix, or it is truncated") from None
    return Imatrix(values=values, datasets=datasets, chunks=chunks)


def _legacy_text(data: bytes, at: int) -> tuple[str, int]:
    """Return the text whose length is at a position of an older file, up to a NUL, and the position of its end."""
    (length,) = struct.unpack_from("<i", data, at)
    if not 0 <= length <= len(data) - at - 4:
        raise ValueError("it is not an importance matrix, or it is truncated")
    end = at + 4 + length
    return data[at + 4 : end].split(b"\0")[0].decode("utf-8", "replace"), end
