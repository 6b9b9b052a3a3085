"""Convert a GGUF file to other types, with some rows of a tensor in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
LONGEST_TEXT = 127  # most bytes of a text that llama-quantize writes into the metadata
# called with a line for the user on each thing that was left out or unknown; with in_part=True if an option had no
# effect, so that the command was not done as asked for
SayMore = Callable[..., None]


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

    kind: TensorType  # its new type, or the old one if it is copied
    range: str = "minmax"  # the method for scales
    weights: Array | None = None  # importance of columns, a row for each matrix
    scale: Array | None = None  # scales of the values, a number for each matrix
    is_written: bool = True  # whether the new file has the tensor


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
    types_of = partial(
        mixes.choose_types,
        model,
        mix=request.mix,
        overrides=request.overrides,
        has_imatrix=request.imatrix is not None,
    )
    plans = _plan_types(specs, types_of(specs), request)
    if request.range == "mse":
        _plan_least_error(plans, say)
    # fields that replace those of the source
    added = [
        uint32("general.quantization_version", QUANTIZATION_VERSION),
        uint32("general.file_type", request.mix.number),
    ]
    if request.imatrix is not None:
        path, imatrix = request.imatrix
        added += _plan_weights(plans, path, imatrix, say)
    _refuse_without_importance(plans, request.mix)
    _plan_scales(source, plans, say)
    # rows of whole blocks have the types that rules intend: for others `choose_types` falls back to smaller blocks
    intended = types_of([_with_whole_blocks(spec) for spec in specs])
    _say_which_types_fell_back(plans, intended, say)
    _say_what_is_not_read(plans, request, say)
    rows = _write_file(source, out, plans, added, progress)
    if not (_has_new_types(plans) or _changes_field(source, added) or len(source.parts) > 1):
        say(f"nothing was converted: no tensor of {source.path.name} gets another type", in_part=True)
    return rows


# Planning: each step adds to the plans of the tensors, in the order of the file


def _plan_types(
    specs: Iterable[GgufSpec], type_by_mix: Mapping[str, TensorType], request: GgufConversion
) -> dict[GgufSpec, _TensorPlan]:
    """Return the plan of each tensor with its new type; raise ValueError if fastq can't convert a tensor to its type.

    Nothing is written yet, so an unfit tensor at the end of a large model is refused at once.
    """
    plans = {}
    for spec in specs:
        new = _requested_type(spec, type_by_mix[spec.name], request)
        if not spec.size:  # without values any type would do
            new = spec.kind
        if new != spec.kind:
            _check_conversion(spec, new, request)
        plans[spec] = _TensorPlan(kind=new)
    return plans


def _requested_type(spec: GgufSpec, by_mix: TensorType, request: GgufConversion) -> TensorType:
    """Return the type that the mix and the options ask for: the tensor's own type if it is to be copied."""
    if request.dequantize:
        if _is_in_blocks(spec):  # a mix leaves some tensors alone, but no block may stay
            return TENSOR_TYPES[request.mix.default]
        return by_mix if spec.kind.is_float else spec.kind
    is_type_known = spec.kind.block > 0
    can_be_converted = is_type_known and len(spec.shape) <= LLAMA_DIMENSIONS
    return by_mix if can_be_converted else spec.kind


def _check_conversion(spec: GgufSpec, new: TensorType, request: GgufConversion) -> None:
    """Raise ValueError if a tensor can't be converted to another type, or an option must allow it."""
    old = spec.kind
    is_in_blocks = _is_in_blocks(spec)
    may_decode_blocks = request.dequantize or request.requantize
    if not old.is_float and not (is_in_blocks and may_decode_blocks):
        advice = "; take --dequantize first, or --allow-requantize, where both steps lose" if is_in_blocks else ""
        raise ValueError(f"tensor {spec.name!r} is {old}; only F32, F16 and BF16 are quantized{advice}")
    if is_in_blocks and old.name not in BLOCK_FORMATS:
        raise ValueError(f"tensor {spec.name!r} is {old}, which fastq does not dequantize")
    if not (new.is_float or new.name in BLOCK_FORMATS):
        raise ValueError(f"tensor {spec.name!r} would be {new}, which fastq does not quantize to")


def _is_in_blocks(spec: GgufSpec) -> bool:
    """Return whether a tensor is no plain numbers, which have blocks of 1; unknown types, with 0, may be anything."""
    return spec.kind.block != 1


def _plan_least_error(plans: dict[GgufSpec, _TensorPlan], say: SayMore) -> None:
    """Plan the search for the scales of least error for the tensors whose new types have one; say which have none."""
    without_search = []
    for spec, plan in plans.items():
        if plan.kind != spec.kind and plan.kind.block > 1:
            if BLOCK_FORMATS[plan.kind.name].trials:
                plans[spec] = plan._replace(range="mse")
            else:
                without_search.append(spec.name)
    if all(plan.range == "minmax" for plan in plans.values()):
        say(f"--range mse had no effect: no tensor becomes one of {', '.join(LEAST_ERROR)}", in_part=True)
    elif without_search:
        names = _quoted(without_search)
        say(f"--range mse does not apply to the types of these tensors, which get the bytes of ggml: {names}")


def _plan_weights(plans: dict[GgufSpec, _TensorPlan], path: str, imatrix: Imatrix, say: SayMore) -> list[MetadataField]:
    """Plan the weights of columns by an importance matrix; return the fields about the matrix, if it is used."""
    names_in_matrix = _name_lookup(imatrix)
    to_weigh: dict[str, MatrixToWeigh] = {}
    for spec, plan in plans.items():
        if plan.kind == spec.kind or plan.kind.block <= 1:
            continue
        block_format = BLOCK_FORMATS[plan.kind.name]
        if block_format.weighted or plan.range == "mse":
            to_weigh[spec.name] = MatrixToWeigh(
                names=names_in_matrix(spec.name),
                shape=spec.shape,
                group=block_format.group,
                may_differ=_may_differ(spec),
            )
    if not to_weigh:
        say("the importance matrix was not used: no tensor is converted to a type that depends on it")
        return []
    weights = weigh(imatrix, to_weigh, {spec.name for spec in plans}, say)
    for spec in plans:
        plans[spec] = plans[spec]._replace(weights=weights.get(spec.name))
    return _fields_of(imatrix, path)


def _name_lookup(imatrix: Imatrix) -> Callable[[str], Names]:
    """Return a function from the name of a tensor to the names that it may have in a matrix, of which the first counts.

    These are its own name, the name of its module, and what transformers calls the module. There each expert has a
    module of its own, of which none is the whole tensor of experts: such tensors have no name of transformers. Each
    name is followed by None, for all matrices of its entry.
    """
    in_transformers: dict[str, Names] = {}  # entries by llama.cpp's names of the tensors to which they belong
    for entry in imatrix.values:
        for name, expert in gguf_names(entry.removesuffix(".weight")):
            in_transformers[name] = (*in_transformers.get(name, ()), (entry, None)) if expert is None else ()
    return lambda name: ((name, None), (name.removesuffix(".weight"), None), *in_transformers.get(name, ()))


def _may_differ(spec: GgufSpec) -> bool:
    """Return whether llama-imatrix may count other columns than those of the tensor, as for embeddings.

    Then its entry is not used; for other tensors it is an error.
    """
    return mixes.purpose_of(spec.name) == mixes.EMBEDDING


def _refuse_without_importance(plans: Mapping[GgufSpec, _TensorPlan], mix: Mix) -> None:
    """Raise ValueError if llama-quantize makes a type from importance only, and a tensor has none."""
    for spec, plan in plans.items():
        is_converted = plan.kind != spec.kind
        if is_converted and plan.weights is None and mix.needs_importance(spec.name, plan.kind):
            raise ValueError(
                f"tensor {spec.name!r} would be {plan.kind}: {mix.name} needs an --imatrix with an entry for it"
            )


def _plan_scales(source: GgufSource, plans: dict[GgufSpec, _TensorPlan], say: SayMore) -> None:
    """Plan to multiply converted values by their scales, and to leave these out, which belong to the old blocks."""
    left_out = []
    for spec, plan in list(plans.items()):
        if plan.kind == spec.kind or not _is_in_blocks(spec) or spec.name not in source.scales:
            continue
        plans[spec] = plan._replace(scale=source.scale(spec.name))
        for name in (source.scales[spec.name], f"{spec.name.removesuffix('.weight')}.input_scale"):
            scale = source.tensors.get(name)
            if scale is not None:
                plans[scale] = plans[scale]._replace(is_written=False)
                left_out.append(name)
    if left_out:
        say(f"weights are multiplied with their scales, which are left out: {_quoted(left_out)}")


# What a user has to know of the plans


def _with_whole_blocks(spec: GgufSpec) -> GgufSpec:
    """Return a tensor of the same name with rows of whole blocks of any type, to ask for the type without fallback."""
    return replace(spec, shape=(*spec.shape[:-1], LARGEST_BLOCK)) if spec.shape else spec


def _say_which_types_fell_back(
    plans: Mapping[GgufSpec, _TensorPlan], intended: Mapping[str, TensorType], say: SayMore
) -> None:
    """Name the tensors that do not get the intended types, since their rows are not whole blocks of these."""
    fallen_back = [
        f"{spec.name!r} ({plan.kind}, not {intended[spec.name]})"
        for spec, plan in plans.items()
        if spec.size and plan.kind != spec.kind and spec.shape[-1] % intended[spec.name].block
    ]
    if fallen_back:
        say(f"another type, since their rows are not whole blocks: {some_of(fallen_back)}")


def _say_what_is_not_read(specs: Collection[GgufSpec], request: GgufConversion, say: SayMore) -> None:
    """Name the tensors that fastq does not know, and those that llama.cpp does not read."""
    if unknown := [spec.name for spec in specs if not spec.kind.block]:
        say(f"copied unchanged, since fastq does not know their types: {_quoted(unknown)}")
    if deep := [spec.name for spec in specs if len(spec.shape) > LLAMA_DIMENSIONS]:
        consequence = "" if request.dequantize else ", and they are copied"
        say(f"llama.cpp does not read tensors of more than {LLAMA_DIMENSIONS} dimensions{consequence}: {_quoted(deep)}")
    if long := [spec.name for spec in specs if len(spec.name.encode()) > LONGEST_NAME]:
        say(f"llama.cpp does not read names of more than {LONGEST_NAME} bytes: {_quoted(long)}")


def _quoted(names: list[str]) -> str:
    """Return the first of some names in quotes, and the number of the others."""
    return some_of([repr(name) for name in names])


# Writing


def _write_file(
    source: GgufSource,
    out: Path,
    plans: Mapping[GgufSpec, _TensorPlan],
    added: list[MetadataField],
    progress: Progress,
) -> list[Converted]:
    """Write the tensors as planned, with the added fields, and with those of the source that hold of the new file too.

    The new file is not a part of a model, and if it has new blocks, its importance matrix is not that of the source.
    """
    outdated = {*OF_PARTS, *(field.key for field in added)}
    if _has_new_types(plans):
        outdated |= {key for key in source.fields if key.startswith("quantize.imatrix.")}
    fields = [field for key, field in source.fields.items() if key not in outdated]
    written = tuple(replace(spec, kind=plan.kind) for spec, plan in plans.items() if plan.is_written)
    header = GgufHeader(fields=(*fields, *added), tensors=written, alignment=source.alignment)
    tasks = []
    for spec, plan in plans.items():
        task = Task(
            name=spec.name,
            shape=spec.shape,
            before=spec.nbytes,
            source=spec.kind.name,
            target=plan.kind.name if plan.is_written else "left out",
            pieces=_pieces(source, spec, plan) if plan.is_written else iter(()),
            weighted=plan.weights is not None,
        )
        tasks.append([task])
    with replacing(out) as file:
        return run(tasks, GgufWriter(file, header), progress)


def _has_new_types(plans: Mapping[GgufSpec, _TensorPlan]) -> bool:
    """Return whether a tensor gets another type; the bytes of all others are copied."""
    return any(spec.kind != plan.kind for spec, plan in plans.items())


def _changes_field(source: GgufSource, added: list[MetadataField]) -> bool:
    """Return whether a field of the source gets another value; fields that it lacks do not count."""
    return any(field.key in source.fields and source.get(field.key) != field.value() for field in added)


def _pieces(source: GgufSource, spec: GgufSpec, plan: _TensorPlan) -> Iterator[Callable[[], Piece]]:
    """Yield the work of converting chunks of rows; a chunk lies in one matrix, whose weights and scale it has.

    Each chunk maps the tensor anew: pages that were read count as memory of the process until their map is gone.
    """
    is_cut_into_matrices = plan.weights is not None or plan.scale is not None
    matrices = math.prod(spec.shape[:-2]) if is_cut_into_matrices else 1
    rows_of_matrix = len(source.load(spec.name)) // matrices
    rows_of_chunk = max(1, CHUNK // max(spec.shape[-1], 1))
    for index in range(matrices):
        first_row = index * rows_of_matrix
        end_row = first_row + rows_of_matrix
        plan_of_matrix = plan._replace(
            weights=None if plan.weights is None else plan.weights[index],
            scale=None if plan.scale is None else plan.scale[index],
        )
        for start in range(first_row, end_row, rows_of_chunk):
            yield partial(_convert_rows, source, spec, plan_of_matrix, start, min(start + rows_of_chunk, end_row))


def _convert_rows(source: GgufSource, spec: GgufSpec, plan: _TensorPlan, start: int, stop: int) -> Piece:
    """Return the data to store for the rows start..stop of a tensor, and their errors unless they are copied.

    The rows are those of all matrices; `plan` has the weights and the scale of the one in which they lie.
    """
    rows = source.load(spec.name)[start:stop]
    with naming(lambda error: _failure_text(spec, plan.kind, rows, start, error)):
        if plan.kind == spec.kind:
            return Piece({spec.name: _checked_finite(rows, plan.kind)}, rows.nbytes)
        values = gguf.dequantize(rows, spec.kind.name) if spec.kind.block > 1 else rows
        if plan.scale is not None:
            values *= plan.scale  # in place: only blocks have scales, so the values are new ones
        stored = _encode(values, plan)
        decoded = (
            gguf.dequantize(stored, plan.kind.name) if plan.kind.block > 1 else stored.astype(np.float32, copy=False)
        )
    # floats of this type, which were in blocks before, are the same array
    errors = NO_ERRORS if decoded is values else errors_of(values, decoded)
    return Piece({spec.name: stored}, rows.nbytes, errors)


def _encode(values: Array, plan: _TensorPlan) -> Array:
    """Return values as the new type stores them: blocks, or floats, which are not copied if they are of this type."""
    if plan.kind.block > 1:
        blocks: Array = gguf.quantize(values, plan.kind.name, range=plan.range, importance=plan.weights)
        return blocks
    with np.errstate(over="ignore"):  # infinities are refused
        return _checked_finite(values.astype(numpy_dtype(plan.kind), copy=False), plan.kind)


def _checked_finite(values: Array, kind: TensorType) -> Array:
    """Return the values of a tensor; raise ValueError if they are floats of which some are infinite."""
    if kind.is_float and not np.isfinite(values).all():
        raise ValueError(f"its values are too large for {kind}")
    return values


def _failure_text(spec: GgufSpec, new: TensorType, rows: Array, start: int, error: Exception) -> str:
    """Return an error that names the tensor that can't be converted, and its first row with NaN or infinity."""
    bad_rows = np.flatnonzero(~np.isfinite(rows).all(axis=1)) if spec.kind.is_float else np.zeros(0, np.intp)
    if bad_rows.size:
        reason = f"NaN or infinity in row {start + bad_rows[0]:,}"
    else:
        after = f", after {start:,} rows" if start else ""
        reason = f"{error}{after}"
    return f"tensor {spec.name!r} can't become {new}: {reason}"


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
