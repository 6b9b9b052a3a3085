"""The plan of one call as kernels read it: integers only."""

from __future__ import annotations

import numpy as np
from numba import from_dtype

# Memory is (outer, length, inner), C order. Along `length` run blocks of `block` rows, the last one of each outer index
# perhaps shorter. Outer index o, block b, column i use parameter
# ((o // cycle * kept + o % kept) * blocks + b) * inner + i.
PLAN = np.dtype(
    [(name, np.int64) for name in ("length", "inner", "block", "blocks", "cycle", "kept", "parameters")]
    + [(name, np.int64) for name in ("lowest", "highest", "streaming", "chunk")]
)

Plan = from_dtype(PLAN)  # passed to a kernel as its address
