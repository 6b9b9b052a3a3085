"""The parts that commands share: arguments, exit codes, notes on standard error, progress bars."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from rich import progress as bars
from rich.console import Console

from fastq.engine.code import notices
from fastq.formats.range_methods import METHODS
from fastq.system.arguments import reason
from fastq.tools.cli.tables import printable
from fastq.tools.files.patterns import check_pattern
from fastq.tools.files.texts import listed
from fastq.tools.tensors.reading import SUFFIXES
from fastq.tools.tensors.stores import NETCDF, is_store

TOO_FAR = 3
IN_PART = 4
SILENT = 2.0  # seconds after which a line says what takes so long
EXIT_CODES = {
    0: "done",
    1: "failed, or `check` or `demo` found a difference; one line says why",
    2: "wrong arguments, or options that cannot be combined",
    TOO_FAR: "a tensor does not reach the SQNR of `compare --at-least` or `suggest`; standard error names the worst",
    IN_PART: "done in part; standard error names the parts that were not found, read or compared, such as variables "
    "whose coordinates disagree",
    130: "ended by Ctrl-C; no half-written file stays, and `convert` continues when it is started again",
}
T = TypeVar("T")
_CODE = "fastq.exit_code"  # key of the exit code that notes ask for
FOLDER = "a folder"
ZARR_STORE = "a zarr store"
WAYS_OF_STORES = "fastq pack and fastq bitround take it, fastq inspect shows it, xarray.open_dataset reads it"
OF_STORES = dict.fromkeys((*NETCDF, ZARR_STORE), WAYS_OF_STORES)
TORCH_SUFFIXES = ".bin", ".pt", ".pth", ".ckpt"
OF_TORCH = "torch.load reads it, and safetensors.torch.save_file writes a .safetensors file of its tensors"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITABLE = click.Path(path_type=Path)
# advice of the functions about arguments that commands do not have
NO_OPTIONS = "; pass nan='zero' to treat them as 0.0", "; clip x, or pass qparams"


def choice(name: str, names: Iterable[str], *more: str, **options: Any) -> Callable[[Any], Any]:
    """Return an option with a choice of names; the first one is the default, which the help shows."""
    first, *others = names
    kind = click.Choice([first, *others])
    return click.option(name, *more, type=kind, default=first, show_default=True, **options)


RANGE_HELP = "minmax uses the range of all values; mse searches near it for the range with the least squared error."
range_option = choice("--range", METHODS, "method", help=RANGE_HELP)
IMATRIX_HELP = (
    "Weights of the columns for the search of --range mse, which is implied: a file of llama-imatrix, .safetensors or"
    " .npz."
)
imatrix_option = click.option("--imatrix", type=EXISTING, metavar="FILE", help=IMATRIX_HELP)
nan_option = choice("--nan", ["raise", "zero"], help='"raise" stops at NaN, "zero" treats it as 0.')
like_option = functools.partial(click.option, type=EXISTING, metavar="FILE")
force_option = click.option("--force", is_flag=True, help="Replace OUT if it exists.")


def with_suffix(
    *suffixes: str, hint: Mapping[str, str] | None = None
) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """Return a callback that refuses paths without one of the suffixes; hints tell what files with others hold."""

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and path.suffix not in suffixes:
            held = (hint or {}).get(path.suffix)
            why = f"; a {path.suffix} file holds {held}" if held else ""
            raise click.BadParameter(f"{path.name!r} does not end in {listed(suffixes)}{why}")
        return path

    return check


class Source(click.Path):
    """An existing file or folder; for one that the command does not read, the error names the command that does."""

    def __init__(self, *accepted: str, ways: Mapping[str, str] | None = None) -> None:
        super().__init__(path_type=Path)
        # suffixes or FOLDER; for other suffixes the command to type
        self.accepted = accepted
        self.ways = ways or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        path = Path(value)
        name = str(value)
        if not os.path.exists(path):
            is_id = HUB_ID.fullmatch(name) and path.suffix not in SUFFIXES and not path.parent.exists()
            hint = f": hf download {name} --local-dir {path.name}" if is_id else ""
            hint = f"; fastq downloads nothing{hint}" if is_id or "://" in name else ""
            self.fail(f"{name!r} does not exist{hint}", param, ctx)
        kind = ZARR_STORE if path.is_dir() and is_store(path) else FOLDER if path.is_dir() else path.suffix
        if kind not in self.accepted and (way := self.ways.get(kind, OF_STORES.get(kind))):
            what = kind if kind in (FOLDER, ZARR_STORE) else f"a {kind} file"
            self.fail(f"{name!r} is {what}; {way.format(name)}", param, ctx)
        if kind not in self.accepted:
            suffixes = [each for each in self.accepted if each not in (FOLDER, ZARR_STORE)]
            reasons = [f"does not end in {listed(suffixes)}"] if suffixes else []
            reasons += ["is not a folder"] if FOLDER in self.accepted else []
            hint = f"; {OF_TORCH}" if path.suffix in TORCH_SUFFIXES else ""
            self.fail(f"{called(path)!r} {' and '.join(reasons)}{hint}", param, ctx)
        return path


@contextlib.contextmanager
def refused(
    message: Callable[[Exception], str] = str, kinds: Any = ValueError, argument: str | None = None
) -> Iterator[None]:
    """Turn an error about an argument, by default that of the callback, into an error of usage."""
    try:
        yield
    except kinds as error:
        raise click.BadParameter(message(error), param_hint=argument and f"'{argument}'") from error


def regular_expression(pattern: str) -> contextlib.AbstractContextManager[None]:
    """Refuse a pattern that is not a regular expression."""
    return refused(lambda error: f"{pattern!r} is not a regular expression: {error}", re.error)


def as_patterns(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Pass patterns whose regular expressions are any."""
    for text in texts:
        with regular_expression(text):
            check_pattern(text)
    return texts


def pairs_of(texts: Iterable[str], wanted: str) -> Iterator[tuple[str, str]]:
    """Split each PATTERN=NAME at its last "=", since a pattern may have one."""
    for text in texts:
        pattern, equals, name = text.rpartition("=")
        if not (pattern and equals):
            raise click.BadParameter(f"{text!r} is not {wanted}")
        yield pattern, name


def suggested(path: Path, scheme_of: Callable[[Any], T]) -> dict[str, T]:
    """Return the schemes of tensors by name that `fastq suggest --json` printed."""
    unreadable = ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError
    told = f"{path.name!r} is not the output of suggest --json for such a file: "
    with refused(lambda error: told + reason(error), unreadable, "--like"):
        return {entry["name"]: scheme_of(entry["scheme"]) for entry in json.loads(path.read_bytes())["tensors"]}


def _as_decibels(ctx: click.Context, param: click.Parameter, number: float | None) -> float | None:
    """Refuse NaN, with which every comparison is false."""
    if number is not None and math.isnan(number):
        raise click.BadParameter("'nan' is not a number of decibels")
    return number


repeatable = functools.partial(click.option, multiple=True)
patterns = functools.partial(repeatable, metavar="PATTERN", callback=as_patterns)
decibels = functools.partial(click.option, type=float, metavar="DB", callback=_as_decibels)


def check_out(sources: Mapping[str, Path | None], out: Path, *, force: bool, report: Path | None = None) -> None:
    """Refuse an OUT or a report that can't or should not be written; `sources` are read, by their arguments."""
    read = {name: path for name, path in sources.items() if path}
    check_replaceable(out, "OUT", read)
    if report is not None:
        check_replaceable(report, "--report", {**read, "OUT": out} if os.path.exists(out) else read)
    if os.path.lexists(out) and not force:
        raise click.BadParameter(f"{out.name!r} exists; --force replaces it", param_hint="'OUT'")


def check_replaceable(out: Path, argument: str, sources: Mapping[str, Path]) -> None:
    """Refuse to replace a file that is read, is not a plain file, or has no folder; a link counts as its target."""
    there = os.path.exists(out)
    if not os.path.isdir(out.parent):
        reason = f"there is no folder {str(out.parent)!r}"
    elif itself := [name for name, source in sources.items() if there and os.path.samefile(source, out)]:
        reason = f"{out.name!r} is {itself[0]} itself"
    elif there and not os.path.isfile(out):
        reason = f"{out.name!r} is not a file"
    else:
        return
    raise click.BadParameter(reason, param_hint=f"'{argument}'")


def note(text: object, code: int = 0) -> None:
    """Write a line to standard error; the command ends with the smallest nonzero exit code of its notes."""
    click.echo(printable(" ".join(str(text).splitlines())), err=True)
    meta = click.get_current_context().meta
    meta[_CODE] = min(filter(None, (exit_code(), code)), default=0)


def is_watched() -> bool:
    """Return whether standard error is a terminal."""
    return Console(stderr=True).is_terminal


@contextlib.contextmanager
def patience(text: str) -> Iterator[None]:
    """Write a line to a terminal if the work takes longer than people wait without a word."""
    timer = threading.Timer(SILENT, click.echo, [text], {"err": True})
    timer.daemon = True
    if is_watched():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def exit_code() -> int:
    """Return the exit code that the notes of this command asked for."""
    return int(click.get_current_context().meta.get(_CODE, 0))


def method_with(imatrix: Path | None, method: str) -> str:
    """Return the method for ranges: a search if an importance matrix is given, unless minmax was asked for."""
    if imatrix is None or is_given("like"):
        return method
    if method == "minmax" and is_given("method"):
        raise click.UsageError(
            "--imatrix weighs the errors in the search of --range mse; it cannot be combined with --range minmax"
        )
    return "mse"


def is_given(name: str) -> bool:
    """Return whether an argument of the command was written out, even with its default value."""
    return click.get_current_context().get_parameter_source(name) not in (None, ParameterSource.DEFAULT)


@contextlib.contextmanager
def failures(source: object, out: Path) -> Iterator[None]:
    """Turn an error of the data or of the file system into one line about the source or the file."""
    try:
        yield
    except ValueError as error:
        # a message that begins with the name of the source or of OUT needs no other subject
        names = (str(source), os.path.basename(str(source)), str(out), called(out))
        told = str(error).startswith(tuple(f"{name} " for name in names))
        raise in_one_line("" if told else source, error) from error
    except MemoryError as error:
        raise in_one_line(source, f"out of memory: {error}") from error
    except OSError as error:
        raise in_one_line(error.filename or out, error.strerror or error) from error


def sizes_text(before: Path, after: Path) -> str:
    """Return the bytes of two files or stores, and their ratio."""
    first, second = map(_bytes_on_disk, (before, after))
    return f"{first:,} -> {second:,} bytes" + (f", {first / second:.2f} x" if second else "")


def _bytes_on_disk(path: Path) -> int:
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def called(path: Path) -> str:
    """Return the name of a file or a folder in messages; for one without a name, such as '.', the path."""
    return path.name or str(path)


def in_one_line(subject: object, text: object) -> click.ClickException:
    """Return the error that ends a command, one line that a terminal can show; the text may name its own subject."""
    line = " ".join((f"{subject}: {text}" if subject else str(text)).splitlines())
    for advice in NO_OPTIONS:
        line = line.replace(advice, "")
    return click.ClickException(printable(line))


@contextlib.contextmanager
def progress_bar(tensors: Collection[Any]) -> Iterator[Callable[[int, int], None]]:
    """Show how many tensors and bytes are done, on standard error if that is a terminal."""
    done = 0
    total = sum(tensor.nbytes for tensor in tensors)
    text = f"{{task.fields[done]}} of {len(tensors)} tensors"
    with _bar(text, bars.DownloadColumn(), bars.TransferSpeedColumn(), total=total, done=0) as update:

        def advance(nbytes: int, tensors: int) -> None:
            nonlocal done
            done += tensors
            update(advance=nbytes, done=done)

        yield advance


def counted(things: Sequence[T], noun: str) -> Iterator[T]:
    """Yield items, and show how many are done, as `progress_bar` does."""
    with _bar(noun, bars.MofNCompleteColumn(), total=len(things)) as update:
        for thing in things:
            yield thing
            update(advance=1)


@contextlib.contextmanager
def tasks_shown() -> Iterator[None]:
    """Show how many tasks of dask are done, if it is installed, as `progress_bar` does."""
    if importlib.util.find_spec("dask") is None:
        yield
        return
    callback: Any = importlib.import_module("dask.callbacks").Callback
    total = 0
    with _bar("tasks", bars.MofNCompleteColumn(), total=None) as update:

        def begin(graph: Any, state: dict[str, Any]) -> None:
            nonlocal total
            total += sum(len(state[kind]) for kind in ("ready", "waiting"))
            update(total=total)

        with callback(start_state=begin, posttask=lambda *_: update(advance=1)):
            yield


@contextlib.contextmanager
def _bar(text: str, *columns: bars.ProgressColumn, total: int | None, **fields: Any) -> Iterator[Callable[..., None]]:
    """Show a bar, which also says when a kernel is being compiled; yield the function that updates it."""
    console = Console(stderr=True)
    shares = bool(sys.stdout) and sys.stdout.isatty()
    columns = bars.TextColumn(text), bars.BarColumn(), *columns, bars.TimeRemainingColumn()
    columns = *columns, bars.TextColumn("{task.fields[now]}")
    hidden = not console.is_terminal
    kernels = itertools.count(1)
    # lines that are printed meanwhile go above the bar if they go to a terminal, else to their file
    with bars.Progress(*columns, console=console, disable=hidden, redirect_stdout=shares) as progress:
        update = functools.partial(progress.update, progress.add_task("", total=total, now="", **fields))
        outside = notices.before_compiling
        if not progress.disable:
            notices.before_compiling = lambda: update(now=f"compiling, once: {next(kernels)}", refresh=True)
        try:
            yield functools.partial(update, now="")
        finally:
            notices.before_compiling = outside
