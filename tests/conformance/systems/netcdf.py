"""xarray and netCDF4: packed data under the CF conventions, with attributes of the data's float type."""

import numpy as np
from oracle import Case, Quantized, System

FILL = {"int8": -128, "int16": -32768, "uint8": 255, "uint16": 65535}


def xarray(x, case, scale, zero_point):
    """encode_cf_variable and decode_cf_variable."""
    import xarray as library

    encoding = {
        "scale_factor": scale[()],
        "add_offset": zero_point[()],
        "dtype": case.dtype,
        "_FillValue": np.dtype(case.dtype).type(FILL[case.dtype]),
    }
    packed = library.conventions.encode_cf_variable(library.Variable(("y", "x"), x, encoding=encoding))
    return Quantized(packed.values, None, None, library.conventions.decode_cf_variable("v", packed).values)


def netcdf4(x, case, scale, zero_point):
    """A variable of a file in memory, written and read scaled."""
    import netCDF4 as library

    with library.Dataset("conformance.nc", "w", diskless=True, persist=False) as file:
        for name, size in zip("yx", x.shape, strict=True):
            file.createDimension(name, size)
        variable = file.createVariable("v", case.dtype, ("y", "x"), fill_value=FILL[case.dtype])
        variable.scale_factor, variable.add_offset = scale[()], zero_point[()]
        variable[:] = x
        values = np.asarray(variable[:])
        variable.set_auto_maskandscale(False)
        return Quantized(variable[:].copy(), None, None, values)


CASES = tuple(Case(dtype) for dtype in FILL)
UNDEFINED = (
    "Values out of range wrap (300 becomes 44 in int8) and infinities become 0; here they saturate. NaN is the fill "
    "value in xarray if there is one, else 0; always 0 in netCDF4. The parameters are the caller's: neither computes "
    "any. That holds for attributes of the dtype of the data. For float32 data with float64 attributes netCDF4 "
    "computes in float64, as fastq does for data that are widened first; xarray rounds each result to float32, as no "
    "row does."
)

SYSTEMS = (
    System("cf", ("xarray",), xarray, CASES, neighbour="textbook", given=True, undefined=UNDEFINED),
    System("cf", ("netCDF4",), netcdf4, CASES, neighbour="textbook", given=True, undefined=UNDEFINED),
)
