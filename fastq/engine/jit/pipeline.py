"""The short compile pipeline: the passes that kernels need, and what only compiled code calls as a part of kernels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from llvmlite.binding import Linkage
from numba import types
from numba.core import errors, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.core.extending import models, register_model
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.typing import make_concrete_template
from numba.core.typing.templates import AbstractTemplate

from fastq.engine.jit.options import OPTIONS, jit_enabled
from fastq.engine.jit.tracing import signature_of, traced_or_none
from fastq.system.attributes import cached_property
from fastq.system.signals import Held

# Of Numba's passes those that change anything here: no closures, context managers, loops over literals, array
# expressions or parallel loops are in kernels. A third less time to compile, together with `_Inlined`. `IRLegalization`
# notes where each variable ends, which counted references need: decision D77.
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

    def _link(self, module: Any) -> None:
        """Link into a module of this code all that it calls, directly or not, each function once.

        Callers come first: LLVM drops what may be dropped and nothing in the module calls yet.
        """
        for library in reversed(list(_called(self, set()))):
            if library is self:
                continue
            if hasattr(self, "_reload_init"):  # Numba from 0.63 on
                self._reload_init.update(library._reload_init)
            own = library._final_module if isinstance(library, _Inlined) else library._get_module_for_linking()
            with Held():  # in a compilation that is not ours
                module.link_in(own, preserve=True)


def _called(library: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield the libraries that one calls, directly or not, and then itself; each after those that it calls."""
    seen.add(library)
    if isinstance(library, _Library):  # others come with all that they call
        for each in library._linking_libraries:
            if each not in seen:
                yield from _called(each, seen)
    yield library


class _Typing:
    """Numba's typing context for the type inference of one function, which asks for each call until nothing changes."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, callee: Any, args: tuple[types.Type, ...], named: dict[str, types.Type]) -> Any:
        """Return the signature of a call."""
        if named or type(callee) is not types.Function:
            return self._context.resolve_function_type(callee, args, named)
        return signature_of(self._context, callee, args)


@functools.cache
def _nbytes_of(kind: ir.Type) -> int:
    """Return the bytes of a type, for which Numba makes a module at each variable."""
    nbytes: int = cpu_target.target_context.get_abi_sizeof(kind)
    return nbytes


class _Inlined(_Library):
    """Functions that only other compiled code calls: IR that is linked into it, and optimized and translated there.

    Numba would optimize each by itself, with all that it calls, and make machine code that nothing runs. What one calls
    is not linked into it either, but into the kernel: copies of copies were 15 MiB for each.
    """

    def finalize(self) -> None:
        """Let this code be in any number of modules, and dropped where it was inlined."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """Return this code with all that it calls, which libraries of others link."""
        whole = self._final_module.clone()
        self._link(whole)
        return whole

    def get_pointer_to_function(self, name: str) -> int:
        """Return what stands for no function."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> _Inlined:
        """The place where Numba keeps the environments of functions that can be run: see `set_env`."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the environment is for exceptions and printing."""


class InlinedCompiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with these passes, for functions that only compiled code calls."""

    def _compile_core(self) -> Any:
        """Compile, and keep nothing of how types were inferred: that is 1 MiB for each kernel."""
        result = super()._compile_core()
        result.fndesc.typemap = result.fndesc.calltypes = None
        return result._replace(type_annotation=None)

    def define_pipelines(self) -> list[PassManager]:
        """Return the one list of passes; references are counted only for functions that get some."""
        context = self.state.targetctx  # a copy of Numba's, for this function
        self.state.library = _Inlined(context.codegen(), self.state.func_id.func_qualname)
        self.state.typingctx = _Typing(self.state.typingctx)
        given = map(context.data_model_manager.__getitem__, self.state.args)
        context.enable_nrt = any(each.contains_nrt_meminfo() for each in given)
        context.get_abi_sizeof = _nbytes_of
        passes = PassManager("kernels")
        for each in _PASSES:
            if context.enable_nrt or each is not typed_passes.IRLegalization:
                passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]


# no entry for C, which nothing would call: a quarter less time to compile
INLINED: Any = OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Function(CPUDispatcher):  # type: ignore[misc]
    """Dispatcher with two tables of signatures: its own for calls from Python, another for calls from compiled code.

    Numba's pipeline optimizes each function with all that it calls and makes machine code and wrappers for it, which
    nothing runs when the caller is compiled too.
    """

    @cached_property
    def inlined(self) -> _Overloads:
        """Dispatcher for calls from compiled code."""
        return _Overloads(self.py_func, targetoptions=INLINED, pipeline_class=InlinedCompiler)

    @property
    def _numba_type_(self) -> types.Type:
        return types.Dispatcher(self.inlined)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        with jit_enabled():
            return super()._compile_for_args(*args, **kws)


class _Overloads(CPUDispatcher):  # type: ignore[misc]
    """Dispatcher of a function that is inlined into compiled code, once for every type but not for every literal."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._emitters: dict[tuple[types.Type, ...], Any] = {}

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Trace, or compile for types without literals, for literals where it cannot be typed otherwise."""
        named = dict(kws)
        all_given = not named and len(args) == self.py_func.__code__.co_argcount
        if all_given and (traced := self.traced(tuple(map(types.unliteral, args)))):
            sig, _ = traced
            return make_concrete_template(f"Call({self.__name__})", self.__name__, [sig]), None, sig.args, {}
        try:
            return self._template([*map(types.unliteral, args)], {name: types.unliteral(named[name]) for name in named})
        except errors.TypingError:
            return self._template(args, named)

    def _template(self, args: Any, kws: Any) -> Any:
        """Return a template of the one signature that is called: Numba would rate all that were ever compiled."""
        pysig, folded = self.fold_argument_types(args, kws)
        with Held():  # in a compilation that is not ours
            self.compile(folded)
        signatures = [self.overloads[folded].signature]
        return make_concrete_template(f"Call({self.__name__})", self.__name__, signatures), pysig, folded, {}

    def traced(self, args: tuple[types.Type, ...]) -> Any:
        """Return signature and emitter of the function where it is emitted at its callers, see `tracing`; else None."""
        if args not in self._emitters:
            found = traced_or_none(self.typingctx, self.py_func, args)
            if found:
                self.targetctx.insert_func_defn([(found[1], found[1], args)])
            self._emitters[args] = found  # last: an interrupt before leaves nothing that is half known
        return self._emitters[args]

    def get_overload(self, sig: Any) -> Any:
        """Return the emitter of the function, or the entry of its compiled code."""
        traced = self._emitters.get(tuple(sig))
        return traced[1] if traced else super().get_overload(sig)


class Emitted(types.Function):  # type: ignore[misc]
    """Type of a function whose calls are typed and emitted by functions of ours, without a search among templates.

    `typed` returns for the typing context and types of arguments the signature and what emits a call, or None.
    """

    def __init__(self, function: Callable[..., Any], typed: Callable[..., Any]) -> None:
        super().__init__(type(function.__name__, (AbstractTemplate,), {"key": function}))
        self.typed, self.signature = typed, inspect.signature(function)
        self.known: dict[tuple[types.Type, ...], Any] = {}
        self.emitters: dict[tuple[types.Type, ...], Any] = {}
        cpu_target.typing_context.insert_global(function, self)

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """Return the signature for types without literals, else the one for literals."""
        args = self.signature.bind(*args, **kws).args
        reason = None
        for each in dict.fromkeys((tuple(map(types.unliteral, args)), args)):
            try:
                found = self._signature(context, each)
            except errors.NumbaError as error:
                reason = error
            else:
                if found is not None:
                    return found.replace(pysig=self.signature) if kws else found
        raise reason or errors.TypingError(f"{self.typing_key.__name__} is not for {args}")

    def _signature(self, context: Any, args: tuple[types.Type, ...]) -> Any:
        if args not in self.known:
            try:
                self.known[args] = self._find(context, args)
            except errors.NumbaError as error:  # not tried again by each caller, and by each of theirs
                self.known[args] = error
        if isinstance(self.known[args], errors.NumbaError):
            raise self.known[args]
        return self.known[args]

    def _find(self, context: Any, args: tuple[types.Type, ...]) -> Any:
        found = self.typed(context, *args)
        if found is None:
            return None
        sig, emit = found
        if sig.args not in self.emitters:
            cpu_target.target_context.insert_func_defn([(emit, emit, sig.args)])
            self.emitters[sig.args] = emit  # last, as above
        return sig

    def get_impl_key(self, sig: Any) -> Any:
        """Return what emits a call."""
        return self.emitters[sig.args]


register_model(Emitted)(models.OpaqueModel)
