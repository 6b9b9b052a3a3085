"""Machine code of a function and all that it calls: one module of LLVM, made and translated by llvmlite alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import config

from fastq.engine.code.loading import ENTRY
from fastq.engine.jit.emission import Unit
from fastq.engine.jit.options import TARGET


class Library:
    """A module of LLVM after optimization.

    Attributes
    ----------
    module : llvmlite.binding.ModuleRef
        The module, whose function `ENTRY` is what C calls.
    """

    def __init__(self, module: Any) -> None:
        self.module = module

    def machine_code(self) -> bytes:
        """Return an object file, which any process of this CPU can load."""
        return bytes(_target_machine().emit_object(self.module))

    def llvm(self) -> str:
        """Return LLVM IR."""
        return str(self.module)

    def assembly(self) -> str:
        """Return assembly for the target."""
        return str(_target_machine().emit_assembly(self.module))


def compile_library(function: Callable[..., Any], result: types.Type, arguments: tuple[types.Type, ...]) -> Library:
    """Compile a C function of these types, named `ENTRY`, with all that it calls."""
    machine = _target_machine()
    module = binding.parse_assembly(str(emit_module(function, result, arguments)))
    module.data_layout = str(machine.target_data)
    options = binding.create_pipeline_tuning_options(speed_level=max(int(config.OPT), 1))
    options.loop_vectorization = bool(config.LOOP_VECTORIZE)
    options.slp_vectorization = bool(config.SLP_VECTORIZE)
    builder = binding.create_pass_builder(machine, options)
    # The pipeline simplifies functions before it inlines any, and what was simplified alone may stay so: the bits of a
    # sign become a `copysign`, from which they are taken again (decision D79).
    inlining = binding.create_new_module_pass_manager()
    inlining.add_always_inliner_pass()
    inlining.run(module, builder)
    builder.getModulePassManager().run(module, builder)
    module.verify()
    return Library(module)


def emit_module(function: Callable[..., Any], result: types.Type, arguments: tuple[types.Type, ...]) -> ir.Module:
    """Emit the module before optimization."""
    unit = Unit(ir.Module(ENTRY))
    unit.module.triple = TARGET.triple
    unit.emit_entry(ENTRY, function, result, arguments)
    return unit.module


def _target_machine() -> Any:
    """Return LLVM's target machine, with the options that Numba has for code in memory."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    relocation = "static" if TARGET.triple.startswith("x86") else "default"
    return binding.Target.from_triple(TARGET.triple).create_target_machine(
        cpu=TARGET.cpu,
        features=TARGET.features,
        opt=int(config.OPT),
        reloc=relocation,
        codemodel="jitdefault",
        jit=True,
    )
