#!/usr/bin/env bash
# System:    netCDF4 1.7.5.1.post1 (netCDF-C 4.10.1), files by h5py 3.16.0, checked on 2026-11-28; compared with
#            h5netcdf 1.8.2, through xarray 2026.9.0.
# Behaviour: a file of HDF5 opens, but some datasets are not among its variables. For an opaque dtype there is a
#            warning; for a table with one column of float16 or bool, and for elements that are short vectors, there is
#            none. xarray's engine "netcdf4" has the same variables, its engine "h5netcdf" all of them.
# Expected:  a warning for each dataset that is left out, as for the opaque one.
# Seen:
#   table of int32, float32  netCDF4 has it: True, warns: False; xarray has it by netcdf4: True, by h5netcdf: True
#   table of int32, float16  netCDF4 has it: False, warns: False; xarray has it by netcdf4: False, by h5netcdf: True
#   table of int32, bool     netCDF4 has it: False, warns: False; xarray has it by netcdf4: False, by h5netcdf: True
#   vectors of 3 float32     netCDF4 has it: False, warns: False; xarray has it by netcdf4: False, by h5netcdf: True
#   opaque                   netCDF4 has it: False, warns: True; xarray has it by netcdf4: False, by h5netcdf: True
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet netCDF4==1.7.5.1.post1 h5py==3.16.0 h5netcdf==1.8.2 xarray==2026.9.0
cd "$folder"

"$folder/venv/bin/python" - <<'EOF'
import sys
import warnings

import h5py
import netCDF4
import numpy as np
import xarray as xr

dtypes = {
    "table of int32, float32": [("station", "i4"), ("height", "f4")],
    "table of int32, float16": [("station", "i4"), ("height", "f2")],
    "table of int32, bool": [("station", "i4"), ("valid", "?")],
    "vectors of 3 float32": ("f4", (3,)),
    "opaque": "V3",
}
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    answers = {}
    for name, dtype in dtypes.items():
        with h5py.File("data.h5", "w") as file:
            file["plain"] = np.zeros(2, "f4")
            file.create_dataset("special", shape=(2,), dtype=np.dtype(dtype))
        heard.clear()
        with netCDF4.Dataset("data.h5") as file:
            by_netcdf4 = "special" in file.variables
        warned = bool(heard)
        with xr.open_dataset("data.h5", engine="netcdf4") as file:
            by_xarray = "special" in file.variables
        with xr.open_dataset("data.h5", engine="h5netcdf", phony_dims="sort") as file:
            by_h5netcdf = "special" in file.variables
        answers[name] = (by_netcdf4, warned, by_xarray, by_h5netcdf)
        answer = f"netCDF4 has it: {by_netcdf4}, warns: {warned}"
        answer += f"; xarray has it by netcdf4: {by_xarray}, by h5netcdf: {by_h5netcdf}"
        print(f"{name:24} {answer}")
sys.exit(
    answers
    != {
        "table of int32, float32": (True, False, True, True),
        "table of int32, float16": (False, False, False, True),
        "table of int32, bool": (False, False, False, True),
        "vectors of 3 float32": (False, False, False, True),
        "opaque": (False, True, False, True),
    }
)
EOF
