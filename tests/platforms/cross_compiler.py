"""The other side of `compiled_elsewhere`: `python -m tests.platforms.cross_compiler FOLDER TRIPLE` compiles on demand.

NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say for which CPU. Several share the work of a folder. Each ends with the process
that started it.
"""

import os
import pickle
import sys
import time
import traceback
from pathlib import Path

from compiled_elsewhere import ANSWER, ERROR, REQUEST  # by the name that the other process has it by
from llvmlite import binding


def serve(folder):
    """Answer requests until the parent has ended."""
    from fastq.engine.jit.library import compile_library
    from fastq.engine.jit.options import compiling

    parent = os.getppid()
    while os.getppid() == parent:
        for path in sorted(folder.glob("*" + REQUEST)):
            taken = path.with_suffix(".taken")
            try:
                path.rename(taken)
            except FileNotFoundError:  # another process compiles it
                continue
            try:
                with compiling():
                    answer = compile_library(*pickle.loads(taken.read_bytes())).machine_code()
            except Exception:
                answer = ERROR + traceback.format_exc().encode()
            taken.unlink()
            written = path.with_suffix(".written")
            written.write_bytes(answer)
            written.rename(path.with_suffix(ANSWER))
        time.sleep(0.01)


def main():
    folder, triple = sys.argv[1:]
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.get_process_triple = lambda: triple
    binding.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(triple))
    serve(Path(folder))


if __name__ == "__main__":
    main()
