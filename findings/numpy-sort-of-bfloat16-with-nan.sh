#!/usr/bin/env bash
# System:    NumPy 2.5.5 with the dtypes of ml_dtypes 0.6.0, checked on 2026-11-28.
# Behaviour: numpy.sort puts NaN last and sorts the rest, for float16 as for all floats of NumPy. In bfloat16 and
#            float8_e4m3fn, the numbers before and after a NaN are not sorted with one another, without an error or a
#            warning. So numpy.unique keeps duplicates.
# Expected:  NaN at the end and the numbers in order, as in float16.
# Seen:
#   input          [3, 1, nan, 2, 1, 0]
#   float16        sorted [0.0, 1.0, 1.0, 2.0, 3.0, nan], unique [0.0, 1.0, 2.0, 3.0, nan]
#   bfloat16       sorted [1.0, 3.0, nan, 0.0, 1.0, 2.0], unique [1.0, 3.0, nan, 0.0, 1.0, 2.0]
#   float8_e4m3fn  sorted [1.0, 3.0, nan, 0.0, 1.0, 2.0], unique [1.0, 3.0, nan, 0.0, 1.0, 2.0]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.5.5 ml_dtypes==0.6.0
cd "$folder"

"$folder/venv/bin/python" -W error - <<'EOF'
import sys

import ml_dtypes
import numpy as np

values = [3, 1, np.nan, 2, 1, 0]
print(f"{'input':14} {values}")
in_order = {}
for dtype in [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]:
    array = np.array(values, dtype)
    name = array.dtype.name
    ordered = np.sort(array).astype(float)
    distinct = np.unique(array).astype(float)
    print(f"{name:14} sorted {ordered.tolist()}, unique {distinct.tolist()}")
    in_order[name] = ordered[:-1].tolist() == [0, 1, 1, 2, 3] and np.isnan(ordered[-1])
sys.exit(in_order != {"float16": True, "bfloat16": False, "float8_e4m3fn": False})
EOF
