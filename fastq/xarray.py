"""Pack Datasets of xarray under the CF conventions; needs xarray, the extra ``[xarray]``."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastq.dispatch.callers import in_own_thread
from fastq.formats.floats import FLOATS
from fastq.formats.qtypes import QType, as_qtype
from fastq.operations.quantize import choose_qparams
from fastq.system import lazy
from fastq.system.arguments import as_choice, as_float, is_a, native, shown

if TYPE_CHECKING:
    from xarray import Dataset, Variable

Array = NDArray[Any]

FORMATS = ("int8", "uint8", "int16", "uint16")
# what a file that was read has noted about its packing, and limits in units of its codes
_OF_PACKING = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
# encodings for floats: of a zarr store, and of a netCDF file that rounds them
_OF_FLOATS = ("filters", "fill_value", "serializer", "least_significant_digit", "significant_digits", "quantize_mode")
_IN_CODES = ("valid_min", "valid_max", "valid_range")


class _Packing(NamedTuple):
    """Code format, scale, offset and fill value of a variable; scale and offset of its compute type.

    `half_step` is how far a value is from that of its code before anything is rounded.
    """

    qtype: QType
    scale: Any
    offset: Any
    fill: int
    half_step: float

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of CF."""
        return {"scale_factor": self.scale, "add_offset": self.offset, "_FillValue": self.qtype.storage.type(self.fill)}

    @property
    def code_range(self) -> tuple[int, int]:
        """The first and the last code beside the fill value."""
        return self.qtype.qmin + (self.fill == self.qtype.qmin), self.qtype.qmax - (self.fill == self.qtype.qmax)

    @property
    def max_error(self) -> float:
        """Half a step, and what differences, products and sums are rounded by, each half an eps."""
        if self.half_step < self.scale / 2:
            return self.half_step
        scale, offset = float(self.scale), float(self.offset)
        largest = max(abs(offset + code * scale) for code in (0, *self.code_range))
        return self.half_step + 4 * largest * float(np.finfo(self.scale.dtype).eps)


def pack(ds: Dataset, dtype: str | DTypeLike = "int16", *, max_error: Mapping[str, float] | None = None) -> Dataset:
    """Pack the float variables of a Dataset into integers, with scale_factor, add_offset and _FillValue.

    What ``to_netcdf`` and ``to_zarr`` then write any reader of the CF conventions unpacks, `xarray.decode_cf` too. The
    parameters are those of the convention "cf" for the range of all that is not NaN; NaN becomes the fill value, and no
    code wraps. dask arrays stay lazy: only their ranges are computed, those of all variables at once.

    Parameters
    ----------
    ds : xarray.Dataset
        Coordinates and variables of other dtypes than float16, float32 and float64 stay as they are.
    dtype : {"int8", "uint8", "int16", "uint16"} or dtype
        Of the codes.
    max_error : mapping of str to float, optional
        How far values may be off that are unpacked, for some of the variables. Such a variable gets the shorter of the
        dtypes of 8 and of 16 bits that are signed as `dtype` is, if half a step and the rounding of floats allow it.

    Returns
    -------
    xarray.Dataset
        With the attributes and dimensions of `ds`. What the encoding of a variable says of another packing is left out,
        and so are attributes in units of it: valid_min, valid_max and valid_range.

    Raises
    ------
    TypeError
        If `ds` is no Dataset, or `max_error` names a variable that is not of floats.
    ValueError
        If dtype is another, a variable has infinities, or a `max_error` is out of reach; the message says what is not.
    ModuleNotFoundError
        If xarray is not installed.

    Examples
    --------
    >>> import numpy as np, xarray, fastq
    >>> ds = xarray.Dataset({"t": ("x", np.array([250.0, np.nan, 300.0], np.float32))})
    >>> packed = fastq.xarray.pack(ds, max_error={"t": 0.1})
    >>> packed.t.values, packed.t.attrs["_FillValue"]
    (array([-127, -128,  127], dtype=int8), np.int8(-128))
    >>> xarray.decode_cf(packed).t.values
    array([250.,  nan, 300.], dtype=float32)
    """
    xarray = _library()
    if not is_a(ds, xarray.Dataset):
        raise TypeError(f"ds must be a Dataset, not {type(ds).__name__}")
    if max_error is not None and not is_a(max_error, Mapping):
        raise TypeError(f"max_error must be a dict of numbers by the names of variables, not {shown(max_error)}")
    qtype = as_qtype(dtype)
    as_choice(qtype.name, "dtype", FORMATS)
    floats = {name: each for name, each in ds.data_vars.items() if native(each.dtype) in FLOATS}
    for name in max_error or {}:
        if name not in floats:
            raise TypeError(f"max_error names {name!r}, which is no variable of floats")
    bounds = {
        name: as_float(bound, f"max_error of {name!r}", 0.0, math.inf) for name, bound in (max_error or {}).items()
    }
    ranges = _computed([_range(each.data) for each in floats.values()])
    packed: Dataset = ds.assign(
        {
            name: _variable(xarray, each.variable, _packing(name, _merged(parts), qtype, bounds.get(name)))
            for (name, each), parts in zip(floats.items(), ranges, strict=True)
        }
    )
    return packed


def _library() -> Any:
    try:
        return importlib.import_module("xarray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("fastq.xarray.pack needs xarray: pip install 'fastq-kernels[xarray]'") from error


# --- ranges -----------------------------------------------------------------------------------------------------------


def _range(data: Any) -> list[Any]:
    """Return the ranges of the parts of an array, of a dask array to be computed."""
    if not hasattr(data, "to_delayed"):
        return [_extremes(np.asarray(data))]
    delayed = importlib.import_module("dask").delayed(_extremes)
    return [delayed(block) for block in data.to_delayed().ravel()]


def _extremes(x: Array) -> tuple[Any, Any]:
    """Return minimum and maximum of what is not NaN, NaN where nothing is."""
    if not x.size:
        return x.dtype.type(np.nan), x.dtype.type(np.nan)
    return np.fmin.reduce(x, axis=None), np.fmax.reduce(x, axis=None)


def _computed(ranges: list[list[Any]]) -> list[list[Any]]:
    if all(isinstance(part, tuple) for parts in ranges for part in parts):
        return ranges
    computed: tuple[list[list[Any]]] = importlib.import_module("dask").compute(ranges)
    return computed[0]


def _merged(parts: list[Any]) -> Array:
    """Return minimum and maximum of all parts, zeros where nothing is a number."""
    lows, highs = np.array(parts).T
    both = np.array([np.fmin.reduce(lows), np.fmax.reduce(highs)])
    return np.where(np.isnan(both), both.dtype.type(0), both)


# --- variables --------------------------------------------------------------------------------------------------------


def _packing(name: Any, extremes: Array, qtype: QType, bound: float | None) -> _Packing:
    """Return how a variable with this minimum and maximum is packed."""
    if not np.isfinite(extremes).all():
        raise ValueError(f"ds has infinite values in {name!r}: their range has no scale")
    if bound is None:
        return _from_range(extremes, qtype)
    packings = [_from_range(extremes, as_qtype(f"{qtype.name.rstrip('0123456789')}{bits}")) for bits in (8, 16)]
    lo, hi = extremes
    for packing in packings:
        if packing.max_error <= bound:
            return packing
    raise ValueError(
        f"max_error of {name!r} is {bound}, but {packings[-1].qtype} from {lo} to {hi} may be off by "
        f"{packings[-1].max_error:.3g}"
    )


def _from_range(extremes: Array, qtype: QType) -> _Packing:
    """Return the packing of a range; one without extent, or too small to divide, is the offset, with code 0."""
    p, fill = choose_qparams(extremes, qtype, convention="cf"), qtype.qmin if qtype.signed else qtype.qmax
    scale, extent = p.scale[()], float(extremes[1]) - float(extremes[0])
    if extent < float(scale):
        return _Packing(qtype, scale, scale.dtype.type(extremes[0]), fill, extent)
    return _Packing(qtype, scale, p.zero_point[()], fill, float(scale) / 2)


def _variable(xarray: Any, variable: Variable, packing: _Packing) -> Variable:
    """Return a variable packed, lazily where it is lazy."""
    data: Any = variable.data
    dtype = packing.qtype.storage
    if hasattr(data, "map_blocks"):
        codes_of = functools.partial(in_own_thread, _codes)
        data = data.map_blocks(codes_of, packing, dtype=dtype, meta=np.empty((0,) * data.ndim, dtype))
    else:
        data = _codes(np.asarray(data), packing)
    attributes = {key: value for key, value in variable.attrs.items() if key not in (*_OF_PACKING, *_IN_CODES)}
    encoding = {key: value for key, value in variable.encoding.items() if key not in (*_OF_PACKING, *_OF_FLOATS)}
    packed: Variable = xarray.Variable(variable.dims, data, attributes | packing.attributes, encoding)
    return packed


def _codes(x: Array, packing: _Packing) -> Array:
    """Return codes, ``clamp(rint((x - offset) / scale))`` in the type of x, and the fill value for NaN."""
    values, dtype = x.astype(packing.scale.dtype, copy=False), packing.qtype.storage
    units = {"scale": float(packing.scale), "offset": float(packing.offset), "fill": packing.fill}
    cast = lazy.module("fastq.dispatch.casting").cast_floats
    codes: Array = cast(values, dtype, "half_even", code_range=packing.code_range, **units)[0]
    return codes
