"""Tensors of compressed-tensors: codes, plain, in bytes or in words of int32, scales, and the others.

A tensor `m.weight` becomes its codes `m.weight`, or for formats of fewer than 8 bits `m.weight_packed`: integers in
words of int32, with `m.weight_shape`, floats in bytes. Then `m.weight_scale`, and unless the scheme is symmetric
`m.weight_zero_point`. Scales have shape (1,) for the whole tensor, (C, 1) for the rows of a matrix, (rows, groups) for
groups along them; scales of float8_e8m0fnu are stored as bytes, the exponents of powers of two, plus 127. If scales are
multiples of one scale for the whole tensor (nvfp4), `m.weight_global_scale` is its reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions.table import DEFAULT, as_convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.granularity import granularity
from fastq.formats.qtypes import QType, as_qtype, packed_length
from fastq.ops.packing import pack, unpack
from fastq.results import Axis, QParams, QuantizedArray
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array, numpy_dtype, safetensors_dtype
from fastq.tools.layouts.int32_words import as_words
from fastq.tools.layouts.layout import (
    Layout,
    Reading,
    Writing,
    check_format,
    checked_block_size,
    parameters_of,
    stored_scale,
    without_zero_scales,
)
from fastq.tools.layouts.schemes import (
    E4M3,
    E8M0,
    FLOATS,
    INTEGERS,
    MICROSCALING,
    PRESETS,
    WORDS,
    LayerScheme,
    WeightScheme,
)

Shape = tuple[int, ...]

FORMATS = (
    "int4",
    "int8",
    "int2",
    "float8_e4m3fn",
    "mxfp4",
    "mxfp6_e2m3",
    "mxfp8_e4m3",
    "nvfp4",
)  # of matrices in models
SCALES = {E4M3: "F8_E4M3", E8M0: "U8"}  # dtypes in files of scales that are not in the dtype of the model
OF_FORMATS = {"mxfp4": "MXFP4A16", "mxfp6_e2m3": "MXFP6A16", "mxfp8_e4m3": "MXFP8A16", "nvfp4": "NVFP4A16"}  # presets
BIAS = 127  # of the exponents of powers of two


@dataclass(frozen=True, kw_only=True)
class StoredForm:
    """The stored form of a tensor: its codes, the granularity of its scales, and their dtype."""

    qtype: QType  # as in `fastq.QuantizedArray`
    shape: Shape
    axis: Axis  # as in `fastq.QuantizedArray`: of the tensor, or of the four axes of its blocks from `to_blocks`
    block_size: int  # elements in a block along one axis; 0 for blocks of several rows
    symmetric: bool  # whether no zero points are stored
    scale_dtype: str  # dtype of stored scales, by its name in safetensors
    packing: str  # packing of rows of codes: none "", in "bytes", or in "words" of int32 that hold code - qmin
    block: Shape = ()  # rows and columns that share a scale, if blocks have several rows
    has_global_scale: bool = False  # whether scales are multiples of one scale for the tensor

    @property
    def codes(self) -> str:
        """The name of the codes."""
        return "weight_packed" if self.packing else "weight"

    @property
    def parameter_shape(self) -> Shape:
        """Shape of the scale in a QuantizedArray."""
        if self.block:
            return tuple(-(-n // b) for n, b in zip(self.shape, self.block, strict=True))
        return granularity(self.axis, self.block_size, len(self.shape)).parameter_shape(self.shape)

    @property
    def stored_parameter_shape(self) -> Shape:
        """Shape of the scale in a file: with the rank of the tensor, or (1,) for one scale."""
        if self.block or self.block_size:
            return self.parameter_shape
        if self.axis is None:
            return (1,)
        kept = granularity(self.axis, 0, len(self.shape)).kept
        return tuple(n if axis in kept else 1 for axis, n in enumerate(self.shape))

    @property
    def _packs_zero_point(self) -> bool:
        """Whether zero points are packed, too: in words of those of neighbouring rows."""
        return self.packing == "words" and len(self.stored_parameter_shape) > 1

    def specs(self) -> dict[str, tuple[str, Shape]]:
        """Return dtype, by its name in safetensors, and shape of each stored tensor, by the end of its name."""
        specs = {self.codes: self._spec_of_codes()}
        if self.packing == "words":
            specs["weight_shape"] = "I64", (len(self.shape),)
        specs["weight_scale"] = self.scale_dtype, self.stored_parameter_shape
        if self.has_global_scale:
            specs["weight_global_scale"] = "F32", (1,)
        if not self.symmetric:
            specs["weight_zero_point"] = self._spec_of_zero_points()
        return specs

    def _spec_of_codes(self) -> tuple[str, Shape]:
        """Return dtype and shape of the stored codes."""
        if not self.packing:
            return self._dtype_of_plain_codes, self.shape
        row = self.shape[-1] if self.shape else 1
        if self.packing == "bytes":
            return "U8", (*self.shape[:-1], packed_length(row, self.qtype))
        return "I32", (*self.shape[:-1], self._words_for(row))

    def _spec_of_zero_points(self) -> tuple[str, Shape]:
        """Return dtype and shape of the stored zero points.

        A word of int4 has those of 8 rows, so shape (32, 4) of rows and groups becomes (4, 4).
        """
        shape = self.stored_parameter_shape
        if not self._packs_zero_point:
            return self._dtype_of_plain_codes, shape
        *outer, rows, columns = shape
        return "I32", (*outer, self._words_for(rows), columns)

    @property
    def _dtype_of_plain_codes(self) -> str:
        """The dtype of codes that are not packed, by its name in safetensors."""
        return safetensors_dtype(self.qtype.storage) or "U8"

    def _words_for(self, length: int) -> int:
        """Return the number of words that a number of codes fills."""
        return -(-length * self.qtype.bits // 32)

    def to_blocks(self, matrix: Array) -> Array:
        """Return a matrix in the shape to quantize: if blocks have several rows, in blocks padded with zeros.

        Blocks have four axes: (200, 128) in blocks of 128 x 128 becomes (2, 128, 1, 128), of which 56 rows are padding.
        """
        if not self.block:
            return matrix
        padding = [(0, -n % b) for n, b in zip(matrix.shape, self.block, strict=True)]
        filled = np.pad(matrix, padding) if any(n for _, n in padding) else matrix
        rows, columns = filled.shape
        height, width = self.block
        return filled.reshape(rows // height, height, columns // width, width)

    def from_blocks(self, matrix: Array) -> Array:
        """Return the matrix from the blocks of `to_blocks`, without their padding."""
        if not self.block:
            return matrix
        padded = matrix.reshape(matrix.shape[0] * matrix.shape[1], -1)
        return np.ascontiguousarray(padded[: self.shape[0], : self.shape[1]])

    # Writing

    def write(self, codes: Array, scale: Array, zero_point: Array | None) -> dict[str, Array]:
        """Return the stored tensors of rows, given codes as in `fastq`, and scales in their stored dtype."""
        if self.packing == "words":
            stored = _to_words(codes, self.shape[-1] if self.shape else 1, self.qtype)
        else:
            stored = self.from_blocks(codes).view(numpy_dtype(self.specs()[self.codes][0]))
        arrays = {self.codes: stored, "weight_scale": scale.reshape(self.stored_parameter_shape)}
        if zero_point is not None and not self.symmetric:
            arrays["weight_zero_point"] = self.stored_zero_points(zero_point.reshape(self.stored_parameter_shape))
        return arrays

    def stored_zero_points(self, codes: Array) -> Array:
        """Return the stored zero points, which are codes: if packed, in words along the last axis but one."""
        if not self._packs_zero_point:
            return codes
        columns = np.swapaxes(codes, -1, -2)
        packed = pack(columns, self.qtype) if self.qtype.packed else np.ascontiguousarray(columns)
        return np.ascontiguousarray(np.swapaxes(_to_words(packed, columns.shape[-1], self.qtype), -1, -2))

    def constants(self, global_scale: float | None) -> dict[str, Array]:
        """Return the data that is stored once for a tensor, however many parts its rows are written in.

        `global_scale` is not used by forms that have none.
        """
        arrays: dict[str, Array] = {}
        if self.packing == "words":
            arrays["weight_shape"] = np.array(self.shape, "<i8")
        if self.has_global_scale:
            arrays["weight_global_scale"] = np.array([global_scale], "f4")
        return arrays

    # Reading

    def zero_points(self, stored: Array) -> Array:
        """Return zero points as codes, from the form in `specs` or, from older writers, from plain integers.

        Packed ones are int32 of that shape; plain ones may be integers or floats of any dtype, which must be codes.
        """
        _, shape = self._spec_of_zero_points()
        if self._packs_zero_point and stored.dtype == np.int32 and stored.shape == shape:
            *outer, rows, columns = self.stored_parameter_shape
            codes = _from_words(np.swapaxes(stored, -1, -2), rows, self.qtype)
            codes = unpack(codes, self.qtype, shape=(*outer, columns, rows)) if self.qtype.packed else codes
            return np.swapaxes(codes, -1, -2)
        if stored.dtype.kind == "c":
            raise ValueError(f"weight_zero_point is {stored.dtype}, which is not a dtype of zero points")
        numbers = stored.reshape(self.stored_parameter_shape).astype(np.float64)
        lowest_code, highest_code = self.qtype.code_range(False)
        codes = numbers.astype(self.qtype.storage)
        if ((codes.astype(np.float64) != numbers) | (numbers < lowest_code) | (numbers > highest_code)).any():
            raise ValueError(f"weight_zero_point has numbers that are not codes of {self.qtype}")
        return codes

    def read(self, load: Callable[[str], Array]) -> tuple[Array, Array, Array | None]:
        """Return codes, scales and zero points for a `QuantizedArray` from the tensors that `load` returns by name."""
        codes = self._codes_from(load(self.codes))
        scale = load("weight_scale").reshape(self.parameter_shape)
        if self.symmetric:
            return codes, scale, None
        zero_point = self.zero_points(load("weight_zero_point"))
        return codes, scale, np.asarray(zero_point.reshape(self.parameter_shape), order="C")

    def _codes_from(self, stored: Array) -> Array:
        """Return codes as a `QuantizedArray` has them, in blocks if blocks have several rows, from the stored ones."""
        if self.packing == "words":
            return _from_words(stored, self.shape[-1] if self.shape else 1, self.qtype)
        if self.packing == "bytes":
            return stored
        # bytes of 0 are a padding in any format
        in_blocks = self.to_blocks(stored.view(np.uint8)) if self.block else stored
        codes = in_blocks.view(self.qtype.storage)
        return pack(codes, self.qtype) if self.qtype.packed else codes

    def rows(self, load: Callable[[str], Array], start: int, stop: int) -> tuple[StoredForm, Callable[[str], Array]]:
        """Return the form of some rows of a matrix and their loader, which cuts what `load` returns by name.

        `start` must be a multiple of the rows of a block, and of the 32 rows whose zero points fill whole words.
        """
        # (3, 32): 3 rows of the stored tensor hold 32 rows of the matrix
        stored_rows_per_rows = {
            self.codes: (1, 1),
            "weight_scale": (1, self.block[0] if self.block else 1),
            "weight_zero_point": (self.qtype.bits, 32) if self._packs_zero_point else (1, 1),
        }

        def load_rows(name: str) -> Array:
            """Return the rows of a stored tensor; all of it if it is not by rows, such as a global scale."""
            array = load(name)
            is_for_all_rows = self.axis is None and name != self.codes
            if name not in stored_rows_per_rows or is_for_all_rows:
                return array
            stored_rows, rows = stored_rows_per_rows[name]
            return array[start * stored_rows // rows : -(-stop * stored_rows // rows)]

        return replace(self, shape=(stop - start, *self.shape[1:])), load_rows


# Words: rows of code - qmin, the first in the lowest bits; the padding at the end of a row is zero


def _to_words(packed: Array, length: int, qtype: QType) -> Array:
    """Return rows of `length` codes, packed as `fastq.pack` does or of int8, as rows of words."""
    return as_words(np.bitwise_xor(packed.view(np.uint8), _bits_of_qmin(length, qtype)))


def _from_words(words: Array, length: int, qtype: QType) -> Array:
    """Return the rows of `length` codes in words, packed as `fastq.pack` does or of int8."""
    packed = np.ascontiguousarray(words).view(np.uint8)[..., : packed_length(length, qtype)]
    return (packed ^ _bits_of_qmin(length, qtype)).view(np.uint8 if qtype.packed else qtype.storage)


def _bits_of_qmin(length: int, qtype: QType) -> NDArray[np.uint8]:
    """Return the bits whose exclusive or with a row of packed codes is codes minus qmin, and back.

    They are the highest bit of each code: in int4 the code 3 is 0011, and 3 minus -8 is 1011. The padding stays zero.
    """
    lowest = np.full(length, qtype.qmin, qtype.storage)
    return pack(lowest, qtype) if qtype.packed else lowest.view(np.uint8)


# Matrices of models: forms and parameters by their schemes


def form_of(scheme: LayerScheme, shape: Shape, dtype: str) -> StoredForm:
    """Return the stored form of a matrix for a scheme, in a model of a dtype.

    `dtype` is that of scales, by its name in safetensors, unless the scheme has one of its own; empty if it may be any.
    """
    weights = scheme.weights
    # rows, nothing, the two axes of blocks in the form (rows / b, b, columns / b, b), and the columns that groups cut
    axis: Axis = {"channel": 0, "tensor": None, "block": (0, 2)}.get(weights.strategy, -1)
    return StoredForm(
        qtype=weights.qtype,
        shape=shape,
        axis=axis,
        block_size=weights.group_size,
        symmetric=weights.symmetric,
        scale_dtype=SCALES.get(weights.scale_dtype, dtype),
        packing=_packing_of(scheme),
        block=weights.block,
        has_global_scale=weights.strategy == "tensor_group",
    )


def _packing_of(scheme: LayerScheme) -> str:
    """Return the packing of codes in a scheme: the first code is in the lowest bits of a word or a byte.

    Outside words, integers of fewer than 8 bits take one byte each.
    """
    if scheme.format == WORDS:
        return "words"
    is_packed_float = scheme.weights.kind == "float" and scheme.weights.qtype.packed
    return "bytes" if is_packed_float else ""


def scale_values(stored: Array, weights: WeightScheme, global_scale: float = 1.0) -> NDArray[np.float32]:
    """Return the float32 factors of codes from the stored scales, which are divided by the global scale, if any."""
    if weights.scale_dtype == E8M0:
        return np.ldexp(np.float32(1), stored.astype(np.int32) - BIAS)
    scale = stored.astype(np.float32)
    return scale / np.float32(global_scale) if global_scale != 1 else scale


def array_of(
    codes: Array, stored: Array, zero_point: Array | None, form: StoredForm, weights: WeightScheme, factor: float = 1.0
) -> QuantizedArray:
    """Return a matrix, or its blocks from `StoredForm.to_blocks`, from its codes and stored parameters.

    `factor` is the global scale. With powers of two it is an array of an MX format, whose scales stay powers of two.
    """
    if weights.scale_dtype == E8M0:
        qtype = as_qtype(MICROSCALING[weights.bits])
        scale = stored.view(FLOAT_FORMATS["float8_e8m0fnu"].dtype)
    else:
        qtype = form.qtype
        scale = scale_values(stored, weights, factor)
    params = QParams(
        scale=scale,
        zero_point=np.zeros(scale.shape, form.qtype.storage) if zero_point is None else zero_point,
        dtype=qtype,
        axis=form.axis,
        block_size=form.block_size,
        symmetric=form.symmetric,
        convention="compressed-tensors" if weights.kind == "int" else DEFAULT,
    )
    shape = codes.shape if form.block else form.shape
    return QuantizedArray(codes, params, shape)


def as_signed(q: QuantizedArray) -> QuantizedArray:
    """Return a matrix of unsigned codes as signed codes with the same values, since only those are stored.

    Codes and zero points both become smaller by 8 for uint4. What is no such matrix is returned as it is, for
    `scheme_of` to accept or to refuse.
    """
    convention = as_convention(q.convention)
    has_integer_zero_points = convention.zero_point == "integer" and convention.decode == "point"
    is_along_rows = len(q.shape) == 2 and q.axis in (-1, 1)
    if q.dtype.name not in ("uint2", "uint4", "uint8") or not has_integer_zero_points or not is_along_rows:
        return q
    signed = as_qtype(q.dtype.name[1:])
    codes = (q.codes ^ _bits_of_qmin(q.shape[1], signed)).view(np.uint8 if signed.packed else signed.storage)
    zero_point = (as_array(q.zero_point, "q.zero_point").astype(np.int16) + signed.qmin).astype(signed.storage)
    params = replace(q.qparams, dtype=signed, zero_point=zero_point, symmetric=not zero_point.any())
    return QuantizedArray(codes, params, q.shape)


def scheme_of(q: QuantizedArray, name: str = "q") -> LayerScheme:
    """Return the scheme of compressed-tensors for a quantized matrix, or for its blocks from `StoredForm.to_blocks`."""
    code = q.dtype.name
    is_matrix = len(q.shape) == 2 and 0 not in q.shape
    kept = granularity(q.axis, q.block_size, q.ndim).kept
    size = q.block_size
    # of a matrix with one scale, or with a scale for each row; empty for others
    strategy_without_groups = {(): "tensor", (0,): "channel"}.get(kept, "") if is_matrix and not size else ""
    is_in_groups = is_matrix and kept == (1,)
    if is_in_groups and (code in OF_FORMATS or (code == "float4_e2m1fn" and size == 16)):
        return PRESETS[OF_FORMATS.get(code, "NVFP4A16")]
    if is_in_groups and size and code in ("int2", "int4", "int8"):
        weights = WeightScheme(bits=q.dtype.bits, kind="int", strategy="group", group_size=size, symmetric=q.symmetric)
        return LayerScheme(name="", weights=weights, format=WORDS)
    if code == "float8_e4m3fn":
        is_in_blocks = q.ndim == 4 and kept == (0, 2) and 0 not in q.shape
        if is_in_blocks:
            block = q.shape[1], q.shape[3]
            weights = WeightScheme(bits=8, kind="float", strategy="block", group_size=size, block=block)
            return LayerScheme(name="", weights=weights, format=FLOATS)
        strategy = "group" if is_in_groups and size else strategy_without_groups
        if strategy:
            weights = WeightScheme(bits=8, kind="float", strategy=strategy, group_size=size)
            return LayerScheme(name="", weights=weights, format=FLOATS)
    if code == "int8" and strategy_without_groups and q.symmetric:
        weights = WeightScheme(bits=8, kind="int", strategy=strategy_without_groups)
        return LayerScheme(name="", weights=weights, format=INTEGERS)
    description = f"{q.dtype} of shape {q.shape}, axis {q.axis}, block_size {q.block_size}, symmetric {q.symmetric}"
    raise ValueError(f"{name} is {description}, which compressed-tensors has no format for")


_PASS_MAPPING = "pass the mapping of open_checkpoint itself, not a dict of it"


def _matrix_shape(q: QuantizedArray, scheme: LayerScheme, name: str) -> Shape:
    """Return the shape of a matrix, which may be in two-dimensional blocks.

    Blocks do not tell how many of their last rows and columns are padding, so these must have other numbers than 0.
    """
    if not scheme.weights.block:
        return q.shape
    rows, height, columns, width = q.shape
    codes = as_array(q.codes, "q.codes")
    last_row = codes[-1, -1]
    last_column = codes[:, :, -1, -1]
    if not (last_row.astype(np.float32).any() and last_column.astype(np.float32).any()):
        what = f"{name} ends with a row or column of zeros, which may be the padding of its last block"
        raise ValueError(f"{what}: {_PASS_MAPPING}")
    return rows * height, columns * width


@np.errstate(over="ignore")  # such a factor is not the one that is looked for
def _float8_and_factor(scale: Array, name: str) -> tuple[Array, np.float32]:
    """Return float8 scales and the number that divides them, which give the float32 scales exactly.

    The largest scale is one of the 126 positive numbers of float8 divided by that number, so there are 126 candidates
    for it, and their neighbours in float32, since the quotient was rounded.
    """
    float8 = FLOAT_FORMATS["float8_e4m3fn"]
    distinct = np.unique(scale)
    codes = np.arange(1, float8.largest + 1, dtype=np.uint8).view(float8.dtype)
    numbers = codes.astype(np.float32)
    quotients = (numbers[::-1] / distinct[-1].astype(np.float64)).astype(np.float32)
    neighbours = np.arange(-2, 3, dtype=np.int32)[:, np.newaxis]
    factors = (quotients.view(np.int32) + neighbours).view(np.float32).reshape(-1)
    for factor in factors if distinct.size <= codes.size else ():  # more scales than numbers can't be multiples
        table = numbers / factor
        indices = np.searchsorted(table, distinct).clip(max=codes.size - 1)
        if 0 < factor < np.inf and np.array_equal(table[indices], distinct):
            return codes[np.searchsorted(table, scale)], factor
    what = f"{name} has scales that are not float8_e4m3fn numbers divided by one number, as nvfp4 requires"
    raise ValueError(f"{what}: {_PASS_MAPPING}, or quantize to 'nvfp4'")


def tensors_of(q: QuantizedArray, scheme: LayerScheme, dtype: str, name: str = "q") -> dict[str, Array]:
    """Return the stored tensors of a quantized matrix, with scales in the dtype of the model, or float32 to keep them.

    Raise ValueError, with the name of the matrix, if scales can't be stored.
    """
    form = form_of(scheme, _matrix_shape(q, scheme, name), dtype)
    scale, factor = _scale_to_store(q, scheme, dtype, name)
    numbers = scale.astype(np.float32)
    is_signed = scheme.weights.kind == "int"  # integers may have scales below 0
    magnitudes = np.abs(numbers) if is_signed else numbers
    bad = numbers[~((magnitudes > 0) & (magnitudes < np.inf))]
    if bad.size:
        requirement = "finite and not 0" if is_signed else "positive and finite"
        raise ValueError(f"{name} would be stored with a scale of {bad[0]}; it must be {requirement}")
    stored = scale.view(np.uint8) if scheme.weights.scale_dtype == E8M0 else scale
    return form.write(q.codes, stored, q.zero_point) | form.constants(float(factor))


def _scale_to_store(q: QuantizedArray, scheme: LayerScheme, dtype: str, name: str) -> tuple[Array, np.float32]:
    """Return scales in the dtype in which a scheme stores them, and the global scale, which is 1 in most schemes.

    Scales of floats are rounded to the dtype of the model only if none changes; else they are float32.
    """
    scale = as_array(q.scale, "q.scale")
    if scheme.weights.scale_dtype == E8M0:
        return scale.astype(FLOAT_FORMATS["float8_e8m0fnu"].dtype, copy=False), np.float32(1)
    if scheme.weights.scale_dtype == E4M3 and q.tensor_scale is None:
        return _float8_and_factor(scale.astype(np.float32), name)
    if scheme.weights.scale_dtype == E4M3:
        with np.errstate(over="ignore", divide="ignore"):  # refused below
            factor = np.float32(1) / np.float32(q.tensor_scale)
        if not 0 < factor < np.inf:
            requirement = "whose stored reciprocal must be positive and finite in float32"
            raise ValueError(f"{name} has a tensor_scale of {q.tensor_scale}, {requirement}")
        return scale, factor
    with np.errstate(over="ignore"):  # float16 falls back to float32, float32 is refused by the caller
        rounded = scale.astype(numpy_dtype(dtype))
        single = scale.astype(np.float32)
    is_exact = (rounded.astype(scale.dtype) == scale).all()
    return rounded if is_exact else single, np.float32(1)


# The row of `LAYOUTS`


def write(q: QuantizedArray, writing: Writing) -> dict[str, Array]:
    """Return the stored tensors of a weight."""
    q = as_signed(q)
    check_format(q.dtype, writing.layout, "the dtype of q")
    scale, zero_point = parameters_of(q)
    q = QuantizedArray(q.codes, q.qparams.with_values(scale, zero_point), q.shape)
    tensors = tensors_of(q, scheme_of(q), "F32")
    if writing.scale_dtype is not None and not q.dtype.scale_element:
        tensors["weight_scale"] = stored_scale(tensors["weight_scale"], writing.scale_dtype)
    return tensors


def read(reading: Reading) -> QuantizedArray:
    """Return the weight in some tensors, whose dtypes and shapes determine their form."""
    stored_codes = reading.matrix("weight_packed" if "weight_packed" in reading.tensors else "weight")
    rows, columns = stored_codes.shape
    is_in_words = stored_codes.dtype == np.int32
    if is_in_words:
        rows, columns = map(int, reading.of_shape("weight_shape", "int64", 2))
    elif stored_codes.dtype == np.uint8:
        columns = columns * 8 // reading.qtype.bits
    if reading.qtype.name in OF_FORMATS:
        scheme = PRESETS[OF_FORMATS[reading.qtype.name]]
    else:
        weights = _weight_scheme_in(reading, rows, columns)
        scheme = LayerScheme(name="", weights=weights, format=WORDS if is_in_words else f"{weights.kind}-quantized")
    form = form_of(scheme, (rows, columns), "")  # "": scales may have any dtype of floats
    for name, (dtype, shape) in form.specs().items():
        has_any_float_dtype = name == "weight_scale" and not dtype
        expected = "" if has_any_float_dtype else numpy_dtype(dtype).name
        reading.tensors[name] = reading.of_shape(name, expected, *shape)
        if has_any_float_dtype:
            reading.scales(name)  # refuses others, and numbers that are not finite
    factor = float(reading.tensors.get("weight_global_scale", np.ones(1))[0])
    codes, scale, zero_point = form.read(reading.tensors.__getitem__)
    q = array_of(codes, scale, zero_point, form, scheme.weights, factor)
    return without_zero_scales(q, "weight_scale")


def _weight_scheme_in(reading: Reading, rows: int, columns: int) -> WeightScheme:
    """Return the scheme of a matrix, by the shape of its scales: (1,), (rows, 1), (rows, groups) or that of blocks.

    Blocks are cut evenly: their size is not known, so ragged ones fall through to groups or rows. `read` refuses scales
    of any other shape than that of the scheme, and so those, too.
    """
    kind = "float" if reading.qtype.element else "int"
    scales = reading.get("weight_scale")
    rows_of_scales, groups = scales.shape if scales.ndim == 2 else (0, 1)
    may_have_blocks = kind == "float" and rows > rows_of_scales > 0
    group_size = 0
    block: Shape = ()
    if may_have_blocks and rows % rows_of_scales == 0 and columns % groups == 0:
        strategy = "block"
        block = (rows // rows_of_scales, columns // groups)
    elif groups > 1 or reading.block_size:
        strategy = "group"
        group_size = checked_block_size(reading.block_size, columns, groups)
    else:
        strategy = "channel" if scales.ndim == 2 else "tensor"
    return WeightScheme(
        bits=reading.qtype.bits,
        kind=kind,
        strategy=strategy,
        group_size=group_size,
        block=block,
        symmetric="weight_zero_point" not in reading.tensors,
    )


COMPRESSED_TENSORS = Layout(
    name="compressed_tensors",
    system="compressed-tensors (vLLM): CompressedLinear",
    formats=FORMATS,
    write=write,
    read=read,
)
