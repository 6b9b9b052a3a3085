"""What fastq uses of others that they keep private: the one place that names it, with the versions it was checked with.

`fastq.engine.runtime.boundary` looks itself where objects keep their fields when it is imported.
"""

from __future__ import annotations

import operator
from importlib import import_module
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
    """Names that a module of the package uses, and what for.

    Attributes
    ----------
    owner : str
        Distribution that they belong to.
    used_by : str
        File of the package.
    what_for : str
        What they are used for.
    names : tuple of str
        "module:attribute" where that can be looked up, else what stands in a header or is an attribute of instances.
    """

    owner: str
    used_by: str
    what_for: str
    names: tuple[str, ...]


PRIVATE = (
    Private(
        "numba",
        "engine/jit/pipeline.py",
        "compiles a kernel with the passes that it needs, and what it calls as part of it",
        (
            "numba.core.errors:TypingError",
            "numba.core.registry:cpu_target.options.parse_as_flags",
            "numba.core.compiler:CompilerBase.define_pipelines",
            "numba.core.compiler:Flags",
            "numba.core.compiler:compile_extra",
            "numba.core.compiler_machinery:PassManager.finalize",
            "numba.core.typed_passes:NativeLowering",
            "numba.core.typed_passes:NoPythonBackend",
            "numba.core.untyped_passes:ReconstructSSA",
            "numba.core.config:OPT",
            "numba.core.codegen:JITCodeLibrary._optimize_functions",
            "numba.core.codegen:JITCodeLibrary._optimize_final_module",
            "numba.core.codegen:JITCodeLibrary._finalize_final_module",
            "numba.core.codegen:JITCodeLibrary._finalize_dynamic_globals",
            "numba.core.codegen:JITCodeLibrary._verify_declare_only_symbols",
            "numba.core.codegen:JITCodeLibrary._get_module_for_linking",
            "numba.core.codegen:JITCodeLibrary._ensure_finalized",
            "numba.core.codegen:JITCPUCodegen._module_pass_manager",
            "numba.core.callconv:CPUCallConv.call_function",
        ),
    ),
    Private(
        "numba",
        "engine/jit/pipeline.py, engine/jit/functions.py",
        "gives a dispatcher a second table of signatures, for calls from compiled code",
        (
            "numba.core.registry:CPUDispatcher.get_call_template",
            "numba.core.registry:CPUDispatcher.fold_argument_types",
            "numba.core.registry:CPUDispatcher._compile_for_args",
            "numba.core.registry:CPUDispatcher._numba_type_",
            "numba.core.typing:make_concrete_template",
        ),
    ),
    Private(
        "numba",
        "engine/jit/pipeline.py, engine/jit/tracing.py",
        "types and emits calls of functions that are traced, chosen by type or emit LLVM themselves",
        (
            "numba.core.cgutils:if_unlikely",
            "numba.core.errors:TypingError",
            "numba.core.typing.templates:AbstractTemplate",
            "numba.core.types.functions:Function.get_call_type",
            "numba.core.types.functions:Function.get_impl_key",
            "numba.core.typing.context:BaseContext.insert_global",
            "numba.core.typing.context:BaseContext.resolve_value_type_prefer_literal",
            "numba.core.typing.context:BaseContext.resolve_getattr",
            "numba.core.base:BaseContext.insert_func_defn",
            "numba.core.base:BaseContext.get_function",
            "numba.core.base:BaseContext.get_getattr",
            "numba.core.base:BaseContext.get_constant_generic",
        ),
    ),
    Private(
        "numba",
        "engine/jit/compile.py",
        "finds the engine's memory manager",
        ("numba.core.config:USE_LLVMLITE_MEMORY_MANAGER",),
    ),
    Private(
        "numba",
        "engine/jit/options.py",
        "tells the target: kernels use its instructions, keys of machine code name it",
        (
            "numba.core.codegen:JITCPUCodegen.magic_tuple",
            "numba.core.registry:cpu_target.target_context.codegen",
        ),
    ),
    Private(
        "numba",
        "fastq, engine/jit, engine/runtime/threadpool.py, dispatch/compiled.py, system/tuning.py",
        "compiles under NUMBA_DISABLE_JIT too; has forks wait for compilations; the number of threads to start with",
        (
            "numba.core.compiler_lock:global_compiler_lock.is_locked",
            "numba.core.config:DISABLE_JIT",
            "numba.core.config:NUMBA_NUM_THREADS",
            "numba.core.config:CACHE_DIR",
            "numba.core.config:CPU_NAME",
            "numba.core.entrypoints:_already_initialized",
        ),
    ),
    Private(
        "numba",
        "engine, kernels, dispatch/compiled.py",
        "types the functions and lowers the types and operators that are ours",
        (
            "numba.core.cgutils:alloca_once",
            "numba.core.cgutils:get_or_insert_function",
            "numba.core.extending:intrinsic",
            "numba.core.extending:models.OpaqueModel",
            "numba.core.extending:models.PrimitiveModel",
            "numba.core.extending:overload",
            "numba.core.extending:register_model",
            "numba.core.imputils:lower_builtin",
            "numba.core.imputils:lower_getattr_generic",
            "numba.core.typing.templates:AttributeTemplate",
            "numba.core.typing.templates:infer_getattr",
            "numba.core.typing:signature",
            "numba.core.typing.templates:AbstractTemplate",
            "numba.core.typing.templates:infer_global",
        ),
    ),
    Private(
        "numba",
        "dispatch/compiled.py",
        "has compiled functions of others call the public ones, with global constants of our types",
        (
            "numba.core.errors:TypingError",
            "numba.core.extending:typeof_impl",
            "numba.core.imputils:lower_constant",
            "numba.core.registry:cpu_target.typing_context.refresh",
            "numba.core.registry:cpu_target.target_context.make_array",
            "numba.np.numpy_support:as_dtype",
        ),
    ),
    Private(
        "llvmlite",
        "engine/simd, engine/jit/pipeline.py",
        "builds and runs LLVM IR; the names of its intrinsics are those of LLVM 20 and later",
        ("llvmlite.ir:IRBuilder.load_atomic", "llvmlite.binding:create_mcjit_compiler"),
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
    module, _, attribute = name.partition(":")
    try:
        operator.attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True
