"""`fastq suggest`: find the scheme with the fewest bytes for each tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fastq.results.squares import noise_at, squares_of
from fastq.system.imports import undisturbed
from fastq.tools.cli.errors import name_of_path, one_line_error, one_line_errors
from fastq.tools.cli.exit_codes import TOO_FAR
from fastq.tools.cli.input_paths import FOLDER, InputPath
from fastq.tools.cli.notes import note, note_codes
from fastq.tools.cli.options import decibels
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import json_option, print_json, total_text, worst_option
from fastq.tools.cli.tables import Entry, arrange_rows, print_table
from fastq.tools.cli.terminal import print_line
from fastq.tools.cli.waits import notice_if_slow
from fastq.tools.files.measured_errors import Errors
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.pipeline import Converted
from fastq.tools.files.quantized_elsewhere import parts_of_weights
from fastq.tools.files.records import FLOATS, Scheme
from fastq.tools.files.texts import some_of
from fastq.tools.tensors.reading import (
    SUFFIXES,
    tensors_of,
    weights_of_other_programs,
)
from fastq.tools.tensors.tensor import Tensor

if TYPE_CHECKING:
    from fastq.tools.cli.scheme_search import Candidate, Trials

SUGGESTED = "name", "shape", "bytes_before", "scheme", "bits", "bytes", "sqnr_db"
SOURCE = InputPath(FOLDER, *SUFFIXES)


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
    SQNR is that of the whole tensor, and the bytes are those that the command writes for it. Of several
    schemes with as few bytes the best one is printed, and the best of all if none reaches the SQNR. Floating-point
    tensors of two or more axes are tried, and the array of a .npy file. Standard error lists the tensors that were left
    out, names those with NaN or infinite values, and has the command to use.

    Exit codes: 0; 1 for a file that can't be read, or if no tensor has a scheme; 2 for wrong arguments; 3 if no scheme
    reaches the SQNR for some tensor, or holds its values.
    """
    with undisturbed():  # here, since no other command needs what it imports
        from fastq.tools.cli.scheme_search import command_line, trials_for
    with one_line_errors(name_of_path(source), source):
        with notice_if_slow(f"opening {name_of_path(source)}"):
            by_name = tensors_of(source, say=note)
        note_codes(source, by_name)
        trials = trials_for(source)
        tensors, left_out = _tensors_to_try(list(by_name.values()), trials)
        chosen, not_finite, fused_with_not_finite = _choose_schemes(tensors, trials, sqnr, left_out)
        not_held = f"no scheme holds NaN or infinite values: {some_of(not_finite)}"
        reasons = ", ".join(f"{count:,} ({reason})" for reason, count in left_out.items())
        if not chosen and not_finite:
            raise one_line_error(name_of_path(source), not_held)
        if not chosen:
            needed = f"no tensor of two axes or more of {', '.join(FLOATS)}"
            raise one_line_error(name_of_path(source), f"{needed}; left out: {reasons}")
    entries = [_entry_of_choice(chosen[tensor.name], as_json) for tensor in tensors if tensor.name in chosen]
    if as_json:
        print_json({"tensors": entries})
    else:
        rows = [_row_of(chosen[tensor.name]) for tensor in tensors if tensor.name in chosen]
        print_table(arrange_rows(entries, every=True, worst_first=worst_first), SUGGESTED)
        print_line(total_text(rows, done="tried"))
    if left_out:
        note(f"left out: {reasons}")
    if not_finite:
        note(not_held, TOO_FAR)
    schemes = Counter(str(choice.scheme) for choice in chosen.values())
    if line := command_line(source, schemes, [*not_finite, *fused_with_not_finite]):
        note(line)
    not_reached = [f"{name} ({choice.sqnr_db:.2f})" for name, choice in chosen.items() if not choice.sqnr_db >= sqnr]
    if not_reached:
        note(f"no scheme reaches {sqnr:g} dB: {some_of(not_reached)}", TOO_FAR)


class Choice(NamedTuple):
    """The scheme that was chosen for a tensor."""

    tensor: Tensor
    scheme: Scheme | str
    nbytes: int  # that the command stores
    sqnr_db: float


def _tensors_to_try(tensors: list[Tensor], trials: Trials) -> tuple[list[Tensor], Counter[str]]:
    """Return the tensors that the command quantizes, and the numbers of the others by reason."""
    parts = parts_of_weights(weights_of_other_programs(tensors))
    to_try = []
    left_out: Counter[str] = Counter()
    for tensor in tensors:
        reason = _reason_against(tensor, parts, vectors=trials.vectors) or trials.reason_against(tensor)
        if reason:
            left_out[reason] += 1
        else:
            to_try.append(tensor)
    return to_try, left_out


def _choose_schemes(
    tensors: list[Tensor], trials: Trials, sqnr: float, left_out: Counter[str]
) -> tuple[dict[str, Choice], list[str], list[str]]:
    """Return the chosen schemes by name, the names of tensors with NaN or infinite values, and those of their groups.

    Tensors that readers fuse have one scheme, or none if one of them has such values. Tensors without a scheme are
    counted in `left_out`, except for those with such values.
    """
    from fastq.tools.cli.scheme_search import NotFiniteError, cheapest

    not_finite = []
    fused_with_not_finite: list[str] = []
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(trials.group_of(tensor), []).append(tensor)
    chosen = {}
    with progress_bar(tensors) as advance:
        for group in groups.values():
            candidates = {}
            for tensor in group:
                try:
                    candidates[tensor.name] = _candidates_of(tensor, trials)
                except NotFiniteError:
                    not_finite.append(tensor.name)
            if len(candidates) < len(group):
                fused_with_not_finite += candidates
                left_out.update(["read as one with NaN or infinite values"] * len(candidates))
            elif (suggestion := cheapest([*candidates.values()], sqnr)) is None:
                left_out["no scheme is smaller"] += len(group)
            else:
                for tensor, nbytes, ratio in zip(group, suggestion.nbytes, suggestion.sqnr_db, strict=True):
                    chosen[tensor.name] = Choice(tensor, suggestion.scheme, nbytes, ratio)
            for tensor in group:
                advance(tensor.nbytes, 1)
    return chosen, not_finite, fused_with_not_finite


def _entry_of_choice(choice: Choice, as_json: bool) -> Entry:
    """Return the entry of a tensor; JSON has the arguments of a scheme, which `--like` reads, a table its text."""
    tensor = choice.tensor
    scheme = choice.scheme
    return {
        "name": tensor.name,
        "shape": tensor.shape,
        "scheme": scheme.arguments() if as_json and isinstance(scheme, Scheme) else str(scheme),
        "bytes_before": tensor.nbytes,
        "bytes": choice.nbytes,
        "bits": 8 * choice.nbytes / math.prod(tensor.shape),
        "sqnr_db": choice.sqnr_db,
    }


def _row_of(choice: Choice) -> Converted:
    """Return the row that counts in the sums of all tensors.

    The search keeps only a ratio, of which the squares of the errors are computed back; the largest error is not known.
    """
    tensor = choice.tensor
    signal = squares_of(tensor.values())
    noise = noise_at(choice.sqnr_db, signal)
    return Converted(
        name=tensor.name,
        shape=tensor.shape,
        before=tensor.nbytes,
        after=choice.nbytes,
        target=str(choice.scheme),
        errors=Errors(
            noise=noise.number,
            signal=signal.number,
            largest=math.nan,
            noise_exponent=noise.exponent,
            signal_exponent=signal.exponent,
        ),
    )


def _reason_against(tensor: Tensor, parts: Collection[str], *, vectors: bool) -> str:
    """Return why a tensor is left out, or an empty text if it is not; `parts` are codes and scales."""
    if tensor.is_quantized or tensor.name in parts:
        return "quantized already"
    if tensor.scheme not in FLOATS:
        return tensor.scheme
    if not tensor.shape:
        return "scalars"
    if len(tensor.shape) < 2 and not vectors:
        return "vectors"
    return "" if math.prod(tensor.shape) else "no elements"


def _candidates_of(tensor: Tensor, trials: Trials) -> list[Candidate]:
    """Return the schemes of a tensor; an error names it."""
    with naming(lambda error: f"tensor {tensor.name!r}: {error}"):
        return trials.candidates(tensor)
