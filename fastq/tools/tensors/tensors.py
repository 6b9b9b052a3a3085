"""Tensors of files and of folders of files, plain and quantized, by name, with their properties and values."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions import Convention
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.ops import array_file
from fastq.ops.file_parts import as_name, as_path
from fastq.results import QParams, QuantizedArray
from fastq.results.measures import outliers_of
from fastq.system.arguments import shown
from fastq.system.dtypes import DTYPES, ML_FLOATS, Array, safetensors_dtype
from fastq.tools.checkpoints.config_json import CONFIG, quantization_in
from fastq.tools.checkpoints.experts import Stack, is_stack
from fastq.tools.checkpoints.folder import INDEX, SINGLE, ModelFolder, folder_within
from fastq.tools.checkpoints.json_files import read_json
from fastq.tools.checkpoints.quant_methods import StoredWeights, stored_weights
from fastq.tools.checkpoints.stored_weights import CompressedWeight, StoredWeight
from fastq.tools.files.containers import SOURCES, TensorSource, open_source
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.numpy_files import name_of
from fastq.tools.files.patterns import WEIGHT, nearest
from fastq.tools.files.pipeline import Progress
from fastq.tools.files.quantized_elsewhere import QuantizedElsewhere, quantized_elsewhere, told_of
from fastq.tools.files.records import KEY, Record, Scheme, are_of_array, decoded, from_metadata, stored_specs
from fastq.tools.files.tensor_specs import TensorSpec, bytes_of
from fastq.tools.files.texts import count_text, listed
from fastq.tools.gguf_files.container import GgufSource, GgufTensor, has_values, open_gguf
from fastq.tools.layouts.tensors import without_zero_scales
from fastq.tools.tensors.stores import (
    ROUNDED,
    Labels,
    Reader,
    StoredVariable,
    described,
    is_packed,
    is_store,
    unreadable,
    variables_of,
)

SUFFIXES = *SOURCES, ".gguf"
# ends of names of the stored tensors of a quantized matrix
PARTS = ("_scale", "_packed", "qweight", "_scale_inv", "_blocks", ".scale")
OF_MODEL = "fastq convert {} OUT --dequantize restores the model"
PIECE = 1 << 20  # elements looked at together; bounds the temporaries


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file."""

    name: str  # shape in the file; for a quantized tensor that of the original
    shape: tuple[int, ...]
    scheme: str  # its dtype, or its scheme
    nbytes: int  # bytes in the file, including scales and zero points
    # whether its values can be measured: not for unknown blocks of GGUF, nor for BOOL, U32, U64 and C64
    has_numbers: bool
    load: Callable[[], Array | QuantizedArray]  # returns it, mapped, or the codes and parameters of a quantized tensor
    original: str  # dtype of the original tensor, by its name in safetensors
    is_quantized: bool = True
    raw: Callable[[], NDArray[np.uint8]] | None = None  # returns its bytes, if it is one tensor of the file
    decode: Callable[[], Array] | None = None  # returns its values, if they differ from the result of `load`
    weight: StoredWeight | None = None  # the stored tensors of a quantized weight of a model
    reader: Reader | None = None  # opens what returns the values at indices, if all may not fit in memory
    chunks: tuple[int, ...] = ()  # those of its storage, by which parts are aligned
    about: Mapping[str, Any] = field(default_factory=dict)  # its packing or rounding in netCDF
    dims: tuple[str, ...] = ()  # names of its dimensions, if they have names
    labels: Labels = dict  # returns the coordinates of its dimensions, by their names

    def values(self) -> Array:
        """Return the values."""
        with naming(lambda error: f"tensor {self.name!r} can't be dequantized: {error}"):
            if self.decode is not None:
                return self.decode()
            loaded = self.load()
            return loaded.dequantize() if isinstance(loaded, QuantizedArray) else loaded

    def parts(self) -> Iterator[Any]:
        """Yield the indices of parts: whole chunks of the storage, as many as have about a million elements."""
        sizes = list(self.chunks or (1,) * len(self.shape))
        for axis in reversed(range(len(sizes))):
            sizes[axis] = max(min(sizes[axis] * max(PIECE // math.prod(sizes), 1), self.shape[axis]), 1)
        starts = (range(0, length, size) for length, size in zip(self.shape, sizes, strict=True))
        for corner in itertools.product(*starts):
            yield tuple(slice(start, start + size) for start, size in zip(corner, sizes, strict=True))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Callable[[Any], Array]]:
        """Open the tensor for a function that returns the values of a part."""
        if self.reader is None:
            yield self.values().__getitem__
            return
        with self.reader() as read:
            yield read

    def nbytes_of(self, values: Array) -> int:
        """Return the bytes in the file of the values of a part."""
        return self.nbytes * values.size // max(math.prod(self.shape), 1)

    def extent(self, progress: Progress) -> Extent:
        """Return the statistics of the values, in parts without outlier channels; `progress` gets the bytes of each."""
        if self.reader is None:
            progress(self.nbytes, 0)
            return extent_of(self.values())
        found = NOTHING
        with self.opened() as read:
            for part in self.parts():
                values = read(part)
                found = found.with_more(extent_of(values.ravel()))
                progress(self.nbytes_of(values), 0)
        return found

    def codes(self) -> Array | QuantizedArray:
        """Return codes and parameters if they have the tensor's shape, else the values."""
        return self.values() if self.decode else self.load()


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


@dataclass(frozen=True)
class Extent:
    """Statistics of the numbers of a tensor."""

    lo: float | None  # the smallest and the largest finite number; None without finite numbers
    hi: float | None
    nan: int  # number of NaN and of infinities
    infinite: int
    # outlier channels by axis, of two or more axes: indices whose largest magnitude is at least six times the median
    outliers: dict[int, tuple[int, ...]]

    def with_more(self, other: Extent) -> Extent:
        """Return the statistics of both parts."""
        lows, highs = ([end for end in ends if end is not None] for ends in ((self.lo, other.lo), (self.hi, other.hi)))
        counts = self.nan + other.nan, self.infinite + other.infinite
        return Extent(min(lows, default=None), max(highs, default=None), *counts, {})


NOTHING = Extent(None, None, 0, 0, {})


def extent_of(values: Array) -> Extent:
    """Return the statistics of an array, computed piece by piece."""
    shape = (values.shape[0], math.prod(values.shape[1:])) if values.ndim > 1 else (1, values.size)
    # arrays in Fortran order are not copied: the order within a row does not matter here
    by_columns = values.flags.f_contiguous and values.ndim > 1
    rows = values.T.reshape(shape[::-1]).T if by_columns else values.reshape(shape)
    height, width = max(PIECE // max(shape[1], 1), 1), max(min(PIECE, shape[1]), 1)
    found = np.zeros((4, shape[0]))
    found[:2] = [[np.inf], [-np.inf]]
    largest_of_columns = np.full(shape[1] if values.ndim > 1 else 0, -1.0)  # -1 without finite numbers
    for top in range(0, shape[0], height):
        band = found[:, top : top + height]
        for left in range(0, shape[1], width):
            tile = rows[top : top + height, left : left + width]
            lo, hi, *counts = _row_ends(tile)
            band[:2] = np.minimum(band[0], lo), np.maximum(band[1], hi)
            band[2:] += counts
            if values.ndim > 1:
                columns = largest_of_columns[left : left + width]
                np.maximum(columns, _largest_of_columns(tile), out=columns)
    lo, hi, nan, infinite = found
    finite = lo <= hi
    outliers = {}
    if values.ndim > 1:
        of_rows = np.where(finite, np.maximum(-lo, hi), -1.0)
        others = largest_of_columns.reshape(values.shape[1:], order="F" if by_columns else "C")
        for axis in range(values.ndim):
            apart = tuple(k for k in range(others.ndim) if k != axis - 1)
            largest = others.max(axis=apart, initial=-1.0) if axis else of_rows
            known = np.flatnonzero(largest >= 0)
            if far := known[outliers_of(largest[known])].tolist():
                outliers[axis] = tuple(far)
    least, most = (float(lo[finite].min()), float(hi[finite].max())) if finite.any() else (None, None)
    return Extent(least, most, int(nan.sum()), int(infinite.sum()), outliers)


def _largest_of_columns(rows: Array) -> Array:
    """Return the largest finite magnitude of each column, -1 without any."""
    numbers = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    largest: Array = np.maximum(-numbers.min(axis=0), numbers.max(axis=0))
    if not np.isfinite(largest).all():
        magnitudes = np.abs(numbers)
        largest = np.max(magnitudes, axis=0, where=np.isfinite(magnitudes), initial=-1.0)
    return largest


def _row_ends(rows: Array) -> tuple[Array, Array, Array, Array]:
    """Return the finite extremes of each row, inf and -inf without any, and the counts of NaN and infinities."""
    numbers = rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)
    lo, hi = numbers.min(axis=1), numbers.max(axis=1)
    if np.isfinite(lo).all() and np.isfinite(hi).all():  # almost always so, and in a fifth of the time
        return lo, hi, np.zeros(len(rows)), np.zeros(len(rows))
    nan = np.isnan(numbers)
    infinite = np.isinf(numbers)
    finite = ~(nan | infinite)
    lo = np.min(numbers, axis=1, where=finite, initial=np.inf)
    hi = np.max(numbers, axis=1, where=finite, initial=-np.inf)
    return lo, hi, nan.sum(axis=1), infinite.sum(axis=1)


class ByName(Mapping[str, QuantizedArray | Array]):
    """The tensors of a file or a directory; the error for an unknown name lists the nearest names."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self._name = path.name or path.resolve().name
        self._tensors = tensors

    def __getitem__(self, name: str) -> QuantizedArray | Array:
        if name not in self._tensors:
            raise KeyError(f"{self._name} has no tensor {name!r}{nearest(str(name), self._tensors)}")
        return self._read(name)

    def _read(self, name: str) -> QuantizedArray | Array:
        return self._tensors[name].load()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a tensor, or `default` for an unknown name; `Mapping.get` would look for the nearest names first."""
        return self[name] if name in self._tensors else default

    def stored(self, name: str) -> CompressedWeight | None:
        """Return the stored tensors of a quantized weight in the layout of compressed-tensors, else None."""
        tensor = self._tensors.get(name)
        return tensor.weight.compressed if tensor and tensor.weight else None

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # Mapping.__contains__ reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        each = self._tensors.values()
        quantized = sum(tensor.is_quantized for tensor in each)
        nbytes = sum(tensor.nbytes for tensor in each)
        told = f"{count_text(len(each), 'tensor')}, {quantized} quantized, {nbytes:,} bytes"
        return f"{type(self).__name__}({self._name!r}: {told})"


class Tensors(ByName):
    """The tensors of a file or a model directory, by name; each is read when it is looked up.

    This is what `fastq.load` returns. Quantized tensors are `QuantizedArray`, all others are arrays, read-only and
    mapped if the file allows it. No file stays open: the map of an array ends with the array.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np, fastq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "weights.npz"
    ...     np.savez(path, a=np.ones(3, np.float32), b=np.arange(4))
    ...     tensors = fastq.load(path)
    ...     tensors
    ...     dict(tensors)["b"]
    Tensors('weights.npz': 2 tensors, 0 quantized, 44 bytes)
    array([0, 1, 2, 3])
    """

    def _read(self, name: str) -> QuantizedArray | Array:
        with naming(lambda error: f"tensor {name!r} of {self._name} can't be read: {error}"):
            return super()._read(name)


def open_tensors(path: Path) -> Tensors:
    """Return the tensors of a file or of a directory; raise ValueError if it can't be read."""
    with naming(lambda error: f"path can't be read: {shown(str(path))}: {error}"):
        if is_store(path):
            raise ValueError("xarray.open_dataset reads netCDF and zarr")
        found = path if path.is_dir() else as_path(path)
        tensors = tensors_of(found)
    if line := codes_read_as_stored(found, tensors.values()):
        warnings.warn(line, stacklevel=3)
    return Tensors(found, tensors)


class Checkpoint(ByName):
    """A quantized model; each tensor is read when it is looked up.

    Quantized weights are `QuantizedArray` under the names of their modules, all other tensors are arrays under their
    own names. Arrays are mapped, not read.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np, fastq.io
    >>> q = fastq.quantize(np.eye(4, 8, dtype=np.float32), "int8", axis=0, symmetric=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fastq.io.save_checkpoint(f"{folder}/model", {"layer": q})
    ...     list(fastq.io.open_checkpoint(f"{folder}/model"))
    ['layer']
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], config: dict[str, Any]) -> None:
        super().__init__(path, tensors)
        self.config = config


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a quantized model: a directory of compressed-tensors, float8, AWQ, GPTQ or gpt-oss, or a GGUF file.

    Parameters
    ----------
    path : str or Path
        A directory with config.json and .safetensors files, or a .gguf file.

    Returns
    -------
    Checkpoint
        A mapping. Quantized weights are `QuantizedArray` under the names of their modules, of shape (rows, columns). A
        matrix with two-dimensional blocks has shape (rows / b, b, columns / b, b) and is padded with zeros. Experts in
        one tensor have a first axis; those of gpt-oss are (experts, outputs, inputs), as stored. In a GGUF file tensors
        of Q8_0 are `QuantizedArray`, under their full names if another tensor has the name of the module; other blocks
        are read as their values in float32. All other tensors are arrays under their own names, read-only and mapped.
        `config` has the contents of config.json, or the metadata.

    Raises
    ------
    TypeError, ValueError
        If path has no such files, the files are damaged, or they store weights in an unknown way.

    Examples
    --------
    >>> import fastq.io
    >>> model = fastq.io.open_checkpoint("llama-W4A16")  # doctest: +SKIP
    >>> model["model.layers.0.self_attn.q_proj"]  # doctest: +SKIP
    QuantizedArray(shape=(4096, 4096), dtype=int4, axis=-1, block_size=128, nbytes=8912896)
    """
    path = as_name(path)
    tensors: dict[str, Tensor] = {}
    if path.suffix == ".gguf":
        file = open_gguf(path)
        for tensor in gguf_tensors(file):
            module = tensor.name.removesuffix(".weight")
            whole = tensor.scheme == "Q8_0"
            name = module if whole and module not in file.tensors else tensor.name
            tensors[name] = replace(tensor, is_quantized=whole)
        fields = file.fields.items()
        return Checkpoint(path, tensors, {key: each.value() for key, each in fields if each.type_name != "array"})
    if not path.is_dir():
        way = "; fastq.load opens files of tensors" if path.suffix in SOURCES else ""
        raise ValueError(f"path must be that of a model directory or of a .gguf file, not {shown(str(path))}{way}")
    model = ModelFolder(path)
    weights = stored_weights(model) if model.quantization else StoredWeights()
    dtype = model.dtype
    tensors |= {name: tensor_of_weight(weight, dtype) for name, weight in weights.items()}
    for name, spec in model.tensors.items():
        if name in weights.parts:
            continue
        if name in weights:
            codes = weights[name].codes.name
            raise ValueError(f"tensor {name!r} and the weight of {codes!r} would both be {name!r}; rename one")
        tensors[name] = plain_tensor(model, spec)
    return Checkpoint(path, tensors, model.config)
