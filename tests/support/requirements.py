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
    """

    owner: str
    used_by: str
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
        ("numba.core.base:BaseContext.make_array",),
    ),
    Private(
        "numba",
        "fastq, ops/numba_overloads.py",
        "tells a compilation that has begun of the functions that it can call; another one finds them by itself",
        (
            "numba.core.entrypoints:_already_initialized",
            "numba.core.registry:cpu_target.typing_context.refresh",
            "numba.core.registry:cpu_target.target_context.refresh",
        ),
    ),
    Private(
        "llvmlite",
        "engine/jit",
        "finds functions in a module, keeps ours from passes of Numba, sets the type of a result late",
        ("module.globals of llvmlite.ir", "llvmlite.ir.values:ReturnValue"),
    ),
    Private(
        "llvmlite",
        "engine/simd",
        "the names of LLVM's intrinsics, which are those of LLVM 20 and later",
        ("llvm.lrint, llvm.prefetch.p0 and others",),
    ),
    Private(
        "python",
        "engine/runtime/boundary.py",
        "functions that Python calls by METH_FASTCALL, and objects that compiled code reads: checked when imported",
        (
            "PyObject.ob_type is the last word of the head",
            "PyFloatObject.ob_fval comes after the head",
            "PyThread_acquire_lock, PyThread_release_lock, _PyTime_GetPerfCounter or PyTime_PerfCounterRaw",
        ),
    ),
    Private(
        "numpy",
        "engine/runtime/boundary.py",
        "arrays and scalars that compiled code reads: checked when imported",
        (
            "PyArrayObject_fields: data, nd, dimensions, strides, base, descr, flags",
            "scalars keep obval after the head",
        ),
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
    print(sum(len(row.names) for row in PRIVATE), "private names")
