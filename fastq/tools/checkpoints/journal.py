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
from fastq.tools.checkpoints.conversion import Conversion, Notice
from fastq.tools.checkpoints.json_files import read_json, write_json
from fastq.tools.checkpoints.weight_files import INDEX
from fastq.tools.files.measured_errors import Errors
from fastq.tools.files.pipeline import Converted
from fastq.tools.files.safetensors_files import SafetensorsSource

JOURNAL = ".fastq-convert.json"  # the list of finished shards, next to the shards
VERSION = 2


class UnfitOut(ValueError):
    """The result of a conversion can't be written to a directory."""


@dataclass
class Journal:
    """The finished shards of a conversion; `job` is a digest of everything they depend on except the program."""

    job: str
    program: str = __version__
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write it."""
        write_json(folder / JOURNAL, {"version": VERSION, **asdict(self)})


def prepare_folder(conversion: Conversion, out: Path, names: list[Path], force: bool, notice: Notice) -> Journal:
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


def has_digests(path: Path, digests: dict[str, str]) -> bool:
    """Return whether a shard exists and holds exactly the data of its digests."""
    try:
        source = SafetensorsSource(path)
    except Exception:  # missing or damaged: it is written again
        return False
    if set(source.tensors) != set(digests):
        return False
    return all(hashlib.sha256(source.raw(name).data).hexdigest() == digest for name, digest in digests.items())
