#!/usr/bin/env bash
# System:    GDAL 3.12.2 in rasterio 1.5.2, with NumPy 2.5.5, x86-64, checked on 2026-11-29.
# Behaviour: a row of float32 read as Int16 is rounded. The number just below 0.5 becomes 0 in the first 16 pixels of a
#            row of 19, and 1 in the last three; its negative is -1 in all of them. Other widths are cut at multiples of 8.
# Expected:  one code for one number, 0, and the same for its negative.
# Seen:
#   number          0.4999999701976776
#   its codes       [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
#   its negative's  [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1]
#   0.4             [0]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet rasterio==1.5.2 numpy==2.5.5
cd "$folder"

"$folder/venv/bin/python" -W ignore - <<'EOF'
import sys

import numpy as np
import rasterio

width = 19
below_half = np.nextafter(np.float32(0.5), np.float32(0))
rows = np.array([[below_half] * width, [-below_half] * width, [0.4] * width], np.float32)
with rasterio.open("x.tif", "w", driver="GTiff", height=3, width=width, count=1, dtype="float32") as file:
    file.write(rows, 1)
as_int16 = f"""<VRTDataset rasterXSize="{width}" rasterYSize="3"><VRTRasterBand dataType="Int16" band="1">
<SimpleSource><SourceFilename>x.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource>
</VRTRasterBand></VRTDataset>"""
with rasterio.open(as_int16) as file:
    positive, negative, other = file.read(1).tolist()
print(f"{'number':15} {float(below_half)}")
print(f"{'its codes':15} {positive}")
print(f"{'its negative' + chr(39) + 's':15} {negative}")
print(f"{'0.4':15} {sorted(set(other))}")
sys.exit(not (set(positive) == {0, 1} and set(negative) == {-1} and set(other) == {0}))
EOF
