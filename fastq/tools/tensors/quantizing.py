"""Quantize a file of tensors into another file and back, with one tensor in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.qtypes import as_qtype
from fastq.system.atomic import replacing
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.files.containers import TensorSource
from fastq.tools.files.measured_errors import errors_of
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.numpy_files import write_npy_header
from fastq.tools.files.patterns import check_patterns, fits, nearest
from fastq.tools.files.pipeline import Converted, Piece, Progress, Task, copied, write_file
from fastq.tools.files.quantized_elsewhere import (
    QuantizedElsewhere,
    is_narrow,
    parts_of_weights,
    quantized_elsewhere,
    told_of,
)
from fastq.tools.files.records import FLOATS, KEY, Record, Scheme, encoded, stored_specs, to_metadata
from fastq.tools.files.safetensors_files import as_safetensors
from fastq.tools.files.tensor_specs import TensorSpec, bytes_of, spec_of
from fastq.tools.files.texts import count_text, some_of
from fastq.tools.gguf_files.container import GgufSource
from fastq.tools.gguf_files.imatrix import Imatrix, Say, Wanted, weigh
from fastq.tools.gguf_files.names import imatrix_names
from fastq.tools.tensors.extent import PIECE
from fastq.tools.tensors.reading import gguf_tensors, is_shard, tensors_in, way_back
from fastq.tools.tensors.tensor import Tensor

RESTORED = "the program that wrote them restores floats, which can be quantized"
LARGEST = {"F16": float.fromhex("0x1.ffcp15"), "BF16": float.fromhex("0x1.fep127")}


@dataclass(frozen=True)
class Selection:
    """The floating-point tensors to quantize."""

    include: tuple[str, ...] = ("*",)  # patterns: names fit one of `include` and none of `exclude`
    exclude: tuple[str, ...] = ()
    # whether tensors of fewer than two dimensions are quantized too: biases and weights of norms, whose errors count
    # far more than their bytes
    vectors: bool = True
    like: Mapping[str, Scheme] | None = None  # schemes by name, instead of one for all: other tensors are left alone
    # names of the codes to which tensors belong that another program quantized
    parts: Mapping[str, str] = field(default_factory=dict)

    def scheme_for(self, name: str, scheme: Scheme) -> Scheme:
        """Return the scheme of a tensor; `scheme` is the one for all."""
        return scheme if self.like is None else self.like.get(name, scheme)

    def includes(self, name: str) -> bool:
        """Return whether a name is not left out by the patterns."""
        included = any(fits(name, pattern) for pattern in self.include)
        return included and not any(fits(name, pattern) for pattern in self.exclude)

    def reason_against(self, spec: TensorSpec, scheme: Scheme) -> str:
        """Return why a tensor is left alone, or an empty text if it is not."""
        if spec.name in self.parts:
            is_code = self.parts[spec.name] == spec.name
            return "quantized already" if is_code else f"of {self.parts[spec.name]}, which is quantized already"
        if spec.dtype not in FLOATS:
            return spec.dtype
        if not spec.size:
            return "no elements"
        if not self.includes(spec.name):
            return "by name"
        if self.like is not None and spec.name not in self.like:
            return "not suggested"
        if len(spec.shape) < 2 and not self.vectors:
            return "a vector" if spec.shape else "a scalar"
        in_blocks = as_qtype(self.scheme_for(spec.name, scheme).dtype).block_size
        return "a scalar" if not spec.shape and in_blocks else ""

    def check_names(self, names: Collection[str]) -> None:
        """Raise ValueError if a pattern matches no tensor."""
        if names:
            check_patterns("--include", self.include, names, "tensor to quantize")
            check_patterns("--exclude", self.exclude, names, "tensor")
        for name in self.like or ():
            if name not in names:
                raise ValueError(f"it has no tensor {name!r}, which has a scheme{nearest(name, names)}")

    def check_effect(self, tensors: Mapping[str, TensorSpec], scheme: Scheme) -> None:
        """Raise ValueError if all tensors that a pattern includes are left alone."""
        for pattern in self.include:
            named = [spec for name, spec in tensors.items() if fits(name, pattern)]
            reasons = [self.reason_against(spec, scheme) for spec in named]
            if all(reasons):
                why = "excluded" if reasons[0] == "by name" else reasons[0]
                raise ValueError(f"nothing that matches {pattern!r} is quantized: {named[0].name!r} is {why}")


def quantize_file(
    source: TensorSource,
    out: Path,
    scheme: Scheme,
    selection: Selection,
    *,
    nan: str = "raise",
    imatrix: Imatrix | None = None,
    say: Say = lambda line: None,
    progress: Progress,
) -> list[Converted]:
    """Write the tensors of `source` to the .safetensors file `out`, the chosen ones quantized, the others unchanged.

    The scheme is adapted to each tensor's number of dimensions; `say` is called with missing entries of `imatrix`, and
    with lines on matrices that are left alone although they hold weights. After any error `out` is as it was.
    """
    if KEY in source.metadata or is_shard(source):
        way = "fastq dequantize restores it" if KEY in source.metadata else way_back(source.path.parent)
        raise ValueError(f"it is quantized already; {way}")
    selection.check_names(source.tensors)
    specs = source.tensors.values()
    elsewhere = quantized_elsewhere(specs)
    selection = replace(selection, parts=parts_of_weights(elsewhere))
    reasons = {spec.name: selection.reason_against(spec, scheme) for spec in specs}
    schemes = {spec.name: selection.scheme_for(spec.name, scheme) for spec in specs if not reasons[spec.name]}
    importance = {} if imatrix is None else _weighed(source, schemes, imatrix, say)
    records = {
        name: _record(source, source.tensors[name], each, nan, importance.get(name)) for name, each in schemes.items()
    }
    if not records and elsewhere:
        raise ValueError(f"no tensor to quantize: it has {told_of(elsewhere)}; {RESTORED}")
    if not records:
        found = ", ".join(sorted({spec.dtype for spec in specs})) or "nothing"
        shaped = "" if selection.vectors else " and two dimensions or more (--all includes others)"
        raise ValueError(f"no tensor to quantize: needs {', '.join(FLOATS)} of a fitting name{shaped}, holds {found}")
    selection.check_effect(source.tensors, scheme)
    for line in (*_left(source, selection, elsewhere), *_cut_short(source, schemes)):
        say(line)
    tasks = []
    for name, spec in source.tensors.items():
        if name in records:
            fitted = schemes[name].fitted(len(spec.shape))
            record = records[name]
            weights = importance.get(name)
            work = [partial(_quantized, source, spec, record, fitted, nan, weights)]
            about = (name, spec.shape, spec.nbytes, str(fitted))
            stored = stored_specs(name, record)
            tasks.append([Task(*about, work, stored, weighted=weights is not None)])
        else:
            tasks.append([copied(as_safetensors(spec), source.raw, f"copied: {reasons[name]}")])
    return write_file(out, tasks, {**source.metadata, KEY: to_metadata(records)}, progress)


def _left(source: TensorSource, selection: Selection, elsewhere: list[QuantizedElsewhere]) -> Iterator[str]:
    """Yield a line on weights that another program quantized, and one on floats that are too narrow to be quantized."""
    if elsewhere:
        yield f"copied with their scales as they are: {told_of(elsewhere)}; {RESTORED}"
    narrow = [spec for spec in source.tensors.values() if is_narrow(spec) and len(spec.shape) > 1]
    narrow = [spec for spec in narrow if spec.name not in selection.parts and selection.includes(spec.name)]
    if narrow:
        dtypes = ", ".join(sorted({spec.dtype for spec in narrow}))
        counted = count_text(len(narrow), "matrix")
        names = some_of([spec.name for spec in narrow])
        yield f"copied as they are: {counted} of {dtypes}, not of {', '.join(FLOATS)}: {names}"


def _cut_short(source: TensorSource, schemes: Mapping[str, Scheme]) -> Iterator[str]:
    """Yield a line on tensors whose blocks are shorter than asked for, since the axis is, as kernels of 3 x 3 are."""
    lengths: dict[str, int] = {}
    for name, scheme in schemes.items():
        shape = source.tensors[name].shape
        fitted = scheme.fitted(len(source.tensors[name].shape))
        if fitted.block_size and isinstance(fitted.axis, int) and shape[fitted.axis] < fitted.block_size:
            lengths[name] = shape[fitted.axis]
    if lengths:
        size = max(schemes[name].block_size for name in lengths)
        told = some_of([f"{name} ({length})" for name, length in lengths.items()])
        why = "as their axis is, so that scales take more bytes"
        yield f"blocks shorter than {size}, {why}: {told}; --exclude leaves them"


def _weighed(
    source: TensorSource, schemes: Mapping[str, Scheme], imatrix: Imatrix, say: Say
) -> dict[str, NDArray[np.float32]]:
    """Return the importance of elements for tensors whose ranges are searched, as an argument of `fastq.quantize`."""
    wanted = {}
    for name, scheme in schemes.items():
        shape = source.tensors[name].shape
        fitted = scheme.fitted(len(source.tensors[name].shape))
        if scheme.range != "minmax" and len(shape) > 1:
            wanted[name] = Wanted(imatrix_names(name.removesuffix(".weight")), shape, fitted.columns_alike(shape))
    if not wanted:
        raise ValueError(
            "an importance matrix is used by --range mse only, which no tensor of two dimensions or more has"
        )
    found = weigh(imatrix, wanted, set(source.tensors), say)
    for name, rows in found.items():
        shape = source.tensors[name].shape
        whole = np.broadcast_to(rows.reshape(*shape[:-2], 1, shape[-1]), shape)
        found[name] = rows[0] if len(rows) == 1 and wanted[name].group else whole
    return found


def _record(
    source: TensorSource, spec: TensorSpec, scheme: Scheme, nan: str, importance: NDArray[np.float32] | None
) -> Record:
    with naming(lambda error: f"tensor {spec.name!r}: {error}"):
        arguments = scheme.fitted(len(spec.shape)).arguments()
    tensor_scale = None
    if as_qtype(scheme.dtype).has_tensor_scale:  # records are written before the codes
        x = _as_input(source.load(spec.name), nan)
        with naming(lambda error: _failure(spec.name, x, error)):
            chosen = fastq.choose_qparams(x, **arguments, **_options(importance)).tensor_scale
        tensor_scale = None if chosen is None else float(chosen)
    arguments.pop("range")  # codes and scales determine all of it
    return Record(**arguments, original_dtype=spec.dtype, shape=spec.shape, tensor_scale=tensor_scale)


def _options(importance: NDArray[np.float32] | None) -> dict[str, Any]:
    return {} if importance is None else {"importance": importance}


def _quantized(
    source: TensorSource,
    spec: TensorSpec,
    record: Record,
    scheme: Scheme,
    nan: str,
    importance: NDArray[np.float32] | None,
) -> Piece:
    given = source.load(spec.name)
    x = _as_input(given, nan)
    with naming(lambda error: _failure(spec.name, x, error)):
        q = fastq.quantize(x, **scheme.arguments_for(x.dtype), **_options(importance))
    remark = "" if x is given else f"{np.count_nonzero(np.isnan(given)):,} NaN as 0"
    return Piece(encoded(spec.name, q, record), spec.nbytes, errors_of(x, q), remark)


def _as_input(x: Array, nan: str) -> Array:
    return np.where(np.isnan(x), x.dtype.type(0), x) if nan == "zero" and np.isnan(x).any() else x


def _failure(name: str, x: Array, error: Exception) -> str:
    count = np.count_nonzero(np.isnan(x))
    reason = f"has {count} NaN; --nan zero treats them as 0" if count else f"can't be quantized: {error}"
    return f"tensor {name!r} {reason}"


def binarize_file(source: TensorSource, out: Path, *, progress: Progress, **options: Any) -> Converted:
    """Write the bits of `fastq.binarize` of a .npy file to another one; after any error `out` is as it was."""
    (spec,) = source.tensors.values()
    x = np.atleast_1d(source.load(spec.name))
    lengths = *x.shape[:-1], -(-x.shape[-1] // 8)
    dtype = np.dtype(options["dtype"])
    step = max(PIECE * len(x) // max(x.size, 1), 1) if x.ndim > 1 else max(len(x), 1)
    with replacing(out) as file:
        write_npy_header(file, dtype, lengths)
        for start in range(0, len(x), step):
            rows = x[start : start + step]
            with naming(lambda error: _failure(spec.name, x, error)):
                bits = fastq.binarize(rows, **options)
            file.write(bytes_of(bits).data)
            progress(rows.nbytes, 0)
    progress(0, 1)
    after = math.prod(lengths)
    return Converted(spec.name, spec.shape, spec.nbytes, after, "", "bits", size=spec.size)


def dequantize_file(source: TensorSource | GgufSource, out: Path, *, progress: Progress) -> int:
    """Write what `source` was quantized from to `out`, a .npy file if it is one tensor; return how many were quantized.

    After any error `out` is as it was.
    """
    tensors = list(gguf_tensors(source) if isinstance(source, GgufSource) else _quantized_in(source))
    kept = {}
    if not isinstance(source, GgufSource):
        kept = {key: value for key, value in source.metadata.items() if key != KEY}
    if out.suffix == ".npy":
        if len(tensors) != 1 or not tensors[0].is_quantized:
            raise ValueError(f"a .npy file holds one array, not {len(tensors)}; write .safetensors")
        if tensors[0].original == "BF16":
            raise ValueError("a .npy file can't hold bfloat16; write .safetensors")
        with replacing(out) as file:
            (values,) = _restored(tensors[0]).stored.values()
            write_npy_header(file, values.dtype, values.shape)
            file.write(values.data)  # np.save reports a full disk only as a number of written bytes
        return 1
    tasks = []
    for tensor in tensors:
        if tensor.is_quantized:
            specs = [spec_of(tensor.name, tensor.original, tensor.shape)]
            about = tensor.name, tensor.shape, tensor.nbytes, tensor.original
            tasks.append(Task(*about, [partial(_restored, tensor)], specs))
        else:
            spec = TensorSpec(tensor.name, tensor.scheme, tensor.shape, tensor.nbytes)
            tasks.append(copied(as_safetensors(spec), source.raw))
    write_file(out, [[task] for task in tasks], kept, progress)
    return sum(tensor.is_quantized for tensor in tensors)


def _quantized_in(source: TensorSource) -> Iterator[Tensor]:
    """Return the tensors of a file that fastq quantized; raise ValueError for another one."""
    if is_shard(source):
        raise ValueError(f"it is of a quantized model; {way_back(source.path.parent)}")
    if KEY not in source.metadata:
        raise ValueError(f"holds nothing that fastq quantized (no {KEY!r} in its metadata)")
    return tensors_in(source)


def _restored(tensor: Tensor) -> Piece:
    """Return the values of a tensor in its original dtype: half precision saturates if rounding would exceed it."""
    values = tensor.values()
    if (largest := LARGEST.get(tensor.original)) is not None:
        values = np.clip(values, -largest, largest)
    return Piece({tensor.name: values.astype(numpy_dtype(tensor.original), copy=False)}, tensor.nbytes)
