"""`fastq convert`: quantize a model directory into the files of compressed-tensors, or restore floats."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fastq.tools.checkpoints.config_json import CONFIG, DTYPES
from fastq.tools.checkpoints.conversion import Conversion
from fastq.tools.checkpoints.converting import convert
from fastq.tools.checkpoints.dequantization import Dequantization
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.journal import JOURNAL, UnfitOut
from fastq.tools.checkpoints.plan_notes import lines_on_assumptions, lines_on_floats
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.readers import loading_lines
from fastq.tools.checkpoints.rules import Rules
from fastq.tools.checkpoints.weight_files import INDEX
from fastq.tools.cli.errors import one_line_error, one_line_errors, usage_errors
from fastq.tools.cli.input_paths import FOLDER, InputPath
from fastq.tools.cli.notes import note
from fastq.tools.cli.options import (
    as_patterns,
    choice,
    imatrix_option,
    is_given,
    like_option,
    method_with,
    pairs_of,
    patterns,
    range_option,
    read_suggestion,
)
from fastq.tools.cli.output_paths import WRITABLE, check_replaceable
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import TableOptions, show_table, table_options
from fastq.tools.files.patterns import WEIGHT
from fastq.tools.files.texts import count_text
from fastq.tools.gguf_files.imatrix import read as read_imatrix
from fastq.tools.layouts.schemes import PRESETS, LayerScheme, as_scheme

AGAIN = "; finished shards stay, and the same command continues from there"
SCHEME_MISSING = f"--scheme is missing: one of {', '.join(PRESETS)}"
# options for quantizing
OF_SCHEMES = "schemes", "ignore", "include", "unequal", "group_size", "symmetric", "method", "imatrix", "convention"
SRC = InputPath(
    FOLDER,
    advice={
        ".safetensors": "name the folder that has it and config.json",
        ".gguf": "fastq gguf reads it",
        **dict.fromkeys((".npy", ".npz"), "fastq quantize reads it"),
    },
)


def _scheme(ctx: click.Context, param: click.Parameter, name: str | None) -> LayerScheme | None:
    """Return the scheme of an option."""
    with usage_errors():
        return None if name is None else as_scheme(name)


def _schemes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Return the pairs of a pattern and a scheme that an option has; refuse invalid patterns and unknown schemes."""
    schemes = []
    for pattern, name in pairs_of(texts, "PATTERN=SCHEME"):
        as_patterns(ctx, param, (pattern,))
        schemes.append((pattern, _scheme(ctx, param, name)))
    return schemes


def _check_report(report: Path, source: Path, out: Path) -> None:
    """Refuse a file for the report if it would replace one of SRC or OUT, or can't be written."""
    check_replaceable(report, "--report", {})
    folder = report.parent.resolve()
    if folder.is_relative_to(source.resolve()):
        reason = "lies in SRC, where nothing may be written"
    elif folder / report.name == out.resolve():
        reason = "is OUT itself"
    elif report.name.casefold() in _names_of_model(folder, source, out):
        reason = "is a file of the model in OUT"
    else:
        return
    raise click.BadParameter(f"{report.name!r} {reason}; name another one", param_hint="'--report'")


def _names_of_model(folder: Path, source: Path, out: Path) -> set[str]:
    """Return the names, in lower case, of the files that a conversion may write into a folder; empty outside OUT."""
    if not folder.is_relative_to(out.resolve()):
        return set()
    copied_folder = source / folder.relative_to(out.resolve())
    if not copied_folder.is_dir():
        return set()
    return {name.casefold() for name in (CONFIG, INDEX, JOURNAL, *(path.name for path in copied_folder.iterdir()))}


SCHEME_FOR_HELP = "Use another scheme for the modules that PATTERN matches; repeatable, the first match counts."
LIKE_HELP = "Give each matrix its scheme in FILE, the output of suggest --json, and all others the one that most have."
UNEQUAL_HELP = (
    "Allow unequal schemes for matrices that vLLM and SGLang read as one; only transformers loads such a model."
)
CONVENTION_HELP = (
    "rounded-scale computes codes from the stored scale; compressed-tensors writes the bytes of its library."
)


@click.command("convert", short_help="Quantize a model directory.")
@click.argument("source", metavar="SRC", type=SRC)
@click.argument("out", metavar="OUT", type=WRITABLE)
@click.option(
    "--scheme", metavar="SCHEME", callback=_scheme, help=f"Scheme of the weights: one of {', '.join(PRESETS)}."
)
@patterns("--scheme-for", "schemes", metavar="PATTERN=SCHEME", callback=_schemes, help=SCHEME_FOR_HELP)
@like_option("--like", "suggestion", help=LIKE_HELP)
@patterns("--ignore", help="Do not quantize the modules that PATTERN matches; repeatable.")
@patterns(
    "--include",
    help="Also quantize modules that PATTERN matches and that stay floats by default, such as lm_head; repeatable.",
)
@click.option("--allow-unequal", "unequal", is_flag=True, help=UNEQUAL_HELP)
@click.option(
    "--group-size",
    type=click.IntRange(1),
    help="Number of columns that share a scale, in schemes of integers in groups.",
)
@click.option(
    "--symmetric/--asymmetric", default=None, help="Leave out or store zero points, in schemes of integers in groups."
)
@range_option
@imatrix_option
@choice("--convention", ("rounded-scale", "compressed-tensors"), help=CONVENTION_HELP)
@click.option("--dequantize", is_flag=True, help="Restore the floats of a quantized directory.")
@click.option(
    "--dtype", type=click.Choice(list(DTYPES)), help="Dtype that --dequantize writes; by default that of config.json."
)
@table_options
@click.option("--force", is_flag=True, help="Replace files in OUT, and remove its other .safetensors files.")
def convert_command(
    source: Path,
    out: Path,
    scheme: LayerScheme | None,
    schemes: list[tuple[str, LayerScheme]],
    suggestion: Path | None,
    ignore: tuple[str, ...],
    include: tuple[str, ...],
    unequal: bool,
    group_size: int | None,
    symmetric: bool | None,
    method: str,
    imatrix: Path | None,
    convention: str,
    dequantize: bool,
    dtype: str | None,
    force: bool,
    **options: Any,
) -> None:
    """Quantize a model directory into the files of compressed-tensors, which transformers and vLLM load.

    SRC has config.json and .safetensors files. Weights of Linear layers are quantized; embeddings, norms, biases,
    routers and the output head are copied, as are all other files. Repeat an interrupted command to continue it.
    --dequantize restores floats, also from models of llm-compressor, AWQ, GPTQ and from float8 models. A PATTERN is the
    name of a module, a shell pattern, or re: and a regular expression for the start of names.
    """
    table_choice = TableOptions.taken_from(options)
    if suggestion is not None and (scheme is not None or schemes or dequantize):
        others = "--scheme, --scheme-for or --dequantize"
        raise click.UsageError(f"--like has the schemes; it cannot be combined with {others}")
    if suggestion is not None:
        scheme, schemes = _schemes_in(suggestion)
    if not os.path.isdir(out.parent):
        raise click.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="'OUT'")
    _check_direction(scheme, dequantize, dtype)
    rules = None  # without a scheme floats are restored
    if scheme is not None:
        general_scheme, other_schemes = _with_options(scheme, schemes, group_size, symmetric)
        rules = Rules(
            scheme=general_scheme, ignore=ignore, schemes=tuple(other_schemes), include=include, unequal=unequal
        )
    method = method_with(imatrix, method)
    with one_line_errors(source, out):
        if table_choice.report is not None:
            _check_report(table_choice.report, source, out)
        opened = ModelFolder.open(source)
        for line in opened.notes:
            note(f"{source}: {line}")
        conversion: Conversion
        if rules is None:
            conversion = Dequantization(opened, DTYPES[dtype] if dtype else None)
        else:
            conversion = _quantization(opened, rules, method, convention, imatrix)
        bar = progress_bar(conversion.source.tensors.values())
        errors_about_out = usage_errors(str, UnfitOut, "OUT")
        with _resumable(out), bar as advance, errors_about_out:
            rows = convert(conversion, out, force=force, progress=advance, notice=note)
    show_table(
        table_choice,
        rows,
        title=f"{source.name} {'dequantized' if dequantize else 'quantized'}",
        arrays_of=conversion.sample if isinstance(conversion, Quantization) else None,
    )
    shards = count_text(len(conversion.source.shards), "file")
    note(f"wrote {out}: {shards} of weights, {CONFIG}, and the other files of {source}")
    if isinstance(conversion, Quantization):
        for line in _lines_on_result(conversion, out):
            note(line)


def _lines_on_result(conversion: Quantization, out: Path) -> Iterator[str]:
    """Yield lines on scales with few digits, on weights that stay floats, and on how to load the result."""
    plan = conversion.plan
    yield from conversion.lines_on_rough_scales()
    yield from lines_on_floats(plan, conversion.source, conversion.rules)
    yield from lines_on_assumptions(plan, conversion.source)
    yield from loading_lines(out, conversion.source, plan.matrices, plan.assumed)


def _check_direction(scheme: LayerScheme | None, dequantize: bool, dtype: str | None) -> None:
    """Refuse options that are not for quantizing, or not for restoring floats."""
    if dequantize == (scheme is not None):  # neither, or both
        raise click.UsageError(SCHEME_MISSING if scheme is None else "--dequantize and --scheme cannot be combined")
    if dequantize and any(map(is_given, OF_SCHEMES)):
        raise click.UsageError("--dequantize can be combined with --dtype, --force and the options of the table only")
    if dtype and not dequantize:
        raise click.UsageError("--dtype needs --dequantize")


def _schemes_in(path: Path) -> tuple[LayerScheme | None, list[tuple[str, LayerScheme]]]:
    """Return the scheme that most matrices of a suggestion have, and those of the others by the names of modules."""
    scheme_of = read_suggestion(path, as_scheme)
    most_common = Counter(scheme_of.values()).most_common(1)[0][0] if scheme_of else None
    others = [(name.removesuffix(WEIGHT), scheme) for name, scheme in scheme_of.items() if scheme != most_common]
    return most_common, others


def _quantization(
    opened: ModelFolder, rules: Rules, method: str, convention: str, imatrix: Path | None
) -> Quantization:
    """Return the quantization of a model directory, and print its notes."""
    conversion = Quantization(
        opened,
        rules,
        bit_exact=convention == "compressed-tensors",
        method=method,
        imatrix=None if imatrix is None else read_imatrix(imatrix),
    )
    for line in [*conversion.source.notes[len(opened.notes) :], *conversion.plan.notes, *conversion.notes]:
        note(f"{opened.path}: {line}")
    return conversion


def _with_options(
    scheme: LayerScheme,
    schemes: list[tuple[str, LayerScheme]],
    group_size: int | None,
    symmetric: bool | None,
) -> tuple[LayerScheme, list[tuple[str, LayerScheme]]]:
    """Return schemes with the options for integers in groups; raise UsageError if no scheme has such integers."""
    all_schemes = [scheme, *(other for _, other in schemes)]
    has_integers_in_groups = any(member.in_groups for member in all_schemes)
    changed = []
    for member in all_schemes:
        if member.in_groups or not has_integers_in_groups:  # a scheme without them refuses the options
            try:
                changed.append(member.with_options(group_size, symmetric))
            except ValueError as error:
                raise click.UsageError(str(error)) from error
        else:
            changed.append(member)
    first, *others = changed
    return first, [(pattern, other) for (pattern, _), other in zip(schemes, others, strict=True)]


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Say in an interrupt or an error of the file system how to continue, if some shards are finished."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        if not os.path.isfile(out / JOURNAL):
            raise
        if isinstance(error, OSError):
            raise one_line_error(error.filename or out, f"{error.strerror or error}{AGAIN}") from error
        raise KeyboardInterrupt(AGAIN) from None
