"""`fastq suggest`: find the scheme with the fewest bytes for each tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from fastq.tools.cli.errors import called, failures, in_one_line
from fastq.tools.cli.exit_codes import TOO_FAR
from fastq.tools.cli.input_paths import FOLDER, Source
from fastq.tools.cli.notes import note, note_codes
from fastq.tools.cli.options import decibels
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import json_option, print_json, total_text, worst_option
from fastq.tools.cli.scheme_search import Suggestion, Trials, Way, cheapest, command, schemes_for
from fastq.tools.cli.tables import Entry, arranged, print_table
from fastq.tools.cli.terminal import print_line
from fastq.tools.files.measured_errors import Errors, signal_of
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Converted
from fastq.tools.files.quantized_elsewhere import parts_of_weights
from fastq.tools.files.records import FLOATS, Scheme
from fastq.tools.files.texts import some_of
from fastq.tools.tensors.reading import (
    SUFFIXES,
    elsewhere_in,
    tensors_of,
)
from fastq.tools.tensors.tensor import Tensor

SUGGESTED = "name", "shape", "bytes_before", "scheme", "bits", "bytes", "sqnr_db"
SOURCE = Source(FOLDER, *SUFFIXES)


@click.command(short_help="Find the scheme with the fewest bits.")
@click.argument("source", metavar="FILE|DIR", type=SOURCE)
@decibels("--sqnr", default=30.0, show_default=True, help="SQNR in dB that each tensor must reach.")
@json_option
@worst_option
def suggest(source: Path, sqnr: float, as_json: bool, worst_first: bool) -> None:
    """Find for each tensor the scheme with the fewest bytes that reaches a signal to quantization noise ratio.

    The schemes are those of the command that quantizes such files. For fastq quantize: int2 to int8 with zero points
    and without, float8_e4m3fn and float8_e5m2, each with one scale, with scales along any axis, and in blocks of 32
    along any axis; the MX formats and NVFP4 along any axis. For fastq convert: schemes that quantize weights only, on
    the matrices that it quantizes. For fastq gguf: all types of blocks that need no importance matrix, and BF16. The
    SQNR is that of the whole tensor, and the bytes are those that the command writes for it. If no scheme reaches the
    SQNR, the best one is printed. Floating-point tensors of two or more axes are tried, and the array of a .npy file.
    Standard error lists the tensors that were left out and, for models and GGUF files, the command to use.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 3 if no scheme reaches the SQNR for some
    tensor.
    """
    with failures(called(source), source):
        opened = tensors_of(source, say=note)
        note_codes(source, opened)
        found = opened.values()
        parts = parts_of_weights(elsewhere_in(opened.values()))
        trials = schemes_for(source)
        reasons = [_reason(tensor, parts, vectors=trials.vectors) or trials.stays(tensor) for tensor in found]
        tensors = [tensor for tensor, reason in zip(found, reasons, strict=True) if not reason]
        left = Counter(filter(None, reasons))
        chosen: dict[str, tuple[Scheme | str, int, float]] = {}
        groups: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            groups.setdefault(trials.group(tensor), []).append(tensor)
        with progress_bar(tensors) as advance:
            for group in groups.values():
                suggestion = _suggested(group, trials, sqnr)
                if suggestion is None:
                    left["no scheme is smaller"] += len(group)
                else:
                    figures = zip(group, suggestion.nbytes, suggestion.sqnr_db, strict=True)
                    chosen |= {tensor.name: (suggestion.scheme, nbytes, ratio) for tensor, nbytes, ratio in figures}
                for tensor in group:
                    advance(tensor.nbytes, 1)
        told = f"left out: {', '.join(f'{count:,} ({reason})' for reason, count in left.items())}"
        if not chosen:
            raise in_one_line(called(source), f"no tensor of two axes or more of {', '.join(FLOATS)}; {told}")
    entries = []
    rows = []
    for tensor in (tensor for tensor in tensors if tensor.name in chosen):
        scheme, nbytes, ratio = chosen[tensor.name]
        signal = signal_of(tensor.values())
        sums = Errors(signal and signal * 10 ** (-ratio / 10), signal, math.nan)
        as_text = scheme.arguments() if as_json and isinstance(scheme, Scheme) else str(scheme)
        about: Entry = {"name": tensor.name, "shape": tensor.shape, "scheme": as_text, "bytes_before": tensor.nbytes}
        about |= {"bytes": nbytes, "bits": 8 * nbytes / math.prod(tensor.shape), "sqnr_db": ratio}
        entries.append(about)
        row = Converted(
            name=tensor.name,
            shape=tensor.shape,
            before=tensor.nbytes,
            after=nbytes,
            target=str(scheme),
            errors=sums,
        )
        rows.append(row)
    if as_json:
        print_json({"tensors": entries})
    else:
        print_table(arranged(entries, every=True, worst_first=worst_first), SUGGESTED)
        print_line(total_text(rows, done="tried"))
    if left:
        note(told)
    if way := command(source, Counter(str(scheme) for scheme, *_ in chosen.values())):
        note(way)
    short = [f"{name} ({ratio:.2f})" for name, (_, _, ratio) in chosen.items() if not ratio >= sqnr]
    if short:
        note(f"no scheme reaches {sqnr:g} dB: {some_of(short)}", TOO_FAR)


def _reason(tensor: Tensor, parts: Collection[str], *, vectors: bool) -> str:
    """Return why a tensor is left out, or an empty text if it is not; `parts` are codes and scales."""
    if tensor.is_quantized or tensor.name in parts:
        return "quantized already"
    if tensor.scheme not in FLOATS:
        return tensor.scheme
    if not tensor.shape or (len(tensor.shape) < 2 and not vectors):
        return "vectors" if tensor.shape else "scalars"
    return "" if math.prod(tensor.shape) else "no elements"


def _suggested(group: list[Tensor], trials: Trials, sqnr: float) -> Suggestion | None:
    """Return the scheme for the tensors of a group."""
    return cheapest([_ways_of(tensor, trials) for tensor in group], sqnr)


def _ways_of(tensor: Tensor, trials: Trials) -> list[Way]:
    """Return the schemes of a tensor; an error names it."""
    with naming(lambda error: f"tensor {tensor.name!r}: {error}"):
        return trials.ways(tensor)
