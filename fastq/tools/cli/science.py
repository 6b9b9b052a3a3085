"""Commands for science data: the floats of netCDF and zarr rounded to fewer bits, or packed into integers."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import fastq
from fastq.tools.cli import files
from fastq.tools.cli.tables import Entry, print_table
from fastq.tools.cli.waits import notice_if_slow
from fastq.tools.files.patterns import check_patterns, fits
from fastq.tools.files.pipeline import count_text
from fastq.tools.tensors import copies
from fastq.tools.tensors.stores import (
    MARKS,
    NETCDF,
    PACKED,
    ROUNDED,
    ZARR,
    groups_of,
    library,
    shortest,
    special,
    unreadable,
    way_to,
)

SRC = files.Source(*NETCDF, files.FOLDER, files.ZARR_STORE)
WAYS = "keepbits", "digits", "max_error", "information"
COLUMNS = dict(zip(("keepbits", "digits"), ROUNDED, strict=True))  # and the attributes with their values
# characters are read as strings, since writing them would add an axis
AS_STORED = dict.fromkeys(("mask_and_scale", "decode_times", "decode_timedelta", "decode_coords"), False)
OFF = "Largest absolute error of a variable; repeatable."
OF_WRITING = "force", "level", "exclude", "drop"  # options that are not those of a function
ADVICE_IN_PYTHON = ": name it as _FillValue in attrs"
OF_ALL = "N holds for all variables, NAME=N for one; repeatable."


def _numbers(kind: Callable[[str], Any], named: bool = False) -> Callable[..., Any]:
    """Return the callback of an option: it returns one number for all variables, or a dict of numbers by name."""

    def read(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
        pairs = [text.rpartition("=") for text in texts]
        wanted = "NAME=NUMBER" if named else "NUMBER, nor NAME=NUMBER for each variable"
        with files.refused(lambda error: f"{' '.join(texts)!r} is not {wanted}"):
            numbers = {name: kind(number) for name, _, number in pairs}
        if "" in numbers and named:
            raise click.BadParameter(f"{texts[0]!r} is not {wanted}")
        if len(texts) > 1 and ("" in numbers or len(numbers) < len(texts)):
            one = "" if named else "one number for all variables, or "
            raise click.BadParameter(f"give {one}NAME=NUMBER once for each of some variables")
        return numbers.get("", numbers or None)

    return read


def _number_option(name: str, kind: Callable[[str], Any], text: str) -> Callable[[Any], Any]:
    return click.option(name, multiple=True, metavar="[NAME=]N", callback=_numbers(kind), help=f"{text} {OF_ALL}")


LEVEL = "Compression level of zlib in a netCDF file; 0 does not compress."
EXCLUDED = "Leave variables whose names PATTERN matches as they are; repeatable."
DROPPED = "Leave variables whose names PATTERN matches out of OUT; repeatable."
exclude_option = files.patterns("--exclude", help=EXCLUDED)
drop_option = files.patterns("--drop", help=DROPPED)
level_option = click.option("--level", type=click.IntRange(0, 9), default=4, show_default=True, help=LEVEL)


@click.command("bitround", short_help="Round floats of netCDF or zarr to fewer bits.")
@click.argument("source", metavar="FILE", type=SRC)
@click.argument("out", metavar="OUT", type=files.WRITABLE)
@_number_option("--keepbits", int, "Number of mantissa bits to keep.")
@_number_option("--digits", int, "Number of significant decimal digits to keep.")
@_number_option("--max-error", float, "Largest absolute error.")
@_number_option("--information", float, "Share of the information to keep, such as 0.99.")
@click.option(
    "--dim", metavar="NAME", help="Dimension along which --information compares neighbours; by default the last one."
)
@files.choice(
    "--convention", ("numcodecs", "netcdf"), help="Rounding of ties: numcodecs to even, netcdf away from zero."
)
@exclude_option
@drop_option
@level_option
@files.force_option
def bitround(source: Path, out: Path, **options: Any) -> None:
    """Round the float variables of a netCDF file or a zarr store to fewer bits, and compress them.

    FILE ends in .nc, .nc4, .cdf or .h5, or is a folder of zarr; OUT ends in one of these suffixes, and is netCDF 4, or
    in .zarr. Coordinates and their bounds, flags, times, missing values and packed integers stay as they are.
    Attributes of the CF conventions describe the rounding.
    """
    if not any(map(files.is_given, WAYS)):
        raise click.UsageError("one of --keepbits, --digits, --max-error and --information is missing")
    if files.is_given("dim") and not files.is_given("information"):
        raise click.UsageError("--dim is for --information")
    ways = {name: options.pop(name) for name in OF_WRITING}
    _convert(source, out, functools.partial(fastq.xarray.bitround, **options), COLUMNS, **ways)


@click.command("pack", short_help="Pack floats of netCDF or zarr into integers.")
@click.argument("source", metavar="FILE", type=SRC)
@click.argument("out", metavar="OUT", type=files.WRITABLE)
@files.choice("--dtype", ("int16", "uint16", "int8", "uint8"), help="Integer dtype of variables without a --max-error.")
@click.option("--max-error", multiple=True, metavar="NAME=N", callback=_numbers(float, named=True), help=OFF)
@exclude_option
@drop_option
@level_option
@files.force_option
def pack(source: Path, out: Path, **options: Any) -> None:
    """Pack the float variables of a netCDF file or a zarr store into integers, and compress them.

    FILE ends in .nc, .nc4, .cdf or .h5, or is a folder of zarr; OUT ends in one of these suffixes, and is netCDF 4, or
    in .zarr. Any reader of the CF conventions unpacks the result by scale_factor, add_offset and _FillValue. A variable
    with a --max-error gets 8 bits if they are enough, else 16. Coordinates and their bounds, flags, times and packed
    integers stay as they are.
    """
    ways = {name: options.pop(name) for name in OF_WRITING}
    _convert(source, out, functools.partial(fastq.xarray.pack, **options), {name: name for name in PACKED}, **ways)


def _convert(
    source: Path,
    out: Path,
    convert: functools.partial[Any],
    told: dict[str, str],
    *,
    force: bool,
    level: int,
    exclude: tuple[str, ...],
    drop: tuple[str, ...],
) -> None:
    """Write the Dataset that a function returns, and print the attributes of its variables."""
    _check_out(source, out, force)
    if files.is_given("level") and out.suffix == ZARR:
        raise click.UsageError("--level is for a netCDF file: zarr compresses by a codec of its own")
    with files.failures(source, out), _opened(source) as ds:
        scratch = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
        with files.tasks_shown(), scratch, scratch as folder:  # removed twice, since a signal may come meanwhile
            excluded, dropped = _left(source, ds, exclude, drop)
            made = _converted(source, ds, functools.partial(convert, exclude=excluded))
            names = [name for name in ds.data_vars if _is_new(made[name].attrs, ds[name].attrs, told)]
            new = [name for name in made.variables if name not in ds.variables]
            result = copies.Result(before=ds, after=made, changed=[*names, *new], dropped=dropped)
            copies.write(source, Path(folder) / out.name, result, level, files.note)
            _put(Path(folder) / out.name, out, Path(folder) / "replaced")
    entries: list[Entry] = [{"variable": str(name), "dtype": str(made[name].dtype)} for name in names]
    for name, entry in zip(names, entries, strict=True):
        entry.update({column: shortest(made[name].attrs.get(attribute)) for column, attribute in told.items()})
    if entries:
        print_table(entries, ("variable", "dtype", *told))
    else:
        click.echo(f"{source.name!r} has no floats to change: {out.name!r} has its variables as they are")
    click.echo(f"{count_text(len(names), 'variable')}: {files.sizes_text(source, out)}")


def _left(source: Path, ds: Any, exclude: tuple[str, ...], drop: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the variables that stay as they are, and those that are not written; refuse to lose others."""
    names = [str(name) for name in ds.variables]
    lost = unreadable(source)
    for option, patterns in (("--exclude", exclude), ("--drop", drop)):
        with files.refused(argument=option):
            check_patterns(option, patterns, [*names, *lost], "variable")
    dropped = [name for name in (*names, *lost) if any(fits(name, pattern) for pattern in drop)]
    if others := [name for name in lost if name not in dropped]:
        ways = " ".join(f"--drop {name}" for name in others)
        raise ValueError(f"netCDF4 can't read {', '.join(others)}, which OUT would lack: {ways} allows it")
    stay = [name for name in names if any(fits(name, pattern) for pattern in exclude)]
    excluded = dict.fromkeys((*stay, *dropped, *special(source)))
    return [name for name in excluded if name in ds.variables], [name for name in dropped if name in ds.variables]


def _put(made: Path, out: Path, replaced: Path) -> None:
    """Move what was made to its place; a store that was there comes back after an interrupt or an error."""
    try:
        if out.is_dir():
            os.replace(out, replaced)
        os.replace(made, out)
    except BaseException:
        if replaced.is_dir() and not out.exists():
            os.replace(replaced, out)
        raise


def _converted(source: Path, ds: Any, convert: functools.partial[Any]) -> Any:
    """Return what a function with the options of a command makes; name the option or the file that it refuses."""
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", UserWarning)
            made = convert(ds)
    except (TypeError, ValueError) as error:
        name = str(error).partition(" ")[0]
        blamed = f"--{name.replace('_', '-')}" if name in convert.keywords else "FILE"
        text = str(error).replace("fastq.xarray.", "fastq ")
        if blamed == "FILE":
            text = _on_the_command_line(source, ds, text)
        raise click.BadParameter(text, param_hint=f"'{blamed}'") from error
    for each in seen:
        files.note(each.message)
    return made


def _on_the_command_line(source: Path, ds: Any, text: str) -> str:
    """Return the text of an error of a function with advice for the command instead of that for Python."""
    about = next((name for name in ds.data_vars if f"{name!r}" in text), None)
    text, found, _ = text.partition(ADVICE_IN_PYTHON)
    if text.startswith("ds has "):
        text = f"{source.name!r}{text.removeprefix('ds')}"
    if about is None:
        return text
    if found and source.is_file():
        kind, number = ("f", "9.96921e+36") if ds[about].dtype == "float32" else ("d", "9.969209968386869e+36")
        text += f": ncatted -a _FillValue,{about},c,{kind},{number} {source.name} of NCO names it"
    return f"{text}; --exclude {about} leaves the variable as it is"


def _is_new(attributes: dict[Any, Any], before: dict[Any, Any], told: dict[str, str]) -> bool:
    """Return whether an attribute in `told` is new: another object, even if the number is the same."""
    return any(attributes.get(key) is not before.get(key) for key in told.values())


def _check_out(source: Path, out: Path, force: bool) -> None:
    """Refuse an OUT of another kind, and one that exists unless it is a store that may be replaced."""
    if out.suffix not in (*NETCDF, ZARR):
        raise click.BadParameter(f"{out.name!r} must end in {', '.join(NETCDF)} or {ZARR}", param_hint="'OUT'")
    if out.suffix != ZARR:
        files.check_out({"FILE": source}, out, force=force)
        return
    is_store = any(os.path.lexists(out / mark) for mark in MARKS)
    paths = [path.resolve() for path in (source, out)]
    if any(path in other.parents for path, other in itertools.permutations(paths)):
        raise click.BadParameter(f"{out.name!r} must not lie in FILE, nor FILE in it", param_hint="'OUT'")
    if os.path.lexists(out) and (not force or not is_store or os.path.samefile(source, out)):
        reason = "exists; --force replaces it" if is_store and not force else "is FILE itself, or is not a zarr store"
        raise click.BadParameter(f"{out.name!r} {reason}", param_hint="'OUT'")
    if not os.path.isdir(out.parent):
        raise click.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="'OUT'")


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[Any]:
    """Open a file or a store without decoding, in chunks if dask is installed."""
    chunks: dict[str, int] | None = {} if importlib.util.find_spec("dask") else None
    with notice_if_slow(f"opening {files.called(source)}, with xarray"):
        groups = groups_of(source, **AS_STORED)
        for group in groups.values():
            group.close()
        if len(groups) > 1:
            names = ", ".join(sorted(name for name in groups if name != "/"))
            raise ValueError(f"it has groups, and only the root group would be written: {names}")
        opened = library().open_dataset(source, chunks=chunks, **AS_STORED, **way_to(source))
    with opened as ds:
        yield ds
