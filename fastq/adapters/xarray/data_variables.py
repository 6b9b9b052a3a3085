"""The variables of a Dataset that are data, by the CF conventions: what is packed and rounded, and what stays."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastq.adapters.xarray.missing_values import OF_GAPS, OF_LIMITS, OF_SCALE, codes_dtype
from fastq.system.arguments import did_you_mean, shown

if TYPE_CHECKING:
    from xarray import Dataset, Variable

# attributes and encodings that describe how floats were rounded, or will be by netCDF
OF_QUANTIZATION = (
    *("least_significant_digit", "significant_digits", "quantize_mode", "quantization", "quantization_nsb"),
    *("quantization_nsd", "number_of_significant_digits", "number_of_significant_bits"),  # the last two: older NCO
)
_OF_NETCDF_AND_NCO = re.compile(r"_?Quantize[A-Za-z]+NumberOfSignificant(Bits|Digits)")  # NCO's have no underscore

# attributes that name parts of a coordinate system: of cells, grids, geometries, meshes and subsampled coordinates
_NAMES_PARTS = re.compile(
    "bounds|climatology|coordinates|nodes|node_count|part_node_count|interior_ring|geometry|grid_mapping|cell_measures"
    "|formula_terms|coordinate_interpolation|tie_point_mapping|interpolation_parameters|mesh|location_index_set"
    "|aggregated_data|[a-z]+_coordinates|([a-z]+_){2}connectivity"
)
# those in which words before a colon are variables, too, not only roles of variables
_NAMES_BY_KEYS = ("grid_mapping", "coordinate_interpolation")
# attributes and texts that mark a variable as not data, and its kind
_MARKS = (
    ("flag_values", "", "flags"),
    ("flag_masks", "", "flags"),
    ("flag_meanings", "", "flags"),
    ("standard_name", r"(.*[ _])?(status|quality)_flag", "flags"),
    ("calendar", "", "times"),
    ("units", r".*\bsince\b.*", "times"),
    ("units", r"degrees?_?(north|N|east|E)", "a coordinate"),
    ("units", "days|hours|minutes|seconds|milliseconds|microseconds|nanoseconds", "durations"),  # by xarray
    ("dtype", r"timedelta64.*", "durations"),
    ("axis", "", "a coordinate"),
    ("cf_role", "", "identifiers"),
    ("compress", "", "indices"),
    ("sample_dimension", "", "counts"),
    ("instance_dimension", "", "indices"),
)


def not_to_pack(ds: Dataset) -> dict[Any, str]:
    """Return the variables of a Dataset that are not data to pack, and the reasons."""
    variables = ds.variables
    named = {name: f"{owner!r} has it in {key}" for name, owner, key in _parts_of_coordinates(ds)}
    marked = {name: reason for name in ds.data_vars if (reason := _reason(name, variables[name]))}
    return dict.fromkeys(ds.coords, "it is a coordinate") | named | marked


def _parts_of_coordinates(ds: Dataset) -> Iterator[tuple[str, Any, str]]:
    """Yield names of parts of coordinate systems, with the variable and the attribute that names them.

    cell_measures = "area: cell_area" names cell_area, and area is a role; in a grid_mapping both are variables.
    """
    coordinates_of_ds = (ds.encoding | ds.attrs).get("coordinates")
    attributes_by_owner: list[tuple[Any, dict[Any, Any]]] = [("ds", {"coordinates": coordinates_of_ds})]
    attributes_by_owner += [(name, variable.encoding | variable.attrs) for name, variable in ds.variables.items()]
    for owner, attributes in attributes_by_owner:
        for key, text in attributes.items():
            if isinstance(text, str) and isinstance(key, str) and _NAMES_PARTS.fullmatch(key):
                for word in text.replace(" :", ":").split():
                    is_role = word.endswith(":") and key not in _NAMES_BY_KEYS
                    if not is_role:
                        yield word.rstrip(":"), owner, key


def _reason(name: Any, variable: Variable) -> str | None:
    """Return why a variable is not data, by its own attributes."""
    attributes = variable.attrs
    for key, text, kind in _MARKS if attributes else ():
        if key in attributes and (not text or re.fullmatch(text, str(attributes[key]))):
            return f"by its {key} it has {kind}"
    stored = codes_dtype("ds", name, variable.encoding.get("dtype"))
    if stored is not None and all(variable.encoding.get(key) is None for key in OF_SCALE):
        return f"by its encoding it has {stored}"
    return None


def is_of_quantization(key: Any) -> bool:
    """Return whether an attribute or an encoding describes how floats were rounded, or will be by netCDF."""
    return key in OF_QUANTIZATION or (isinstance(key, str) and _OF_NETCDF_AND_NCO.fullmatch(key) is not None)


def unclear(floats: Mapping[Any, Variable], unchanged: Collection[Any]) -> dict[Any, str]:
    """Return the float variables whose missing values or range are not known, with the reason.

    `unchanged` are the names of variables that stay as they are for another reason.
    """
    candidates = {name: variable for name, variable in floats.items() if name not in unchanged}
    return {name: reason for name, variable in candidates.items() if (reason := _not_numbers(variable))}


def _not_numbers(variable: Variable) -> str | None:
    """Return why a float variable has no known missing values or range: by an attribute that must be numbers."""
    for key in (*OF_SCALE, *OF_GAPS, *OF_LIMITS, "actual_range"):
        noted = variable.attrs.get(key)
        if noted is not None and np.asarray(noted).dtype.kind not in "iuf":
            return f"its {key} is {shown(noted)}, which must be numbers"
    return None


def exclusions(ds: Dataset, exclude: Any) -> dict[Any, str]:
    """Return the variables that an argument excludes, with the reason."""
    if isinstance(exclude, (str, memoryview)) or not isinstance(exclude, Collection):
        raise TypeError(f"exclude must be a list of names of variables, not {shown(exclude)}")
    for name in exclude:
        try:
            is_known = name in ds.variables
        except TypeError:  # an array, for example, which can't be a name
            is_known = False
        if not is_known:
            near = did_you_mean(name, [known for known in ds.variables if isinstance(known, str)], {})
            raise TypeError(f"exclude names {shown(name)}, which is not a variable of ds{near}")
    return dict.fromkeys(exclude, "exclude names it")


def stays(name: Any, reason: str) -> str:
    """Return the warning that a variable is not changed."""
    return f"{name!r} stays as it is: {reason}"
