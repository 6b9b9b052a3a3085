"""The tensors of any file or folder that fastq reads, by name: a quantized matrix is one tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions import Convention
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.ops import array_file
from fastq.results import QParams, QuantizedArray
from fastq.system.dtypes import DTYPES, ML_FLOATS, Array, safetensors_dtype
from fastq.tools.checkpoints.config_json import CONFIG, quantization_in
from fastq.tools.checkpoints.experts import Stack, is_stack
from fastq.tools.checkpoints.folder import INDEX, SINGLE, ModelFolder, folder_within
from fastq.tools.checkpoints.json_files import read_json
from fastq.tools.checkpoints.quant_methods import StoredWeights, stored_weights
from fastq.tools.checkpoints.stored_weights import StoredWeight
from fastq.tools.files.containers import SOURCES, TensorSource, open_source
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.numpy_files import name_of
from fastq.tools.files.patterns import WEIGHT
from fastq.tools.files.quantized_elsewhere import QuantizedElsewhere, quantized_elsewhere, told_of
from fastq.tools.files.records import KEY, Record, Scheme, are_of_array, decoded, from_metadata, stored_specs
from fastq.tools.files.tensor_specs import TensorSpec, bytes_of
from fastq.tools.files.texts import listed
from fastq.tools.gguf_files.gguf_file import GgufSource, GgufTensor, has_values, open_gguf
from fastq.tools.layouts.layout import without_zero_scales
from fastq.tools.tensors.netcdf_zarr import (
    ROUNDED,
    StoredVariable,
    described,
    is_packed,
    is_store,
    unreadable,
    variables_of,
)
from fastq.tools.tensors.tensor import Tensor

SUFFIXES = *SOURCES, ".gguf"
# ends of names of the stored tensors of a quantized matrix
PARTS = ("_scale", "_packed", "qweight", "_scale_inv", "_blocks", ".scale")
OF_MODEL = "fastq convert {} OUT --dequantize restores the model"


def tensors_of(
    path: Path, *, as_stored: bool = False, say: Callable[[str], None] = lambda line: None
) -> dict[str, Tensor]:
    """Return the tensors of a file or a store, of a model directory or of the files in a folder, by name.

    The stored tensors of a quantized one count as one tensor; with `as_stored`, the config.json of a model, which also
    describes files next to it, is ignored. `say` is called with notes about a model.
    """
    if is_store(path):
        tensors = _by_name([(path.name, map(_variable, variables_of(path)))])
        for name in unreadable(path):
            say(f"{name}: not read, since netCDF4 lacks its type")
        return tensors
    if (path / CONFIG).is_symlink() and not (path / CONFIG).exists():  # as in a cache of the hub without this blob
        raise ValueError(f"{CONFIG} is a link to a file that is missing; fetch it again, or remove the link")
    is_model = (path / CONFIG).is_file() and any((path / name).is_file() for name in (INDEX, SINGLE))
    if path.is_dir() and not as_stored and (is_model or _is_quantized(path)):
        model = ModelFolder(path)
        for line in model.notes:
            say(line)
        return _by_name([(path.name, _model_tensors(model))])
    files = sorted(each for each in path.iterdir() if each.suffix in SOURCES) if path.is_dir() else [path]
    if others := sorted(each.name for each in path.glob("*.gguf")) if path.is_dir() else []:
        say(f"not read in {path.name}: {', '.join(others)}; give a .gguf file itself")
    if not files:
        raise ValueError(f"there is no {listed(SOURCES)} file in it{folder_within(path, SOURCES)}")
    return _by_name((file.name, _tensors_of_file(file, path, as_stored)) for file in files)


def with_experts_apart(tensors: Mapping[str, Tensor], others: Collection[str]) -> dict[str, Tensor]:
    """Return tensors with those of experts cut into the matrices of each expert, where `others` has names of these."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        matrices = _matrices(tensor) if name not in others and is_stack(name, tensor.shape) else {}
        apart = bool(matrices) and all(each in others for each in matrices)
        found |= matrices if apart else {name: tensor}
    return found


def _matrices(tensor: Tensor) -> dict[str, Tensor]:
    """Return the matrices of each expert in a tensor of experts by the names of their weights, empty if it is odd."""
    experts, rows, columns = tensor.shape
    stack = Stack(tensor.name, (experts, rows, columns))
    values = lru_cache(1)(tensor.values)  # codes are decoded once for the matrices, which are read one after the other
    each = replace(tensor, shape=(stack.rows, columns), nbytes=tensor.nbytes * stack.rows // (experts * rows))

    def part(expert: int, first: int) -> Array:
        return values()[expert, first : first + stack.rows]

    def bytes_of_part(expert: int, first: int) -> NDArray[np.uint8]:
        return bytes_of(part(expert, first))

    found = {}
    for module, expert, first in stack.modules() if stack.is_even else ():
        name = f"{module}{WEIGHT}"
        load = partial(part, expert, first)
        ways: dict[str, Any] = {"load": load, "decode": load, "raw": partial(bytes_of_part, expert, first)}
        found[name] = replace(each, name=name, **ways, weight=None)
    return found


def elsewhere_in(tensors: Iterable[Tensor]) -> list[QuantizedElsewhere]:
    """Return the weights among some tensors that are codes without a description."""
    plain = (TensorSpec(each.name, each.scheme, each.shape, each.nbytes) for each in tensors if not each.is_quantized)
    return quantized_elsewhere(plain)


def codes_read_as_stored(path: Path, tensors: Iterable[Tensor]) -> str:
    """Return a line on the weights among some tensors that are codes without a description; empty without them."""
    elsewhere = elsewhere_in(tensors)
    name = path.name or path.resolve().name
    return f"{name} has {told_of(elsewhere)}; their codes are not multiplied by their scales" if elsewhere else ""


def _by_name(places: Iterable[tuple[str, Iterable[Tensor]]]) -> dict[str, Tensor]:
    """Return tensors by name; raise ValueError if two have the same, as a quantized matrix and a plain one can."""
    found: dict[str, Tensor] = {}
    for place, tensors in places:
        for tensor in tensors:
            if found.setdefault(tensor.name, tensor) is not tensor:
                raise ValueError(f"two tensors are called {tensor.name!r}; the second is in {place}")
    return found


def _tensors_of_file(file: Path, given: Path, as_stored: bool) -> list[Tensor]:
    """Return the tensors of a file; an error names it once if a folder was given."""

    def named(error: Exception) -> str:
        is_told = file == given or str(error).startswith(f"{file.name} ")
        return str(error) if is_told else f"{file.name}: {error}"

    with naming(named, ValueError):
        if file.suffix == ".gguf":
            return list(gguf_tensors(open_gguf(file)))
        source = open_source(file)
        if not as_stored and is_shard(source):
            return list(_model_tensors(ModelFolder(file.parent), file.name))
        return list(tensors_in(source))


def is_shard(source: TensorSource) -> bool:
    """Return whether a file has parts of quantized matrices that the config.json next to it describes."""
    if KEY in source.metadata or not _is_quantized(source.path.parent):
        return False
    return any(name.endswith(PARTS) for name in source.tensors) or bool(quantized_elsewhere(source.tensors.values()))


def way_back(folder: Path) -> str:
    """Return how to restore the floats of a quantized model directory, or why fastq can't."""
    try:
        stored_weights(ModelFolder(folder))
    except ValueError as error:
        return str(error)
    return OF_MODEL.format(folder)


def _is_quantized(folder: Path) -> bool:
    config = folder / CONFIG
    return config.is_file() and bool(quantization_in(folder, read_json(config)))


def _model_tensors(model: ModelFolder, shard: str = "") -> Iterator[Tensor]:
    """Yield the tensors of a model, or of one of its shards; a weight is yielded for the tensor of its codes."""
    weights = stored_weights(model) if model.quantization else StoredWeights()
    dtype = model.dtype
    for name, spec in (model.shards[shard] if shard else model).tensors.items():
        if name in weights.by_codes:
            yield tensor_of_weight(weights.by_codes[name], dtype)
        elif name not in weights.parts:
            yield plain_tensor(model, spec)


def tensor_of_weight(weight: StoredWeight, dtype: str) -> Tensor:
    """Return a quantized weight of a model with a dtype as a tensor."""
    decode = None if weight.is_direct else weight.all_values
    about = weight.name, weight.shape, weight.label, weight.nbytes
    return Tensor(*about, True, weight.whole, dtype, decode=decode, weight=weight)


def plain_tensor(source: TensorSource | ModelFolder, spec: TensorSpec) -> Tensor:
    """Return a tensor that is stored unchanged."""
    known = spec.dtype in DTYPES or spec.dtype in ML_FLOATS
    ways = partial(source.load, spec.name), spec.dtype, False, partial(source.raw, spec.name)
    return Tensor(spec.name, spec.shape, spec.dtype, spec.nbytes, known, *ways)


def tensors_in(source: TensorSource) -> Iterator[Tensor]:
    """Yield the tensors of a file: quantized ones by its records, which must be right, then the others."""
    if are_of_array(source.metadata):
        yield _array(source.path, sum(spec.nbytes for spec in source.tensors.values()))
        return
    records = from_metadata(source.metadata) if KEY in source.metadata else {}
    stored = set[str]()
    for name, record in records.items():
        specs = stored_specs(name, record)
        for spec in specs:
            if source.tensors.get(spec.name) != spec:
                raise ValueError(f"{spec.name!r} should be {spec.dtype} of shape {spec.shape}, by its {KEY!r} metadata")
        stored |= {spec.name for spec in specs}
        about = name, record.shape, _scheme(record, record.dtype, record.convention), sum(spec.nbytes for spec in specs)
        yield Tensor(*about, True, partial(decoded, name, record, source.load), record.original_dtype)
    for name, spec in source.tensors.items():
        if name not in stored:
            yield plain_tensor(source, spec)


def _array(path: Path, nbytes: int) -> Tensor:
    """Return a file of `QuantizedArray.save` as a tensor with the name of the file."""
    load = partial(array_file.read, path, QuantizedArray)
    q = load()  # read again when it is needed, since a folder may have many
    about = name_of(path), q.shape, _scheme(q, str(q.dtype), q.convention), nbytes
    return Tensor(*about, True, load, safetensors_dtype(q.qparams.compute_dtype) or "F32")


def _variable(found: StoredVariable) -> Tensor:
    """Return a variable of a netCDF file or a zarr store, which a function opens, as a tensor."""
    variable = found.variable
    reader = found.reader
    stored = np.dtype(variable.encoding.get("dtype") or variable.dtype)
    about = described(variable)
    scheme = f"{stored}{', packed' * is_packed(variable)}{', rounded' * any(key in about for key in ROUNDED)}"

    def load() -> Array:
        with reader() as read:
            return read(())

    def raw() -> NDArray[np.uint8]:
        values = load()
        if found.special:  # texts of arrays leave elements out
            return np.frombuffer(b"".join(_bytes_of(value) for value in values.ravel()), np.uint8)
        return np.frombuffer("\0".join(map(str, values.ravel().tolist())).encode("utf-8", "replace"), np.uint8)

    sizes = (variable.shape, found.special or scheme, variable.size * stored.itemsize)
    is_number = variable.dtype.kind in "fiu" and not found.special
    preferred = variable.encoding.get("preferred_chunks", {})
    chunks = tuple(preferred.get(dim, 1) for dim in variable.dims)
    named = {"dims": variable.dims, "labels": found.labels}
    return Tensor(
        found.name, *sizes, is_number, load, "F32", bool(about), raw, reader=reader, chunks=chunks, about=about, **named
    )


def _bytes_of(value: Any) -> bytes:
    """Return the bytes of a list or a record, after their number."""
    stored = np.asarray(value).tobytes()
    return len(stored).to_bytes(8, "little") + stored


def gguf_tensors(source: GgufSource) -> Iterator[Tensor]:
    """Yield the tensors of a GGUF file that are not scales of others."""
    for name, spec in source.valued.items():
        about = (name, spec.shape, spec.kind.name, spec.nbytes)
        known = has_values(spec.kind)
        raw = source.raw
        decode = partial(source.values, name)
        load = partial(_q8_0, source, spec) if spec.kind.name == "Q8_0" else decode
        yield Tensor(*about, known, load, "F32", spec.kind.block != 1, partial(raw, name), decode)


def _q8_0(source: GgufSource, spec: GgufTensor) -> QuantizedArray:
    """Return blocks of Q8_0 as int8 codes in blocks of 32; a scale of 0, for values that are too small, becomes 1."""
    form = BLOCK_FORMATS["Q8_0"]
    name = spec.name
    shape = spec.shape
    blocks = source.load(name).reshape(-1, form.nbytes)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32).reshape(*shape[:-1], shape[-1] // form.size)
    if (times := source.scale(name)) is not None:
        scale *= times.reshape(*shape[:-2], 1, 1)
    codes = blocks[:, 2:].copy().view(np.int8).reshape(shape)
    qparams = QParams(scale, np.zeros(scale.shape, np.int8), as_qtype("int8"), -1, form.size, symmetric=True)
    return without_zero_scales(QuantizedArray(codes, qparams, shape), f"tensor {name!r}")


def _scheme(of: Record | QuantizedArray, dtype: str, convention: str | Convention) -> str:
    named = convention.name if isinstance(convention, Convention) else convention
    return str(Scheme(dtype, of.axis, of.block_size, of.symmetric, convention=named))
