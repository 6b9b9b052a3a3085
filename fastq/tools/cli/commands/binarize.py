"""`fastq binarize`: keep one bit of each number of a .npy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fastq.tools.cli.errors import name_of_path, one_line_errors
from fastq.tools.cli.input_paths import InputPath
from fastq.tools.cli.options import choice, force_option, nan_option
from fastq.tools.cli.output_paths import WRITABLE, check_out, with_suffix
from fastq.tools.cli.progress import progress_bar
from fastq.tools.cli.report import total_text
from fastq.tools.cli.terminal import print_line
from fastq.tools.files.containers import open_source
from fastq.tools.tensors.binarize_file import binarize_file

VECTORS = InputPath(".npy", advice={".npz": "give one of its arrays as .npy"})


@click.command(short_help="Keep one bit of each number of a .npy file.")
@click.argument("source", metavar="IN", type=VECTORS)
@click.argument("out", metavar="OUT", type=WRITABLE, callback=with_suffix(".npy"))
@click.option("--threshold", type=float, default=0.0, metavar="N", help="Number above which the bit is 1.")
@click.option("--inclusive", is_flag=True, help="Whether the bit of the threshold itself is 1, too.")
@choice("--dtype", ["uint8", "int8"], help='Dtype of the bytes: "ubinary" and "binary" of sentence-transformers.')
@choice(
    "--bitorder",
    ["big", "little"],
    help="Bit of the first of eight numbers: the highest for big, the lowest for little.",
)
@nan_option
@force_option
def binarize(source: Path, out: Path, force: bool, **options: Any) -> None:
    """Keep one bit of each number, whether it is positive, and pack eight bits into a byte, for searching embeddings.

    OUT is a .npy file with a row of bytes for each vector, as from fastq.binarize: the same as in
    sentence-transformers, usearch and pgvector. With --bitorder little the same as in sqlite-vec and Redis, with
    --inclusive, too, the same as in IndexLSH of faiss.
    """
    check_out({"IN": source}, out, force=force)
    with one_line_errors(name_of_path(source), out):
        opened = open_source(source)
        with progress_bar(opened.tensors.values()) as advance:
            converted = binarize_file(opened, out, progress=advance, **options)
    print_line(total_text([converted]))
