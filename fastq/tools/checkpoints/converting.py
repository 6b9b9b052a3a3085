"""Convert a model directory into a quantized one, or back: shard by shard, the index last."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastq.system.atomic import replacing
from fastq.tools.checkpoints.config_json import CONFIG
from fastq.tools.checkpoints.conversion import Conversion
from fastq.tools.checkpoints.copied_files import companions
from fastq.tools.checkpoints.folder import ModelFolder, Shard
from fastq.tools.checkpoints.journal import JOURNAL, FinishedShard, has_digests, prepare_folder
from fastq.tools.checkpoints.json_files import write_json
from fastq.tools.checkpoints.shard_writer import GrowingShard
from fastq.tools.files.pipeline import Converted, Progress, Say, Task, header_of, run
from fastq.tools.files.safetensors_files import Header


def convert(
    conversion: Conversion, out: Path, *, force: bool = False, progress: Progress, notice: Say = lambda text: None
) -> list[Converted]:
    """Write the directory into which a conversion turns a model.

    Finished shards of an interrupted run of the same conversion are kept if their digests are right. `notice` is called
    with a line if such a run is continued, and with a line on files that are not copied. With `force` other files in
    `out` are replaced. Raise ValueError naming the tensor if the model can't be converted; `UnfitOut` if `out` holds
    something else.
    """
    source = conversion.source
    # tasks are made duplicates: here for the tensors that they name, and below to be run
    headers = {name: header_of(conversion.tasks(name), conversion.metadata(name)) for name in source.shards}
    check_names(tensor for header in headers.values() for tensor in header.specs)
    config = conversion.config()
    copies, lines = companions(source, out)
    journal = prepare_folder(conversion, out, [*map(Path, headers), *copies], force, notice)
    for line in lines:
        notice(f"{source.path}: {line}")
    rows: list[Converted] = []
    for name, shard in source.shards.items():
        finished = journal.shards.get(name)
        if finished is not None and has_digests(out / name, finished.digests):
            rows += finished.rows
            progress(sum(spec.nbytes for spec in shard.tensors.values()), len(shard.tensors))
            continue
        with replacing(out / name) as file, GrowingShard(file, headers[name]) as growing:
            rows_of_shard = run(_read_ahead(shard, conversion.tasks(name)), growing, progress, in_parallel=True)
            digests = growing.digests()
        journal.shards[name] = FinishedShard(digests=digests, rows=rows_of_shard)
        journal.save(out)
        rows += rows_of_shard
    _finish(source, out, headers, copies, config)
    return rows


def _read_ahead(shard: Shard, tasks: Iterable[list[Task]]) -> Iterator[list[Task]]:
    """Yield the tasks of each tensor of a shard while the system reads the next one."""
    next_names = [*list(shard.tensors)[1:], ""]
    for next_name, tasks_of_tensor in zip(next_names, tasks, strict=False):  # a shard may be empty
        if next_name:
            shard.read_ahead(next_name)
        yield tasks_of_tensor


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError if two tensors of a model, in one shard or in two, would have one name."""
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise ValueError(f"two tensors would be named {duplicates[0]!r}")


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
