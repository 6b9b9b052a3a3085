"""Convert a GGUF file to other types, with some rows of a tensor in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastq import gguf
from fastq.formats.gguf import BLOCK_FORMATS, LEAST_ERROR
from fastq.system.atomic import replacing
from fastq.system.dtypes import Array
from fastq.tools.files.measured_errors import NO_ERRORS, errors_of
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Converted, Piece, Progress, Task, run
from fastq.tools.files.texts import some_of
from fastq.tools.gguf_files import mixes
from fastq.tools.gguf_files.gguf_file import (
    LLAMA_DIMENSIONS,
    OF_PARTS,
    GgufHeader,
    GgufSource,
    GgufSpec,
    GgufWriter,
    MetadataField,
    numpy_dtype,
    string,
    uint32,
)
from fastq.tools.gguf_files.imatrix import Imatrix, MatrixToWeigh, Names, weigh
from fastq.tools.gguf_files.llama_names import gguf_names
from fastq.tools.gguf_files.mixes import Mix, TypeOverrides
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES, TensorType

CHUNK = 1 << 22  # values in memory at a time: 16 MiB of float32, enough that threads do not wait for each other
QUANTIZATION_VERSION = 2  # version of the blocks of llama.cpp
LARGEST_BLOCK = max(kind.block for kind in TENSOR_TYPES.values())  # values
LONGEST_NAME = 63  # most bytes of the name of a tensor that llama.cpp reads
# called with a line on each thing that was left out or unknown; with in_part=True if an option had no effect
SayMore = Callable[..., None]
LONGEST_TEXT = 127  # most bytes of a text that llama-quantize writes into the metadata


@dataclass(frozen=True)
class GgufConversion:
    """The options of a conversion."""

    mix: Mix
    overrides: TypeOverrides
    imatrix: tuple[str, Imatrix] | None = None  # the matrix, with its path as it was given
    range: str = "minmax"  # the search for scales in types whose bytes allow a choice
    requantize: bool = False  # whether blocks may be quantized again
    dequantize: bool = False  # whether all blocks become floats


class _TensorPlan(NamedTuple):
    """What becomes of a tensor."""

    kind: TensorType
    range: str = "minmax"
    weights: Array | None = None  # importance of columns, a row for each matrix
    scale: Array | None = None  # scales of the values, a number for each matrix
    is_written: bool = True


def convert_gguf(
    source: GgufSource, out: Path, request: GgufConversion, *, say: SayMore, progress: Progress
) -> list[Converted]:
    """Write the GGUF file that llama-quantize makes from another one; converted blocks include their scales.

    After any error `out` is as it was.
    """
    specs = mixes.in_order(source.tensors.values())
    model = mixes.model_of(source)
    if idle := mixes.idle_options(model.architecture, specs, request.overrides):
        reason = "its tensors are not quantized, or have another option"
        say(f"{', '.join(idle)} had no effect: {reason}", in_part=True)
    types_of = partial(mixes.choose_types, model, mix=request.mix, overrides=request.overrides)
    types_of = partial(types_of, has_imatrix=request.imatrix is not None)
    kinds = types_of(specs)
    targets = {spec: _TensorPlan(_kind_of(spec, kinds[spec.name], request)) for spec in specs}
    if request.range == "mse":
        _search_for_least_error(targets, say)
    added = [uint32("general.quantization_version", QUANTIZATION_VERSION)]
    added.append(uint32("general.file_type", request.mix.number))
    if request.imatrix is not None:
        path, imatrix = request.imatrix
        added += _weigh(targets, path, imatrix, say)
    for spec, target in targets.items():
        if request.mix.needs(spec.name, target.kind) and target.kind != spec.kind and target.weights is None:
            mix = request.mix.name
            raise ValueError(
                f"tensor {spec.name!r} would be {target.kind}: {mix} needs an --imatrix with an entry for it"
            )
    _multiply_scales(source, targets, say)
    _say_unfit(targets, types_of([_with_whole_blocks(spec) for spec in specs]), say)
    if unknown := [spec.name for spec in targets if not spec.kind.block]:
        say(f"copied unchanged, since fastq does not know their types: {_quoted(unknown)}")
    if deep := [spec.name for spec in targets if len(spec.shape) > LLAMA_DIMENSIONS]:
        consequence = "" if request.dequantize else ", and they are copied"
        say(f"llama.cpp does not read tensors of more than {LLAMA_DIMENSIONS} dimensions{consequence}: {_quoted(deep)}")
    if long := [spec.name for spec in targets if len(spec.name.encode()) > LONGEST_NAME]:
        say(f"llama.cpp does not read names of more than {LONGEST_NAME} bytes: {_quoted(long)}")
    rows = _convert(source, out, targets, added, progress)
    if not (_has_new_types(targets) or _changes_field(source, added) or len(source.parts) > 1):
        say(f"nothing was converted: no tensor of {source.path.name} gets another type", in_part=True)
    return rows


def _kind_of(spec: GgufSpec, chosen: TensorType, request: GgufConversion) -> TensorType:
    """Return the new type of a tensor; a tensor that can't have it is refused before anything is written."""
    kind = spec.kind
    in_blocks = spec.kind.block != 1
    if request.dequantize:
        chosen = TENSOR_TYPES[request.mix.default] if in_blocks else chosen if kind.is_float else kind
    elif not kind.block or len(spec.shape) > LLAMA_DIMENSIONS:
        return kind
    if kind == chosen or not spec.size:
        return kind
    if not kind.is_float and not (in_blocks and (request.dequantize or request.requantize)):
        advice = "; take --dequantize first, or --allow-requantize, where both steps lose" if in_blocks else ""
        raise ValueError(f"tensor {spec.name!r} is {kind}; only F32, F16 and BF16 are quantized{advice}")
    if in_blocks and kind.name not in BLOCK_FORMATS:
        raise ValueError(f"tensor {spec.name!r} is {kind}, which fastq does not dequantize")
    if not (chosen.is_float or chosen.name in BLOCK_FORMATS):
        raise ValueError(f"tensor {spec.name!r} would be {chosen}, which fastq does not quantize to")
    return chosen


def _with_whole_blocks(spec: GgufSpec) -> GgufSpec:
    """Return a tensor with rows of whole blocks of any type."""
    return replace(spec, shape=(*spec.shape[:-1], LARGEST_BLOCK)) if spec.shape else spec


def _say_unfit(targets: Mapping[GgufSpec, _TensorPlan], intended: Mapping[str, TensorType], say: SayMore) -> None:
    """Name the tensors that would have the intended types if their rows were whole blocks."""
    unfit = [
        f"{spec.name!r} ({target.kind}, not {intended[spec.name]})"
        for spec, target in targets.items()
        if spec.size and target.kind != spec.kind and spec.shape[-1] % intended[spec.name].block
    ]
    if unfit:
        say(f"another type, since their rows are not whole blocks: {some_of(unfit)}")


def _search_for_least_error(targets: dict[GgufSpec, _TensorPlan], say: SayMore) -> None:
    """Choose the search for the least error, in the types that have one."""
    others = []
    for spec, target in targets.items():
        if target.kind != spec.kind and target.kind.block > 1:
            if BLOCK_FORMATS[target.kind.name].trials:
                targets[spec] = target._replace(range="mse")
            else:
                others.append(spec.name)
    if all(target.range == "minmax" for target in targets.values()):
        say(f"--range mse had no effect: no tensor becomes one of {', '.join(LEAST_ERROR)}", in_part=True)
    elif others:
        say(f"--range mse does not apply to the types of these tensors, which get the bytes of ggml: {_quoted(others)}")


def _weigh(targets: dict[GgufSpec, _TensorPlan], path: str, imatrix: Imatrix, say: SayMore) -> list[MetadataField]:
    """Give tensors the weights of their columns; return the fields about the matrix, if it was used."""
    names_of = _names_in(imatrix)
    to_weigh: dict[str, MatrixToWeigh] = {}
    for spec, target in targets.items():
        if target.kind == spec.kind or target.kind.block <= 1:
            continue
        form = BLOCK_FORMATS[target.kind.name]
        if form.weighted or target.range == "mse":
            to_weigh[spec.name] = MatrixToWeigh(
                names=names_of(spec.name),
                shape=spec.shape,
                group=form.group,
                may_differ=_may_differ(spec),
            )
    if not to_weigh:
        say("the importance matrix was not used: no tensor is converted to a type that depends on it")
        return []
    weights = weigh(imatrix, to_weigh, {spec.name for spec in targets}, say)
    for spec in targets:
        targets[spec] = targets[spec]._replace(weights=weights.get(spec.name))
    return _fields_of(imatrix, path)


def _names_in(imatrix: Imatrix) -> Callable[[str], Names]:
    """Return the function that gives the names of a tensor in a matrix: its own, its module's, that of transformers."""
    in_transformers: dict[str, Names] = {}
    for entry in imatrix.values:
        for name, expert in gguf_names(entry.removesuffix(".weight")):
            in_transformers[name] = (*in_transformers.get(name, ()), (entry, None)) if expert is None else ()
    return lambda name: ((name, None), (name.removesuffix(".weight"), None), *in_transformers.get(name, ()))


def _may_differ(spec: GgufSpec) -> bool:
    """Return whether llama-imatrix may count other columns than those of the tensor, as for embeddings."""
    return mixes.purpose_of(spec.name) == mixes.EMBEDDING


def _multiply_scales(source: GgufSource, targets: dict[GgufSpec, _TensorPlan], say: SayMore) -> None:
    """Multiply converted blocks by their scales, and leave the scales out, since they belong to the old blocks."""
    left_out = []
    for spec, target in list(targets.items()):
        if target.kind == spec.kind or spec.kind.block == 1 or spec.name not in source.scales:
            continue
        targets[spec] = target._replace(scale=source.scale(spec.name))
        for name in (source.scales[spec.name], f"{spec.name.removesuffix('.weight')}.input_scale"):
            scale = source.tensors.get(name)
            if scale is not None:
                targets[scale] = targets[scale]._replace(is_written=False)
                left_out.append(name)
    if left_out:
        say(f"weights are multiplied with their scales, which are left out: {_quoted(left_out)}")


def _quoted(names: list[str]) -> str:
    return some_of([repr(name) for name in names])


# Writing


def _convert(
    source: GgufSource,
    out: Path,
    targets: Mapping[GgufSpec, _TensorPlan],
    added: list[MetadataField],
    progress: Progress,
) -> list[Converted]:
    """Write tensors in other types, with the metadata of the source that still hold, and with added ones."""
    left_out = {*OF_PARTS, *(field.key for field in added)}
    if _has_new_types(targets):
        left_out |= {key for key in source.fields if key.startswith("quantize.imatrix.")}
    kept = [field for key, field in source.fields.items() if key not in left_out]
    tensors = tuple(replace(spec, kind=target.kind) for spec, target in targets.items() if target.is_written)
    header = GgufHeader((*kept, *added), tensors, source.alignment)
    tasks = []
    for spec, target in targets.items():
        task = Task(
            name=spec.name,
            shape=spec.shape,
            before=spec.nbytes,
            source=spec.kind.name,
            target=target.kind.name if target.is_written else "left out",
            pieces=_pieces(source, spec, target) if target.is_written else iter(()),
            weighted=target.weights is not None,
        )
        tasks.append([task])
    with replacing(out) as file:
        return run(tasks, GgufWriter(file, header), progress)


def _has_new_types(targets: Mapping[GgufSpec, _TensorPlan]) -> bool:
    """Return whether a tensor gets another type; the bytes of all others are copied."""
    return any(spec.kind != target.kind for spec, target in targets.items())


def _changes_field(source: GgufSource, added: list[MetadataField]) -> bool:
    """Return whether a field of the source gets another value; fields that it lacks do not count."""
    return any(field.key in source.fields and source.get(field.key) != field.value() for field in added)


def _pieces(source: GgufSource, spec: GgufSpec, target: _TensorPlan) -> Iterator[Callable[[], Piece]]:
    """Yield the work of converting chunks of rows, each with the weights of its columns and with its scale.

    Each chunk maps the tensor anew: pages that were read count as memory of the process until their map is gone.
    """
    matrices = 1 if target.weights is None and target.scale is None else math.prod(spec.shape[:-2])
    height = len(source.load(spec.name)) // matrices
    most = max(1, CHUNK // max(spec.shape[-1], 1))
    for index in range(matrices):
        end = (index + 1) * height
        of_matrix = target._replace(
            weights=None if target.weights is None else target.weights[index],
            scale=None if target.scale is None else target.scale[index],
        )
        for start in range(index * height, end, most):
            yield partial(_convert_rows, source, spec, of_matrix, start, min(start + most, end))


def _convert_rows(source: GgufSource, spec: GgufSpec, target: _TensorPlan, start: int, stop: int) -> Piece:
    """Return the data to store for the rows start..stop of a tensor."""
    rows = source.load(spec.name)[start:stop]
    with naming(lambda error: _failure(spec, target.kind, rows, start, error)):
        stored, values, decoded = _encode(spec.kind, target, rows)
    errors = None if decoded is None else NO_ERRORS if decoded is values else errors_of(values, decoded)
    return Piece({spec.name: stored}, rows.nbytes, errors)


def _encode(kind: TensorType, target: _TensorPlan, rows: Array) -> tuple[Array, Array, Array | None]:
    """Return rows as they are stored, their values, and their decoded values if errors are measured."""
    name = target.kind.name
    if kind == target.kind:
        return _checked_finite(rows, kind), rows, None
    values = gguf.dequantize(rows, kind.name) if kind.block > 1 else rows
    if target.scale is not None:
        values *= target.scale
    if target.kind.block > 1:
        stored = gguf.quantize(values, name, range=target.range, importance=target.weights)
        return stored, values, gguf.dequantize(stored, name)
    with np.errstate(over="ignore"):
        stored = _checked_finite(values.astype(numpy_dtype(target.kind), copy=False), target.kind)
    return stored, values, stored.astype(np.float32, copy=False)


def _checked_finite(stored: Array, target: TensorType) -> Array:
    """Return values in a type of floats; raise ValueError if some are infinite there."""
    if target.is_float and not np.isfinite(stored).all():
        raise ValueError(f"its values are too large for {target}")
    return stored


def _failure(spec: GgufSpec, target: TensorType, rows: Array, start: int, error: Exception) -> str:
    """Name the tensor that can't be converted, and its first row with NaN or infinity."""
    bad_rows = np.flatnonzero(~np.isfinite(rows).all(axis=1)) if spec.kind.is_float else np.zeros(0, np.intp)
    after = f", after {start:,} rows" if start else ""
    reason = f"NaN or infinity in row {start + bad_rows[0]:,}" if bad_rows.size else f"{error}{after}"
    return f"tensor {spec.name!r} can't become {target}: {reason}"


def _fields_of(imatrix: Imatrix, path: str) -> list[MetadataField]:
    """Return the fields about the matrix that was used, as llama-quantize writes them."""
    fields = [string("quantize.imatrix.file", _cut_text(path))]
    if imatrix.datasets:
        fields.append(string("quantize.imatrix.dataset", _cut_text(imatrix.datasets[0])))
    fields.append(uint32("quantize.imatrix.entries_count", len(imatrix.values)))
    if imatrix.chunks > 0:
        fields.append(uint32("quantize.imatrix.chunks_count", imatrix.chunks))
    return fields


def _cut_text(text: str) -> str:
    """Return the start of a text, in as many bytes as llama-quantize keeps."""
    return text.encode("utf-8", "replace")[:LONGEST_TEXT].decode("utf-8", "ignore")
