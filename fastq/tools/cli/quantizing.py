"""The commands for files of tensors, GGUF files too: quantize one, restore floats from it, show what it holds."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import click

from fastq.formats.conventions import CONVENTIONS
from fastq.formats.gguf import LEAST_ERROR, RANGES, WRITTEN
from fastq.formats.qtypes import FAMILIES, QTYPES, as_qtype
from fastq.system.arguments import did_you_mean, shown
from fastq.tools.cli import files
from fastq.tools.cli.report import FIGURES, Shown, operands, print_json, show, table_options, total_text
from fastq.tools.cli.tables import Entry, print_line, print_table, printable
from fastq.tools.files.containers import SOURCES, open_source
from fastq.tools.files.patterns import check_searched
from fastq.tools.files.pipeline import count_text, some_of
from fastq.tools.files.records import Scheme
from fastq.tools.gguf_files import imatrix as imatrices
from fastq.tools.gguf_files.container import GgufTensor, MetadataField, open_gguf
from fastq.tools.gguf_files.converting import Request, convert_gguf
from fastq.tools.gguf_files.mixes import FLOAT_MIXES, MIXES, TypeOverrides, mix_of
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES
from fastq.tools.tensors.quantizing import Selection, binarize_file, dequantize_file, quantize_file
from fastq.tools.tensors.tensors import tensors_of

TO_GGUF = "convert_hf_to_gguf.py of llama.cpp makes GGUF"
IN = files.Source(".gguf", ways=dict.fromkeys((files.FOLDER, ".safetensors"), TO_GGUF))
LONGEST_VALUE = 60  # most characters of a field's value in a table
CONVERSION = "name", "shape", "from", "bytes_before", "to", "bytes", "bits", "sqnr_db"
CONVERSION_FIELDS = "name", "shape", "from", "to", *FIGURES, "imatrix"


def _gguf_file(ctx: click.Context, param: click.Parameter, path: Path) -> Path | None:
    """Return OUT of `fastq gguf`; for a type in its place the error says that OUT is missing."""
    if str(path).upper() in MIXES | FLOAT_MIXES:
        raise click.BadParameter(f"{str(path)!r} is a TYPE, which follows OUT")
    return files.with_suffix(".gguf")(ctx, param, path)


class Format(click.Choice[str]):
    """The name of a code format; the error for another name lists the families and the name that was probably meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        try:
            return as_qtype(value).name
        except TypeError as error:
            self.fail(str(error).removeprefix("dtype "), param, ctx)


def _axis(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    """Return an axis as a number or 'none'; None is an option that was not given."""
    try:
        return text if text in (None, "none") else int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither an integer nor 'none'") from None


def _scheme(
    dtype: str, axis: int | str | None, block_size: int, symmetric: bool, method: str, convention: str
) -> Scheme:
    qtype = as_qtype(dtype)
    try:
        CONVENTIONS[convention].check_format(qtype)
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
    return Scheme(dtype, axis if isinstance(axis, int) else None, block_size, symmetric, method, convention)


def _schemes_in(path: Path) -> dict[str, Scheme]:
    if given := [name for name in OF_SCHEME if files.is_given(name)]:
        raise click.UsageError(f"--like has the schemes; it cannot be combined with --{given[0].replace('_', '-')}")
    return files.suggested(path, _of_entry)


def _of_entry(scheme: Any) -> Scheme:
    if not isinstance(scheme, dict):
        raise ValueError(f"{shown(scheme)} is a scheme of another command")
    return _suggested(**scheme)


def _suggested(dtype: str, axis: Any, block_size: int, symmetric: bool, range: str, convention: str) -> Scheme:
    """Return a scheme of `fastq suggest` under the names of the options."""
    qtype = as_qtype(dtype)
    along = "none" if axis is None and not qtype.block_size else axis
    is_symmetric = symmetric or bool(qtype.element or qtype.block_size)
    return _scheme(dtype, along, block_size, is_symmetric, range, convention)


OF_SCHEME = "dtype", "axis", "block_size", "symmetric", "method", "convention"
# conventions whose zero points are codes and whose scales are of the compute type, as files hold them; below 0 only
# where compressed-tensors has them
_AS_STORED = "integer", "compute", "magnitude"
STORABLE = [r.name for r in CONVENTIONS.values() if (r.zero_point, r.stored_type, r.symmetric_extreme) == _AS_STORED]
FORMAT_HELP = f"Code format: {FAMILIES}."
LIKE_HELP = "Quantize only the tensors of FILE, each with its scheme there; FILE is the output of suggest --json."
AXIS_HELP = "Channel axis, or axis along which blocks run; none for one scale per tensor.  [default: 0; for blocks -1]"
CONVENTION_HELP = "System whose arithmetic to follow: {}. fastq conventions prints their formulas."
QUANTIZED = ".safetensors", ".npz"  # files with codes and scales
WITH_SCALES = {".npy": "one array, but codes need scales: numpy.load reads .npz, too"}
TO_QUANTIZE = files.Source(
    *SOURCES,
    ways={
        files.FOLDER: "fastq convert {} OUT --scheme W8A16 quantizes a model directory",
        ".gguf": "fastq gguf {} OUT.gguf --type Q4_K_M quantizes it",
    },
)
WITH_BLOCKS = {".gguf": "metadata, too: fastq gguf IN OUT.gguf --dequantize writes one"}
TO_DEQUANTIZE = files.Source(
    *(".safetensors", ".npz", ".gguf"),
    ways={
        files.FOLDER: "fastq convert {} OUT --dequantize restores a model directory",
        ".npy": "fastq quantize writes .safetensors and .npz",
    },
)


@click.command(short_help="Quantize a .safetensors, .npy or .npz file.")
@click.argument("source", metavar="IN", type=TO_QUANTIZE)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=files.with_suffix(*QUANTIZED, hint=WITH_SCALES))
@files.patterns("--include", help="Quantize only tensors whose names PATTERN matches; repeatable.")
@files.patterns("--exclude", help="Do not quantize tensors whose names PATTERN matches; repeatable.")
@click.option("--all", "vectors", is_flag=True, help="Also quantize vectors and scalars of a file of tensors.")
@files.like_option("--like", help=LIKE_HELP)
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
@files.range_option
@files.imatrix_option
@files.choice("--convention", STORABLE, metavar="NAME", help=CONVENTION_HELP.format(", ".join(STORABLE)))
@files.nan_option
@table_options
@files.force_option
def quantize(source: Path, out: Path, vectors: bool, like: Path | None, nan: str, force: bool, **given: Any) -> None:
    """Quantize the weights of a .safetensors or .npz file, or the array of a .npy file.

    OUT has codes, scales and zero points under the names that compressed-tensors uses: a .safetensors file, or a .npz
    file for numpy.load. Floating-point tensors of two or more dimensions are quantized; everything else (biases, norm
    weights) is copied, and the table shows the reason. With --all, each vector and scalar gets one scale, unless
    --block-size or the format cuts vectors into blocks. PATTERN is the name of a tensor or of its module, a shell
    pattern such as '*.weight', or re: and a regular expression; it must match a tensor. For model directories use fastq
    convert, for GGUF files fastq gguf. In Python, fastq.load reads OUT.
    """
    shown = Shown.taken(given)
    include, exclude, imatrix = (given.pop(name) for name in ("include", "exclude", "imatrix"))
    given["method"] = files.method_with(imatrix, given["method"])
    scheme = _scheme(**given)
    sources = {"IN": source, "--like": like, "--imatrix": imatrix}
    files.check_out(sources, out, force=force, report=shown.report)
    vectors = vectors or source.suffix == ".npy"
    schemes = _schemes_in(like) if like else None
    selection = Selection(include or ("*",), exclude, vectors, schemes)
    with files.failures(files.called(source), out):
        opened = open_source(source)
        by_channel = isinstance(given["axis"], int) and not given["block_size"]
        if by_channel and all(len(spec.shape) < 2 for spec in opened.tensors.values()):
            raise click.UsageError("--axis is for arrays of two axes or more: vectors and scalars get one scale each")
        weights = None if imatrix is None else imatrices.read(imatrix)
        options: dict[str, Any] = {"nan": nan, "imatrix": weights, "say": files.note}
        with files.progress_bar(opened.tensors.values()) as advance:
            rows = quantize_file(opened, out, scheme, selection, progress=advance, **options)
    show(shown, rows, title=f"{source.name} quantized", errors_of=operands(source, out))
    for row in rows:
        if row.remark:
            files.note(f"{row.name}: {row.remark}")


@click.command(short_help="Restore floats from a quantized file.")
@click.argument("source", metavar="IN", type=TO_DEQUANTIZE)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=files.with_suffix(*SOURCES, hint=WITH_BLOCKS))
@files.force_option
def dequantize(source: Path, out: Path, force: bool) -> None:
    """Restore tensors with the original names, shapes and dtypes from a quantized file.

    IN is a file of `fastq quantize` or `QuantizedArray.save`, or a GGUF file, whose blocks become F32 under the names
    that llama.cpp gives tensors. OUT is a .safetensors or .npz file, or a .npy file if IN holds a single array. For
    model directories use fastq convert --dequantize, for a GGUF file as OUT fastq gguf --dequantize.
    """
    files.check_out({"IN": source}, out, force=force)
    with files.failures(files.called(source), out):
        opened = open_gguf(source) if source.suffix == ".gguf" else open_source(source)
        with files.progress_bar(tensors_of(source).values()) as advance:
            count = dequantize_file(opened, out, progress=advance)
    before, after = source.stat().st_size, out.stat().st_size
    click.echo(f"{count_text(count, 'tensor')} dequantized: {before:,} -> {after:,} bytes, {before / after:.2f} x")


VECTORS = files.Source(".npy", ways={".npz": "give one of its arrays as .npy"})


@click.command(short_help="Keep one bit of each number of a .npy file.")
@click.argument("source", metavar="IN", type=VECTORS)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=files.with_suffix(".npy"))
@click.option("--threshold", type=float, default=0.0, metavar="N", help="Number above which the bit is 1.")
@click.option("--inclusive", is_flag=True, help="Whether the bit of the threshold itself is 1, too.")
@files.choice("--dtype", ["uint8", "int8"], help='Dtype of the bytes: "ubinary" and "binary" of sentence-transformers.')
@files.choice(
    "--bitorder",
    ["big", "little"],
    help="Bit of the first of eight numbers: the highest for big, the lowest for little.",
)
@files.nan_option
@files.force_option
def binarize(source: Path, out: Path, force: bool, **options: Any) -> None:
    """Keep one bit of each number, whether it is positive, and pack eight bits into a byte, for searching embeddings.

    OUT is a .npy file with a row of bytes for each vector, as from fastq.binarize: the same as in
    sentence-transformers, usearch and pgvector. With --bitorder little the same as in sqlite-vec and Redis, with
    --inclusive, too, the same as in IndexLSH of faiss.
    """
    files.check_out({"IN": source}, out, force=force)
    with files.failures(files.called(source), out):
        opened = open_source(source)
        with files.progress_bar(opened.tensors.values()) as advance:
            row = binarize_file(opened, out, progress=advance, **options)
    print_line(total_text([row]))


def _known_type(text: str) -> str:
    """Return the name of a type of tensors in the spelling of the table; raise ValueError for another one."""
    if text.upper() not in TENSOR_TYPES:
        made = [name for name, kind in TENSOR_TYPES.items() if kind.is_float or name in WRITTEN]
        raise ValueError(f"{text!r} is not a type of tensors: {', '.join(made)}{did_you_mean(text, made, {})}")
    return text.upper()


def _type_name(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    with files.refused():
        return _known_type(text) if text is not None else None


def _named_types(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = []
    for pattern, kind in files.pairs_of(texts, "PATTERN=TYPE"):
        with files.regular_expression(pattern):
            check_searched(pattern)
        found.append((pattern, _type_name(ctx, param, kind) or ""))
    return tuple(found)


WEIGHTS_HELP = "Weights of the columns for the search for scales: a file of llama-imatrix, .safetensors or .npz."
TENSOR_TYPE = (
    "Use TYPE for tensors that PATTERN matches, also as a regex within names; repeatable, the first match counts."
)
type_option = functools.partial(click.option, callback=_type_name, metavar="TYPE")


@click.command(short_help="Quantize a GGUF file.")
@click.argument("source", metavar="IN", type=IN)
@click.argument("out", metavar="OUT", type=files.WRITABLE, callback=_gguf_file)
@click.argument("mix", metavar="[TYPE]", required=False)
@click.option(
    "--type",
    "kind",
    metavar="TYPE",
    help=f"TYPE as an option instead of the third argument: {', '.join(MIXES | FLOAT_MIXES)}.",
)
@click.option("--dequantize", is_flag=True, help="Restore floats from all blocks: F32, or F16 or BF16 if that is TYPE.")
@click.option(
    "--allow-requantize",
    is_flag=True,
    help="Also quantize tensors that are in blocks already; both steps lose precision.",
)
@click.option("--imatrix", type=files.EXISTING, metavar="FILE", help=WEIGHTS_HELP)
@files.choice(
    "--range",
    RANGES,
    "method",
    help=f"minmax takes scales as ggml does; mse searches for less error, in {', '.join(LEAST_ERROR)}.",
)
@click.option("--pure", is_flag=True, help="Use one type for all tensors instead of the mix of llama-quantize.")
@files.repeatable("--tensor-type", "tensor_types", callback=_named_types, metavar="PATTERN=TYPE", help=TENSOR_TYPE)
@files.like_option(
    "--like", help="Give each tensor its type in FILE, the output of suggest --json; TYPE is for the others."
)
@type_option("--output-tensor-type", "output_type", help="Type to use for output.weight.")
@type_option("--token-embedding-type", "embedding_type", help="Type to use for the token embeddings.")
@table_options
@files.force_option
def gguf(source: Path, out: Path, mix: str | None, kind: str | None, imatrix: Path | None, **given: Any) -> None:
    """Quantize a GGUF file of F32, F16 or BF16 as llama-quantize does.

    OUT is a GGUF file that llama.cpp runs, with the metadata of IN. TYPE is a mix: Q4_K_M has most tensors in Q4_K and
    the sensitive ones in Q6_K. --dequantize restores floats. If a model is in parts, IN is any part, and OUT is one
    file.

    Standard error lists the options without effect, the tensors left out and those of unknown kinds, which are copied.
    Exit codes: 0; 1 for a file that can't be read or converted, or for an importance matrix or --tensor-type that
    matches no tensor; 2 for wrong arguments; 4 if a type of an option or --range mse was used for no tensor.
    """  # fmt: skip
    shown = Shown.taken(given)
    force, dequantize, requantize = (given.pop(name) for name in ("force", "dequantize", "allow_requantize"))
    method = given.pop("method")
    like = given.pop("like")
    if like:
        named = files.suggested(like, _known_type)
        given["tensor_types"] += tuple((f"re:{re.escape(name)}$", each) for name, each in named.items())
    overrides = TypeOverrides(**given)
    if dequantize and (imatrix or requantize or method != "minmax" or overrides != TypeOverrides()):
        raise click.UsageError("--dequantize can be combined with F32, F16 or BF16 only")
    if mix and kind:
        raise click.UsageError(f"TYPE is given twice, as {mix} and as --type {kind}")
    mixes = FLOAT_MIXES if dequantize else MIXES | FLOAT_MIXES
    name = mix or kind or ("F32" if dequantize else "Q8_0" if like else "")
    if not name:
        raise click.UsageError(f"TYPE is missing: one of {', '.join(mixes)}")
    with files.refused(argument="TYPE"):
        found = mix_of(name, mixes)
    sources = {"IN": source, "--imatrix": imatrix, "--like": like}
    files.check_out(sources, out, force=force, report=shown.report)
    with files.failures(files.called(source), out):
        opened = open_gguf(source)
        for part in opened.parts:
            files.check_replaceable(out, "OUT", {"a part of IN": part})
        weights = (str(imatrix), imatrices.read(imatrix)) if imatrix else None
        request = Request(found, overrides, weights, method, requantize, dequantize)
        with files.progress_bar(opened.tensors.values()) as advance:
            rows = convert_gguf(opened, out, request, say=_say, progress=advance)
    about: dict[str, Any] = {"fields": CONVERSION_FIELDS, "title": f"{source.name} converted", "done": "converted"}
    show(shown, rows, CONVERSION, **about, errors_of=operands(source, out))


def _say(line: str, in_part: bool = False) -> None:
    files.note(line, files.IN_PART if in_part else 0)


def inspect_gguf(source: Path, *, as_json: bool) -> None:
    """Show the tensors and the metadata of a GGUF file: types, shapes, bytes, bits per weight."""
    with files.failures(files.called(source), source):
        opened = open_gguf(source, whole=False)
    if opened.missing:
        missing = f"parts of the model are missing: {some_of(opened.missing)}"
        _say(f"{missing}; the tensors of the others are shown", in_part=True)
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
    print_table(sums, ("type", "tensors", "values", "bytes", "bits"), total=_sums("total", specs))


def _sums(name: str, specs: list[GgufTensor]) -> Entry:
    size = sum(spec.size for spec in specs)
    nbytes = sum(spec.nbytes for spec in specs)
    bits = 8 * nbytes / size if size else None
    return {"type": name, "tensors": len(specs), "values": size, "bytes": nbytes, "bits": bits}


def _value_text(field: MetadataField) -> str:
    """Return a value as one short line; an array is cut after its first elements."""
    value = field.value()
    if isinstance(value, list):
        value = ", ".join(map(str, value[:8])) + (", ..." if len(value) > 8 else "")
    line = printable(" ".join(str(value).split()))
    return line if len(line) <= LONGEST_VALUE else line[:LONGEST_VALUE] + "..."
