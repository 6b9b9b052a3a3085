"""How a quantized model directory is loaded: the call for it, and what does not load it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastq.formats.compressed_tensors import E4M3, E8M0, LayerScheme
from fastq.io.checkpoints.companions import modules_of
from fastq.io.checkpoints.folder import HALVES, dtype_of

AS_FLOATS = "CompressedTensorsConfig(dequantize=True)"
PLAIN = ("int-quantized", "float-quantized")  # formats whose codes lie where the weight was: all models load them so
BFLOAT16 = {E4M3, E8M0}  # dtypes of scales whose products are bfloat16 in readers


def loading(out: Path, config: Mapping[str, Any], used: Iterable[LayerScheme]) -> list[str]:
    """Return lines with the call that loads a directory, given config.json and the schemes of its matrices.

    transformers decodes all weights by one scheme where it is asked for floats, and others when they are used first.
    Models that look at a weight before that, and sentence-transformers, need floats, which are the same numbers.
    """
    schemes = set(used)
    names = ", ".join(sorted({scheme.name for scheme in schemes}))
    floats = len(schemes) == 1 and not all(scheme.format in PLAIN for scheme in schemes)
    sentences = bool(modules_of(out))
    options = []
    held = dtype_of(config) or "BF16"
    rounded = held != "BF16" and any(scheme.weights.scale_dtype in BFLOAT16 for scheme in schemes)
    if rounded and not floats:
        options.append("dtype=torch.bfloat16")
    if floats or (sentences and len(schemes) == 1):
        options.append(f"quantization_config={AS_FLOATS}")
    lines = []
    if rounded:
        lines.append(f"readers have the values of {names} in bfloat16, and config.json says {HALVES[held]}")
    if not all(scheme.weights.symmetric for scheme in schemes) and len(schemes) > 1:
        lines.append(f"transformers reads zero points with {AS_FLOATS} only, and that reads one scheme: not {names}")
    return [*lines, f"to load it: {_call(out, config, options, sentences)}"]


def _call(out: Path, config: Mapping[str, Any], options: list[str], sentences: bool) -> str:
    if sentences:
        inner = ", ".join(f'"{key}": {value}' for key, _, value in (option.partition("=") for option in options))
        return f'SentenceTransformer("{out}"' + (f", model_kwargs={{{inner}}})" if inner else ")")
    names = config.get("architectures")
    reader = str(names[0]) if isinstance(names, list) and names else "AutoModel"
    if isinstance(config.get("auto_map"), dict):
        reader, options = "AutoModel", [*options, "trust_remote_code=True"]
    return f"{reader}.from_pretrained({', '.join([repr(str(out)), *options])})"
