"""Machine code in memory: object files become functions, which stay until the process ends."""

from __future__ import annotations

import os
import sys
from typing import Any

from fastq.system import imports

ENTRY = "fastq_kernel"  # the name of the function in a file
in_use: dict[bytes, int] = {}  # addresses of functions in memory, by the references of their files
_engines: list[Any] = []  # machine code lives as long as its engine


def in_memory(code: bytes) -> int:
    """Bring machine code into memory, and return the address of its function `ENTRY`.

    Each file has an engine of its own, so that a name in it is never taken for that of another file. The engine uses
    the memory manager that Numba's setting chooses, which is read from the environment where Numba is not imported;
    None is llvmlite's own choice.
    """
    with imports.undisturbed():
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
        config = sys.modules.get("numba.core.config")
        setting = os.environ.get("NUMBA_USE_LLVMLITE_MEMORY_MANAGER", "")
        manager = config.USE_LLVMLITE_MEMORY_MANAGER if config else {"0": False, "1": True}.get(setting)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine, manager)
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        return int(engine.get_function_address(ENTRY))
