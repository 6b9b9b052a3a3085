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
from fastq.engine.jit import Constants, traced
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.bitpack import Bits, LowBits
from fastq.kernels.formulas import computes_in
from fastq.kernels.minifloat import Minifloat, PowerOfTwo
from fastq.kernels.operands import KERNEL_ARGS_TYPE, Units, load_args, pointer_types, widest_bits
from fastq.kernels.rule import ONNX, Rule
from fastq.kernels.spec import KernelSpec
from fastq.kernels.storage import ElementType, StorageFormat
from fastq.system import tuning

ADDRESSES = 5  # addresses that every kernel gets; those past its operands are not used


@dataclass(eq=False, repr=False)
class Kernel(Constants):
    """Type of the first argument of `entry`, which chooses the code."""

    loop: Callable[..., Any]  # compiled function of a spec, typed operands, `Args` and `Units`; returns status bits
    operands: Any  # what the pointers point to, in the named tuple that the loop gets
    spec: types.Type  # what the loop does

    def __post_init__(self) -> None:
        loop = f"{self.loop.__module__}.{self.loop.__qualname__}"
        types.Type.__init__(self, name=f"Kernel({loop}, {self.operands}, {self.spec})")


@v.instruction(lambda kernel: kernel.spec(kernel))
def spec_of(context, builder, sig, kernel):
    """Return the spec of a kernel."""
    return context.get_constant_null(sig.return_type)


def _pointers(kernel, addresses):
    pointers = [types.CPointer(element) for element in kernel.operands]
    return types.NamedTuple(pointers, type(kernel.operands))(kernel, addresses)


@v.instruction(_pointers)
def operands_of(context, builder, sig, kernel, addresses):
    """Make the typed operands of a kernel from its addresses."""
    kinds = enumerate(map(context.get_value_type, sig.return_type.types))
    typed = [builder.inttoptr(builder.extract_value(addresses, k), kind) for k, kind in kinds]
    return context.make_tuple(builder, sig.return_type, typed)


def args_type(spec: types.Type, operands: types.NamedTuple) -> types.Type:
    """Return the type of the float arguments: that in which parameters are kept, float64 where there are none."""
    scale = pointer_types(operands).get("scale")
    if scale is None:
        return types.float64
    return computes_in(spec, scale) if spec.scale_kind else scale.dtype


@traced
def run_loop(kernel, operands, args, units):
    """Call the loop of a kernel."""
    return kernel.loop(spec_of(kernel), operands, load_args(args, args_type(kernel.spec, operands)), units)


def entry(kernel, a, b, c, d, e, args, origin, start, stop, slot):
    """Run a kernel on units: what C calls."""
    operands = operands_of(kernel, (a, b, c, d, e))
    return run_loop(kernel, operands, args, Units(origin, start, stop, slot))


def compile_kernel(loop: Callable[..., Any], operands: Any, spec: types.Type) -> int:
    """Compile a loop for the types that its operands point to and a spec, or load it; return its address."""
    kernel = Kernel(loop, operands, spec)
    return jit.kernel(
        entry, types.int64, kernel, *[types.int64] * ADDRESSES, KERNEL_ARGS_TYPE, *[types.int64] * len(Units._fields)
    )


@functools.cache
def element_type(kind: ElementType) -> types.Type:
    """Return the Numba type of what a kernel's pointer points to."""
    if isinstance(kind, StorageFormat) and not kind.element:
        return Bits(kind.bits, kind.signed, kind.highest_first) if kind.dense else LowBits(kind.bits, kind.signed)
    name = kind.element if isinstance(kind, StorageFormat) else kind.name
    if isinstance(kind, StorageFormat) and name in CODEBOOKS:
        return Minifloat(CODEBOOKS[name], kind.saturate, kind.dense)
    if name not in FLOAT_FORMATS:
        return from_dtype(kind)
    row = FLOAT_FORMATS[name]
    if not row.sign:
        return PowerOfTwo(row.bias + (kind.exponent if isinstance(kind, StorageFormat) else 0))
    return Minifloat(row, kind.saturate, kind.dense) if isinstance(kind, StorageFormat) else Minifloat(row)


def register_elements(src: ElementType, dst: ElementType, scale: ElementType | None = None) -> int:
    """Return how many elements a register holds of the widest of these types."""
    return v.REGISTER_BITS // widest_bits(map(element_type, (src, dst)), None if scale is None else element_type(scale))


def is_wide(kind: ElementType) -> bool:
    """Return whether input of this dtype is computed with in float64."""
    return isinstance(kind, np.dtype) and kind.itemsize > (4 if kind.kind == "f" else 2)


def stores_past_cache(codes: bool) -> bool:
    """Return whether results that outgrow the cache are stored past it: values are, codes where that is faster."""
    return tuning.current().stream_codes or not codes


@functools.lru_cache(None, typed=True)  # named tuples of the same dtypes are equal, whatever their classes
def kernel_address(
    loop: Callable[..., Any],
    operands: Any,
    op: str,
    *,
    nan: str = "raise",
    range_scheme: str = "",
    block: int = 0,
    rule: Rule = ONNX,
    code: StorageFormat | None = None,
    scale_format: StorageFormat | None = None,
    norm: float = 2.0,
) -> int:
    """Return the address of a loop compiled for operands and what `KernelSpec` says.

    Operands say what the pointers point to, in the named tuple that the loop gets; formats of codes and scales are
    named where a dtype does not say them.
    """
    scale_kind = ""
    if scale_format is not None:
        scale_kind = "tensor" if FLOAT_FORMATS[scale_format.element].sign else "power"
        of_x = op not in ("dequantize", "compare")  # else by the type of the parameters, which is float32
        rule = rule._replace(compute="float64" if of_x and is_wide(operands[0]) else "float32")
    element = element_type(code) if code is not None and code.element else None
    returns_codes = op == "quantize" or (op == "repack" and isinstance(operands.dst, StorageFormat))
    streams = hasattr(operands, "dst") and stores_past_cache(returns_codes)
    spec = KernelSpec(op, nan, range_scheme, block, rule, element, scale_kind, streams, norm)
    return compile_kernel(loop, type(operands)(*map(element_type, operands)), spec)
