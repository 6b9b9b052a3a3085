"""Commands for GGUF files: quantize one as llama-quantize does, turn it back into floats, show what it holds."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import click

from fastq.cli import files
from fastq.cli.report import Entry, entry_of, print_converted, print_json, print_table, printable
from fastq.formats.tensor_types import TENSOR_TYPES
from fastq.io.gguf.container import GgufTensor, MetadataField, open_gguf
from fastq.io.gguf.converting import Request, convert_gguf
from fastq.io.gguf.imatrix import load_imatrix
from fastq.io.gguf.mixes import FLOAT_MIXES, MIXES, Mix, TypeOverrides, mix_of
from fastq.io.pipeline import some_of, total_of
from fastq.system.arguments import did_you_mean

NamedType = tuple[re.Pattern[str], str]

GGUF = files.with_suffix(".gguf")
TO_GGUF = "convert_hf_to_gguf.py of llama.cpp makes GGUF"
IN = files.Source(".gguf", ways=dict.fromkeys((files.FOLDER, ".safetensors"), TO_GGUF))
LONGEST_VALUE = 60  # characters of a field's value in a table
CONVERSION = "name", "shape", "from", "bytes_before", "to", "bytes", "bits", "sqnr_db"
FIGURES = "bytes_before", "bytes", "sqnr_db"  # of a conversion as JSON


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
        with files.regular_expression(pattern):
            found.append((re.compile(pattern), _type_name(ctx, param, kind) or ""))
    return tuple(found)


TENSOR_TYPE = "Type of the tensors in whose name REGEX is found; repeatable, the first one counts."
type_option = functools.partial(click.option, callback=_type_name, metavar="TYPE")


@click.command(short_help="Quantize a GGUF file.")
@click.argument("source", metavar="IN", type=IN)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=GGUF)
@click.argument("mix", metavar="[TYPE]", required=False)
@click.option("--type", "kind", metavar="TYPE", help=f"The same as a third argument: {', '.join(MIXES | FLOAT_MIXES)}.")
@click.option("--dequantize", is_flag=True, help="Turn all blocks into floats: F32, or TYPE F16 or BF16.")
@click.option("--allow-requantize", is_flag=True, help="Quantize tensors in blocks, too: both steps lose.")
@click.option("--imatrix", type=files.EXISTING, metavar="FILE", help="Importance matrix, written by llama-imatrix.")
@click.option("--pure", is_flag=True, help="One type for all tensors, in place of the mix that llama-quantize makes.")
@files.repeatable("--tensor-type", "tensor_types", callback=_named_types, metavar="REGEX=TYPE", help=TENSOR_TYPE)
@type_option("--output-tensor-type", "output_type", help="Type of output.weight.")
@type_option("--token-embedding-type", "embedding_type", help="Type of the token embeddings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@files.force_option
def gguf(
    source: Path, out: Path, mix: str | None, kind: str | None, imatrix: Path | None, as_json: bool, **given: Any
) -> None:
    """Quantize a GGUF file of F32, F16 or BF16 as llama-quantize does.

    OUT is a GGUF file that llama.cpp runs, with the metadata of IN. TYPE is a mix: Q4_K_M has most tensors in Q4_K and
    the sensitive ones in Q6_K. --dequantize is the way back. Of a model in parts IN is any of them, OUT is one file.

    What was not used, left out or copied without being known is said on standard error. Exit codes: 0; 1 for a file
    that can't be read or converted, or an importance matrix or --tensor-type that is for none of its tensors; 2 for
    wrong arguments; 4 where an option gave no tensor its type.
    """  # fmt: skip
    force, dequantize, requantize = (given.pop(name) for name in ("force", "dequantize", "allow_requantize"))
    overrides = TypeOverrides(**given)
    if dequantize and (imatrix or requantize or overrides != TypeOverrides()):
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
        request = Request(found, overrides, weights, requantize, dequantize)
        with files.progress_bar(opened.tensors.values()) as advance:
            rows = convert_gguf(opened, out, request, say=_say, progress=advance)
    if not as_json:
        print_converted(rows, CONVERSION, "converted")
        return
    columns, total = ("name", "from", "to", *FIGURES, "imatrix"), entry_of(total_of(rows))
    entries = [{"shape": row.shape, **{name: entry_of(row)[name] for name in columns}} for row in rows]
    print_json({"tensors": entries, **{name: total[name] for name in FIGURES}})


def _say(line: str, in_part: bool = False) -> None:
    files.note(line, files.IN_PART if in_part else 0)


def _mix(kind: str | None, mixes: dict[str, Mix], default: str | None) -> Mix:
    if not (kind or default):
        raise click.UsageError(f"TYPE is missing: one of {', '.join(mixes)}")
    with files.refused(argument="TYPE"):
        return mix_of(kind or default or "", mixes)


def inspect_gguf(source: Path, *, as_json: bool) -> None:
    """Show the tensors and the metadata of a GGUF file: types, shapes, bytes, bits a weight."""
    with files.failures(files.called(source), source):
        opened = open_gguf(source, whole=False)
    if opened.missing:
        missing = f"parts of the model are missing: {some_of(opened.missing)}"
        _say(f"{missing}; shown are the tensors of the others", in_part=True)
    tensors: list[Entry] = [
        {"name": spec.name, "type": spec.kind.name, "shape": spec.shape, "bytes": spec.nbytes, "bits": spec.kind.bits}
        for spec in opened.tensors.values()
    ]
    fields = opened.fields.values()
    if as_json:
        values = {field.key: {"type": field.type_name, "value": field.value()} for field in fields}
        print_json({"metadata": values, "tensors": tensors})
        return
    columns = "key", "type", "value"
    print_table([{"key": each.key, "type": each.type_name, "value": _value_text(each)} for each in fields], columns)
    print_table(tensors, ("name", "type", "shape", "bytes", "bits"))
    specs = list(opened.tensors.values())
    kinds = dict.fromkeys(spec.kind for spec in specs)
    sums = [_sums(kind.name, [spec for spec in specs if spec.kind == kind]) for kind in kinds]
    print_table(sums, ("type", "tensors", "size", "bytes", "bits"), total=_sums("total", specs))


def _sums(name: str, specs: list[GgufTensor]) -> Entry:
    size, nbytes = sum(spec.size for spec in specs), sum(spec.nbytes for spec in specs)
    bits = 8 * nbytes / size if size else None
    return {"type": name, "tensors": len(specs), "size": size, "bytes": nbytes, "bits": bits}


def _value_text(field: MetadataField) -> str:
    """Return a value in one short line; of an array only the first elements."""
    value = field.value()
    if isinstance(value, list):
        value = ", ".join(map(str, value[:8])) + (", ..." if len(value) > 8 else "")
    line = printable(" ".join(str(value).split()))
    return line if len(line) <= LONGEST_VALUE else line[:LONGEST_VALUE] + "..."
