"""The work as one node of ONNX Runtime with memory bound: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from fastq.formats.qtypes import QTYPES

from ..data import empty
from ..peers.onnxruntime import Bound, bound, plain
from .arrays import Array, Operands, dtype_of
from .grid import GRANULARITIES, WORKS, Cell
from .peers import Prepared

VERSION = 25, 13  # of the operators, for codes of 2 bits and scales of another dtype than values, and of the model


def element(name: str) -> int:
    """Return ONNX's number of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(dtype_of(name)))


def shape_and_attributes(cell: Cell, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, int]] | None:
    """Return the shape in which adjacent axes with parameters are one, and the attributes; None if they are apart."""
    row = GRANULARITIES[cell.granularity]
    if row.block_size:
        return shape, {"axis": row.kept[0], "block_size": row.block_size}
    if not row.kept:
        return shape, {}
    first, last = min(row.kept), max(row.kept)
    if len(row.kept) != last - first + 1:
        return None
    return (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]), {"axis": first}


def constants(cell: Cell, o: Operands, blocked: bool) -> Iterator[Any]:
    """Yield scales and zero points; float codes have no zero points."""
    p = o.qparams
    assert p is not None
    beside = p.scale.shape if blocked else (p.scale.size,) if p.scale.ndim else ()
    yield numpy_helper.from_array(p.scale.astype(np.float32).reshape(beside), "scale")
    if not p.dtype.element:
        yield numpy_helper.from_array(p.zero_point.reshape(beside).astype(dtype_of(cell.format)), "zero_point")


def packed(cell: Cell, array: Array, shape: tuple[int, ...]) -> Bound:
    """Return codes as ONNX Runtime has them."""
    return Bound(array, element(cell.format), shape)


def _dynamic(cell: Cell, o: Operands) -> Prepared | None:
    if (cell.format, cell.granularity, cell.dtype) != ("uint8", "array", "float32"):
        return None
    codes = empty(o.shape, np.uint8, aligned=True)
    parameters = {"scale": np.zeros((), np.float32), "zero_point": np.zeros((), np.uint8)}
    outputs = {name: plain(array) for name, array in ({"codes": codes} | parameters).items()}
    made = bound("DynamicQuantizeLinear", plain(o.first), outputs, [], VERSION)
    return Prepared(made.call, lambda: (codes,), keep=made)


def prepared(cell: Cell, o: Operands) -> Prepared | None:
    """Prepare the work of a cell; None where an operator has no such parameters, or rows of codes end within a byte."""
    work, qtype, view = WORKS[cell.work], QTYPES[cell.format], shape_and_attributes(cell, o.shape)
    if o.qparams is None:
        return _dynamic(cell, o)
    whole_bytes = not qtype.packed or ("bytes" not in work.reads and o.shape[-1] * qtype.bits % 8 == 0)
    if view is None or not whole_bytes or o.qparams.scale.dtype != np.float32:
        return None
    shape, attributes = view
    given = list(constants(cell, o, "block_size" in attributes))
    if work.writes == "values":
        values = empty(o.shape, dtype_of(cell.dtype), aligned=True)
        x, y = packed(cell, o.first, shape), Bound(values, element(cell.dtype), shape)
        made = bound("DequantizeLinear", x, {"values": y}, given, VERSION, output_dtype=y.element, **attributes)
        return Prepared(made.call, lambda: (values,), keep=made)
    stored = o.shape[-1] * qtype.bits // 8 if qtype.packed else o.shape[-1]
    codes = empty((*o.shape[:-1], stored), np.uint8 if qtype.packed else qtype.storage, aligned=True)
    x, y = Bound(o.first, element(cell.dtype), shape), packed(cell, codes, shape)
    made = bound("QuantizeLinear", x, {"codes": y}, given, VERSION, output_dtype=y.element, **attributes)
    return Prepared(made.call, lambda: (codes,), keep=made)
