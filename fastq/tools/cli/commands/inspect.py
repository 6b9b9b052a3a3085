"""`fastq inspect`: show the tensors of files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from fastq.tools.cli.errors import name_of_path, one_line_errors
from fastq.tools.cli.exit_codes import IN_PART
from fastq.tools.cli.input_paths import READABLE
from fastq.tools.cli.notes import note, note_codes
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import json_option, print_json
from fastq.tools.cli.tables import Entry, cell_text, print_table
from fastq.tools.cli.terminal import print_line, printable
from fastq.tools.cli.waits import notice_if_slow
from fastq.tools.files.texts import count_text, some_of
from fastq.tools.gguf_files.gguf_file import GgufSpec, MetadataField, open_gguf
from fastq.tools.tensors.reading import tensors_of
from fastq.tools.tensors.tensor import Tensor

INSPECTED = "name", "shape", "scheme", "bytes", "lo", "hi", "nan", "infinite", "outliers"


@click.command(short_help="Show the tensors of files.")
@click.argument("source", metavar="FILE|DIR", type=READABLE)
@json_option
@click.option("--header", is_flag=True, help="Read names, shapes and sizes only, not the numbers.")
def inspect(source: Path, as_json: bool, header: bool) -> None:
    """Show the tensors of a .npy, .npz, .safetensors or .gguf file, of a model directory, or of a folder of such files.

    Variables of netCDF files and zarr stores are shown with their packing and the range of their values.

    The codes, scales and zero points of a quantized matrix are one tensor. The table has shapes, dtypes or schemes,
    bytes, ranges, counts of NaN and infinities, and outlier channels: for each axis, the indices whose largest
    magnitude is at least six times the median. For GGUF files it has types, bits per weight and metadata.

    Exit codes: 0; 1 for a file that can't be read; 2 for wrong arguments; 4 for a model with an invalid config.json,
    whose tensors are shown as they are stored.
    """
    if source.suffix == ".gguf":
        inspect_gguf(source, as_json=as_json)
        return
    with one_line_errors(name_of_path(source), source):
        by_name = _open_tensors(source)
        note_codes(source, by_name)
        tensors = list(by_name.values())
        packing = list(dict.fromkeys(key for tensor in tensors for key in tensor.packing))
        entries: list[Entry] = []
        with progress_bar(tensors) as advance:
            for tensor in tensors:
                entry: Entry = {
                    "name": tensor.name,
                    "shape": tensor.shape,
                    "scheme": tensor.scheme,
                    "bytes": tensor.nbytes,
                    **dict.fromkeys(packing),
                    **tensor.packing,
                }
                if tensor.has_numbers and not header:
                    entry |= asdict(tensor.extent(advance))
                else:
                    advance(tensor.nbytes, 0)
                entries.append(entry)
                advance(0, 1)
    if as_json:
        print_json({"tensors": entries})
        return
    print_table(entries, (*INSPECTED[:3], *packing, "bytes", *(() if header else INSPECTED[4:])))
    # in a line, too, since narrow terminals lack the column
    outliers = [entry for entry in entries if entry.get("outliers")]
    if outliers:
        named = some_of([f"{entry['name']} ({cell_text('outliers', entry['outliers'])})" for entry in outliers])
        print_line(f"{count_text(len(outliers), 'tensor')} with outlier channels: {printable(named)}")
    quantized = sum(tensor.is_quantized for tensor in tensors)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    print_line(f"{count_text(len(tensors), 'tensor')}, {nbytes:,} bytes, {quantized:,} quantized")


def _open_tensors(source: Path) -> dict[str, Tensor]:
    """Return the tensors of a file or folder by name; those of a model with an invalid config.json as stored."""
    try:
        with notice_if_slow(f"opening {name_of_path(source)}"):
            return tensors_of(source, say=note)
    except ValueError as error:
        try:
            as_stored = tensors_of(source, as_stored=True)
        except ValueError:
            raise error from None
        note(f"{name_of_path(source)}: {error}; its tensors are shown as they are stored", IN_PART)
        return as_stored


SHOWN_ELEMENTS = 8  # of an array in the metadata of a GGUF file
LONGEST_VALUE = 60  # most characters of a field's value in a table


def inspect_gguf(source: Path, *, as_json: bool) -> None:
    """Show the tensors and the metadata of a GGUF file: types, shapes, bytes, bits per weight."""
    with one_line_errors(name_of_path(source), source):
        opened = open_gguf(source, needs_all_parts=False)
    if opened.missing:
        missing = f"parts of the model are missing: {some_of(opened.missing)}"
        note(f"{missing}; the tensors of the others are shown", IN_PART)
    tensors: list[Entry] = [
        {"name": spec.name, "type": spec.kind.name, "shape": spec.shape, "bytes": spec.nbytes, "bits": spec.kind.bits}
        for spec in opened.tensors.values()
    ]
    fields = opened.fields.values()
    if as_json:
        values = {field.key: {"type": field.type_name, "value": field.value()} for field in fields}
        print_json({"metadata": values, "tensors": tensors})
        return
    rows = [{"key": field.key, "type": field.type_name, "value": _value_text(field)} for field in fields]
    print_table(rows, ("key", "type", "value"))
    print_table(tensors, ("name", "type", "shape", "bytes", "bits"))
    specs = list(opened.tensors.values())
    kinds = dict.fromkeys(spec.kind for spec in specs)
    sums = [_sums(kind.name, [spec for spec in specs if spec.kind == kind]) for kind in kinds]
    print_table(sums, ("type", "tensors", "values", "bytes", "bits"), total=_sums("total", specs))


def _sums(name: str, specs: list[GgufSpec]) -> Entry:
    """Return the sums of some tensors."""
    size = sum(spec.size for spec in specs)
    nbytes = sum(spec.nbytes for spec in specs)
    bits = 8 * nbytes / size if size else None
    return {"type": name, "tensors": len(specs), "values": size, "bytes": nbytes, "bits": bits}


def _value_text(field: MetadataField) -> str:
    """Return a value as one short line; an array is cut after its first elements."""
    value = field.value()
    if isinstance(value, list):
        more = ", ..." if len(value) > SHOWN_ELEMENTS else ""
        text = ", ".join(map(str, value[:SHOWN_ELEMENTS])) + more
    else:
        text = str(value)
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST_VALUE else line[:LONGEST_VALUE] + "..."
