"""What compressed-tensors stores for the weight of a layer: names, dtypes, shapes; encode and decode rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.conventions import DEFAULT
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.io.checkpoints.parameters import UPSTREAM, Arithmetic, Grouped, Parameters, choose, from_stored, grouped
from fastq.io.checkpoints.schemes import E4M3, E8M0, MICROSCALING, Scheme, WeightScheme
from fastq.io.containers import TensorSpec, numpy_dtype, spec_of
from fastq.io.words import columns_from_words, columns_to_words, from_words, to_words, words_for
from fastq.results import QParams, QuantizedArray

Array = NDArray[Any]
Shape = tuple[int, int]

WORDS = "pack-quantized"
CHUNK = 1 << 21  # values in memory at a time: enough that threads do not wait for each other, few enough for a cache
ROWS = 128  # chunks of so many rows end where words of zero points and blocks of rows end
SUFFIXES = ("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_global_scale", "weight_shape")
ORDER = "weight_g_idx"  # of columns, beside the weights of others; not read


def row_chunks(shape: Shape) -> Iterator[tuple[int, int]]:
    """Cut rows into chunks that can be encoded and decoded for themselves."""
    step = max(1, CHUNK // max(1, shape[1]) // ROWS) * ROWS
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


def codes_suffix(scheme: Scheme) -> str:
    """Return what the name of the codes ends in."""
    return "weight_packed" if "pack" in scheme.format else "weight"


def stored_specs(module: str, shape: Shape, scheme: Scheme, dtype: str) -> list[TensorSpec]:
    """Return the tensors that are stored for the weight of a module in a model of that dtype."""
    weights, (rows, columns) = scheme.weights, shape
    qtype = weights.qtype
    scale_dtype = {E4M3: "F8_E4M3", E8M0: "U8", "": dtype}[weights.scale_dtype]
    scales = scale_shape(shape, weights)
    if scheme.format == WORDS:
        specs = [
            spec_of("weight_packed", "I32", (rows, words_for(columns, qtype))),
            spec_of("weight_shape", "I64", (2,)),
        ]
    elif qtype.packed:
        specs = [spec_of("weight_packed", "U8", (rows, -(-columns * qtype.bits // 8)))]
    else:
        specs = [spec_of("weight", "I8" if weights.kind == "int" else "F8_E4M3", shape)]
    specs.append(spec_of("weight_scale", scale_dtype, scales))
    if weights.strategy == "tensor_group":
        specs.append(spec_of("weight_global_scale", "F32", (1,)))
    if not weights.symmetric:
        packs = scheme.format == WORDS and weights.strategy != "tensor"
        stored = ("I32", (words_for(rows, qtype), scales[-1])) if packs else ("I8", scales)
        specs.append(spec_of("weight_zero_point", *stored))
    return [spec_of(f"{module}.{spec.name}", spec.dtype, spec.shape) for spec in specs]


def scale_shape(shape: Shape, weights: WeightScheme) -> tuple[int, ...]:
    """Return the shape of stored scales."""
    rows, columns = shape
    if weights.strategy == "block":
        return tuple(-(-n // b) for n, b in zip(shape, weights.block, strict=True))
    if weights.strategy == "tensor":
        return (1,)
    return rows, 1 if weights.strategy == "channel" else -(-columns // weights.group_size)


# Encoding


def constants(shape: Shape, weights: WeightScheme, format_name: str, factor: float) -> dict[str, Array]:
    """Return what is stored once for a weight, by the end of its name."""
    arrays: dict[str, Array] = {}
    if format_name == WORDS:
        arrays["weight_shape"] = np.array(shape, "<i8")
    if weights.strategy == "tensor_group":
        arrays["weight_global_scale"] = np.array([factor], np.float32)
    return arrays


def encode(
    x: Array, scheme: Scheme, arithmetic: Arithmetic, factor: float = 1.0
) -> tuple[dict[str, Array], Grouped, QuantizedArray]:
    """Quantize some rows of a matrix.

    Parameters
    ----------
    x : ndarray
        Shape (rows, columns), of float16, bfloat16 or float32.
    scheme : Scheme
        How.
    arithmetic : Arithmetic
        How parameters are taken.
    factor : float
        `global_scale` of a tensor group.

    Returns
    -------
    dict of str to ndarray
        What is stored for these rows, by the end of its name.
    Grouped, QuantizedArray
        The rows, and the codes of them, in the same shape.

    Raises
    ------
    ValueError
        If x has NaN or an infinity.
    """
    weights, groups = scheme.weights, grouped(x, scheme.weights)
    held = groups
    if arithmetic.upstream and not weights.scale_dtype:
        with np.errstate(over="ignore"):  # an infinity is refused below
            held = replace(groups, values=groups.values.astype(numpy_dtype(arithmetic.dtype), copy=False))
    given, convention = choose(held, weights, arithmetic, factor), arithmetic.convention(weights)
    options: dict[str, Any] = {**held.granularity, "convention": convention}
    codes = fastq.quantize_linear(held.values, given.scale, given.zero_point, weights.qtype, **options)
    q = QuantizedArray(codes, _qparams(given, groups, weights), groups.values.shape)
    return stored_arrays(codes, given, x.shape, scheme), groups, q


def stored_arrays(codes: Array, given: Parameters, shape: tuple[int, ...], scheme: Scheme) -> dict[str, Array]:
    """Return what is stored for codes and their parameters, by the end of its name."""
    rows, columns = shape
    arrays = {codes_suffix(scheme): _stored_codes(codes, shape, scheme)}
    arrays["weight_scale"] = given.stored.reshape(scale_shape((rows, columns), scheme.weights))
    if given.zero_point is not None:
        arrays["weight_zero_point"] = columns_to_words(given.zero_point.reshape(rows, -1), scheme.weights.qtype)
    return arrays


def _qparams(given: Parameters, x: Grouped, weights: WeightScheme) -> QParams:
    qtype = weights.qtype
    zero_point = np.zeros(given.scale.shape, qtype.storage) if given.zero_point is None else given.zero_point
    convention = UPSTREAM if weights.kind == "int" else DEFAULT
    return QParams(given.scale, zero_point, qtype, x.axis, x.block_size, weights.symmetric, convention)


def _decoding_qparams(given: Parameters, x: Grouped, weights: WeightScheme) -> QParams:
    """Return parameters of a format that has such scales itself, where there is one, else those of its codes."""
    if weights.scale_dtype != E8M0:
        return _qparams(given, x, weights)
    form = FLOAT_FORMATS["float8_e8m0fnu"]
    scale, zero_point = given.stored.view(form.dtype), np.zeros(given.stored.shape, weights.qtype.storage)
    return QParams(scale, zero_point, as_qtype(MICROSCALING[weights.bits]), x.axis, x.block_size, symmetric=True)


def _stored_codes(codes: Array, shape: tuple[int, ...], scheme: Scheme) -> Array:
    """Return codes as they are stored; those of blocks of rows without what fills these up."""
    if scheme.format == WORDS:
        return to_words(codes, shape[1], scheme.weights.qtype)
    if codes.ndim == 4:
        height, width = scheme.weights.block
        rows = codes.reshape(codes.shape[0] * height, codes.shape[2] * width)
        return np.ascontiguousarray(rows[: shape[0], : shape[1]])
    return codes


# Decoding


def decode(load: Callable[[str], Array], shape: Shape, scheme: Scheme, start: int, stop: int) -> QuantizedArray:
    """Return some rows of a stored weight.

    Parameters
    ----------
    load : callable
        From the end of a name to the stored tensor.
    shape : tuple of int
        Of the weight.
    scheme : Scheme
        How it is stored.
    start, stop : int
        Which rows; `start` a multiple of 128.

    Returns
    -------
    QuantizedArray
        Of the rows, or where blocks have several rows of these in blocks: shape (rows / b, b, columns / b, b), with
        zeros in what the matrix does not fill.
    """
    weights, rows = scheme.weights, (stop - start, shape[1])
    given = _stored_parameters(load, rows, scheme, start, stop)
    codes = load(codes_suffix(scheme))[start:stop]
    if scheme.format == WORDS:
        codes = from_words(codes, shape[1], weights.qtype)
    in_blocks = weights.strategy == "block"
    layout = grouped(codes.view(np.uint8) if in_blocks else np.broadcast_to(np.uint8(0), rows), weights)
    codes = layout.values.view(weights.qtype.storage) if in_blocks else codes
    return QuantizedArray(codes, _decoding_qparams(given, layout, weights), layout.values.shape)


def _stored_parameters(load: Callable[[str], Array], rows: Shape, scheme: Scheme, start: int, stop: int) -> Parameters:
    weights, kept = scheme.weights, slice(start, stop)
    shape = scale_shape(rows, weights)
    if weights.strategy == "block":
        kept = slice(start // weights.block[0], -(-stop // weights.block[0]))
    stored = load("weight_scale")
    stored = stored.reshape(()) if weights.strategy == "tensor" else stored[kept]
    if weights.strategy == "channel":
        stored = stored.reshape(len(stored))
    factor = float(load("weight_global_scale").reshape(())) if weights.strategy == "tensor_group" else 1.0
    zero_point = None
    if not weights.symmetric:
        zero_point = load("weight_zero_point")
        if scheme.format == WORDS and weights.strategy != "tensor":
            bits = weights.bits
            words = zero_point[start * bits // 32 : -(-stop * bits // 32)]
            zero_point = columns_from_words(words, (rows[0], shape[-1]), weights.qtype)
        else:
            zero_point = zero_point if weights.strategy == "tensor" else zero_point[kept]
        zero_point = np.ascontiguousarray(zero_point.reshape(stored.shape))
    return from_stored(stored, weights, factor, zero_point)


def values(q: QuantizedArray, rows: Shape, dtype: str) -> Array:
    """Return the values of decoded rows in a dtype."""
    decoded = np.asarray(q.dequantize())
    if decoded.ndim == 4:
        decoded = decoded.reshape(decoded.shape[0] * decoded.shape[1], -1)[: rows[0], : rows[1]]
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(decoded.astype(numpy_dtype(dtype), copy=False))
