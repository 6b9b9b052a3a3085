"""ggml's row functions on the arrays of a cell, the blocks shared out to threads."""

from __future__ import annotations

import numpy as np

from ..data import empty
from ..peers.ggml import function, spread
from .arrays import Operands
from .grid import BLOCK_FORMATS, WORKS, Cell
from .peers import Prepared


def prepared(cell: Cell, o: Operands) -> Prepared:
    """Prepare the work of a cell by ggml, into memory that is there."""
    form, rows = BLOCK_FORMATS[cell.format], o.shape[:-1]
    encodes = WORKS[cell.work].function == "gguf.quantize"
    of_codes = (*rows, o.shape[-1] // form.size * form.nbytes)
    out = empty(of_codes, np.uint8, aligned=True) if encodes else empty(o.shape, np.float32, aligned=True)
    run = function("quantize" if encodes else "dequantize", cell.format)
    call = spread(run, o.first, out, int(np.prod(o.shape)) // form.size)
    return Prepared(call, lambda: (out,), keep=(o.first, out))
