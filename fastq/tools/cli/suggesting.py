"""Schemes that `fastq suggest` tries: those of the command that quantizes such files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastq
from fastq import reference
from fastq.formats.gguf import WRITTEN, BlockFormat
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.checkpoints.finding import check_floats
from fastq.tools.checkpoints.folder import CONFIG, ModelFolder
from fastq.tools.checkpoints.rules import Rules, make_plan, read_as_one
from fastq.tools.files.records import Scheme
from fastq.tools.gguf_files.container import open_gguf
from fastq.tools.gguf_files.mixes import is_quantized, model_of
from fastq.tools.layouts.schemes import E8M0, MICROSCALING, PRESETS
from fastq.tools.plot.schemes import FAMILIES, Measured, Trial, sample_of
from fastq.tools.tensors.tensors import Tensor

LEAST_GROUP = min(row.weights.group_size for row in PRESETS.values() if row.weights.group_size)
LIKE = "suggest --json > FILE writes them"
Tried = Iterator[tuple[Scheme | str, Measured]]


class Trials(NamedTuple):
    """How schemes are tried for a file or folder."""

    # returns schemes of an array, and what was measured: all, or by ascending bits until one has these decibels
    measured: Callable[[Array, float], Tried]
    stays: Callable[[Tensor], str] = lambda tensor: ""  # why a tensor is left out
    group: Callable[[Tensor], Any] = lambda tensor: tensor.name  # tensors of one group have one scheme


def schemes_for(source: Path) -> Trials:
    """Return how schemes are tried for a file or folder."""
    if source.suffix == ".gguf":
        file = open_gguf(source)
        architecture = model_of(file).architecture
        quantized = {name for name, spec in file.tensors.items() if is_quantized(spec, architecture)}
        return Trials(_blocks_of, lambda tensor: "" if tensor.name in quantized else "not quantized by fastq gguf")
    if not (source / CONFIG).is_file():
        return Trials(_schemes_of)
    try:
        model, rules = ModelFolder(source), Rules(PRESETS["W8A8"])
        if not model.quantization:
            check_floats(model)
        plan = None if model.quantization else make_plan(model.tensors, model.config, rules)
    except ValueError:  # fastq convert refuses it, fastq quantize accepts its files
        return Trials(_schemes_of)

    def stays(tensor: Tensor) -> str:
        if plan is None or tensor.name not in plan.quantized:
            why = plan and plan.left.get(tensor.name)
            return f"copied by fastq convert: {why}" if why else "not quantized by fastq convert"
        return "rows shorter than a group" if tensor.shape[-1] % LEAST_GROUP else ""

    scale_bits = 8 * numpy_dtype(model.dtype).itemsize
    return Trials(
        partial(_presets_of, scale_bits),
        stays,
        lambda tensor: read_as_one(tensor.name.removesuffix(".weight"), tensor.shape[-1]),
    )


def command(source: Path, schemes: Counter[str]) -> str:
    """Return the command for the schemes, given with the number of tensors of each."""
    ((most, _),) = schemes.most_common(1)
    if source.suffix == ".gguf":
        return f"fastq gguf {source} OUT.gguf --like FILE takes them; {LIKE}"
    if most not in PRESETS:
        return f"fastq quantize --like FILE takes them{', a file at a time' * source.is_dir()}; {LIKE}"
    if len(schemes) > 1:
        return f"fastq convert {source} OUT --like FILE takes them; {LIKE}"
    return f"fastq convert {source} OUT --scheme {most} takes them"


def _schemes_of(x: Array, enough: float) -> Tried:
    """Yield the results of the schemes of `fastq quantize` for an array."""
    trial = Trial(x)
    for shared, dtypes in FAMILIES.values():
        for dtype in dtypes:
            options = {"symmetric": dtype.startswith("int"), **shared, "dtype": dtype}
            yield Scheme(**options), trial.measured(options)


def _presets_of(scale_bits: int, x: Array, enough: float) -> Tried:
    """Yield the results of the schemes of `fastq convert` for a matrix, without those that quantize activations.

    Scales of integers have the bits of the model's dtype.
    """
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
        of_group = (8 if weights.scale_dtype else scale_bits) + (0 if weights.symmetric else weights.bits)
        yield name, Measured(weights.bits + of_group / group, trial.measured(options).sqnr_db)


def _blocks_of(x: Array, enough: float) -> Tried:
    """Yield the results of the types of GGUF for rows by ascending bits, up to the first one that is good enough.

    Only searches take kernels, each of which may have to be compiled: for a sample the reference is as fast elsewhere.
    """
    rows = sample_of(x, {"dtype": "int8"}).astype(np.float32)
    if not np.isfinite(rows).all():
        raise ValueError("it has NaN or infinite values")
    fitting = [form for form in WRITTEN.values() if x.shape[-1] % form.size == 0]
    for form in sorted(fitting, key=_bits_of):
        quantize = fastq.gguf.quantize if form.searches(weighted=False) else reference.gguf.quantize
        try:
            values = reference.gguf.dequantize(quantize(rows, form.name), form.name)
        except ValueError:  # the values are too large for its float16 parameters
            continue
        measured = Measured(_bits_of(form), reference.compare(rows, values).sqnr_db)
        yield form.name, measured
        if measured.sqnr_db >= enough:
            return
    yield "BF16", Measured(16, reference.compare(rows, rows.astype(numpy_dtype("BF16"))).sqnr_db)


def _bits_of(form: BlockFormat) -> float:
    return form.nbytes * 8 / form.size
