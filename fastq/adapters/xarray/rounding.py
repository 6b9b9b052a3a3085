"""Round the floats of a Dataset to fewer bits, with the attributes of CF that describe it."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from fastq.adapters.xarray import data_variables, datasets, missing_values
from fastq.formats.bitrounding import TIES, most_digits, of_width
from fastq.ops.bitround import bit_information, largest
from fastq.ops.bitround import bitround as round_array
from fastq.plan.call_modes import in_standard_mode_when_called
from fastq.requests import bitrounding
from fastq.requests.bitrounding import BitRoundOptions
from fastq.system.arguments import as_choice, as_float, as_int, native, shown
from fastq.system.callers import warn_caller
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Dataset, Variable

# attribute of the variable, and algorithm, by the option that was used
_ATTRIBUTE_AND_ALGORITHM = {
    "keepbits": ("quantization_nsb", "bitround"),
    "digits": ("quantization_nsd", "granular_bitround"),
}
_OPTIONS = "keepbits, digits, max_error and information"


@in_standard_mode_when_called
def bitround(
    ds: Dataset,
    *,
    keepbits: int | Mapping[str, int] | None = None,
    digits: int | Mapping[str, int] | None = None,
    max_error: float | Mapping[str, float] | None = None,
    information: float | Mapping[str, float] | None = None,
    dim: str | None = None,
    convention: str = "numcodecs",
    exclude: Collection[str] = (),
) -> Dataset:
    """Round the float variables of a Dataset to fewer bits, so that files with them compress well.

    Any reader can read the result, since it has floats. Missing values stay as they are: NaN, and values that are
    missing by the attributes _FillValue, missing_value and valid limits, and netCDF's default fill value without a
    _FillValue. dask arrays stay lazy; for `max_error` and `information` they are computed once, chunk by chunk.

    Parameters
    ----------
    ds : xarray.Dataset
        Dataset to round. Variables that `fastq.xarray.pack` leaves as they are stay so here: coordinates and variables
        that describe them, flags and times; so do variables that are stored as integers by their encoding.
    keepbits, digits, max_error : number or mapping of str to number, optional
        As in `fastq.bitround`, for all variables or for some by name; keepbits is at least 1. A variable that a mapping
        names is rounded by the mapping, all others by the option that is a number, if there is one.
    information : float or mapping of str to float, optional
        Keep the bits with this share of the information, as `fastq.bit_information` finds it: 0.99, for instance.
        Variables without neighbours stay as they are, with a warning: scalars, and those that lack `dim`.
    dim : str, optional
        Dimension along which neighbours are compared for `information`; by default the last one of each variable.
    convention : {"numcodecs", "netcdf"}
        How ties are rounded, as in `fastq.bitround`.
    exclude : collection of str, optional
        Names of variables that stay as they are.

    Returns
    -------
    xarray.Dataset
        The rounded Dataset, with the attributes of CF 1.12 for quantization: quantization_nsb or quantization_nsd of a
        variable and the name of a variable that names algorithm and implementation, quantization_bitround or
        quantization_granular_bitround.

    Raises
    ------
    TypeError
        If `ds` is not a Dataset, if none of the four options is given or two are for all variables, if a mapping names
        a variable that is not rounded or that another mapping names, or if a value is not a number.
    ValueError
        If a number is out of range, `dim` is not a dimension of a variable, attributes violate CF, or the largest value
        that `max_error` is for is netCDF's default fill value.
    ModuleNotFoundError
        If xarray is not installed.

    Examples
    --------
    >>> import numpy as np, xarray, fastq
    >>> ds = xarray.Dataset({"t": ("x", np.array([250.1234, np.nan, 300.5678], np.float32))})
    >>> rounded = fastq.xarray.bitround(ds, max_error=0.05)
    >>> rounded.t.values, rounded.t.attrs["quantization_nsb"]
    (array([250.125 ,      nan, 300.5625], dtype=float32), np.int32(12))
    """
    xarray = datasets.library("fastq.xarray.bitround", ds=ds)
    as_choice(convention, "convention", tuple(TIES))
    floats = datasets.floats(ds)
    not_rounded = data_variables.not_to_pack(ds) | data_variables.exclusions(ds, exclude)
    for name, variable in floats.items():
        if missing_values.codes_dtype("ds", name, variable.encoding.get("dtype")) is not None:
            not_rounded.setdefault(name, "by its encoding it is packed")
    unclear = data_variables.unclear(floats, not_rounded)
    not_rounded |= unclear
    data = {name: variable for name, variable in floats.items() if name not in not_rounded}
    options = {"keepbits": keepbits, "digits": digits, "max_error": max_error, "information": information}
    choices = _option_by_name(options, data, not_rounded)
    without_neighbours = {} if isinstance(information, Mapping) else _without_neighbours(data, choices, dim)
    for name, reason in (unclear | without_neighbours).items():
        warn_caller(data_variables.stays(name, reason))
    rounded = {}
    for name, (option, number) in choices.items():
        if name in without_neighbours:
            continue
        values = datasets.values_of(name, data[name])
        option_of_rounding, bits = _bits_of(name, data[name], values, option, number, dim)
        options_of_rounding = {option_of_rounding: bits, "convention": convention}
        rounded[name] = _round_variable(xarray, name, data[name], values, options_of_rounding)
        del values  # before the next ones are read
        attribute, algorithm = _ATTRIBUTE_AND_ALGORITHM[option_of_rounding]
        # CF describes an algorithm by the attributes of a variable without data
        description = f"quantization_{algorithm}"
        rounded[name].attrs.update({"quantization": description, attribute: np.int32(bits)})
        attributes_of_algorithm = {"algorithm": algorithm, "implementation": _implementation(convention)}
        rounded[description] = xarray.Variable((), np.int8(0), attributes_of_algorithm)
    result: Dataset = ds.assign(rounded)
    return result


def _without_neighbours(
    data: Mapping[Any, Variable], choices: dict[Any, tuple[str, Any]], dim: str | None
) -> dict[Any, str]:
    """Return the variables of which `information` can't compare neighbours, with the reason.

    A `dim` that no variable has is an error of the argument, which is raised when the first variable is rounded.
    """
    dims = {name: data[name].dims for name, (option, _) in choices.items() if option == "information"}
    if dim is not None and not _can_be_a_name(dim):
        return {}
    if dim is not None and dims and not any(dim in dims_of_variable for dims_of_variable in dims.values()):
        return {}
    scalars = [name for name, dims_of_variable in dims.items() if not dims_of_variable]
    reasons = dict.fromkeys(scalars, "it is a scalar, without neighbours to compare")
    if dim is not None:
        without_dim = [
            name for name, dims_of_variable in dims.items() if dims_of_variable and dim not in dims_of_variable
        ]
        reasons |= dict.fromkeys(without_dim, f"it has no dimension {dim}")
    return reasons


def _implementation(convention: str) -> str:
    """Return the text by which CF names an implementation."""
    return f"fastq version {version('fastq-kernels')}, ties as in {convention}"


def _option_by_name(
    options: dict[str, Any], data: dict[Any, Variable], unchanged: Mapping[Any, str]
) -> dict[Any, tuple[str, Any]]:
    """Return the option and its number for each variable to round: that of a mapping, else the one for all variables.

    Raise TypeError if two options are for one variable.
    """
    passed = {option: value for option, value in options.items() if value is not None}
    for_all = [(option, value) for option, value in passed.items() if not isinstance(value, Mapping)]
    if len(for_all) > 1:
        (first, _), (second, _) = for_all[:2]
        raise TypeError(f"{second} must be given by the names of variables, since {first} is a number for all of them")
    if not passed:
        raise TypeError(f"one of {_OPTIONS} must be a number for all variables, or some dicts by their names")
    by_name: dict[Any, tuple[str, Any]] = {}
    for option, value in passed.items():
        numbers = value if isinstance(value, Mapping) else None
        for name, number in datasets.check_names(option, "numbers", numbers, data, unchanged).items():
            if name in by_name:
                raise TypeError(f"{option} names {name!r}, as {by_name[name][0]} does")
            by_name[name] = option, number
    return {name: by_name[name] if name in by_name else for_all[0] for name in data if name in by_name or for_all}


def _bits_of(name: Any, variable: Variable, data: Any, option: str, number: Any, dim: str | None) -> tuple[str, int]:
    """Return the option of `fastq.bitround` for a variable, "keepbits" or "digits", and its number.

    The other options, max_error and information, choose the number of bits to keep by the values.
    """
    dtype = native(variable.dtype)
    # the first number of `of_width` is that of mantissa bits
    most = {"keepbits": of_width(8 * dtype.itemsize)[0], "digits": most_digits(8 * dtype.itemsize)}
    if option in _ATTRIBUTE_AND_ALGORITHM:
        number = as_int(number, f"{option} of {name!r}")
        if not 1 <= number <= most[option]:
            raise ValueError(f"{option} of {name!r} must be from 1 to {most[option]} for {dtype}, not {number}")
        return option, number
    bound = as_float(number, f"{option} of {name!r}", 0.0, math.inf if option == "max_error" else 1.0)
    values = _with_nan(data, missing_values.missing(name, variable))
    if option == "max_error":
        magnitude = _largest(values)
        if magnitude == missing_values.NOT_WRITTEN:
            raise missing_values.not_written(name)
        bits = bitrounding.bitround_request(dtype, BitRoundOptions(max_error=bound)).keepbits_within(magnitude)
    else:
        axis = -1 if dim is None else _axis_of(name, variable, dim)
        bits = bit_information(values, axis=axis).keepbits(bound)
    return "keepbits", max(bits, 1)


def _can_be_a_name(dim: Any) -> bool:
    """Return whether an object can be compared with names of dimensions; NumPy's records raise an error."""
    return isinstance(dim, Hashable) and not isinstance(dim, np.void)


def _axis_of(name: Any, variable: Variable, dim: Any) -> int:
    """Return the axis of a dimension of a variable; raise ValueError if it has no such dimension."""
    for axis, known in enumerate(variable.dims):
        if _can_be_a_name(dim) and dim == known:
            return axis
    dims = ", ".join(map(str, variable.dims))
    raise ValueError(f"dim must be a dimension of {name!r}, one of {dims}, not {shown(dim)}")


def _largest(values: Any) -> float:
    """Return the largest finite magnitude of an array, 0.0 without finite elements."""
    if not hasattr(values, "to_delayed"):
        return largest(values)
    import dask

    of_blocks = [dask.delayed(datasets.apply_to_chunk)(largest, block) for block in values.to_delayed().ravel()]
    return float(max(dask.compute(of_blocks)[0]))


def _with_nan(data: Any, missing: missing_values.Missing | None) -> Any:
    """Return an array with NaN for missing values, lazily if it is lazy."""
    if not hasattr(data, "map_blocks"):
        return data if missing is None else missing.with_nan(data)
    return data if missing is None else datasets.by_chunks(missing.with_nan, data, dtype=data.dtype)


def _round_variable(xarray: Any, name: Any, variable: Variable, data: Any, options: dict[str, Any]) -> Variable:
    """Return a rounded variable, without attributes of another rounding."""
    missing = missing_values.missing(name, variable)
    dtype = native(variable.dtype)
    default_fill = _default_fill(variable, dtype, options)
    attributes = _without_rounding(variable.attrs)
    encoding = _without_rounding(variable.encoding)
    if (ends := attributes.get("actual_range")) is not None:
        attributes["actual_range"] = _round_values(np.asarray(ends, dtype), missing, default_fill, options)
    rounded = datasets.by_chunks(_round_values, data, missing, default_fill, options, dtype=dtype)
    result: Variable = xarray.Variable(variable.dims, rounded, attributes, encoding)
    return result


def _without_rounding(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return attributes without those that describe a rounding."""
    return {key: value for key, value in attributes.items() if not data_variables.is_of_quantization(key)}


def _default_fill(variable: Variable, dtype: np.dtype[Any], options: dict[str, Any]) -> float | None:
    """Return netCDF's default fill value if it marks missing values of a variable and rounding would change it."""
    with np.errstate(over="ignore"):  # infinity in float16, which stays
        fill = np.array(missing_values.NOT_WRITTEN).astype(dtype)
    has_own_fill = (variable.encoding | variable.attrs).get("_FillValue") is not None
    if has_own_fill or round_array(fill, **options) == fill:
        return None
    return missing_values.NOT_WRITTEN


@in_standard_mode_when_called
def _round_values(
    x: Array, missing: missing_values.Missing | None, default_fill: float | None, options: dict[str, Any]
) -> Array:
    """Round values that are not missing; a value that would become missing, as beyond a valid limit, stays as it is."""
    rounded = round_array(x, **options)
    if default_fill is not None:
        np.copyto(rounded, x, where=x == default_fill)
    if missing is not None:
        is_or_becomes_missing = np.isnan(missing.with_nan(x)) | np.isnan(missing.with_nan(rounded))
        np.copyto(rounded, x, where=is_or_becomes_missing)
    return rounded
