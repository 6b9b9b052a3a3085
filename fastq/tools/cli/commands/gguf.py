"""`fastq gguf`: quantize a GGUF file, or restore floats from it."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import click

from fastq.formats.gguf import BLOCK_FORMATS, LEAST_ERROR, RANGES
from fastq.system.arguments import did_you_mean
from fastq.tools.cli.errors import name_of_path, one_line_errors, regular_expression, usage_errors
from fastq.tools.cli.exit_codes import IN_PART
from fastq.tools.cli.input_paths import FOLDER, InputPath
from fastq.tools.cli.notes import note
from fastq.tools.cli.options import EXISTING, choice, force_option, like_option, pairs_of, read_suggestion, repeatable
from fastq.tools.cli.output_paths import WRITABLE, check_out, check_replaceable, with_suffix
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import FIGURES, TableOptions, arrays_of_pictures, show_table, table_options
from fastq.tools.files.patterns import check_searched
from fastq.tools.gguf_files.convert_gguf import GgufConversion, convert_gguf
from fastq.tools.gguf_files.gguf_file import open_gguf
from fastq.tools.gguf_files.imatrix import read as read_imatrix
from fastq.tools.gguf_files.mixes import FLOAT_MIXES, LIKE_MIX, MIXES, TypeOverrides, mix_of
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

TO_GGUF = "convert_hf_to_gguf.py of llama.cpp makes GGUF"
IN = InputPath(".gguf", advice=dict.fromkeys((FOLDER, ".safetensors"), TO_GGUF))
CONVERSION = "name", "shape", "from", "bytes_before", "to", "bytes", "bits", "sqnr_db"
CONVERSION_FIELDS = "name", "shape", "from", "to", *FIGURES, "imatrix"


def _gguf_file(ctx: click.Context, param: click.Parameter, path: Path) -> Path | None:
    """Return OUT of `fastq gguf`; for a type in its place the error says that OUT is missing."""
    if str(path).upper() in MIXES | FLOAT_MIXES:
        raise click.BadParameter(f"{str(path)!r} is a TYPE, which follows OUT")
    return with_suffix(".gguf")(ctx, param, path)


def _known_type(text: str) -> str:
    """Return the name of a type of tensors in the spelling of the table; raise ValueError for another one."""
    if text.upper() not in TENSOR_TYPES:
        names = [name for name, kind in TENSOR_TYPES.items() if kind.is_float or name in BLOCK_FORMATS]
        raise ValueError(f"{text!r} is not a type of tensors: {', '.join(names)}{did_you_mean(text, names, {})}")
    return text.upper()


def _type_name(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Return the type of an option."""
    with usage_errors():
        return _known_type(text) if text is not None else None


def _named_types(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a pattern and a type."""
    types = []
    for pattern, name in pairs_of(texts, "PATTERN=TYPE"):
        with regular_expression(pattern):
            check_searched(pattern)
        types.append((pattern, _type_name(ctx, param, name) or ""))
    return tuple(types)


WEIGHTS_HELP = "Weights of the columns for the search for scales: a file of llama-imatrix, .safetensors or .npz."
TENSOR_TYPE = (
    "Use TYPE for tensors that PATTERN matches, also as a regex within names; repeatable, the first match counts."
)
type_option = functools.partial(click.option, callback=_type_name, metavar="TYPE")


@click.command(short_help="Quantize a GGUF file.")
@click.argument("source", metavar="IN", type=IN)
@click.argument("out", metavar="OUT", type=WRITABLE, callback=_gguf_file)
@click.argument("mix", metavar="[TYPE]", required=False)
@click.option(
    "--type",
    "mix_option",
    metavar="TYPE",
    help=f"TYPE as an option instead of the third argument: {', '.join(MIXES | FLOAT_MIXES)}.",
)
@click.option("--dequantize", is_flag=True, help="Restore floats from all blocks: F32, or F16 or BF16 if that is TYPE.")
@click.option(
    "--allow-requantize",
    is_flag=True,
    help="Also quantize tensors that are in blocks already; both steps lose precision.",
)
@click.option("--imatrix", type=EXISTING, metavar="FILE", help=WEIGHTS_HELP)
@choice(
    "--range",
    RANGES,
    "method",
    help=f"minmax takes scales as ggml does; mse searches for less error, in {', '.join(LEAST_ERROR)}.",
)
@click.option("--pure", is_flag=True, help="Use one type for all tensors instead of the mix of llama-quantize.")
@repeatable("--tensor-type", "tensor_types", callback=_named_types, metavar="PATTERN=TYPE", help=TENSOR_TYPE)
@like_option("--like", help="Give each tensor its type in FILE, the output of suggest --json; TYPE is for the others.")
@type_option("--output-tensor-type", "output_type", help="Type to use for output.weight.")
@type_option("--token-embedding-type", "embedding_type", help="Type to use for the token embeddings.")
@table_options
@force_option
def gguf(
    source: Path,
    out: Path,
    mix: str | None,
    mix_option: str | None,
    dequantize: bool,
    allow_requantize: bool,
    imatrix: Path | None,
    method: str,
    pure: bool,
    tensor_types: tuple[tuple[str, str], ...],
    like: Path | None,
    output_type: str | None,
    embedding_type: str | None,
    force: bool,
    **options: Any,
) -> None:
    """Quantize a GGUF file of F32, F16 or BF16 as llama-quantize does.

    OUT is a GGUF file that llama.cpp runs, with the metadata of IN. TYPE is a mix: Q4_K_M has most tensors in Q4_K and
    the sensitive ones in Q6_K. --dequantize restores floats. If a model is in parts, IN is any part, and OUT is one
    file.

    Standard error lists the options without effect, the tensors left out and those of unknown kinds, which are copied.
    Exit codes: 0; 1 for a file that can't be read or converted, or for an importance matrix or --tensor-type that
    matches no tensor; 2 for wrong arguments; 4 if a type of an option or --range mse was used for no tensor, or if
    nothing was converted: no tensor changes its type, IN is one file, and no field of its metadata changes.
    """  # fmt: skip
    table_choice = TableOptions.taken_from(options)
    if like:
        types = read_suggestion(like, _known_type)
        tensor_types += tuple((f"re:{re.escape(name)}$", type_name) for name, type_name in types.items())
    overrides = TypeOverrides(
        pure=pure, tensor_types=tensor_types, output_type=output_type, embedding_type=embedding_type
    )
    if dequantize and (imatrix or allow_requantize or method != "minmax" or overrides != TypeOverrides()):
        raise click.UsageError("--dequantize can be combined with F32, F16 or BF16 only")
    if mix and mix_option:
        raise click.UsageError(f"TYPE is given twice, as {mix} and as --type {mix_option}")
    mixes = FLOAT_MIXES if dequantize else MIXES | FLOAT_MIXES
    name = mix or mix_option
    if not name and dequantize:
        name = "F32"
    elif not name and like:
        name = LIKE_MIX
    if not name:
        raise click.UsageError(f"TYPE is missing: one of {', '.join(mixes)}")
    with usage_errors(argument="TYPE"):
        chosen_mix = mix_of(name, mixes)
    check_out({"IN": source, "--imatrix": imatrix, "--like": like}, out, force=force, report=table_choice.report)
    with one_line_errors(name_of_path(source), out):
        opened = open_gguf(source)
        for part in opened.parts:
            check_replaceable(out, "OUT", {"a part of IN": part})
        request = GgufConversion(
            mix=chosen_mix,
            overrides=overrides,
            imatrix=(str(imatrix), read_imatrix(imatrix)) if imatrix else None,
            range=method,
            requantize=allow_requantize,
            dequantize=dequantize,
        )
        with progress_bar(opened.tensors.values()) as advance:
            rows = convert_gguf(opened, out, request, say=_say, progress=advance)
    show_table(
        table_choice,
        rows,
        CONVERSION,
        fields=CONVERSION_FIELDS,
        title=f"{source.name} converted",
        done="converted",
        arrays_of=arrays_of_pictures(source, out),
    )


def _say(line: str, in_part: bool = False) -> None:
    """Write a line to standard error; with `in_part` the command ends with an exit code for it."""
    note(line, IN_PART if in_part else 0)
