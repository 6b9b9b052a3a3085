"""Write a model from memory, or tensor by tensor, as a directory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
    stored_names = [spec.name for shard in shards for spec in shard.specs]
    check_names(stored_names)
    _check_parts(tensors, stored_names)
    headers = [Header(shard.specs, {"format": "pt"}) for shard in shards]
    folder.mkdir(exist_ok=True)
    file_of: dict[str, str] = {}
    for k, (shard, header) in enumerate(zip(shards, headers, strict=True)):
        file_name = SINGLE if len(shards) == 1 else f"model-{k + 1:05}-of-{len(shards):05}.safetensors"
        with replacing(folder / file_name) as file:
            writer = SafetensorsWriter(file, header)
            for name in shard.names:
                _, arrays = _stored_tensors(name, tensors, dtype)  # computed once more: the headers needed all shapes
                for stored_name, array in arrays.items():
                    writer.write(stored_name, array)
        file_of |= dict.fromkeys(header.specs, file_name)
    write_json(folder / CONFIG, _config_with_schemes(settings, schemes, dtype))
    if len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {}, "weight_map": dict(sorted(file_of.items()))})


def _config_with_schemes(
    settings: Mapping[str, Any], schemes: Mapping[str, LayerScheme | None], dtype: str
) -> dict[str, Any]:
    """Return config.json with the schemes of modules; those without a scheme are listed as modules to ignore.

    The scheme of the caches of keys and values stays, since the tensors with their scales are written as they are.
    """
    quantized = {name: scheme for name, scheme in schemes.items() if scheme is not None}
    plain = [name.removesuffix(".weight") for name in schemes if name.endswith(".weight")]
    others = {key: value for key, value in settings.items() if key not in (KEY, OLD_KEY)}
    config = {"dtype": HALVES[dtype], **others}
    if quantized:
        old_entry = settings.get(KEY) or settings.get(OLD_KEY)
        caches = old_entry.get("kv_cache_scheme") if isinstance(old_entry, dict) else None
        config[KEY] = quantized_entry(_groups_of(quantized), ignore_list(plain, list(quantized)), caches)
    return config


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


def _check_parts(tensors: Mapping[str, Any], stored_names: Iterable[str]) -> None:
    """Raise ValueError if readers would mistake a plain tensor for a part of a quantized one, by its name."""
    stored = set(stored_names)
    quantized = [name for name in tensors if name not in stored]  # their parts are stored under other names
    names_of_parts = {f"{module}.{end}" for module in quantized for end in (*SUFFIXES, ORDER)}
    for name in tensors:
        is_like_part = name in names_of_parts or (quantized and name.endswith(".weight_scale"))
        if name in stored and is_like_part:
            module = name.rpartition(".")[0]
            raise ValueError(f"tensors[{name!r}] would be read as a part of the quantized {module!r}; rename it")


def _groups_of(schemes: Mapping[str, LayerScheme]) -> list[tuple[list[str], LayerScheme]]:
    """Return targets and schemes, the last of which is for all Linear layers: the most frequent scheme."""
    modules_of: dict[LayerScheme, list[str]] = {}
    for module, scheme in schemes.items():
        modules_of.setdefault(scheme, []).append(module)
    *others, (most_frequent, _) = sorted(modules_of.items(), key=lambda item: len(item[1]))
    return [*((modules, scheme) for scheme, modules in others), ([LINEAR], most_frequent)]


class _Shard(NamedTuple):
    """The tensors of a file to write."""

    names: list[str]  # as the caller has them
    specs: list[TensorSpec]  # as they are stored


def _cut_into_shards(
    tensors: Mapping[str, QuantizedArray | Array], dtype: str, most: int
) -> tuple[list[_Shard], dict[str, LayerScheme | None]]:
    """Cut tensors into shards in order, and return the schemes of modules, None for plain tensors."""
    shards = [_Shard(names=[], specs=[])]
    schemes: dict[str, LayerScheme | None] = {}
    nbytes = 0
    for name in tensors:
        scheme, arrays = _stored_tensors(name, tensors, dtype)
        schemes[name if scheme is None else name.removesuffix(".weight")] = scheme
        specs = [_spec_of_array(stored_name, array) for stored_name, array in arrays.items()]
        nbytes_of_tensor = sum(spec.nbytes for spec in specs)
        if shards[-1].names and nbytes + nbytes_of_tensor > most:
            shards.append(_Shard(names=[], specs=[]))
            nbytes = 0
        nbytes += nbytes_of_tensor
        shards[-1].names.append(name)
        shards[-1].specs.extend(specs)
    return shards, schemes


def _spec_of_array(stored_name: str, array: Array) -> TensorSpec:
    """Return the spec of an array in a .safetensors file; raise ValueError if that can't hold its dtype."""
    dtype = safetensors_dtype(array.dtype) or OF_NUMPY.get(array.dtype.name)
    if dtype is None:
        raise ValueError(f"tensors[{stored_name!r}] is {array.dtype}, which a .safetensors file can't hold")
    return spec_of(stored_name, dtype, array.shape)


def _stored_tensors(name: str, tensors: Mapping[str, Any], dtype: str) -> tuple[LayerScheme | None, dict[str, Array]]:
    """Return the scheme of a tensor, None for a plain one, and its stored tensors by name.

    The bytes of a weight that is stored in this layout are not computed anew.
    """
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
