"""`fastq quantize`: quantize a file of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastq.formats.conventions.table import CONVENTIONS, check_format
from fastq.formats.qtypes import FAMILIES, QTYPES, as_qtype
from fastq.system.arguments import shown
from fastq.tools.cli.errors import name_of_path, one_line_errors
from fastq.tools.cli.input_paths import FOLDER, InputPath
from fastq.tools.cli.notes import note
from fastq.tools.cli.options import (
    force_option,
    imatrix_option,
    is_given,
    like_option,
    method_with,
    nan_option,
    patterns,
    range_option,
    read_suggestion,
)
from fastq.tools.cli.output_paths import WRITABLE, check_out, with_suffix
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import TableOptions, arrays_of_pictures, show_table, table_options
from fastq.tools.files.containers import SOURCES, open_source
from fastq.tools.files.records import Scheme
from fastq.tools.gguf_files.imatrix import read as read_imatrix
from fastq.tools.tensors.quantize_file import quantize_file
from fastq.tools.tensors.selection import Selection


class Format(click.Choice[str]):
    """The name of a code format; the error for another name lists the families and the name that was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of a format; fail for any other text, with the families of formats."""
        try:
            return as_qtype(value).name
        except TypeError as error:
            self.fail(str(error).removeprefix("dtype "), param, ctx)


def _axis(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    """Return an axis as a number or 'none'; None if the option was not written."""
    try:
        return text if text in (None, "none") else int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither an integer nor 'none'") from None


def _scheme(
    dtype: str, axis: int | str | None, block_size: int, symmetric: bool, method: str, convention: str
) -> Scheme:
    """Return the scheme that options say; refuse those that contradict each other."""
    qtype = as_qtype(dtype)
    try:
        check_format(CONVENTIONS[convention], qtype)
    except ValueError as error:
        raise click.UsageError(f"--convention {convention}: {error}") from error
    if (qtype.element or qtype.block_size) and not symmetric:
        raise click.UsageError(f"--asymmetric is for integer codes; those of {dtype} are symmetric")
    if qtype.block_size:
        if axis == "none" or block_size not in (0, qtype.block_size):
            raise click.UsageError(f"{dtype} has blocks of {qtype.block_size} along an --axis")
        block_size = qtype.block_size
    if block_size and axis == "none":
        raise click.UsageError("--block-size needs an --axis for the blocks to run along, not none")
    if axis is None:
        axis = -1 if block_size else 0
    return Scheme(
        dtype=dtype,
        axis=axis if isinstance(axis, int) else None,
        block_size=block_size,
        symmetric=symmetric,
        range=method,
        convention=convention,
    )


def _schemes_in(path: Path) -> dict[str, Scheme]:
    """Return the schemes of a suggestion by name; refuse options that say another scheme."""
    for name in OF_SCHEME:
        if is_given(name):
            raise click.UsageError(f"--like has the schemes; it cannot be combined with --{name.replace('_', '-')}")
    return read_suggestion(path, _scheme_of_entry)


def _scheme_of_entry(scheme: Any) -> Scheme:
    """Return a scheme from the JSON of a suggestion."""
    if not isinstance(scheme, dict):
        raise ValueError(f"{shown(scheme)} is a scheme of another command")
    return _scheme_from_suggestion(**scheme)


def _scheme_from_suggestion(
    dtype: str, axis: Any, block_size: int, symmetric: bool, range: str, convention: str
) -> Scheme:
    """Return a scheme of `fastq suggest` under the names of the options.

    Its JSON has the arguments of `fastq.quantize`, in which no axis is one scale for all, and formats that have only
    symmetric codes say nothing about that.
    """
    qtype = as_qtype(dtype)
    return _scheme(
        dtype=dtype,
        axis="none" if axis is None and not qtype.block_size else axis,
        block_size=block_size,
        symmetric=symmetric or bool(qtype.element or qtype.block_size),
        method=range,
        convention=convention,
    )


# options that say the scheme
OF_SCHEME = "dtype", "axis", "block_size", "symmetric", "method", "convention"
# conventions whose zero points are codes and whose scales are of the compute type, as files hold them; below 0 only
# where compressed-tensors has them
_AS_STORED = "integer", "compute", "magnitude"
STORABLE = [
    row.name for row in CONVENTIONS.values() if (row.zero_point, row.stored_type, row.symmetric_extreme) == _AS_STORED
]


class Storable(click.Choice[str]):
    """A convention whose parameters files can hold; the error for another one says why they can't."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of a convention; fail for one that files can't hold, with the reason."""
        row = CONVENTIONS.get(value)
        if row is not None and value not in self.choices:
            if row.zero_point != "integer":
                reason = "its zero points are no codes"
            elif row.stored_type != "compute":
                reason = f"its scales are {row.stored_type}"
            else:
                reason = "its scales may be negative"
            self.fail(
                f"{value!r} is for fastq.quantize in Python: {reason}, and readers of such files do not expect that; "
                f"files can have {', '.join(self.choices)}",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


FORMAT_HELP = f"Code format: {FAMILIES}."
LIKE_HELP = "Quantize only the tensors of FILE, each with its scheme there; FILE is the output of suggest --json."
AXIS_HELP = "Channel axis, or axis along which blocks run; none for one scale per tensor.  [default: 0; for blocks -1]"
CONVENTION_HELP = "System whose arithmetic to follow: {}. fastq conventions prints their formulas."
QUANTIZED = ".safetensors", ".npz"  # files with codes and scales
WITH_SCALES = {".npy": "one array, but codes need scales: numpy.load reads .npz, too"}
TO_QUANTIZE = InputPath(
    *SOURCES,
    advice={
        FOLDER: "fastq convert {} OUT --scheme W8A16 quantizes a model directory",
        ".gguf": "fastq gguf {} OUT.gguf --type Q4_K_M quantizes it",
    },
)


@click.command(short_help="Quantize a .safetensors, .npy or .npz file.")
@click.argument("source", metavar="IN", type=TO_QUANTIZE)
@click.argument("out", metavar="OUT", type=WRITABLE, callback=with_suffix(*QUANTIZED, hint=WITH_SCALES))
@patterns("--include", help="Quantize only tensors whose names PATTERN matches; repeatable.")
@patterns("--exclude", help="Do not quantize tensors whose names PATTERN matches; repeatable.")
@click.option("--all", "vectors", is_flag=True, help="Also quantize vectors and scalars of a file of tensors.")
@like_option("--like", help=LIKE_HELP)
@click.option("--dtype", type=Format(QTYPES), metavar="FORMAT", default="int8", show_default=True, help=FORMAT_HELP)
@click.option("--axis", callback=_axis, metavar="AXIS", help=AXIS_HELP)
@click.option(
    "--block-size", type=click.IntRange(0), default=0, help="Number of elements that share a scale; 0 for no blocks."
)
@click.option(
    "--symmetric/--asymmetric",
    default=True,
    show_default=True,
    help="Put 0.0 in the middle of the codes, or let the zero point vary.",
)
@range_option
@imatrix_option
@click.option(
    "--convention",
    type=Storable(STORABLE),
    metavar="NAME",
    default=STORABLE[0],
    show_default=True,
    help=CONVENTION_HELP.format(", ".join(STORABLE)),
)
@nan_option
@table_options
@force_option
def quantize(
    source: Path,
    out: Path,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    vectors: bool,
    like: Path | None,
    dtype: str,
    axis: int | str | None,
    block_size: int,
    symmetric: bool,
    method: str,
    imatrix: Path | None,
    convention: str,
    nan: str,
    force: bool,
    **options: Any,
) -> None:
    """Quantize the weights of a .safetensors or .npz file, or the array of a .npy file.

    OUT has codes, scales and zero points under the names that compressed-tensors uses: a .safetensors file, or a .npz
    file for numpy.load. Floating-point tensors of two or more dimensions are quantized; everything else (biases, norm
    weights) is copied, and the table shows the reason. With --all, each vector and scalar gets one scale, unless
    --block-size or the format cuts vectors into blocks. PATTERN is the name of a tensor or of its module, a shell
    pattern such as '*.weight', or re: and a regular expression; it must match a tensor. For model directories use fastq
    convert, for GGUF files fastq gguf. In Python, fastq.load reads OUT.
    """
    table_choice = TableOptions.taken_from(options)
    scheme = _scheme(
        dtype=dtype,
        axis=axis,
        block_size=block_size,
        symmetric=symmetric,
        method=method_with(imatrix, method),
        convention=convention,
    )
    check_out({"IN": source, "--like": like, "--imatrix": imatrix}, out, force=force, report=table_choice.report)
    selection = Selection(
        include=include or ("*",),
        exclude=exclude,
        vectors=vectors or source.suffix == ".npy",
        like=_schemes_in(like) if like else None,
    )
    with one_line_errors(name_of_path(source), out):
        opened = open_source(source)
        by_channel = isinstance(axis, int) and not block_size
        if by_channel and all(len(spec.shape) < 2 for spec in opened.tensors.values()):
            raise click.UsageError("--axis is for arrays of two axes or more: vectors and scalars get one scale each")
        importance = None if imatrix is None else read_imatrix(imatrix)
        with progress_bar(opened.tensors.values()) as advance:
            rows = quantize_file(
                opened, out, scheme, selection, nan=nan, imatrix=importance, say=note, progress=advance
            )
    show_table(table_choice, rows, title=f"{source.name} quantized", arrays_of=arrays_of_pictures(source, out))
    for row in rows:
        if row.remark:
            note(f"{row.name}: {row.remark}")
