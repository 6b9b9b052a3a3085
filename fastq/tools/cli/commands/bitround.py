"""`fastq bitround`: round the floats of a netCDF file or a zarr store to fewer bits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

import fastq
from fastq.tools.cli.options import choice, force_option, is_given
from fastq.tools.cli.output_paths import WRITABLE
from fastq.tools.cli.science import (
    OF_WRITING,
    SRC,
    convert_store,
    drop_option,
    exclude_option,
    level_option,
    number_option,
)
from fastq.tools.tensors.netcdf_zarr import ROUNDED

PRECISIONS = "keepbits", "digits", "max_error", "information"  # options, one of which is needed
COLUMNS = dict(zip(("keepbits", "digits"), ROUNDED, strict=True))  # and the attributes with their values


@click.command("bitround", short_help="Round floats of netCDF or zarr to fewer bits.")
@click.argument("source", metavar="FILE", type=SRC)
@click.argument("out", metavar="OUT", type=WRITABLE)
@number_option("--keepbits", int, "Number of mantissa bits to keep.")
@number_option("--digits", int, "Number of significant decimal digits to keep.")
@number_option("--max-error", float, "Largest absolute error.")
@number_option("--information", float, "Share of the information to keep, such as 0.99.")
@click.option(
    "--dim", metavar="NAME", help="Dimension along which --information compares neighbours; by default the last one."
)
@choice("--convention", ("numcodecs", "netcdf"), help="Rounding of ties: numcodecs to even, netcdf away from zero.")
@exclude_option
@drop_option
@level_option
@force_option
def bitround(source: Path, out: Path, **options: Any) -> None:
    """Round the float variables of a netCDF file or a zarr store to fewer bits, and compress them.

    FILE ends in .nc, .nc4, .cdf or .h5, or is a folder of zarr; OUT ends in one of these suffixes, and is netCDF 4, or
    in .zarr. Coordinates and their bounds, flags, times, missing values and packed integers stay as they are.
    Attributes of the CF conventions describe the rounding.
    """
    if not any(map(is_given, PRECISIONS)):
        raise click.UsageError("one of --keepbits, --digits, --max-error and --information is missing")
    if is_given("dim") and not is_given("information"):
        raise click.UsageError("--dim is for --information")
    writing = {name: options.pop(name) for name in OF_WRITING}
    convert_store(source, out, functools.partial(fastq.xarray.bitround, **options), COLUMNS, **writing)
