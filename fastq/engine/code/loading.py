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
    """Bring machine code into memory, by an engine of its own, where no name in it is that of another's."""
    with imports.undisturbed():
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
        config = sys.modules.get("numba.core.config")
        asked = os.environ.get("NUMBA_USE_LLVMLITE_MEMORY_MANAGER", "")
        manager = config.USE_LLVMLITE_MEMORY_MANAGER if config else {"0": False, "1": True}.get(asked)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine, manager)
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _engines.append(engine)
        return int(engine.get_function_address(ENTRY))
