"""Progress of long work on standard error, if that is a terminal."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console

from fastq.engine.code import notices

T = TypeVar("T")


@contextlib.contextmanager
def progress_bar(tensors: Collection[Any]) -> Iterator[Callable[[int, int], None]]:
    """Show how many tensors and bytes are done, on standard error if that is a terminal."""
    done = 0
    total = sum(tensor.nbytes for tensor in tensors)
    text = f"{{task.fields[done]}} of {len(tensors)} tensors"
    with _bar(text, bars.DownloadColumn(), bars.TransferSpeedColumn(), total=total, done=0) as update:

        def advance(nbytes: int, finished: int) -> None:
            """Add the bytes of a part, and the number of tensors that are finished by it: 0 or 1."""
            nonlocal done
            done += finished
            update(advance=nbytes, done=done)

        yield advance


def with_progress(things: Sequence[T], noun: str) -> Iterator[T]:
    """Yield items, and show how many are done, as `progress_bar` does."""
    with _bar(noun, bars.MofNCompleteColumn(), total=len(things)) as update:
        for thing in things:
            yield thing
            update(advance=1)


@contextlib.contextmanager
def dask_progress() -> Iterator[None]:
    """Show how many tasks of dask are done, if it is installed, as `progress_bar` does."""
    if importlib.util.find_spec("dask") is None:
        yield
        return
    from dask.callbacks import Callback

    total = 0
    with _bar("tasks", bars.MofNCompleteColumn(), total=None) as update:

        def begin(graph: Any, state: dict[str, Any]) -> None:
            """Add the tasks of a graph to the total, as one command may compute several graphs."""
            nonlocal total
            total += sum(len(state[kind]) for kind in ("ready", "waiting"))
            update(total=total)

        with Callback(start_state=begin, posttask=lambda *_: update(advance=1)):
            yield


@contextlib.contextmanager
def _bar(text: str, *columns: bars.ProgressColumn, total: int | None, **fields: Any) -> Iterator[Callable[..., None]]:
    """Show a bar, which also says when a kernel is being compiled; yield the function that updates it."""
    console = Console(stderr=True)
    has_terminal_as_stdout = bool(sys.stdout) and sys.stdout.isatty()
    columns = bars.TextColumn(text), bars.BarColumn(), *columns, bars.TimeRemainingColumn()
    columns = *columns, bars.TextColumn("{task.fields[now]}")
    is_hidden = not console.is_terminal
    kernels = itertools.count(1)
    # lines that are printed meanwhile go above the bar if they go to a terminal, else to their file
    with bars.Progress(
        *columns, console=console, disable=is_hidden, redirect_stdout=has_terminal_as_stdout
    ) as progress:
        update = functools.partial(progress.update, progress.add_task("", total=total, now="", **fields))
        earlier_notice = notices.before_compiling
        if not progress.disable:
            notices.before_compiling = lambda: update(now=f"compiling, once: {next(kernels)}", refresh=True)
        try:
            yield functools.partial(update, now="")
        finally:
            notices.before_compiling = earlier_notice
