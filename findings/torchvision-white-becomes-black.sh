#!/usr/bin/env bash
# System:    torchvision 0.29.1, torch 2.14.1, x86-64 CPU, checked on 2026-11-29.
# Behaviour: v2.functional.to_dtype(x, torch.uint16, scale=True) turns 1.0 of float32 into 0, and to_dtype(x, torch.uint8,
#            scale=True) 1.0 of float16 and of bfloat16. Numbers just below 1.0 keep their codes. There is no error.
# Expected:  the highest code, as for float32 and uint8, or an error, as for float32 and int32.
# Seen:
#   float32 to uint8    1.0 -> 255, 0.99 -> 253
#   float32 to uint16   1.0 -> 0, 0.99 -> 64880
#   float16 to uint8    1.0 -> 0, 0.99 -> 253
#   bfloat16 to uint8   1.0 -> 0, 0.99 -> 253
#   float32 to int32    The conversion from torch.float32 to torch.int32 cannot be performed safely.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchvision==0.29.1 torch==2.14.1 numpy==2.4.6
cd "$folder"

"$folder/venv/bin/python" - <<'EOF'
import sys

import torch
from torchvision.transforms.v2.functional import to_dtype

codes = {}
for source, target in (("float32", "uint8"), ("float32", "uint16"), ("float16", "uint8"), ("bfloat16", "uint8")):
    image = torch.tensor([[[1.0, 0.99]]], dtype=getattr(torch, source))
    white, bright = to_dtype(image, getattr(torch, target), scale=True).flatten().tolist()
    codes[source, target] = white
    print(f"{f'{source} to {target}':19} 1.0 -> {white}, 0.99 -> {bright}")
refusal = ""
try:
    to_dtype(torch.ones(1, 1, 1), torch.int32, scale=True)
except RuntimeError as error:
    refusal = str(error)
print(f"{'float32 to int32':19} {refusal}")
sys.exit(not (list(codes.values()) == [255, 0, 0, 0] and refusal))
EOF
