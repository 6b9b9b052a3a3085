"""What fastq uses of others that they keep private: the one place that names it, with the versions it was checked with.

`fastq.engine.runtime.boundary` looks itself where objects keep their fields when it is imported.
"""

from __future__ import annotations

import pkgutil
from typing import NamedTuple


class Versions(NamedTuple):
    """The versions that are taken, from the first one on and before the second one; the lowest are a job of CI.

    With which of them which tests ran is in docs/reliability.md.
    """

    lowest: str
    below: str


# pyproject.toml has the same bounds
VERSIONS = {
    "numba": Versions("0.62", "0.69"),
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


def _of(**modules: str) -> tuple[str, ...]:
    """Return the names of modules of Numba, each with its names that are used."""
    return tuple(
        f"numba.{module.replace('__', '.')}:{name}" for module, names in modules.items() for name in names.split()
    )


PRIVATE = (
    Private(
        "numba",
        "engine/jit/pipeline.py",
        "compiles what users' compiled functions call, with the passes that it needs and as a part of them",
        _of(
            core__errors="TypingError",
            core__compiler="CompilerBase.define_pipelines",
            core__compiler_machinery="PassManager.finalize",
            core__typed_passes="IRLegalization NativeLowering NoPythonBackend",
            core__untyped_passes="ReconstructSSA",
            core__codegen="JITCodeLibrary._optimize_functions JITCodeLibrary._get_module_for_linking "
            "JITCodeLibrary._ensure_finalized",
            core__base="BaseContext.enable_nrt BaseContext.get_abi_sizeof",
            core__datamodel__models="DataModel.contains_nrt_meminfo",
            core__registry="cpu_target.target_context.data_model_manager",
        ),
    ),
    Private(
        "numba",
        "engine/jit/pipeline.py, engine/jit/functions.py",
        "gives a dispatcher a second table of signatures, for calls from compiled code",
        _of(
            core__registry="CPUDispatcher.get_call_template CPUDispatcher.fold_argument_types "
            "CPUDispatcher._compile_for_args CPUDispatcher._numba_type_",
            core__typing="make_concrete_template",
        ),
    ),
    Private(
        "numba",
        "engine/jit/pipeline.py, engine/jit/tracing.py",
        "types and emits calls of functions that are traced, chosen by type or emit LLVM themselves",
        _of(
            core__cgutils="if_unlikely",
            core__errors="TypingError",
            core__typing__templates="AbstractTemplate",
            core__types__functions="Function.get_call_type Function.get_impl_key",
            core__typing__context="BaseContext.insert_global BaseContext.resolve_value_type_prefer_literal "
            "BaseContext.resolve_getattr",
            core__base="BaseContext.insert_func_defn BaseContext.get_function BaseContext.get_getattr "
            "BaseContext.get_constant_generic",
        ),
    ),
    Private(
        "numba",
        "engine/jit/library.py, engine/code/loading.py",
        "optimizes kernels as Numba's settings say, and finds the memory manager of the engine that loads them",
        _of(core__config="OPT LOOP_VECTORIZE SLP_VECTORIZE USE_LLVMLITE_MEMORY_MANAGER"),
    ),
    Private(
        "numba",
        "engine/jit/options.py",
        "tells the target: kernels use its instructions, keys of machine code name it",
        _of(core__codegen="JITCPUCodegen.magic_tuple", core__registry="cpu_target.target_context.codegen"),
    ),
    Private(
        "numba",
        "fastq, engine/jit, engine/runtime/threadpool.py, ops/numba_overloads.py, system/tuning.py",
        "compiles under NUMBA_DISABLE_JIT too; has forks wait for compilations; the number of threads to start with",
        _of(
            core__compiler_lock="global_compiler_lock.is_locked",
            core__config="DISABLE_JIT NUMBA_NUM_THREADS CACHE_DIR CPU_NAME",
            core__entrypoints="_already_initialized",
        ),
    ),
    Private(
        "numba",
        "engine, kernels, ops/numba_overloads.py",
        "types the functions and lowers the types and operators that are ours",
        _of(
            core__cgutils="alloca_once get_or_insert_function",
            core__extending="intrinsic models.OpaqueModel models.PrimitiveModel overload register_model",
            core__imputils="lower_builtin lower_getattr_generic",
            core__typing__templates="AttributeTemplate infer_getattr AbstractTemplate infer_global",
            core__typing="signature",
        ),
    ),
    Private(
        "numba",
        "ops/numba_overloads.py",
        "has compiled functions of others call the public ones, with global constants of our types",
        _of(
            core__errors="TypingError",
            core__extending="typeof_impl",
            core__imputils="lower_constant",
            core__registry="cpu_target.typing_context.refresh cpu_target.target_context.make_array",
            np__numpy_support="as_dtype",
        ),
    ),
    Private(
        "llvmlite",
        "engine/simd, engine/jit, engine/code/loading.py",
        "builds, optimizes and runs LLVM IR; the names of its intrinsics are those of LLVM 20 and later",
        ("llvmlite.ir:IRBuilder.load_atomic", "llvmlite.ir.values:ReturnValue", "llvmlite.binding:create_pass_builder"),
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
    """Whether a version is among those that are taken."""
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
