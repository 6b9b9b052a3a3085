"""Libraries that are timed with a cell, each in its own process: what they support, and the module that prepares it.

A module has `prepared(cell, operands)`, which makes a `Prepared`, or None where the library does not do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from ..peers import PEERS as LIBRARIES
from ..verify import TIES_AT_MOST
from .arrays import Array, Operands
from .grid import BLOCK_FORMATS, FLOATS, INTEGERS, NO_FORMAT, Cell

_WHOLE = ("int8", "uint8", "int16")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FORMULAS = (
    *("quantize", "quantize symmetric", "quantize given", "quantize_linear", "dequantize_linear", "dequantize"),
    *("fake_quantize", "fake_quantize symmetric", "fake_quantize given", "choose_qparams", "minmax", "compare"),
    "compare values",
)


class Prepared(NamedTuple):
    """A work made ready: `call` does it once, `results` has what it made.

    These are codes or values in the shape of the result, or of scales and zero points, or of both ends of ranges, each
    in the shape of the operand with length 1 where it is shared, or the sums of measures. `keep` holds memory that a
    call reaches by address only.
    """

    call: Callable[[], Any]
    results: Callable[[], tuple[Array, ...]]
    keep: Any = None


class Peer(NamedTuple):
    """The name of its process in bench/peers, the module here, what it takes of each axis that is named.

    One that `compiles` for seconds keeps its code on disk, and does so concurrently with others before anything is
    timed. A share of `ties` of its codes may be the next ones.
    """

    process: str
    module: str
    takes: Mapping[str, tuple[str, ...]]
    compiles: bool = False
    ties: float = TIES_AT_MOST

    @property
    def distribution(self) -> str:
        """What is asked for its version."""
        return LIBRARIES[self.process].distribution

    def accepts(self, cell: Cell) -> bool:
        """Return whether it is asked for the work of a cell."""
        return cell.is_plain and all(getattr(cell, axis) in values for axis, values in self.takes.items())

    def prepared(self, cell: Cell, o: Operands) -> Prepared | None:
        """Prepare the work of a cell, in the process of the peer; None where it does not do it."""
        made: Prepared | None = import_module(f".{self.module}", __package__).prepared(cell, o)
        return made


# by the column of their seconds in stored scans
PEERS = {
    # torch takes no memory with negative strides, unaligned or byte-swapped, and computes with few unsigned integers
    "torch": Peer(
        "torch_compile",
        "torch_functions",
        {
            "work": _FORMULAS,
            "format": (*_WHOLE, NO_FORMAT),
            "dtype": (*FLOATS, "int8", "uint8", "int16", "int32", "int64"),
            "layout": ("c", "fortran", "transposed", "permuted", "gaps", "broadcast"),
        },
        True,
    ),
    # jax copies what is not in C order, and uses all cores; XLA multiplies by the reciprocal of a scale, which is
    # another code at many of the ties that integers and halves have
    "jax": Peer(
        "jax_jit",
        "jax_functions",
        {
            "work": (*_FORMULAS, "binarize"),
            "format": (*_WHOLE, "uint16", "int4", "uint4", *_FLOAT8, NO_FORMAT),
            "dtype": (*FLOATS, *INTEGERS),
            "layout": ("c",),
            "threads": ("all",),
        },
        ties=0.05,
    ),
    "onnxruntime": Peer(
        "onnxruntime",
        "onnx_nodes",
        {
            "work": ("quantize", "quantize given", "quantize_linear", "dequantize", "dequantize_linear"),
            "format": (*_WHOLE, "uint16", "int4", "uint4", "int2", "uint2", *_FLOAT8),
            "dtype": ("float32", "float16"),
            "layout": ("c",),
        },
    ),
    "ggml": Peer(
        "ggml",
        "ggml_rows",
        {
            "work": ("gguf.quantize", "gguf.dequantize"),
            "format": tuple(BLOCK_FORMATS),
            "dtype": ("float32",),
            "layout": ("c",),
        },
    ),
}
