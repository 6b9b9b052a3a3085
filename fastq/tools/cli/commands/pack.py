"""`fastq pack`: pack the floats of a netCDF file or a zarr store into integers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

import fastq
from fastq.tools.cli.options import choice, force_option
from fastq.tools.cli.output_paths import WRITABLE
from fastq.tools.cli.science import (
    OF_WRITING,
    SRC,
    convert_store,
    drop_option,
    exclude_option,
    level_option,
    numbers_callback,
)
from fastq.tools.tensors.netcdf_zarr import PACKED


@click.command("pack", short_help="Pack floats of netCDF or zarr into integers.")
@click.argument("source", metavar="FILE", type=SRC)
@click.argument("out", metavar="OUT", type=WRITABLE)
@choice("--dtype", ("int16", "uint16", "int8", "uint8"), help="Integer dtype of variables without a --max-error.")
@click.option(
    "--max-error",
    multiple=True,
    metavar="NAME=N",
    callback=numbers_callback(float, needs_name=True),
    help="Largest absolute error of a variable; repeatable.",
)
@exclude_option
@drop_option
@level_option
@force_option
def pack(source: Path, out: Path, **options: Any) -> None:
    """Pack the float variables of a netCDF file or a zarr store into integers, and compress them.

    FILE ends in .nc, .nc4, .cdf or .h5, or is a folder of zarr; OUT ends in one of these suffixes, and is netCDF 4, or
    in .zarr. Any reader of the CF conventions unpacks the result by scale_factor, add_offset and _FillValue. A variable
    with a --max-error gets 8 bits if they are enough, else 16. Coordinates and their bounds, flags, times and packed
    integers stay as they are.
    """
    writing = {name: options.pop(name) for name in OF_WRITING}
    convert = functools.partial(fastq.xarray.pack, **options)
    convert_store(source, out, convert, {name: name for name in PACKED}, **writing)
