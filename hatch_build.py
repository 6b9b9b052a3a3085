"""What hatchling runs to build a wheel: with FASTQ_BUILD_KERNELS=1 it gets machine code, else it is for any platform.

Machine code is made for each level of instructions that this machine has (`LEVELS` of fastq/system/cpu.py) by a process
of its own, which is told to compile for that; FASTQ_BUILD_KERNELS may also be the name of one level, and 0 or nothing
is off. It is linked by the C compiler, `cc` or what CC says. Two builds give the same bytes. FASTQ_BUILD_WORKS names
some of the works alone, FASTQ_BUILD_JOBS says how many processes compile for a level.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
SWITCH = "FASTQ_BUILD_KERNELS"
OFF = ("", "0")
# without names of internal symbols, and without what depends on the name of the file
LINK = {
    "Linux": "-shared -nostdlib -Wl,--build-id=none,--strip-all,-z,noexecstack",
    # with a UUID, which macOS 26 asks for: a digest of the content
    "Darwin": "-dynamiclib -undefined dynamic_lookup -Wl,-x,-install_name,fastq",
}


def compile_part(recipes: list[tuple[str, Any]], folder: str) -> None:
    """Compile functions as position-independent code, each to a file by its name in the library."""
    from llvmlite import binding

    from fastq.engine.jit import TARGET
    from fastq.engine.jit import compile as jit
    from fastq.engine.jit.options import jit_enabled
    from fastq.engine.jit.pipeline import ENTRY, compile_library

    machine = binding.Target.from_triple(TARGET.triple).create_target_machine(
        cpu=TARGET.cpu, features=TARGET.features, opt=3, reloc="pic", codemodel="small"
    )
    for symbol, recipe in recipes:

        def compiled(function: Any, result: Any, arguments: tuple[Any, ...], symbol: str = symbol) -> jit.Compiled:
            with jit_enabled():
                module = compile_library(function, result, arguments)._final_module
            module.get_function(ENTRY).name = symbol
            Path(folder, f"{symbol}.o").write_bytes(machine.emit_object(module))
            return jit.Compiled(1, False)

        jit._load_or_compile = compiled
        jit._functions.clear()  # recipes may be of one kernel
        recipe.compiled()


def compile_level(level: str, target: str) -> None:
    """Compile what the table of works needs for a level, which the environment names too, and link it."""
    from fastq.engine.code import shipped
    from fastq.engine.runtime import threadpool
    from fastq.operations import works
    from fastq.system import cpu

    found, jobs = shipped.record(), int(os.environ.get("FASTQ_BUILD_JOBS") or os.cpu_count() or 1)
    for threads in (1, 2, 16, 256):
        threadpool.set_num_threads(threads)
        works.plan(os.environ.get("FASTQ_BUILD_WORKS", " ".join(works.WORKS)).split())
    recipes = sorted(found.items())
    with tempfile.TemporaryDirectory() as folder:
        parts = [multiprocessing.Process(target=compile_part, args=(recipes[k::jobs], folder)) for k in range(jobs)]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        objects = sorted(map(str, Path(folder).glob("*.o")))
        if len(objects) < len(recipes):
            raise SystemExit(f"{len(recipes) - len(objects)} of {len(recipes)} functions were not compiled")
        command = [*shlex.split(os.environ.get("CC", "cc")), *LINK[cpu.SYSTEM].split(), "-o", target]
        subprocess.run([*command, *objects], check=True)
    Path(f"{target}.json").write_text(json.dumps(shipped.header(Path(target).read_bytes())))
    print(f"{level}: {len(recipes)} functions, {Path(target).stat().st_size:,} bytes")


def is_on() -> bool:
    """Return whether machine code is wanted."""
    return os.environ.get(SWITCH, "") not in OFF


def build(folder: str) -> list[Path]:
    """Make the libraries of all levels of this machine, side by side."""
    cpu, wanted = runpy.run_path(str(ROOT / "fastq" / "system" / "cpu.py")), os.environ[SWITCH]
    levels = [each for each in cpu["LEVELS"] if each.machine == cpu["MACHINE"] and wanted in ("1", each.name)]
    if not levels:
        raise SystemExit(f"{SWITCH} is {wanted}, but there is no such level of {cpu['MACHINE']}: see LEVELS")
    running = []
    for each in levels:
        told = {
            "NUMBA_CPU_NAME": each.name,
            "NUMBA_CPU_FEATURES": each.features,
            "PYTHONHASHSEED": "0",
            "NUMBA_NUM_THREADS": "256",
        }
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, __file__, each.name, str(Path(folder, each.name))]
        running.append(subprocess.Popen(command, env=os.environ | told | {"PYTHONPATH": path}))
    if sum(each.wait() != 0 for each in running):
        raise SystemExit("machine code was not made")
    return sorted(Path(folder).iterdir())


if __name__ == "__main__":
    compile_level(*sys.argv[1:])
elif __name__ != "__mp_main__":  # the name in processes of `multiprocessing`, which compile and need no hatchling
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class MachineCode(BuildHookInterface):  # type: ignore[type-arg]
        """Put machine code into a wheel."""

        def dependencies(self) -> list[str]:
            """Return what the processes that compile need: what the package does, and the dtypes that works name."""
            return [*self.metadata.core.dependencies, "ml-dtypes"] if is_on() else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Make it, and have the wheel named for this platform."""
            if not is_on() or version == "editable":
                return
            self.folder = tempfile.TemporaryDirectory()
            for path in build(self.folder.name):
                build_data["force_include"][str(path)] = f"fastq/machine_code/{path.name}"
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Remove the files, which are in the wheel now."""
            if hasattr(self, "folder"):
                self.folder.cleanup()
