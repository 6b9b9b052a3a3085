"""Commands for GGUF files: quantize one as llama-quantize does, turn it back into floats, show what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fastq.cli import files
from fastq.cli.report import Column, number_text, print_line, print_table, printable, shape_text, total_text
from fastq.cli.tables import json_text
from fastq.formats.tensor_types import TENSOR_TYPES, TensorType
from fastq.io.gguf.container import GgufSource, GgufTensor, MetadataField, open_gguf
from fastq.io.gguf.converting import Request, convert_gguf
from fastq.io.gguf.imatrix import load_imatrix
from fastq.io.gguf.mixes import FLOAT_MIXES, MIXES, Mix, TypeOverrides, mix_of
from fastq.io.pipeline import Converted, some_of, total_of
from fastq.system.arguments import did_you_mean

NamedType = tuple[re.Pattern[str], str]

GGUF = files.with_suffix(".gguf")
TO_GGUF = "convert_hf_to_gguf.py of llama.cpp makes GGUF"
IN = files.Source(".gguf", ways=dict.fromkeys((files.FOLDER, ".safetensors"), TO_GGUF))
LONGEST_VALUE = 60  # characters of a field's value in a table


@dataclass(frozen=True)
class TypeSum:
    """The tensors of a type."""

    name: str
    tensors: int
    size: int
    after: int


def _bits(nbytes: int, size: int) -> str:
    return number_text(8 * nbytes / size if size else None, ".3f")


CONVERSION: tuple[Column[Converted], ...] = (
    ("tensor", lambda line: printable(line.name)),
    ("shape", lambda line: shape_text(line.shape or ())),
    ("from", lambda line: line.source),
    ("bytes before", lambda line: f"{line.before:,}"),
    ("to", lambda line: line.target),
    ("bytes", lambda line: f"{line.after:,}"),
    ("bits", lambda line: _bits(line.after, line.size)),
    ("SQNR dB", lambda line: number_text(line.sqnr_db, ".2f")),
)
TENSOR: tuple[Column[GgufTensor], ...] = (
    ("tensor", lambda spec: printable(spec.name)),
    ("type", lambda spec: spec.kind.name),
    ("shape", lambda spec: shape_text(spec.shape)),
    ("bytes", lambda spec: f"{spec.nbytes:,}"),
    ("bits", lambda spec: number_text(spec.kind.bits, ".3f")),
)
FIELD: tuple[Column[MetadataField], ...] = (
    ("key", lambda field: printable(field.key)),
    ("type", lambda field: field.type_name),
    ("value", lambda field: _value_text(field)),
)
TYPES: tuple[Column[TypeSum], ...] = (
    ("type", lambda line: line.name),
    ("tensors", lambda line: f"{line.tensors:,}"),
    ("values", lambda line: f"{line.size:,}"),
    ("bytes", lambda line: f"{line.after:,}"),
    ("bits", lambda line: _bits(line.after, line.size)),
)


def _type_name(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Return the name of a type of tensors as the table has it; None is an option that was not given."""
    if text is None or text.upper() in TENSOR_TYPES:
        return text.upper() if text else None
    meant = did_you_mean(text, TENSOR_TYPES, {})
    raise click.BadParameter(f"{text!r} is not a type of tensors: {', '.join(TENSOR_TYPES)}{meant}")


def _named_types(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[NamedType, ...]:
    """Return regular expressions and the types of the tensors that they are for."""
    found = []
    for pattern, kind in files.pairs_of(texts, "REGEX=TYPE"):
        try:
            found.append((re.compile(pattern), _type_name(ctx, param, kind) or ""))
        except re.error as error:
            raise click.BadParameter(f"{pattern!r} is not a regular expression: {error}") from error
    return tuple(found)


@click.command(short_help="Quantize a GGUF file.")
@click.argument("source", metavar="IN", type=IN)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=GGUF)
@click.argument("mix", metavar="[TYPE]", required=False)
@click.option("--type", "kind", metavar="TYPE", help=f"The same as a third argument: {', '.join(MIXES | FLOAT_MIXES)}.")
@click.option("--dequantize", is_flag=True, help="Turn all blocks into floats: F32, or TYPE F16 or BF16.")
@click.option("--allow-requantize", is_flag=True, help="Quantize tensors in blocks, too: both steps lose.")
@click.option("--imatrix", type=files.EXISTING, metavar="FILE", help="Importance matrix, written by llama-imatrix.")
@click.option("--pure", is_flag=True, help="One type for all tensors, in place of the mix that llama-quantize makes.")
@click.option(
    "--tensor-type",
    "named",
    callback=_named_types,
    multiple=True,
    metavar="REGEX=TYPE",
    help="Type of the tensors in whose name REGEX is found; repeatable, the first one counts.",
)
@click.option("--output-tensor-type", callback=_type_name, metavar="TYPE", help="Type of output.weight.")
@click.option("--token-embedding-type", callback=_type_name, metavar="TYPE", help="Type of the token embeddings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@files.force_option
def gguf(
    source: Path,
    out: Path,
    mix: str | None,
    kind: str | None,
    dequantize: bool,
    allow_requantize: bool,
    imatrix: Path | None,
    pure: bool,
    named: tuple[NamedType, ...],
    output_tensor_type: str | None,
    token_embedding_type: str | None,
    as_json: bool,
    force: bool,
) -> None:
    """Quantize a GGUF file of F32, F16 or BF16 as llama-quantize does.

    OUT is a GGUF file that llama.cpp runs, with the metadata of IN. TYPE is a mix: Q4_K_M has most tensors in Q4_K and
    the sensitive ones in Q6_K. --dequantize is the way back. Of a model in parts IN is any of them, OUT is one file.

    What was not used, left out or copied without being known is said on standard error. Exit codes: 0; 1 for a file
    that can't be read or converted, or an importance matrix or --tensor-type that is for none of its tensors; 2 for
    wrong arguments; 4 where an option gave no tensor its type.
    """  # fmt: skip
    overrides = TypeOverrides(pure, named, output_tensor_type, token_embedding_type)
    if dequantize and (imatrix or allow_requantize or overrides != TypeOverrides()):
        raise click.UsageError("--dequantize goes with F32, F16 or BF16 only")
    if mix and kind:
        raise click.UsageError(f"TYPE is given twice, as {mix} and as --type {kind}")
    found = _mix(mix or kind, FLOAT_MIXES if dequantize else MIXES | FLOAT_MIXES, "F32" if dequantize else None)
    files.check_out({"IN": source, "--imatrix": imatrix}, out, force=force)
    with files.failures(files.called(source), out):
        opened = open_gguf(source)
        for part in opened.parts:
            files.check_replaceable(out, "OUT", {"a part of IN": part})
        weights = (str(imatrix), load_imatrix(imatrix)) if imatrix else None
        request = Request(found, overrides, weights, allow_requantize, dequantize)
        with files.progress_bar(opened.tensors.values()) as advance:
            rows = convert_gguf(opened, out, request, say=_say, progress=advance)
    _print_conversions(rows, as_json=as_json)


def _say(line: str, in_part: bool = False) -> None:
    files.note(line, files.IN_PART if in_part else 0)


def inspect_gguf(source: Path, *, as_json: bool) -> None:
    """Show the tensors and the metadata of a GGUF file: types, shapes, bytes, bits a weight."""
    with files.failures(files.called(source), source):
        opened = open_gguf(source, whole=False)
    if opened.missing:
        missing = f"parts of the model are missing: {some_of(opened.missing)}"
        _say(f"{missing}; shown are the tensors of the others", in_part=True)
    if as_json:
        click.echo(json_text(_inspected(opened)), nl=False)
        return
    print_table(list(opened.fields.values()), FIELD)
    print_table(list(opened.tensors.values()), TENSOR)
    groups = list(_groups(opened.tensors.values()))
    sums = (sum(getattr(group, part) for group in groups) for part in ("tensors", "size", "after"))
    print_table(groups, TYPES, total=TypeSum("total", *sums))


def _mix(kind: str | None, mixes: dict[str, Mix], default: str | None) -> Mix:
    if not (kind or default):
        raise click.UsageError(f"TYPE is missing: one of {', '.join(mixes)}")
    try:
        return mix_of(kind or default or "", mixes)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'TYPE'") from error


# What is printed


def _print_conversions(rows: list[Converted], *, as_json: bool) -> None:
    total = total_of(rows)
    if not as_json:
        print_table(rows, CONVERSION, total=total)
        print_line(total_text(rows, done="converted"))
        return
    tensors = [
        {"name": row.name, "shape": row.shape, "from": row.source, "to": row.target, **_figures(row)}
        | {"imatrix": row.weighted}
        for row in rows
    ]
    click.echo(json_text({"tensors": tensors, **_figures(total)}), nl=False)


def _figures(line: Converted) -> dict[str, Any]:
    return {"bytes_before": line.before, "bytes": line.after, "sqnr_db": line.sqnr_db}


def _inspected(source: GgufSource) -> dict[str, Any]:
    """Return all that is known of a file, for JSON."""
    fields = {key: {"type": field.type_name, "value": field.value()} for key, field in source.fields.items()}
    tensors = [
        {"name": spec.name, "type": spec.kind.name, "shape": spec.shape, "bytes": spec.nbytes, "bits": spec.kind.bits}
        for spec in source.tensors.values()
    ]
    return {"metadata": fields, "tensors": tensors}


def _groups(specs: Iterable[GgufTensor]) -> Iterable[TypeSum]:
    """Return a line for each type of tensors."""
    groups: dict[TensorType, list[GgufTensor]] = {}
    for spec in specs:
        groups.setdefault(spec.kind, []).append(spec)
    for kind, group in groups.items():
        yield TypeSum(kind.name, len(group), sum(spec.size for spec in group), sum(spec.nbytes for spec in group))


def _value_text(field: MetadataField) -> str:
    """Return a value in one short line; of an array only the first elements."""
    value = field.value()
    text = (
        ", ".join(map(str, value[:8])) + (", ..." if len(value) > 8 else "") if isinstance(value, list) else str(value)
    )
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST_VALUE else line[:LONGEST_VALUE] + "..."
