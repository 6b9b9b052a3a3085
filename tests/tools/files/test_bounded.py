"""Files larger than the memory that is allowed are quantized and converted in bounded memory."""

import sys
import weakref
from functools import partial

import numpy as np
import pytest
import subprocesses

from fastq.tools.files.pipeline import Piece, Task, run

# A limit on private memory: pages of files that are mapped and shared do not count.
LIMITED = """
import resource
from pathlib import Path

SHAPE, SPARE = (4096, 8192), 24 << 20  # 128 MiB of float32
folder = Path({folder!r})
x = np.memmap(folder / "x", np.float32, "w+", shape=SHAPE)
x[...] = np.linspace(-3, 5, SHAPE[1], dtype=np.float32)
x[-1] *= 2

def mapped(name, dtype, shape):
    return np.memmap(folder / name, dtype, "w+", shape=shape)

calls = {{
    "int8": lambda x, out: fastq.quantize(x, "int8", out=out),
    "int8 rows": lambda x, out: fastq.quantize(x, "int8", axis=0, out=out),
    "int4": lambda x, out: fastq.quantize(x, "int4", axis=-1, block_size=32, out=out),
    "bits": lambda x, out: fastq.binarize(x, out=out),
}}
wide = {{"int8": 1, "int8 rows": 1, "int4": 2, "bits": 8}}
outs = {{
    name: mapped(name, np.int8 if "int8" in name else np.uint8, (SHAPE[0], SHAPE[1] // wide[name])) for name in calls
}}
for name, call in calls.items():
    call(x[:512], outs[name][:512])  # kernels are compiled and threads have their stacks

def kept():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10

resource.setrlimit(resource.RLIMIT_DATA, (kept() + SPARE, resource.RLIM_INFINITY))
for name, call in calls.items():
    q = call(x, outs[name])
try:
    np.array(x)
except MemoryError:
    print("the limit is one")
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for name, call in calls.items():
    part = np.concatenate([x[:1], x[-1:]])  # of the range of all
    if name != "int8":
        same = call(part, np.empty((2, outs[name].shape[1]), outs[name].dtype))
        same = getattr(same, "codes", same)
        assert same[0].tobytes() == outs[name][0].tobytes() and same[1].tobytes() == outs[name][-1].tobytes(), name
whole = fastq.quantize(np.array(x), "int8").codes
assert whole.tobytes() == outs["int8"].tobytes()
"""


@pytest.mark.slow("a process under a limit of memory")
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mapped memory on Linux only")
def test_mapped_files_need_no_memory_of_their_size(tmp_path):
    assert "the limit is one" in subprocesses.run(LIMITED.format(folder=str(tmp_path)))


class Nowhere:
    """A file that keeps nothing."""

    def append(self, name, rows):
        return rows.nbytes


def test_a_piece_of_a_conversion_is_gone_before_the_next_one_is_made():
    """Of one tensor or of two: pieces may be whole tensors."""
    made = []

    def work(number):
        assert all(piece() is None for piece in made), "two pieces are in memory"
        rows = np.full(4, number)
        made.append(weakref.ref(rows))
        return Piece({"x": rows}, rows.nbytes)

    works = [partial(work, 0), partial(work, 1)]
    tasks = [[Task(name="x", shape=(8,), before=64, target="", pieces=works)] for _ in range(2)]
    run(tasks, Nowhere(), lambda nbytes, tensors: None)
    assert len(made) == 4
