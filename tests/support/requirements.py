"""What fastq uses of others that they keep private: the one place that names it, with the versions it was checked with.

`fastq.engine.runtime.boundary` looks itself where objects keep their fields when it is imported.
"""

from __future__ import annotations

import pkgutil
from typing import NamedTuple


class Versions(NamedTuple):
    """The versions that were checked, from the first one on and before the second one; the lowest are a job of CI.

    With which of them which tests ran is in docs/reliability.md.
    """

    lowest: str
    below: str


# pyproject.toml has the same bounds, of Numba the first
VERSIONS = {
    "numba": Versions("0.62", "0.69"),  # later ones are taken, too: what is left below is old and hardly changes
    "numpy": Versions("2.0", "2.6"),
    "llvmlite": Versions("0.45", "0.51"),  # each Numba needs one of them
    "python": Versions("3.11", "3.16"),  # others are not refused: boundary.py of the engine looks at what it relies on
}


class Private(NamedTuple):
    """Names of a distribution that files of the package use, and what for.

    Those with a colon can be looked up, "module:attribute"; others stand in a header or are attributes of instances.
    What follows a space explains a name.
    """

    owner: str
    used_by: str  # files and folders of fastq/, or a file next to it
    what_for: str
    names: tuple[str, ...]


PRIVATE = (
    Private(
        "numba",
        "engine/jit/options.py, ops/numba_overloads.py",
        "LLVM has one user at a time, who is Numba where it compiles: forks wait for it, too",
        ("numba.core.compiler_lock:global_compiler_lock", "numba.core.compiler_lock:global_compiler_lock.is_locked"),
    ),
    Private(
        "numba",
        "engine/jit, engine/code",
        "settings that Numba documents as NUMBA_..., as they are after its start",
        tuple(
            f"numba.core.config:{name}"
            for name in [
                "OPT",
                "LOOP_VECTORIZE",
                "SLP_VECTORIZE",
                "CPU_NAME",
                "CPU_FEATURES",
                "ENABLE_AVX",
                "USE_LLVMLITE_MEMORY_MANAGER",
            ]
        ),
    ),
    Private(
        "numba",
        "engine/runtime/threadpool.py",
        "the number of threads to start with",
        ("numba.core.config:NUMBA_NUM_THREADS",),
    ),
    Private(
        "numba",
        "engine/jit/numba_calls.py",
        "finds the elements of an array, from the context that public intrinsics get",
        ("numba.core.base:BaseContext.make_array", "BaseContext.make_array().data"),
    ),
    Private(
        "numba",
        "__init__.py, ops/numba_overloads.py",
        "tells a compilation that has begun of the functions that it can call; another one finds them by itself",
        (
            "numba.core.entrypoints:_already_initialized",
            "numba.core.registry:cpu_target.typing_context.refresh",
            "numba.core.registry:cpu_target.target_context.refresh",
        ),
    ),
    Private(
        "numba",
        "hatch_build.py",
        "a symbol of Numba's runtime, which its import looks up for the platform that a wheel is for",
        ("_NRT_MemInfo_call_dtor as macOS has it",),
    ),
    Private(
        "llvmlite",
        "engine/jit, engine/simd",
        "finds functions in a module, and keeps ours there as text, which passes of Numba do not change",
        ("llvmlite.ir.Module.globals and what Numba and llvmlite do with objects in it: they take str of each",),
    ),
    Private(
        "llvmlite",
        "engine/jit/emission.py",
        "sets the type of a result late",
        (
            "llvmlite.ir.values:ReturnValue",
            "llvmlite.ir.Function.ftype",
            "llvmlite.ir.Function.type",
            "llvmlite.ir.Function.return_value",
        ),
    ),
    Private(
        "llvmlite",
        "hatch_build.py",
        "public functions, in place of which there are others for the platform that a wheel is for",
        ("llvmlite.binding:get_process_triple", "llvmlite.binding:Target.from_default_triple"),
    ),
    Private(
        "llvm",
        "engine/simd, engine/runtime, kernels",
        "intrinsics of LLVM 20 and later for any CPU",
        (
            *("llvm.fabs", "llvm.rint", "llvm.floor", "llvm.sqrt", "llvm.ceil", "llvm.trunc", "llvm.copysign"),
            *("llvm.fma", "llvm.lrint", "llvm.ctpop", "llvm.prefetch.p0"),
        ),
    ),
    Private(
        "llvm",
        "engine/simd, engine/runtime, kernels",
        "intrinsics of LLVM 20 and later for x86-64",
        (
            *("llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr", "llvm.x86.sse2.pause", "llvm.x86.ssse3.pshuf.b.128"),
            *("llvm.x86.avx2.permd", "llvm.x86.avx512.permvar.si.512", "llvm.x86.avx512.vpermi2var.d.512"),
        ),
    ),
    Private(
        "llvm",
        "engine/simd, engine/runtime, kernels",
        "intrinsics of LLVM 20 and later for AArch64",
        (
            *("llvm.aarch64.get.fpcr", "llvm.aarch64.set.fpcr", "llvm.aarch64.get.fpsr", "llvm.aarch64.set.fpsr"),
            *("llvm.aarch64.hint", "llvm.aarch64.neon.tbl1.v16i8"),
        ),
    ),
    Private(
        "python",
        "engine/runtime/shared_records.py",
        "fields of objects that compiled code reads: checked when boundary.py is imported",
        ("PyObject.ob_type is the last word of the head", "PyFloatObject.ob_fval comes after the head"),
    ),
    Private(
        "python",
        "engine/runtime/boundary.py, engine/runtime/instructions.py",
        "locks that threads wait for, and the clock of time.perf_counter, as functions of C",
        (
            "PyThread_allocate_lock",
            "PyThread_acquire_lock",
            "PyThread_release_lock",
            "_PyTime_GetPerfCounter before Python 3.13, from which on it has a public name",
        ),
    ),
    Private(
        "python",
        "engine/jit/compile.py",
        "tells functions of one name apart, whatever the bytes mean",
        ("CodeType.co_code",),
    ),
    Private(
        "numpy",
        "engine/runtime/shared_records.py",
        "arrays and scalars that compiled code reads: checked when boundary.py is imported",
        ("PyArrayObject_fields.data comes after the head", "PyFloatScalarObject.obval and others, after the head"),
    ),
)


def _pair(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def is_checked(owner: str, version: str) -> bool:
    """Whether a version is among those that were checked."""
    lowest, below = VERSIONS[owner]
    return _pair(lowest) <= _pair(version) < _pair(below)


def missing(rows: tuple[Private, ...]) -> list[str]:
    """Return the names that can be looked up and do not exist."""
    return [name for row in rows for name in row.names if ":" in name and " " not in name and not _exists(name)]


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


if __name__ == "__main__":
    for owner in dict.fromkeys(row.owner for row in PRIVATE):
        print(sum(len(row.names) for row in PRIVATE if row.owner == owner), "private names of", owner)
