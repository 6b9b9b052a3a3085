"""The pipeline of all conversions of files, directories and GGUF files: tensor by tensor, some rows at a time.

A conversion has a `Task` for each tensor of its source: pieces of work, each of which reads some rows and returns the
rows to store. Here the pieces are run, written and measured, and progress is reported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import NamedTuple, Protocol

import fastq
from fastq.system.atomic import replacing
from fastq.system.dtypes import Array
from fastq.tools.files.containers import writer_of
from fastq.tools.files.measured_errors import Errors
from fastq.tools.files.safetensors_files import Header
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.files.texts import count_text

Shape = tuple[int, ...]
WORKERS = 4  # most pieces at a time: the serial parts of one overlap with kernels of others
Say = Callable[[str], None]  # called with a line for the user
Progress = Callable[[int, int], None]  # called with the bytes and tensors of the source that are done


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The result for a tensor: a row of a table."""

    name: str
    shape: Shape | None  # None: a total
    before: int  # bytes in the source
    after: int  # bytes in the result
    source: str = ""  # its old type, in GGUF files
    target: str  # its scheme, or why it was not quantized
    errors: Errors | None = None  # None if they were not measured
    weighted: bool = False  # whether an importance matrix was used
    size: int = 0  # number of elements
    remark: str = ""  # changes of its values other than quantization

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise ratio in decibels, if it was measured."""
        return None if self.errors is None else self.errors.sqnr_db

    @property
    def max_abs_error(self) -> float | None:
        """The largest error, if it was measured."""
        return None if self.errors is None else self.errors.largest


def total_of(rows: Sequence[Converted]) -> Converted:
    """Return the total of a table. Its errors are those of tensors with an error, since copied ones have none."""
    measured = [row.errors for row in rows if row.errors is not None]
    noisy = [errors for errors in measured if errors.noise]
    return Converted(
        name=count_text(len(rows), "tensor"),
        shape=None,
        before=sum(row.before for row in rows),
        after=sum(row.after for row in rows),
        target="total",
        errors=reduce(Errors.with_more, noisy or measured) if measured else None,
        size=sum(row.size for row in rows),
    )


class Piece(NamedTuple):
    """The data to store for some rows of a tensor."""

    stored: dict[str, Array]  # by the names of the tensors that grow by it
    nbytes: int  # bytes in the source
    errors: Errors | None = None
    remark: str = ""  # as in `Converted`


@dataclass(frozen=True, kw_only=True)
class Task:
    """The conversion of a tensor of the source, or of a matrix in it: fields as in `Converted`, and the work."""

    name: str
    shape: Shape
    before: int
    target: str
    pieces: Iterable[Callable[[], Piece]]  # each call makes the data of some rows
    specs: Sequence[TensorSpec] = ()  # tensors of a .safetensors file to which the pieces are appended
    source: str = ""
    weighted: bool = False


def copy_task(spec: TensorSpec, raw: Callable[[str], Array], target: str = "copied") -> Task:
    """Return the task that copies a tensor whose bytes `raw` returns."""
    return Task(
        name=spec.name,
        shape=spec.shape,
        before=spec.nbytes,
        target=target,
        pieces=[lambda: Piece({spec.name: raw(spec.name)}, spec.nbytes)],  # read when it is run, as a whole
        specs=[spec],
    )


class Output(Protocol):
    """A file of tensors that grow."""

    def append(self, name: str, rows: Array) -> int:
        """Write the next rows of a tensor, and return their bytes."""


def run(tasks: Iterable[list[Task]], out: Output, progress: Progress, *, in_parallel: bool = False) -> list[Converted]:
    """Run the tasks of all tensors of a source in their order, and return the results.

    `tasks` has a list of tasks for each tensor, which may be empty. `progress` is called with bytes after each piece,
    and with a tensor after its tasks. With `in_parallel` several threads make pieces at a time, which takes the memory
    of several pieces.
    """
    results = []
    with ThreadPoolExecutor(min(fastq.get_num_threads(), WORKERS)) as executor:
        try:
            for tasks_of_tensor in tasks:
                for task in tasks_of_tensor:
                    pieces = _in_order(executor, task.pieces) if in_parallel else (work() for work in task.pieces)
                    results.append(_run_task(task, pieces, out, progress))
                progress(0, 1)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)  # pieces that nobody waits for
            raise
    return results


def _run_task(task: Task, pieces: Iterator[Piece], out: Output, progress: Progress) -> Converted:
    """Write the pieces of a task, and return the result."""
    errors = None
    nbytes = 0
    remark = ""
    for piece in pieces:
        remark = remark or piece.remark
        nbytes += sum(out.append(name, rows) for name, rows in piece.stored.items())
        if piece.errors is not None:
            errors = piece.errors if errors is None else errors.with_more(piece.errors)
        progress(piece.nbytes, 0)
        del piece  # before the next one is made
    return Converted(
        name=task.name,
        shape=task.shape,
        before=task.before,
        after=nbytes,
        source=task.source,
        target=task.target,
        errors=errors,
        weighted=task.weighted,
        size=math.prod(task.shape),
        remark=remark,
    )


def _in_order(executor: ThreadPoolExecutor, pieces: Iterable[Callable[[], Piece]]) -> Iterator[Piece]:
    """Yield pieces in their order, while threads work on the following ones; at most WORKERS of them are ahead."""
    futures: deque[Future[Piece]] = deque()
    for work in pieces:
        futures.append(executor.submit(work))
        if len(futures) > WORKERS:
            yield futures.popleft().result()
    while futures:
        yield futures.popleft().result()


def header_of(tasks: Iterable[list[Task]], metadata: Mapping[str, str]) -> Header:
    """Return the header of the file that some tasks write."""
    specs = (spec for tasks_of_tensor in tasks for task in tasks_of_tensor for spec in task.specs)
    return Header(specs, metadata)


def write_file(out: Path, tasks: list[list[Task]], metadata: Mapping[str, str], progress: Progress) -> list[Converted]:
    """Write a .safetensors or a .npz file, which appears whole or not at all."""
    header = header_of(tasks, metadata)
    with replacing(out) as file, writer_of(file, out, header, metadata) as writer:
        rows = run(tasks, writer, progress)
        writer.finish()
    return rows
