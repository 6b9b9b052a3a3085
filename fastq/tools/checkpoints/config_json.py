"""config.json: the dtype of a model, its quantization entry, and the models within it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastq.tools.checkpoints.json_files import read_json

# of config.json
KEY = "quantization_config"
OLD_KEY = "compression_config"
CONFIG = "config.json"
MLX = "mlx"  # the name here of the quant_method of MLX, which names none
MLX_KEY = "quantization"  # its entry of config.json
# files of older writers with the contents of KEY, and the quant_method of those that do not name it
SIDE_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
LANGUAGE = ("text_config", "llm_config", "language_config")  # keys of the language model within a larger one
DTYPE_KEYS = ("dtype", "torch_dtype")  # older writers use the second one
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}  # by their names in config.json
HALVES = {code: name for name, code in DTYPES.items()}  # the same by their names in safetensors, float32 included


def quantization_in(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quantization entry of config.json, or of the file of an older writer; empty without one."""
    entry = entry_of(config)
    for name, method in SIDE_FILES.items():
        if not entry and (folder / name).is_file():
            entry = {"quant_method": method, **read_json(folder / name)}  # a method that the file names counts
    return entry


def parts_of(config: Mapping[str, Any], keys: Iterable[str] | None = None) -> list[Mapping[str, Any]]:
    """Return config.json and the configurations inside it, under the given keys or, by default, under any key."""
    inner = (config.get(key) for key in (config if keys is None else keys))
    return [config, *(part for part in inner if isinstance(part, dict))]


def entry_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the quantization entry of config.json, empty without one."""
    if isinstance(config.get(MLX_KEY), dict):  # regardless of other entries: mlx-lm writes the same as KEY, too
        return {**config[MLX_KEY], "quant_method": MLX}
    for part in parts_of(config, LANGUAGE):
        for key in (KEY, OLD_KEY):
            entry = part.get(key)
            if isinstance(entry, dict) and entry:
                return entry | entry[KEY] if isinstance(entry.get(KEY), dict) else entry  # nested by older writers
    return {}


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that config.json names, as safetensors spells it; None if it does not name a known dtype."""
    for part in parts_of(config, LANGUAGE):
        for key in DTYPE_KEYS:
            name = part.get(key)
            if isinstance(name, str) and name.removeprefix("torch.") in DTYPES:
                return DTYPES[name.removeprefix("torch.")]
    return None


def model_types(config: Mapping[str, Any]) -> set[str]:
    """Return the types of a model and of the models within it."""
    return {part["model_type"] for part in parts_of(config) if isinstance(part.get("model_type"), str)}
