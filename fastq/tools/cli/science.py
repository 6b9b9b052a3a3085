"""What the commands for netCDF and zarr share: numbers by variable, and the way from a store to a store."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from fastq.tools.cli import options
from fastq.tools.cli.errors import one_line_errors, usage_errors
from fastq.tools.cli.input_paths import FOLDER, ZARR_STORE, InputPath
from fastq.tools.cli.notes import note
from fastq.tools.cli.options import is_given
from fastq.tools.cli.output_paths import check_out, sizes_text
from fastq.tools.cli.progress import dask_progress
from fastq.tools.cli.tables import Entry, print_table
from fastq.tools.files.patterns import check_patterns, fits
from fastq.tools.files.texts import count_text
from fastq.tools.tensors.netcdf_zarr import (
    MARKS,
    NETCDF,
    ZARR,
    groups_of,
    import_xarray,
    open_options,
    shortest_number,
    special_variables,
    unreadable_variables,
)
from fastq.tools.tensors.netcdf_zarr_copies import Result, write

SRC = InputPath(*NETCDF, FOLDER, ZARR_STORE)
# characters are read as strings, since writing them would add an axis
AS_STORED = dict.fromkeys(("mask_and_scale", "decode_times", "decode_timedelta", "decode_coords"), False)
OF_WRITING = "force", "level", "exclude", "drop"  # options that are not those of a function
ADVICE_IN_PYTHON = ": name it as _FillValue in attrs"
OF_ALL = "N holds for all variables, NAME=N for one; repeatable."


def numbers_callback(parse: Callable[[str], Any], needs_name: bool = False) -> Callable[..., Any]:
    """Return the callback of an option: it returns one number for all variables, or a dict of numbers by name.

    `parse` makes a number of a text. With `needs_name`, each number needs the name of a variable.
    """

    def read(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
        pairs = [text.rpartition("=") for text in texts]
        form = "NAME=NUMBER" if needs_name else "NUMBER, nor NAME=NUMBER for each variable"
        with usage_errors(lambda error: f"{' '.join(texts)!r} is not {form}"):
            numbers = {name: parse(number) for name, _, number in pairs}
        if "" in numbers and needs_name:
            raise click.BadParameter(f"{texts[0]!r} is not {form}")
        if len(texts) > 1 and ("" in numbers or len(numbers) < len(texts)):
            one = "" if needs_name else "one number for all variables, or "
            raise click.BadParameter(f"give {one}NAME=NUMBER once for each of some variables")
        return numbers.get("", numbers or None)

    return read


def number_option(name: str, parse: Callable[[str], Any], text: str) -> Callable[[Any], Any]:
    """Return an option with one number for all variables, or a number for each of some variables."""
    return click.option(
        name, multiple=True, metavar="[NAME=]N", callback=numbers_callback(parse), help=f"{text} {OF_ALL}"
    )


LEVEL = "Compression level of zlib in a netCDF file; 0 does not compress."
EXCLUDED = "Leave variables whose names PATTERN matches as they are; repeatable."
DROPPED = "Leave variables whose names PATTERN matches out of OUT; repeatable."
exclude_option = options.patterns("--exclude", help=EXCLUDED)
drop_option = options.patterns("--drop", help=DROPPED)
level_option = click.option("--level", type=click.IntRange(0, 9), default=4, show_default=True, help=LEVEL)


def convert_store(
    source: Path,
    out: Path,
    convert: functools.partial[Any],
    attributes: dict[str, str],
    *,
    force: bool,
    level: int,
    exclude: tuple[str, ...],
    drop: tuple[str, ...],
) -> None:
    """Write the Dataset that a function returns, and print attributes of its variables, by the titles of columns."""
    _check_out(source, out, force)
    if is_given("level") and out.suffix == ZARR:
        raise click.UsageError("--level is for a netCDF file: zarr compresses by a codec of its own")
    with one_line_errors(source, out), _open_store(source) as ds:
        scratch = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
        with dask_progress(), scratch, scratch as folder:  # removed twice, since a signal may come meanwhile
            excluded, dropped = _excluded_and_dropped(source, ds, exclude, drop)
            converted = _call_converter(source, ds, functools.partial(convert, exclude=excluded))
            keys = attributes.values()
            names = [name for name in ds.data_vars if _has_new(converted[name].attrs, ds[name].attrs, keys)]
            new = [name for name in converted.variables if name not in ds.variables]
            result = Result(before=ds, after=converted, changed=[*names, *new], dropped=dropped)
            write(source, Path(folder) / out.name, result, level, note)
            _move_into_place(Path(folder) / out.name, out, Path(folder) / "replaced")
    entries: list[Entry] = []
    for name in names:
        variable = converted[name]
        values = {column: shortest_number(variable.attrs.get(key)) for column, key in attributes.items()}
        entries.append({"variable": str(name), "dtype": str(variable.dtype), **values})
    if entries:
        print_table(entries, ("variable", "dtype", *attributes))
    else:
        click.echo(f"{source.name!r} has no floats to change: {out.name!r} has its variables as they are")
    click.echo(f"{count_text(len(names), 'variable')}: {sizes_text(source, out)}")


def _excluded_and_dropped(
    source: Path, ds: Any, exclude: tuple[str, ...], drop: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Return the variables that stay as they are and those that are left out; refuse to lose any other variable."""
    names = [str(name) for name in ds.variables]
    lost = unreadable_variables(source)
    for option, patterns in (("--exclude", exclude), ("--drop", drop)):
        with usage_errors(argument=option):
            check_patterns(option, patterns, [*names, *lost], "variable")
    dropped = [name for name in (*names, *lost) if any(fits(name, pattern) for pattern in drop)]
    still_lost = [name for name in lost if name not in dropped]
    if still_lost:
        drops = " ".join(f"--drop {name}" for name in still_lost)
        raise ValueError(f"netCDF4 can't read {', '.join(still_lost)}, which OUT would lack: {drops} allows it")
    excluded_by_name = [name for name in names if any(fits(name, pattern) for pattern in exclude)]
    excluded = dict.fromkeys((*excluded_by_name, *dropped, *special_variables(source)))
    return [name for name in excluded if name in ds.variables], [name for name in dropped if name in ds.variables]


def _move_into_place(made: Path, out: Path, replaced: Path) -> None:
    """Move a result to its place. If that is interrupted or fails, a store that was there is put back."""
    try:
        if out.is_dir():
            os.replace(out, replaced)
        os.replace(made, out)
    except BaseException:
        if replaced.is_dir() and not out.exists():
            os.replace(replaced, out)
        raise


def _call_converter(source: Path, ds: Any, convert: functools.partial[Any]) -> Any:
    """Call a function with the options of a command; an error names the option or the file that it is about."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            converted = convert(ds)
    except (TypeError, ValueError) as error:
        name = str(error).partition(" ")[0]
        argument = f"--{name.replace('_', '-')}" if name in convert.keywords else "FILE"
        text = str(error).replace("fastq.xarray.", "fastq ")
        if argument == "FILE":
            text = _with_advice_for_command(source, ds, text)
        raise click.BadParameter(text, param_hint=f"'{argument}'") from error
    for warning in caught:
        note(warning.message)
    return converted


def _with_advice_for_command(source: Path, ds: Any, text: str) -> str:
    """Return the text of an error with advice for the command line in place of the advice for Python."""
    variable = next((name for name in ds.data_vars if f"{name!r}" in text), None)
    text, python_advice, _ = text.partition(ADVICE_IN_PYTHON)
    if text.startswith("ds has "):
        text = f"{source.name!r}{text.removeprefix('ds')}"
    if variable is None:
        return text
    if python_advice and source.is_file():
        is_single = ds[variable].dtype == "float32"
        value = "f,9.96921e+36" if is_single else "d,9.969209968386869e+36"  # the default fill values of netCDF
        text += f": ncatted -a _FillValue,{variable},c,{value} {source.name} of NCO names it"
    return f"{text}; --exclude {variable} leaves the variable as it is"


def _has_new(attributes: dict[Any, Any], before: dict[Any, Any], keys: Iterable[str]) -> bool:
    """Return whether one of some attributes is new: another object, even if the number is the same."""
    return any(attributes.get(key) is not before.get(key) for key in keys)


def _check_out(source: Path, out: Path, force: bool) -> None:
    """Refuse an OUT that is neither netCDF nor zarr, and one that exists and may not be replaced."""
    if out.suffix not in (*NETCDF, ZARR):
        raise click.BadParameter(f"{out.name!r} must end in {', '.join(NETCDF)} or {ZARR}", param_hint="'OUT'")
    if out.suffix != ZARR:
        check_out({"FILE": source}, out, force=force)
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
def _open_store(source: Path) -> Iterator[Any]:
    """Open a file or a store without decoding, in chunks if dask is installed."""
    chunks: dict[str, int] | None = {} if importlib.util.find_spec("dask") else None
    groups = groups_of(source, **AS_STORED)
    for group in groups.values():
        group.close()
    if len(groups) > 1:
        names = ", ".join(sorted(name for name in groups if name != "/"))
        raise ValueError(f"it has groups, and only the root group would be written: {names}")
    with import_xarray().open_dataset(source, chunks=chunks, **AS_STORED, **open_options(source)) as ds:
        yield ds
