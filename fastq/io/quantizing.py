"""A file of tensors into a file of quantized ones, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import numpy as np

import fastq
from fastq.formats.qtypes import as_qtype
from fastq.io.containers import TensorSource, TensorSpec, as_safetensors
from fastq.io.pipeline import Converted, Piece, Progress, Task, copied, errors_of, naming, nearest, write_file
from fastq.io.records import FLOATS, KEY, Record, encoded, stored_specs, to_metadata
from fastq.io.scheme import Scheme
from fastq.io.tensors import OF_MODEL, is_shard
from fastq.system.dtypes import Array


@dataclass(frozen=True)
class Selection:
    """Which floating tensors to quantize."""

    include: tuple[str, ...] = ("*",)  # patterns: names fit one of `include` and none of `exclude`
    exclude: tuple[str, ...] = ()
    # whether those of fewer than two dimensions are quantized too: biases, and weights of norms, whose errors count
    # far more than their bytes
    vectors: bool = True
    like: Mapping[str, Scheme] | None = None  # schemes by name, in place of one for all: others are left alone

    def scheme_for(self, name: str, scheme: Scheme) -> Scheme:
        """Return the scheme of a tensor, where `scheme` is that for all."""
        return scheme if self.like is None else self.like.get(name, scheme)

    def reason_against(self, spec: TensorSpec, scheme: Scheme) -> str:
        """Return why a tensor is left alone; empty if it is not."""
        if spec.dtype not in FLOATS:
            return spec.dtype
        if not spec.size:
            return "no elements"
        if not self._names(spec.name):
            return "by name"
        if self.like is not None and spec.name not in self.like:
            return "not suggested"
        if len(spec.shape) < 2 and not self.vectors:
            return "a vector" if spec.shape else "a scalar"
        in_blocks = as_qtype(self.scheme_for(spec.name, scheme).dtype).block_size
        return "a scalar" if not spec.shape and in_blocks else ""

    def check_names(self, names: Collection[str]) -> None:
        """Raise ValueError if a pattern is for no tensor."""
        for pattern in (*self.include, *self.exclude):
            if names and not any(fnmatchcase(name, pattern) for name in names):
                what = " to quantize" if pattern in self.include else ""
                raise ValueError(f"no tensor{what} has a name that fits {pattern!r}{nearest(pattern, names)}")
        for name in self.like or ():
            if name not in names:
                raise ValueError(f"it has no tensor {name!r}, which has a scheme{nearest(name, names)}")

    def check_effect(self, tensors: Mapping[str, TensorSpec], scheme: Scheme) -> None:
        """Raise ValueError if all tensors that a pattern includes are left alone."""
        for pattern in self.include:
            named = [spec for name, spec in tensors.items() if fnmatchcase(name, pattern)]
            reasons = [self.reason_against(spec, scheme) for spec in named]
            if all(reasons):
                why = "excluded" if reasons[0] == "by name" else reasons[0]
                raise ValueError(f"nothing that fits {pattern!r} is quantized: {named[0].name!r} is {why}")

    def _names(self, name: str) -> bool:
        included = any(fnmatchcase(name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


def quantize_file(
    source: TensorSource, out: Path, scheme: Scheme, selection: Selection, *, nan: str = "raise", progress: Progress
) -> list[Converted]:
    """Write the tensors of `source` to the .safetensors file `out`, the chosen ones quantized, the others unchanged.

    The scheme is fitted to each tensor's number of dimensions; `nan` is "raise" or "zero". ValueError names the tensor
    that can't be quantized; after any error `out` is as it was.
    """
    records = _planned(source, scheme, selection, nan)

    def task(spec: TensorSpec) -> Task:
        if spec.name not in records:
            return copied(as_safetensors(spec), source.raw, f"copied: {selection.reason_against(spec, scheme)}")
        fitted = selection.scheme_for(spec.name, scheme).fitted(len(spec.shape))
        record = records[spec.name]
        work = [partial(_quantized, source, spec, record, fitted, nan)]
        return Task(spec.name, spec.shape, spec.nbytes, str(fitted), work, stored_specs(spec.name, record))

    tasks = [[task(spec)] for spec in source.tensors.values()]
    return write_file(out, tasks, {**source.metadata, KEY: to_metadata(records)}, progress)


def _planned(source: TensorSource, scheme: Scheme, selection: Selection, nan: str) -> dict[str, Record]:
    if KEY in source.metadata:
        raise ValueError("it is quantized already; fastq dequantize turns it back")
    if is_shard(source):
        raise ValueError(f"it is quantized already; {OF_MODEL.format(source.path.parent)}")
    selection.check_names(source.tensors)
    taken = [spec for spec in source.tensors.values() if not selection.reason_against(spec, scheme)]
    records = {spec.name: _record(source, spec, selection.scheme_for(spec.name, scheme), nan) for spec in taken}
    if not records:
        found = ", ".join(sorted({spec.dtype for spec in source.tensors.values()})) or "nothing"
        shaped = "" if selection.vectors else " and two dimensions or more (--all takes others too)"
        raise ValueError(f"no tensor to quantize: needs {', '.join(FLOATS)} of a fitting name{shaped}, holds {found}")
    selection.check_effect(source.tensors, scheme)
    return records


def _record(source: TensorSource, spec: TensorSpec, scheme: Scheme, nan: str) -> Record:
    with naming(lambda error: f"tensor {spec.name!r}: {error}"):
        arguments = scheme.fitted(len(spec.shape)).arguments()
    tensor_scale = None
    if as_qtype(scheme.dtype).has_tensor_scale:  # records are written before the codes
        x = _as_input(source.load(spec.name), nan)
        with naming(lambda error: _failure(spec.name, x, error)):
            chosen = fastq.choose_qparams(x, **arguments).tensor_scale
        tensor_scale = None if chosen is None else float(chosen)
    arguments.pop("range")  # codes and scales tell all of it
    return Record(**arguments, original_dtype=spec.dtype, shape=spec.shape, tensor_scale=tensor_scale)


def _quantized(source: TensorSource, spec: TensorSpec, record: Record, scheme: Scheme, nan: str) -> Piece:
    given = source.load(spec.name)
    x = _as_input(given, nan)
    with naming(lambda error: _failure(spec.name, x, error)):
        q = fastq.quantize(x, **scheme.arguments_for(x.dtype))
    remark = "" if x is given else f"{np.count_nonzero(np.isnan(given)):,} NaN as 0"
    return Piece(encoded(spec.name, q, record), spec.nbytes, errors_of(x, q), remark)


def _as_input(x: Array, nan: str) -> Array:
    """`x` with NaN replaced if they may be."""
    return np.where(np.isnan(x), x.dtype.type(0), x) if nan == "zero" and np.isnan(x).any() else x


def _failure(name: str, x: Array, error: Exception) -> str:
    count = np.count_nonzero(np.isnan(x))
    reason = f"has {count} NaN; --nan zero takes them as 0" if count else f"can't be quantized: {error}"
    return f"tensor {name!r} {reason}"
