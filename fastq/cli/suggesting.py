"""Schemes that `fastq suggest` tries: those of the command that quantizes such files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fastq
from fastq import reference
from fastq.formats.compressed_tensors import E8M0, MICROSCALING, PRESETS
from fastq.formats.gguf import WRITTEN
from fastq.io.checkpoints.folder import CONFIG, ModelFolder
from fastq.io.checkpoints.rules import Rules, make_plan
from fastq.io.gguf.container import open_gguf
from fastq.io.gguf.mixes import is_quantized, model_of
from fastq.io.records import Scheme
from fastq.io.tensors import Tensor
from fastq.plot.schemes import FAMILIES, Measured, Trial, sample_of
from fastq.system.dtypes import Array, numpy_dtype

LEAST_GROUP = min(row.weights.group_size for row in PRESETS.values() if row.weights.group_size)
Tried = Iterator[tuple[Scheme | str, Measured]]


def schemes_for(source: Path) -> tuple[Callable[[Array], Tried], Callable[[Tensor], str]]:
    """Return two functions: one measures schemes for a file or folder, one says why a tensor is left out."""
    if source.suffix == ".gguf":
        file = open_gguf(source)
        architecture = model_of(file).architecture
        quantized = {name for name, spec in file.tensors.items() if is_quantized(spec, architecture)}
        return _blocks_of, lambda tensor: "" if tensor.name in quantized else "not quantized by fastq gguf"
    if not (source / CONFIG).is_file():
        return _schemes_of, lambda tensor: ""
    try:
        model, rules = ModelFolder(source), Rules(PRESETS["W8A8"])
        quantized = set() if model.quantization else set(make_plan(model.tensors, model.config, rules).quantized)
    except ValueError:  # fastq convert refuses it, fastq quantize accepts its files
        return _schemes_of, lambda tensor: ""

    def stays(tensor: Tensor) -> str:
        if tensor.name not in quantized:
            return "not quantized by fastq convert"
        return "rows shorter than a group" if tensor.shape[-1] % LEAST_GROUP else ""

    return _presets_of, stays


def command(source: Path, schemes: Counter[str]) -> str:
    """Return the command for the schemes, given with the number of tensors of each; for a single file no command."""
    ((most, _),) = schemes.most_common(1)
    if source.suffix == ".gguf":
        return f"fastq gguf {source} OUT.gguf Q8_0 --tensor-type 'NAME=TYPE' takes them, once for each tensor or regex"
    if most not in PRESETS:
        return "fastq quantize takes these schemes, a file at a time" if source.is_dir() else ""
    others = ", --scheme-for NAME=SCHEME for each other one" if len(schemes) > 1 else ""
    return f"fastq convert {source} OUT --scheme {most} takes them{others}"


def _schemes_of(x: Array) -> Tried:
    """Yield the results of the schemes of `fastq quantize` for an array."""
    trial = Trial(x)
    for shared, dtypes in FAMILIES.values():
        for dtype in dtypes:
            options = {"symmetric": dtype.startswith("int"), **shared, "dtype": dtype}
            yield Scheme(**options), trial.measured(options)


def _presets_of(x: Array) -> Tried:
    """Yield the results of the schemes of `fastq convert` for a matrix, without those that quantize activations."""
    trial = Trial(x)
    for name, preset in PRESETS.items():
        weights, group = preset.weights, preset.weights.group_size
        if preset.activations or x.shape[-1] % group:
            continue
        if weights.scale_dtype:
            options: dict[str, Any] = {"dtype": MICROSCALING[weights.bits] if weights.scale_dtype == E8M0 else "nvfp4"}
        else:
            options = {"dtype": weights.qtype.name, "axis": -1, "block_size": group, "symmetric": weights.symmetric}
            options["convention"] = "compressed-tensors"
        of_group = (8 if weights.scale_dtype else 16) + (0 if weights.symmetric else weights.bits)
        yield name, Measured(weights.bits + of_group / group, trial.measured(options).sqnr_db)


def _blocks_of(x: Array) -> Tried:
    """Yield the results of the types of GGUF for rows."""
    rows = sample_of(x, {"dtype": "int8"}).astype(np.float32)
    for name, form in WRITTEN.items():
        if x.shape[-1] % form.size == 0:
            values = fastq.gguf.dequantize(fastq.gguf.quantize(rows, name), name)
            yield name, Measured(form.nbytes * 8 / form.size, reference.compare(rows, values).sqnr_db)
    yield "BF16", Measured(16, reference.compare(rows, rows.astype(numpy_dtype("BF16"))).sqnr_db)
