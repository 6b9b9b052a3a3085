"""Weights in the layout of compressed-tensors, and weights of other writers with the same codes and scales."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system.dtypes import Array
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quantization_config import StoredSchemes
from fastq.tools.checkpoints.row_chunks import Pair
from fastq.tools.checkpoints.stored_weights import ORDER, POWERS, SCALES, SUFFIXES, ZERO_POINT, CompressedWeight
from fastq.tools.files.tensor_specs import TensorSpec, spec_of
from fastq.tools.layouts.compressed_tensors import StoredForm, form_of
from fastq.tools.layouts.schemes import WORDS, LayerScheme

Roles = dict[str, TensorSpec]  # the stored tensors of a weight by their roles, as compressed-tensors names them
ZERO_POINT_DTYPES = {"I8", "U8", "I16", "I32", "I64"}  # of older writers
# pairs of the dtype in a file and the expected one, as which its bytes or integers are read
READ_AS = {(POWERS, "F32"), ("U8", "F32"), (POWERS, "U8"), ("I8", "U8"), ("I32", "I64")}


def compressed_weight(source: ModelFolder, module: str, spec: TensorSpec, schemes: StoredSchemes) -> CompressedWeight:
    """Return the weight of a module, checked against the scheme that config.json has for it; else raise ValueError.

    `spec` is the scale, by which the module was found; here it is looked up by its name with the other tensors.
    """
    scheme = schemes.scheme_of(module)
    tensors = source.tensors
    roles = {end: tensors[f"{module}.{end}"] for end in SUFFIXES if f"{module}.{end}" in tensors}
    form = form_of(scheme, (1, 1), "")  # the names and the packing of its tensors do not depend on the shape
    if form.codes not in roles:
        raise ValueError(f"it has no {form.codes}, which {scheme.format} stores")
    matrix = _rows_and_columns(source, roles, form, scheme)
    scheme = _with_symmetry_as_stored(source, roles, matrix, scheme)
    order = None
    if f"{module}.{ORDER}" in tensors:
        roles[ORDER] = tensors[f"{module}.{ORDER}"]
        order = column_order(source.load(roles[ORDER].name), matrix[1])
    return checked_weight(source, module, roles, matrix, scheme, name=f"{module}.weight", shape=matrix, order=order)


def _rows_and_columns(source: ModelFolder, roles: Roles, form: StoredForm, scheme: LayerScheme) -> Pair:
    """Return the shape of a matrix, given the form of its codes; raise ValueError if it is no matrix.

    Words may have padding at the end of a row, so with them another tensor, weight_shape, has the shape. A file can
    say anything there; `checked_weight` compares it with the shapes of all tensors.
    """
    stored = roles[form.codes].shape
    if scheme.format == WORDS:
        if "weight_shape" not in roles or roles["weight_shape"].dtype not in ("I64", "I32"):
            raise ValueError("it has no weight_shape of integers")
        shape = tuple(map(int, source.load(roles["weight_shape"].name).reshape(-1)))
    elif len(stored) == 2 and form.packing:  # in bytes, which a row of codes fills
        shape = stored[0], stored[1] * 8 // scheme.weights.bits
    else:
        shape = stored
    if len(shape) != 2 or min(shape) < 1 or len(stored) != 2:
        raise ValueError(f"it has shape {shape} and is not a matrix")
    return shape[0], shape[1]


def checked_weight(
    source: ModelFolder, module: str, roles: Roles, matrix: Pair, scheme: LayerScheme, **fields: Any
) -> CompressedWeight:
    """Return a weight if its tensors have the dtypes and shapes of a scheme; else raise ValueError.

    `fields` are the other fields of the weight: `name` and `shape` of the original tensor, and where it differs from a
    matrix of compressed-tensors `order`, `is_transposed` or `scale_rows`.
    """
    scale_dtype = roles["weight_scale"].dtype
    # scales in floats may have any of their dtypes; bytes in the place of floats are read as F32: see `READ_AS`
    form = form_of(scheme, matrix, scale_dtype if scale_dtype in SCALES else "F32")
    specs = {end: spec_of(f"{module}.{end}", *dtype_and_shape) for end, dtype_and_shape in form.specs().items()}
    for end, expected in specs.items():
        if end == "weight_scale" and "scale_rows" in fields:  # several rows of the matrix share one of these rows
            rows = int(fields["scale_rows"][-1]) + 1
            expected = spec_of(expected.name, expected.dtype, (rows, expected.shape[1]))
        _check_tensor(roles.get(end), expected, form, is_zero_points=end == ZERO_POINT)
    # zero points of a symmetric scheme are all 0 by now, and compressed-tensors has no role for an order of columns
    surplus = next((end for end in roles if end not in (*specs, ZERO_POINT, ORDER)), None)
    if surplus is not None:
        raise ValueError(f"it has a {surplus}, which {scheme.weights} in {scheme.format} does not store")
    return CompressedWeight(
        source=source,
        module=module,
        matrix=matrix,
        roles=roles,
        label=str(scheme.weights),
        block_rows=scheme.weights.block[0] if scheme.weights.block else 1,
        codes=roles[form.codes],
        scheme=scheme,
        specs=specs,
        **fields,
    )


def column_order(groups: Array, columns: int) -> NDArray[np.intp] | None:
    """Return the order that sorts columns by group; None if they are in order, or if no order is stored.

    `groups` has the group of each column: for 1 0 1 0 the order is 1 3 0 2, the columns of group 0 first.
    """
    if groups.shape != (columns,) or groups.dtype.kind != "i":
        raise ValueError(f"it has groups of columns of shape {groups.shape}, not integers of shape {(columns,)}")
    if (groups < 0).any() or (np.diff(groups) >= 0).all():  # -1: the initial value, without an order
        return None
    return np.argsort(groups, kind="stable")


def _check_tensor(stored: TensorSpec | None, expected: TensorSpec, form: StoredForm, *, is_zero_points: bool) -> None:
    """Raise ValueError unless a tensor of a weight is stored as expected."""
    if stored is None:
        raise ValueError(f"{expected.name!r} should be {expected.dtype} of shape {expected.shape}, not nothing")
    if is_zero_points and _are_plain_zero_points(stored, form):
        return
    if not _is_as_expected(stored, expected):
        raise ValueError(
            f"{stored.name!r} should be {expected.dtype} of shape {expected.shape}, not {stored.dtype} of shape "
            f"{stored.shape}"
        )


def _are_plain_zero_points(stored: TensorSpec, form: StoredForm) -> bool:
    """Return whether zero points are plain integers, one for each scale in any shape, as older writers store them."""
    return stored.dtype in ZERO_POINT_DTYPES and stored.size == math.prod(form.stored_parameter_shape)


def _is_as_expected(stored: TensorSpec, expected: TensorSpec) -> bool:
    """Return whether a tensor has the expected dtype, or one that is read as it, and the expected shape.

    Axes of length 1 don't matter, and the matrices of experts may be stacked: (8, 64, 32) is right for (512, 32).
    """
    has_dtype = stored.dtype == expected.dtype or (stored.dtype, expected.dtype) in READ_AS
    has_shape = [n for n in stored.shape if n != 1] == [n for n in expected.shape if n != 1]
    is_stacked = len(stored.shape) > 2 and stored.size == expected.size
    return has_dtype and (has_shape or is_stacked)


def _with_symmetry_as_stored(source: ModelFolder, roles: Roles, matrix: Pair, scheme: LayerScheme) -> LayerScheme:
    """Return the scheme of a weight, symmetric if it has no zero points. Older writers store zeros instead.

    Raise ValueError if a symmetric scheme has other zero points than 0.
    """
    weights = scheme.weights
    symmetric = replace(scheme, weights=replace(weights, symmetric=True))
    if ZERO_POINT not in roles:
        return symmetric
    if not weights.symmetric:
        return scheme
    # the dtype of scales, here F32, does not matter for zero points
    form = form_of(replace(scheme, weights=replace(weights, symmetric=False)), matrix, "F32")
    if form.zero_points(source.load(roles[ZERO_POINT].name)).astype(np.float32).any():
        raise ValueError(f"it has a {ZERO_POINT} with numbers other than 0, which {weights} does not store")
    return symmetric
