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
from fastq.tools.cli.errors import name_of_path, one_line_errors, usage_errors
from fastq.tools.cli.exit_codes import IN_PART
from fastq.tools.cli.input_paths import FOLDER, ZARR_STORE, InputPath
from fastq.tools.cli.notes import note
from fastq.tools.cli.options import is_given
from fastq.tools.cli.output_paths import check_out, sizes_text
from fastq.tools.cli.progress import dask_progress
from fastq.tools.cli.tables import Entry, print_table
from fastq.tools.cli.waits import notice_if_slow
from fastq.tools.files.patterns import check_patterns, matches_tensor
from fastq.tools.files.texts import count_text
from fastq.tools.tensors.netcdf_zarr import (
    MARKS,
    NETCDF,
    ONE_DIMENSION_TWICE,
    ROOT,
    ZARR,
    groups_of,
    import_xarray,
    open_options,
    shortest_number,
    special_variables,
    unreadable_variables,
)
from fastq.tools.tensors.netcdf_zarr_copies import ChangedDataset, write

if TYPE_CHECKING:
    from xarray import Variable

SRC = InputPath(*NETCDF, FOLDER, ZARR_STORE)
# characters are read as strings, since writing them would add an axis
AS_STORED = dict.fromkeys(("mask_and_scale", "decode_times", "decode_timedelta", "decode_coords"), False)
OF_WRITING = "force", "level", "exclude", "drop"  # options that are not those of a function
ADVICE_IN_PYTHON = ": name it as _FillValue in attrs"
OF_ALL = "N holds for all variables, NAME=N for one; repeatable."


def numbers_callback(parse: Callable[[str], Any], needs_name: bool = False) -> Callable[..., Any]:
    """Return the callback of an option: it returns one number for all variables, or a dict of numbers by name.

    `parse` makes a number of a text. With `needs_name`, each number needs the name of a variable. The texts "0.1" are
    0.1, "t=0.1" and "u=2" are {"t": 0.1, "u": 2}, and no text is None.
    """

    def read(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
        """Return the number, or the numbers by name, of the texts that a user wrote."""
        form = "NAME=NUMBER" if needs_name else "NUMBER, nor NAME=NUMBER for each variable"
        with usage_errors(lambda error: f"{' '.join(texts)!r} is not {form}"):
            pairs = [text.rpartition("=") for text in texts]
            number_by_name = {name: parse(number) for name, _, number in pairs}
        has_number_for_all = "" in number_by_name
        if has_number_for_all and needs_name:
            raise click.BadParameter(f"{texts[0]!r} is not {form}")
        names_are_repeated = len(number_by_name) < len(texts)
        if len(texts) > 1 and (has_number_for_all or names_are_repeated):
            alternative = "" if needs_name else "one number for all variables, or "
            raise click.BadParameter(f"give {alternative}NAME=NUMBER once for each of some variables")
        return number_by_name[""] if has_number_for_all else number_by_name or None

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
    """Write what a function returns for the Dataset of each group, and print a table of the changed variables.

    The table has a column for each of `attributes`, from its title to the name of the attribute.
    """
    _check_out(source, out, force)
    if is_given("level") and out.suffix == ZARR:
        raise click.UsageError("--level is for a netCDF file: zarr compresses by a codec of its own")
    changed: dict[str, Variable] = {}
    with one_line_errors(source, out), _open_groups(source) as groups:
        scratch = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
        with dask_progress(), scratch, scratch as folder:  # removed twice, since a signal may come meanwhile
            excluded, dropped = _excluded_and_dropped(source, groups, exclude, drop)
            results = {}
            for path, ds in groups.items():
                convert_group = _for_group(convert, path, groups, exclude=_names_in_group(excluded, path))
                converted = _call_converter(source, ds, convert_group, _prefix_of(path))
                keys = attributes.values()
                names = [name for name in ds.data_vars if _has_new(converted[name].attrs, ds[name].attrs, keys)]
                added = [name for name in converted.variables if name not in ds.variables]
                results[path] = ChangedDataset(
                    before=ds, after=converted, changed=[*names, *added], dropped=_names_in_group(dropped, path)
                )
                changed |= {f"{_prefix_of(path)}{name}": converted.variables[name] for name in names}
            write(source, Path(folder) / out.name, results, level, note)
            _move_into_place(Path(folder) / out.name, out, Path(folder) / "replaced")
    _print_changed(changed, attributes)
    if not changed:
        note(f"{source.name!r} has no floats to change: {out.name!r} has its variables as they are", IN_PART)
    click.echo(f"{count_text(len(changed), 'variable')}: {sizes_text(source, out)}")


def _print_changed(changed: Mapping[str, Variable], attributes: dict[str, str]) -> None:
    """Print a table of variables, if there are any, with attributes by the titles of columns."""
    entries: list[Entry] = []
    for name, variable in changed.items():
        numbers = {title: shortest_number(variable.attrs.get(key)) for title, key in attributes.items()}
        entries.append({"variable": name, "dtype": str(variable.dtype), **numbers})
    if entries:
        print_table(entries, ("variable", "dtype", *attributes))


def _prefix_of(group: str) -> str:
    """Return what names of variables of a group begin with: nothing in the root."""
    return f"{group}/".lstrip(ROOT)


def _names_in_group(names: Iterable[str], group: str) -> list[str]:
    """Return, without the group, the names of the variables that are in it."""
    return [name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == group.strip(ROOT)]


def _for_group(
    convert: functools.partial[Any], group: str, groups: Iterable[str], *, exclude: list[str]
) -> functools.partial[Any]:
    """Return the function for the Dataset of one group, whose variables have no path in their names.

    Numbers by the names of variables, such as {"ocean/t": 0.1}, become those of its variables: {"t": 0.1} in /ocean.
    The root gets those of groups that the file lacks, which the function refuses.
    """
    known = {path.strip(ROOT) for path in groups}

    def is_in_group(name: str) -> bool:
        """Return whether a variable, by its name with the path of its group, is for this call."""
        parent = name.rpartition("/")[0]
        return parent == group.strip(ROOT) or (group == ROOT and parent not in known)

    options_of_group: dict[str, Any] = {}
    for option, value in convert.keywords.items():
        if isinstance(value, dict):
            in_group = {name: number for name, number in value.items() if is_in_group(name)}
            value = {name.removeprefix(_prefix_of(group)): number for name, number in in_group.items()}
        options_of_group[option] = value
    return functools.partial(convert.func, **options_of_group, exclude=exclude)


def _excluded_and_dropped(
    source: Path, groups: Mapping[str, Any], exclude: tuple[str, ...], drop: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Return the variables that stay as they are and those that are left out; refuse to lose any other variable."""
    names = [f"{_prefix_of(path)}{name}" for path, ds in groups.items() for name in ds.variables]
    unreadable = unreadable_variables(source)
    for option, patterns in (("--exclude", exclude), ("--drop", drop)):
        with usage_errors(argument=option):
            check_patterns(option, patterns, [*names, *unreadable], "variable")
    dropped = [name for name in (*names, *unreadable) if _matches_any(name, drop)]
    lost = [name for name in unreadable if name not in dropped]
    if lost:
        drops = " ".join(f"--drop {name}" for name in lost)
        raise ValueError(f"netCDF4 can't read {', '.join(lost)}, which OUT would lack: {drops} allows it")
    excluded_by_name = [name for name in names if _matches_any(name, exclude)]
    # in each list once, and without those that xarray does not read either
    excluded = dict.fromkeys((*excluded_by_name, *dropped, *special_variables(source)))
    return [name for name in excluded if name in names], [name for name in dict.fromkeys(dropped) if name in names]


def _matches_any(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether one of some patterns matches the name of a variable."""
    return any(matches_tensor(name, pattern) for pattern in patterns)


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


def _call_converter(source: Path, ds: Any, convert: functools.partial[Any], prefix: str) -> Any:
    """Call a function with the options of a command; an error names the option or the file that it is about."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            warnings.filterwarnings("ignore", ONE_DIMENSION_TWICE)
            converted = convert(ds)
    except (TypeError, ValueError) as error:
        name = str(error).partition(" ")[0]
        argument = f"--{name.replace('_', '-')}" if name in convert.keywords else "FILE"
        text = str(error).replace("fastq.xarray.", "fastq ")
        if argument == "FILE":
            text = _with_advice_for_command(source, ds, text, prefix)
        raise click.BadParameter(text, param_hint=f"'{argument}'") from error
    for warning in caught:
        note(f"in {prefix.rstrip('/')}: {warning.message}" if prefix else warning.message)
    return converted


def _with_advice_for_command(source: Path, ds: Any, text: str, prefix: str) -> str:
    """Return the text of an error with advice for the command line in place of the advice for Python."""
    variable = next((name for name in ds.data_vars if f"{name!r}" in text), None)
    text, python_advice, _ = text.partition(ADVICE_IN_PYTHON)
    if text.startswith("ds has "):
        text = f"{source.name!r}{text.removeprefix('ds')}"
    if variable is None:
        return text
    full_name = f"{prefix}{variable}"
    text = text.replace(f"{variable!r}", f"{full_name!r}")
    if python_advice and source.is_file():
        is_single = ds[variable].dtype == "float32"
        value = "f,9.96921e+36" if is_single else "d,9.969209968386869e+36"  # the default fill values of netCDF
        path = f"/{full_name}" if prefix else full_name
        text += f": ncatted -a _FillValue,{path},c,{value} {source.name} of NCO names it"
    return f"{text}; --exclude {full_name} leaves the variable as it is"


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
    paths = [path.resolve() for path in (source, out)]
    if any(path in other.parents for path, other in itertools.permutations(paths)):
        raise click.BadParameter(f"{out.name!r} must not lie in FILE, nor FILE in it", param_hint="'OUT'")
    is_store = any(os.path.lexists(out / mark) for mark in MARKS)
    may_be_replaced = force and is_store and not os.path.samefile(source, out)
    if os.path.lexists(out) and not may_be_replaced:
        reason = "exists; --force replaces it" if is_store and not force else "is FILE itself, or is not a zarr store"
        raise click.BadParameter(f"{out.name!r} {reason}", param_hint="'OUT'")
    if not os.path.isdir(out.parent):
        raise click.BadParameter(f"there is no folder {str(out.parent)!r}", param_hint="'OUT'")


@contextlib.contextmanager
def _open_groups(source: Path) -> Iterator[Any]:
    """Open the groups of a file or a store without decoding, in chunks if dask is installed; yield them by path."""
    chunks: dict[str, int] | None = {} if importlib.util.find_spec("dask") else None
    with notice_if_slow(f"opening {name_of_path(source)}, with xarray"):
        groups = groups_of(source, **AS_STORED)
        for group in groups.values():
            group.close()
        options_of_xarray = AS_STORED | open_options(source) | {"chunks": chunks}
        xarray = import_xarray()
    with contextlib.ExitStack() as stack:
        yield {
            path: stack.enter_context(xarray.open_dataset(source, group=path.strip(ROOT) or None, **options_of_xarray))
            for path in groups
        }
