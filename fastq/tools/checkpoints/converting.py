"""Convert a model directory into a quantized one, or back: shard by shard, resumable, the index written last."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from numpy.typing import NDArray

from fastq import __version__
from fastq.system.atomic import is_temporary, replacing
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.folder import CONFIG, INDEX, ModelFolder, companions, read_json
from fastq.tools.files.measured_errors import Errors
from fastq.tools.files.pipeline import Converted, Progress, Task, header_of, run
from fastq.tools.files.safetensors_files import Header, SafetensorsSource, SafetensorsWriter
from fastq.tools.files.tensor_specs import bytes_of

Notice = Callable[[str], None]
JOURNAL = ".fastq-convert.json"  # the list of finished shards, next to the shards
VERSION = 2
PIECE = 1 << 22  # bytes that are written, and digested while they are in the cache
WAITING = 8  # most pieces in memory that are not written yet
BEHIND = 16  # pieces after which the system starts to write pages to disk, so that less is left to wait for at the end


class UnfitOut(ValueError):
    """The result of a conversion can't be written to a directory."""


class Conversion(Protocol):
    """The work on each shard of a model."""

    source: ModelFolder  # the model
    key: dict[str, Any]  # everything that the result depends on except the source: JSON values

    def tasks(self, shard: str) -> Iterable[list[Task]]:
        """Yield the task for each tensor of a shard of the model."""

    def metadata(self, shard: str) -> dict[str, str]:
        """Return the metadata of a shard of the result."""

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""


@dataclass
class Journal:
    """The finished shards of a conversion; `job` is a digest of everything they depend on except the program."""

    job: str
    program: str = __version__
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write it."""
        write_json(folder / JOURNAL, {"version": VERSION, **asdict(self)})


def convert(
    conversion: Conversion, out: Path, *, force: bool = False, progress: Progress, notice: Notice = lambda text: None
) -> list[Converted]:
    """Write the directory into which a conversion turns a model.

    Finished shards of an interrupted run of the same conversion are kept if their digests are right. `notice` is called
    with a line if such a run is continued, and with a line on files that are not copied. With `force` other files in
    `out` are replaced. Raise ValueError naming the tensor if the model can't be converted; `UnfitOut` if `out` holds
    something else.
    """
    source = conversion.source
    headers = {name: header_of(conversion.tasks(name), conversion.metadata(name)) for name in source.shards}
    check_names(tensor for header in headers.values() for tensor in header.specs)
    config = conversion.config()
    copies, lines = companions(source, out)
    journal = _prepared(conversion, out, [*map(Path, headers), *copies], force, notice)
    for line in lines:
        notice(f"{source.path}: {line}")
    rows: list[Converted] = []
    for name, shard in source.shards.items():
        kept = journal.shards.get(name)
        if kept is not None and has_digests(out / name, kept["digests"]):
            rows += kept["rows"]
            progress(sum(spec.nbytes for spec in shard.tensors.values()), len(shard.tensors))
            continue
        with replacing(out / name) as file, GrowingShard(file, headers[name]) as growing:
            done = run(_read_ahead(shard, conversion.tasks(name)), growing, progress, in_parallel=True)
            digests = growing.digests()
        journal.shards[name] = {"digests": digests, "rows": done}
        journal.save(out)
        rows += done
    _finish(source, out, headers, copies, config)
    return rows


def _read_ahead(shard: SafetensorsSource, tasks: Iterable[list[Task]]) -> Iterator[list[Task]]:
    """Yield the tasks of each tensor of a shard while the system reads the next one."""
    for following, each in zip([*list(shard.tensors)[1:], ""], tasks, strict=False):  # a shard may be empty
        if following:
            shard.read_ahead(following)
        yield each


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError if two tensors of a model, in one shard or in two, would have one name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"two tensors would be named {twice[0]!r}")


def _finish(
    source: ModelFolder, out: Path, headers: dict[str, Header], copies: list[Path], config: dict[str, Any]
) -> None:
    """Write the files that make the shards a model, the index last."""
    for name in copies:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        with (source.path / name).open("rb") as original, replacing(out / name) as file:
            shutil.copyfileobj(original, file)
    write_json(out / CONFIG, config)
    if source.index:
        files = {tensor: name for name, header in headers.items() for tensor in header.specs}
        total = sum(spec.nbytes for header in headers.values() for spec in header.specs.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
        write_json(out / source.index, index)
    (out / JOURNAL).unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


def _prepared(conversion: Conversion, out: Path, names: list[Path], force: bool, notice: Notice) -> Journal:
    """Return the journal of a directory to continue with, or a new one; check that files may be written there."""
    source = conversion.source
    # everything that shards depend on: files by name, size and time, and the conversion
    stats = {name: (source.path / name).stat() for name in source.shards}
    files = {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
    text = json.dumps([VERSION, files, source.config, source.quantization, conversion.key], sort_keys=True)
    job = hashlib.sha256(text.encode()).hexdigest()
    if out.exists() and (not out.is_dir() or out.samefile(source.path)):
        raise UnfitOut(f"{out} is {'SRC itself' if out.is_dir() else 'not a directory'}; name another one")
    out.mkdir(exist_ok=True)
    journal = _unfinished(out)
    held = {path.name for path in out.iterdir() if not is_temporary(path.name)}
    same = journal is not None and journal.job == job
    if not same and not force and held and (journal is None or journal.shards or held != {JOURNAL}):
        state = "is an unfinished conversion of something else" if journal else "is not empty"
        raise UnfitOut(f"{out} {state}; --force replaces the files in the way")
    _make_way(out, [*names, Path(CONFIG), Path(source.index or INDEX), Path(JOURNAL)], force)
    if journal is not None and same:
        if journal.program == __version__:
            if journal.shards:
                notice(f"{out}: {len(journal.shards)} of {len(source.shards)} shards are finished already: continuing")
            return journal
        notice(f"{out} was begun by fastq {journal.program}, this is {__version__}: starting again")
    for name in {INDEX, source.index or INDEX, CONFIG, JOURNAL}:  # no index of an old model
        (out / name).unlink(missing_ok=True)
    journal = Journal(job)
    journal.save(out)  # from now on the directory is known to be an unfinished conversion
    return journal


def _make_way(out: Path, names: list[Path], force: bool) -> None:
    """Remove the files in the way of a result, and other shards, such as those of an earlier model.

    Readers look for model.safetensors first. A link is removed, and its target stays.
    """
    folders = sorted({folder for name in names for folder in name.parents[:-1]})
    in_way = [path for path in map(out.joinpath, folders) if path.is_symlink() or (path.exists() and not path.is_dir())]
    in_way += [path for path in out.glob("*.safetensors") if path.relative_to(out) not in names and not path.is_dir()]
    if in_way and not force:
        raise UnfitOut(f"{in_way[0]} is not part of the result; --force removes it")
    for path in in_way:
        path.unlink(missing_ok=True)  # a folder in a linked one is gone by now
    for path in map(out.joinpath, names):
        if path.is_dir() and not path.is_symlink():
            raise UnfitOut(f"{path} is a folder, and the result has a file of that name; move it away")


def _unfinished(out: Path) -> Journal | None:
    with contextlib.suppress(ValueError, OSError, KeyError, TypeError, AttributeError):
        content = read_json(out / JOURNAL)
        if content["version"] == VERSION:
            journal = Journal(str(content["job"]), str(content.get("program", "an earlier version")))
            for name, entry in content["shards"].items():
                digests = {str(tensor): str(digest) for tensor, digest in entry["digests"].items()}
                journal.shards[str(name)] = {"digests": digests, "rows": [_row(row) for row in entry["rows"]]}
            return journal
    return None


def _row(entry: dict[str, Any]) -> Converted:
    errors = None if entry["errors"] is None else Errors(*entry["errors"])
    return Converted(**{**entry, "shape": tuple(entry["shape"]), "errors": errors})


class GrowingShard(SafetensorsWriter, contextlib.AbstractContextManager["GrowingShard"]):
    """Appends rows to the tensors of a header; a separate thread writes and digests them."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        super().__init__(file, header)
        self._digests = {name: hashlib.sha256() for name in header.specs}
        self._executor = ThreadPoolExecutor(1)
        self._behind: list[tuple[int, int]] = []
        self._waiting: deque[Future[None]] = deque()

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def append(self, name: str, rows: Array) -> int:
        """Write the next rows of a tensor, which must stay as they are, and return their bytes."""
        data = bytes_of(rows)
        for start in range(0, data.size, PIECE):
            piece = data[start : start + PIECE]
            self._wait(WAITING - 1)
            self._waiting.append(self._executor.submit(self._write, name, piece, self.take(name, piece.nbytes)))
        return data.nbytes

    def _wait(self, left: int) -> None:
        """Wait until at most `left` pieces are not written; raise the error of a piece that failed."""
        while len(self._waiting) > left:
            self._waiting.popleft().result()

    def _write(self, name: str, data: NDArray[Any], start: int) -> None:
        self.write_raw(data, start)
        self._digests[name].update(data.data)
        self._behind.append((start, data.nbytes))
        if len(self._behind) >= BEHIND and hasattr(os, "posix_fadvise"):
            self._file.flush()
            with contextlib.suppress(OSError):  # a hint, which some file systems ignore: write dirty pages to disk
                for place, nbytes in self._behind:
                    os.posix_fadvise(self._file.fileno(), place, nbytes, os.POSIX_FADV_DONTNEED)
            self._behind.clear()

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor, all of which must be whole."""
        self._wait(0)
        self.finish()
        return {name: digest.hexdigest() for name, digest in self._digests.items()}


def has_digests(path: Path, digests: dict[str, str]) -> bool:
    """Return whether a shard exists and holds exactly the data of its digests."""
    try:
        source = SafetensorsSource(path)
    except Exception:  # missing or damaged: it is written again
        return False
    if set(source.tensors) != set(digests):
        return False
    return all(hashlib.sha256(source.raw(name).data).hexdigest() == digest for name, digest in digests.items())
