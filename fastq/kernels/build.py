"""Compile the kernel of a spec: one C entry, which builds typed operands and calls the loop that the spec is for.

Its C arguments are a word that is not used, five addresses, the address of the numeric arguments, and `Units`: eleven
words of 64 bits. It returns status bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import from_dtype, types

from fastq.engine import jit
from fastq.engine import simd as v
from fastq.engine.jit import TARGET, Constants, traced
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.gguf import BlockFormat
from fastq.kernels.bitpack import Bits, LowBits
from fastq.kernels.body import BODIES
from fastq.kernels.formulas import computes_in
from fastq.kernels.minifloat import Minifloat, PowerOfTwo
from fastq.kernels.operands import KERNEL_ARGS_TYPE, Units, load_args, pointer_types
from fastq.kernels.pointers import HOMES, CopyOperands, NoisyOperands, WeightedOperands
from fastq.kernels.rule import Rule
from fastq.kernels.spec import KernelSpec
from fastq.kernels.storage import ElementType, StorageFormat, computes_in_float64
from fastq.kernels.traversal.at_random import in_pieces
from fastq.system.imports import undisturbed

ADDRESSES = 5  # addresses that every kernel gets; those past its operands are not used


@dataclass(eq=False, repr=False)
class Kernel(Constants):
    """Type of the first argument of `entry`, which chooses the code."""

    loop: Callable[..., Any]  # compiled function of a spec, typed operands, `Args` and `Units`; returns status bits
    operands: Any  # what the pointers point to, in the named tuple that the loop gets
    spec: types.Type  # what the loop does

    def __post_init__(self) -> None:
        if home := HOMES.get(type(self.operands)):  # the module that `with_body` of pointers.py names
            import_body(home)
        self.body = BODIES.get(type(self.operands))  # the key of its machine code has the sources of this too
        loop = f"{self.loop.__module__}.{self.loop.__qualname__}"
        types.Type.__init__(self, name=f"Kernel({loop}, {self.operands}, {self.spec})")


# What kernels are of is imported when one is compiled: imported above, all would be in the key of each kernel.


def loop_by_name(name: str) -> Any:
    """Return the loop that has a name below `fastq.kernels`: callers name it, as Numba may not be imported yet."""
    with undisturbed():
        match name:
            case "traversal.runs.runs":
                from fastq.kernels.traversal.runs import runs as loop
            case "traversal.short_runs.short_runs":
                from fastq.kernels.traversal.short_runs import short_runs as loop
            case "traversal.blocks.blocks":
                from fastq.kernels.traversal.blocks import blocks as loop
            case "traversal.elements.elements":
                from fastq.kernels.traversal.elements import elements as loop
            case "traversal.columns.columns":
                from fastq.kernels.traversal.columns import columns as loop
            case "traversal.columns.column_ranges":
                from fastq.kernels.traversal.columns import column_ranges as loop
            case "traversal.block_columns.block_columns":
                from fastq.kernels.traversal.block_columns import block_columns as loop
            case "traversal.partials.merge_partials":
                from fastq.kernels.traversal.partials import merge_partials as loop
            case "body.range_parameters.parameters_of_ranges":
                from fastq.kernels.body.range_parameters import parameters_of_ranges as loop
            case "body.range_parameters.parameters_of_many_ranges":
                from fastq.kernels.body.range_parameters import parameters_of_many_ranges as loop
            case "body.range_parameters.round_to_stored_type":
                from fastq.kernels.body.range_parameters import round_to_stored_type as loop
            case "body.bit_pairs.count_pairs":
                from fastq.kernels.body.bit_pairs import count_pairs as loop
            case "body.repack.repack":
                from fastq.kernels.body.repack import repack as loop
            case "body.repack.repack_elements":
                from fastq.kernels.body.repack import repack_elements as loop
            case "body.requantize.channels":
                from fastq.kernels.body.requantize import channels as loop
            case "ggml.quantize.quantize_groups":
                from fastq.kernels.ggml.quantize import quantize_groups as loop
            case "ggml.blocks32.quantize_blocks":
                from fastq.kernels.ggml.blocks32 import quantize_blocks as loop
            case "ggml.dequantize.dequantize_blocks":
                from fastq.kernels.ggml.dequantize import dequantize_blocks as loop
    return loop


def import_body(name: str) -> None:
    """Import the module of `fastq.kernels.body` that has the work on some operands; it adds itself to `BODIES`."""
    with undisturbed():
        match name:
            case "bit_pairs":
                import fastq.kernels.body.bit_pairs
            case "bitround":
                import fastq.kernels.body.bitround
            case "cf_pack":
                import fastq.kernels.body.cf_pack
            case "cf_unpack":
                import fastq.kernels.body.cf_unpack
            case "convert":
                import fastq.kernels.body.convert
            case "compare":
                import fastq.kernels.body.compare
            case "histogram":
                import fastq.kernels.body.histogram
            case "min_max":
                import fastq.kernels.body.min_max
            case "range_search":
                import fastq.kernels.body.range_search
            case "repack":
                import fastq.kernels.body.repack
            case "requantize":
                import fastq.kernels.body.requantize  # noqa: F401


@v.instruction(lambda kernel: kernel.spec(kernel))
def kernel_spec_of(context, builder, sig, kernel):
    """Return the spec of a kernel: an argument without a value, as its type says all."""
    return context.get_constant_null(sig.return_type)


def _pointers(kernel, addresses):
    """Return the signature of `operands_of`: a pointer for each element type of a kernel's operands."""
    pointers = [types.CPointer(element) for element in kernel.operands]
    return types.NamedTuple(pointers, type(kernel.operands))(kernel, addresses)


@v.instruction(_pointers)
def operands_of(context, builder, sig, kernel, addresses):
    """Make the typed operands of a kernel from its addresses."""
    kinds = enumerate(map(context.get_value_type, sig.return_type.types))
    typed = [builder.inttoptr(builder.extract_value(addresses, k), kind) for k, kind in kinds]
    return context.make_tuple(builder, sig.return_type, typed)


def args_type(spec: types.Type, operands: types.NamedTuple) -> types.Type:
    """Return the type of the float arguments: that in which parameters are kept, float64 if those are not numbers."""
    scale = pointer_types(operands).get("scale")
    if scale is None or isinstance(scale.dtype, types.Integer):
        return types.float64
    return computes_in(spec, scale) if spec.scale_kind else scale.dtype


@traced
def _run(kernel, operands, args, units):
    # `loop` is the function that `compile_kernel` imports by its name
    return kernel.loop(kernel_spec_of(kernel), operands, args, units)


_run_pieces = in_pieces(_run)


@traced
def run_loop(kernel, operands, args, units):
    """Call the loop of a kernel."""
    run = _run_pieces if isinstance(operands, NoisyOperands) else _run
    return run(kernel, operands, load_args(args, args_type(kernel.spec, operands)), units)


def entry(kernel, a, b, c, d, e, args, origin, start, stop, slot):
    """Run a kernel on units: what C calls, with the addresses a to e of operands; those past the last are not used."""
    operands = operands_of(kernel, (a, b, c, d, e))
    return run_loop(kernel, operands, args, Units(origin, start, stop, slot))


def compile_kernel(loop: str, operands: Any, spec: types.Type) -> int:
    """Compile a loop for the types that its operands point to and a spec, or load it; return its address."""
    # `loop` names a function of fastq/kernels/traversal, body or ggml; `entry` calls it, and the driver calls `entry`
    kernel = Kernel(loop_by_name(loop), operands, spec)
    return jit.kernel(
        entry, types.int64, kernel, *[types.int64] * ADDRESSES, KERNEL_ARGS_TYPE, *[types.int64] * len(Units._fields)
    )


@functools.cache
def element_type(element: ElementType) -> types.Type:
    """Return the Numba type of the target of a kernel's pointer.

    That is packed or padded integers, floats of a format, numbers of a codebook, powers of two, or what a dtype says.
    """
    if isinstance(element, StorageFormat) and not element.element:
        if element.dense:
            return Bits(element.bits, element.signed, element.highest_first)
        return LowBits(element.bits, element.signed)
    name = element.element if isinstance(element, StorageFormat) else element.name
    if isinstance(element, StorageFormat) and name in CODEBOOKS:
        return Minifloat(CODEBOOKS[name], element.saturate, element.dense)
    if name not in FLOAT_FORMATS:
        return from_dtype(element)
    float_format = FLOAT_FORMATS[name]
    if not float_format.sign:
        return PowerOfTwo(float_format.bias + (element.exponent if isinstance(element, StorageFormat) else 0))
    if isinstance(element, StorageFormat):
        return Minifloat(float_format, element.saturate, element.dense)
    return Minifloat(float_format)


# --- what plans ask for -----------------------------------------------------------------------------------------------

# plan/kernel_call.py names these functions, and has one called only for machine code that is neither in the package nor
# found by plain data. Each returns the address of what it compiles, or of what is found on disk by Numba's key.


def compile_loop(
    loop: str,
    operands: Any,
    op: str,
    rule: Rule,
    code: StorageFormat | None,
    scale_format: StorageFormat | None,
    nan: str,
    range_scheme: str,
    block: int,
    together: bool,
    norm: float,
    lanes_each: int,
) -> int:
    """Compile a loop for operands and what `KernelSpec` says."""
    scale_kind = ""
    if scale_format is not None:
        scale_kind = "tensor" if FLOAT_FORMATS[scale_format.element].sign else "power"
        reads_values = op not in ("dequantize", "compare")  # else by the type of the parameters, which is float32
        rule = rule._replace(compute="float64" if reads_values and computes_in_float64(operands[0]) else "float32")
    element = element_type(code) if code is not None and code.element else None
    codes = op == "quantize" or (op == "repack" and isinstance(operands.dst, StorageFormat))
    # no row of an AArch64 stores codes past the cache, and loops that do would spill its registers
    streams = hasattr(operands, "dst") and not (codes and TARGET.is_arm)
    spec = KernelSpec(
        op,
        nan=nan,
        range_scheme=range_scheme,
        block=block,
        rule=rule,
        code=element,
        scale_kind=scale_kind,
        streams=streams,
        together=together,
        norm=norm,
        lanes_each=lanes_each,
    )
    return compile_kernel(loop, type(operands)(*map(element_type, operands)), spec)


def compile_cf_packing(operands: Any) -> int:
    """Compile the packing of floats by CF for operands."""
    with undisturbed():
        from fastq.kernels.body.cf_pack import PackSpec
    return compile_kernel("traversal.elements.elements", type(operands)(*map(element_type, operands)), PackSpec())


def compile_cf_unpacking(operands: Any, gaps: bool) -> int:
    """Compile the unpacking of integers by CF for operands and what `UnpackSpec` says."""
    with undisturbed():
        from fastq.kernels.body.cf_unpack import UnpackSpec
    spec = UnpackSpec(gaps)
    return compile_kernel("traversal.elements.elements", type(operands)(*map(element_type, operands)), spec)


def compile_requantization(loop: str, operands: Any, arithmetic: str, bias: str, below: float) -> int:
    """Compile a loop of requantization for operands and what `RequantizeSpec` says."""
    with undisturbed():
        from fastq.kernels.requantization import RequantizeSpec
    spec = RequantizeSpec(arithmetic, bias, below, not TARGET.is_arm)
    return compile_kernel(loop, type(operands)(*map(element_type, operands)), spec)


def compile_block_loop(
    loop: str,
    block_format: BlockFormat,
    src: ElementType,
    dst: ElementType,
    streaming: bool,
    weighted: bool,
    least_error: bool,
) -> int:
    """Compile a loop over the blocks of GGUF for a format and two dtypes."""
    source = element_type(src)
    target = element_type(dst)
    with undisturbed():
        from fastq.kernels.ggml.spec import BlockSpec
    spec = BlockSpec(block_format, element_type(np.dtype(np.float16)), source, streaming, weighted, least_error)
    elements = getattr(source, "bits", source), target  # of floats without lanes their bits: see `values_from`
    operands = WeightedOperands(*elements, types.float32) if weighted else CopyOperands(*elements)
    return compile_kernel(loop, operands, spec)
