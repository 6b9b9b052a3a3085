"""The command for model directories: quantize one into the files of compressed-tensors, or restore floats."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fastq.tools.checkpoints.converting import JOURNAL, Conversion, UnfitOut, convert
from fastq.tools.checkpoints.folder import CONFIG, DTYPES, INDEX, ModelFolder
from fastq.tools.checkpoints.quantizing import Dequantization, Quantization
from fastq.tools.checkpoints.rules import Rules, code_of_its_own, left_as_floats, loading
from fastq.tools.cli import files
from fastq.tools.cli.files import in_one_line, is_given, note
from fastq.tools.cli.report import Shown, show, table_options
from fastq.tools.files.patterns import WEIGHT
from fastq.tools.files.pipeline import count_text
from fastq.tools.gguf_files import imatrix
from fastq.tools.layouts.schemes import PRESETS, LayerScheme, as_scheme

AGAIN = "; finished shards stay, and the same command continues from there"
SCHEME_MISSING = f"--scheme is missing: one of {', '.join(PRESETS)}"
OF_SCHEMES = "schemes", "ignore", "include", "unequal", "group_size", "symmetric", "method", "imatrix", "convention"
SRC = files.Source(
    files.FOLDER,
    ways={
        ".safetensors": "name the folder that has it and config.json",
        ".gguf": "fastq gguf reads it",
        **dict.fromkeys((".npy", ".npz"), "fastq quantize reads it"),
    },
)


def _scheme(ctx: click.Context, param: click.Parameter, name: str | None) -> LayerScheme | None:
    with files.refused():
        return None if name is None else as_scheme(name)


def _schemes(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, Any]]:
    pairs = files.pairs_of(texts, "PATTERN=SCHEME")
    return [(files.as_patterns(ctx, param, (pattern,))[0], _scheme(ctx, param, name)) for pattern, name in pairs]


def _check_report(report: Path, source: Path, out: Path) -> None:
    """Refuse a file for the report if it would replace one of SRC or OUT, or can't be written."""
    files.check_replaceable(report, "--report", {})
    folder = report.parent.resolve()
    whole = out.resolve()
    twin = source / folder.relative_to(whole) if folder.is_relative_to(whole) else None  # files that are copied to OUT
    taken = {CONFIG, INDEX, JOURNAL, *(path.name for path in twin.iterdir())} if twin and twin.is_dir() else set()
    if folder.is_relative_to(source.resolve()):
        reason = "lies in SRC, where nothing may be written"
    elif folder / report.name == whole:
        reason = "is OUT itself"
    elif report.name.casefold() in {name.casefold() for name in taken}:
        reason = "is a file of the model in OUT"
    else:
        return
    raise click.BadParameter(f"{report.name!r} {reason}; name another one", param_hint="'--report'")


OTHERS = "Use another scheme for the modules that PATTERN matches; repeatable, the first match counts."
LIKE = "Give each matrix its scheme in FILE, the output of suggest --json, and all others the one that most have."
UNEQUAL = "Allow unequal schemes for matrices that vLLM and SGLang read as one; only transformers loads such a model."
CONVENTION = "rounded-scale computes codes from the stored scale; compressed-tensors writes the bytes of its library."


@click.command("convert", short_help="Quantize a model directory.")
@click.argument("source", metavar="SRC", type=SRC)
@click.argument("out", metavar="OUT", type=files.WRITABLE)
@click.option(
    "--scheme", metavar="SCHEME", callback=_scheme, help=f"Scheme of the weights: one of {', '.join(PRESETS)}."
)
@files.patterns("--scheme-for", "schemes", metavar="PATTERN=SCHEME", callback=_schemes, help=OTHERS)
@files.like_option("--like", "suggestion", help=LIKE)
@files.patterns("--ignore", help="Do not quantize the modules that PATTERN matches; repeatable.")
@files.patterns(
    "--include",
    help="Also quantize modules that PATTERN matches and that stay floats by default, such as lm_head; repeatable.",
)
@click.option("--allow-unequal", "unequal", is_flag=True, help=UNEQUAL)
@click.option(
    "--group-size",
    type=click.IntRange(1),
    help="Number of columns that share a scale, in schemes of integers in groups.",
)
@click.option(
    "--symmetric/--asymmetric", default=None, help="Leave out or store zero points, in schemes of integers in groups."
)
@files.range_option
@files.imatrix_option
@files.choice("--convention", ("rounded-scale", "compressed-tensors"), help=CONVENTION)
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
    suggestion: Path | None,
    dtype: str | None,
    **given: Any,
) -> None:
    """Quantize a model directory into the files of compressed-tensors, which transformers and vLLM load.

    SRC has config.json and .safetensors files. Weights of Linear layers are quantized; embeddings, norms, biases,
    routers and the output head are copied, as are all other files. Repeat an interrupted command to continue it.
    --dequantize restores floats, also from models of llm-compressor, AWQ, GPTQ and from float8 models. A PATTERN is the
    name of a module, a shell pattern, or re: and a regular expression for the start of names.
    """
    shown = Shown.taken(given)
    dequantize = given["dequantize"]
    if suggestion is not None:
        if scheme is not None or given["schemes"] or dequantize:
            others = "--scheme, --scheme-for or --dequantize"
            raise click.UsageError(f"--like has the schemes; it cannot be combined with {others}")
        scheme, given["schemes"] = _suggested(suggestion)
    if not os.path.isdir(out.parent):
        raise click.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="'OUT'")
    _check_way(scheme, dequantize, dtype)
    rules = _rules(scheme, **given) if scheme else None
    method = files.method_with(given["imatrix"], given["method"])
    with files.failures(source, out):
        if shown.report is not None:
            _check_report(shown.report, source, out)
        opened = ModelFolder(source)
        for line in opened.notes:
            note(f"{source}: {line}")
        conversion: Conversion
        if rules is None:
            conversion = Dequantization(opened, DTYPES[dtype] if dtype else None)
        else:
            conversion = _quantization(opened, rules, method, given["convention"], given["imatrix"])
        bar = files.progress_bar(conversion.source.tensors.values())
        unfit = files.refused(str, UnfitOut, "OUT")
        with _resumable(out), bar as advance, unfit:
            rows = convert(conversion, out, force=given["force"], progress=advance, notice=note)
    title = f"{source.name} {'dequantized' if dequantize else 'quantized'}"
    show(shown, rows, title=title, errors_of=conversion.sample if isinstance(conversion, Quantization) else None)
    shards = count_text(len(conversion.source.shards), "file")
    note(f"wrote {out}: {shards} of weights, {CONFIG}, and the other files of {source}")
    if isinstance(conversion, Quantization) and rules is not None:
        lines = conversion.rough_lines() + left_as_floats(conversion.plan, conversion.source, rules)
        lines += code_of_its_own(conversion.plan, conversion.source)
        for line in [*lines, *loading(out, conversion.source, conversion.plan.matrices)]:
            note(line)


def _check_way(scheme: LayerScheme | None, dequantize: bool, dtype: str | None) -> None:
    """Refuse options that are not for quantizing, or not for restoring floats."""
    if dequantize == (scheme is not None):
        raise click.UsageError(SCHEME_MISSING if scheme is None else "--dequantize and --scheme cannot be combined")
    if dequantize and any(map(is_given, OF_SCHEMES)):
        raise click.UsageError("--dequantize can be combined with --dtype, --force and the options of the table only")
    if dtype and not dequantize:
        raise click.UsageError("--dtype needs --dequantize")


def _suggested(path: Path) -> tuple[LayerScheme | None, list[tuple[str, LayerScheme]]]:
    """Return the scheme that most matrices of a suggestion have, and those of the others by the names of modules."""
    named = files.suggested(path, as_scheme)
    scheme = Counter(named.values()).most_common(1)[0][0] if named else None
    return scheme, [(name.removesuffix(WEIGHT), each) for name, each in named.items() if each != scheme]


def _quantization(
    opened: ModelFolder, rules: Rules, method: str, convention: str, weights: Path | None
) -> Quantization:
    """Return the quantization of a model directory, and print its notes."""
    bit_exact = convention == "compressed-tensors"
    imatrix_of = None if weights is None else imatrix.read(weights)
    conversion = Quantization(opened, rules, bit_exact=bit_exact, method=method, imatrix=imatrix_of)
    for line in [*conversion.source.notes[len(opened.notes) :], *conversion.plan.notes, *conversion.notes]:
        note(f"{opened.path}: {line}")
    return conversion


def _rules(
    scheme: LayerScheme, schemes: list[tuple[str, LayerScheme]], group_size: int, symmetric: bool, **given: Any
) -> Rules:
    """Return the rules that were asked for; options for integers in groups apply to all such schemes, and need one."""
    chosen = [scheme, *(each for _, each in schemes)]
    fit = [each for each in chosen if each.in_groups] or chosen
    try:
        first, *others = (each.with_options(group_size, symmetric) if each in fit else each for each in chosen)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    named = tuple((pattern, each) for (pattern, _), each in zip(schemes, others, strict=True))
    return Rules(first, given["ignore"], named, given["include"], given["unequal"])


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Add to an interrupt, or to an error of the file system, how to continue, if there is anything to continue."""
    try:
        yield
    except (KeyboardInterrupt, OSError) as error:
        if not os.path.isfile(out / JOURNAL):
            raise
        if isinstance(error, OSError):
            raise in_one_line(error.filename or out, f"{error.strerror or error}{AGAIN}") from error
        raise KeyboardInterrupt(AGAIN) from None
