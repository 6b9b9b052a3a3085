"""Quantize a file of tensors into another file, with one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.qtypes import as_qtype
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.json_files import read_json
from fastq.tools.checkpoints.weight_files import INDEX
from fastq.tools.files.containers import TensorSource, open_source
from fastq.tools.files.measured_errors import errors_of
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Converted, Piece, Progress, Say, Task, copy_task, write_file
from fastq.tools.files.quantized_elsewhere import (
    QuantizedElsewhere,
    line_on_narrow,
    parts_of_weights,
    quantized_elsewhere,
    weights_text,
)
from fastq.tools.files.records import FLOATS, KEY, Record, Scheme, encode, stored_specs, to_metadata
from fastq.tools.files.safetensors_files import as_safetensors
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.files.texts import some_of
from fastq.tools.gguf_files.imatrix import Imatrix, MatrixToWeigh, weigh
from fastq.tools.gguf_files.llama_names import imatrix_names
from fastq.tools.tensors.reading import advice_to_restore, is_shard_of_quantized_model
from fastq.tools.tensors.selection import Selection

RESTORED = "the program that wrote them restores floats, which can be quantized"


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
    if KEY in source.metadata or is_shard_of_quantized_model(source):
        advice = "fastq dequantize restores it" if KEY in source.metadata else advice_to_restore(source.path.parent)
        raise ValueError(f"it is quantized already; {advice}")
    selection.check_names(source.tensors)
    specs = source.tensors.values()
    elsewhere = _weights_of_other_programs_in(source)
    selection = replace(selection, parts=parts_of_weights(elsewhere))
    reasons = {spec.name: selection.reason_against(spec, scheme) for spec in specs}
    schemes = {spec.name: selection.scheme_for(spec.name, scheme) for spec in specs if not reasons[spec.name]}
    importance = {} if imatrix is None else _importance_by_name(source, schemes, imatrix, say)
    records = {
        name: _record_for(source, source.tensors[name], own_scheme, nan, importance.get(name))
        for name, own_scheme in schemes.items()
    }
    if not records:
        raise ValueError(f"no tensor to quantize: {_reason_for_none(source, selection, elsewhere)}")
    selection.check_effect(source.tensors, scheme)
    for line in (*_notes_on_others(source, selection, elsewhere), *_notes_on_short_blocks(source, schemes)):
        say(line)
    tasks = []
    for name, spec in source.tensors.items():
        if name in records:
            scheme_of_tensor = schemes[name].for_dimensions(len(spec.shape))
            weights = importance.get(name)
            task = Task(
                name=name,
                shape=spec.shape,
                before=spec.nbytes,
                target=str(scheme_of_tensor),
                pieces=[partial(_quantize_tensor, source, spec, records[name], scheme_of_tensor, nan, weights)],
                specs=stored_specs(name, records[name]),
                weighted=weights is not None,
            )
            tasks.append([task])
        else:
            tasks.append([copy_task(as_safetensors(spec), source.raw, f"copied: {reasons[name]}")])
    return write_file(out, tasks, {**source.metadata, KEY: to_metadata(records)}, progress)


def _weights_of_other_programs_in(source: TensorSource) -> list[QuantizedElsewhere]:
    """Return the weights that another program quantized, and of which the file has the codes or a parameter."""
    of_model = quantized_elsewhere((*source.tensors.values(), *_tensors_of_other_shards(source)))
    return [weight for weight in of_model if not source.tensors.keys().isdisjoint(weight.names)]


def _reason_for_none(source: TensorSource, selection: Selection, elsewhere: list[QuantizedElsewhere]) -> str:
    """Return why a file has no tensor to quantize."""
    if elsewhere:
        return f"it has {weights_text(elsewhere)}; {RESTORED}"
    dtypes = ", ".join(sorted({spec.dtype for spec in source.tensors.values()})) or "nothing"
    dimensions = "" if selection.vectors else " and two dimensions or more (--all includes others)"
    return f"needs {', '.join(FLOATS)} of a fitting name{dimensions}, holds {dtypes}"


def _tensors_of_other_shards(source: TensorSource) -> list[TensorSpec]:
    """Return the tensors of the other files of a model, if its index names this one: codes and scales may be apart."""
    folder = source.path.parent
    files = read_json(folder / INDEX).get("weight_map") if (folder / INDEX).is_file() else None
    names = {str(name) for name in files.values()} if isinstance(files, dict) else set()
    if source.path.name not in names:
        return []
    others = [folder / name for name in sorted(names - {source.path.name}) if Path(name).name == name]
    return [spec for path in others if path.is_file() for spec in open_source(path).tensors.values()]


def _notes_on_others(source: TensorSource, selection: Selection, elsewhere: list[QuantizedElsewhere]) -> Iterator[str]:
    """Yield a line on weights that another program quantized, and one on floats that are too narrow to be quantized."""
    if elsewhere:
        yield f"copied with their scales as they are: {weights_text(elsewhere)}; {RESTORED}"
    others = (spec for spec in source.tensors.values() if spec.name not in selection.parts)
    if line := line_on_narrow((spec for spec in others if selection.includes(spec.name)), FLOATS):
        yield line


def _notes_on_short_blocks(source: TensorSource, schemes: Mapping[str, Scheme]) -> Iterator[str]:
    """Yield a line on tensors whose axis is shorter than a block, such as kernels of 3 x 3."""
    lengths: dict[str, int] = {}
    for name, general_scheme in schemes.items():
        shape = source.tensors[name].shape
        scheme = general_scheme.for_dimensions(len(shape))
        if scheme.block_size and isinstance(scheme.axis, int) and shape[scheme.axis] < scheme.block_size:
            lengths[name] = shape[scheme.axis]
    if lengths:
        size = max(schemes[name].block_size for name in lengths)
        names = some_of([f"{name} ({length})" for name, length in lengths.items()])
        reason = "as their axis is, so that scales take more bytes"
        yield f"blocks shorter than {size}, {reason}: {names}; --exclude leaves them"


def _importance_by_name(
    source: TensorSource, schemes: Mapping[str, Scheme], imatrix: Imatrix, say: Say
) -> dict[str, NDArray[np.float32]]:
    """Return the importance of elements for tensors whose ranges are searched, as an argument of `fastq.quantize`."""
    to_weigh = {}
    for name, scheme in schemes.items():
        shape = source.tensors[name].shape
        if scheme.range != "minmax" and len(shape) > 1:
            to_weigh[name] = MatrixToWeigh(
                names=imatrix_names(name.removesuffix(".weight")),
                shape=shape,
                group=scheme.for_dimensions(len(shape)).columns_sharing_scale(shape),
            )
    if not to_weigh:
        raise ValueError(
            "an importance matrix is used by --range mse only, which no tensor of two dimensions or more has"
        )
    importance = weigh(imatrix, to_weigh, set(source.tensors), say)
    for name, rows in importance.items():
        if len(rows) == 1 and to_weigh[name].group:  # a weight for each column will do if columns share scales
            importance[name] = rows[0]
        else:
            shape = source.tensors[name].shape
            importance[name] = np.broadcast_to(rows.reshape(*shape[:-2], 1, shape[-1]), shape)
    return importance


def _record_for(
    source: TensorSource, spec: TensorSpec, scheme: Scheme, nan: str, importance: NDArray[np.float32] | None
) -> Record:
    """Return the record of a tensor to quantize.

    Records are written before the codes, so a scale for the whole tensor, which is part of the record, is computed
    here.
    """
    with naming(lambda error: f"tensor {spec.name!r}: {error}"):
        arguments = scheme.for_dimensions(len(spec.shape)).arguments()
    tensor_scale = None
    if as_qtype(scheme.dtype).has_tensor_scale:
        x = _as_input(source.load(spec.name), nan)
        with naming(lambda error: failure_text(spec.name, x, error)):
            chosen = fastq.choose_qparams(x, **arguments, **_importance_option(importance)).tensor_scale
        tensor_scale = None if chosen is None else float(chosen)
    del arguments["range"]  # a reader does not need it: codes and scales are the result of the method for ranges
    return Record(**arguments, original_dtype=spec.dtype, shape=spec.shape, tensor_scale=tensor_scale)


def _importance_option(importance: NDArray[np.float32] | None) -> dict[str, Any]:
    """Return the option for importance, if there is any."""
    return {} if importance is None else {"importance": importance}


def _quantize_tensor(
    source: TensorSource,
    spec: TensorSpec,
    record: Record,
    scheme: Scheme,
    nan: str,
    importance: NDArray[np.float32] | None,
) -> Piece:
    """Return the data to store for a tensor, and their errors."""
    original = source.load(spec.name)
    x = _as_input(original, nan)
    with naming(lambda error: failure_text(spec.name, x, error)):
        q = fastq.quantize(x, **scheme.arguments_for(x.dtype), **_importance_option(importance))
    return Piece(
        stored=encode(spec.name, q, record),
        nbytes=spec.nbytes,
        errors=errors_of(x, q),
        remark="" if x is original else f"{np.count_nonzero(np.isnan(original)):,} NaN as 0",
    )


def _as_input(x: Array, nan: str) -> Array:
    """Return an array in which NaN is 0 if the option --nan says so; the same array if it has none."""
    if nan != "zero" or not np.isnan(x).any():
        return x
    return np.where(np.isnan(x), x.dtype.type(0), x)


def failure_text(name: str, x: Array, error: Exception) -> str:
    """Return the error about a tensor that can't be quantized; if it has NaN, their number is the reason."""
    count = np.count_nonzero(np.isnan(x))
    reason = f"has {count} NaN; --nan zero treats them as 0" if count else f"can't be quantized: {error}"
    return f"tensor {name!r} {reason}"
