"""`fastq dequantize`: restore floats from a quantized file."""

from __future__ import annotations

from pathlib import Path

import click

from fastq.tools.cli.errors import name_of_path, one_line_errors
from fastq.tools.cli.input_paths import FOLDER, InputPath
from fastq.tools.cli.options import force_option
from fastq.tools.cli.output_paths import WRITABLE, check_out, with_suffix
from fastq.tools.cli.progress import progress_bar
from fastq.tools.files.containers import SOURCES, open_source
from fastq.tools.files.texts import count_text
from fastq.tools.gguf_files.gguf_file import open_gguf
from fastq.tools.tensors.dequantize_file import dequantize_file
from fastq.tools.tensors.reading import tensors_of

WITH_BLOCKS = {".gguf": "metadata, too: fastq gguf IN OUT.gguf --dequantize writes one"}
TO_DEQUANTIZE = InputPath(
    *(".safetensors", ".npz", ".gguf"),
    advice={
        FOLDER: "fastq convert {} OUT --dequantize restores a model directory",
        ".npy": "fastq quantize writes .safetensors and .npz",
    },
)


@click.command(short_help="Restore floats from a quantized file.")
@click.argument("source", metavar="IN", type=TO_DEQUANTIZE)
@click.argument("out", metavar="OUT", type=WRITABLE, callback=with_suffix(*SOURCES, hint=WITH_BLOCKS))
@force_option
def dequantize(source: Path, out: Path, force: bool) -> None:
    """Restore tensors with the original names, shapes and dtypes from a quantized file.

    IN is a file of `fastq quantize` or `QuantizedArray.save`, or a GGUF file, whose blocks become F32 under the names
    that llama.cpp gives tensors. OUT is a .safetensors or .npz file, or a .npy file if IN holds a single array. For
    model directories use fastq convert --dequantize, for a GGUF file as OUT fastq gguf --dequantize.
    """
    check_out({"IN": source}, out, force=force)
    with one_line_errors(name_of_path(source), out):
        opened = open_gguf(source) if source.suffix == ".gguf" else open_source(source)
        with progress_bar(tensors_of(source).values()) as advance:
            count = dequantize_file(opened, out, progress=advance)
    before, after = source.stat().st_size, out.stat().st_size
    click.echo(f"{count_text(count, 'tensor')} dequantized: {before:,} -> {after:,} bytes, {before / after:.2f} x")
