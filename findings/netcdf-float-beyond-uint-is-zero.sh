#!/usr/bin/env bash
# System:    netCDF-C 4.10.1 in netCDF4 1.7.5.1.post1, x86-64 Linux, checked on 2026-11-30.
# Behaviour: nc_put_var_float of 2**32 into a variable of NC_UINT in a netCDF-4 file returns no error and stores 0, and so
#            does 2**64 into NC_UINT64; 2**63 into NC_INT64 becomes the lowest integer. Twice as large numbers give
#            NC_ERANGE, as does 2**31 into NC_INT, and 2**32 into NC_UINT from doubles. `cdo -b U32 pack` of CDO 2.1.1
#            makes such numbers of the largest value of a field of float32, which comes back as the smallest one.
# Expected:  NC_ERANGE (-60) for all of them, as the largest uint is 2**32 - 1.
# Seen:
#   NC_INT, float 2**31       NC_ERANGE
#   NC_UINT, float 2**32      no error, 0
#   NC_UINT, double 2**32     NC_ERANGE
#   NC_UINT, float 2**33      NC_ERANGE
#   NC_INT64, float 2**63     no error, -9223372036854775808
#   NC_UINT64, float 2**64    no error, 0
#   NC_UINT64, float 2**65    NC_ERANGE
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet netCDF4==1.7.5.1.post1
cd "$folder"

"$folder/venv/bin/python" - <<'EOF'
import ctypes
import sys
from pathlib import Path

import netCDF4

(path,) = Path(netCDF4.__file__).parents[1].glob("netcdf4.libs/libnetcdf-*")  # the library that the package calls
library = ctypes.CDLL(str(path))
NC_NETCDF4, NC_ERANGE = 0x1000, -60
TYPES = {"NC_INT": 4, "NC_UINT": 9, "NC_INT64": 10, "NC_UINT64": 11}


def written(kind, number, name):
    """Write a number to a variable of a new file; return the status, and what netCDF4 reads."""
    file, dimension, variable = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    numbers = ({"float": ctypes.c_float, "double": ctypes.c_double}[name] * 1)(number)
    assert library.nc_create(b"x.nc", NC_NETCDF4, ctypes.byref(file)) == 0
    assert library.nc_def_dim(file, b"x", ctypes.c_size_t(1), ctypes.byref(dimension)) == 0
    dimensions = (ctypes.c_int * 1)(dimension.value)
    assert library.nc_def_var(file, b"v", TYPES[kind], 1, dimensions, ctypes.byref(variable)) == 0
    assert library.nc_enddef(file) == 0
    status = getattr(library, f"nc_put_var_{name}")(file, variable, numbers)
    assert library.nc_close(file) == 0
    with netCDF4.Dataset("x.nc") as dataset:
        dataset.set_auto_mask(False)
        return status, int(dataset["v"][0])


CASES = {
    ("NC_INT", "float", 31): None,
    ("NC_UINT", "float", 32): 0,
    ("NC_UINT", "double", 32): None,
    ("NC_UINT", "float", 33): None,
    ("NC_INT64", "float", 63): -(2**63),
    ("NC_UINT64", "float", 64): 0,
    ("NC_UINT64", "float", 65): None,
}
same = True
for (kind, name, power), expected in CASES.items():
    status, stored = written(kind, 2.0**power, name)
    seen = {0: f"no error, {stored}", NC_ERANGE: "NC_ERANGE"}.get(status, f"status {status}")
    same &= seen == ("NC_ERANGE" if expected is None else f"no error, {expected}")
    print(f"{f'{kind}, {name} 2**{power}':25} {seen}")
sys.exit(0 if same else "the behaviour has changed")
EOF
