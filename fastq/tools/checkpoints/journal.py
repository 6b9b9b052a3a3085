"""The journal of a conversion: finished shards are kept when an interrupted command is repeated."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastq import __version__
from fastq.system.atomic import is_temporary
from fastq.tools.checkpoints.config_json import CONFIG
from fastq.tools.checkpoints.conversion import Conversion
from fastq.tools.checkpoints.json_files import read_json, write_json
from fastq.tools.checkpoints.weight_files import INDEX
from fastq.tools.files.measured_errors import Errors
from fastq.tools.files.pipeline import Converted, Say
from fastq.tools.files.safetensors_files import SafetensorsSource

JOURNAL = ".fastq-convert.json"  # the list of finished shards, next to the shards
VERSION = 3  # of the contents of the journal


class UnfitOut(ValueError):
    """The result of a conversion can't be written to a directory."""


@dataclass(frozen=True)
class FinishedShard:
    """A shard that was written as a whole."""

    digests: dict[str, str]  # of the data of each tensor
    rows: list[Converted]  # of the table


@dataclass
class Journal:
    """The finished shards of a conversion."""

    job: str  # a digest of everything that they depend on except the program
    program: str = __version__
    shards: dict[str, FinishedShard] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the journal into the folder of the result."""
        write_json(folder / JOURNAL, {"version": VERSION, **asdict(self)})


def prepare_folder(conversion: Conversion, out: Path, names: list[Path], force: bool, notice: Say) -> Journal:
    """Return the journal of a directory to continue with, or a new one; check that files may be written there.

    A run of the same conversion is continued if it was of the same version of fastq. `names` are the files of the
    result, relative to `out`, which replace others only with `force`.
    """
    source = conversion.source
    job = _digest_of_job(conversion)
    if out.exists() and (not out.is_dir() or out.samefile(source.path)):
        raise UnfitOut(f"{out} is {'SRC itself' if out.is_dir() else 'not a directory'}; name another one")
    out.mkdir(exist_ok=True)
    previous = _read_journal(out)
    is_same_job = previous is not None and previous.job == job
    if _is_in_use(out, previous) and not is_same_job and not force:
        state = "is an unfinished conversion of something else" if previous else "is not empty"
        raise UnfitOut(f"{out} {state}; --force replaces the files in the way")
    _make_way(out, [*names, Path(CONFIG), Path(source.index or INDEX), Path(JOURNAL)], force)
    if previous is not None and is_same_job:
        if previous.program == __version__:
            if previous.shards:
                notice(f"{out}: {len(previous.shards)} of {len(source.shards)} shards are finished already: continuing")
            return previous
        notice(f"{out} was begun by fastq {previous.program}, this is {__version__}: starting again")
    for name in {INDEX, source.index or INDEX, CONFIG, JOURNAL}:  # an old index would be read with new shards
        (out / name).unlink(missing_ok=True)
    journal = Journal(job)
    journal.save(out)  # from now on the directory is known to be an unfinished conversion
    return journal


def _is_in_use(out: Path, journal: Journal | None) -> bool:
    """Return whether a directory has more than the journal of a conversion of which no shard is finished."""
    files = {path.name for path in out.iterdir() if not is_temporary(path.name)}
    is_barely_begun = journal is not None and not journal.shards and files == {JOURNAL}
    return bool(files) and not is_barely_begun


def _digest_of_job(conversion: Conversion) -> str:
    """Return a digest of everything that shards depend on: files by name, size and time, and the conversion."""
    source = conversion.source
    stats = {name: (source.path / name).stat() for name in source.shards}
    files = {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
    text = json.dumps([VERSION, files, source.config, source.quantization, conversion.key], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _make_way(out: Path, names: list[Path], force: bool) -> None:
    """Remove the files in the way of a result, and other shards, such as those of an earlier model.

    Readers look for model.safetensors first. A link is removed, and its target stays. `names` are relative to `out`.
    """
    # the folders that the names need, without "." at the end of their parents: no file and no link may be in the place
    folders = sorted({folder for name in names for folder in name.parents[:-1]})
    in_way = [path for path in map(out.joinpath, folders) if path.is_symlink() or (path.exists() and not path.is_dir())]
    shards = (path for path in out.glob("*.safetensors") if not path.is_dir())
    in_way += [path for path in shards if path.relative_to(out) not in names]
    if in_way and not force:
        raise UnfitOut(f"{in_way[0]} is not part of the result; --force removes it")
    for path in in_way:
        path.unlink(missing_ok=True)  # a folder in a linked one is gone by now
    for path in map(out.joinpath, names):
        if path.is_dir() and not path.is_symlink():
            raise UnfitOut(f"{path} is a folder, and the result has a file of that name; move it away")


def _read_journal(out: Path) -> Journal | None:
    """Return the journal of an unfinished conversion; None without one that can be read."""
    with contextlib.suppress(ValueError, OSError, KeyError, TypeError, AttributeError):
        content = read_json(out / JOURNAL)
        if content["version"] == VERSION:
            journal = Journal(job=str(content["job"]), program=str(content.get("program", "an earlier version")))
            for name, entry in content["shards"].items():
                digests = {str(tensor): str(digest) for tensor, digest in entry["digests"].items()}
                rows = [_as_converted(row) for row in entry["rows"]]
                journal.shards[str(name)] = FinishedShard(digests=digests, rows=rows)
            return journal
    return None


def _as_converted(row: dict[str, Any]) -> Converted:
    """Return a row of the table from its fields in JSON."""
    errors = None if row["errors"] is None else Errors(*row["errors"])
    return Converted(**{**row, "shape": tuple(row["shape"]), "errors": errors})


def has_digests(path: Path, digests: dict[str, str]) -> bool:
    """Return whether a shard exists and holds exactly the data of its digests."""
    try:
        source = SafetensorsSource(path)
    except Exception:  # missing or damaged: it is written again
        return False
    if set(source.tensors) != set(digests):
        return False
    return all(hashlib.sha256(source.raw(name).data).hexdigest() == digest for name, digest in digests.items())
