#!/usr/bin/env bash
# System:    usearch 2.26.6, with NumPy 2.4.6 and ml_dtypes 0.6.0, checked on 2026-11-29.
# Behaviour: an index of dtype "e4m3" with 64 dimensions takes vectors of 64 bytes of uint8, the bytes of float8, without
#            an error. It reads them as bits, and keeps the first 64 of the 512 as numbers 0 and 1. With dtype="e4m3" in
#            the call the same bytes are the numbers of float8. An index of dtype "b1" refuses 64 bytes for 64 dimensions.
# Expected:  an error, as from the index of bits, or the numbers of the dtype that the index has.
# Seen:
#   given                   [1.75, -1.75, 9.0, 1.375, -7.5, 5.0]
#   the first bits          [0, 0, 1, 1, 1, 1]
#   stored                  [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
#   stored, dtype="e4m3"    [1.75, -1.75, 9.0, 1.375, -7.5, 5.0]
#   index of bits           The number of vector dimensions doesn't match!
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet usearch==2.26.6 numpy==2.4.6 ml_dtypes==0.6.0
cd "$folder"

"$folder/venv/bin/python" - <<'EOF'
import sys

import ml_dtypes
import numpy as np
from usearch.index import Index

dimensions = 64
vectors = np.random.default_rng(0).standard_normal((200, dimensions)).astype(np.float32)
vectors *= 100 / np.linalg.norm(vectors, axis=1, keepdims=True)
numbers = vectors.astype(ml_dtypes.float8_e4m3fn)
stored_bytes = numbers.view(np.uint8)
keys = np.arange(len(vectors))


def stored(**options):
    index = Index(ndim=dimensions, metric="ip", dtype="e4m3")
    index.add(keys, stored_bytes, **options)
    return np.asarray(index.get(0, dtype="f32"))


refusal = ""
try:
    Index(ndim=dimensions, metric="hamming", dtype="b1").add(keys, stored_bytes)
except ValueError as error:
    refusal = str(error)

given = numbers[0].astype(np.float32)
bits = np.unpackbits(stored_bytes[0])[:dimensions]
without, with_dtype = stored(), stored(dtype="e4m3")
print(f"{'given':23} {given[:6].tolist()}")
print(f"{'the first bits':23} {bits[:6].tolist()}")
print(f"{'stored':23} {without[:6].tolist()}")
print(f"{'stored, dtype=\"e4m3\"':23} {with_dtype[:6].tolist()}")
print(f"{'index of bits':23} {refusal}")
sys.exit(not ((without == bits).all() and (with_dtype == given).all() and refusal))
EOF
