"""How a function becomes machine code: the passes, and how what only compiled code calls becomes part of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

from llvmlite import ir
from llvmlite.binding import Linkage
from numba.core import config, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.registry import cpu_target

# numpy: a division by zero gives inf as IEEE says, instead of a branch and an exception that no kernel can raise
OPTIONS: dict[str, Any] = {"nopython": True, "error_model": "numpy", "boundscheck": False}


@contextlib.contextmanager
def jit_enabled() -> Iterator[None]:
    """Have Numba compile even if NUMBA_DISABLE_JIT is set: vectors exist in compiled code only."""
    with global_compiler_lock:
        disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0
        try:
            yield
        finally:
            config.DISABLE_JIT = disabled


# Of Numba's passes those that change anything here: no closures, context managers, loops over literals, array
# expressions or parallel loops are in kernels. A third less time to compile, together with `_Inlined`.
_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.DeadBranchPrune,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Functions that are optimized once, as part of a kernel. A fifth less time to compile, and no larger code."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout


class _Whole(_Library):
    """A function with all that it calls. Numba's engine does not get it, which would keep it for ever."""

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)  # Numba does so twice, for the sake of references, which kernels lack

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def machine_code(self) -> bytes:
        """Return an object file, which any process can load."""
        if self.has_dynamic_globals:
            raise ValueError(f"{self.name} holds addresses of this process: {', '.join(self._dynamic_globals)}")
        return bytes(self._codegen._tm.emit_object(self._final_module))


class Compiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with these passes."""

    library = _Whole

    def define_pipelines(self) -> list[PassManager]:
        """Return the one list of passes."""
        self.state.library = self.library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        passes = PassManager("kernels")
        for each in _PASSES:
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


class _Inlined(_Library):
    """Functions that only other compiled code calls: IR that is linked into it, and optimized and translated there.

    Numba would optimize each by itself, with all that it calls, and make machine code that nothing runs.
    """

    def finalize(self) -> None:
        """Link what this code calls, and let it be in any number of modules, and dropped where it was inlined."""
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
        self._shared_module = self._final_module  # Numba makes a copy: 2 MB for each kernel
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return what stands for no function."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> _Inlined:
        """Where Numba keeps the environments of functions that can be run: see `set_env`."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the environment is for exceptions and printing."""


class InlinedCompiler(Compiler):
    """The compiler of functions that only compiled code calls."""

    library = _Inlined


# no entry for C, which nothing would call: a quarter less time to compile
INLINED: Any = OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


ENTRY = "fastq_kernel"  # what linkers see of a kernel


def machine_code(
    function: Callable[..., Any], options: dict[str, Any], result: Any, arguments: tuple[Any, ...]
) -> bytes:
    """Return an object file with a C function of these Numba types, named `ENTRY`."""
    flags = Flags()
    cpu_target.options.parse_as_flags(flags, options)
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    contexts = cpu_target.typing_context, cpu_target.target_context
    compiled = compile_extra(*contexts, function, arguments, result, flags, {}, pipeline_class=Compiler)
    compiled.library.add_ir_module(_entry(compiled.target_context, compiled.fndesc))
    return cast(bytes, compiled.library.machine_code())


def _entry(context: Any, function: Any) -> ir.Module:
    """Return a C function that calls one of Numba's, without its way to print exceptions, which needs its runtime."""
    result, arguments = function.restype, function.argtypes
    module = context.create_module(ENTRY)
    inner = ir.Function(module, context.call_conv.get_function_type(result, arguments), function.llvm_func_name)
    kind = ir.FunctionType(context.get_value_type(result), [context.get_value_type(each) for each in arguments])
    entry = ir.Function(module, kind, ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    _, value = context.call_conv.call_function(builder, inner, result, arguments, entry.args, ("noinline",))
    builder.ret(value)
    return module
