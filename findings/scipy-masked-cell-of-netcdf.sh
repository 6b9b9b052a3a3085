#!/usr/bin/env bash
# System:    SciPy 1.18.1, checked on 2026-11-28; the file is also read by netCDF4 1.7.5.1.post1 and xarray 2026.9.0.
# Behaviour: netcdf_file(..., maskandscale=True) takes a masked array for a variable without `_FillValue` and adds
#            `_FillValue` and `missing_value` of its own: 1e20 as float64, whatever the variable's type. A masked cell
#            of a float64 variable is read as masked. One of float32 is read as the valid number 1e20, since 1e20 in
#            float32 is another number; one of int16 as the valid number 0. netCDF4 and xarray read the same numbers,
#            netCDF4 with a warning that it does not use the attributes.
# Expected:  the cell is masked, or the array is refused.
# Seen:
#   f8, _FillValue np.float64(1e+20): SciPy [1.0 2.0 --], netCDF4 [1.0 2.0 --], xarray [ 1.  2. nan]
#   f4, _FillValue np.float64(1e+20): SciPy [1.e+00 2.e+00 1.e+20], netCDF4 [1.e+00 2.e+00 1.e+20], xarray [1.e+00 2.e+00 1.e+20]
#   i2, _FillValue np.float64(1e+20): SciPy [1 2 0], netCDF4 [1 2 0], xarray [1. 2. 0.]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scipy==1.18.1 netCDF4==1.7.5.1.post1 xarray==2026.9.0
cd "$folder"

"$folder/venv/bin/python" -W ignore - <<'EOF'
import sys

import netCDF4
import numpy as np
import xarray as xr
from scipy.io import netcdf_file

last_cells = {}
for dtype in ["f8", "f4", "i2"]:
    with netcdf_file("masked.nc", "w", maskandscale=True) as file:
        file.createDimension("x", 3)
        height = file.createVariable("height", dtype, ("x",))
        height[:] = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, False, True])
    with netcdf_file("masked.nc", "r", mmap=False, maskandscale=True) as file:
        fill = file.variables["height"]._FillValue
        by_scipy = file.variables["height"][:]
    with netCDF4.Dataset("masked.nc") as file:
        by_netcdf4 = file["height"][:]
    with xr.open_dataset("masked.nc", engine="netcdf4") as file:
        by_xarray = file["height"].values
    print(f"{dtype}, _FillValue {fill!r}: SciPy {by_scipy}, netCDF4 {by_netcdf4}, xarray {by_xarray}")
    last_cells[dtype] = [cells.tolist()[-1] for cells in (by_scipy, by_netcdf4)]
    last_cells[dtype].append(None if np.isnan(by_xarray[-1]) else by_xarray.tolist()[-1])
near_fill = float(np.float32(1e20))
sys.exit(last_cells != {"f8": [None] * 3, "f4": [near_fill] * 3, "i2": [0] * 3})
EOF
