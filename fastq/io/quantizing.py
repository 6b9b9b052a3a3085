"""A file of tensors into a file of quantized ones, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq import reference
from fastq.formats.qtypes import as_qtype
from fastq.io.containers import Layout, SafetensorsWriter, Source, TensorSpec, shape_text
from fastq.io.records import FLOATS, KEY, Record, encoded, stored_specs, to_metadata
from fastq.io.scheme import Scheme
from fastq.io.speed import Row, Speed, timed, warm_seconds
from fastq.results import QuantizedArray
from fastq.system.atomic import replacing

Array = NDArray[Any]
Progress = Callable[[int], None]

# Elements: fewer take less time than a clock resolves well, more tell no more about NumPy, and of as many in all the
# best time is taken.
TIMED_FROM = 1 << 14
NUMPY_SAMPLE = 1 << 20
REPEATED = 1 << 22


@dataclass(frozen=True)
class Choice:
    """Which floating tensors to quantize.

    Attributes
    ----------
    include, exclude : tuple of str
        Patterns: names fit one of `include` and none of `exclude`.
    vectors : bool
        Whether those of fewer than two dimensions are quantized too: biases, and weights of norms, whose errors count
        far more than their bytes.
    """

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    vectors: bool = True

    def reason_against(self, spec: TensorSpec, scheme: Scheme) -> str:
        """Return why a tensor is left alone; empty if it is not."""
        if spec.dtype not in FLOATS:
            return spec.dtype
        if not spec.size:
            return "no elements"
        if not self._names(spec.name):
            return "by name"
        if len(spec.shape) < 2 and not self.vectors:
            return "a vector" if spec.shape else "a scalar"
        return "a scalar" if not spec.shape and as_qtype(scheme.dtype).block_size else ""

    def _names(self, name: str) -> bool:
        included = any(fnmatchcase(name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


def quantize_file(
    source: Source, out: Path, scheme: Scheme, choice: Choice, *, nan: str = "raise", progress: Progress
) -> list[Row]:
    """Write the tensors of `source` to the .safetensors file `out`, the chosen ones quantized, the others unchanged.

    Parameters
    ----------
    source : Source
        What to read.
    out : Path
        Appears whole, or after an error not at all.
    scheme : Scheme
        Fitted to each tensor's number of dimensions.
    choice : Choice
        Which tensors.
    nan : {"raise", "zero"}
        What to do with NaN.
    progress : callable
        Called with the bytes of each tensor when it is written.

    Returns
    -------
    list of Row
        One a tensor.

    Raises
    ------
    ValueError
        Naming the tensor that can't be quantized.
    OSError
        If `out` can't be written.
    """
    records = _planned(source, scheme, choice, nan)
    copied = [spec for name, spec in source.tensors.items() if name not in records]
    quantized = [spec for name, record in records.items() for spec in stored_specs(name, record)]
    layout = Layout([*copied, *quantized], {**source.metadata, KEY: to_metadata(records)})
    with replacing(out) as file:
        writer = SafetensorsWriter(file, layout)
        rows = []
        for name, spec in source.tensors.items():
            rows.append(
                _quantized(source, spec, records[name], scheme.fitted(len(spec.shape)), writer, nan)
                if name in records
                else _copied(source, spec, writer, choice.reason_against(spec, scheme))
            )
            progress(spec.nbytes)
    return rows


def _planned(source: Source, scheme: Scheme, choice: Choice, nan: str) -> dict[str, Record]:
    if KEY in source.metadata:
        raise ValueError("it is quantized already")
    taken = [spec for spec in source.tensors.values() if not choice.reason_against(spec, scheme)]
    records = {spec.name: _record(source, spec, scheme, nan) for spec in taken}
    if not records:
        found = ", ".join(sorted({spec.dtype for spec in source.tensors.values()})) or "nothing"
        shaped = "" if choice.vectors else " and two dimensions or more (--all takes others too)"
        raise ValueError(f"no tensor to quantize: needs {', '.join(FLOATS)} of a fitting name{shaped}, holds {found}")
    return records


def _record(source: Source, spec: TensorSpec, scheme: Scheme, nan: str) -> Record:
    try:
        arguments = scheme.fitted(len(spec.shape)).arguments()
    except ValueError as error:
        raise ValueError(f"tensor {spec.name!r}: {error}") from error
    tensor_scale = None
    if as_qtype(scheme.dtype).has_tensor_scale:  # records are written before the codes
        x = _as_input(source.load(spec.name), nan)
        with _failures(spec.name, x):
            chosen = fastq.choose_qparams(x, **arguments).tensor_scale
        tensor_scale = None if chosen is None else float(chosen)
    arguments.pop("range")  # codes and scales tell all of it
    return Record(**arguments, original_dtype=spec.dtype, shape=spec.shape, tensor_scale=tensor_scale)


def _quantized(
    source: Source, spec: TensorSpec, record: Record, scheme: Scheme, writer: SafetensorsWriter, nan: str
) -> Row:
    """Quantize a tensor and write what is stored for it."""
    x = _as_input(source.load(spec.name), nan)
    with _failures(spec.name, x):
        q = fastq.quantize(x, **scheme.arguments_for(x.dtype))
    arrays = encoded(spec.name, q, record)
    for name, array in arrays.items():
        writer.write(name, array)
    errors = fastq.compare(x, q)
    after = sum(array.nbytes for array in arrays.values())
    shape, speed = shape_text(spec.shape), _speed(x, q, scheme)
    return Row(spec.name, shape, str(scheme), spec.nbytes, after, errors.sqnr_db, errors.max_abs_error, speed)


def _copied(source: Source, spec: TensorSpec, writer: SafetensorsWriter, reason: str) -> Row:
    writer.write_raw(spec.name, source.raw(spec.name))
    return Row(spec.name, shape_text(spec.shape), f"copied: {reason}", spec.nbytes, spec.nbytes)


def _as_input(x: Array, nan: str) -> Array:
    """`x` with NaN replaced if they may be."""
    return np.where(np.isnan(x), x.dtype.type(0), x) if nan == "zero" and np.isnan(x).any() else x


@contextmanager
def _failures(name: str, x: Array) -> Iterator[None]:
    """Name the tensor that can't be quantized."""
    try:
        yield
    except ValueError as error:
        count = np.count_nonzero(np.isnan(x))
        reason = f"has {count} NaN; --nan zero takes them as 0" if count else f"can't be quantized: {error}"
        raise ValueError(f"tensor {name!r} {reason}") from error


def _speed(x: Array, q: QuantizedArray, scheme: Scheme) -> Speed | None:
    """Time the tensor once more, and the reference on its first rows."""
    rows = max(NUMPY_SAMPLE * len(x) // x.size, 1) if x.ndim else 1
    if x.size < TIMED_FROM or x[:rows].size > 2 * NUMPY_SAMPLE:
        return None
    sample, repeats = x[:rows], max(1, min(5, REPEATED // x.size))
    _, seconds = timed(lambda: reference.quantize(sample, **scheme.arguments_for(sample.dtype)))
    return Speed(x.size, warm_seconds(x, q, scheme, repeats), seconds * x.size / sample.size)
