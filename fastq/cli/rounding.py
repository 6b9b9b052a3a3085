"""The command for science data: round the floats of netCDF and zarr to the bits that have information."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import fastq
from fastq.cli import files
from fastq.cli.tables import print_table

NETCDF, ZARR = (".nc", ".nc4", ".cdf", ".h5"), ".zarr"
MARKS = "zarr.json", ".zgroup"  # of a zarr group
SRC = files.Source(*NETCDF, files.FOLDER)
WAYS = "keepbits", "digits", "max_error", "information"
COLUMNS = "variable", "dtype", "keepbits", "digits"
NEEDED = "fastq bitround needs xarray with netCDF4 or zarr: pip install xarray dask netCDF4 zarr"
OF_ALL = "Of all variables, or of one as NAME=NUMBER; repeatable."


def _numbers(kind: Callable[[str], Any]) -> Callable[..., Any]:
    """Return what reads the texts of an option: a number for all variables, or a dict by their names."""

    def read(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
        pairs = [text.rpartition("=") for text in texts]
        with files.refused(lambda error: f"{' '.join(texts)!r} is not NUMBER, nor NAME=NUMBER for each variable"):
            numbers = {name: kind(number) for name, _, number in pairs}
        if "" in numbers and len(texts) > 1:
            raise click.BadParameter("one number for all variables, or NAME=NUMBER for each of some")
        return numbers.get("", numbers or None)

    return read


def _number_option(name: str, kind: Callable[[str], Any], text: str) -> Callable[[Any], Any]:
    return click.option(name, multiple=True, metavar="[NAME=]N", callback=_numbers(kind), help=f"{text} {OF_ALL}")


@click.command("bitround", short_help="Round floats of netCDF or zarr to fewer bits.")
@click.argument("source", metavar="FILE", type=SRC)
@click.argument("out", metavar="OUT", type=files.WRITABLE)
@_number_option("--keepbits", int, "Bits of the mantissa that are kept.")
@_number_option("--digits", int, "Significant decimal digits that are kept.")
@_number_option("--max-error", float, "How far values may be off.")
@_number_option("--information", float, "Part of the information that is kept, as 0.99.")
@click.option("--dim", metavar="NAME", help="Along which --information compares neighbours; else the last one.")
@files.choice("--convention", ("numcodecs", "netcdf"), help="Where a tie goes: to even, or away from zero.")
@click.option("--level", type=click.IntRange(0, 9), default=4, show_default=True, help="Of zlib in a netCDF file.")
@files.force_option
def bitround(source: Path, out: Path, level: int, force: bool, **options: Any) -> None:
    """Round the float variables of a netCDF file or a zarr store to fewer bits, and compress them.

    FILE ends in .nc, .nc4, .cdf or .h5, or is a folder of zarr; OUT ends in one of these, or in .zarr. Coordinates,
    what belongs to them, flags, times, gaps and packed integers stay as they are. Attributes tell what was done, as the
    CF conventions say.
    """
    if not any(map(files.is_given, WAYS)):
        raise click.UsageError("one of --keepbits, --digits, --max-error and --information is missing")
    _check_out(source, out, force)
    try:
        xarray = importlib.import_module("xarray")
    except ModuleNotFoundError as error:
        raise click.ClickException(NEEDED) from error
    with files.failures(source, out), _opened(xarray, source) as ds:
        with files.refused(kinds=(TypeError, ValueError), argument="FILE"):
            rounded = fastq.xarray.bitround(ds, **options)
        names = [name for name in ds.data_vars if _is_told(rounded[name])]
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            _write(rounded, source, Path(folder) / out.name, names, level)
            if out.is_dir():
                shutil.rmtree(out)
            os.replace(Path(folder) / out.name, out)
    told = [
        {
            "variable": str(name),
            "dtype": str(rounded[name].dtype),
            "keepbits": rounded[name].attrs.get("quantization_nsb"),
            "digits": rounded[name].attrs.get("quantization_nsd"),
        }
        for name in names
    ]
    print_table(told, COLUMNS)
    click.echo(f"{_nbytes(source):,} bytes became {_nbytes(out):,}")


def _check_out(source: Path, out: Path, force: bool) -> None:
    """Refuse an OUT of another kind, or one that is there, or is no store that another may replace."""
    if out.suffix not in (*NETCDF, ZARR):
        raise click.BadParameter(f"{out.name!r} must end in {', '.join(NETCDF)} or {ZARR}", param_hint="'OUT'")
    if out.suffix != ZARR:
        files.check_out({"FILE": source}, out, force=force)
        return
    is_store = any(os.path.lexists(out / mark) for mark in MARKS)
    if os.path.lexists(out) and (not force or not is_store or os.path.samefile(source, out)):
        reason = "exists; --force replaces it" if is_store and not force else "is FILE itself, or no store of zarr"
        raise click.BadParameter(f"{out.name!r} {reason}", param_hint="'OUT'")
    if not os.path.isdir(out.parent):
        raise click.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="'OUT'")


@contextlib.contextmanager
def _opened(xarray: Any, source: Path) -> Iterator[Any]:
    """Open a file or a store as it is stored, in chunks where dask is installed."""
    how: dict[str, Any] = {"engine": "zarr", "consolidated": False} if source.is_dir() else {}
    chunks: dict[str, int] | None = {} if importlib.util.find_spec("dask") else None
    if len(groups := xarray.open_groups(source, decode_cf=False, **how)) > 1:
        names = ", ".join(sorted(name for name in groups if name != "/"))
        raise ValueError(f"it has groups, of which only the first one would be written: {names}")
    with xarray.open_dataset(source, decode_cf=False, chunks=chunks, **how) as ds:
        yield ds


def _is_told(variable: Any) -> bool:
    return str(variable.attrs.get("quantization", "")).startswith("quantization_")


def _write(ds: Any, source: Path, out: Path, names: list[Any], level: int) -> None:
    """Write a Dataset, what was rounded compressed, in the chunks of the source if that is of the same kind."""
    if source.is_dir() != (out.suffix == ZARR):
        ds = ds.drop_encoding()
    if out.suffix == ZARR:
        ds.to_zarr(out, consolidated=False)
        return
    noted = {name: ds[name].encoding.get("chunksizes") for name in names}
    packed = {"zlib": level > 0, "complevel": level, "shuffle": True}
    ds.to_netcdf(out, encoding={name: {"chunksizes": sizes, **packed} for name, sizes in noted.items()})


def _nbytes(path: Path) -> int:
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
