"""A GGUF file into one of other types, some rows of a tensor in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fastq import gguf
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.tensor_types import TENSOR_TYPES, TensorType
from fastq.io.gguf.container import GgufHeader, GgufSource, GgufTensor, GgufWriter, MetadataField, numpy_dtype, uint32
from fastq.io.gguf.imatrix import Imatrix
from fastq.io.gguf.mixes import (
    EMBEDDING,
    Mix,
    TypeOverrides,
    choose_types,
    in_order,
    is_quantized,
    model_of,
    purpose_of,
)
from fastq.io.pipeline import Converted, Piece, Progress, Task, errors_of, failures, run
from fastq.system.atomic import replacing
from fastq.system.dtypes import Array

CHUNK = 1 << 22  # values in memory at a time: 16 MiB of float32, enough that threads do not wait for each other
QUANTIZATION_VERSION = 2  # of the blocks of llama.cpp
SPLIT = ("split.no", "split.count", "split.tensors.count")


def quantize_gguf(
    source: GgufSource,
    out: Path,
    mix: Mix,
    overrides: TypeOverrides,
    *,
    imatrix: tuple[Path, Imatrix] | None = None,
    progress: Progress,
) -> list[Converted]:
    """Write the GGUF file that llama-quantize makes of one of floats; `imatrix` has its own file name first.

    ValueError names the tensor that can't be quantized; after any error `out` is as it was.
    """
    specs = in_order(source.tensors.values())
    targets = choose_types(model_of(source), specs, mix, overrides, has_imatrix=imatrix is not None)
    for spec in specs:
        _check_quantizes(spec, targets[spec.name])
    values = imatrix[1].values if imatrix else {}
    weights = {spec.name: _weights(spec, targets[spec.name], values) for spec in specs}
    added = [*_version(mix), *(imatrix[1].fields(imatrix[0]) if imatrix else ())]
    return _convert(source, out, {spec: (targets[spec.name], weights[spec.name]) for spec in specs}, added, progress)


def dequantize_gguf(source: GgufSource, out: Path, mix: Mix, *, progress: Progress) -> list[Converted]:
    """Write a GGUF file with floats for blocks, and for all else that llama-quantize would quantize."""
    targets: dict[GgufTensor, tuple[TensorType, None]] = {}
    architecture = model_of(source).architecture
    for spec in in_order(source.tensors.values()):
        has_blocks = spec.kind.block > 1
        if has_blocks and spec.kind.name not in BLOCK_FORMATS:
            raise ValueError(f"tensor {spec.name!r} is {spec.kind}, which fastq does not dequantize")
        changes = has_blocks or (is_quantized(spec, architecture) and spec.kind.is_float)
        targets[spec] = TENSOR_TYPES[mix.default] if changes else spec.kind, None
    return _convert(source, out, targets, _version(mix), progress)


def _check_quantizes(spec: GgufTensor, target: TensorType) -> None:
    """Refuse what can't become the type before anything is written."""
    if spec.kind == target:
        return
    if not spec.kind.is_float:
        raise ValueError(f"tensor {spec.name!r} is {spec.kind}; only F32, F16 and BF16 are quantized")
    if not (target.is_float or target.name in BLOCK_FORMATS):
        raise ValueError(f"tensor {spec.name!r} would be {target}, which fastq does not quantize to")


def _weights(spec: GgufTensor, target: TensorType, values: Mapping[str, Array]) -> Array | None:
    """Return what the importance matrix has for a tensor, if its bytes depend on that."""
    found = values.get(spec.name)
    if found is None or target == spec.kind or target.is_float or not BLOCK_FORMATS[target.name].weighted:
        return None
    columns, matrices = spec.shape[-1], math.prod(spec.shape[:-2])
    if found.size == columns * matrices:
        return found.reshape(matrices, columns)
    if purpose_of(spec.name) == EMBEDDING:  # for which llama-imatrix may count other columns
        return None
    raise ValueError(f"the importance matrix has {found.size:,} values for {spec.name!r}, not {columns * matrices:,}")


# Writing


def _version(mix: Mix) -> list[MetadataField]:
    return [uint32("general.quantization_version", QUANTIZATION_VERSION), uint32("general.file_type", mix.number)]


def _convert(
    source: GgufSource,
    out: Path,
    targets: Mapping[GgufTensor, tuple[TensorType, Array | None]],
    added: list[MetadataField],
    progress: Progress,
) -> list[Converted]:
    """Write tensors in other types, where columns may have weights, and the metadata of the source with more.

    That is as it was, then what llama-quantize sets, in its order.
    """
    if (parts := source.get("split.count", 1)) != 1:
        raise ValueError(f"it is one of the {parts} parts of a model; join them with llama-gguf-split --merge")
    left_out = {*SPLIT, *(field.key for field in added)}
    kept = [field for key, field in source.fields.items() if key not in left_out]
    tensors = tuple(replace(spec, kind=target) for spec, (target, _) in targets.items())
    header = GgufHeader((*kept, *added), tensors, source.alignment)
    tasks = ([_task(source, spec, *target)] for spec, target in targets.items())
    with replacing(out) as file:
        return run(tasks, GgufWriter(file, header), progress)


def _task(source: GgufSource, spec: GgufTensor, target: TensorType, weights: Array | None) -> Task:
    pieces = _pieces(source.load(spec.name), spec, target, weights)
    return Task(spec.name, spec.shape, spec.nbytes, target.name, pieces, spec.kind.name, weights is not None)


def _pieces(rows: Array, spec: GgufTensor, target: TensorType, weights: Array | None) -> Iterator[Callable[[], Piece]]:
    """Yield the work of converting chunks of rows, each with the weights of its columns."""
    matrices = [None] if weights is None else list(weights)
    each, most = len(rows) // len(matrices), max(1, CHUNK // spec.shape[-1])
    for index, columns in enumerate(matrices):
        end = (index + 1) * each
        for start in range(index * each, end, most):
            yield partial(_converted, spec, target, rows[start : min(start + most, end)], columns, start)


def _converted(spec: GgufTensor, target: TensorType, rows: Array, weights: Array | None, start: int) -> Piece:
    with failures(lambda error: _failure(spec, target, rows, start, error)):
        stored, values, decoded = _encoded(spec.kind, target, rows, weights)
    return Piece({spec.name: stored}, rows.nbytes, None if decoded is None else errors_of(values, decoded))


def _encoded(
    kind: TensorType, target: TensorType, rows: Array, weights: Array | None
) -> tuple[Array, Array, Array | None]:
    """Return rows as they are stored, their values, and what they now stand for unless that is not measured."""
    if kind == target:
        return _finite(rows, target), rows, None
    values = gguf.dequantize(rows, kind.name) if kind.block > 1 else rows
    if target.block > 1:
        options = {} if weights is None else {"imatrix": weights}
        stored = gguf.quantize(values, target.name, **options)
        return stored, values, gguf.dequantize(stored, target.name)
    with np.errstate(over="ignore"):
        stored = _finite(values.astype(numpy_dtype(target)), target)
    return stored, values, None if kind.block > 1 else stored.astype(np.float32)


def _finite(stored: Array, target: TensorType) -> Array:
    """Refuse floats that no model has."""
    if target.is_float and not np.isfinite(stored).all():
        raise ValueError(f"its values are too large for {target}")
    return stored


def _failure(spec: GgufTensor, target: TensorType, rows: Array, start: int, error: Exception) -> str:
    """Name the tensor that can't be converted, and its first row with NaN or infinity."""
    bad = np.zeros(0) if not spec.kind.is_float else np.flatnonzero(~np.isfinite(rows).all(axis=1))
    after = f", after {start:,} rows" if start else ""
    why = f"NaN or infinity in row {start + bad[0]:,}" if bad.size else f"{error}{after}"
    return f"tensor {spec.name!r} can't become {target}: {why}"
