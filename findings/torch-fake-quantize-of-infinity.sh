#!/usr/bin/env bash
# System:    torch 2.13.0 on an x86-64 CPU, checked on 2026-11-28.
# Behaviour: fake_quantize_per_channel_affine sends +inf, and finite numbers from 2^63 scales on, to the LOWEST
#            value; fake_quantize_per_tensor_affine sends the same numbers to the highest. The documentation gives both
#            the same formula, which clamps the rounded quotient to quant_min ... quant_max.
#            NaN has three answers: the lowest code by these two, the highest by quantize_per_tensor, and 0 by
#            quantize_per_channel.
# Expected:  +inf and 1e19 at the highest value, whichever operator is called.
# Seen:
#   input                              [200.0, 10000000000.0, 1e+19, inf, -inf, nan]
#   fake_quantize_per_tensor_affine    [127, 127, 127, 127, -128, -128]
#   fake_quantize_per_channel_affine   [127, 127, -128, -128, -128, -128]
#   quantize_per_tensor                [127, 127, 127, 127, -128, 127]
#   quantize_per_channel               [127, 127, 127, 127, -128, 0]
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
cd "$folder"

"$folder/venv/bin/python" -W ignore - <<'EOF'
import sys

import torch

values = torch.tensor([200.0, 1e10, 1e19, float("inf"), -float("inf"), float("nan")])
row = values.reshape(1, -1)
scale = torch.ones(1)
zero_point = torch.zeros(1, dtype=torch.int32)
codes = {
    "fake_quantize_per_tensor_affine": torch.fake_quantize_per_tensor_affine(values, 1.0, 0, -128, 127),
    "fake_quantize_per_channel_affine": torch.fake_quantize_per_channel_affine(row, scale, zero_point, 0, -128, 127),
    "quantize_per_tensor": torch.quantize_per_tensor(values, 1.0, 0, torch.qint8).int_repr(),
    "quantize_per_channel": torch.quantize_per_channel(row, scale, zero_point, 0, torch.qint8).int_repr(),
}
codes = {name: result.flatten().int().tolist() for name, result in codes.items()}

print(f"{'input':34} {[float(f'{value:.4g}') for value in values.tolist()]}")
for name, result in codes.items():
    print(f"{name:34} {result}")
expected = {
    "fake_quantize_per_tensor_affine": [127, 127, 127, 127, -128, -128],
    "fake_quantize_per_channel_affine": [127, 127, -128, -128, -128, -128],
    "quantize_per_tensor": [127, 127, 127, 127, -128, 127],
    "quantize_per_channel": [127, 127, 127, 127, -128, 0],
}
sys.exit(codes != expected)
EOF
