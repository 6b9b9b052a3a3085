"""The tensors of any file or folder that fastq reads, by name: a quantized matrix is one tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from fastq.formats.conventions.convention import Convention
from fastq.ops import array_file
from fastq.results import QuantizedArray
from fastq.system.dtypes import safetensors_dtype
from fastq.tools.checkpoints.config_json import CONFIG, quantization_in
from fastq.tools.checkpoints.experts import is_stack
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.json_files import read_json
from fastq.tools.checkpoints.quant_methods import StoredWeights, stored_weights
from fastq.tools.checkpoints.weight_files import INDEX, SINGLE, folder_within
from fastq.tools.files.containers import SOURCES, TensorSource, open_source
from fastq.tools.files.links import check_link
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.numpy_files import name_of
from fastq.tools.files.pipeline import Say
from fastq.tools.files.quantized_elsewhere import QuantizedElsewhere, quantized_elsewhere, weights_text
from fastq.tools.files.records import KEY, Record, Scheme, decode, from_metadata, is_saved_array, stored_specs
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.files.texts import alternatives
from fastq.tools.gguf_files.gguf_file import open_gguf
from fastq.tools.tensors.gguf_tensor import gguf_tensors
from fastq.tools.tensors.netcdf_zarr import (
    is_store,
    unreadable_variables,
    variables_of,
)
from fastq.tools.tensors.tensor import PlainTensor, QuantizedTensor, Tensor, WeightTensor, expert_matrices
from fastq.tools.tensors.variable_tensor import VariableTensor

SUFFIXES = *SOURCES, ".gguf"
# ends of names that only parts of a quantized matrix have
PARTS = ("_scale", "_packed", "qweight", "_scale_inv", "_blocks", ".scale")
DEQUANTIZE_MODEL = "fastq convert {} OUT --dequantize restores the model"


def tensors_of(path: Path, *, as_stored: bool = False, say: Say = lambda line: None) -> dict[str, Tensor]:
    """Return the tensors of a file or a store, of a model directory or of the files in a folder, by name.

    Codes, scales and zero points of a quantized tensor count as one tensor. With `as_stored`, the config.json of a
    model, which also describes files next to it, is ignored. `say` is called with notes about a model.
    """
    if is_store(path):
        return _tensors_of_store(path, say)
    check_link(path / CONFIG)
    is_model = (path / CONFIG).is_file() and any((path / name).is_file() for name in (INDEX, SINGLE))
    if path.is_dir() and not as_stored and (is_model or _is_quantized_model(path)):
        model = ModelFolder.open(path)
        for line in model.notes:
            say(line)
        return _by_name([(path.name, _tensors_of_model(model))])
    files = _files_in(path, say) if path.is_dir() else [path]
    return _by_name((file.name, _tensors_of_file(file, path, as_stored)) for file in files)


def _tensors_of_store(path: Path, say: Say) -> dict[str, Tensor]:
    """Return the variables of a netCDF file or a zarr store by name; report those that are not read."""
    tensors = _by_name([(path.name, map(VariableTensor.of, variables_of(path)))])
    for name in unreadable_variables(path):
        if name not in tensors:  # h5netcdf reads more types
            say(f"{name}: not read, since netCDF4 lacks its type")
    return tensors


def _files_in(folder: Path, say: Say) -> list[Path]:
    """Return the files of tensors in a folder; raise ValueError if there are none. Report .gguf files next to them."""
    gguf_names = sorted(file.name for file in folder.glob("*.gguf"))
    if gguf_names:
        say(f"not read in {folder.name}: {', '.join(gguf_names)}; give a .gguf file itself")
    files = sorted(file for file in folder.iterdir() if file.suffix in SOURCES)
    if not files:
        raise ValueError(f"there is no {alternatives(SOURCES)} file in it{folder_within(folder, SOURCES)}")
    return files


def with_experts_apart(tensors: Mapping[str, Tensor], others: Collection[str]) -> dict[str, Tensor]:
    """Return tensors, those of experts cut into one matrix for each expert if `others` has matrices of such names."""
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        is_stored_otherwise = name not in others and is_stack(name, tensor.shape)
        matrices = expert_matrices(tensor) if is_stored_otherwise else {}
        if matrices and all(matrix in others for matrix in matrices):
            apart |= matrices
        else:
            apart[name] = tensor
    return apart


def weights_of_other_programs(tensors: Iterable[Tensor]) -> list[QuantizedElsewhere]:
    """Return the weights among some tensors that another program quantized, and that no config.json describes."""
    plain = (tensor for tensor in tensors if not tensor.is_quantized)
    return quantized_elsewhere(
        TensorSpec(name=tensor.name, dtype=tensor.scheme, shape=tensor.shape, nbytes=tensor.nbytes) for tensor in plain
    )


def line_on_codes_read_as_stored(path: Path, tensors: Iterable[Tensor]) -> str:
    """Return a line on weights that another program quantized, and that are read as plain codes; empty if none are."""
    elsewhere = weights_of_other_programs(tensors)
    name = path.name or path.resolve().name
    return f"{name} has {weights_text(elsewhere)}; their codes are not multiplied by their scales" if elsewhere else ""


def _by_name(places: Iterable[tuple[str, Iterable[Tensor]]]) -> dict[str, Tensor]:
    """Return tensors by name; raise ValueError if two have the same name, as a quantized and a plain matrix may."""
    by_name: dict[str, Tensor] = {}
    for place, tensors in places:
        for tensor in tensors:
            if by_name.setdefault(tensor.name, tensor) is not tensor:
                raise ValueError(f"two tensors are called {tensor.name!r}; the second is in {place}")
    return by_name


def _tensors_of_file(file: Path, path: Path, as_stored: bool) -> list[Tensor]:
    """Return the tensors of a file; an error names it once if `path` is a folder with the file."""

    def named_once(error: Exception) -> str:
        """Return the text of an error, with the name of the file if the user named a folder."""
        is_named = file == path or str(error).startswith(f"{file.name} ")
        return str(error) if is_named else f"{file.name}: {error}"

    with naming(named_once, ValueError):
        if file.suffix == ".gguf":
            return list(gguf_tensors(open_gguf(file)))
        source = open_source(file)
        if not as_stored and is_shard_of_quantized_model(source):
            return list(_tensors_of_model(ModelFolder.open(file.parent), file.name))
        return list(tensors_in(source))


def is_shard_of_quantized_model(source: TensorSource) -> bool:
    """Return whether a file has parts of quantized matrices that the config.json next to it describes."""
    if KEY in source.metadata or not _is_quantized_model(source.path.parent):
        return False
    has_named_parts = any(name.endswith(PARTS) for name in source.tensors)
    return has_named_parts or bool(quantized_elsewhere(source.tensors.values()))


def advice_to_restore(folder: Path) -> str:
    """Return how to restore the floats of a quantized model directory, or why fastq can't."""
    try:
        stored_weights(ModelFolder.open(folder))
    except ValueError as error:
        return str(error)
    return DEQUANTIZE_MODEL.format(folder)


def _is_quantized_model(folder: Path) -> bool:
    """Return whether the config.json of a folder describes a quantized model."""
    config = folder / CONFIG
    return config.is_file() and bool(quantization_in(folder, read_json(config)))


def _tensors_of_model(model: ModelFolder, shard: str = "") -> Iterator[Tensor]:
    """Yield the tensors of a model, or of one of its shards. A quantized weight comes in the place of its codes."""
    weights = stored_weights(model) if model.quantization else StoredWeights()
    dtype = model.dtype  # may look at all tensors
    stored = model.shards[shard].tensors if shard else model.tensors
    for name, spec in stored.items():
        if name in weights.by_codes:
            yield WeightTensor.of(weights.by_codes[name], dtype)
        elif name not in weights.parts:
            yield PlainTensor.of(model, spec)


def tensors_in(source: TensorSource) -> Iterator[Tensor]:
    """Yield the tensors of a file: those that its records describe, then the others."""
    if is_saved_array(source.metadata):
        yield _tensor_of_saved_array(source)
        return
    records = from_metadata(source.metadata) if KEY in source.metadata else {}
    parts_of_quantized = set[str]()
    for name, record in records.items():
        specs = stored_specs(name, record)
        for spec in specs:
            if source.tensors.get(spec.name) != spec:
                raise ValueError(f"{spec.name!r} should be {spec.dtype} of shape {spec.shape}, by its {KEY!r} metadata")
        parts_of_quantized |= {spec.name for spec in specs}
        yield QuantizedTensor(
            name=name,
            shape=record.shape,
            scheme=_scheme_text(record, record.dtype, record.convention),
            nbytes=sum(spec.nbytes for spec in specs),
            original_dtype=record.original_dtype,
            is_quantized=True,
            read=partial(decode, name, record, source.load),
        )
    for name, spec in source.tensors.items():
        if name not in parts_of_quantized:
            yield PlainTensor.of(source, spec)


def _tensor_of_saved_array(source: TensorSource) -> Tensor:
    """Return a file of `QuantizedArray.save` as a tensor with the name of the file."""
    path = source.path
    nbytes = sum(spec.nbytes for spec in source.tensors.values())
    read = partial(array_file.read, path, QuantizedArray)
    q = read()  # for its properties; it is read again when it is needed, since a folder may have many
    return QuantizedTensor(
        name=name_of(path),
        shape=q.shape,
        scheme=_scheme_text(q, str(q.dtype), q.convention),
        nbytes=nbytes,
        original_dtype=safetensors_dtype(q.qparams.compute_dtype) or "F32",
        is_quantized=True,
        read=read,
    )


def _scheme_text(source: Record | QuantizedArray, dtype: str, convention: str | Convention) -> str:
    """Return the scheme of codes as tables show it, without the method for ranges, which a file does not tell."""
    scheme = Scheme(
        dtype=dtype,
        axis=source.axis,
        block_size=source.block_size,
        symmetric=source.symmetric,
        convention=convention.name if isinstance(convention, Convention) else convention,
    )
    return str(scheme)
