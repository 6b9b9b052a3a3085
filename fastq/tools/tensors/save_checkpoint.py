"""Write a model from memory, or tensor by tensor, as a directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastq.ops.file_parts import as_name
from fastq.results import QuantizedArray
from fastq.system.arguments import as_int, reason, shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.atomic import replacing
from fastq.system.dtypes import Array, safetensors_dtype
from fastq.tools.checkpoints.config_json import CONFIG, HALVES, KEY, OLD_KEY, dtype_of
from fastq.tools.checkpoints.converting import check_names
from fastq.tools.checkpoints.json_files import write_json
from fastq.tools.checkpoints.quantization_config import LINEAR, quantized_entry
from fastq.tools.checkpoints.skipped_modules import ignore_list
from fastq.tools.checkpoints.stored_weights import ORDER, SUFFIXES
from fastq.tools.checkpoints.weight_files import INDEX, SINGLE
from fastq.tools.files.safetensors_files import OF_NUMPY, Header, SafetensorsWriter
from fastq.tools.files.tensor_specs import TensorSpec, spec_of
from fastq.tools.layouts.compressed_tensors import as_signed, scheme_of, tensors_of
from fastq.tools.layouts.schemes import LayerScheme
from fastq.tools.tensors.by_name import ByName

SHARD = 5_000_000_000  # bytes of a shard, as in transformers


def save_checkpoint(
    path: str | Path,
    tensors: Mapping[str, QuantizedArray | Array],
    config: Mapping[str, Any] | None = None,
    *,
    shard_size: int = SHARD,
) -> None:
    """Write a model directory that transformers and vLLM load, tensor by tensor.

    Parameters
    ----------
    path : str or Path
        A directory that is empty or does not exist yet.
    tensors : mapping of str to QuantizedArray or ndarray
        Quantized matrices by the names of their modules, or of their weights, which end in ".weight"; other arrays by
        their own names. The mapping may be the result of `open_checkpoint`, whose bytes are kept, the result of
        `fastq.load`, or a dict of tensors from either. Formats of matrices: int2, int4 and int8 in blocks of columns
        (unsigned ones become signed together with their zero points); int8 and float8_e4m3fn with one scale or a scale
        per row (axis 0); float8_e4m3fn in blocks of columns, or in blocks of rows and columns, (rows / b, b, columns /
        b, b) with axis (0, 2); "mxfp4", "mxfp8_e4m3" and "nvfp4" along the last axis. Scales of float64 are rounded to
        float32, as readers hold them; they must be positive and finite.
    config : mapping, optional
        Contents of config.json; scales get its dtype, unless that would change them.
    shard_size : int
        Most bytes in a file, unless a single tensor has more.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, the directory is not empty, compressed-tensors has no such array, or readers
        would mistake a tensor for another one by its name. Nothing is written then.
    OSError
        If the directory can't be written.

    Examples
    --------
    >>> import numpy as np, tempfile, fastq, fastq.io
    >>> w = np.eye(8, 64, dtype=np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     q = fastq.quantize(w, "int4", axis=-1, block_size=32, symmetric=True)
    ...     fastq.io.save_checkpoint(folder, {"layer": q, "layer.bias": np.zeros(8, np.float32)})
    ...     fastq.io.open_checkpoint(folder)["layer"].shape
    (8, 64)
    """
    folder = as_name(path)
    settings = _as_settings(config)
    most = as_int(shard_size, "shard_size")
    if most < 1:
        raise ValueError(f"shard_size must be 1 or more, not {most}")
    _check_mapping(tensors)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"path must be an empty directory, and {folder} has files")
    dtype = dtype_of(settings) or "F32"
    shards, schemes = _cut_into_shards(tensors, dtype, most)
    check_names(spec.name for _, specs in shards for spec in specs)
    _check_parts(tensors, [spec.name for _, specs in shards for spec in specs])
    headers = [Header(specs, {"format": "pt"}) for _, specs in shards]
    folder.mkdir(exist_ok=True)
    files: dict[str, str] = {}
    for k, ((names, _), header) in enumerate(zip(shards, headers, strict=True)):
        file_name = SINGLE if len(shards) == 1 else f"model-{k + 1:05}-of-{len(shards):05}.safetensors"
        with replacing(folder / file_name) as file:
            writer = SafetensorsWriter(file, header)
            for name in names:
                for stored, array in _stored_tensors(name, tensors, dtype)[1].items():
                    writer.write(stored, array)
        files |= dict.fromkeys(header.specs, file_name)
    used = {name: scheme for name, scheme in schemes.items() if scheme is not None}
    plain = [name.removesuffix(".weight") for name in schemes if name.endswith(".weight")]
    old_entry = settings.get(KEY) or settings.get(OLD_KEY)
    caches = old_entry.get("kv_cache_scheme") if isinstance(old_entry, dict) else None  # their scales are other tensors
    entry = {KEY: quantized_entry(_groups_of(used), ignore_list(plain, list(used)), caches)} if used else {}
    settings = {key: value for key, value in settings.items() if key not in (KEY, OLD_KEY)}
    write_json(folder / CONFIG, {"dtype": HALVES[dtype], **settings, **entry})
    if len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {}, "weight_map": dict(sorted(files.items()))})


def _as_settings(config: Any) -> dict[str, Any]:
    """Return the contents of config.json. It is written last, so it is checked before anything is written."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping, not {shown(config)}")
    try:
        settings = dict(config)
        json.dumps(settings)
    except Exception as error:
        raise TypeError(f"config must be serializable as JSON: {reason(error)}") from error
    return settings


def _check_mapping(tensors: Any) -> None:
    """Raise TypeError or ValueError unless tensors have names that a file can hold."""
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a mapping of arrays by their names, not {shown(tensors)}")
    for name in tensors:
        if not isinstance(name, str):
            raise TypeError(f"tensors must have names that are strings, not {shown(name)}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"tensors must have names that UTF-8 can encode, not {shown(name)}") from None


def _check_parts(tensors: Mapping[str, Any], stored: Iterable[str]) -> None:
    """Raise ValueError if readers would mistake a plain tensor for a part of a quantized one, by its name."""
    names = set(stored)
    modules = [name for name in tensors if name not in names]
    parts = {f"{module}.{end}" for module in modules for end in (*SUFFIXES, ORDER)}
    for name in tensors:
        if name in names and (name in parts or (modules and name.endswith(".weight_scale"))):
            module = name.rpartition(".")[0]
            raise ValueError(f"tensors[{name!r}] would be read as a part of the quantized {module!r}; rename it")


def _groups_of(used: Mapping[str, LayerScheme]) -> list[tuple[list[str], LayerScheme]]:
    """Return targets and schemes, the last of which is for all Linear layers: the most frequent scheme."""
    by_scheme: dict[LayerScheme, list[str]] = {}
    for name, scheme in used.items():
        by_scheme.setdefault(scheme, []).append(name)
    *others, (first, _) = sorted(by_scheme.items(), key=lambda item: len(item[1]))
    return [*((names, scheme) for scheme, names in others), ([LINEAR], first)]


def _cut_into_shards(
    tensors: Mapping[str, QuantizedArray | Array], dtype: str, most: int
) -> tuple[list[tuple[list[str], list[TensorSpec]]], dict[str, LayerScheme | None]]:
    """Cut tensors into shards in order, and return the schemes of modules, None for plain tensors."""
    shards: list[tuple[list[str], list[TensorSpec]]] = [([], [])]
    schemes: dict[str, LayerScheme | None] = {}
    nbytes = 0
    for name in tensors:
        scheme, arrays = _stored_tensors(name, tensors, dtype)
        schemes[name if scheme is None else name.removesuffix(".weight")] = scheme
        specs = []
        for stored, array in arrays.items():
            stored_dtype = safetensors_dtype(array.dtype) or OF_NUMPY.get(array.dtype.name)
            if stored_dtype is None:
                raise ValueError(f"tensors[{stored!r}] is {array.dtype}, which a .safetensors file can't hold")
            specs.append(spec_of(stored, stored_dtype, array.shape))
        nbytes_of_tensor = sum(spec.nbytes for spec in specs)
        if shards[-1][0] and nbytes + nbytes_of_tensor > most:
            shards.append(([], []))
            nbytes = 0
        nbytes += nbytes_of_tensor
        shards[-1][0].append(name)
        shards[-1][1].extend(specs)
    return shards, schemes


def _stored_tensors(name: str, tensors: Mapping[str, Any], dtype: str) -> tuple[LayerScheme | None, dict[str, Array]]:
    """Return the scheme of a tensor and its stored tensors by name."""
    weight = tensors.stored(name) if isinstance(tensors, ByName) else None
    if weight is not None:
        return weight.scheme, {f"{weight.module}.{end}": weight.part(end) for end in weight.specs}
    tensor = tensors[name]
    if not isinstance(tensor, QuantizedArray):
        array = as_array(tensor, f"tensors[{name!r}]")
        return None, {name: array.astype(array.dtype.newbyteorder("<"), copy=False)}
    q = as_signed(tensor)
    scheme = scheme_of(q, f"tensors[{name!r}]")
    arrays = tensors_of(q, scheme, dtype, f"tensors[{name!r}]")
    return scheme, {f"{name.removesuffix('.weight')}.{end}": array for end, array in arrays.items()}
