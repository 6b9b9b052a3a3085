"""Commands that look at tensors and change nothing: inspect and suggest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

import fastq
from fastq import reference
from fastq.cli import files
from fastq.cli.files import FOLDER, IN_PART, TOO_FAR, called, in_one_line, note
from fastq.cli.gguf import inspect_gguf
from fastq.cli.report import Entry, print_json, print_line, print_table, total_text
from fastq.formats.compressed_tensors import E8M0, MICROSCALING, PRESETS
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.io.checkpoints.folder import CONFIG, ModelFolder
from fastq.io.checkpoints.rules import Rules, make_plan
from fastq.io.gguf.container import open_gguf
from fastq.io.gguf.mixes import is_quantized, model_of
from fastq.io.pipeline import Converted, count_text, naming, some_of
from fastq.io.records import FLOATS
from fastq.io.scheme import Scheme
from fastq.io.tensors import SUFFIXES, Tensor, extent_of, tensors_of
from fastq.plot.candidates import FAMILIES, SAMPLE, Measured, Trial, sample_of
from fastq.system.dtypes import Array, numpy_dtype

MARGIN = 0.25  # decibels that a sample has to reach beyond what is asked of the tensor: samples of rows differ by less
LEAST_GROUP = min(row.weights.group_size for row in PRESETS.values() if row.weights.group_size)
INSPECTED = "name", "shape", "scheme", "bytes", "lo", "hi", "nan", "infinite", "outliers"
SUGGESTED = "name", "shape", "bytes_before", "scheme", "bits", "bytes", "sqnr_db"
SOURCE = files.Source(FOLDER, *SUFFIXES)


@click.command(short_help="Show the tensors of files.")
@click.argument("source", metavar="FILE|DIR", type=SOURCE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, of GGUF files with all of the metadata.")
@click.option("--header", is_flag=True, help="Read names, shapes and bytes only, no numbers.")
def inspect(source: Path, as_json: bool, header: bool) -> None:
    """Show the tensors of a .npy, .npz, .safetensors or .gguf file, of a model directory, or of a folder of such files.

    What is stored for a quantized matrix is one tensor. Shapes, dtypes or schemes, bytes, ranges, NaN and infinite
    numbers; and outlier channels: indices on the first axis whose largest magnitude is six times the median of all, or
    more. Of GGUF files types, bits a weight and metadata.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 4 for a model whose config.json makes no
    sense, which is shown as it is stored.
    """
    if source.suffix == ".gguf":
        inspect_gguf(source, as_json=as_json)
        return
    with files.failures(called(source), source):
        tensors = list(_tensors_of(source).values())
        with files.progress_bar(tensors) as advance:
            entries = [_inspected(tensor, header, advance) for tensor in tensors]
    if as_json:
        print_json(entries)
        return
    print_table(entries, INSPECTED[:4] if header else INSPECTED)
    quantized, nbytes = sum(tensor.is_quantized for tensor in tensors), sum(tensor.nbytes for tensor in tensors)
    print_line(f"{count_text(len(tensors), 'tensor')}, {nbytes:,} bytes, {quantized:,} quantized")


def _tensors_of(source: Path) -> dict[str, Tensor]:
    """Return the tensors of a file or a folder; where config.json makes no sense, as they are stored."""
    try:
        return tensors_of(source, say=note)
    except ValueError as error:
        try:
            tensors = tensors_of(source, as_stored=True)
        except ValueError:
            raise error from None
        note(f"{called(source)}: {error}; its tensors are shown as they are stored", IN_PART)
        return tensors


def _inspected(tensor: Tensor, header: bool, advance: Callable[[int, int], None]) -> Entry:
    entry = {"name": tensor.name, "shape": tensor.shape, "scheme": tensor.scheme, "bytes": tensor.nbytes}
    if tensor.has_numbers and not header:
        entry |= asdict(extent_of(tensor.values()))
    advance(tensor.nbytes, 1)
    return entry


@click.command(short_help="Find the scheme with the fewest bits.")
@click.argument("source", metavar="FILE|DIR", type=SOURCE)
@files.decibels("--sqnr", default=30.0, show_default=True, help="What each tensor shall reach.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; that of files quantize --like takes.")
def suggest(source: Path, sqnr: float, as_json: bool) -> None:
    """Find for each tensor the scheme that reaches a signal to quantization noise ratio with the fewest bits.

    Schemes are those of the command that quantizes such files. For fastq quantize: integers of 2 to 8 bits with one
    scale, a scale for each row and in blocks of 32, float8, the MX formats and NVFP4. For fastq convert, of the
    matrices that it quantizes: schemes of weights alone. For fastq gguf: all types of blocks, and BF16. They are tried
    on 65,536 elements at most of each floating tensor of two axes or more; a part of a tensor has to reach 0.25 dB more
    than asked, for the whole to reach it. A tensor that none does gets the best one. What is left out, and for models
    and GGUF files the command, is said on standard error.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 3 if a tensor reaches it with no scheme.
    """
    with files.failures(called(source), source):
        found = tensors_of(source, say=note).values()
        measured_by, stays = _schemes_for(source)
        reasons = [_reason(tensor) or stays(tensor) for tensor in found]
        tensors = [tensor for tensor, reason in zip(found, reasons, strict=True) if not reason]
        left = Counter(filter(None, reasons))
        told = f"left out: {', '.join(f'{count:,} ({reason})' for reason, count in left.items())}"
        if not tensors:
            raise in_one_line(called(source), f"no tensor of two axes or more of {', '.join(FLOATS)}; {told}")
        with files.progress_bar(tensors) as advance:
            lines = [(tensor, *_suggested(tensor, sqnr, measured_by, advance)) for tensor in tensors]
    entries, rows = [], []
    for tensor, scheme, measured in lines:
        after = math.ceil(measured.bits * math.prod(tensor.shape) / 8)  # bytes that codes and parameters take
        figures = {"bytes_before": tensor.nbytes, "bytes": after, **measured._asdict()}
        as_text = scheme.arguments() if as_json and isinstance(scheme, Scheme) else str(scheme)
        entries.append({"name": tensor.name, "shape": tensor.shape, "scheme": as_text, **figures})
        rows.append(Converted(tensor.name, tensor.shape, tensor.nbytes, after, "", str(scheme)))
    if as_json:
        print_json({"tensors": entries})
    else:
        print_table(entries, SUGGESTED)
        print_line(total_text(rows))
    if left:
        note(told)
    if way := _command(source, Counter(str(scheme) for _, scheme, _ in lines)):
        note(way)
    short = [f"{tensor.name} ({got.sqnr_db:.2f})" for tensor, _, got in lines if not got.sqnr_db >= sqnr]
    if short:
        note(f"no scheme reaches {sqnr:g} dB: {some_of(short)}", TOO_FAR)


def _reason(tensor: Tensor) -> str:
    """Return why a tensor is left out; empty if it is not."""
    if tensor.is_quantized:
        return "quantized already"
    if tensor.scheme not in FLOATS:
        return tensor.scheme
    if len(tensor.shape) < 2:
        return "vectors" if tensor.shape else "scalars"
    return "" if math.prod(tensor.shape) else "no elements"


Tried = Iterator[tuple[Scheme | str, Measured]]


def _schemes_for(source: Path) -> tuple[Callable[[Array], Tried], Callable[[Tensor], str]]:
    """Return what measures schemes for a file or a folder, and what says why a tensor stays as it is."""
    if source.suffix == ".gguf":
        file = open_gguf(source)
        quantized = {name for name, spec in file.tensors.items() if is_quantized(spec, model_of(file).architecture)}
        return _blocks_of, lambda tensor: "" if tensor.name in quantized else "not quantized by fastq gguf"
    if not (source / CONFIG).is_file():
        return _schemes_of, lambda tensor: ""
    model = ModelFolder(source)
    rules = Rules(PRESETS["W8A8"])
    quantized = set() if model.quantization else set(make_plan(model.tensors, model.config, rules).quantized)

    def stays(tensor: Tensor) -> str:
        if tensor.name not in quantized:
            return "not quantized by fastq convert"
        return "rows that no group fills" if tensor.shape[-1] % LEAST_GROUP else ""

    return _presets_of, stays


def _command(source: Path, schemes: Counter[str]) -> str:
    """Return what to type for some schemes, which count how many tensors have each; of a single file nothing."""
    ((most, _),) = schemes.most_common(1)
    if source.suffix == ".gguf":
        return f"fastq gguf {source} OUT.gguf Q8_0 --tensor-type 'NAME=TYPE' takes them, once for each tensor or regex"
    if not (source / CONFIG).is_file():
        return "fastq quantize takes these schemes, a file at a time" if source.is_dir() else ""
    others = ", --scheme-for NAME=SCHEME for each other one" if len(schemes) > 1 else ""
    return f"fastq convert {source} OUT --scheme {most} takes them{others}"


def _schemes_of(x: Array) -> Tried:
    """Yield what schemes of `fastq quantize` make of an array."""
    trial = Trial(x)
    for shared, dtypes in FAMILIES.values():
        for dtype in dtypes:
            options = {"symmetric": dtype.startswith("int"), **shared, "dtype": dtype}
            yield Scheme(**options), trial.measured(options)


def _presets_of(x: Array) -> Tried:
    """Yield what schemes of `fastq convert` make of a matrix that do not quantize activations, whose errors add up."""
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
    """Yield what types of GGUF make of rows."""
    rows = sample_of(x, {"dtype": "int8"}).astype(np.float32)
    for name, form in BLOCK_FORMATS.items():
        if x.shape[-1] % form.size == 0:
            values = fastq.gguf.dequantize(fastq.gguf.quantize(rows, name), name)
            yield name, Measured(form.nbytes * 8 / form.size, reference.compare(rows, values).sqnr_db)
    yield "BF16", Measured(16, reference.compare(rows, rows.astype(numpy_dtype("BF16"))).sqnr_db)


def _suggested(
    tensor: Tensor, sqnr: float, measured_by: Callable[[Array], Tried], advance: Callable[[int, int], None]
) -> tuple[Scheme | str, Measured]:
    """Return the scheme of the fewest bits that reaches the SQNR, or the best there is."""
    with naming(lambda error: f"tensor {tensor.name!r}: {error}"):
        tried = list(measured_by(tensor.values()))
    advance(tensor.nbytes, 1)
    wanted = sqnr + (MARGIN if math.prod(tensor.shape) > SAMPLE else 0)
    enough = [each for each in tried if each[1].sqnr_db >= wanted]
    return min(enough, key=lambda each: each[1].bits) if enough else max(tried, key=lambda each: each[1].sqnr_db)
