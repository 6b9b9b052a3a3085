"""Libraries that are timed with a cell, each in its own process, and what they support.

Their modules in bench/peers have `prepared(operands)`, which makes a `Runner`, or None where it does not do the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from ..calls import Operands
from ..peers import PEERS as LIBRARIES
from ..peers import Runner
from ..verify import TIES_AT_MOST
from .grid import BLOCK_FORMATS, FLOATS, INTEGERS, NO_FORMAT, Cell

_WHOLE = ("int8", "uint8", "int16")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FORMULAS = (
    *("quantize", "quantize symmetric", "quantize given", "quantize_linear", "dequantize_linear", "dequantize"),
    *("fake_quantize", "fake_quantize symmetric", "fake_quantize given", "choose_qparams", "minmax", "compare"),
    "compare values",
)


class Peer(NamedTuple):
    """The name of its module in bench/peers, and what it takes of each axis that is named.

    One that `compiles` for seconds keeps its code on disk, and does so concurrently with others before anything is
    timed. A share of `ties` of its codes may be the next ones.
    """

    process: str
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

    def prepared(self, o: Operands) -> Runner | None:
        """Prepare the work of a cell, in the process of the peer; None where it does not do it."""
        made: Runner | None = import_module(f"..peers.{self.process}", __package__).prepared(o)
        return made


# by the column of their seconds in stored scans
PEERS = {
    # torch takes no memory with negative strides, unaligned or byte-swapped, and computes with few unsigned integers
    "torch": Peer(
        "torch_compile",
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
        {
            "work": ("quantize", "quantize given", "quantize_linear", "dequantize", "dequantize_linear"),
            "format": (*_WHOLE, "uint16", "int4", "uint4", "int2", "uint2", *_FLOAT8),
            "dtype": ("float32", "float16"),
            "layout": ("c",),
        },
    ),
    "ggml": Peer(
        "ggml",
        {
            "work": ("gguf.quantize", "gguf.dequantize"),
            "format": tuple(BLOCK_FORMATS),
            "dtype": ("float32",),
            "layout": ("c",),
        },
    ),
}
