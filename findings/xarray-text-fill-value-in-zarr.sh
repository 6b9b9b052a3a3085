#!/usr/bin/env bash
# System:    xarray 2026.9.0 with zarr 3.4.2, checked on 2026-11-28.
# Behaviour: Dataset.to_zarr accepts text of a fixed length (<U3, S3) with a `_FillValue` and writes the store without
#            a word. xarray itself then can't open that store, although zarr reads the texts from it.
#            The older format 2 of Zarr holds the same variable, and xarray reads it back.
# Expected:  an error when the store is written, or a store that xarray opens.
# Seen:
#   <U3, format 2: written; xarray reads ['abc', nan, 'de']; zarr reads ['abc', '-', 'de']
#   <U3, format 3: written; xarray raises ValueError: Failed to decode fill_value. Unsupported dtype <U3; zarr reads ['abc', '-', 'de']
#   S3, format 2: written; xarray reads [b'abc', nan, b'de']; zarr reads [b'abc', b'-', b'de']
#   S3, format 3: written; xarray raises ValueError: Failed to decode fill_value. Unsupported dtype |S3; zarr reads [b'abc', b'-', b'de']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xarray==2026.9.0 zarr==3.4.2
cd "$folder"

"$folder/venv/bin/python" -W ignore - <<'EOF'
import sys

import numpy as np
import xarray as xr
import zarr

behaves = True
for dtype in ["<U3", "S3"]:
    for zarr_format in [2, 3]:
        texts = np.array(["abc", "-", "de"], dtype=dtype)
        names = xr.DataArray(texts, dims="station", attrs={"_FillValue": texts[1].item()})
        store = f"{dtype.strip('<')}-{zarr_format}.zarr"
        names.to_dataset(name="name").to_zarr(store, zarr_format=zarr_format, consolidated=False)
        try:
            with xr.open_zarr(store, consolidated=False) as stored:
                answer = f"reads {stored['name'].values.tolist()}"
        except ValueError as error:
            answer = f"raises ValueError: {error}"
        elements = zarr.open_group(store, mode="r")["name"][...]
        print(f"{dtype}, format {zarr_format}: written; xarray {answer}; zarr reads {elements.tolist()}")
        behaves &= answer.startswith("reads" if zarr_format == 2 else "raises ValueError: Failed to decode fill_value")
        behaves &= elements.tolist() == texts.tolist()
sys.exit(not behaves)
EOF
