"""A GGUF file into one of other types, some rows of a tensor in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq import gguf
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.tensor_types import TENSOR_TYPES, TensorType
from fastq.io.errors import noise_and_signal, sqnr
from fastq.io.gguf.container import Field, GgufLayout, GgufSource, TensorSpec, numpy_dtype, uint32
from fastq.io.gguf.imatrix import Imatrix
from fastq.io.gguf.mixes import EMBEDDING, Mix, Wishes, choose_types, in_order, is_quantized, model_of, purpose_of
from fastq.system.atomic import replacing

Array = NDArray[Any]
Progress = Callable[[int, int], None]

CHUNK = 1 << 22  # values in memory at a time: 16 MiB of float32, enough that threads do not wait for each other
QUANTIZATION_VERSION = 2  # of the blocks of llama.cpp
SPLIT = ("split.no", "split.count", "split.tensors.count")


@dataclass(frozen=True)
class Step:
    """What a tensor is to become: its type, and how much its columns count, matrix by matrix."""

    spec: TensorSpec
    target: TensorType
    weights: Array | None = None


@dataclass(frozen=True)
class Conversion:
    """What became of a tensor.

    Attributes
    ----------
    name : str
        Of the tensor.
    shape : tuple of int
        Rows last.
    source, target : TensorType
        Before and after.
    noise, signal : float
        Sums of the squared errors, and of the squares; 0 of a tensor that was copied.
    weighted : bool
        Whether an importance matrix was used.
    """

    name: str
    shape: tuple[int, ...]
    source: TensorType
    target: TensorType
    noise: float = 0.0
    signal: float = 0.0
    weighted: bool = False

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def before(self) -> int:
        """Bytes in the file that was read."""
        return self.source.size_of(self.shape)

    @property
    def after(self) -> int:
        """Bytes in the file that was written."""
        return self.target.size_of(self.shape)

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise ratio in decibels; None of a tensor that was copied, or that had blocks."""
        return None if self.source == self.target or self.source.block > 1 else sqnr(self.signal, self.noise)


def quantize_gguf(
    source: GgufSource,
    out: Path,
    mix: Mix,
    wishes: Wishes,
    *,
    imatrix: tuple[Path, Imatrix] | None = None,
    progress: Progress,
) -> list[Conversion]:
    """Write the GGUF file that llama-quantize makes of another one.

    Parameters
    ----------
    source : GgufSource
        Of float32, float16 or bfloat16.
    out : Path
        Appears whole, or after an error not at all.
    mix : Mix
        Which types.
    wishes : Wishes
        Where the types are to be others.
    imatrix : (Path, Imatrix), optional
        Where that comes from, and how much columns count.
    progress : callable
        Called with source bytes done and tensors done.

    Returns
    -------
    list of Conversion
        One a tensor.

    Raises
    ------
    ValueError
        Naming the tensor that can't be quantized.
    OSError
        If `out` can't be written.
    """
    specs = in_order(source.tensors.values())
    targets = choose_types(model_of(source), specs, mix, wishes, has_imatrix=imatrix is not None)
    for spec in specs:
        _check_quantizes(spec, targets[spec.name])
    values = imatrix[1].values if imatrix else {}
    steps = [Step(spec, targets[spec.name], _weights(spec, targets[spec.name], values)) for spec in specs]
    added = [*_version(mix), *(imatrix[1].fields(imatrix[0]) if imatrix else ())]
    return _convert(source, out, steps, added, progress)


def dequantize_gguf(source: GgufSource, out: Path, mix: Mix, *, progress: Progress) -> list[Conversion]:
    """Write a GGUF file with floats for blocks, and for all else that llama-quantize would quantize.

    Parameters and results are those of `quantize_gguf`, with a mix of floats.
    """
    steps, architecture = [], model_of(source).architecture
    for spec in in_order(source.tensors.values()):
        has_blocks = spec.kind.block > 1
        if has_blocks and spec.kind.name not in BLOCK_FORMATS:
            raise ValueError(f"tensor {spec.name!r} is {spec.kind}, which fastq does not dequantize")
        changes = has_blocks or (is_quantized(spec, architecture) and spec.kind.is_float)
        steps.append(Step(spec, TENSOR_TYPES[mix.default] if changes else spec.kind))
    return _convert(source, out, steps, _version(mix), progress)


def _check_quantizes(spec: TensorSpec, target: TensorType) -> None:
    """Refuse what can't become the type before anything is written."""
    if spec.kind == target:
        return
    if not spec.kind.is_float:
        raise ValueError(f"tensor {spec.name!r} is {spec.kind}; only F32, F16 and BF16 are quantized")
    if not (target.is_float or target.name in BLOCK_FORMATS):
        raise ValueError(f"tensor {spec.name!r} would be {target}, which fastq does not quantize to")


def _weights(spec: TensorSpec, target: TensorType, values: Mapping[str, Array]) -> Array | None:
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


def _version(mix: Mix) -> list[Field]:
    return [uint32("general.quantization_version", QUANTIZATION_VERSION), uint32("general.file_type", mix.number)]


def _convert(
    source: GgufSource, out: Path, steps: list[Step], added: list[Field], progress: Progress
) -> list[Conversion]:
    """Write the header, then tensor by tensor."""
    layout = _layout(source, steps, added)
    with replacing(out) as file:
        file.write(layout.header())
        rows = []
        for step, spec in zip(steps, layout.tensors, strict=True):
            rows.append(_converted(step, source.load(spec.name), file, progress))
            file.write(layout.padding(spec.nbytes))
            progress(0, 1)
    return rows


def _layout(source: GgufSource, steps: list[Step], added: list[Field]) -> GgufLayout:
    """Return the metadata of the source as it is, then what llama-quantize sets, in its order, and the tensors."""
    if (parts := source.get("split.count", 1)) != 1:
        raise ValueError(f"it is one of the {parts} parts of a model; join them with llama-gguf-split --merge")
    left_out = {*SPLIT, *(field.key for field in added)}
    kept = [field for key, field in source.fields.items() if key not in left_out]
    tensors = [replace(step.spec, kind=step.target) for step in steps]
    return GgufLayout((*kept, *added), tuple(tensors), source.alignment)


def _converted(step: Step, rows: Array, file: BinaryIO, progress: Progress) -> Conversion:
    """Write a tensor in its new type."""
    spec, noise, signal = step.spec, 0.0, 0.0
    for start, stop, weights in _chunks(step, len(rows)):
        chunk = rows[start:stop]
        with _failures(step, chunk, start):
            stored, values, decoded = _encoded(step, chunk, weights)
        file.write(stored.view(np.uint8).data)
        if decoded is not None:
            errors = noise_and_signal(fastq.compare(values, decoded), values)
            noise, signal = noise + errors[0], signal + errors[1]
        progress(chunk.nbytes, 0)
    return Conversion(spec.name, spec.shape, spec.kind, step.target, noise, signal, step.weights is not None)


def _chunks(step: Step, rows: int) -> Iterator[tuple[int, int, Array | None]]:
    """Cut the rows of a tensor into chunks, each with the weights of its columns."""
    matrices = [None] if step.weights is None else list(step.weights)
    each, most = rows // len(matrices), max(1, CHUNK // step.spec.shape[-1])
    for index, weights in enumerate(matrices):
        end = (index + 1) * each
        for start in range(index * each, end, most):
            yield start, min(start + most, end), weights


def _encoded(step: Step, chunk: Array, weights: Array | None) -> tuple[Array, Array, Array | None]:
    """Return rows as they are stored, their values, and what they now stand for unless that is not measured."""
    kind, target = step.spec.kind, step.target
    if kind == target:
        return _finite(chunk, step), chunk, None
    values = gguf.dequantize(chunk, kind.name) if kind.block > 1 else chunk
    if target.block > 1:
        options = {} if weights is None else {"imatrix": weights}
        stored = gguf.quantize(values, target.name, **options)
        return stored, values, gguf.dequantize(stored, target.name)
    with np.errstate(over="ignore"):
        stored = _finite(values.astype(numpy_dtype(target)), step)
    return np.ascontiguousarray(stored), values, None if kind.block > 1 else stored.astype(np.float32)


def _finite(stored: Array, step: Step) -> Array:
    """Refuse floats that no model has."""
    if step.target.is_float and not np.isfinite(stored).all():
        raise ValueError(f"its values are too large for {step.target}")
    return stored


@contextmanager
def _failures(step: Step, chunk: Array, start: int) -> Iterator[None]:
    """Name the tensor that can't be converted, and its first row with NaN or infinity."""
    try:
        yield
    except ValueError as error:
        bad = np.zeros(0) if not step.spec.kind.is_float else np.flatnonzero(~np.isfinite(chunk).all(axis=1))
        after = f", after {start:,} rows" if start else ""
        why = f"NaN or infinity in row {start + bad[0]:,}" if bad.size else f"{error}{after}"
        raise ValueError(f"tensor {step.spec.name!r} can't become {step.target}: {why}") from error
