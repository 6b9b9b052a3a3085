"""What hatchling runs to build a wheel: with FASTQ_BUILD_KERNELS=1 it gets machine code, else it is for any platform.

FASTQ_BUILD_KERNELS is 1, a name of `PLATFORMS` for the wheel of another one, or a single level; 0 or nothing is off.
Machine code is made for each level of instructions of the platform (`LEVELS` of fastq/system/cpu.py) by a process of
its own, which is told to compile for that, and linked by the C compiler: `cc` or what CC says, for another platform one
that links for it. Two builds give the same bytes. FASTQ_BUILD_WORKS names some of the works alone, FASTQ_BUILD_JOBS
says how many processes compile for a level.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent
SWITCH = "FASTQ_BUILD_KERNELS"
OFF = ("", "0")


class Platform(NamedTuple):
    """Where wheels with machine code are installed.

    Attributes
    ----------
    name : str
        What FASTQ_BUILD_KERNELS is for it.
    system, machine : str
        As `uname` names them, of AArch64 as Linux does.
    triple : str
        LLVM's name of the target.
    tag : str
        The last part of the wheel's name.
    """

    name: str
    system: str
    machine: str
    triple: str
    tag: str


PLATFORMS = (  # nothing of a C library is linked, so that any version of it will do
    Platform("linux-x86_64", "Linux", "x86_64", "x86_64-unknown-linux-gnu", "manylinux_2_17_x86_64"),
    Platform("linux-aarch64", "Linux", "aarch64", "aarch64-unknown-linux-gnu", "manylinux_2_17_aarch64"),
    Platform("macos-arm64", "Darwin", "aarch64", "arm64-apple-macosx11.0.0", "macosx_11_0_arm64"),
)
# without names of internal symbols, and without what depends on the name of the file
LINK = {
    "Linux": "-shared -nostdlib -Wl,--build-id=none,--strip-all,-z,noexecstack",
    # with a UUID, which macOS 26 asks for: a digest of the content
    "Darwin": "-dynamiclib -undefined dynamic_lookup -Wl,-x,-install_name,fastq",
}


def aim(platform: Platform) -> None:
    """Have this process plan and compile for a platform; Numba must not have been imported."""
    from llvmlite import binding

    from fastq.system import cpu

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.add_symbol("_NRT_MemInfo_call_dtor", 1)  # as macOS has it: Numba brings its runtime into memory, unused
    binding.get_process_triple = lambda: platform.triple
    binding.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(platform.triple))
    cpu.SYSTEM, cpu.MACHINE = platform.system, platform.machine


def compile_part(platform: Platform, recipes: list[tuple[str, Any]], folder: str) -> None:
    """Compile functions as position-independent code, each to a file by its name in the library."""
    aim(platform)
    from llvmlite import binding

    from fastq.engine.code.loading import ENTRY
    from fastq.engine.jit import TARGET
    from fastq.engine.jit import compile as jit
    from fastq.engine.jit.library import compile_library
    from fastq.engine.jit.options import compiling

    machine = binding.Target.from_triple(TARGET.triple).create_target_machine(
        cpu=TARGET.cpu, features=TARGET.features, opt=3, reloc="pic", codemodel="small"
    )
    for symbol, recipe in recipes:

        def compiled(function: Any, result: Any, arguments: tuple[Any, ...], symbol: str = symbol) -> int:
            with compiling():
                module = compile_library(function, result, arguments).module
            module.get_function(ENTRY).name = symbol
            Path(folder, f"{symbol}.o").write_bytes(machine.emit_object(module))
            return 1

        jit._load_or_compile = compiled
        jit._functions.clear()  # recipes may be of one kernel
        recipe.compile_or_load()


def compile_level(name: str, level: str, target: str) -> None:
    """Compile what the table of works needs for a level of a platform, which the environment names too, and link it."""
    platform = next(each for each in PLATFORMS if each.name == name)
    aim(platform)
    from fastq.engine.code import shipped
    from fastq.engine.runtime import threadpool
    from fastq.ops import works

    found, jobs = shipped.record(), int(os.environ.get("FASTQ_BUILD_JOBS") or os.cpu_count() or 1)
    for threads in (1, 2, 16, 256):
        threadpool.set_num_threads(threads)
        works.plan(os.environ.get("FASTQ_BUILD_WORKS", " ".join(works.WORKS)).split())
    recipes = sorted(found.items())
    with tempfile.TemporaryDirectory() as folder:
        parts = [
            multiprocessing.Process(target=compile_part, args=(platform, recipes[k::jobs], folder)) for k in range(jobs)
        ]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        objects = sorted(map(str, Path(folder).glob("*.o")))
        if len(objects) < len(recipes):
            raise SystemExit(f"{len(recipes) - len(objects)} of {len(recipes)} functions were not compiled")
        command = [*shlex.split(os.environ.get("CC", "cc")), *LINK[platform.system].split(), "-o", target]
        subprocess.run([*command, *objects], check=True)
    Path(f"{target}.json").write_text(json.dumps(shipped.label_of(Path(target).read_bytes())))
    print(f"{level}: {len(recipes)} functions, {Path(target).stat().st_size:,} bytes")


def is_on() -> bool:
    """Return whether machine code is wanted."""
    return os.environ.get(SWITCH, "") not in OFF


def build(folder: str) -> tuple[list[Path], str]:
    """Make the libraries of all levels of a platform, side by side; return them and the platform's tag."""
    cpu, wanted = runpy.run_path(str(ROOT / "fastq" / "system" / "cpu.py")), os.environ[SWITCH]
    here = [each for each in PLATFORMS if (each.system, each.machine) == (cpu["SYSTEM"], cpu["MACHINE"])]
    platforms = [each for each in PLATFORMS if each.name == wanted] or here
    found = [(row, level) for row in platforms for level in cpu["LEVELS"] if level.machine == row.machine]
    found = [(row, level) for row, level in found if wanted in ("1", row.name, level.name)]
    if not found:
        raise SystemExit(f"{SWITCH} is {wanted}, but PLATFORMS has no such row, and no level of this one is called so")
    running = []
    for row, each in found:
        told = {
            "NUMBA_CPU_NAME": each.cpu,
            "NUMBA_CPU_FEATURES": each.features,
            "PYTHONHASHSEED": "0",
            "NUMBA_NUM_THREADS": "256",
        }
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, __file__, row.name, each.name, str(Path(folder, each.name))]
        running.append(subprocess.Popen(command, env=os.environ | told | {"PYTHONPATH": path}))
    if sum(each.wait() != 0 for each in running):
        raise SystemExit("machine code was not made")
    return sorted(Path(folder).iterdir()), found[0][0].tag


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
            paths, tag = build(self.folder.name)
            build_data["force_include"] |= {str(path): f"fastq/machine_code/{path.name}" for path in paths}
            build_data |= {"pure_python": False, "tag": f"py3-none-{tag}"}

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Remove the files, which are in the wheel now."""
            if hasattr(self, "folder"):
                self.folder.cleanup()
