"""The passes that make LLVM IR of a function, and how functions that only compiled code calls become part of it."""

from __future__ import annotations

from typing import Any

from llvmlite.binding import Linkage
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager

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


class Compiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with these passes."""

    def define_pipelines(self) -> list[PassManager]:
        """Return the one list of passes."""
        passes = PassManager("kernels")
        for each in _PASSES:
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


class _Inlined(JITCodeLibrary):  # type: ignore[misc]
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

    def define_pipelines(self) -> list[PassManager]:
        """Return the same passes, which fill a library of another kind."""
        self.state.library = _Inlined(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


# no entry for C, which nothing would call: a quarter less time to compile
INLINED: Any = {"no_cfunc_wrapper": True, "pipeline_class": InlinedCompiler}
