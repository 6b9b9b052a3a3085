"""Pack Datasets of xarray under the CF conventions, unpack and round them; needs xarray, the extra ``[xarray]``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fastq.adapters.xarray import data_variables, datasets, missing_values
from fastq.adapters.xarray.scale_offset_fill import OF_PACKING, CfPacking, packing_of_range, packing_of_variable
from fastq.formats.qtypes import QType, as_qtype
from fastq.ops.cf_packing import UNPACK_ARRAY
from fastq.plan.cache import run_operation
from fastq.plan.call_modes import in_standard_mode_when_called
from fastq.requests.cf_unpacking import as_float_dtype, as_gaps
from fastq.system.arguments import as_choice, as_float, native, shown
from fastq.system.callers import warn_caller
from fastq.system.dtypes import Array
from fastq.system.imports import late, undisturbed

if TYPE_CHECKING:
    from xarray import Dataset, Variable

FORMATS = ("int8", "uint8", "int16", "uint16")
# encodings and attributes for floats: of a zarr store, and of a netCDF file with rounding
_OF_FLOATS = ("filters", "fill_value", "serializer")


@in_standard_mode_when_called
def pack(
    ds: Dataset,
    dtype: str | DTypeLike = "int16",
    *,
    max_error: Mapping[str, float] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    like: Dataset | None = None,
    out_of_range: str | None = None,
    exclude: Collection[str] = (),
) -> Dataset:
    """Pack the float variables of a Dataset into integers, with scale_factor, add_offset and _FillValue.

    Write the result with ``to_netcdf`` or ``to_zarr``: any reader of the CF conventions unpacks it, `xarray.decode_cf`
    too. Parameters follow the convention "cf" for the range of all values that are not missing; zeros are read as
    exactly 0, in float32 and float64. Missing values become the fill value: NaN, and values that are missing by the
    attributes _FillValue, missing_value and valid limits. No code wraps. dask arrays stay lazy: only their ranges are
    computed, those of all variables at once.

    Parameters
    ----------
    ds : xarray.Dataset
        Dataset to pack. Coordinates and variables that describe them (bounds, cell measures, formula terms, grid
        mappings and the like), flags, times and variables of dtypes other than float16, float32 and float64 stay as
        they are. So do floats whose encoding has integers without a scale: these are integers with missing values. So
        do, with a warning, floats whose _FillValue, missing_value, scale, limits or actual_range are texts.
    dtype : {"int8", "uint8", "int16", "uint16"} or dtype
        Dtype of the codes. Files of the netCDF 3 formats have no unsigned integers: a variable whose encoding has
        ``_Unsigned="true"`` is stored as signed integers with that attribute.
    max_error : mapping of str to float, optional
        Largest absolute error of unpacked values, for some of the variables. Such a variable gets the dtype of 8 bits
        if half a step and the rounding of floats allow it, else the one of 16 bits, signed or unsigned like `dtype`.
    ranges : mapping of str to (float, float), optional
        The smallest and the largest value to expect, for some of the variables, if data that is appended to a file
        later has a wider range than `ds`.
    like : xarray.Dataset, optional
        A packed Dataset, or one that was read from packed files, such as the file to which `ds` will be appended.
        Variables of the same names get its dtype, scale and all other attributes of packing; a variable that it does
        not pack is not packed.
    out_of_range : {None, "clamp"}
        What to do with values out of the given ranges, or out of the range of the codes of `like`: None refuses them,
        "clamp" replaces them by the nearest value in range.
    exclude : collection of str, optional
        Names of variables that stay as they are.

    Returns
    -------
    xarray.Dataset
        The packed Dataset, with the attributes and dimensions of `ds`. Cells of a zarr 3 store that are never written
        are missing. Attributes about another packing and about
        rounded floats are left out; valid_min, valid_max and valid_range are in codes, with `like` those of `like`.
        actual_range has the values that will be read, and is left out if "clamp" makes it unknown.

    Raises
    ------
    TypeError
        If `ds` or `like` is not a Dataset, if another argument names a variable that it does not pack, or is not in
        `ds`, if `ranges` names a variable of `like`, if attributes of `like` that must be numbers are not, or if a
        variable has arrays, as those of netCDF of variable length have.
    ValueError
        If `dtype` or `out_of_range` is not one of the above, `ranges` has an invalid range, a variable has infinities
        or netCDF's default fill value, a `max_error` can't be reached, or attributes do not describe a packing. If
        values are out of range, or `like` has no code for missing values. Errors that depend on values of dask arrays
        are raised when these are computed, if their range is not needed: with "clamp", and for missing values.
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
    >>> fastq.xarray.pack(ds + 1, like=packed, out_of_range="clamp").t.values
    array([-122, -128,  127], dtype=int8)
    """
    xarray = datasets.library("fastq.xarray.pack", ds=ds, **({} if like is None else {"like": like}))
    qtype = _format(dtype)
    if out_of_range is not None:
        as_choice(out_of_range, "out_of_range", ("clamp",))
    floats = datasets.floats(ds)
    not_packed = data_variables.not_to_pack(ds) | data_variables.exclusions(ds, exclude)
    unclear = data_variables.unclear(floats, not_packed)
    for name, reason in unclear.items():
        warn_caller(data_variables.stays(name, reason))
    not_packed |= unclear
    to_pack = [name for name in floats if name not in not_packed]
    packings_of_like, not_packed_in_like = _packings_like({} if like is None else like.data_vars, to_pack)
    not_packed |= not_packed_in_like
    data = {name: variable for name, variable in floats.items() if name not in not_packed}
    bounds, expected_ranges = _bounds_and_ranges(max_error, ranges, data, not_packed)
    if both := [name for name in expected_ranges if name in packings_of_like]:
        raise TypeError(f"ranges names {both[0]!r}, whose range is that of like")
    missing = {name: missing_values.missing(name, variable) for name, variable in data.items()}
    # with "clamp", values out of an expected range need not be found
    needs_range_of_data = [
        name for name in data if out_of_range is None or name not in expected_ranges | packings_of_like
    ]
    ranges_of_data = _ranges_of_lazy({name: data[name] for name in needs_range_of_data}, missing)
    packed = {}
    for name, variable in data.items():
        values = datasets.values_of(name, variable)
        if name in needs_range_of_data and name not in ranges_of_data:
            (ranges_of_data[name],) = _extremes_of([(values, missing[name])])
        extremes = ranges_of_data.get(name)
        if extremes is not None:
            _check_range(name, extremes)
        bound = bounds.get(name)
        if name in packings_of_like:
            packing = _first_within(name, bound, [packings_of_like[name]])
            limits = packing.limits(variable.attrs, None, extremes)  # other limits are those of like
        else:
            range_to_pack = (ranges_of_data | expected_ranges)[name]
            packing = _first_within(name, bound, _possible_packings(variable, qtype, bound, range_to_pack))
            limits = packing.limits(variable.attrs, missing[name], extremes)
        codes = _pack_values(name, values, missing[name], extremes, packing)
        del values  # before the next ones are read
        attributes, encoding = _attributes_and_encoding(variable, limits | packing.attributes)
        if packing.fill is not None:
            encoding["fill_value"] = packing.stored_fill  # of cells that a zarr 3 store lacks
        packed[name] = xarray.Variable(variable.dims, codes, attributes, encoding)
    result: Dataset = ds.assign(packed)
    return result


def unpack(ds: Dataset, *, dtype: DTypeLike | None = None) -> Dataset:
    """Unpack the packed variables of a Dataset like ``xarray.decode_cf``, but at the speed of the memory.

    Values, attributes, encodings and warnings are the same as in xarray, which uses scale_factor, add_offset,
    _FillValue, missing_value and _Unsigned, and ignores valid limits. dask arrays stay lazy; other variables are
    unpacked when they are accessed, so a file is read no earlier and in no larger parts than by xarray. A warning of
    its own is for codes of several files that were joined before.

    Parameters
    ----------
    ds : xarray.Dataset
        Result of ``xarray.open_dataset(..., mask_and_scale=False)`` or of `pack`. Times as numbers stay as they are:
        xarray.decode_cf decodes them, before or after.
    dtype : {"float32", "float64"} or dtype, optional
        Dtype of the values of packed integers of up to 32 bits. For float32, float64 values are rounded; for float64,
        they are computed in float64 even if float32 would be enough. By default the dtype that xarray chooses.

    Returns
    -------
    xarray.Dataset
        A Dataset with values instead of codes; the attributes of the packing are in the encodings.

    Raises
    ------
    TypeError
        If `ds` is not a Dataset, or `dtype` is not a dtype.
    ValueError
        If `dtype` is another one.
    ModuleNotFoundError
        If xarray is not installed.

    See Also
    --------
    unpack_array : The same for an array without xarray.

    Examples
    --------
    >>> import numpy as np, xarray, fastq
    >>> noted = {"scale_factor": np.float32(0.5), "add_offset": np.float32(250), "_FillValue": np.int16(-1)}
    >>> ds = xarray.Dataset({"t": ("x", np.array([0, -1, 101], np.int16), noted)})
    >>> fastq.xarray.unpack(ds).t.values
    array([250. ,   nan, 300.5], dtype=float32)
    """
    datasets.library("fastq.xarray.unpack", ds=ds)
    with undisturbed():
        from fastq.adapters.xarray.unpacking import unpack_dataset  # imports xarray
    result: Dataset = unpack_dataset(ds, None if dtype is None else as_float_dtype(dtype))
    return result


def unpack_array(
    codes: ArrayLike,
    scale_factor: float = 1.0,
    add_offset: float = 0.0,
    *,
    fill_value: int | Sequence[int] = (),
    dtype: DTypeLike | None = None,
) -> Array:
    """Unpack an array of packed integers: ``codes * scale_factor + add_offset``, and NaN for fill values.

    Parameters
    ----------
    codes : array_like of int8, uint8, int16, uint16, int32 or uint32
        Codes as they are stored, or in the dtype that _Unsigned prescribes.
    scale_factor, add_offset : float
        Finite numbers of the attributes.
    fill_value : int or sequence of int
        Codes of missing values: _FillValue, missing_value. Numbers that are not codes have no effect.
    dtype : {"float32", "float64"} or dtype, optional
        Dtype of the values. The default is float32 if scale_factor or add_offset is a NumPy float32, none is a float64
        and codes have at most 16 bits; else float64. Product and sum are rounded to the default, or to float64 if the
        values are float64.

    Returns
    -------
    ndarray
        Values, the codes' shape.

    Raises
    ------
    TypeError
        If an argument is not as described.
    ValueError
        If `scale_factor` or `add_offset` is not finite, or `dtype` is another one.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.xarray.unpack_array(np.array([0, -1, 101], np.int16), 0.5, 250, fill_value=-1)
    array([250. ,   nan, 300.5])
    """
    options = (as_gaps(fill_value), dtype)
    values: Array = run_operation(UNPACK_ARRAY, codes, None, scale_factor, add_offset, options=options)
    return values


# --- arguments --------------------------------------------------------------------------------------------------------


def _format(dtype: Any) -> QType:
    """Return the format of the codes: one that netCDF files support."""
    with contextlib.suppress(TypeError):  # its error lists all formats
        dtype = as_qtype(dtype).name
    return as_qtype(as_choice(dtype, "dtype", FORMATS))


def _expected_range(name: Any, pair: Any, variable: Variable) -> Array:
    """Return the range of a variable that a caller expects, in the type to compute in."""
    numbers = pair if isinstance(pair, (list, tuple)) else ()
    ends = [as_float(number, f"ranges of {name!r}", -math.inf, math.inf) for number in numbers]
    dtype = np.result_type(native(variable.dtype), np.float32)
    with np.errstate(over="ignore"):
        ends_in_dtype = np.array(ends).astype(dtype)
    is_range = len(ends) == 2 and ends[0] < ends[1] and math.isfinite(ends[1] - ends[0])
    if not is_range or np.isinf(ends_in_dtype).any():
        what_it_is = f"{shown(pair)}, but finite numbers of {dtype}, the first below the second"
        raise ValueError(f"ranges of {name!r} must be the smallest and the largest value, not {what_it_is}")
    return ends_in_dtype


def _packings_like(like: Mapping[Any, Any], names: list[Any]) -> tuple[dict[Any, CfPacking], dict[Any, str]]:
    """Return the packings of variables in another Dataset, and the variables that it does not pack, with the reason."""
    packings: dict[Any, CfPacking] = {}
    not_packed: dict[Any, str] = {}
    for name in names:
        if name in like:
            packing = packing_of_variable(name, like[name])
            if packing is None:
                not_packed[name] = "it is not packed in like"
            else:
                packings[name] = packing
    return packings, not_packed


# --- ranges -----------------------------------------------------------------------------------------------------------


def _ranges_of_lazy(
    variables: Mapping[Any, Variable], missing: Mapping[Any, missing_values.Missing | None]
) -> dict[Any, Array]:
    """Return the ranges of the variables with chunks, all computed at once, so that each chunk is read once."""
    names = [name for name, variable in variables.items() if variable.chunks is not None]
    extremes = _extremes_of([(datasets.values_of(name, variables[name]), missing[name]) for name in names])
    return dict(zip(names, extremes, strict=True))


def _extremes_of(arrays: Iterable[tuple[Any, missing_values.Missing | None]]) -> list[Array]:
    """Return minimum and maximum of arrays, NaN without any number; for dask arrays in one pass."""
    ranges_of_chunks = [_ranges_of_chunks(data, missing) for data, missing in arrays]
    # ranges of chunks of dask are delayed, not pairs yet
    if any(not isinstance(ends, tuple) for ranges_of_array in ranges_of_chunks for ends in ranges_of_array):
        (ranges_of_chunks,) = _dask().compute(ranges_of_chunks)
    lows_and_highs = [np.array(ranges_of_array).T for ranges_of_array in ranges_of_chunks]
    return [np.array([np.fmin.reduce(lows), np.fmax.reduce(highs)]) for lows, highs in lows_and_highs]


@late
def _dask() -> Any:
    """Import dask, only where a variable has chunks."""
    import dask

    return dask


def _ranges_of_chunks(data: Any, missing: missing_values.Missing | None) -> list[Any]:
    """Return the ranges of the parts of an array; for a dask array they are lazy."""
    if not hasattr(data, "to_delayed"):
        return [_extremes(data, missing)]
    delayed = _dask().delayed(datasets.apply_to_chunk)
    return [delayed(_extremes, block, missing) for block in data.to_delayed().ravel()]


@in_standard_mode_when_called
def _extremes(x: Array, missing: missing_values.Missing | None) -> tuple[Any, Any]:
    """Return minimum and maximum of the values that are not missing, NaN if all are.

    If all numbers are beyond the limits, they are infinity and -infinity, which change no other range.
    """
    if not x.size:
        return x.dtype.type(np.nan), x.dtype.type(np.nan)
    values = x if missing is None else missing.with_nan(x)
    lo, hi = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
    if missing is not None and np.isnan(lo) and not np.isnan(missing.without_limits.with_nan(x)).all():
        return x.dtype.type(np.inf), x.dtype.type(-np.inf)
    return lo, hi


# --- variables --------------------------------------------------------------------------------------------------------


def _bounds_and_ranges(
    max_error: Any, ranges: Any, data: dict[Any, Variable], unchanged: dict[Any, str]
) -> tuple[dict[Any, float], dict[Any, Array]]:
    """Return the bounds of errors and the ranges that a caller passes, by the names of variables."""
    bounds = datasets.check_names("max_error", "numbers", max_error, data, unchanged)
    pairs = datasets.check_names("ranges", "pairs of numbers", ranges, data, unchanged)
    return (
        {name: as_float(bound, f"max_error of {name!r}", 0.0, math.inf) for name, bound in bounds.items()},
        {name: _expected_range(name, pair, data[name]) for name, pair in pairs.items()},
    )


def _check_range(name: Any, extremes: Array) -> None:
    """Raise ValueError for a range that has no scale."""
    if extremes[0] > extremes[1]:  # infinity and -infinity, see `_extremes`
        raise ValueError(
            f"ds has no value of {name!r} within its valid limits: remove them from attrs, or correct them"
        )
    _check_are_data(name, extremes)


def _check_are_data(name: Any, extremes: tuple[Any, Any] | Array) -> None:
    """Raise ValueError for a minimum or a maximum that is not data."""
    if np.isinf(extremes).any() and extremes[0] <= extremes[1]:
        raise ValueError(f"ds has infinite values in {name!r}: their range has no scale")
    if float(extremes[1]) == missing_values.NOT_WRITTEN:
        raise missing_values.not_written(name)


def _possible_packings(variable: Variable, qtype: QType, bound: float | None, extremes: Array) -> list[CfPacking]:
    """Return the possible packings of a variable for a range: with a bound of the error, 8 bits or 16."""
    family = qtype.name.rstrip("0123456789")  # "int" or "uint"
    # files of netCDF 3 have no unsigned integers: whether _Unsigned makes unsigned codes of signed integers
    as_signed = missing_values.dtype_by_unsigned(np.dtype("int8"), variable.encoding.get("_Unsigned")).kind == "u"
    qtypes = [qtype] if bound is None else [as_qtype(f"{family}{bits}") for bits in (8, 16)]
    return [packing_of_range(extremes, candidate, as_signed) for candidate in qtypes]


def _first_within(name: Any, bound: float | None, packings: list[CfPacking]) -> CfPacking:
    """Return the first packing whose error is within the bound; raise ValueError if there is none."""
    if bound is None:
        return packings[0]
    for packing in packings:
        if packing.max_error <= bound:
            return packing
    finest = packings[-1]
    lo, hi = finest.ends
    codes = f"{finest.dtype} from {lo:.7g} to {hi:.7g}"
    if finest.has_gap:
        advice = "like has its fill value among the codes of numbers"
    elif finest.rounding_error <= bound and finest.scale.dtype == np.float32:
        advice = "most of that is the rounding of float32, which astype('float64') avoids"
    else:
        advice = "fastq.xarray.bitround leaves it a float and takes any max_error"
    raise ValueError(f"max_error of {name!r} is {bound}, but {codes} may be off by {finest.max_error:.3g}; {advice}")


def _pack_values(
    name: Any, data: Any, missing: missing_values.Missing | None, extremes: Array | None, packing: CfPacking
) -> Any:
    """Return the codes of values, lazily if these are lazy; raise ValueError if their range is not that of codes.

    Without `extremes` the values are checked, for what is no data, when they are packed.
    """
    if extremes is not None and not packing.has(extremes):
        lo, hi = extremes
        first, last = packing.ends
        raise ValueError(
            f"ds has values from {lo} to {hi} in {name!r}, but its codes are for {first:.7g} to {last:.7g}; "
            "out_of_range='clamp' takes the nearest of these"
        )
    if extremes is None:
        return datasets.by_chunks(_encode_checked, data, packing, missing, name, dtype=packing.stored)
    return datasets.by_chunks(_encode, data, packing, missing, dtype=packing.stored)


@in_standard_mode_when_called
def _encode(x: Array, packing: CfPacking, missing: missing_values.Missing | None) -> Array:
    """Return the codes of values."""
    return packing.encode(x, missing)


@in_standard_mode_when_called
def _encode_checked(x: Array, packing: CfPacking, missing: missing_values.Missing | None, name: Any) -> Array:
    """Return the codes of values; raise ValueError if some are no data."""
    _check_are_data(name, _extremes(x, missing))
    return packing.encode(x, missing)


def _attributes_and_encoding(
    variable: Variable, new_attributes: dict[str, Any]
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the attributes and the encoding of codes: those of the floats that hold of codes too, and new ones."""
    of_floats = (*OF_PACKING, *_OF_FLOATS)
    attributes = _without_keys(variable.attrs, (*of_floats, *missing_values.OF_LIMITS, "actual_range"))
    encoding = _without_keys(variable.encoding, (*of_floats, "original_shape"))
    return attributes | new_attributes, encoding


def _without_keys(attributes: Mapping[Any, Any], keys: tuple[str, ...]) -> dict[Any, Any]:
    """Return attributes without some of them, and without those that say how floats were rounded."""
    return {
        key: value
        for key, value in attributes.items()
        if key not in keys and not data_variables.is_of_quantization(key)
    }
