"""What the commands for netCDF and zarr share: numbers by variable, and the way from a store to a store."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastq.tools.cli import options
from fastq.tools.cli.errors import failures, refused
from fastq.tools.cli.exit_codes import IN_PART
from fastq.tools.cli.input_paths import FOLDER, ZARR_STORE, Source
from fastq.tools.cli.notes import note
from fastq.tools.cli.options import is_given
from fastq.tools.cli.output_paths import check_out, sizes_text
from fastq.tools.cli.progress import tasks_shown
from fastq.tools.cli.tables import Entry, print_table
from fastq.tools.files.patterns import check_patterns, fits
from fastq.tools.files.texts import count_text
from fastq.tools.tensors.netcdf_zarr import (
    MARKS,
    NETCDF,
    ROOT,
    ZARR,
    groups_of,
    library,
    shortest,
    special,
    unreadable,
    way_to,
)
from fastq.tools.tensors.netcdf_zarr_copies import Result, write

if TYPE_CHECKING:
    from xarray import Variable

SRC = Source(*NETCDF, FOLDER, ZARR_STORE)
# characters are read as strings, since writing them would add an axis
AS_STORED = dict.fromkeys(("mask_and_scale", "decode_times", "decode_timedelta", "decode_coords"), False)
OF_WRITING = "force", "level", "exclude", "drop"  # options that are not those of a function
ADVICE_IN_PYTHON = ": name it as _FillValue in attrs"
OF_ALL = "N holds for all variables, NAME=N for one; repeatable."


def numbers_callback(kind: Callable[[str], Any], named: bool = False) -> Callable[..., Any]:
    """Return the callback of an option: it returns one number for all variables, or a dict of numbers by name."""

    def read(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
        pairs = [text.rpartition("=") for text in texts]
        wanted = "NAME=NUMBER" if named else "NUMBER, nor NAME=NUMBER for each variable"
        with refused(lambda error: f"{' '.join(texts)!r} is not {wanted}"):
            numbers = {name: kind(number) for name, _, number in pairs}
        if "" in numbers and named:
            raise click.BadParameter(f"{texts[0]!r} is not {wanted}")
        if len(texts) > 1 and ("" in numbers or len(numbers) < len(texts)):
            one = "" if named else "one number for all variables, or "
            raise click.BadParameter(f"give {one}NAME=NUMBER once for each of some variables")
        return numbers.get("", numbers or None)

    return read


def number_option(name: str, kind: Callable[[str], Any], text: str) -> Callable[[Any], Any]:
    """Return an option with one number for all variables, or a number for each of some variables."""
    return click.option(
        name, multiple=True, metavar="[NAME=]N", callback=numbers_callback(kind), help=f"{text} {OF_ALL}"
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
    told: dict[str, str],
    *,
    force: bool,
    level: int,
    exclude: tuple[str, ...],
    drop: tuple[str, ...],
) -> None:
    """Write the Dataset that a function returns, and print the attributes of its variables."""
    _check_out(source, out, force)
    if is_given("level") and out.suffix == ZARR:
        raise click.UsageError("--level is for a netCDF file: zarr compresses by a codec of its own")
    changed: list[tuple[str, Variable]] = []
    with failures(source, out), _opened(source) as groups:
        scratch = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
        with tasks_shown(), scratch, scratch as folder:  # removed twice, since a signal may come meanwhile
            excluded, dropped = _left(source, groups, exclude, drop)
            results = {}
            for path, ds in groups.items():
                prefix = _prefix_of(path)
                of_group = functools.partial(convert, exclude=_own(excluded, path))
                made = _converted(source, ds, _in_group(of_group, path, groups), prefix)
                names = [name for name in ds.data_vars if _is_new(made[name].attrs, ds[name].attrs, told)]
                new = [name for name in made.variables if name not in ds.variables]
                results[path] = Result(before=ds, after=made, changed=[*names, *new], dropped=_own(dropped, path))
                changed += [(f"{prefix}{name}", made.variables[name]) for name in names]
            write(source, Path(folder) / out.name, results, level, note)
            _put(Path(folder) / out.name, out, Path(folder) / "replaced")
    entries: list[Entry] = [{"variable": name, "dtype": str(variable.dtype)} for name, variable in changed]
    for (_, variable), entry in zip(changed, entries, strict=True):
        entry.update({column: shortest(variable.attrs.get(attribute)) for column, attribute in told.items()})
    if entries:
        print_table(entries, ("variable", "dtype", *told))
    else:
        note(f"{source.name!r} has no floats to change: {out.name!r} has its variables as they are", IN_PART)
    click.echo(f"{count_text(len(changed), 'variable')}: {sizes_text(source, out)}")


def _prefix_of(group: str) -> str:
    """Return what names of variables of a group begin with: nothing in the root."""
    return f"{group}/".lstrip(ROOT)


def _own(names: Iterable[str], group: str) -> list[str]:
    """Return the names of those of some variables that are in a group, without it."""
    return [name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == group.strip(ROOT)]


def _in_group(convert: functools.partial[Any], group: str, groups: Iterable[str]) -> functools.partial[Any]:
    """Return a function with the options for a group: of numbers by name those of its variables, without its path.

    The root has those of groups that are not there, which are refused.
    """
    known = {path.strip(ROOT) for path in groups}

    def is_for(name: str) -> bool:
        of = name.rpartition("/")[0]
        return of == group.strip(ROOT) or (group == ROOT and of not in known)

    given = dict(convert.keywords)
    for key, numbers in given.items():
        if isinstance(numbers, dict):
            given[key] = {name.removeprefix(_prefix_of(group)): each for name, each in numbers.items() if is_for(name)}
    return functools.partial(convert.func, **given)


def _left(
    source: Path, groups: Mapping[str, Any], exclude: tuple[str, ...], drop: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Return the variables that stay as they are, and those that are not written; refuse to lose others."""
    names = [f"{_prefix_of(path)}{name}" for path, ds in groups.items() for name in ds.variables]
    lost = unreadable(source)
    for option, patterns in (("--exclude", exclude), ("--drop", drop)):
        with refused(argument=option):
            check_patterns(option, patterns, [*names, *lost], "variable")
    dropped = [name for name in (*names, *lost) if any(fits(name, pattern) for pattern in drop)]
    if others := [name for name in lost if name not in dropped]:
        ways = " ".join(f"--drop {name}" for name in others)
        raise ValueError(f"netCDF4 can't read {', '.join(others)}, which OUT would lack: {ways} allows it")
    stay = [name for name in names if any(fits(name, pattern) for pattern in exclude)]
    excluded = dict.fromkeys((*stay, *dropped, *special(source)))
    return [name for name in excluded if name in names], [name for name in dict.fromkeys(dropped) if name in names]


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


def _converted(source: Path, ds: Any, convert: functools.partial[Any], prefix: str) -> Any:
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
            text = _on_the_command_line(source, ds, text, prefix)
        raise click.BadParameter(text, param_hint=f"'{blamed}'") from error
    for each in seen:
        note(f"in {prefix.rstrip('/')}: {each.message}" if prefix else each.message)
    return made


def _on_the_command_line(source: Path, ds: Any, text: str, prefix: str) -> str:
    """Return the text of an error of a function with advice for the command instead of that for Python."""
    about = next((name for name in ds.data_vars if f"{name!r}" in text), None)
    text, found, _ = text.partition(ADVICE_IN_PYTHON)
    if text.startswith("ds has "):
        text = f"{source.name!r}{text.removeprefix('ds')}"
    if about is None:
        return text
    named = f"{prefix}{about}"
    text = text.replace(f"{about!r}", f"{named!r}")
    if found and source.is_file():
        kind, number = ("f", "9.96921e+36") if ds[about].dtype == "float32" else ("d", "9.969209968386869e+36")
        path = f"/{named}" if prefix else named
        text += f": ncatted -a _FillValue,{path},c,{kind},{number} {source.name} of NCO names it"
    return f"{text}; --exclude {named} leaves the variable as it is"


def _is_new(attributes: dict[Any, Any], before: dict[Any, Any], told: dict[str, str]) -> bool:
    """Return whether an attribute in `told` is new: another object, even if the number is the same."""
    return any(attributes.get(key) is not before.get(key) for key in told.values())


def _check_out(source: Path, out: Path, force: bool) -> None:
    """Refuse an OUT of another kind, and one that exists unless it is a store that may be replaced."""
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
def _opened(source: Path) -> Iterator[Any]:
    """Open the groups of a file or a store without decoding, in chunks if dask is installed; return them by path."""
    chunks: dict[str, int] | None = {} if importlib.util.find_spec("dask") else None
    groups = groups_of(source, **AS_STORED)
    for group in groups.values():
        group.close()
    options = AS_STORED | way_to(source) | {"chunks": chunks}
    with contextlib.ExitStack() as stack:
        yield {
            path: stack.enter_context(library().open_dataset(source, group=path.strip(ROOT) or None, **options))
            for path in groups
        }
